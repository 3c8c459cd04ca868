/* Makes ever more of things that are no memory, one each 10 ms, until stdin ends: modules, libraries, streams, events or
 * contexts. Each is made in a function of its own, beside one of each kind that is made and destroyed each time.
 * Arguments: what grows (none: nothing does), how many of it are destroyed at the end (0: none, 1: all). */
#include "graph.h"
#include <poll.h>

CUresult cuModuleUnload(CUmodule);
CUresult cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned), cuLibraryUnload(void *);
CUresult cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, int), cuCtxDestroy_v2(CUcontext);
#define NOINLINE __attribute__((noinline))

NOINLINE static void *keep_module(void) { CUmodule m; OK(cuModuleLoadData(&m, image)); return m; }
NOINLINE static void *keep_library(void) { void *l; OK(cuLibraryLoadData(&l, image, NULL, NULL, 0, NULL, NULL, 0)); return l; }
NOINLINE static void *keep_stream(void) { Stream s; OK(cuStreamCreate(&s, 1)); return s; }
NOINLINE static void *keep_event(void) { void *e; OK(cuEventCreate(&e, 2)); return e; }
NOINLINE static void *keep_context(void) { CUcontext c; OK(cuCtxCreate_v2(&c, 0, 0)); OK(cuCtxSetCurrent(context)); return c; }

static CUresult end_stream(void *s) { return cuStreamDestroy_v2(s); }
static CUresult end_module(void *m) { return cuModuleUnload(m); }
static CUresult end_context(void *c) { return cuCtxDestroy_v2(c); }

static const struct {
    const char *name;
    void *(*keep)(void);
    CUresult (*end)(void *);
} kinds[] = {
    {"modules", keep_module, end_module},       {"libraries", keep_library, cuLibraryUnload},
    {"streams", keep_stream, end_stream},       {"events", keep_event, cuEventDestroy_v2},
    {"contexts", keep_context, end_context},
};
enum { SORTS = sizeof kinds / sizeof *kinds, MOST = 1 << 14 };

NOINLINE static void *come_and_go(int kind) {
    void *made = kinds[kind].keep();
    OK(kinds[kind].end(made));
    return made;
}

int main(int argc, char **argv) {
    static void *kept[MOST];
    int number = 0, grows = -1;
    for (int kind = 0; kind < SORTS; kind++)
        if (argc > 1 && !strcmp(argv[1], kinds[kind].name)) grows = kind;
    begin();
    puts("serving");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 10) == 0 && number < MOST) {
        for (int kind = 0; kind < SORTS; kind++) come_and_go(kind);
        if (grows >= 0) kept[number++] = kinds[grows].keep();
    }
    if (argc > 2 && atoi(argv[2]))
        while (number > 0) OK(kinds[grows].end(kept[--number]));
    printf("{\"kept\":%d}\n", number);
    return 0;
}
