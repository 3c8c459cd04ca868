/* Handles of more than a plain graph on one device: after a reset, on several devices, of child graphs, of
 * what cannot be cloned, in forked children, on threads, inside calls of the library. */
#define _GNU_SOURCE
#include "execs.h"

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

/* Memory is short at a launch on one device, and given back on both. The program sees another device before and
 * after. */
static void shortage(void) {
    void *idle;
    int device = -1;
    hipStream_t there;
    OK(hipSetDevice(1));
    OK(hipStreamCreateWithFlags(&there, hipStreamNonBlocking));
    make(&all[0], 850);
    for (int on = 1; on >= 0; on--) {
        OK(hipSetDevice(on));
        OK(hipMalloc(&idle, 4 << 20));
        OK(hipFree(idle));
    }
    for (int round = 0; round < 2; round++) {
        launch(&all[0], there);
        OK(hipGetDevice(&device));
        EXPECT(device, 0);
        OK(hipStreamSynchronize(there));
        holds(&all[0], 850);
    }
    end(&all[0]);
    OK(hipStreamDestroy(there));
}

/* Kernels by turns, in graphs that are alike to everything that HIP tells of them: captured by plain launches, or every
 * other one by a launch whose blocks work together, between events, or with attributes. */
static const char code[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry plain()\n{\n ret;\n}\n";
static void capture_one(const char *how, hipFunction_t f, hipEvent_t event) {
    const dim3 one = {1, 1, 1};
    struct { dim3 grid, block; size_t shared; hipStream_t s; void *list; unsigned n; } c = {one, one, 0, s1, NULL, 0};
    if (!strcmp(how, "together"))
        OK(hipModuleLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, s1, NULL));
    else if (!strcmp(how, "together, by a function"))
        OK(hipLaunchCooperativeKernel(f, one, one, NULL, 0, s1));
    else if (!strcmp(how, "events"))
        OK(hipExtModuleLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s1, NULL, NULL, NULL, event, 0));
    else if (!strcmp(how, "events, by a function"))
        OK(hipExtLaunchKernel(f, one, one, NULL, 0, s1, event, NULL, 0));
    else if (!strcmp(how, "attributes"))
        OK(hipLaunchKernelExC(&c, f, NULL));
    else /* as AMD's libraries launch whatever they launch */
        OK(hipExtModuleLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s1, NULL, NULL, NULL, NULL, 0));
}
static void kernels(void) {
    hipModule_t module;
    hipFunction_t f;
    hipGraph_t g;
    hipGraphExec_t e[6];
    hipEvent_t event;
    void *first; /* recording begins with memory */
    OK(hipMalloc(&first, 64));
    OK(hipFree(first));
    OK(hipModuleLoadData(&module, code));
    OK(hipModuleGetFunction(&f, module, "plain"));
    OK(hipEventCreate(&event));
    for (int i = 0; i < 6; i++) {
        OK(hipStreamBeginCapture(s1, hipStreamCaptureModeRelaxed));
        capture_one(i % 2 ? getenv("HOW") : "plain", f, event);
        OK(hipStreamEndCapture(s1, &g));
        OK(hipGraphInstantiate(&e[i], g, NULL, NULL, 0));
        OK(hipGraphDestroy(g));
    }
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < 6; i++) {
            OK(hipGraphLaunch(e[i], s1));
            OK(hipStreamSynchronize(s1));
        }
    printf("{\"kernels\":%lu,\"cooperative\":%lu}\n", (unsigned long)stat_of("kernels"), (unsigned long)stat_of("cooperative_kernels"));
    for (int i = 0; i < 6; i++) OK(hipGraphExecDestroy(e[i]));
    OK(hipEventDestroy(event));
    OK(hipModuleUnload(module));
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
    /* The library calls back on a thread of its own. */
    for (int i = 0; i < 400 && dropped != 1; i++) usleep(5000);
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
    static const mode modes[] = {
        {"reset", reset}, {"devices", devices}, {"shortage", shortage}, {"children", children}, {"kinds", kinds}, {"defaults", defaults}, {"forks", forks}, {"threads", threads}, {"nested", nested}, {"kernels", kernels},
    };
    return run("handles", argc, argv, modes, sizeof modes / sizeof *modes);
}
