/* Green contexts end: each holds the device's primary context; its streams answer 709 then. `green WHAT`:
 *   primary   the last to hold the primary context is a green one; memory that was freed before, and a new context
 *   left      memory that was allocated in a green one, which ends with the primary context
 *   execs     graphs of a green context, launched in it and after it, and others (for a bound of 1)
 *   streams   graphs of the primary context that were launched on a green one's stream
 *   captures  a stream of it captures, and is left as it is: blocks are kept afterwards as before
 * For the simulator alone, which knows no units. */
#include "graph.h"
CUresult cuGreenCtxCreate(void **, void *, CUdevice, unsigned), cuGreenCtxDestroy(void *);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuCtxFromGreenCtx(CUcontext *, void *), cuGreenCtxStreamCreate(Stream *, void *, unsigned, int);

enum { ROUNDS = 3, BLOCK = 4 << 20, NON_BLOCKING = 1 };

static void *green_new(void) {
    void *green = NULL;
    OK(cuGreenCtxCreate(&green, "units", 0, 1));
    return green;
}
static Stream stream_of(void *green) {
    Stream s = NULL;
    OK(cuGreenCtxStreamCreate(&s, green, NON_BLOCKING, 0));
    return s;
}
static void use_block(void) {
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, BLOCK));
    counted_alloc(DEVICE, BLOCK);
    OK(cuMemsetD32_v2(p, 5, BLOCK / 4));
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, BLOCK);
}

static void primary(void) {
    OK(cuInit(0));
    for (int round = 0; round < ROUNDS; round++) {
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        void *green = green_new();
        OK(cuDevicePrimaryCtxRelease_v2(0));
        use_block();
        OK(cuGreenCtxDestroy(green));
    }
}

static void left(void) {
    OK(cuInit(0));
    for (int round = 0; round < ROUNDS; round++) {
        void *green;
        CUcontext of_green;
        CUdeviceptr p, idle;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        green = green_new();
        OK(cuCtxFromGreenCtx(&of_green, green));
        OK(cuCtxSetCurrent(of_green));
        OK(cuMemAlloc_v2(&p, BLOCK));
        counted_alloc(DEVICE, BLOCK);
        OK(cuCtxSetCurrent(context));
        OK(cuGreenCtxDestroy(green));
        OK(cuMemsetD32_v2(p, 5, BLOCK / 4));
        OK(cuMemAlloc_v2(&idle, BLOCK));
        counted_alloc(DEVICE, BLOCK);
        OK(round & 1 ? cuDevicePrimaryCtxReset_v2(0) : cuDevicePrimaryCtxRelease_v2(0));
        counted_free(DEVICE, BLOCK);
        counted_free(DEVICE, BLOCK);
    }
}

/* Launches graphs of two shapes on a stream; `green`, if there is one, ends before they do. */
static void launch_some(Stream s, void *green) {
    enum { EXECS = 4 };
    CUdeviceptr p = words_new();
    Exec e[EXECS];
    for (unsigned i = 0; i < EXECS; i++) {
        Graph g = graph_new();
        Node first = add_fill(g, NULL, p, 1);
        if (i & 1) add_fill(g, &first, p, 2 + i);
        e[i] = exec_of(g);
        graph_end(g);
        launch(e[i], s);
    }
    wait_for(s);
    EXPECT(word_of(p), 2 + EXECS - 1);
    if (green) OK(cuGreenCtxDestroy(green));
    for (int i = 0; i < EXECS; i++) exec_end(e[i]);
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, WORDS * 4);
    EXPECT(cuStreamDestroy_v2(s), green ? 709 : 0);
}
static void execs(void) {
    begin();
    for (int round = 0; round < ROUNDS; round++) {
        void *green = green_new();
        CUcontext of_green;
        OK(cuCtxFromGreenCtx(&of_green, green));
        OK(cuCtxSetCurrent(of_green));
        launch_some(stream_new(), NULL);
        CUdeviceptr left = words_new(); /* the primary context's: it stays, and so do execs */
        Graph g = graph_new();
        add_fill(g, NULL, left, 3);
        Exec e = exec_of(g);
        graph_end(g);
        OK(cuCtxSetCurrent(context));
        OK(cuGreenCtxDestroy(green));
        Stream s = stream_new();
        launch_some(stream_new(), NULL);
        launch(e, s);
        wait_for(s);
        EXPECT(word_of(left), 3);
        exec_end(e);
        OK(cuStreamDestroy_v2(s));
        clear(left);
        OK(cuMemFree_v2(left));
        counted_free(DEVICE, WORDS * 4);
    }
    EXPECT(cuGreenCtxDestroy(NULL) != 0, 1);
}

static void streams(void) {
    begin();
    for (int round = 0; round < ROUNDS; round++) {
        void *green = green_new();
        Stream gone = stream_of(green);
        OK(cuStreamDestroy_v2(gone));
        launch_some(stream_of(green), green);
        launch_some(stream_new(), NULL);
    }
}

static void captures(void) {
    begin();
    void *green = green_new();
    capture_begin(stream_of(green));
    OK(cuGreenCtxDestroy(green));
    uint64_t (*stat)(const char *) = simulator();
    use_block();
    uint64_t real = stat("cuMemAlloc_v2");
    for (int i = 0; i < 8; i++) use_block();
    fprintf(stderr, "real allocations %llu\n", (unsigned long long)(stat("cuMemAlloc_v2") - real));
}

int main(int argc, char **argv) {
    static const struct mode modes[] = {
        {"primary", primary}, {"left", left}, {"execs", execs}, {"streams", streams}, {"captures", captures}};
    return run_mode(modes, sizeof modes / sizeof *modes, argc > 1 ? argv[1] : NULL);
}
