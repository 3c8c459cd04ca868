// C++ frames for the stack tests: virtual calls, exception tables, destructors, a lambda.
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

typedef void (*callback)(void *);

struct Shape {
    virtual ~Shape() = default;
    virtual int call(int depth, callback call, void *with) = 0;
};

struct Outer final : Shape {
    std::vector<std::string> names{"a name that is too long to be kept in place", "b"};
    int call(int depth, callback call, void *with) override;
};

struct Inner final : Shape {
    int call(int depth, callback call, void *with) override {
        std::function<int()> run = [&] {
            if (depth <= 0) {
                call(with);
                return 0;
            }
            Outer outer;
            return outer.call(depth - 1, call, with) + 1;
        };
        return run() + depth;
    }
};

int Outer::call(int depth, callback call, void *with) {
    Inner inner;
    try {
        int result = inner.call(depth, call, with);
        if (result < 0) {
            throw std::runtime_error(names[0]);
        }
        return result + static_cast<int>(names.size());
    } catch (const std::exception &error) {
        call(with);
        return -1;
    }
}

extern "C" int virtual_calls(int depth, callback call, void *with) {
    Outer outer;
    return outer.call(depth, call, with) + 1;
}

extern "C" int from_catch(callback call, void *with) {
    try {
        throw std::runtime_error("thrown to be caught");
    } catch (const std::exception &error) {
        call(with);
        return static_cast<int>(std::string(error.what()).size());
    }
}
