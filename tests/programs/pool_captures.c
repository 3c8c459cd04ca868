/* Allocations and frees of sizes that may be cached while something captures: in each mode, of this thread
 * and of another, between cuThreadExchangeStreamCaptureMode or not. Prints each answer; natively they were
 * measured on an H200 (driver 580). */
#include "pool.h"

enum { BYTES = 3 * MIB };
static struct { int rc; CUdeviceptr p; int free; } what;

static void *call(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(gpu.context));
    what.rc = what.free ? free_any(what.p, BYTES) : alloc_any(&what.p, BYTES);
    return NULL;
}

static void once(Stream s, int mode, int free, int elsewhere, int relaxed) {
    static const char *const names[] = {"global", "thread-local", "relaxed"};
    CUdeviceptr kept = get(4 * MIB), held = get(BYTES);
    Graph g = NULL;
    Exec e;
    OK(cuCtxSynchronize());
    OK(cuStreamBeginCapture_v2(s, mode));
    OK(k_fill(&gpu, s, kept, 64, 7));
    int before = 2;
    if (relaxed) OK(cuThreadExchangeStreamCaptureMode(&before));
    what.free = free;
    what.p = held;
    if (elsewhere) on_thread(call, NULL);
    else call(NULL);
    if (relaxed) OK(cuThreadExchangeStreamCaptureMode(&before));
    int ended = cuStreamEndCapture(s, &g);
    SAY("%s, %s, %s thread%s: %d, the capture %d", names[mode], free ? "free" : "allocate",
        elsewhere ? "other" : "same", relaxed ? ", relaxed meanwhile" : "", what.rc, ended);
    int expected = !relaxed && (mode == 0 || (mode == 1 && !elsewhere)) ? 900 : 0;
    /* Another thread's relaxed mode is its own: the exchange was this one's. */
    if (relaxed && elsewhere) expected = mode == 0 ? 900 : 0;
    EXPECT(what.rc, expected);
    EXPECT(ended, expected ? 901 : 0);
    if (ended == 0) {
        OK(cuGraphInstantiateWithFlags(&e, g, 0));
        OK(cuGraphLaunch(e, s));
        EXPECT(wrong_words(&gpu, s, kept, 64, 7), 0);
        OK(cuGraphExecDestroy(e));
        OK(cuGraphDestroy(g));
    }
    if (!free && what.rc == 0) give(what.p, BYTES);
    if (!free || what.rc) give(held, BYTES);
    give(kept, 4 * MIB);
}

/* Relaxed captures are ggml's: what is freed in one and given out in the same one. */
static void inside(Stream s, Stream other) {
    CUdeviceptr kept = get(BYTES);
    Graph g;
    Exec e;
    OK(cuStreamBeginCapture_v2(s, 2));
    for (int i = 0; i < 8; i++) {
        CUdeviceptr p = get(BYTES);
        OK(k_spin(&gpu, other, 5));
        OK(k_fill(&gpu, other, p, 64, 3));
        OK(k_fill(&gpu, s, kept, 64, (unsigned)i));
        give(p, BYTES);
        CUdeviceptr q = get(BYTES);
        OK(k_fill(&gpu, other, q, 64, 4));
        EXPECT(wrong_words(&gpu, other, q, 64, 4), 0);
        give(q, BYTES);
    }
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphInstantiateWithFlags(&e, g, 0));
    OK(cuGraphLaunch(e, s));
    EXPECT(wrong_words(&gpu, s, kept, 64, 7), 0);
    OK(cuGraphExecDestroy(e));
    OK(cuGraphDestroy(g));
    give(kept, BYTES);
}

int main(void) {
    begin();
    Stream s = stream_new(1), other = stream_new(1);
    for (int warm = 0; warm < 3; warm++) {
        for (int mode = 0; mode < 3; mode++)
            for (int k = 0; k < 8; k++) once(s, mode, k & 1, k >> 1 & 1, k >> 2);
        inside(s, other);
        CUdeviceptr p[4];
        for (int i = 0; i < 4; i++) p[i] = get(BYTES);
        for (int i = 0; i < 4; i++) give(p[i], BYTES);
    }
    return end("pool_captures");
}
