/* Opens the HIP runtime for itself alone, as Python's bindings and ggml's backends
 * do, looks each name on stdin up in every way, and prints whose function it got:
 *   h dlsym in the library, v dlvsym of hip_4.2, d RTLD_DEFAULT, p hipGetProcAddress.
 * Then allocates through what each way gave for hipMalloc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*malloc_fn)(void **, size_t);
typedef int (*free_fn)(void *);

static const char *owner(void *f) {
    Dl_info at;
    if (!f) return "null";
    if (!dladdr(f, &at)) return "?";
    const char *slash = strrchr(at.dli_fname, '/');
    return slash ? slash + 1 : at.dli_fname;
}

int main(void) {
    void *lib = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return 2;
    int (*get)(const char *, void **, int, unsigned long, int *) = dlsym(lib, "hipGetProcAddress");
    char name[128];
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        void *p = NULL;
        int status = -1, rc = get(name, &p, 600, 0, &status);
        printf("%s: %s %s %s %s %d %d\n", name, owner(dlsym(lib, name)), owner(dlvsym(lib, name, "hip_4.2")),
               owner(dlsym(RTLD_DEFAULT, name)), rc ? "-" : owner(p), rc, status);
    }
    void *by_proc = NULL, *p, *ways[3] = {dlsym(lib, "hipMalloc"), dlvsym(lib, "hipMalloc", "hip_4.2"), NULL};
    free_fn give = (free_fn)dlsym(lib, "hipFree");
    if (get("hipMalloc", &by_proc, 600, 0, NULL)) return 3;
    ways[2] = by_proc;
    for (int i = 0; i < 3; i++) {
        if (((malloc_fn)ways[i])(&p, 1000 + (size_t)i)) return 4;
        if (give(p)) return 5;
    }
    return 0;
}
