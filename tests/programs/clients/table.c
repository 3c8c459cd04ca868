/* Calls the driver through a table of functions (libtable.c) that is loaded late, or
 * was loaded with the program: what it answers, how often the table was called, and
 * whose functions the table and the default scope have. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *file_of(void *f) {
    Dl_info at;
    return f && dladdr(f, &at) ? strrchr(at.dli_fname, '/') + 1 : "-";
}

int main(void) {
    void *table = dlopen("libtable.so", RTLD_NOW | RTLD_GLOBAL);
    if (!table || !dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) return 2;
    int (*init)(unsigned) = dlsym(table, "cuInit"), *calls = dlsym(table, "table_calls");
    int (*edges)(void *, void *, void *, size_t *) = dlsym(table, "cuGraphGetEdges");
    void *(*finds)(const char *) = dlsym(table, "table_finds");
    size_t n = 0;
    int first = init(0), second = edges(NULL, NULL, NULL, &n);
    printf("%d %d calls %d\n", first, second, *calls);
    int (*found)(unsigned) = dlsym(RTLD_DEFAULT, "cuInit");
    first = found(0);
    printf("%d calls %d\n", first, *calls);
    printf("%s %s %s\n", file_of(finds("cuInit")), file_of(finds("cuGraphGetEdges")), file_of((void *)found));
    return 0;
}
