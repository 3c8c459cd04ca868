/* Many executable graphs while there are fewer real ones: launched, running, changed, updated, idle. */
#define _GNU_SOURCE
#include "execs.h"

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

static void update(one *o, unsigned number) {
    hipGraphNode_t node;
    int result = -1;
    one next = {.graph = graph_of(o->block, number, &next.set)};
    OK(hipGraphExecUpdate(o->exec, next.graph, &node, &result));
    EXPECT(result, 0);
    did.exec_updates++;
    o->number = number;
    graph_gone(&next);
}

/* The program updates its handles from other graphs, which it destroys. */
static void updates(void) {
    hipGraphNode_t node;
    for (int i = 0; i < 12; i++) make(&all[i], 500 + i);
    for (int round = 1; round < 4; round++) {
        for (int i = 0; i < 12; i++) {
            update(&all[i], 500 + 20 * round + i);
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

/* What updates write and the runtime keeps until an exec ends: of handles that the program updates without end, and of
 * handles that are launched by turns without end. */
static void wears(void) {
    uint64_t most = 0;
    for (int i = 0; i < 4; i++) make(&all[i], 900 + i);
    for (int round = 1; round <= 120; round++)
        for (int i = 0; i < 4; i++) {
            update(&all[i], 900 + 4 * round + i);
            launch_and_check(&all[i], round % 2 ? s1 : s2);
            if (stat_of("graph_arguments") > most) most = stat_of("graph_arguments");
        }
    printf("{\"most\":%lu}\n", (unsigned long)most);
    for (int i = 0; i < 4; i++) end(&all[i]);
}
static void turns(void) {
    uint64_t most = 0;
    for (int i = 0; i < 6; i++) make(&all[i], 1500 + i);
    for (int round = 0; round < 60; round++)
        for (int i = 0; i < 6; i++) {
            launch_and_check(&all[i], s1);
            if (stat_of("graph_arguments") > most) most = stat_of("graph_arguments");
        }
    printf("{\"most\":%lu}\n", (unsigned long)most);
    for (int i = 0; i < 6; i++) end(&all[i]);
}
/* A worn exec that runs is left alone: the update does not wait. */
static void worn_and_busy(void) {
    static atomic_int go;
    make(&all[0], 1600);
    for (int i = 1; i <= 32; i++) update(&all[0], 1600 + i);
    OK(hipLaunchHostFunc(s1, until, &go));
    launch(&all[0], s1);
    update(&all[0], 1700);
    atomic_store(&go, 1);
    OK(hipDeviceSynchronize());
    launch_and_check(&all[0], s2);
    update(&all[0], 1701);
    launch_and_check(&all[0], s1);
    end(&all[0]);
}

/* Copies of a row and of a volume by turns: alike in kinds and edges. */
static void copies(void) {
    for (int i = 0; i < 6; i++) {
        one *o = &all[i];
        hipGraphNode_t copy;
        make(o, 1800 + i);
        if (i % 2) continue;
        OK(hipGraphExecDestroy(o->exec));
        did.execs_destroyed++;
        graph_gone(o);
        hipMemsetParams p = {.dst = o->block, .elementSize = 4, .height = 1, .pitch = WORDS * 4, .value = o->number, .width = WORDS};
        hipMemcpy3DParms c = {.srcPtr = {o->block, WORDS * 4, WORDS * 4, 1}, .dstPtr = {o->block + WORDS, WORDS * 4, WORDS * 4, 1},
                              .extent = {WORDS * 4, 1, 1}, .kind = hipMemcpyDeviceToDevice};
        OK(hipGraphCreate(&o->graph, 0));
        did.graphs_created++;
        OK(hipGraphAddMemsetNode(&o->set, o->graph, NULL, 0, &p));
        OK(hipGraphAddMemcpyNode(&copy, o->graph, &o->set, 1, &c));
        OK(hipGraphInstantiate(&o->exec, o->graph, NULL, NULL, 0));
        did.execs_created++;
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 6; i++) launch_and_check(&all[i], s1);
    for (int i = 0; i < 6; i++) end(&all[i]);
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

/* Anything in any order, by the numbers of SEED; what each handle's block must hold is known throughout. */
static unsigned dice(unsigned n) {
    static uint64_t x;
    if (!x) x = strtoull(getenv("SEED"), NULL, 10) * 2654435761u + 88172645463325252ull;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (x >> 20) % n;
}
static struct { unsigned last; bool runs; } is[MAX];
static void settle(void) {
    OK(hipDeviceSynchronize());
    for (int i = 0; i < 24; i++) {
        if (all[i].exec && is[i].runs) holds(&all[i], is[i].last);
        is[i].runs = false;
    }
}
static void launch_any(int i) {
    hipStream_t streams[] = {s1, s2, NULL};
    /* Launches on several streams have no order: only equal ones may meet. */
    if (is[i].runs && is[i].last != all[i].number) settle();
    launch(&all[i], streams[dice(3)]);
    is[i].runs = true, is[i].last = all[i].number;
}
static void any(void) {
    hipGraphNode_t node;
    int result;
    unsigned number = 5000;
    for (int step = 0; step < 600; step++) {
        int i = dice(24);
        one *o = &all[i];
        if (!o->exec) {
            make(o, number++);
            is[i].runs = false;
            continue;
        }
        switch (dice(16)) {
        case 0:
            settle();
            end(o);
            memset(o, 0, sizeof *o);
            break;
        case 1: {
            one next = {.graph = graph_of(o->block, number, &next.set)};
            if (is[i].runs) settle();
            OK(hipGraphExecUpdate(o->exec, next.graph, &node, &result));
            did.exec_updates++;
            o->number = number++;
            graph_gone(&next);
            break;
        }
        case 2: {
            hipMemsetParams p = {.dst = o->block, .elementSize = 4, .height = 1, .pitch = WORDS * 4, .value = number, .width = WORDS};
            if (dice(3) || is[i].runs || getenv("FILLS")) break; /* seldom: its exec stays for good */
            OK(hipGraphExecMemsetNodeSetParams(o->exec, o->set, &p));
            o->number = number++;
            break;
        }
        case 3:
            settle();
            break;
        case 4: { /* a capture that nothing may disturb, with launches meanwhile */
            hipGraph_t g;
            settle();
            OK(hipStreamBeginCapture(s2, hipStreamCaptureModeRelaxed));
            OK(hipMemsetAsync(o->block, 0, 4, s2));
            for (int n = dice(4); n >= 0; n--) {
                int other = dice(24);
                if (all[other].exec) launch(&all[other], s1), is[other].runs = true, is[other].last = all[other].number;
            }
            OK(hipStreamEndCapture(s2, &g));
            OK(hipGraphDestroy(g));
            did.captures++;
            did.graphs_created++;
            did.graphs_destroyed++;
            break;
        }
        case 5: {
            hipStream_t s;
            if (is[i].runs) settle();
            OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
            launch(o, s);
            is[i].runs = true, is[i].last = o->number;
            OK(hipStreamDestroy(s));
            break;
        }
        default:
            launch_any(i);
        }
    }
    settle();
    for (int i = 0; i < 24; i++)
        if (all[i].exec) end(&all[i]);
    say_live("end");
}

int main(int argc, char **argv) {
    static const mode modes[] = {
        {"rounds", rounds}, {"busy", busy}, {"lanes", lanes}, {"changes", changes}, {"updates", updates}, {"idle", idle}, {"any", any},
        {"wears", wears}, {"turns", turns}, {"worn and busy", worn_and_busy}, {"copies", copies},
    };
    return run("execs", argc, argv, modes, sizeof modes / sizeof *modes);
}
