/* The process gets no more memory from the kernel, while its own malloc has plenty: `no_memory KIB`. KIB more than
 * what it has is what it may still map; -1: no limit; `no_memory maps N`: N mappings are left of those that a
 * process may have; `no_memory wait KIB`: as with KIB, and then does the same once more for each line on stdin. Live
 * allocations, graphs and execs grow in number meanwhile. `no_memory threads KIB`: eight threads make live allocations
 * at one pace. */
#include "graph.h"
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PLENTY = 96 << 20, LIVE = 12000, GRAPHS = 300, ROUNDS = 2 };
static CUdeviceptr at[LIVE];
static struct { Graph graph; Exec exec; } made[GRAPHS];

/* malloc has this memory and does not give it back. */
static void stock(void) {
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_ARENA_MAX, 1);
    void *volatile plenty = malloc(PLENTY);
    free(plenty);
}

static void limit(long kib) {
    long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%ld", &pages) != 1) exit(3);
    fclose(statm);
    rlim_t bytes = (rlim_t)pages * 4096 + (rlim_t)kib * 1024;
    if (kib >= 0) OK(setrlimit(RLIMIT_AS, &(struct rlimit){bytes, RLIM_INFINITY}));
}

/* Takes mappings until there are no more, and gives some back. */
static void take_mappings(int left) {
    static void *last[64];
    for (unsigned long n = 0;; n++) {
        void *p = mmap(NULL, 4096, n % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) break;
        last[n % 64] = p;
    }
    for (int i = 0; i < left && i < 64; i++) munmap(last[i], 4096);
}

static void round_of(Stream s, CUdeviceptr buffer, int live, int graphs) {
    for (int i = 0; i < live; i++) OK(cuMemAlloc_v2(&at[i], 64));
    for (int i = 0; i < graphs; i++) {
        uint64_t n = WORDS;
        unsigned value = (unsigned)i;
        void *params[] = {&buffer, &n, &value};
        KernelNode node = {.func = fill_words, .grid = {1, 1, 1}, .block = {64, 1, 1}, .params = params};
        Node last = NULL, next;
        OK(cuGraphCreate(&made[i].graph, 0));
        for (int k = 0; k <= i % 7; k++, last = next)
            OK(cuGraphAddKernelNode_v2(&next, made[i].graph, last ? &last : NULL, last ? 1 : 0, &node));
        OK(cuGraphInstantiateWithFlags(&made[i].exec, made[i].graph, 0));
        OK(cuGraphLaunch(made[i].exec, s));
    }
    for (int i = 0; i < graphs; i++) OK(cuGraphLaunch(made[i].exec, s));
    OK(cuStreamSynchronize(s));
    unsigned word = 0;
    OK(cuMemcpyDtoH_v2(&word, buffer, 4));
    EXPECT(word, graphs - 1);
    for (int i = 0; i < graphs; i++) {
        OK(cuGraphExecDestroy(made[i].exec));
        OK(cuGraphDestroy(made[i].graph));
    }
    for (int i = 0; i < live; i++) OK(cuMemFree_v2(at[i]));
}

enum { THREADS = 8, LIVE_OF_EACH = 3000, PACE = 64 };
static pthread_barrier_t pace;
static void *allocates(void *unused) {
    OK(cuCtxSetCurrent(context));
    CUdeviceptr *mine = malloc(LIVE_OF_EACH * sizeof *mine);
    for (int i = 0; i < LIVE_OF_EACH; i++) {
        if (i % PACE == 0) pthread_barrier_wait(&pace);
        OK(cuMemAlloc_v2(&mine[i], 64));
    }
    pthread_barrier_wait(&pace);
    for (int i = 0; i < LIVE_OF_EACH; i++) OK(cuMemFree_v2(mine[i]));
    free(mine);
    return unused;
}
/* Threads have their stacks before the limit comes. */
static void in_threads(long kib) {
    pthread_t threads[THREADS];
    OK(pthread_barrier_init(&pace, NULL, THREADS + 1));
    for (int i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, allocates, NULL));
    limit(kib);
    for (int i = 0; i < LIVE_OF_EACH; i += PACE) pthread_barrier_wait(&pace);
    pthread_barrier_wait(&pace);
    for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));
}

int main(int argc, char **argv) {
    int waits = argc > 2 && !strcmp(argv[1], "wait");
    long kib = argc > 1 ? atol(argv[waits ? 2 : 1]) : -1;
    stock();
    begin();
    Stream s = stream_new();
    CUdeviceptr buffer;
    OK(cuMemAlloc_v2(&buffer, WORDS * 4));
    /* The driver has its threads before the limit comes. */
    round_of(s, buffer, 1, 1);
    if (argc > 2 && !strcmp(argv[1], "threads")) {
        in_threads(atol(argv[2]));
        return report("no_memory");
    }
    if (argc > 2 && !waits) take_mappings(atoi(argv[2]));
    else limit(kib);
    for (int round = 0; round < ROUNDS; round++) round_of(s, buffer, LIVE, GRAPHS);
    char line[8];
    while (waits && printf("waits\n") && !fflush(stdout) && fgets(line, sizeof line, stdin))
        round_of(s, buffer, LIVE, GRAPHS);
    return report("no_memory");
}
