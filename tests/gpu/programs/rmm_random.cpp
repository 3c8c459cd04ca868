// RMM's own pool and arena over the allocations of `poolbench random`: the same sizes and victims, one line of
// JSON. Built where RMM's package is (its include/, include/rapids/ and librmm.so); pool_random.py runs it when
// RMM_RANDOM names it.
//
//     rmm_random pool|arena --count N --max-mib N --usage-mib N
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <utility>
#include <vector>

namespace {
struct Numbers { // splitmix64, as tests/src/poolbench/random.rs has it
    uint64_t state;
    uint64_t below(uint64_t bound) {
        state += 0x9e3779b97f4a7c15ull;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return uint64_t(((unsigned __int128)(z ^ (z >> 31)) * bound) >> 64);
    }
};
struct Step { bool take; uint32_t slot; uint64_t bytes; };
struct Plan { std::vector<Step> steps; uint32_t slots = 0; };

Plan plan(uint64_t count, uint64_t max_bytes, uint64_t usage_bytes) {
    Plan plan;
    Numbers numbers{1};
    std::vector<std::pair<uint32_t, uint64_t>> live;
    std::vector<uint32_t> free;
    uint64_t usage = 0, made = 0;
    for (uint64_t i = 0; i < 2 * count; i++) {
        uint64_t bytes = 1 + numbers.below(max_bytes);
        bool wanted = live.empty() || numbers.below(100) < 73;
        if (made < count && wanted && (live.empty() || usage + bytes < usage_bytes)) {
            uint32_t slot = free.empty() ? plan.slots++ : free.back();
            if (!free.empty()) free.pop_back();
            plan.steps.push_back({true, slot, bytes});
            live.push_back({slot, bytes});
            usage += bytes, made++;
        } else if (!live.empty()) {
            auto &victim = live[numbers.below(live.size())];
            plan.steps.push_back({false, victim.first, victim.second});
            free.push_back(victim.first);
            usage -= victim.second;
            victim = live.back();
            live.pop_back();
        }
    }
    return plan;
}

size_t used() {
    size_t left = 0, total = 0;
    cudaMemGetInfo(&left, &total);
    return total - left;
}

template <class Resource> void replay(const char *mode, Resource &&mr, const Plan &plan, size_t baseline) {
    using clock = std::chrono::steady_clock;
    const cuda::stream_ref stream = rmm::cuda_stream_view{};
    std::vector<void *> at(plan.slots);
    uint64_t now = 0, peak = 0, reserved = 0, then = 0, failed = 0, takes = 0;
    double seconds = 0;
    const size_t every = plan.steps.size() / 500 + 1;
    for (size_t from = 0; from < plan.steps.size(); from += every) {
        auto start = clock::now();
        for (size_t i = from; i < from + every && i < plan.steps.size(); i++) {
            const Step &step = plan.steps[i];
            if (step.take) {
                takes++;
                try {
                    at[step.slot] = mr.allocate(stream, step.bytes, 256);
                    if ((now += step.bytes) > peak) peak = now;
                } catch (const std::exception &) {
                    at[step.slot] = nullptr, failed++;
                }
            } else if (at[step.slot]) {
                mr.deallocate(stream, at[step.slot], step.bytes, 256);
                now -= step.bytes;
            }
        }
        seconds += std::chrono::duration<double>(clock::now() - start).count();
        if (size_t given = used() - baseline; given > reserved) reserved = given, then = now;
    }
    std::printf("{\"mode\":\"%s\",\"steps\":%zu,\"allocations\":%llu,\"failed\":%llu,\"seconds\":%.6f,\"ns_per_step\":%.1f,"
                "\"peak_requested_bytes\":%llu,\"peak_reserved_bytes\":%llu,\"reserved_over_requested\":%.4f,\"fragmentation\":%.4f}\n",
                mode, plan.steps.size(), (unsigned long long)takes, (unsigned long long)failed, seconds, seconds * 1e9 / double(plan.steps.size()),
                (unsigned long long)peak, (unsigned long long)reserved, double(reserved) / double(peak), 1 - double(then) / double(reserved));
}
} // namespace

int main(int argc, char **argv) {
    uint64_t count = 100000, max_mib = 64, usage_mib = 16000;
    for (int i = 2; i + 1 < argc; i += 2) {
        uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
        if (!std::strcmp(argv[i], "--count")) count = value;
        else if (!std::strcmp(argv[i], "--max-mib")) max_mib = value;
        else if (!std::strcmp(argv[i], "--usage-mib")) usage_mib = value;
        else return std::fprintf(stderr, "rmm_random: pool|arena --count N --max-mib N --usage-mib N\n"), 2;
    }
    if (argc < 2 || cudaFree(nullptr)) return std::fprintf(stderr, "rmm_random: no device, or nothing asked for\n"), 2;
    Plan of = plan(count, max_mib << 20, usage_mib << 20);
    size_t baseline = used();
    if (!std::strcmp(argv[1], "arena")) replay("RMM arena", rmm::mr::arena_memory_resource{rmm::mr::cuda_memory_resource{}}, of, baseline);
    else replay("RMM pool", rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, size_t(1) << 30}, of, baseline);
    return 0;
}
