/* A process that `gpumem leaks --suspect` looks into, in a state that makes that hard. `pool_searched MODE` says that it is
 * ready, and goes on when its input ends:
 *   capture  a stream captures
 *   error    every call answers 700
 *   busy     work goes on that ends when the program says so
 *   moves    a thread moves addresses from one table to another, and back, all the time
 *   gives    blocks are allocated and freed all the time, while nothing else is done
 *   many     many blocks of odd sizes, and it is said how many words of device memory refer to each
 * and two that wait until gpumem has taken memory of the device to learn from, which they see by what is free:
 *   brim     takes all memory that there is; then again, when nobody looks: that has to be as much
 *   end      resets the device */
#include "pool.h"
#include <sys/mman.h>

enum { TOUCHED = 160 * MIB, LARGE = 64 * MIB, SMALL = 2 * MIB, MOST = 1024, MOVED = 64, LEARNED_FROM = 16 * MIB, GIVEN = 24 };

static void wait_for_end_of_input(void) {
    char byte;
    SAY("{\"ready\": 1}");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
}

static void captures(void) {
    Stream s = stream_new(1);
    Graph graph;
    CUdeviceptr p = get(MIB);
    OK(cuStreamBeginCapture_v2(s, 0));
    OK(cuMemsetD32Async(p, 7, MIB / 4, s));
    wait_for_end_of_input();
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphDestroy(graph));
    did.captures++, did.graphs_created++, did.graphs_destroyed++;
    OK(cuStreamDestroy_v2(s));
    give(p, MIB);
}

static int breaks(void) {
    CUdeviceptr p;
    OK(k_fill(&gpu, NULL, 0x100, 1, 1));
    EXPECT(cuCtxSynchronize(), 700);
    wait_for_end_of_input();
    EXPECT(cuCtxSynchronize(), 700);
    EXPECT(cuMemAlloc_v2(&p, MIB), 700);
    return report("pool_searched");
}

static void busy(void) {
    Stream s = stream_new(1);
    CUdeviceptr p = get(MIB);
    hold(s);
    wait_for_end_of_input();
    EXPECT(cuStreamQuery(s), 600);
    released = 1;
    give(p, MIB);
    OK(cuStreamDestroy_v2(s));
}

static CUdeviceptr *volatile tables[2];
static atomic_int over;
static void *mover(void *unused) {
    for (int from = 0; !over; from = !from) {
        for (int i = 0; i < MOVED; i++) {
            tables[!from][i] = tables[from][i];
            tables[from][i] = 0;
        }
    }
    return unused;
}
static void moves(void) {
    pthread_t thread;
    for (int i = 0; i < 2; i++) tables[i] = calloc(MOVED, sizeof **tables);
    for (int i = 0; i < MOVED; i++) tables[0][i] = get(4 * KIB);
    pthread_create(&thread, NULL, mover, NULL);
    wait_for_end_of_input();
    over = 1;
    pthread_join(thread, NULL);
    for (int i = 0; i < MOVED; i++) give(tables[0][i] + tables[1][i], 4 * KIB);
}

/* Sizes at which pieces, tiles and vectors of the kernel that looks end, and many small ones. */
enum { SMALLS = 2000, WORD = 8 };
static const size_t odd[] = {1, 7, 8, 9, 15, 16, 17, 24, 511, 512, 513, 4095, 64 * KIB - 8, 64 * KIB, 64 * KIB + 8, 64 * KIB + 24,
                             MIB - 8, MIB, MIB + 8, MIB + 24, 2 * MIB, 2 * MIB + 4, 3 * MIB + 40};
enum { ODDS = sizeof odd / sizeof *odd, MANY = ODDS + SMALLS };
static void many(void) {
    static struct { CUdeviceptr at; size_t bytes; int words; } of[MANY];
    unsigned at_random = 1;
    for (int i = 0; i < MANY; i++) {
        at_random = at_random * 1103515245 + 12345;
        of[i].bytes = i < ODDS ? odd[i] : WORD + at_random / 65536 % 3000;
        of[i].at = get(of[i].bytes);
        OK(cuMemsetD8_v2(of[i].at, 0, of[i].bytes));
    }
    /* In each block the last word, and the first of each 64 KiB, refer to the next block: to its first byte or its last. */
    for (int i = 0; i < MANY; i++) {
        int next = (i + 1) % MANY;
        size_t words = of[i].bytes / WORD;
        for (size_t word = 0; word < words; word++) {
            if (word % (8 * KIB) && word != words - 1) continue;
            CUdeviceptr to = of[next].at + (word % 2 ? of[next].bytes - 1 : 0);
            OK(cuMemcpyHtoD_v2(of[i].at + WORD * word, &to, WORD));
            of[next].words++;
        }
    }
    OK(cuCtxSynchronize());
    for (int i = 0; i < MANY; i++) SAY("{\"address\": \"%llx\", \"bytes\": %zu, \"words\": %d}", (unsigned long long)of[i].at, of[i].bytes, of[i].words);
    SAY("{\"planted\": %d}", MANY);
    wait_for_end_of_input();
    for (int i = 0; i < MANY; i++) give(of[i].at, of[i].bytes);
}

static void *gives_back(void *unused) {
    CUdeviceptr all[GIVEN];
    OK(cuCtxSetCurrent(gpu.context));
    while (!over) {
        for (int i = 0; i < GIVEN; i++) OK(cuMemAlloc_v2(&all[i], SMALL));
        nap(2);
        for (int i = 0; i < GIVEN; i++) OK(cuMemFree_v2(all[i]));
    }
    return unused;
}
static void gives(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, gives_back, NULL)) exit(2);
    wait_for_end_of_input();
    over = 1;
    pthread_join(thread, NULL);
    OK(cuCtxSynchronize());
}

static size_t free_now(void) {
    size_t free = 0, total;
    OK(cuMemGetInfo_v2(&free, &total));
    return free;
}
/* Host memory that takes a while to be looked through; then until somebody else takes memory, ten seconds at most. */
static int is_learned_from(void) {
    volatile char *host = mmap(NULL, TOUCHED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; host != MAP_FAILED && i < TOUCHED; i += 4096) host[i] = 1;
    SAY("{\"ready\": 1}");
    fflush(stdout);
    size_t before = free_now();
    for (int ms = 0; ms < 10000; ms++, nap(1))
        if (free_now() + LEARNED_FROM <= before) return 1;
    return 0;
}
static size_t fill(void) {
    static CUdeviceptr large[MOST], small[MOST];
    int larges = 0, smalls = 0;
    while (larges < MOST && cuMemAlloc_v2(&large[larges], LARGE) == 0) larges++;
    while (smalls < MOST && cuMemAlloc_v2(&small[smalls], SMALL) == 0) smalls++;
    for (int i = 0; i < larges; i++) OK(cuMemFree_v2(large[i]));
    for (int i = 0; i < smalls; i++) OK(cuMemFree_v2(small[i]));
    return (size_t)larges * LARGE + (size_t)smalls * SMALL;
}
static void brim(void) {
    int seen = is_learned_from();
    size_t first = fill();
    char byte;
    while (read(0, &byte, 1) > 0) {}
    SAY("{\"seen\": %d, \"first\": %zu, \"again\": %zu}", seen, first, fill());
}
static int reset(void) {
    int seen = is_learned_from();
    OK(cuDevicePrimaryCtxReset_v2(0));
    SAY("{\"seen\": %d}", seen);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "moves";
    begin();
    if (!strcmp(mode, "capture")) captures();
    if (!strcmp(mode, "error")) return breaks();
    if (!strcmp(mode, "busy")) busy();
    if (!strcmp(mode, "moves")) moves();
    if (!strcmp(mode, "gives")) gives();
    if (!strcmp(mode, "many")) many();
    if (!strcmp(mode, "brim")) brim();
    if (!strcmp(mode, "end")) return reset();
    return end("pool_searched");
}
