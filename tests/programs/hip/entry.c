/* Looks each name on stdin up by hipGetProcAddress, hipGetDriverEntryPoint and its twin, as far as the library that is
 * named has them, with each flag, and prints whose function it got: the way, the flags, the name, the answer's code, the
 * file and the symbol. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void show(const char *way, unsigned long flags, const char *name, int code, void *f) {
    Dl_info at;
    const char *file = "-", *symbol = "-";
    if (!code && dladdr(f, &at)) {
        const char *slash = strrchr(at.dli_fname, '/');
        file = slash ? slash + 1 : at.dli_fname;
        symbol = at.dli_sname ? at.dli_sname : "?";
    }
    printf("%s %lu %s %d %s %s\n", way, flags, name, code, file, symbol);
}

int main(int argc, char **argv) {
    void *lib = dlopen(argc > 1 ? argv[1] : "libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return 2;
    int (*proc)(const char *, void **, int, unsigned long, int *) = dlsym(lib, "hipGetProcAddress");
    int (*entry)(const char *, void **, unsigned long, int *) = dlsym(lib, "hipGetDriverEntryPoint");
    int (*entry_spt)(const char *, void **, unsigned long, int *) = dlsym(lib, "hipGetDriverEntryPoint_spt");
    char name[200];
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        for (unsigned long flags = 0; flags < 3; flags++) {
            void *p = NULL;
            int code = proc ? proc(name, &p, 700, flags, NULL) : 0;
            if (proc) show("proc", flags, name, code, p);
            code = entry ? entry(name, &p, flags, NULL) : 0;
            if (entry) show("entry", flags, name, code, p);
            code = entry_spt ? entry_spt(name, &p, flags, NULL) : 0;
            if (entry_spt) show("entry_spt", flags, name, code, p);
        }
    }
    return 0;
}
