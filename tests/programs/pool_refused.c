/* Goes on when a call is refused, says which and with what, and judges the contents of what it got: for runs
 * in which a driver call fails that the program never made. */
#include "pool.h"

enum { ROUNDS = 40, HELD = 6, WORDS = 256 };
static int refused;

/* Whether the call succeeded; a refusal is told. */
static int fine(int rc, const char *call) {
    if (rc == 0) return 1;
    SAY("refused %s = %d", call, rc);
    refused++;
    return 0;
}
#define FINE(f, ...) fine(f(__VA_ARGS__), #f)

static struct { CUdeviceptr p; size_t bytes; uint32_t value; } held[HELD];

static void drop(int i) {
    if (!held[i].p) return;
    if (sim.free) sim.free(held[i].p);
    int rc = cuMemFree_v2(held[i].p);
    if (sim.freed) sim.freed(held[i].p, (unsigned)rc, sim.noted);
    if (!fine(rc, "cuMemFree_v2")) return; /* still the program's; tried again later */
    counted_free(DEVICE, held[i].bytes);
    held[i].p = 0;
}

static void work(Stream s) {
    uint32_t x = 12345;
    for (int i = 0; i < ROUNDS; i++) {
        x = x * 1664525 + 1013904223;
        int slot = (int)(x >> 16) % HELD;
        drop(slot);
        if (held[slot].p) continue;
        size_t bytes = (x >> 24 & 1) ? 3 * MIB : 64 * KIB;
        CUdeviceptr p = 0;
        if (!fine(alloc_any(&p, bytes), "cuMemAlloc_v2")) continue;
        held[slot].p = p;
        held[slot].bytes = bytes;
        held[slot].value = x;
        OK(k_spin(&gpu, s, x >> 20 & 1));
        OK(k_fill(&gpu, s, p, WORDS, x));
        if (x >> 21 & 1)
            for (int k = 0; k < HELD; k++)
                if (held[k].p) EXPECT(wrong_words(&gpu, s, held[k].p, WORDS, held[k].value), 0);
    }
    OK(cuStreamSynchronize(s));
}

static void *elsewhere(void *s) {
    OK(cuCtxSetCurrent(gpu.context));
    work(s);
    return NULL;
}

int main(int argc, char **argv) {
    begin();
    Stream s = stream_new(1), t = stream_new(1);
    work(s);
    on_thread(elsewhere, t);
    size_t size, free, total;
    for (int i = 0; i < HELD; i++)
        if (held[i].p && FINE(cuMemGetAddressRange_v2, NULL, &size, held[i].p)) EXPECT(size, held[i].bytes);
    FINE(cuMemGetInfo_v2, &free, &total);
    Graph g;
    OK(cuStreamBeginCapture_v2(s, 2));
    CUdeviceptr p = 0;
    int got = fine(alloc_any(&p, MIB), "cuMemAlloc_v2");
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphDestroy(g));
    if (got) {
        drop(0);
        if (!held[0].p) {
            held[0].p = p, held[0].bytes = MIB, held[0].value = 1;
            OK(k_fill(&gpu, t, p, WORDS, 1));
        } else {
            give(p, MIB);
        }
    }
    work(t);
    nap(60);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < HELD; i++) drop(i);
    for (int i = 0; i < HELD; i++) EXPECT(held[i].p != 0, 0);
    OK(cuCtxSynchronize());
    for (int i = 1; i < argc; i++) fprintf(stderr, "%s %llu\n", argv[i], (unsigned long long)stat_of(argv[i]));
    return end("pool_refused");
}
