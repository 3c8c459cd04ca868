/* Many executable graphs, and what may happen to them while there are fewer real ones. Each mode
 * checks what its graphs do; the numbers that it prints are the runtime's own. */
#define _GNU_SOURCE
#include "count.h"
#include "hip_min.h"
#include "sim.h"
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

hipError_t hipSetDevice(int);
hipError_t hipGetDevice(int *);
hipError_t hipDeviceReset(void);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned);
hipError_t hipEventRecord(hipEvent_t, hipStream_t);
hipError_t hipLaunchHostFunc(hipStream_t, void (*)(void *), void *);
hipError_t hipGraphUpload(hipGraphExec_t, hipStream_t);
hipError_t hipGraphExecGetFlags(hipGraphExec_t, unsigned long long *);
hipError_t hipGraphNodeGetEnabled(hipGraphExec_t, hipGraphNode_t, unsigned *);
hipError_t hipGraphExecHostNodeSetParams(hipGraphExec_t, hipGraphNode_t, const hipHostNodeParams *);

hipError_t hipGraphChildGraphNodeGetGraph(hipGraphNode_t, hipGraph_t *);
hipError_t hipGraphAddBatchMemOpNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const void *);
hipError_t hipUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned);
hipError_t hipGraphRetainUserObject(hipGraph_t, void *, unsigned, unsigned);

enum { MAX = 64, WORDS = 32 };
/* A graph sets every word of its block to its number, and copies them behind that. */
typedef struct {
    unsigned *block;
    hipGraph_t graph;
    hipGraphNode_t set;
    hipGraphExec_t exec;
    unsigned number;
} one;
static one all[MAX];
static hipStream_t s1, s2;
static uint64_t (*stat_of)(const char *);

static hipGraph_t graph_of(unsigned *block, unsigned number, hipGraphNode_t *set) {
    hipGraph_t g;
    hipGraphNode_t copy;
    hipMemsetParams p = {.dst = block, .elementSize = 4, .height = 1, .pitch = WORDS * 4, .value = number, .width = WORDS};
    OK(hipGraphCreate(&g, 0));
    did.graphs_created++;
    OK(hipGraphAddMemsetNode(set, g, NULL, 0, &p));
    OK(hipGraphAddMemcpyNode1D(&copy, g, set, 1, block + WORDS, block, WORDS * 4, hipMemcpyDeviceToDevice));
    return g;
}
static void graph_gone(one *o) {
    OK(hipGraphDestroy(o->graph));
    did.graphs_destroyed++;
    o->graph = NULL;
}
static void make(one *o, unsigned number) {
    o->number = number;
    OK(hipMalloc((void **)&o->block, WORDS * 8));
    counted_alloc(DEVICE, WORDS * 8);
    o->graph = graph_of(o->block, number, &o->set);
    OK(hipGraphInstantiate(&o->exec, o->graph, NULL, NULL, 0));
    did.execs_created++;
}
static void launch(one *o, hipStream_t s) {
    OK(hipGraphLaunch(o->exec, s));
    EXPECT(hipGetLastError(), 0); /* "not ready" to a question that the program did not ask */
    did.graph_launches++;
}
static void holds(one *o, unsigned number) {
    unsigned host[2 * WORDS];
    int wrong = 0;
    OK(hipMemcpy(host, o->block, sizeof host, hipMemcpyDeviceToHost));
    for (int i = 0; i < 2 * WORDS; i++) wrong += host[i] != number;
    EXPECT(wrong, 0);
}
static void launch_and_check(one *o, hipStream_t s) {
    OK(hipMemset(o->block, 0xee, WORDS * 8));
    OK(hipDeviceSynchronize());
    launch(o, s);
    OK(hipStreamSynchronize(s));
    holds(o, o->number);
}
static void end(one *o) {
    OK(hipGraphExecDestroy(o->exec));
    did.execs_destroyed++;
    if (o->graph) graph_gone(o);
    OK(hipFree(o->block));
    counted_free(DEVICE, WORDS * 8);
}
static uint64_t live(void) { return stat_of("live_execs"); }
static void say_live(const char *when) { printf("{\"%s\":%lu}\n", when, (unsigned long)live()); }

/* Four rounds over 24 handles; what they were made of is destroyed at once. */
static void rounds(void) {
    uint64_t most = 0;
    for (int i = 0; i < 24; i++) {
        make(&all[i], 100 + i);
        if (i % 2) graph_gone(&all[i]);
    }
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < 24; i++) {
            launch_and_check(&all[i], i % 3 ? s1 : s2);
            if (live() > most) most = live();
        }
    printf("{\"most\":%lu}\n", (unsigned long)most);
    for (int i = 0; i < 24; i++) end(&all[i]);
    say_live("end");
}

/* Nobody waits: all run at once. Then one after the other. */
static void busy(void) {
    for (int i = 0; i < 6; i++) make(&all[i], 200 + i);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 6; i++) launch(&all[i], (i + round) % 2 ? s1 : s2);
    say_live("busy");
    OK(hipDeviceSynchronize());
    for (int i = 0; i < 6; i++) holds(&all[i], 200 + i);
    for (int i = 0; i < 6; i++) launch_and_check(&all[i], s1);
    say_live("idle");
    /* Destroyed at once after a launch that runs: as the program wishes. */
    for (int i = 0; i < 6; i++) end(&all[i]);
}

static void until(void *flag) {
    while (!atomic_load((atomic_int *)flag)) usleep(100);
}
/* One handle runs on a stream that is held up, and is over on another. */
static void lanes(void) {
    static atomic_int go;
    for (int i = 0; i < 6; i++) make(&all[i], 300 + i);
    OK(hipLaunchHostFunc(s1, until, &go));
    launch(&all[0], s1);
    launch(&all[0], s2);
    OK(hipStreamSynchronize(s2));
    holds(&all[0], 300);
    for (int round = 0; round < 2; round++)
        for (int i = 1; i < 6; i++) {
            launch(&all[i], s2);
            OK(hipStreamSynchronize(s2));
        }
    say_live("held up");
    atomic_store(&go, 1);
    OK(hipDeviceSynchronize());
    for (int i = 1; i < 6; i++) launch_and_check(&all[i], s2);
    say_live("idle");
    /* The program orders two launches of one handle itself; between them others run. */
    hipEvent_t first;
    OK(hipEventCreate(&first));
    launch(&all[0], s1);
    OK(hipEventRecord(first, s1));
    OK(hipStreamWaitEvent(s2, first, 0));
    OK(hipMemsetAsync(all[0].block, 0, WORDS * 8, s2));
    launch(&all[1], s1);
    launch(&all[2], s1);
    launch(&all[0], s2);
    OK(hipDeviceSynchronize());
    holds(&all[0], 300);
    OK(hipEventDestroy(first));
    /* A stream that ends while its launch runs. */
    hipStream_t s;
    OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
    launch(&all[3], s);
    OK(hipStreamDestroy(s));
    for (int i = 4; i < 6; i++) launch_and_check(&all[i], s2);
    OK(hipDeviceSynchronize());
    holds(&all[3], 303);
    for (int i = 0; i < 6; i++) end(&all[i]);
}

/* What is done to one handle stays with it. */
static void changes(void) {
    unsigned on = 7;
    unsigned long long flags = 77;
    for (int i = 0; i < 8; i++) make(&all[i], 400 + i);
    hipMemsetParams p = {.dst = all[0].block, .elementSize = 4, .height = 1, .pitch = WORDS * 4, .value = 1, .width = WORDS};
    OK(hipGraphExecMemsetNodeSetParams(all[0].exec, all[0].set, &p));
    OK(hipGraphNodeSetEnabled(all[1].exec, all[1].set, 0));
    OK(hipGraphUpload(all[2].exec, s1));
    OK(hipGraphExecGetFlags(all[3].exec, &flags));
    EXPECT(flags, 0);
    EXPECT(hipGraphNodeSetEnabled(all[3].exec, all[2].set, 0) != 0, 1); /* another graph's node */
    all[0].number = 1;
    for (int round = 0; round < 3; round++) {
        for (int i = 2; i < 8; i++) launch_and_check(&all[i], s1);
        launch_and_check(&all[0], s2);
        OK(hipMemset(all[1].block, 0, WORDS * 8));
        OK(hipDeviceSynchronize());
        launch(&all[1], s2);
        OK(hipStreamSynchronize(s2));
        holds(&all[1], 0); /* only the copy ran */
        OK(hipGraphNodeGetEnabled(all[1].exec, all[1].set, &on));
        EXPECT(on, 0);
    }
    OK(hipGraphNodeGetEnabled(all[4].exec, all[4].set, &on));
    EXPECT(on, 1);
    say_live("changed");
    for (int i = 0; i < 8; i++) end(&all[i]);
}

/* The program updates its handles from other graphs, which it destroys. */
static void updates(void) {
    hipGraphNode_t node;
    for (int i = 0; i < 12; i++) make(&all[i], 500 + i);
    for (int round = 1; round < 4; round++) {
        for (int i = 0; i < 12; i++) {
            int result = -1;
            one next = {.graph = graph_of(all[i].block, 500 + 20 * round + i, &next.set)};
            OK(hipGraphExecUpdate(all[i].exec, next.graph, &node, &result));
            EXPECT(result, 0);
            did.exec_updates++;
            all[i].number = 500 + 20 * round + i;
            graph_gone(&next);
            launch_and_check(&all[i], s1);
        }
        for (int i = 0; i < 12; i++) launch_and_check(&all[i], s2);
    }
    /* One that is refused changes nothing. */
    hipGraph_t longer;
    hipGraphNode_t x;
    hipMemsetParams p = {.dst = all[0].block, .elementSize = 4, .height = 1, .pitch = 4, .value = 1, .width = 1};
    int result = 0;
    OK(hipGraphCreate(&longer, 0));
    did.graphs_created++;
    for (int i = 0; i < 3; i++) OK(hipGraphAddMemsetNode(&x, longer, NULL, 0, &p));
    EXPECT(hipGraphExecUpdate(all[0].exec, longer, &node, &result), hipErrorGraphExecUpdateFailure);
    EXPECT(hipGetLastError(), hipErrorGraphExecUpdateFailure);
    EXPECT(result != 0, 1);
    did.exec_updates_failed++;
    OK(hipGraphDestroy(longer));
    did.graphs_destroyed++;
    for (int i = 11; i >= 0; i--) launch_and_check(&all[i], s2);
    say_live("updated");
    for (int i = 0; i < 12; i++) end(&all[i]);
}

static void idle(void) {
    for (int i = 0; i < 8; i++) {
        make(&all[i], 600 + i);
        launch_and_check(&all[i], s1);
    }
    say_live("before");
    usleep(400000);
    for (int i = 8; i < 16; i++) {
        make(&all[i], 600 + i);
        launch_and_check(&all[i], s1);
    }
    say_live("after");
    for (int i = 0; i < 16; i++) launch_and_check(&all[i], s2);
    for (int i = 0; i < 16; i++) end(&all[i]);
}

/* Nothing of a device that was reset can be launched; what comes after works. */
static void reset(void) {
    for (int i = 0; i < 4; i++) make(&all[i], 700 + i);
    for (int i = 0; i < 4; i++) launch_and_check(&all[i], s1);
    for (int i = 0; i < 4; i++) launch(&all[i], i % 2 ? s1 : s2); /* a reset while they run */
    OK(hipDeviceReset());
    OK(hipStreamCreateWithFlags(&s1, hipStreamNonBlocking));
    for (int i = 0; i < 4; i++) EXPECT(hipGraphLaunch(all[i].exec, s1) != 0, 1);
    for (int i = 0; i < 4; i++) all[i].graph = NULL;
    for (int i = 4; i < 8; i++) make(&all[i], 700 + i);
    for (int round = 0; round < 2; round++)
        for (int i = 4; i < 8; i++) launch_and_check(&all[i], s1);
    say_live("after");
}

/* An exec belongs to the device that it was instantiated on, whatever is current when it comes back. */
static void devices(void) {
    int device = -1;
    hipStream_t there;
    OK(hipSetDevice(1));
    OK(hipStreamCreateWithFlags(&there, hipStreamNonBlocking));
    for (int i = 0; i < 6; i++) make(&all[i], 800 + i);
    OK(hipSetDevice(0));
    for (int i = 6; i < 12; i++) make(&all[i], 800 + i);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 12; i++) {
            launch_and_check(&all[i], i < 6 ? there : s1);
            OK(hipGetDevice(&device));
            EXPECT(device, 0);
        }
    say_live("devices");
    EXPECT(stat_of("graph_launches_elsewhere"), 0);
    for (int i = 0; i < 12; i++) end(&all[i]);
    OK(hipStreamDestroy(there));
}

/* Graphs with child graphs, whose inner nodes are set too. */
static void children(void) {
    unsigned *blocks;
    hipGraph_t inner, outer[6], embedded;
    hipGraphNode_t child[6], leaf, node;
    hipGraphExec_t e[6];
    size_t len = 1;
    OK(hipMalloc((void **)&blocks, 6 * 64));
    for (int i = 0; i < 6; i++) {
        hipMemsetParams p = {.dst = blocks + 16 * i, .elementSize = 4, .height = 1, .pitch = 4, .value = 1300 + i, .width = 1};
        OK(hipGraphCreate(&inner, 0));
        OK(hipGraphAddMemsetNode(&leaf, inner, NULL, 0, &p));
        OK(hipGraphCreate(&outer[i], 0));
        OK(hipGraphAddChildGraphNode(&child[i], outer[i], NULL, 0, inner));
        OK(hipGraphAddMemcpyNode1D(&node, outer[i], &child[i], 1, blocks + 16 * i + 1, blocks + 16 * i, 4, hipMemcpyDeviceToDevice));
        OK(hipGraphDestroy(inner));
        OK(hipGraphInstantiate(&e[i], outer[i], NULL, NULL, 0));
    }
    OK(hipGraphChildGraphNodeGetGraph(child[0], &embedded));
    OK(hipGraphGetNodes(embedded, &leaf, &len));
    hipMemsetParams p = {.dst = blocks, .elementSize = 4, .height = 1, .pitch = 4, .value = 99, .width = 1};
    OK(hipGraphExecMemsetNodeSetParams(e[0], leaf, &p));
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 6; i++) {
            unsigned got[2];
            OK(hipMemset(blocks + 16 * i, 0, 64));
            OK(hipDeviceSynchronize());
            OK(hipGraphLaunch(e[i], s1));
            OK(hipStreamSynchronize(s1));
            OK(hipMemcpy(got, blocks + 16 * i, sizeof got, hipMemcpyDeviceToHost));
            EXPECT(got[0], i ? 1300 + i : 99);
            EXPECT(got[1], i ? 1300 + i : 99);
        }
    say_live("children");
    for (int i = 0; i < 6; i++) {
        OK(hipGraphExecDestroy(e[i]));
        OK(hipGraphDestroy(outer[i]));
    }
    OK(hipFree(blocks));
}

static int dropped;
static void drop(void *unused) {
    (void)unused;
    dropped++;
}
/* What cannot be cloned and instantiated again is the library's own: one of each kind, kept. */
static void kinds(void) {
    hipGraph_t g[5];
    hipGraphNode_t x, y;
    hipGraphExec_t e[5];
    hipEvent_t event;
    void *object;
    unsigned *word;
    OK(hipMalloc((void **)&word, 64));
    OK(hipEventCreate(&event));
    for (int i = 0; i < 5; i++) {
        OK(hipGraphCreate(&g[i], 0));
        OK(hipGraphAddEmptyNode(&x, g[i], NULL, 0));
    }
    hipMemAllocNodeParams p = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 4096};
    OK(hipGraphAddMemAllocNode(&x, g[0], NULL, 0, &p));
    OK(hipGraphAddMemFreeNode(&y, g[0], &x, 1, p.dptr));
    OK(hipGraphAddEventRecordNode(&x, g[1], NULL, 0, event));
    struct { int op; uint64_t address, value; unsigned flags; uint64_t alias, rest; } write = {2, (uint64_t)word, 7, 0, 0, 0};
    struct { void *ctx; unsigned count; void *list; unsigned flags; } ops = {NULL, 1, &write, 0};
    OK(hipGraphAddBatchMemOpNode(&x, g[2], NULL, 0, &ops));
    OK(hipUserObjectCreate(&object, NULL, drop, 1, 1));
    OK(hipGraphRetainUserObject(g[3], object, 1, 1)); /* the graph's reference from now on */
    for (int i = 0; i < 5; i++) {
        OK(hipGraphInstantiate(&e[i], g[i], NULL, NULL, 0));
        for (int round = 0; round < 2; round++) OK(hipGraphLaunch(e[i], s1));
        OK(hipStreamSynchronize(s1));
    }
    OK(hipGraphDestroy(g[3]));
    EXPECT(dropped, 0);
    for (int i = 0; i < 12; i++) make(&all[i], 1400 + i);
    for (int i = 0; i < 12; i++) launch_and_check(&all[i], s1);
    EXPECT(dropped, 0); /* its exec holds it */
    if (getenv("KEEP")) return;
    for (int i = 0; i < 12; i++) end(&all[i]);
    for (int i = 0; i < 5; i++) OK(hipGraphExecDestroy(e[i]));
    usleep(50000);
    EXPECT(dropped, 1);
}

/* Default streams have one name on all devices. What the other device's holds up is not over. */
static void defaults(void) {
    static atomic_int go;
    OK(hipSetDevice(1));
    for (int i = 0; i < 4; i++) make(&all[i], 1200 + i);
    OK(hipLaunchHostFunc(NULL, until, &go));
    for (int i = 0; i < 4; i++) launch(&all[i], NULL);
    OK(hipSetDevice(0));
    for (int i = 4; i < 14; i++) make(&all[i], 1200 + i);
    for (int round = 0; round < 2; round++)
        for (int i = 4; i < 14; i++) {
            launch(&all[i], NULL);
            OK(hipStreamSynchronize(NULL));
        }
    atomic_store(&go, 1);
    OK(hipSetDevice(1));
    OK(hipDeviceSynchronize());
    for (int i = 0; i < 14; i++) holds(&all[i], 1200 + i);
    OK(hipSetDevice(0));
    for (int i = 4; i < 14; i++) launch_and_check(&all[i], NULL);
    say_live("defaults");
    for (int i = 0; i < 14; i++) end(&all[i]);
}

/* A child has its parent's handles and can do nothing with them. */
static void forks(void) {
    for (int i = 0; i < 4; i++) make(&all[i], 900 + i);
    for (int i = 0; i < 4; i++) launch_and_check(&all[i], s1);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        hipGraphNode_t node;
        int result;
        int bad = hipGraphLaunch(all[0].exec, s1) == 0;
        bad |= (hipGraphNodeSetEnabled(all[0].exec, all[0].set, 0) == 0) << 1;
        bad |= (hipGraphExecUpdate(all[1].exec, all[1].graph, &node, &result) == 0) << 2;
        bad |= (hipGraphExecDestroy(all[2].exec) == 0) << 3;
        _exit(40 + bad);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), 40);
    for (int i = 0; i < 4; i++) launch_and_check(&all[i], s2);
    for (int i = 0; i < 4; i++) end(&all[i]);
}

/* Threads with handles of their own, on their own default streams. */
static void *own(void *at) {
    one *mine = at;
    for (int round = 0; round < 12; round++)
        for (int i = 0; i < 4; i++) {
            OK(hipMemsetAsync_spt(mine[i].block, 0, WORDS * 8, NULL));
            OK(hipGraphLaunch_spt(mine[i].exec, NULL));
            did.graph_launches++;
            OK(hipStreamSynchronize_spt(NULL));
            holds(&mine[i], mine[i].number);
        }
    return NULL;
}
static void threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 16; i++) make(&all[i], 1000 + i);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&t[i], NULL, own, &all[4 * i])) exit(2);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 16; i++) end(&all[i]);
}

/* HIP calls its own hipGraphInstantiateWithFlags by name; this one comes first and calls back in. */
static one *inside;
static int calls;
static int (*with_flags)(hipGraphExec_t *, hipGraph_t, unsigned long long);
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *e, hipGraph_t g, unsigned long long flags) {
    if (!with_flags) {
        void *hip = dlopen("libamdhip64.so.6", RTLD_LAZY | RTLD_NOLOAD);
        with_flags = (int (*)(hipGraphExec_t *, hipGraph_t, unsigned long long))dlvsym(hip, "hipGraphInstantiateWithFlags", "hip_4.5");
    }
    one *o = inside;
    inside = NULL;
    if (o) launch(o, s1);
    calls++;
    return with_flags(e, g, flags);
}
static void nested(void) {
    hipEvent_t event;
    hipGraphNode_t node, error;
    hipGraphExec_t e;
    OK(hipEventCreate(&event));
    for (int i = 0; i < 4; i++) make(&all[i], 1100 + i);
    /* A graph with a node for an event is the library's own. */
    one own = {.graph = graph_of(all[0].block, 1100, &own.set)};
    OK(hipGraphAddEventRecordNode(&node, own.graph, &own.set, 1, event));
    inside = &all[1];
    OK(hipGraphInstantiate(&e, own.graph, &error, NULL, 0));
    EXPECT(inside == NULL, 1);
    did.execs_created++;
    OK(hipDeviceSynchronize());
    holds(&all[1], 1101);
    for (int i = 0; i < 4; i++) launch_and_check(&all[i], s1);
    OK(hipGraphExecDestroy(e));
    did.execs_destroyed++;
    graph_gone(&own);
    for (int i = 0; i < 4; i++) end(&all[i]);
    OK(hipEventDestroy(event));
    EXPECT(calls >= 1, 1);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"rounds", rounds}, {"busy", busy}, {"lanes", lanes}, {"changes", changes}, {"updates", updates}, {"idle", idle},
        {"reset", reset}, {"devices", devices}, {"children", children}, {"kinds", kinds}, {"defaults", defaults}, {"forks", forks}, {"threads", threads}, {"nested", nested},
    };
    const char *mode = argc > 1 ? argv[1] : "";
    OK(hipStreamCreateWithFlags(&s1, hipStreamNonBlocking));
    OK(hipStreamCreateWithFlags(&s2, hipStreamNonBlocking));
    stat_of = simulator();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(mode, modes[i].name)) {
            modes[i].run();
            return report("execs");
        }
    return 2;
}
