/* What the shim adds to a call, in nanoseconds, measured inside one preloaded process: each block of
 * calls goes once through the shim's door and once to the driver's own entry (found in the driver's
 * symbol table, past every hook), alternating, and the median of the differences is printed.
 *
 *     cost calls            calls that are passed through, and launches
 *     cost graphs [NODES]   launches of one exec, of two by turns, and instantiate + destroy
 *     cost handles [MOST]   launches by turns of 100 execs of one kernel, of 1000, and so on to MOST (100000)
 *     cost cold [MIB]       launches of one exec, MIB (8) MiB written before each: nothing of it is in the caches
 *     cost pairs [DEPTH]    cuMemAlloc + cuMemFree, from DEPTH frames down
 *     cost live N [MAPS]    N live allocations and MAPS mappings of a file, then "ready", until stdin closes
 *
 * One JSON line per figure. Without the preload both ways are the same function and the difference
 * printed is the noise of the measurement. COST_BLOCKS and COST_PER_BLOCK set the sample.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../programs/mix.h"
#include "entries.h"

typedef unsigned long long CUdeviceptr;
typedef int (*get_proc_fn)(const char *, void **, int, uint64_t, int *);
enum { BLOCKS_MAX = 20001 };
#define USAGE "calls | graphs [NODES] | handles [MOST] | cold [MIB] | pairs [DEPTH] | live N [MAPS]"

static get_proc_fn hooked_get, real_get;

static int setting(const char *name, int fallback) {
    const char *text = getenv(name);
    return text && atoi(text) > 0 ? atoi(text) : fallback;
}
struct way { int (*fn)(); void *what; }; /* `what`: an exec or a graph, made by the same way */
struct call { struct way hooked, real; int differs; };

static struct call find(const char *name, int version) {
    struct call call = {{NULL, NULL}, {NULL, NULL}, 0};
    if (hooked_get(name, (void **)&call.hooked.fn, version, 0, NULL)) call.hooked.fn = NULL;
    if (real_get(name, (void **)&call.real.fn, version, 0, NULL)) call.real.fn = NULL;
    call.differs = call.hooked.fn != call.real.fn;
    return call;
}
static struct call need(const char *name, int version) {
    struct call call = find(name, version);
    if (!call.hooked.fn || !call.real.fn) {
        fprintf(stderr, "cost: the driver has no %s\n", name);
        exit(2);
    }
    return call;
}
static void must(int code, const char *what) {
    if (code) {
        fprintf(stderr, "cost: %s gave %d\n", what, code);
        exit(2);
    }
}

/* ---- measuring ---- */
/* One block: `per` calls by way of `fn`, given what it needs. */
typedef void block_fn(struct way *ways, int per);
struct job {
    const char *name;
    block_fn *block, *after; /* after: untimed, once a block (a synchronise) */
    struct way *hooked, *real;
    int differs, blocks, per;
};
static void measure(const struct job *job) {
    static double a[BLOCKS_MAX], b[BLOCKS_MAX], difference[BLOCKS_MAX];
    int blocks = setting("COST_BLOCKS", job->blocks), per = setting("COST_PER_BLOCK", job->per);
    if (blocks > BLOCKS_MAX) blocks = BLOCKS_MAX;
    for (int i = -5; i < blocks; i++) {
        double took[2];
        for (int turn = 0; turn < 2; turn++) {
            int real = (turn + i) & 1;
            struct way *ways = real ? job->real : job->hooked;
            double start = now_ns();
            job->block(ways, per);
            took[real] = (now_ns() - start) / per;
            if (job->after) job->after(job->real, 1);
        }
        if (i < 0) continue; /* warming up */
        a[i] = took[0], b[i] = took[1], difference[i] = took[0] - took[1];
    }
    double low = quantile(difference, blocks, 0.25), middle = quantile(difference, blocks, 0.5);
    double high = quantile(difference, blocks, 0.75);
    printf("{\"cost\":\"%s\",\"hooked\":%s,\"native_ns\":%.1f,\"preloaded_ns\":%.1f,\"added_ns\":%.1f,"
           "\"added_quartiles\":[%.1f,%.1f],\"samples\":%d}\n",
           job->name, job->differs ? "true" : "false", quantile(b, blocks, 0.5), quantile(a, blocks, 0.5), middle, low,
           high, blocks * per);
    fflush(stdout);
}

/* ---- what is measured ---- */
static void *stream, *function;
static struct call synchronize;
static size_t pair_bytes = 64 << 10;

static void sync_after(struct way *ways, int per) { (void)ways; (void)per; must(synchronize.real.fn(stream), "synchronise"); }
#define BLOCK(name, ...) \
    static void name(struct way *w, int per) { for (int i = 0; i < per; i++) { __VA_ARGS__; } }
BLOCK(ctx_get_current, void *c; w->fn(&c))
BLOCK(mem_get_info, size_t f; size_t t; w->fn(&f, &t))
BLOCK(stream_is_capturing, int s; w->fn(stream, &s))
BLOCK(stream_call, w->fn(stream))
BLOCK(device_get, int d; w->fn(&d, 0))
BLOCK(driver_version, int v; w->fn(&v))
BLOCK(launch_kernel, must(w->fn(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel"))
BLOCK(launch_graph, must(w->fn(w->what, stream), "cuGraphLaunch"))
BLOCK(launch_two, must(w[0].fn(w[0].what, stream), "cuGraphLaunch"); must(w[1].fn(w[1].what, stream), "cuGraphLaunch"))
BLOCK(launch_each, must(w[i].fn(w[i].what, stream), "cuGraphLaunch"))
BLOCK(make_and_destroy, void *e; must(w[0].fn(&e, w[0].what, 0ull), "cuGraphInstantiate"); must(w[1].fn(e), "cuGraphExecDestroy"))
BLOCK(pair, CUdeviceptr p; must(w[0].fn(&p, pair_bytes), "cuMemAlloc"); must(w[1].fn(p), "cuMemFree"))

static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/* A graph of a chain of kernels, made by one way from beginning to end: handles that the shim gives out
 * mean nothing to the driver. */
static void *captured(int real, int nodes, uint64_t seed) {
    struct call load = need("cuModuleLoadData", 2000), get = need("cuModuleGetFunction", 2000);
    struct call begin = need("cuStreamBeginCapture", 10010), end = need("cuStreamEndCapture", 10000);
    struct call launch = need("cuLaunchKernel", 4000), alloc = need("cuMemAlloc", 3020);
    static void *module, *mix;
    static CUdeviceptr result;
    if (!mix) {
        must(load.hooked.fn(&module, mix_ptx), "cuModuleLoadData");
        must(get.hooked.fn(&mix, module, "mix"), "cuModuleGetFunction");
        must(alloc.hooked.fn(&result, (size_t)8), "cuMemAlloc");
    }
#define BY(call) (real ? (call).real.fn : (call).hooked.fn)
    must(BY(begin)(stream, 2), "cuStreamBeginCapture");
    for (int i = 0; i < nodes; i++) {
        struct mix m = mix_of((void *)(uintptr_t)result, seed, (uint64_t)i);
        must(BY(launch)(mix, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&m}, NULL), "cuLaunchKernel");
    }
    void *graph;
    must(BY(end)(stream, &graph), "cuStreamEndCapture");
    return graph;
}
static void *instantiated(int real, int nodes, uint64_t seed) {
    struct call instantiate = need("cuGraphInstantiateWithFlags", 11040);
    void *exec;
    must(BY(instantiate)(&exec, captured(real, nodes, seed), 0ull), "cuGraphInstantiate");
#undef BY
    return exec;
}

/* One exec, launched over and over. */
static void resident(const char *label, int nodes, int blocks, int per) {
    struct call launch = need("cuGraphLaunch", 10000);
    launch.hooked.what = instantiated(0, nodes, 1);
    launch.real.what = instantiated(1, nodes, 1);
    measure(&(struct job){label, launch_graph, sync_after, &launch.hooked, &launch.real, launch.differs, blocks, per});
}
/* Two execs of one class by turns: with GPUMEM_GRAPH_CACHE=1 each launch retargets first. */
static void by_turns(const char *label, int nodes, int blocks) {
    struct call launch = need("cuGraphLaunch", 10000);
    struct way hooked[2] = {launch.hooked, launch.hooked}, real[2] = {launch.real, launch.real};
    for (int i = 0; i < 2; i++) hooked[i].what = instantiated(0, nodes, (uint64_t)i), real[i].what = instantiated(1, nodes, (uint64_t)i);
    measure(&(struct job){label, launch_two, sync_after, hooked, real, launch.differs, blocks, 1});
}
/* What a program does that keeps making graphs: the class is known after the first. */
static void instantiating(const char *label, int nodes, int blocks) {
    struct call make = need("cuGraphInstantiateWithFlags", 11040), destroy = need("cuGraphExecDestroy", 10000);
    struct way hooked[2] = {make.hooked, destroy.hooked}, real[2] = {make.real, destroy.real};
    hooked[0].what = captured(0, nodes, 1);
    real[0].what = captured(1, nodes, 1);
    measure(&(struct job){label, make_and_destroy, NULL, hooked, real, make.differs, blocks, 1});
}
/* Execs of one class by turns: beyond GPUMEM_GRAPH_CACHE of them each launch retargets first. */
static void handles(int most) {
    struct call launch = need("cuGraphLaunch", 10000);
    struct way *hooked = calloc((size_t)most, sizeof *hooked), *real = calloc((size_t)most, sizeof *real);
    for (int n = 100, made = 0; n <= most; n *= 10) {
        for (; made < n; made++) {
            hooked[made] = launch.hooked, real[made] = launch.real;
            hooked[made].what = instantiated(0, 1, (uint64_t)made), real[made].what = instantiated(1, 1, (uint64_t)made);
        }
        char label[64];
        snprintf(label, sizeof label, "cuGraphLaunch, %d by turns", n);
        measure(&(struct job){label, launch_each, sync_after, hooked, real, launch.differs, n < 10000 ? 101 : 11, n});
    }
    free(hooked), free(real);
}
/* Time by the processor's own counter where it has one: asking the system's clock would bring that into the caches. */
static double ticks(void) {
#ifdef __x86_64__
    return (double)__builtin_ia32_rdtsc();
#else
    return now_ns();
#endif
}
static double ticks_in_ns(void) {
    double start = now_ns(), from = ticks();
    while (now_ns() - start < 2e7) {}
    return (ticks() - from) / (now_ns() - start);
}
/* What a launch takes that finds nothing in the processor's caches. Pages are small ones: neither do addresses. */
static void cold(size_t mib) {
    enum { SAMPLES = 401 };
    static double hooked[SAMPLES], real[SAMPLES], added[SAMPLES];
    struct call launch = need("cuGraphLaunch", 10000);
    struct way ways[2] = {launch.hooked, launch.real};
    size_t bytes = mib << 20;
    volatile char *other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (other == MAP_FAILED) exit(2);
    madvise((void *)other, bytes, MADV_NOHUGEPAGE);
    for (int i = 0; i < 2; i++) ways[i].what = instantiated(i, 1, 1);
    double rate = ticks_in_ns();
    for (int i = -5; i < SAMPLES; i++) {
        double took[2];
        for (int turn = 0; turn < 2; turn++) {
            struct way *way = &ways[(turn + i) & 1];
            for (size_t at = 0; at < bytes; at += 64) other[at]++;
            double start = ticks();
            must(way->fn(way->what, stream), "cuGraphLaunch");
            took[(turn + i) & 1] = (ticks() - start) / rate;
        }
        if (i >= 0) hooked[i] = took[0], real[i] = took[1], added[i] = took[0] - took[1];
    }
    double low = quantile(added, SAMPLES, 0.25), middle = quantile(added, SAMPLES, 0.5), high = quantile(added, SAMPLES, 0.75);
    printf("{\"cost\":\"cuGraphLaunch, cold\",\"hooked\":%s,\"native_ns\":%.1f,\"preloaded_ns\":%.1f,\"added_ns\":%.1f,"
           "\"added_quartiles\":[%.1f,%.1f],\"samples\":%d}\n", launch.differs ? "true" : "false", quantile(real, SAMPLES, 0.5),
           quantile(hooked, SAMPLES, 0.5), middle, low, high, SAMPLES);
}
static void graphs(int nodes) {
    int real = !dlsym(RTLD_DEFAULT, "null_driver"); /* a graph of a real driver takes a millisecond to run */
    resident("cuGraphLaunch, 1 node", 1, 1001, 200);
    resident("cuGraphLaunch, resident", nodes, 601, real ? 1 : 200);
    by_turns("cuGraphLaunch, two by turns", nodes, 401);
    instantiating("cuGraphInstantiate + cuGraphExecDestroy", nodes, 201);
}

static void calls(void) {
    struct call load = need("cuModuleLoadData", 2000), get = need("cuModuleGetFunction", 2000);
    void *module;
    must(load.hooked.fn(&module, ptx), "cuModuleLoadData");
    must(get.hooked.fn(&function, module, "nothing"), "cuModuleGetFunction");
    const struct { const char *label, *name; int version; block_fn *block, *after; int blocks, per; } list[] = {
        {"cuCtxGetCurrent", "cuCtxGetCurrent", 4000, ctx_get_current, NULL, 2001, 1000},
        {"cuDriverGetVersion", "cuDriverGetVersion", 2020, driver_version, NULL, 2001, 1000},
        {"cuDeviceGet", "cuDeviceGet", 2000, device_get, NULL, 2001, 1000},
        {"cuStreamIsCapturing", "cuStreamIsCapturing", 10000, stream_is_capturing, NULL, 2001, 1000},
        {"cuStreamQuery", "cuStreamQuery", 2000, stream_call, NULL, 2001, 300},
        {"cuStreamSynchronize", "cuStreamSynchronize", 2000, stream_call, NULL, 1001, 300},
        {"cuMemGetInfo", "cuMemGetInfo", 3020, mem_get_info, NULL, 1001, 50},
        {"cuLaunchKernel", "cuLaunchKernel", 4000, launch_kernel, sync_after, 1001, 200},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct call call = find(list[i].name, list[i].version);
        if (!call.hooked.fn || !call.real.fn) continue;
        measure(&(struct job){list[i].label, list[i].block, list[i].after, &call.hooked, &call.real, call.differs,
                              list[i].blocks, list[i].per});
    }
    resident("cuGraphLaunch", 1, 1001, 200);
}

static void pairs(void) {
    struct call alloc = need("cuMemAlloc", 3020), release = need("cuMemFree", 3020);
    struct way hooked[2] = {alloc.hooked, release.hooked}, real[2] = {alloc.real, release.real};
    double start = now_ns();
    pair(real, 20);
    int per = (now_ns() - start) / 20 > 2000 ? 10 : 1000; /* a real device, or the null driver */
    measure(&(struct job){"cuMemAlloc+cuMemFree", pair, NULL, hooked, real, alloc.differs, per == 10 ? 2001 : 4001, per});
}

/* Mappings of this program's file, as many as a large program has of its libraries. */
static void map_file(long n) {
    int file = open("/proc/self/exe", O_RDONLY);
    for (long i = 0; i < n; i++) { /* neighbours of different protection stay apart */
        if (mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE, file, 0) == MAP_FAILED) exit(2);
    }
    close(file);
}

static void live(long n) {
    struct call alloc = need("cuMemAlloc", 3020);
    for (long i = 0; i < n; i++) {
        CUdeviceptr p;
        must(alloc.hooked.fn(&p, (size_t)256), "cuMemAlloc");
    }
    printf("ready %ld\n", n);
    fflush(stdout);
    while (getchar() != EOF) {}
}

static __attribute__((noinline)) void deeper(int depth, void (*then)(void)) {
    if (depth > 0) deeper(depth - 1, then);
    else then();
    __asm__ volatile(""); /* no tail call: each level is a frame */
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (argc < 2 || !driver) return fprintf(stderr, "cost: %s\n", argc < 2 ? USAGE : dlerror()), 2;
    hooked_get = (get_proc_fn)dlsym(driver, "cuGetProcAddress_v2");
    real_get = (get_proc_fn)drivers_own("cuGetProcAddress_v2");
    if (!hooked_get || !real_get) return fprintf(stderr, "cost: no cuGetProcAddress_v2\n"), 2;
    int device;
    void *context;
    must(need("cuInit", 2000).hooked.fn(0), "cuInit");
    must(need("cuDeviceGet", 2000).hooked.fn(&device, 0), "cuDeviceGet");
    must(need("cuDevicePrimaryCtxRetain", 7000).hooked.fn(&context, device), "cuDevicePrimaryCtxRetain");
    must(need("cuCtxSetCurrent", 4000).hooked.fn(context), "cuCtxSetCurrent");
    must(need("cuStreamCreate", 2000).hooked.fn(&stream, 1u), "cuStreamCreate");
    synchronize = need("cuStreamSynchronize", 2000);
    if (!strcmp(argv[1], "calls")) calls();
    else if (!strcmp(argv[1], "graphs")) graphs(argc > 2 ? atoi(argv[2]) : 1000);
    else if (!strcmp(argv[1], "handles")) handles(argc > 2 ? atoi(argv[2]) : 100000);
    else if (!strcmp(argv[1], "cold")) cold(argc > 2 ? (size_t)atol(argv[2]) : 8);
    else if (!strcmp(argv[1], "pairs")) deeper(argc > 2 ? atoi(argv[2]) : 0, pairs);
    else if (!strcmp(argv[1], "live") && argc > 2) map_file(argc > 3 ? atol(argv[3]) : 0), live(atol(argv[2]));
    else return fprintf(stderr, "cost: " USAGE "\n"), 2;
    return 0;
}
