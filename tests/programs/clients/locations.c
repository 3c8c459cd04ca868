/* Memory of every location: what lies on the device, on the host, on a node of the host, and what the driver moves.
 * Arguments: a case, and for how many seconds to stay. What is held at the end stays, for those who read the ledger. */
#define _GNU_SOURCE
#include "count.h"
#include "cuda_min.h"
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

typedef void *Pool, *Stream;
typedef struct { int allocType, handleTypes; CUmemLocation location; void *security; size_t maxSize; unsigned char reserved[56]; } Props;
CUresult cuStreamCreate(Stream *, unsigned), cuStreamSynchronize(Stream);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, Stream), cuMemFreeAsync(CUdeviceptr, Stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, Pool, Stream);
CUresult cuMemPoolCreate(Pool *, const Props *), cuMemPoolDestroy(Pool);
CUresult cuDeviceGetDefaultMemPool(Pool *, int), cuDeviceGetMemPool(Pool *, int), cuDeviceSetMemPool(int, Pool);
CUresult cuMemGetDefaultMemPool(Pool *, CUmemLocation *, int), cuMemGetMemPool(Pool *, CUmemLocation *, int);
CUresult cuMemSetMemPool(CUmemLocation *, int, Pool);
CUresult cuStreamBeginCapture_v2(Stream, int), cuStreamEndCapture(Stream, void **), cuGraphDestroy(void *);
typedef struct { Props pool; const void *access; size_t access_count, bytes; CUdeviceptr at; } AllocNode;
CUresult cuGraphCreate(void **, unsigned), cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
CUresult cuGraphLaunch(void *, Stream), cuGraphExecDestroy(void *);
CUresult cuGraphAddMemAllocNode(void **, void *, const void *, size_t, AllocNode *);
CUresult cuGraphAddNode_v2(void **, void *, const void *, const void *, size_t, void *);
#define NOINLINE __attribute__((noinline))
enum { MIB = 1 << 20, PINNED = 1, MOVED = 2, ON_DEVICE = 1, ON_HOST = 2, ON_NODE = 3, ON_CURRENT_NODE = 4 };

static Stream stream;

static CUmemGenericAllocationHandle physical(size_t bytes, int type, int id) {
    CUmemAllocationProp prop = {.type = PINNED, .location = {type, id}};
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}
static CUdeviceptr mapped(CUmemGenericAllocationHandle handle, size_t bytes, size_t addresses) {
    CUdeviceptr at;
    CUmemAccessDesc access = {.location = {ON_DEVICE, 0}, .flags = 3};
    OK(cuMemAddressReserve(&at, addresses, 0, 0, 0));
    OK(cuMemMap(at, bytes, 0, handle, 0));
    OK(cuMemSetAccess(at, bytes, &access, 1));
    return at;
}
static Pool pool_of(int type, int location, int id) {
    Props props = {.allocType = type, .location = {location, id}};
    Pool pool;
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}
static CUdeviceptr taken(Pool pool, size_t bytes) {
    CUdeviceptr at;
    OK(cuMemAllocFromPoolAsync(&at, bytes, pool, stream));
    OK(cuStreamSynchronize(stream));
    return at;
}

/* Physical memory on a node of the host, with an address. The host's processors use it as the device does. */
NOINLINE static void hostnuma(void) {
    CUmemGenericAllocationHandle handle = physical(256 * MIB, ON_NODE, 0);
    CUdeviceptr at = mapped(handle, 256 * MIB, 512 * MIB);
    CUmemAccessDesc host = {.location = {ON_NODE, 0}, .flags = 3};
    OK(cuMemSetAccess(at, 256 * MIB, &host, 1));
    OK(cuMemsetD8_v2(at, 7, 4096));
    OK(cuCtxSynchronize());
    EXPECT(((unsigned char *)at)[4095], 7);
    physical(2 * MIB, ON_HOST, 0);
    CUmemAllocationProp current = {.type = PINNED, .location = {ON_CURRENT_NODE, 0}};
    EXPECT(cuMemCreate(&handle, 2 * MIB, &current, 0), 1);
}
/* Pools of memory that the driver moves, and of the host's. */
NOINLINE static void pools(void) {
    CUmemLocation device = {ON_DEVICE, 0};
    Pool managed, same;
    OK(cuMemGetDefaultMemPool(&managed, &device, MOVED));
    CUdeviceptr moved = taken(managed, 512 * MIB);
    OK(cuMemsetD8_v2(moved, 3, 4096));
    OK(cuCtxSynchronize());
    EXPECT(((unsigned char *)moved)[5], 3);
    OK(cuMemGetMemPool(&same, &device, MOVED));
    EXPECT(same == managed, 1);
    Pool host = pool_of(PINNED, ON_NODE, 0);
    taken(host, 512 * MIB);
    CUdeviceptr freed = taken(host, 64 * MIB);
    OK(cuMemFreeAsync(freed, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolDestroy(host)); /* What is allocated from it stays. */
}
/* The device's own pools. */
NOINLINE static void device_pools(void) {
    CUmemLocation device = {ON_DEVICE, 0};
    Pool usual, current, own = pool_of(PINNED, ON_DEVICE, 0);
    OK(cuDeviceGetDefaultMemPool(&usual, 0));
    taken(usual, 16 * MIB);
    OK(cuDeviceSetMemPool(0, own));
    OK(cuDeviceGetMemPool(&current, 0));
    EXPECT(current == own, 1);
    CUdeviceptr at;
    OK(cuMemAllocAsync(&at, 32 * MIB, stream));
    OK(cuMemSetMemPool(&device, PINNED, usual));
    OK(cuDeviceGetMemPool(&current, 0));
    EXPECT(current == usual, 1);
    OK(cuMemAllocAsync(&at, 8 * MIB, stream));
}
/* A site that reserves, creates and maps, as allocators of frameworks do. */
NOINLINE static void one_segment(void) {
    enum { PART = 2 * MIB };
    CUdeviceptr at;
    CUmemAccessDesc access = {.location = {ON_DEVICE, 0}, .flags = 3};
    OK(cuMemAddressReserve(&at, 2048ull * MIB, 0, 0, 0));
    for (size_t part = 0; part < 64; part++) {
        OK(cuMemMap(at + part * PART, PART, 0, physical(PART, ON_DEVICE, 0), 0));
        OK(cuMemSetAccess(at + part * PART, PART, &access, 1));
    }
}
NOINLINE static void segments(void) { one_segment(); }
/* Handles that nothing maps any more and nothing has released. */
NOINLINE static void exported(void) {
    for (int round = 0; round < 30; round++) {
        CUmemGenericAllocationHandle handle = physical(8 * MIB, ON_DEVICE, 0);
        CUdeviceptr at = mapped(handle, 8 * MIB, 8 * MIB);
        OK(cuMemUnmap(at, 8 * MIB));
        OK(cuMemAddressFree(at, 8 * MIB));
    }
}
/* Pools that came to the program by no call that anybody sees. Where their memory lies is asked once they gave some. */
NOINLINE static void unseen(void) {
    Pool (*unseen_pool)(int, int, int) = (Pool (*)(int, int, int))dlsym(RTLD_DEFAULT, "sim_unseen_pool");
    Pool device = unseen_pool(PINNED, ON_DEVICE, 0);
    taken(device, 16 * MIB);
    CUdeviceptr freed = taken(device, 8 * MIB);
    OK(cuMemFreeAsync(freed, stream));
    taken(unseen_pool(PINNED, ON_NODE, 0), 32 * MIB);
    taken(unseen_pool(MOVED, ON_DEVICE, 0), 64 * MIB);
    /* While something captures nobody is asked. What is known of a pool is known then, too. */
    Stream captures;
    void *graph;
    Pool late = unseen_pool(PINNED, ON_HOST, 0);
    OK(cuStreamCreate(&captures, 1));
    OK(cuStreamBeginCapture_v2(captures, 2));
    taken(late, 4 * MIB);
    taken(device, 2 * MIB);
    OK(cuStreamEndCapture(captures, &graph));
    OK(cuGraphDestroy(graph));
    taken(late, 128 * MIB);
}
/* The same under a limit: the first allocation may exceed it. */
NOINLINE static void unseen_beyond(void) {
    Pool (*unseen_pool)(int, int, int) = (Pool (*)(int, int, int))dlsym(RTLD_DEFAULT, "sim_unseen_pool");
    Pool device = unseen_pool(PINNED, ON_DEVICE, 0);
    CUdeviceptr at;
    for (int n = 0; n < 2; n++) printf("%d ", cuMemAllocFromPoolAsync(&at, 512 * MIB, device, stream));
    printf("\n");
}
/* A location that no release of gpumem knows, and one that cannot be read. */
NOINLINE static void unknown(void) {
    physical(16 * MIB, 9, 0);
    physical(16 * MIB, 9, 0);
    taken(pool_of(PINNED, 9, 0), 32 * MIB);
    CUmemGenericAllocationHandle handle;
    EXPECT(cuMemCreate(&handle, MIB, NULL, 0) != 0, 1);
}
/* Device memory beyond a limit: how much of it there is. */
NOINLINE static void beyond(void) {
    CUmemAllocationProp prop = {.type = PINNED, .location = {ON_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    printf("%d ", cuMemCreate(&handle, 512 * MIB, &prop, 0));
    printf("%d ", cuMemAllocFromPoolAsync(&at, 512 * MIB, pool_of(PINNED, ON_DEVICE, 0), stream));
    printf("%d\n", cuMemAllocAsync(&at, 512 * MIB, stream));
}

static void *graph_new(void) {
    void *graph;
    OK(cuGraphCreate(&graph, 0));
    return graph;
}
static void *exec_of(void *graph, unsigned flags) {
    void *exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, flags));
    return exec;
}
/* A node that allocates, by the function for it or by that for all kinds. */
NOINLINE static CUdeviceptr node_of(void *graph, size_t bytes, int by_kind) {
    struct { int kind, gap[3]; AllocNode of; unsigned char rest[128]; } any = {.kind = 10};
    any.of = (AllocNode){.pool = {.allocType = PINNED, .location = {ON_DEVICE, 0}}, .bytes = bytes};
    void *node;
    if (by_kind) OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &any));
    else OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &any.of));
    return any.of.at;
}
/* Memory that nodes of graphs allocate, whose bytes are the driver's only while a launch has them. */
NOINLINE static void nodes(void) {
    node_of(graph_new(), 64 * MIB, 0);
    /* Captured, and freed there. The exec outlives the graph. */
    void *graph, *exec;
    CUdeviceptr at;
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuMemAllocAsync(&at, 32 * MIB, stream));
    OK(cuMemFreeAsync(at, stream));
    OK(cuStreamEndCapture(stream, &graph));
    exec = exec_of(graph, 0);
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(exec, stream));
    /* Freed outside of the graph, by either function, and by the next launch. Both graph and exec go. */
    graph = graph_new();
    at = node_of(graph, 16 * MIB, 1);
    exec = exec_of(graph, 1);
    for (int turn = 0; turn < 3; turn++) {
        OK(cuGraphLaunch(exec, stream));
        if (turn == 0) OK(cuMemFreeAsync(at, stream));
        OK(cuStreamSynchronize(stream));
    }
    OK(cuMemFree_v2(at));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    /* A capture that fails leaves no graph. */
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuMemAllocAsync(&at, 8 * MIB, stream));
    EXPECT(cuStreamSynchronize(stream) != 0, 1);
    EXPECT(cuStreamEndCapture(stream, &graph) != 0, 1);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"hostnuma", hostnuma}, {"pools", pools}, {"device_pools", device_pools}, {"segments", segments},
        {"exported", exported}, {"unknown", unknown}, {"beyond", beyond},
        {"nodes", nodes}, {"unseen", unseen}, {"unseen_beyond", unseen_beyond},
    };
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    for (size_t at = 0; argc > 1 && at < sizeof cases / sizeof *cases; at++)
        if (!strcmp(argv[1], cases[at].name)) cases[at].run();
    if (argc > 2) sleep((unsigned)atoi(argv[2]));
    return report("locations");
}
