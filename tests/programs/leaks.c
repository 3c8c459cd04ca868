/* A hundred call sites, of each of which it is known how what it holds grows: steadily,
 * like a cache that levels off, up and down, or once. What is planted follows from a
 * number. After each step the program marks itself by its control socket, if it has
 * one: one sample a step, however fast or slow the machine is.
 *
 *   leaks [SEED] [STEPS] [ASKED]
 *
 * The first line says what is planted; the program ends with all of it live. If ASKED is
 * given, sites hold things of several kinds, and the program stops so many times for
 * somebody to look: it says "look" and waits for a line. */
#include "mark.h"
#include "rt.h"
#include <dlfcn.h>
#include <math.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))
enum { SITES = 100, MOST = 1024 };
enum truth { STEADY, LEVELLED, HIGH, ONCE };
static const char *const words[] = {"grows-steadily", "levelled-off", "high-water", "one-off"};

enum thing { MEMORY, PINNED, PHYSICAL, CODE, STREAM, EVENT, EXEC, THINGS };
/* Before so many events at a time none is recorded. */
enum { FIRST_EVENTS = 32 };
static const char *const kinds[] = {"site", "site", "site", "code", "streams", "events", "graphs"};
typedef struct { int type, handles; struct { int type, id; } location; void *meta; unsigned char flags[8]; } Physical;
static int (*create_physical)(uint64_t *, size_t, const Physical *, unsigned long long);
static int (*release_physical)(uint64_t);
static cudaStream_t captured;
static void *scratch;

/* Makes one thing. In each call site it is code of its own, so that the site is the caller. */
static inline __attribute__((always_inline)) void *make(enum thing thing, size_t bytes) {
    void *made = NULL;
    uint64_t handle;
    cudaGraph_t graph;
    Physical of = {.type = 1, .location = {1, 0}};
    switch (thing) {
    case PINNED: OK(cudaMallocHost(&made, bytes)); break;
    case PHYSICAL: OK(create_physical(&handle, bytes, &of, 0)); made = (void *)handle; break;
    case CODE: OK(cudaLibraryLoadData((cudaLibrary_t *)&made, gpumem_ptx, NULL, NULL, 0, NULL, NULL, 0)); break;
    case STREAM: OK(cudaStreamCreateWithFlags((cudaStream_t *)&made, 1)); break;
    case EVENT: OK(cudaEventCreateWithFlags((cudaEvent_t *)&made, 2)); break;
    case EXEC:
        OK(cudaStreamBeginCapture(captured, 2));
        OK(cudaMemsetAsync(scratch, 1, 64, captured));
        OK(cudaStreamEndCapture(captured, &graph));
        OK(cudaGraphInstantiate((cudaGraphExec_t *)&made, graph, 0));
        OK(cudaGraphDestroy(graph));
        break;
    default: OK(cudaMalloc(&made, bytes));
    }
    return made;
}

static void end(enum thing thing, void *made) {
    switch (thing) {
    case PINNED: OK(cudaFreeHost(made)); break;
    case PHYSICAL: OK(release_physical((uint64_t)made)); break;
    case CODE: OK(cudaLibraryUnload(made)); break;
    case STREAM: OK(cudaStreamDestroy(made)); break;
    case EVENT: OK(cudaEventDestroy(made)); break;
    case EXEC: OK(cudaGraphExecDestroy(made)); break;
    default: OK(cudaFree(made));
    }
}

/* Each call site is a function of its own. */
#define SITE(n) NOINLINE static void *site_##n(enum thing thing, size_t bytes) { void *p = make(thing, bytes); __asm__ volatile(""); return p; }
#define TEN(n) SITE(n##0) SITE(n##1) SITE(n##2) SITE(n##3) SITE(n##4) SITE(n##5) SITE(n##6) SITE(n##7) SITE(n##8) SITE(n##9)
TEN(0) TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9)
#define NAMES(n) site_##n##0, site_##n##1, site_##n##2, site_##n##3, site_##n##4, site_##n##5, site_##n##6, site_##n##7, site_##n##8, site_##n##9
static void *(*const site[SITES])(enum thing, size_t) = {NAMES(0), NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6), NAMES(7), NAMES(8), NAMES(9)};

static uint64_t seed;
static uint64_t below(uint64_t end) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (seed >> 11) % (end ? end : 1);
}
static double between(double low, double high) { return low + (high - low) * (double)below(1 << 30) / (1 << 30); }

static struct plan {
    enum truth truth;
    enum thing thing;
    int form, base, most, churn, begin;
    double rate, slope, period;
    size_t size;
    /* What it holds, oldest first. */
    void *held[MOST];
    int live;
} plans[SITES];

static void plan(struct plan *p, int steps, int asked) {
    p->truth = (enum truth)below(4), p->form = (int)below(3);
    p->size = (size_t)4096 << below(5);
    p->base = below(3) ? 0 : 1 + (int)below(20);
    p->churn = below(5) < 2 ? 1 + (int)below(4) : 0;
    p->most = 8 + (int)below(60);
    p->rate = fmax(below(2) ? 0.1 : 1.0, 12.0 / steps);
    p->slope = steps * between(0.03, 0.18);
    p->begin = (int)(steps * between(0, 0.4));
    p->period = fmax(steps * between(0.03, 0.12), 3);
    if (!asked) return;
    p->thing = (enum thing)below(THINGS);
    p->rate = fmin(p->rate, 200.0 / steps);
    /* The others have no size that could grow; physical memory has pages. */
    if (p->thing > PINNED) p->form = p->form % 2, p->size = 2 << 20;
}

/* How many things a site holds after a step. */
static int wanted(const struct plan *p, int step, int steps) {
    int churn = (int)below((uint64_t)p->churn + 1);
    switch (p->truth) {
    case STEADY: return p->base + (int)(p->rate * step) + churn;
    case LEVELLED:
        if (p->form == 0) return p->base + (int)(p->most * (1 - exp(-step / p->slope))) + churn;
        return p->base + (int)(p->most * fmin(step / (steps * 0.5), 1)) + churn;
    case HIGH:
        if (p->form == 0) return p->base + (int)below((uint64_t)p->base + p->most);
        return p->base + (int)((p->base + p->most) * fmod(step, p->period) / p->period);
    default: return step < p->begin ? 0 : 1 + p->base;
    }
}

static void drop(struct plan *p, int at) {
    end(p->thing, p->held[at]);
    memmove(p->held + at, p->held + at + 1, (size_t)(--p->live - at) * sizeof *p->held);
}

static void act(int number, int step, int steps) {
    struct plan *p = &plans[number];
    if (p->truth == HIGH && p->form == 2) {
        /* One buffer, given up for a larger one where a request needs that. */
        size_t request = (1 + below(1 + below(1 + below(200)))) * 4096;
        if (p->live && request <= p->size) return;
        if (p->live) drop(p, 0);
        p->size = request;
        p->held[p->live++] = site[number](p->thing, p->size);
        return;
    }
    int want = wanted(p, step, steps);
    if (want > MOST) want = MOST;
    /* A full cache throws out its oldest. */
    if (p->truth == LEVELLED && p->form == 1 && p->live && p->live == want) drop(p, 0);
    while (p->live > want) drop(p, p->live - 1);
    while (p->live < want) p->held[p->live++] = site[number](p->thing, p->size);
}

int main(int argc, char **argv) {
    uint64_t number = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int steps = argc > 2 ? atoi(argv[2]) : 200;
    seed = (number + 1) * 0x9e3779b97f4a7c15;
    size_t outside = number % 2 ? 1 << 20 : 0;
    int asked = argc > 3 ? atoi(argv[3]) : 0, looks = 0;
    if (asked) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *event;
        *(void **)&create_physical = dlsym(driver, "cuMemCreate");
        *(void **)&release_physical = dlsym(driver, "cuMemRelease");
        OK(cudaMalloc(&scratch, 64));
        OK(cudaStreamCreateWithFlags(&captured, 1));
        for (int i = 0; i < FIRST_EVENTS; i++) OK(cudaEventCreateWithFlags((cudaEvent_t *)&event, 2));
    }
    printf("{\"heap\": %s, \"sites\": [", outside ? "true" : "false");
    for (int i = 0; i < SITES; i++) {
        plan(&plans[i], steps, asked);
        printf("%s\"%s\"", i ? ", " : "", words[plans[i].truth]);
    }
    printf("], \"kinds\": [");
    for (int i = 0; i < SITES; i++) printf("%s\"%s\"", i ? ", " : "", kinds[plans[i].thing]);
    printf("]}\n");
    fflush(stdout);
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < SITES; i++) act(i, step, steps);
        if (outside) memset(malloc(outside), 1, outside);
        mark();
        if ((step + 1) * asked / steps > looks) {
            looks++;
            puts("look");
            fflush(stdout);
            if (getchar() == EOF) return 1;
        }
    }
    _exit(0);
}
