/* Calls functions of a driver newer than any table (libcuda.c), by both ways to find
 * them: prints whose each is, and what it answered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *file_of(void *f) {
    Dl_info at;
    return f && dladdr(f, &at) ? strrchr(at.dli_fname, '/') + 1 : "-";
}

static void call(const char *how, const char *name, void *f) {
    double (*sum)(long, long, long, long, long, long, long, long, double, double, double, double, double, double,
                  double, double, double) = f;
    double answer = sum ? sum(1, 20, 300, 4000, 50000, 600000, 7000000, 80000000, .5, .25, .125, 1, 2, 3, 4, 5, 6) : 0;
    printf("%s %s %s %.3f\n", how, name, file_of(f), answer);
}

int main(int argc, char **argv) {
    void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL, *f = NULL, *again = NULL;
    if (!lib) return 2;
    int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(lib, "cuGetProcAddress_v2");
    static const char *const names[] = {"cuGraphFutureThing", "cuGraphicsFutureThing", "cuFutureThing"};
    for (size_t i = 0; i < 3; i++) {
        call("handle", names[i], dlsym(lib, names[i]));
        call("default", names[i], dlsym(RTLD_DEFAULT, names[i]));
        if (get(names[i], &f, 14000, 0, NULL) || get(names[i], &again, 15000, 0, NULL)) return 3;
        call("proc", names[i], f);
        if (f != again || f != dlsym(lib, names[i])) return 4; /* the same function, the same pointer */
    }
    /* A version that is known, one that is not, and the same one by name. */
    if (get("cuGraphLaunch", &f, 12000, 0, NULL)) return 5;
    printf("launch %s %d\n", file_of(f), ((int (*)(void *, void *))f)(lib, lib));
    if (get("cuGraphLaunch", &f, 14000, 0, NULL)) return 6;
    call("proc", "cuGraphLaunch", f);
    call("handle", "cuGraphLaunch_v9", dlsym(lib, "cuGraphLaunch_v9"));
    /* More than there is room for: all work, whosever they are. */
    int ours = 0;
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "cuGraphMany%03d", i);
        if (get(name, &f, 13000, 0, NULL) || ((int (*)(int))f)(i) != 1000 + 2 * i) return 7;
        ours += !strcmp(file_of(f), "libgpumem.so");
    }
    printf("many %d\n", ours);
    return 0;
}
