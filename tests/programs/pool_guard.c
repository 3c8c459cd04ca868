/* Plants the bugs that its arguments name, one after another, for a guard to find; `wait` waits for a line on stdin.
 * Natively most of them are undefined: they are run under GPUMEM_GUARD. Each says what it did. */
#include "pool.h"

CUresult cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *), cuEventRecord(void *, Stream);

/* Work on the device that writes words from an address on, and the end of it. */
static void writes(CUdeviceptr p, uint64_t words) {
    OK(k_fill(&gpu, NULL, p, words, 0x11223344));
    OK(cuCtxSynchronize());
}
/* A write of `bytes` behind a block of `size`. */
static void behind(size_t size, size_t bytes) {
    CUdeviceptr p = get(size);
    writes(p, (size + bytes) / 4);
    give(p, size);
}
static void in_front(size_t size, size_t bytes) {
    CUdeviceptr p = get(size);
    writes(p - bytes, bytes / 4);
    give(p, size);
}
static void after_free(size_t size, size_t at, size_t bytes) {
    CUdeviceptr p = get(size);
    give(p, size);
    writes(p + at, bytes / 4);
}
/* Other work comes first after the free, and then as many that write as are told of, and one more. */
static void after_others(void) {
    CUdeviceptr p = get(MIB);
    give(p, MIB);
    OK(k_spin(&gpu, NULL, 0));
    for (int i = 0; i < 4; i++) writes(p + 4096, 16);
}
/* Blocks of all kinds of sizes, each written whole, twice; some live until the end. */
static void clean(void) {
    static const size_t sizes[] = {1, 3, 256, 511, 512, 513, 1000, 4096, 65537, MIB - 1, MIB, MIB + 4, 2 * MIB, 5 * MIB + 12};
    CUdeviceptr kept[sizeof sizes / sizeof *sizes];
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            CUdeviceptr p = get(sizes[i]);
            OK(cuMemsetD8_v2(p, 0x5a, sizes[i]));
            writes(p, sizes[i] / 4);
            if (round == 2) kept[i] = p;
            else give(p, sizes[i]);
        }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) give(kept[i], sizes[i]);
}
/* A graph that fills a block, which is freed before the graph is launched. */
static void freed_graph(size_t size) {
    CUdeviceptr p = get(size);
    Stream s = stream_new(1);
    Graph graph;
    Exec exec;
    OK(cuStreamBeginCapture_v2(s, 2));
    OK(k_fill(&gpu, s, p, size / 4, 7));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    give(p, size);
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(s));
}
/* The same size again and again: what the driver is asked for once memory is used again. */
static void again(void) {
    static const char *const asked[] = {"cuMemAlloc_v2", "cuMemsetD8Async", "cuLaunchKernel", "cuEventSynchronize"};
    uint64_t before[4] = {0};
    for (int round = -10; round < 40; round++) {
        for (int i = 0; round == 0 && i < 4; i++) before[i] = stat_of(asked[i]);
        CUdeviceptr p = get(MIB), q = get(MIB);
        OK(k_fill(&gpu, NULL, p, MIB / 4, 7));
        give(p, MIB);
        give(q, MIB);
    }
    for (int i = 0; i < 4; i++) SAY("40 rounds: %s %d", asked[i], (int)(stat_of(asked[i]) - before[i]));
}
/* A write behind the end that a block had, when it is freed and may be used again. */
static void behind_idle(void) {
    CUdeviceptr p = get(MIB), others[3];
    for (int i = 0; i < 3; i++) others[i] = get(MIB);
    give(p, MIB);
    for (int i = 0; i < 3; i++) give(others[i], MIB);
    writes(p + MIB, 16);
    CUdeviceptr again = get(MIB);
    SAY("the same: %d", (int)(again == p));
    give(again, MIB);
}
/* A write behind a block, and then work that writes nothing. */
static void before_events(void) {
    CUdeviceptr p = get(MIB);
    void *event;
    OK(cuEventCreate(&event, 0));
    writes(p, (MIB + 16) / 4);
    for (int i = 0; i < 5000; i++) OK(cuEventRecord(event, NULL));
    give(p, MIB);
    OK(cuEventDestroy_v2(event));
}
/* The same block twice: the second free is refused. */
static void twice(void) {
    CUdeviceptr p = get(MIB);
    give(p, MIB);
    SAY("second free: %d", (int)free_any(p, MIB));
}
/* What the driver says of a block, also of one with zones. */
static void answers(size_t size) {
    CUdeviceptr p = get(size), base = 0, start = 0;
    size_t bytes = 0, range = 0;
    OK(cuMemGetAddressRange_v2(&base, &bytes, p + size / 2));
    OK(cuPointerGetAttribute(&start, RANGE_START, p + size - 1));
    OK(cuPointerGetAttribute(&range, RANGE_SIZE, p));
    SAY("%zu: base %+lld, %zu bytes; start %+lld, %zu bytes; aligned %d", size, (long long)(base - p), bytes,
        (long long)(start - p), range, (int)(p % 256 == 0));
    give(p, size);
}
static void freed_in_order(void) {
    CUdeviceptr p = get(MIB);
    writes(p, (MIB + 8) / 4);
    Stream s = stream_new(1);
    OK(cuMemFreeAsync(p, s));
    counted_free(DEVICE, MIB);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
}
/* What a guard does not look at: memory in the order of a stream, managed memory, what is far away, and reads. */
static void async(void) {
    CUdeviceptr p;
    Stream s = stream_new(1);
    OK(cuMemAllocAsync(&p, MIB, s));
    counted_alloc(ASYNC, MIB);
    OK(k_fill(&gpu, s, p, (MIB + 4) / 4, 1));
    OK(cuMemFreeAsync(p, s));
    counted_free(ASYNC, MIB);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
}
static void managed(void) {
    CUdeviceptr p;
    OK(cuMemAllocManaged(&p, MIB, 1));
    counted_alloc(MANAGED, MIB);
    writes(p, (MIB + 4) / 4);
    OK(cuMemFree_v2(p));
    counted_free(MANAGED, MIB);
}
static void far_away(void) {
    CUdeviceptr p = get(4 * KIB), next = get(4 * KIB);
    writes(p > next ? p : next, 4 * KIB / 4);
    writes((p > next ? p : next) - 3 * KIB, 1);
    give(p, 4 * KIB);
    give(next, 4 * KIB);
}
static void reads_behind(void) {
    CUdeviceptr p = get(MIB);
    writes(p, MIB / 4);
    wrong_words(&gpu, NULL, p, MIB / 4 + 1, 0);
    give(p, MIB);
}
static void reads_unwritten(void) {
    CUdeviceptr p = get(MIB);
    wrong_words(&gpu, NULL, p, MIB / 4, 0);
    give(p, MIB);
}
static void reads_freed(void) {
    CUdeviceptr p = get(MIB);
    give(p, MIB);
    wrong_words(&gpu, NULL, p, MIB / 4, 0);
}
/* The driver refuses a fill of more than there is. */
static void fills_behind(void) {
    CUdeviceptr p = get(MIB);
    SAY("fill: %d", (int)cuMemsetD8_v2(p, 1, MIB + 4));
    give(p, MIB);
}
/* A copy of more than there is. */
static void copies_behind(void) {
    CUdeviceptr p = get(MIB);
    char *host = calloc(1, MIB + 4);
    SAY("copy: %d", (int)cuMemcpyHtoD_v2(p, host, MIB + 4));
    free(host);
    give(p, MIB);
}
/* One of many blocks is written behind. */
static void one_of_many(void) {
    CUdeviceptr all[200];
    for (int i = 0; i < 200; i++) all[i] = get(64 * KIB);
    for (int i = 0; i < 200; i++) writes(all[i], (64 * KIB + (i == 137 ? 32 : 0)) / 4);
    for (int i = 0; i < 200; i++) give(all[i], 64 * KIB);
}
/* An address that outlives its block: a second block of that size may have it by then. */
static void stale(void) {
    CUdeviceptr old = get(MIB);
    give(old, MIB);
    CUdeviceptr p = get(MIB);
    writes(p, MIB / 4);
    writes(old + 64 * KIB, 16);
    give(p, MIB);
}
/* What one thread has written behind a block is found where another frees it. */
static void *writes_behind(void *p) {
    OK(cuCtxSetCurrent(gpu.context));
    writes((CUdeviceptr)(uintptr_t)p, (MIB + 128) / 4);
    return NULL;
}
static void another_thread(void) {
    CUdeviceptr p = get(MIB);
    on_thread(writes_behind, (void *)(uintptr_t)p);
    give(p, MIB);
}
/* A node of a graph that writes behind its block each time. */
static void graph_behind(void) {
    CUdeviceptr p = get(MIB);
    Stream s = stream_new(1);
    Graph graph;
    Exec exec;
    OK(cuStreamBeginCapture_v2(s, 2));
    OK(k_fill(&gpu, s, p, (MIB + 64) / 4, 7));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(s));
    give(p, MIB);
}
/* Memory of other kinds, written behind. */
static void pinned(void) {
    char *p;
    OK(cuMemHostAlloc((void **)&p, MIB, 0));
    counted_alloc(HOST, MIB);
    writes((CUdeviceptr)(uintptr_t)p, (MIB + 4) / 4);
    OK(cuMemFreeHost(p));
    counted_free(HOST, MIB);
}
static void pitched(void) {
    CUdeviceptr p;
    size_t pitch;
    OK(cuMemAllocPitch_v2(&p, &pitch, 1000, 16, 4));
    counted_alloc(DEVICE, pitch * 16);
    writes(p, (1000 + 4) / 4);
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, pitch * 16);
}
static void exports(void) {
    cudaIpcMemHandle_t handle;
    CUdeviceptr p = get(MIB);
    SAY("export: %d", (int)cuIpcGetMemHandle(&handle, p));
    writes(p, MIB / 4);
    give(p, MIB);
}
static CUdeviceptr live;
int main(int argc, char **argv) {
    begin();
    for (int i = 1; i < argc; i++) {
        const char *bug = argv[i];
        if (!strcmp(bug, "clean")) clean();
        else if (!strcmp(bug, "over1")) behind(1023, 1);
        else if (!strcmp(bug, "over4")) behind(MIB, 4);
        else if (!strcmp(bug, "over512")) behind(MIB, 512);
        else if (!strcmp(bug, "overunit")) behind(2 * MIB, 512);
        else if (!strcmp(bug, "under4")) in_front(MIB, 4);
        else if (!strcmp(bug, "under512")) in_front(4 * MIB, 512);
        else if (!strcmp(bug, "freed")) after_free(MIB, 4096, 64);
        else if (!strcmp(bug, "freedlater")) after_others();
        else if (!strcmp(bug, "freedwhole")) after_free(3 * MIB, 0, 3 * MIB);
        else if (!strcmp(bug, "graph")) freed_graph(MIB);
        else if (!strcmp(bug, "twice")) twice();
        else if (!strcmp(bug, "again")) again();
        else if (!strcmp(bug, "events")) before_events();
        else if (!strcmp(bug, "behindidle")) behind_idle();
        else if (!strcmp(bug, "order")) freed_in_order();
        else if (!strcmp(bug, "live")) writes(live = get(MIB), (MIB + 16) / 4);
        else if (!strcmp(bug, "drop")) give(live, MIB);
        else if (!strcmp(bug, "async")) async();
        else if (!strcmp(bug, "managed")) managed();
        else if (!strcmp(bug, "far")) far_away();
        else if (!strcmp(bug, "reads")) reads_behind();
        else if (!strcmp(bug, "unwritten")) reads_unwritten();
        else if (!strcmp(bug, "readsfreed")) reads_freed();
        else if (!strcmp(bug, "fill")) fills_behind();
        else if (!strcmp(bug, "copy")) copies_behind();
        else if (!strcmp(bug, "many")) one_of_many();
        else if (!strcmp(bug, "stale")) stale();
        else if (!strcmp(bug, "thread")) another_thread();
        else if (!strcmp(bug, "graphover")) graph_behind();
        else if (!strcmp(bug, "pinned")) pinned();
        else if (!strcmp(bug, "pitched")) pitched();
        else if (!strcmp(bug, "export")) exports();
        else if (!strcmp(bug, "answers")) answers(1000), answers(2 * MIB), answers(100);
        else if (!strcmp(bug, "sync")) OK(cuCtxSynchronize());
        else if (!strcmp(bug, "wait")) {
            char line[8];
            SAY("ready");
            fflush(stdout);
            if (!fgets(line, sizeof line, stdin)) break;
            continue;
        } else {
            fprintf(stderr, "what is %s?\n", bug);
            return 2;
        }
        SAY("did %s", bug);
    }
    return end("pool_guard");
}
