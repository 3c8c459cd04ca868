/* A server that does, by lines on stdin, what alerts are for: `grow` by a block for each request, `strand` older
 * buffers, hold `near` its limit, ask for memory `over` it, `thrash` its graph cache; `rest` frees it all, `die` aborts. */
#include "graph.h"
#include <poll.h>

enum { MIB = 1 << 20, KEPT = 64 << 10, MOST = 1 << 16, STEPS = 24, GRAPHS = 12 };
#define NOINLINE __attribute__((noinline))

static CUdeviceptr held[MOST];
static int live;

NOINLINE static CUdeviceptr block(size_t bytes) {
    CUdeviceptr p = 0;
    OK(cuMemAlloc_v2(&p, bytes));
    return p;
}
NOINLINE static void hold(CUdeviceptr p) {
    if (live < MOST) held[live++] = p;
}
NOINLINE static CUdeviceptr remember(void) { CUdeviceptr p = block(KEPT); return p; }
NOINLINE static CUdeviceptr creep(size_t bytes) { CUdeviceptr p = block(bytes); return p; }
NOINLINE static CUdeviceptr fill_up(void) { CUdeviceptr p = block(4 * MIB); return p; }

/* A sixteenth more in each step, in the middle of a computation, and none is given back. */
static void strand(Stream s, CUdeviceptr scratch) {
    size_t bytes = 4 * MIB;
    for (int i = 0; i < STEPS; i++, bytes = (bytes + bytes / 16 + 255) / 256 * 256) {
        fill(s, scratch, 1);
        CUdeviceptr p = creep(bytes);
        hold(p);
        fill(s, p, (unsigned)i);
        wait_for(s);
    }
}

static void near_limit(size_t most) {
    for (size_t total = 0; total + 4 * MIB <= most; total += 4 * MIB) hold(fill_up());
}

static Exec graphs[GRAPHS];
static void thrash(Stream s, CUdeviceptr p) {
    for (int round = 0; round < 64; round++)
        for (int i = 0; i < GRAPHS; i++) {
            if (!graphs[i]) {
                capture_begin(s);
                for (int n = 0; n <= i; n++) fill(s, p, (unsigned)i);
                Graph g = capture_end(s);
                OK(cuGraphInstantiateWithFlags(&graphs[i], g, 0));
                graph_end(g);
            }
            launch(graphs[i], s);
            wait_for(s);
        }
}

static void rest(void) {
    while (live) OK(cuMemFree_v2(held[--live]));
}

int main(void) {
    begin();
    Stream s = stream_new();
    CUdeviceptr scratch = block(MIB);
    char text[256];
    const char *mood = "rest";
    printf("serving\n");
    fflush(stdout);
    for (size_t request = 0;; request++) {
        /* Something is asked for in each mood: who asks sees how full the device is. */
        CUdeviceptr p = block(MIB + request % 64 * KEPT);
        OK(cuMemFree_v2(p));
        if (!strcmp(mood, "grow")) hold(remember());
        if (!strcmp(mood, "thrash")) thrash(s, scratch);
        struct pollfd in = {0, POLLIN, 0};
        if (poll(&in, 1, 5) <= 0) continue;
        ssize_t n = read(0, text, sizeof text - 1);
        if (n <= 0) break;
        text[n] = 0;
        /* Several lines may have come at once. The last one is how it goes on. */
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
            if (!strcmp(line, "rest")) rest();
            if (!strcmp(line, "strand")) strand(s, scratch);
            if (!strcmp(line, "near")) near_limit((size_t)480 * MIB);
            if (!strcmp(line, "over")) {
                EXPECT(cuMemAlloc_v2(&p, (size_t)4096 * MIB), 2);
            }
            if (!strcmp(line, "die")) abort();
            mood = line;
        }
    }
    rest();
    return 0;
}
