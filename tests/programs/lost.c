/* Device memory of which it is known who refers to it: variables, the heap, a stack,
 * memory of its own, memory that it shares with children, memory below a stack that it
 * made itself, pinned memory, an interior pointer, the heap beside its size as a
 * driver keeps it, a graph, device memory; or nobody, since the address was lost, or
 * device memory alone whose own address was. What is planted
 * follows from a number. It says what is planted, and waits until its input ends.
 *
 *   lost [SEED] [BLOCKS] */
#include "rt.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
enum { MOST = 512, PAGE = 4096, STACK_BYTES = 256 << 10 };
enum fate { LOST, VARIABLE, HEAP, BESIDE, INTERIOR, STACK, THREAD, MAPPED, SHARED, BELOW, PINNED, MOVED, GRAPH, TABLE, CHAIN, FATES };
static const char *const words[] = {"lost", "variable", "heap", "beside", "interior", "stack", "thread", "mapped", "shared", "below", "pinned", "moved", "graph", "device", "chain"};

static uint64_t seed;
static uint64_t below(uint64_t end) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (seed >> 11) % (end ? end : 1);
}

static void *map(size_t bytes, int how) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? (perror("mmap"), exit(1), at) : at;
}

/* What the test is told by, and nobody could follow. */
static const uint64_t KEY = 0xa5a5000000000000u;
static uint64_t hidden[MOST];
static enum fate fates[MOST];
static int blocks;

static void *volatile variables[MOST];
static void **volatile nodes[MOST];
static void *volatile *mapped, *volatile *shared, *volatile *below_stack, *volatile *pinned;
/* What ends where the next allocation begins would refer to that one, too. */
struct record { size_t size; void *base, *inside; };
static struct record *volatile records[MOST];

/* Addresses are in frames of these functions alone. */
NOINLINE static void *allocate(size_t bytes) {
    void *p = NULL;
    OK(cudaMalloc(&p, bytes));
    return p;
}
static cudaGraphExec_t volatile graphs[MOST];
NOINLINE static void graph_of(int index, void *p) {
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t exec;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(p, 0, 512, s));
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaGraphInstantiateWithFlags(&exec, g, 0));
    OK(cudaGraphDestroy(g));
    OK(cudaStreamDestroy(s));
    graphs[index] = exec;
}
/* Tables in device memory: the address of one is kept, and that of the other is lost. Its own address is in it. */
static uint64_t kept, forgotten;
static char *volatile table;
static int pointers;
NOINLINE static void point_from(uint64_t from, void *p) { OK(cudaMemcpy((char *)(from ^ KEY) + 64 + 8 * pointers++, &p, 8, cudaMemcpyHostToDevice)); }
NOINLINE static void make_tables(void) {
    char *p = allocate(64 + 8 * MOST);
    OK(cudaMemset(p, 0, 64 + 8 * MOST));
    table = p, kept = (uint64_t)p ^ KEY;
    p = allocate(64 + 8 * MOST);
    OK(cudaMemset(p, 0, 64 + 8 * MOST));
    OK(cudaMemcpy(p, &p, 8, cudaMemcpyHostToDevice));
    forgotten = (uint64_t)p ^ KEY;
}
NOINLINE static void plant(int index, void *volatile *on_stack, void *volatile *of_thread) {
    size_t bytes = (size_t)512 << below(14);
    char *p = allocate(bytes);
    hidden[index] = (uint64_t)p ^ KEY;
    switch (fates[index]) {
    case VARIABLE: variables[index] = p; break;
    case HEAP: *(nodes[index] = calloc(1, 64)) = p; break;
    case MOVED: *(nodes[index] = calloc(1, 64)) = p; break;
    case BESIDE:
        records[index] = calloc(1, sizeof *records[index]);
        *records[index] = (struct record){bytes, p, p + bytes / 2};
        break;
    case INTERIOR: *(nodes[index] = calloc(1, 64)) = p + bytes / 2; break;
    case STACK: on_stack[index] = p; break;
    case THREAD: of_thread[index] = p; break;
    case MAPPED: mapped[index] = p; break;
    case SHARED: shared[index] = p; break;
    case BELOW: below_stack[index] = p; break;
    case PINNED: pinned[index] = p; break;
    case GRAPH: graph_of(index, p); break;
    case TABLE: point_from(kept, p); break;
    case CHAIN: point_from(forgotten, p); break;
    default: break;
    }
}
/* Writes over what was left on the stack. */
NOINLINE static void wipe(void) {
    volatile char space[128 << 10];
    memset((void *)space, 0, sizeof space);
}

static void *volatile *theirs;
static int ready[2], over[2];
static void *thread(void *unused) {
    (void)unused;
    void *volatile held[MOST] = {0};
    theirs = held;
    __asm__ volatile("" : : "r"(held) : "memory");
    char byte = 0;
    if (write(ready[1], &byte, 1) != 1 || read(over[0], &byte, 1) < 0) return NULL;
    __asm__ volatile("" : : "r"(held) : "memory");
    return NULL;
}

int main(int argc, char **argv) {
    seed = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1) * 0x9e3779b97f4a7c15u + 1;
    blocks = argc > 2 ? atoi(argv[2]) : 50;
    if (blocks > MOST) blocks = MOST;
    for (int i = 0; i < 8; i++) below(2);
    void *volatile on_stack[MOST] = {0};
    __asm__ volatile("" : : "r"(on_stack) : "memory");
    mapped = map(MOST * sizeof *mapped, MAP_PRIVATE);
    shared = map(MOST * sizeof *shared, MAP_SHARED);
    below_stack = map(STACK_BYTES + PAGE + MOST * sizeof *below_stack, MAP_PRIVATE);
    pthread_attr_t own;
    pthread_attr_init(&own);
    pthread_attr_setstack(&own, (char *)below_stack + PAGE + MOST * sizeof *below_stack, STACK_BYTES);
    OK(cudaMallocHost((void **)&pinned, MOST * sizeof *pinned));
    memset((void *)pinned, 0, MOST * sizeof *pinned);
    pthread_t other;
    char byte;
    if (pipe(ready) || pipe(over) || pthread_create(&other, &own, thread, NULL) || read(ready[0], &byte, 1) != 1) return 1;
    for (int i = 0; i < blocks; i++) fates[i] = below(3) ? 1 + (enum fate)below(FATES - 1) : LOST;
    make_tables();
    for (int i = 0; i < blocks; i++) plant(i, on_stack, theirs);
    /* One word of the heap gives way to another, as in a table that grows. */
    for (int i = 0; i < blocks; i++) {
        if (fates[i] != MOVED) continue;
        void **to = calloc(1, 256);
        to[3] = *nodes[i], *nodes[i] = NULL, nodes[i] = to;
    }
    /* A thread of the driver's may remember what it copied to last. */
    point_from(kept, NULL);
    OK(cudaDeviceSynchronize());
    wipe();
    printf("{\"blocks\": [");
    for (int i = 0; i < blocks; i++)
        printf("%s{\"address\": \"%llx\", \"fate\": \"%s\"}", i ? ", " : "", (unsigned long long)hidden[i] ^ (unsigned long long)KEY, words[fates[i]]);
    printf("], \"forgotten\": \"%llx\"}\n", (unsigned long long)forgotten ^ (unsigned long long)KEY);
    fflush(stdout);
    wipe();
    while (read(0, &byte, 1) > 0) {}
    __asm__ volatile("" : : "r"(on_stack) : "memory");
    close(over[1]);
    return 0;
}
