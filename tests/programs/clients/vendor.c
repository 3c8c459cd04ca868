/* The same lookup by this program and by a library of the vendor's, in the driver's
 * handle and in the default scope; prints which file each found. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *file_of(void *f) {
    Dl_info at;
    return f && dladdr(f, &at) ? strrchr(at.dli_fname, '/') + 1 : "-";
}

int main(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *vendor = dlopen("libnvidia-ask.so", RTLD_NOW);
    void *(*ask)(void *, const char *) = vendor ? dlsym(vendor, "ask") : NULL;
    if (!lib || !ask) return 2;
    printf("%s %s %s %s\n", file_of(dlsym(lib, "cuMemAlloc_v2")), file_of(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")),
           file_of(ask(lib, "cuMemAlloc_v2")), file_of(ask(RTLD_DEFAULT, "cuMemAlloc_v2")));
    return 0;
}
