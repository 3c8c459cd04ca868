/* Functions with the driver's names that look the driver's up when they are first
 * called, as frameworks link instead of libcuda. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int table_calls;

void *table_finds(const char *name) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    /* Not a tail call: the return address must lie here. */
    void *volatile found = lib ? dlsym(lib, name) : NULL;
    return found;
}

int cuInit(unsigned flags) {
    int (*real)(unsigned) = (int (*)(unsigned))table_finds("cuInit");
    return ++table_calls > 100 || !real ? 999 : real(flags);
}

int cuGraphGetEdges(void *graph, void *from, void *to, size_t *len) {
    int (*real)(void *, void *, void *, size_t *) = (int (*)(void *, void *, void *, size_t *))table_finds("cuGraphGetEdges");
    return ++table_calls > 100 || !real ? 999 : real(graph, from, to, len);
}
