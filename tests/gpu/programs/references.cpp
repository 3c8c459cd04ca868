// What can be known of who refers to device memory, before anything is built on it. references.py runs this natively
// and preloaded.
//
//   references words    allocates blocks, hides their addresses, and lists the words of the process's memory that equal
//                       one of them, by mapping: all of them are the driver's (and the preload's). Frees half of the
//                       blocks and lists again: what stays is stale.
//   references load     loads a module beside a kernel that runs until the host ends it: did that wait?
//   references unmap    unmaps virtual memory under a kernel that reads it
//   references trim     frees stream-ordered memory and trims its pool under a kernel that reads it
//
// Prints one line of JSON.
#include <cuda.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

#define MUST(call)                                                 \
    do {                                                           \
        CUresult status_ = (call);                                 \
        if (status_) {                                             \
            fprintf(stderr, "%s: %d\n", #call, (int)status_);      \
            _exit(1);                                              \
        }                                                          \
    } while (0)

static const char PTX[] = R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 end) {
    .reg .pred %p<2>; .reg .u32 %r<2>; .reg .u64 %d<2>;
    ld.param.u64 %d1, [end];
again:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra again;
    ret;
}
.visible .entry sweep(.param .u64 at, .param .u64 bytes, .param .u64 end) {
    .reg .pred %p<3>; .reg .u32 %r<3>; .reg .u64 %d<6>;
    ld.param.u64 %d1, [at];
    ld.param.u64 %d2, [bytes];
    ld.param.u64 %d3, [end];
again:
    mov.u64 %d4, 0;
next:
    add.u64 %d5, %d1, %d4;
    ld.volatile.global.u32 %r2, [%d5];
    add.u64 %d4, %d4, 4096;
    setp.lt.u64 %p2, %d4, %d2;
    @%p2 bra next;
    ld.volatile.global.u32 %r1, [%d3];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra again;
    ret;
}
)";

static double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static CUcontext begin() {
    CUdevice device;
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

// ---- words

static const CUdeviceptr KEY = 0x5a5a5a5a5a5a5a5a;
enum { BLOCKS = 256 };
static const size_t ROOM = 1 << 20;  // so much is read at once

// Allocates in a frame of its own; only hidden addresses leave it.
__attribute__((noinline)) static void allocate(CUdeviceptr *hidden, size_t *bytes) {
    for (int i = 0; i < BLOCKS; i++) {
        CUdeviceptr p = 0;
        bytes[i] = size_t(64 + i * 37 % 4096) << 10;
        MUST(cuMemAlloc(&p, bytes[i]));
        hidden[i] = p ^ KEY;
        p = 0;
        asm volatile("" : : "r"(&p) : "memory");
    }
}
__attribute__((noinline)) static void free_half(const CUdeviceptr *hidden) {
    for (int i = 0; i < BLOCKS; i += 2) MUST(cuMemFree(hidden[i] ^ KEY));
}
// Writes over what earlier calls left on this thread's stack.
__attribute__((noinline)) static void wipe_stack() {
    volatile char space[512 << 10];
    for (size_t i = 0; i < sizeof space; i++) space[i] = 0;
}

struct Found {
    unsigned long words = 0;
    std::vector<bool> blocks = std::vector<bool>(BLOCKS);
};

// Words that equal the address of a block, by the name of the mapping that they are in.
static std::map<std::string, Found> look(const CUdeviceptr *hidden, char *buffer) {
    std::map<std::string, Found> found;
    std::vector<std::pair<CUdeviceptr, int>> known;
    for (int i = 0; i < BLOCKS; i++) known.push_back({hidden[i], i});
    std::sort(known.begin(), known.end());
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char flags[8], name[512] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %511[^\n]", &from, &to, flags, name) < 3) continue;
        if (flags[0] != 'r' || flags[1] != 'w' || strstr(name, "/dev/nvidia")) continue;
        if (!*name) strcpy(name, "anonymous");
        if (const char *slash = strrchr(name, '/')) memmove(name, slash + 1, strlen(slash));
        for (unsigned long at = from; at < to; at += ROOM) {
            size_t bytes = std::min(ROOM, size_t(to - at));
            if ((char *)at < buffer + ROOM && buffer < (char *)at + bytes) continue;
            // What was never touched holds nothing, and is not to be filled by looking at it.
            static unsigned char resident[ROOM / 4096];
            if (mincore((void *)at, bytes, resident) || !memchr(resident, 1, bytes / 4096)) continue;
            iovec local = {buffer, bytes}, remote = {(void *)at, bytes};
            ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
            for (ssize_t i = 0; i + 8 <= got; i += 8) {
                CUdeviceptr word = *(CUdeviceptr *)(buffer + i) ^ KEY;
                auto one = std::lower_bound(known.begin(), known.end(), std::make_pair(word, -1));
                if (one != known.end() && one->first == word) {
                    Found &here = found[name];
                    here.words++;
                    here.blocks[one->second] = true;
                }
            }
            memset(buffer, 0, ROOM);
        }
    }
    if (maps) fclose(maps);
    return found;
}

static void say(const char *what, const std::map<std::string, Found> &found, bool freed) {
    printf("\"%s\": {", what);
    const char *comma = "";
    for (const auto &[name, of] : found) {
        int live = 0, gone = 0;
        for (int i = 0; i < BLOCKS; i++) (freed && i % 2 == 0 ? gone : live) += of.blocks[i];
        printf("%s\"%s\": {\"words\": %lu, \"live_blocks\": %d, \"freed_blocks\": %d}", comma, name.c_str(), of.words, live, gone);
        comma = ", ";
    }
    printf("}");
}

static int words() {
    static CUdeviceptr hidden[BLOCKS];
    static size_t bytes[BLOCKS];
    char *buffer = (char *)aligned_alloc(4096, ROOM);
    begin();
    allocate(hidden, bytes);
    wipe_stack();
    auto before = look(hidden, buffer);
    free_half(hidden);
    MUST(cuCtxSynchronize());
    wipe_stack();
    auto after = look(hidden, buffer);
    printf("{\"blocks\": %d, ", int(BLOCKS));
    say("live", before, false);
    printf(", ");
    say("half_freed", after, true);
    printf("}\n");
    return 0;
}

// ---- work that goes on

static CUfunction function(const char *name) {
    static CUmodule module;
    CUfunction f;
    if (!module) MUST(cuModuleLoadData(&module, PTX));
    MUST(cuModuleGetFunction(&f, module, name));
    return f;
}

static volatile unsigned *ending;
static CUdeviceptr end_flag() {
    void *host;
    CUdeviceptr device;
    MUST(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer(&device, host, 0));
    ending = (volatile unsigned *)host;
    *ending = 0;
    return device;
}

static volatile bool returned;
// Ends the work after three seconds, or when the call has returned.
static void *watchdog(void *) {
    for (double until = seconds() + 3; seconds() < until && !returned;) usleep(1000);
    *ending = 1;
    return nullptr;
}

static int load() {
    begin();
    CUdeviceptr end = end_flag();
    CUfunction spin = function("spin");
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void *args[] = {&end};
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, nullptr));
    usleep(20000);
    pthread_t dog;
    pthread_create(&dog, nullptr, watchdog, nullptr);
    CUmodule another;
    CUfunction f;
    double start = seconds();
    MUST(cuModuleLoadData(&another, PTX));
    double loaded = seconds();
    MUST(cuModuleGetFunction(&f, another, "sweep"));
    double got = seconds();
    bool during = !*ending;
    returned = true;
    pthread_join(dog, nullptr);
    MUST(cuStreamSynchronize(stream));
    printf("{\"waited\": %s, \"load_ms\": %.1f, \"function_ms\": %.1f}\n", during ? "false" : "true", (loaded - start) * 1e3, (got - loaded) * 1e3);
    return 0;
}

static void sweep_begins(CUdeviceptr at, size_t bytes, CUdeviceptr end, CUstream stream) {
    void *args[] = {&at, &bytes, &end};
    MUST(cuLaunchKernel(function("sweep"), 1, 1, 1, 1, 1, 1, 0, stream, args, nullptr));
    usleep(20000);
}

static int ended(const char *what, CUresult called, double ms, CUstream stream) {
    usleep(100000);
    *ending = 1;
    CUresult reader = cuStreamSynchronize(stream);
    printf("{\"%s\": %d, \"ms\": %.2f, \"reader\": %d}\n", what, (int)called, ms, (int)reader);
    fflush(stdout);
    _exit(0);
}

static int unmap() {
    begin();
    CUdeviceptr end = end_flag(), at;
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t bytes = 64 << 20;
    CUmemGenericAllocationHandle handle;
    MUST(cuMemCreate(&handle, bytes, &prop, 0));
    MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    MUST(cuMemMap(at, bytes, 0, handle, 0));
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemSetAccess(at, bytes, &access, 1));
    sweep_begins(at, bytes, end, stream);
    double start = seconds();
    CUresult called = cuMemUnmap(at, bytes);
    return ended("unmap", called, (seconds() - start) * 1e3, stream);
}

static int trim() {
    begin();
    CUdeviceptr end = end_flag(), at;
    CUstream stream, other;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    size_t bytes = 256 << 20;
    MUST(cuMemAllocAsync(&at, bytes, other));
    MUST(cuStreamSynchronize(other));
    sweep_begins(at, bytes, end, stream);
    CUdevice device;
    CUmemoryPool pool;
    MUST(cuCtxGetDevice(&device));
    MUST(cuDeviceGetMemPool(&pool, device));
    MUST(cuMemFreeAsync(at, other));
    MUST(cuStreamSynchronize(other));
    double start = seconds();
    CUresult called = cuMemPoolTrimTo(pool, 0);
    return ended("trim", called, (seconds() - start) * 1e3, stream);
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "";
    if (what == "words") return words();
    if (what == "load") return load();
    if (what == "unmap") return unmap();
    if (what == "trim") return trim();
    fprintf(stderr, "usage: references words|load|unmap|trim\n");
    return 2;
}
