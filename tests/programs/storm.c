/* A program whose settings change under it: threads allocate, write, verify and free memory of each kind, and capture,
 * update, launch and verify graphs. `storm MS SEED MEMORY GRAPHS MIB`: for how long, which random numbers, how many
 * threads of each kind, and how much memory they have together at most. All that a thread reads is verified. */
#include "count.h"
#include "cuda_min.h"
#include <gpumem.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 24, EXECS = 8, PIECE = 4096, PIECES = 8, ROOM = 1 << 20 };

static atomic_int over, told;
static atomic_long operations, errors, oom, wrong, used;
static long most;

static void tell(const char *what, int status) {
    if (status == cudaErrorMemoryAllocation) {
        atomic_fetch_add(&oom, 1);
        cudaGetLastError();
    } else {
        atomic_fetch_add(&errors, 1);
    }
    if (atomic_fetch_add(&told, 1) < 6) fprintf(stderr, "storm: %s answers %d\n", what, status);
}
#define DO(call) ({ int status_ = (call); if (status_) tell(#call, status_); status_; })

static unsigned below(unsigned *seed, unsigned n) { return (unsigned)rand_r(seed) % n; }

/* Copies memory back and looks at each byte of it; of more than ROOM at the beginning and the end. */
static void verify(const char *what, char *at, size_t bytes, int value, cudaStream_t stream, char *room) {
    size_t part = bytes > ROOM ? ROOM / 2 : bytes;
    for (int end = 0; end < (bytes > ROOM ? 2 : 1); end++) {
        char *from = end ? at + bytes - part : at;
        memset(room, ~value, part);
        if (DO(cudaMemcpyAsync(room, from, part, cudaMemcpyDeviceToHost, stream)) || DO(cudaStreamSynchronize(stream)))
            return;
        for (size_t i = 0; i < part; i++) {
            if ((unsigned char)room[i] == value) continue;
            atomic_fetch_add(&wrong, 1);
            if (atomic_fetch_add(&told, 1) < 6)
                fprintf(stderr, "storm: %s at %p of %zu bytes: byte %zu is %d, not %d\n", what, (void *)at, bytes,
                        (size_t)(from - at) + i, (unsigned char)room[i], value);
            return;
        }
    }
}

struct slot { char *at; size_t bytes; int value; enum kind kind; };

static void get(struct slot *slot, unsigned *seed, cudaStream_t stream) {
    size_t bytes = 1 + below(seed, below(seed, 4) ? 20000 : 3000000);
    if (atomic_fetch_add(&used, (long)bytes) + (long)bytes > most) {
        atomic_fetch_sub(&used, (long)bytes);
        return;
    }
    void *at = NULL;
    unsigned kind = below(seed, 8);
    *slot = (struct slot){NULL, bytes, (int)below(seed, 256), kind == 6 ? ASYNC : kind == 7 ? MANAGED : DEVICE};
    char tag[16];
    snprintf(tag, sizeof tag, "t%u", below(seed, 50));
    int status = 1;
    GPUMEM_TAG(tag) {
        switch (slot->kind) {
        case ASYNC: status = DO(cudaMallocAsync(&at, bytes, stream)); break;
        case MANAGED: status = DO(cudaMallocManaged(&at, bytes, cudaMemAttachGlobal)); break;
        default: status = DO(cudaMalloc(&at, bytes));
        }
    }
    if (status || !at || DO(cudaMemsetAsync(at, slot->value, bytes, stream))) {
        atomic_fetch_sub(&used, (long)bytes);
        return;
    }
    slot->at = at;
}

static void give(struct slot *slot, cudaStream_t stream) {
    if (slot->kind == ASYNC)
        DO(cudaFreeAsync(slot->at, stream));
    else
        DO(cudaFree(slot->at));
    atomic_fetch_sub(&used, (long)slot->bytes);
    slot->at = NULL;
}

static void *memory(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg, left = 100 + below(&seed, 3000), lazy = below(&seed, 3);
    struct slot slots[SLOTS] = {0};
    char *room = malloc(ROOM);
    cudaStream_t stream;
    if (!room || DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) return free(room), NULL;
    while (!over && left--) {
        struct slot *slot = &slots[below(&seed, SLOTS)];
        atomic_fetch_add(&operations, 1);
        if (!slot->at) {
            get(slot, &seed, stream);
        } else {
            if (!below(&seed, 3)) verify("a block", slot->at, slot->bytes, slot->value, stream, room);
            if (below(&seed, 2)) give(slot, stream);
        }
        if (lazy) usleep(below(&seed, 300));
    }
    for (int i = 0; i < SLOTS; i++) {
        if (!slots[i].at) continue;
        verify("a block", slots[i].at, slots[i].bytes, slots[i].value, stream, room);
        give(&slots[i], stream);
    }
    DO(cudaStreamSynchronize(stream));
    DO(cudaStreamDestroy(stream));
    free(room);
    return NULL;
}

struct graphs { cudaStream_t streams[2]; cudaEvent_t fork, join; unsigned seed; };

/* Captures fills of some pieces, on one stream or two, plain, as a child or as a clone. */
static cudaGraph_t captured(struct graphs *g, char *at, int pieces, int value) {
    cudaGraph_t graph = NULL, other;
    cudaGraphNode_t node;
    int forks = (int)below(&g->seed, 2);
    if (DO(cudaStreamBeginCapture(g->streams[0], cudaStreamCaptureModeThreadLocal + (int)below(&g->seed, 2)))) return NULL;
    if (forks) {
        DO(cudaEventRecord(g->fork, g->streams[0]));
        DO(cudaStreamWaitEvent(g->streams[1], g->fork, 0));
    }
    for (int i = 0; i < pieces; i++) DO(cudaMemsetAsync(at + i * PIECE, value, PIECE, g->streams[forks && i % 2]));
    if (forks) {
        DO(cudaEventRecord(g->join, g->streams[1]));
        DO(cudaStreamWaitEvent(g->streams[0], g->join, 0));
    }
    if (DO(cudaStreamEndCapture(g->streams[0], &graph))) return NULL;
    if (!below(&g->seed, 4) && !DO(cudaGraphCreate(&other, 0))) {
        DO(cudaGraphAddChildGraphNode(&node, other, NULL, 0, graph));
        DO(cudaGraphDestroy(graph));
        graph = other;
    }
    if (!below(&g->seed, 4) && !DO(cudaGraphClone(&other, graph))) {
        DO(cudaGraphDestroy(graph));
        graph = other;
    }
    return graph;
}

static void *graphs(void *arg) {
    struct graphs g = {.seed = (unsigned)(uintptr_t)arg};
    struct { cudaGraphExec_t exec; char *at; int pieces, value; } all[EXECS] = {0};
    unsigned left = 50 + below(&g.seed, 1500);
    char *room = malloc(ROOM);
    for (int i = 0; i < 2; i++)
        if (!room || DO(cudaStreamCreateWithFlags(&g.streams[i], cudaStreamNonBlocking))) return free(room), NULL;
    DO(cudaEventCreateWithFlags(&g.fork, cudaEventDisableTiming));
    DO(cudaEventCreateWithFlags(&g.join, cudaEventDisableTiming));
    for (int i = 0; i < EXECS; i++) {
        void *at = NULL;
        if (!DO(cudaMalloc(&at, PIECES * PIECE))) all[i].at = at;
    }
    while (!over && left--) {
        int i = (int)below(&g.seed, EXECS);
        atomic_fetch_add(&operations, 1);
        if (!all[i].at) continue;
        if (!all[i].exec || !below(&g.seed, 5)) {
            int pieces = 1 + (int)below(&g.seed, PIECES), value = (int)below(&g.seed, 256);
            cudaGraph_t graph = captured(&g, all[i].at, pieces, value);
            if (!graph) break;
            cudaGraphExecUpdateResultInfo why;
            /* An update is refused where the topology is another one. */
            int keeps = all[i].exec && below(&g.seed, 2) && !cudaGraphExecUpdate(all[i].exec, graph, &why);
            if (!keeps) {
                cudaGetLastError();
                if (all[i].exec) DO(cudaGraphExecDestroy(all[i].exec));
                all[i].exec = NULL;
                if (DO(cudaGraphInstantiate(&all[i].exec, graph, 0))) all[i].exec = NULL;
            }
            DO(cudaGraphDestroy(graph));
            all[i].pieces = pieces;
            all[i].value = value;
        }
        if (!all[i].exec) continue;
        cudaStream_t on = g.streams[!below(&g.seed, 4)];
        DO(cudaMemsetAsync(all[i].at, all[i].value + 1, (size_t)all[i].pieces * PIECE, on));
        DO(cudaGraphLaunch(all[i].exec, on));
        if (below(&g.seed, 3))
            DO(cudaStreamSynchronize(on));
        else
            verify("a graph's memory", all[i].at, (size_t)all[i].pieces * PIECE, all[i].value, on, room);
    }
    for (int i = 0; i < EXECS; i++) {
        if (all[i].exec) DO(cudaGraphExecDestroy(all[i].exec));
        if (all[i].at) DO(cudaFree(all[i].at));
    }
    DO(cudaEventDestroy(g.fork));
    DO(cudaEventDestroy(g.join));
    for (int i = 0; i < 2; i++) DO(cudaStreamDestroy(g.streams[i]));
    free(room);
    return NULL;
}

struct line { unsigned seed; void *(*life)(void *); };

/* One thread after another, each with numbers of its own. */
static void *lives(void *arg) {
    struct line *line = arg;
    for (unsigned n = 0; !over; n++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, line->life, (void *)(uintptr_t)(line->seed + n * 7919))) break;
        pthread_join(thread, NULL);
    }
    return NULL;
}

int main(int argc, char **argv) {
    long of[5] = {400, 1, 2, 1, 48};
    for (int i = 1; i < argc && i <= 5; i++) of[i - 1] = atol(argv[i]);
    int memories = (int)of[2], all = memories + (int)of[3];
    struct line lines[64];
    pthread_t threads[64];
    if (all < 1 || all > 64) return 2;
    most = of[4] << 20;
    void *first = NULL;
    if (DO(cudaMalloc(&first, 100))) return 2;
    for (int i = 0; i < all; i++) {
        lines[i] = (struct line){(unsigned)of[1] * 31 + (unsigned)i * 104729, i < memories ? memory : graphs};
        if (pthread_create(&threads[i], NULL, lives, &lines[i])) return 2;
    }
    usleep((useconds_t)of[0] * 1000);
    over = 1;
    for (int i = 0; i < all; i++) pthread_join(threads[i], NULL);
    DO(cudaFree(first));
    printf("{\"program\":\"storm\",\"operations\":%ld,\"errors\":%ld,\"out_of_memory\":%ld,\"wrong\":%ld}\n", operations,
           errors, oom, wrong);
    return errors || oom || wrong;
}
