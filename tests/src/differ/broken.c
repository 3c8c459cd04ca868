/* Stands between a program and the driver and does one thing wrong, as BROKEN says: what the differential
 * tester has to find. Preloaded; the driver's functions are looked up with dlsym, which it replaces. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*update_fn)(void *, void *, void *);
typedef int (*launch_fn)(void *, void *);
typedef int (*setter_fn)(void *, void *, const void *);
typedef int (*destroy_fn)(void *);
typedef int (*instantiate_fn)(void **, void *, unsigned long long);
typedef int (*stream_fn)(void **, unsigned);
typedef int (*host_fn)(void *, void (*)(void *), void *);

static update_fn real_update;
static launch_fn real_launch;
static setter_fn real_setter;
static destroy_fn real_destroy;
static instantiate_fn real_instantiate;
static void *(*real_dlsym)(void *, const char *);
static void *other_stream, *last_exec;

static int broken(const char *what) {
    const char *asked = getenv("BROKEN");
    return asked && !strcmp(asked, what);
}

/* Says success and does nothing. */
static int update(void *exec, void *graph, void *info) {
    if (broken("update")) {
        memset(info, 0, 24);
        return 0;
    }
    if (broken("crash")) abort();
    if (broken("hang")) pause();
    return real_update(exec, graph, info);
}

static int setter(void *exec, void *node, const void *params) {
    return broken("setter") ? 0 : real_setter(exec, node, params);
}

static void *of_driver(const char *name) {
    void *found = real_dlsym(RTLD_DEFAULT, name);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return !found && driver ? real_dlsym(driver, name) : found;
}

static void sleep_on_stream(void *nothing) {
    (void)nothing;
    usleep(10000);
}

/* On a stream of its own, so in no order with what the program's stream has; or another exec. The stream sleeps
 * before: so what the program does next comes first each time, and not as threads happen to run. */
static int launch(void *exec, void *stream) {
    if (broken("order")) {
        if (!other_stream) {
            stream_fn create = (stream_fn)of_driver("cuStreamCreate");
            if (create) create(&other_stream, 1);
        }
        host_fn call = (host_fn)of_driver("cuLaunchHostFunc");
        if (call) call(other_stream, sleep_on_stream, NULL);
        return real_launch(exec, other_stream);
    }
    if (broken("share") && last_exec) return real_launch(last_exec, stream);
    return real_launch(exec, stream);
}

static int instantiate(void **exec, void *graph, unsigned long long flags) {
    int status = real_instantiate(exec, graph, flags);
    if (!status && !last_exec) last_exec = *exec;
    return status;
}

static int destroy(void *exec) {
    if (exec == last_exec) last_exec = 0;
    return broken("destroy") ? 1 : real_destroy(exec);
}

#define REPLACE(name, real, own) if (found && !strcmp(symbol, name)) { *(void **)&real = found; return (void *)own; }

void *dlsym(void *handle, const char *symbol) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (unsigned i = 0; !real_dlsym && i < 3; i++) *(void **)&real_dlsym = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    void *found = real_dlsym(handle, symbol);
    REPLACE("cuGraphExecUpdate_v2", real_update, update)
    REPLACE("cuGraphLaunch", real_launch, launch)
    REPLACE("cuGraphExecKernelNodeSetParams_v2", real_setter, setter)
    REPLACE("cuGraphExecDestroy", real_destroy, destroy)
    REPLACE("cuGraphInstantiateWithFlags", real_instantiate, instantiate)
    return found;
}
