/* Random states of allocations, graphs and execs, for those who add up what is live. Argument: a seed. Each line
 * `go N` on stdin does N random operations in one of two contexts, on this thread or on another one, and prints what
 * the program counts and what the simulator does (0 from a real driver); `end`, or the end of stdin, frees all. */
#include "pool.h"

enum { BLOCKS = 96, GRAPHS = 24, EXECS = 48, CONTEXTS = 2 };
typedef void *Pool;
typedef struct { int allocType, handleTypes; CUmemLocation location; void *security; size_t maxSize; unsigned char reserved[56]; } PoolProps;
CUresult cuDeviceGetCount(int *), cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, Pool, Stream);
CUresult cuMemPoolCreate(Pool *, const PoolProps *), cuMemPoolDestroy(Pool);
CUresult cuMemGetDefaultMemPool(Pool *, CUmemLocation *, int);

/* Ways to get memory; what it counts as says where it lies. */
enum way { PLAIN, ORDERED, PINNED, OWN, MOVED, ROWS, PHYSICAL, PHYSICAL_ON_HOST, POOL_ON_DEVICE, POOL_ON_HOST, POOL_MOVED, GRID, WAYS };
static const enum kind counts_as[WAYS] = {DEVICE, ASYNC, HOST, REGISTERED, MANAGED, DEVICE, VMM, HOST, ASYNC, HOST, MANAGED, ARRAY};
static struct block {
    enum way way; CUdeviceptr at, addresses; CUmemGenericAllocationHandle handle; CUarray array; void *host;
    size_t bytes; int context; bool live;
} blocks[BLOCKS];
static Pool on_host, moved, on_device[CONTEXTS];
/* Some graphs have a node that allocates so many bytes. Of these there is one exec at a time. */
static struct graph { Graph graph; int context; size_t memory; struct exec *exec; } graphs[GRAPHS];
static struct exec { Exec exec; int context; size_t memory; struct graph *of; } execs[EXECS];
static long nodes, node_bytes;
static struct { CUcontext context; Stream stream; CUdeviceptr target; } in[CONTEXTS];
static int contexts;
static uint64_t state;

static uint64_t number(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}
/* Small ones mostly, some of several MiB, none of a round size. */
static size_t bytes(void) { return 1 + number((size_t)64 << number(17)); }

/* Physical memory on the block's device, or on a node of the host. Some of it gets addresses, which are no memory. */
static void physical(struct block *b, int location) {
    CUmemAllocationProp prop = {.type = 1, .location = {location, location == 1 ? b->context : 0}};
    b->bytes = (1 + number(4)) * 2 * MIB;
    OK(cuMemCreate(&b->handle, b->bytes, &prop, 0));
    if (number(2)) return;
    OK(cuMemAddressReserve(&b->addresses, b->bytes, 0, 0, 0));
    OK(cuMemMap(b->addresses, b->bytes, 0, b->handle, 0));
}
static void allocate(struct block *b) {
    /* Mostly plain memory. */
    *b = (struct block){.way = number(2) ? PLAIN : (enum way)number(WAYS), .bytes = bytes(), .context = (int)number((uint64_t)contexts), .live = true};
    Stream stream = in[b->context].stream;
    OK(cuCtxSetCurrent(in[b->context].context));
    if (b->way == POOL_MOVED && !moved) b->way = MOVED;
    switch (b->way) {
    case PLAIN: OK(cuMemAlloc_v2(&b->at, b->bytes)); break;
    case ORDERED: OK(cuMemAllocAsync(&b->at, b->bytes, stream)); break;
    case PINNED: OK(cuMemHostAlloc(&b->host, b->bytes, 0)); break;
    case MOVED: OK(cuMemAllocManaged(&b->at, b->bytes, 1)); break;
    case PHYSICAL: physical(b, 1); break;
    case PHYSICAL_ON_HOST: physical(b, 3); break;
    case POOL_ON_DEVICE: OK(cuMemAllocFromPoolAsync(&b->at, b->bytes, on_device[b->context], stream)); break;
    case POOL_ON_HOST: OK(cuMemAllocFromPoolAsync(&b->at, b->bytes, on_host, stream)); break;
    case POOL_MOVED: OK(cuMemAllocFromPoolAsync(&b->at, b->bytes, moved, stream)); break;
    case ROWS: {
        size_t pitch, height = 1 + number(64);
        OK(cuMemAllocPitch_v2(&b->at, &pitch, 1 + b->bytes / height, height, 4));
        b->bytes = pitch * height;
        break;
    }
    case GRID: {
        CUDA_ARRAY_DESCRIPTOR of = {1 + number(512), 1 + number(512), 0x20, 2};
        OK(cuArrayCreate_v2(&b->array, &of));
        b->bytes = of.Width * of.Height * 8;
        break;
    }
    default: /* A page of its own each: none may be registered twice. */
        b->bytes = (b->bytes + 4095) / 4096 * 4096;
        b->host = aligned_alloc(4096, b->bytes);
        if (!b->host) exit(2);
        OK(cuMemHostRegister_v2(b->host, b->bytes, 0));
    }
    counted_alloc(counts_as[b->way], b->bytes);
}
static void release(struct block *b) {
    OK(cuCtxSetCurrent(in[b->context].context));
    switch (b->way) {
    case ORDERED: case POOL_ON_DEVICE: case POOL_ON_HOST: case POOL_MOVED:
        OK(cuMemFreeAsync(b->at, in[b->context].stream));
        OK(cuStreamSynchronize(in[b->context].stream));
        break;
    case PHYSICAL: case PHYSICAL_ON_HOST:
        if (b->addresses) {
            OK(cuMemUnmap(b->addresses, b->bytes));
            OK(cuMemAddressFree(b->addresses, b->bytes));
        }
        OK(cuMemRelease(b->handle));
        break;
    case PINNED: OK(cuMemFreeHost(b->host)); break;
    case OWN: OK(cuMemHostUnregister(b->host)); free(b->host); break;
    case GRID: OK(cuArrayDestroy(b->array)); break;
    default: OK(cuMemFree_v2(b->at));
    }
    counted_free(counts_as[b->way], b->bytes);
    b->live = false;
}
static void capture(struct graph *g) {
    g->context = (int)number((uint64_t)contexts);
    OK(cuCtxSetCurrent(in[g->context].context));
    Stream s = in[g->context].stream;
    g->memory = number(4) ? 0 : bytes();
    OK(cuStreamBeginCapture_v2(s, 2));
    if (g->memory) {
        CUdeviceptr at;
        OK(cuMemAllocAsync(&at, g->memory, s));
        OK(cuMemFreeAsync(at, s));
        nodes++, node_bytes += (long)g->memory;
    }
    for (uint64_t left = 1 + number(30), length = 1 + number(256); left; left--)
        OK(cuMemsetD32Async(in[g->context].target, (unsigned)left, length, s));
    OK(cuStreamEndCapture(s, &g->graph));
    did.captures++, did.graphs_created++;
}
static void node_gone(size_t *bytes) {
    if (*bytes) nodes--, node_bytes -= (long)*bytes;
    *bytes = 0;
}
static void drop_graph(struct graph *g) {
    if (g->exec) g->exec->of = NULL, g->exec = NULL;
    else node_gone(&g->memory);
    OK(cuGraphDestroy(g->graph));
    did.graphs_destroyed++;
    g->graph = NULL;
}
static void instantiate(struct exec *e, struct graph *g) {
    if (g->exec) return;
    e->memory = g->memory;
    if (g->memory) e->of = g, g->exec = e;
    e->context = g->context;
    OK(cuCtxSetCurrent(in[e->context].context));
    OK(cuGraphInstantiateWithFlags(&e->exec, g->graph, 0));
    did.execs_created++;
}
static void drop_exec(struct exec *e) {
    if (e->of) e->of->exec = NULL, e->of = NULL, e->memory = 0;
    else node_gone(&e->memory);
    OK(cuGraphExecDestroy(e->exec));
    did.execs_destroyed++;
    e->exec = NULL;
}
static void launch(struct exec *e) {
    OK(cuCtxSetCurrent(in[e->context].context));
    OK(cuGraphLaunch(e->exec, in[e->context].stream));
    did.graph_launches++;
    if (number(2)) OK(cuStreamSynchronize(in[e->context].stream));
}
static void step(void) {
    struct block *b = &blocks[number(BLOCKS)];
    struct graph *g = &graphs[number(GRAPHS)];
    struct exec *e = &execs[number(EXECS)];
    switch (number(8)) {
    case 0: case 1: case 2: case 3: if (b->live) release(b); else allocate(b); break;
    case 4: if (!g->graph) capture(g); else if (number(3) == 0) drop_graph(g); break;
    case 5: if (e->exec) { if (number(2)) drop_exec(e); } else if (g->graph) instantiate(e, g); break;
    default: if (e->exec) launch(e);
    }
}
static void *steps(void *count) {
    for (long left = *(long *)count; left; left--) step();
    OK(cuCtxSetCurrent(in[0].context));
    return NULL;
}
static void say(void) {
    static const char *const of_driver[] = {"memory_on_devices", "memory_on_host", "memory_managed", "memory_count", "live_graphs", "live_execs"};
    for (int c = 0; c < contexts; c++) OK(cuStreamSynchronize(in[c].stream));
    printf("{\"graphs\":%ld,\"execs\":%ld", did.graphs_created - did.graphs_destroyed, did.execs_created - did.execs_destroyed);
    printf(",\"allocating_nodes\":[%ld,%ld]", node_bytes, nodes);
    for (int k = 0; k < KINDS; k++) printf(",\"%s\":[%ld,%ld]", kind_name[k], (long)did.live[k], did.allocs[k] - did.frees[k]);
    for (size_t i = 0; sim.stat && i < sizeof of_driver / sizeof *of_driver; i++)
        printf(",\"%s\":%llu", of_driver[i], (unsigned long long)stat_of(of_driver[i]));
    printf("}\n");
    fflush(stdout);
}

/* Pools of each location. Older drivers have no pool of managed memory. */
static void make_pools(void) {
    int version = 0;
    PoolProps props = {.allocType = 1, .location = {3, 0}};
    CUmemLocation device = {1, 0};
    OK(cuDriverGetVersion(&version));
    OK(cuMemPoolCreate(&on_host, &props));
    if (version >= 13000) OK(cuMemGetDefaultMemPool(&moved, &device, 2));
    for (int c = 0; c < contexts; c++) {
        props.location = (CUmemLocation){1, c};
        OK(cuMemPoolCreate(&on_device[c], &props));
    }
}

int main(int argc, char **argv) {
    char line[32];
    long count;
    state = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&contexts));
    if (contexts > CONTEXTS) contexts = CONTEXTS;
    for (int c = 0; c < contexts; c++) {
        OK(cuDevicePrimaryCtxRetain(&in[c].context, c));
        OK(cuCtxSetCurrent(in[c].context));
        in[c].stream = stream_new(1);
        OK(cuMemAlloc_v2(&in[c].target, 1024));
        counted_alloc(DEVICE, 1024);
    }
    make_pools();
    simulator_open();
    while (fgets(line, sizeof line, stdin) && sscanf(line, "go %ld", &count) == 1) {
        if (number(2)) on_thread(steps, &count);
        else steps(&count);
        say();
    }
    for (int i = 0; i < EXECS; i++) if (execs[i].exec) drop_exec(&execs[i]);
    for (int i = 0; i < GRAPHS; i++) if (graphs[i].graph) drop_graph(&graphs[i]);
    for (int i = 0; i < BLOCKS; i++) if (blocks[i].live) release(&blocks[i]);
    OK(cuMemPoolDestroy(on_host));
    for (int c = 0; c < contexts; c++) {
        OK(cuCtxSetCurrent(in[c].context));
        OK(cuMemPoolDestroy(on_device[c]));
        OK(cuStreamDestroy_v2(in[c].stream));
        OK(cuMemFree_v2(in[c].target));
        counted_free(DEVICE, 1024);
    }
    return report("totals");
}
