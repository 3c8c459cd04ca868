/* Reaches the driver behind the preload's back first (a plugin loaded RTLD_DEEPBIND,
 * given as argument), then through dlsym as everybody does. In between it may take a
 * limit on itself: `fsize BYTES` of any file, `as BYTES` more of address space. */
#define _GNU_SOURCE
#include "count.h"
#include "cuda_min.h"
#include "plugin.h"
#include <dlfcn.h>
#include <string.h>
#include <sys/resource.h>

static void limit(const char *what, unsigned long bytes) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu", &pages) != 1) exit(2);
    fclose(f);
    bool files = !strcmp(what, "fsize");
    struct rlimit limit = {.rlim_cur = files ? bytes : pages * 4096 + bytes, .rlim_max = RLIM_INFINITY};
    OK(setrlimit(files ? RLIMIT_FSIZE : RLIMIT_AS, &limit));
}

int main(int argc, char **argv) {
    void *deep = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
    struct plugin_work (*work)(size_t, uint32_t) = deep ? dlsym(deep, "plugin_work") : NULL;
    if (!work) return 2;
    struct plugin_work w = work(5000, 7);
    EXPECT(w.failures, 0);
    if (argc > 3) limit(argv[2], strtoul(argv[3], NULL, 10));
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*alloc)(CUdeviceptr *, size_t) = dlsym(lib, "cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = dlsym(lib, "cuMemFree_v2");
    CUdeviceptr p;
    OK(alloc(&p, 3000));
    counted_alloc(DEVICE, 3000);
    OK(release(p));
    counted_free(DEVICE, 3000);
    return report("partial");
}
