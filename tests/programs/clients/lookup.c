/* Looks functions up as each line of stdin says, and prints what it was given:
 * the line, the status, the query's status, the file and the symbol.
 *   g NAME VERSION FLAGS   cuGetProcAddress_v2
 *   o NAME VERSION FLAGS   cuGetProcAddress, the form of CUDA 11.3
 *   h NAME                 dlsym in the driver's handle
 *   d NAME                 dlsym(RTLD_DEFAULT)
 *   n NAME                 dlsym(RTLD_NEXT) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void say(const char *line, int rc, int status, void *f) {
    Dl_info at = {0};
    int known = f && dladdr(f, &at);
    const char *file = known && strrchr(at.dli_fname, '/') ? strrchr(at.dli_fname, '/') + 1 : "-";
    printf("%s: %d %d %s %s\n", line, rc, status, file, !f ? "null" : known && at.dli_saddr == f ? at.dli_sname : "?");
}

int main(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!lib) return 2;
    int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(lib, "cuGetProcAddress_v2");
    int (*old)(const char *, void **, int, uint64_t) = dlsym(lib, "cuGetProcAddress");
    char line[256], name[128];
    while (fgets(line, sizeof line, stdin)) {
        int version = 0, flags = 0, status = -1, rc = 0;
        char how;
        void *f = NULL;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%c %127s %d %d", &how, name, &version, &flags) < 2) return 2;
        if (how == 'g') rc = get(name, &f, version, (uint64_t)flags, &status);
        if (how == 'o') rc = old(name, &f, version, (uint64_t)flags);
        if (how == 'h') f = dlsym(lib, name);
        if (how == 'd') f = dlsym(RTLD_DEFAULT, name);
        if (how == 'n') f = dlsym(RTLD_NEXT, name);
        say(line, rc, status, f);
    }
    return 0;
}
