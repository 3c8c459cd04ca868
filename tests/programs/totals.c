/* Random states of allocations, graphs and execs, for those who add up what is live. Argument: a seed. Each line
 * `go N` on stdin does N random operations in one of two contexts, on this thread or on another one, and prints what
 * the program counts and what the simulator does (0 from a real driver); `end`, or the end of stdin, frees all. */
#include "pool.h"

enum { BLOCKS = 96, GRAPHS = 24, EXECS = 48, CONTEXTS = 2 };
CUresult cuDeviceGetCount(int *);

static struct block { enum kind kind; CUdeviceptr at; void *host; size_t bytes; int context; bool live; } blocks[BLOCKS];
static struct graph { Graph graph; int context; } graphs[GRAPHS];
static struct exec { Exec exec; int context; } execs[EXECS];
static struct { CUcontext context; Stream stream; CUdeviceptr target; } in[CONTEXTS];
static int contexts;
static uint64_t state;

static uint64_t number(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}
/* Small ones mostly, some of several MiB, none of a round size. */
static size_t bytes(void) { return 1 + number((size_t)64 << number(17)); }

static void allocate(struct block *b) {
    static const enum kind kinds[] = {DEVICE, DEVICE, DEVICE, DEVICE, DEVICE, ASYNC, HOST, REGISTERED, MANAGED};
    *b = (struct block){.kind = kinds[number(sizeof kinds / sizeof *kinds)], .bytes = bytes(), .context = (int)number((uint64_t)contexts), .live = true};
    OK(cuCtxSetCurrent(in[b->context].context));
    switch (b->kind) {
    case DEVICE: OK(cuMemAlloc_v2(&b->at, b->bytes)); break;
    case ASYNC: OK(cuMemAllocAsync(&b->at, b->bytes, in[b->context].stream)); break;
    case HOST: OK(cuMemHostAlloc(&b->host, b->bytes, 0)); break;
    case MANAGED: OK(cuMemAllocManaged(&b->at, b->bytes, 1)); break;
    default: /* A page of its own each: none may be registered twice. */
        b->bytes = (b->bytes + 4095) / 4096 * 4096;
        b->host = aligned_alloc(4096, b->bytes);
        if (!b->host) exit(2);
        OK(cuMemHostRegister_v2(b->host, b->bytes, 0));
    }
    counted_alloc(b->kind, b->bytes);
}
static void release(struct block *b) {
    OK(cuCtxSetCurrent(in[b->context].context));
    switch (b->kind) {
    case ASYNC: OK(cuMemFreeAsync(b->at, in[b->context].stream)); OK(cuStreamSynchronize(in[b->context].stream)); break;
    case HOST: OK(cuMemFreeHost(b->host)); break;
    case REGISTERED: OK(cuMemHostUnregister(b->host)); free(b->host); break;
    default: OK(cuMemFree_v2(b->at));
    }
    counted_free(b->kind, b->bytes);
    b->live = false;
}
static void capture(struct graph *g) {
    g->context = (int)number((uint64_t)contexts);
    OK(cuCtxSetCurrent(in[g->context].context));
    Stream s = in[g->context].stream;
    OK(cuStreamBeginCapture_v2(s, 2));
    for (uint64_t left = 1 + number(30), length = 1 + number(256); left; left--)
        OK(cuMemsetD32Async(in[g->context].target, (unsigned)left, length, s));
    OK(cuStreamEndCapture(s, &g->graph));
    did.captures++, did.graphs_created++;
}
static void drop_graph(struct graph *g) {
    OK(cuGraphDestroy(g->graph));
    did.graphs_destroyed++;
    g->graph = NULL;
}
static void instantiate(struct exec *e, struct graph *g) {
    e->context = g->context;
    OK(cuCtxSetCurrent(in[e->context].context));
    OK(cuGraphInstantiateWithFlags(&e->exec, g->graph, 0));
    did.execs_created++;
}
static void drop_exec(struct exec *e) {
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
    static const char *const of_driver[] = {"live_bytes", "live_allocations", "live_graphs", "live_execs"};
    for (int c = 0; c < contexts; c++) OK(cuStreamSynchronize(in[c].stream));
    printf("{\"graphs\":%ld,\"execs\":%ld", did.graphs_created - did.graphs_destroyed, did.execs_created - did.execs_destroyed);
    for (int k = 0; k < KINDS; k++) printf(",\"%s\":[%ld,%ld]", kind_name[k], (long)did.live[k], did.allocs[k] - did.frees[k]);
    for (size_t i = 0; sim.stat && i < sizeof of_driver / sizeof *of_driver; i++)
        printf(",\"%s\":%llu", of_driver[i], (unsigned long long)stat_of(of_driver[i]));
    printf("}\n");
    fflush(stdout);
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
    simulator_open();
    while (fgets(line, sizeof line, stdin) && sscanf(line, "go %ld", &count) == 1) {
        if (number(2)) on_thread(steps, &count);
        else steps(&count);
        say();
    }
    for (int i = 0; i < EXECS; i++) if (execs[i].exec) drop_exec(&execs[i]);
    for (int i = 0; i < GRAPHS; i++) if (graphs[i].graph) drop_graph(&graphs[i]);
    for (int i = 0; i < BLOCKS; i++) if (blocks[i].live) release(&blocks[i]);
    for (int c = 0; c < contexts; c++) {
        OK(cuCtxSetCurrent(in[c].context));
        OK(cuStreamDestroy_v2(in[c].stream));
        OK(cuMemFree_v2(in[c].target));
        counted_free(DEVICE, 1024);
    }
    return report("totals");
}
