/* The primary context is let go of while another thread works in a context of its own, where room is made by what
 * lies idle anywhere. `release WHAT`:
 *   blocks   memory that was freed before, and requests that run out
 *   execs    graphs that were launched before, and new ones (for a bound of 1)
 *   detach   contexts that end by the last cuCtxDetach, one after another
 *   refused  the driver refuses to end a context (SIM_FAULT) with memory that lives and memory that was freed
 *   turns    threads that each retain it, work in it and let it go, so that the last to go and the next to come meet
 * For the simulator alone, where ending a context takes SIM_END_US. */
#include "graph.h"
#include <stdatomic.h>
CUresult cuCtxDestroy_v2(CUcontext), cuCtxAttach(CUcontext *, unsigned), cuCtxDetach(CUcontext);

enum { BLOCK = 4 << 20 };
static atomic_int going, over;
static int blocks;

static void launch_one(unsigned value) {
    Stream s = stream_new();
    CUdeviceptr p = words_new();
    Exec e = pair_exec(s, p, 1, p, value);
    launch(e, s);
    wait_for(s);
    EXPECT(word_of(p), value);
    exec_end(e);
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, WORDS * 4);
}

static void *beside(void *second) {
    OK(cuCtxSetCurrent(second));
    while (!going) usleep(1000);
    usleep(50000); /* it goes now */
    if (blocks) {
        CUdeviceptr p;
        EXPECT(cuMemAlloc_v2(&p, (size_t)1 << 45), 2);
    } else {
        OK(cuModuleLoadData(&module, image));
        OK(cuModuleGetFunction(&fill_words, module, "gpumem_fill"));
        launch_one(4);
    }
    EXPECT(over, 0);
    return NULL;
}

static void use_blocks(void) {
    enum { BLOCKS = 8 };
    CUdeviceptr p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) OK(cuMemAlloc_v2(&p[i], BLOCK));
    for (int i = 0; i < BLOCKS; i++) OK(cuMemsetD32_v2(p[i], 5, BLOCK / 4));
    for (int i = 0; i < BLOCKS; i++) OK(cuMemFree_v2(p[i]));
}
static void detach(void) {
    for (int round = 0; round < 3; round++) {
        CUcontext made, same;
        OK(cuCtxCreate_v2(&made, 0, 0));
        OK(cuCtxAttach(&same, 0));
        OK(cuCtxDetach(same));
        use_blocks();
        OK(cuCtxDetach(made));
        /* However often it was attached to. */
        OK(cuCtxCreate_v2(&made, 0, 0));
        OK(cuCtxAttach(&same, 0));
        use_blocks();
        OK(cuCtxDestroy_v2(made));
    }
}

static void refused(void) {
    uint64_t (*stat)(const char *) = simulator();
    CUcontext made;
    CUdeviceptr live;
    OK(cuCtxCreate_v2(&made, 0, 0));
    uint64_t used = stat("device_used");
    for (int round = 0; round < 2; round++) {
        OK(cuMemAlloc_v2(&live, BLOCK));
        use_blocks();
        EXPECT(cuCtxDestroy_v2(made), 1);
        OK(cuCtxSynchronize());
        uint64_t real = stat("cuMemAlloc_v2");
        use_blocks();
        fprintf(stderr, "real allocations %llu\n", (unsigned long long)(stat("cuMemAlloc_v2") - real));
        OK(cuMemsetD32_v2(live, 5, BLOCK / 4));
        OK(cuMemFree_v2(live));
        EXPECT(cuMemFree_v2(live), 1);
    }
    /* Who needs all of the device gets what is idle. */
    size_t room = ((size_t)1 << 30) - used;
    OK(cuMemAlloc_v2(&live, room - room % BLOCK));
    OK(cuMemFree_v2(live));
    OK(cuCtxDestroy_v2(made));
}

enum { THREADS = 3, ROUNDS = 60, AT_ONCE = 3 };
static void *turns(void *arg) {
    unsigned seed = (unsigned)(size_t)arg;
    for (int round = 0; round < ROUNDS; round++) {
        CUcontext own;
        CUdeviceptr p[AT_ONCE];
        OK(cuDevicePrimaryCtxRetain(&own, 0));
        OK(cuCtxSetCurrent(own));
        for (int i = 0; i < AT_ONCE; i++) OK(cuMemAlloc_v2(&p[i], (1 + (unsigned)rand_r(&seed) % 8) << 20));
        for (int i = 0; i < AT_ONCE; i++) OK(cuMemsetD32_v2(p[i], 5, 1 << 18));
        for (int i = 0; i < AT_ONCE; i++) OK(cuMemFree_v2(p[i]));
        OK(cuCtxSetCurrent(NULL));
        OK(cuDevicePrimaryCtxRelease_v2(0));
        if (rand_r(&seed) % 3 == 0) usleep((unsigned)rand_r(&seed) % 300);
    }
    return NULL;
}

int main(int argc, char **argv) {
    CUcontext second;
    pthread_t thread;
    if (argc > 1 && !strcmp(argv[1], "detach")) {
        OK(cuInit(0));
        detach();
        return did.failures;
    }
    if (argc > 1 && !strcmp(argv[1], "refused")) {
        OK(cuInit(0));
        refused();
        return did.failures;
    }
    if (argc > 1 && !strcmp(argv[1], "turns")) {
        pthread_t all[THREADS];
        OK(cuInit(0));
        for (size_t i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, turns, (void *)(i + 1));
        for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
        return did.failures;
    }
    blocks = argc > 1 && !strcmp(argv[1], "blocks");
    begin();
    OK(cuCtxCreate_v2(&second, 0, 0));
    OK(cuCtxSetCurrent(context));
    if (blocks) {
        CUdeviceptr p;
        OK(cuMemAlloc_v2(&p, BLOCK));
        counted_alloc(DEVICE, BLOCK);
        OK(cuMemFree_v2(p));
        counted_free(DEVICE, BLOCK);
    } else {
        launch_one(2);
    }
    if (pthread_create(&thread, NULL, beside, second)) return 2;
    going = 1;
    OK(cuDevicePrimaryCtxRelease_v2(0));
    over = 1;
    pthread_join(thread, NULL);
    OK(cuCtxDestroy_v2(second));
    return report("release");
}
