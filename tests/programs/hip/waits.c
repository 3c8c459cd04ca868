/* Allocation beside a kernel that polls a word of host memory, which no call tells. `waits MODE`, on a device of 1 GiB:
 *   beside   200 MiB are freed, the kernel begins, 850 MiB are asked for
 *   parts    the same with 20 blocks of 40 MiB
 *   info     40 MiB are freed, the kernel begins, and all that is free is asked for
 *   ends     the same, but for more than is free, and the kernel ends while that is asked for
 *   shrinks  40 MiB are freed, all but 100 MiB are allocated: what is kept at most after one more free
 *   stays    40 MiB are freed; a third of a second later one more free: what goes back then
 * Natively none of these calls waits. */
#include "count.h"
#include "hip_min.h"
#include "sim.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

hipError_t hipStreamQuery(hipStream_t);
enum { MIB = 1 << 20, SMALL = 200 * MIB, LARGE = 850 * MIB, PIECE = 40 * MIB, PIECES = 20, NOT_READY = 600 };

static const char ptx[] = ".version 7.0\n.target sm_50\n.visible .entry polls_host(.param .u64 word)\n{\n}\n";
static hipFunction_t polls;
static _Atomic int *word;
static hipStream_t s;

static void *get(size_t bytes) {
    void *p = NULL;
    OK(hipMalloc(&p, bytes));
    counted_alloc(DEVICE, bytes);
    return p;
}
static void give(void *p, size_t bytes) {
    OK(hipFree(p));
    counted_free(DEVICE, bytes);
}
/* The kernel runs until the word is set. */
static void hold(void) {
    *word = 0;
    OK(hipModuleLaunchKernel(polls, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&word}, NULL));
}
static void release(void) {
    *word = 1;
    OK(hipStreamSynchronize(s));
}

static void beside(size_t bytes, int blocks) {
    void *p[PIECES];
    for (int i = 0; i < blocks; i++) p[i] = get(bytes);
    for (int i = 0; i < blocks; i++) give(p[i], bytes);
    hold();
    void *large = get(LARGE);
    EXPECT(hipStreamQuery(s), NOT_READY);
    release();
    give(large, LARGE);
}

static void info(void) {
    size_t free = 0, total = 0;
    give(get(PIECE), PIECE);
    hold();
    OK(hipMemGetInfo(&free, &total));
    void *all = get(free);
    EXPECT(hipStreamQuery(s), NOT_READY);
    release();
    give(all, free);
}

static void *releases(void *unused) {
    usleep(300000);
    *word = 1;
    return unused;
}

/* Bytes that are there while nothing of the kind is kept. */
static size_t most(void) {
    size_t free = 0, total = 0;
    OK(hipMemGetInfo(&free, &total));
    return free;
}

static void ends(void) {
    size_t bytes = most();
    pthread_t t;
    give(get(PIECE), PIECE);
    hold();
    if (pthread_create(&t, NULL, releases, NULL)) return;
    void *all = get(bytes);
    pthread_join(t, NULL);
    release();
    give(all, bytes);
}

static void shrinks(void) {
    uint64_t (*stat)(const char *) = simulator();
    size_t free = 0, total = 0, left = 100 * MIB;
    void *p = get(MIB);
    give(get(PIECE), PIECE);
    OK(hipMemGetInfo(&free, &total));
    size_t bytes = free - left;
    void *large = get(bytes);
    uint64_t used = stat ? stat("device_used") : 0;
    give(p, MIB);
    fprintf(stderr, "went back %llu\n", (unsigned long long)(stat ? used - stat("device_used") : 0));
    give(large, bytes);
}

static void stays(void) {
    uint64_t (*stat)(const char *) = simulator();
    void *p = get(MIB);
    give(get(PIECE), PIECE);
    usleep(300000);
    uint64_t used = stat ? stat("device_used") : 0;
    give(p, MIB);
    fprintf(stderr, "went back %llu\n", (unsigned long long)(stat ? used - stat("device_used") : 0));
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "beside";
    hipModule_t module;
    void *host_word = NULL;
    OK(hipModuleLoadData(&module, ptx));
    OK(hipModuleGetFunction(&polls, module, "polls_host"));
    OK(hipHostMalloc(&host_word, 4, 0));
    counted_alloc(HOST, 4);
    word = host_word;
    OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
    if (!strcmp(mode, "beside")) beside(SMALL, 1);
    if (!strcmp(mode, "parts")) beside(PIECE, PIECES);
    if (!strcmp(mode, "info")) info();
    if (!strcmp(mode, "ends")) ends();
    if (!strcmp(mode, "shrinks")) shrinks();
    if (!strcmp(mode, "stays")) stays();
    OK(hipStreamDestroy(s));
    OK(hipHostFree(host_word));
    counted_free(HOST, 4);
    return report("waits");
}
