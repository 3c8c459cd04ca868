/* Looks each symbol on stdin, a name and its version, up in the library that is named, by dlsym and by dlvsym, and
 * prints whose function it got. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *owner(void *f) {
    Dl_info at;
    if (!f) return "null";
    if (!dladdr(f, &at)) return "?";
    const char *slash = strrchr(at.dli_fname, '/');
    return slash ? slash + 1 : at.dli_fname;
}

int main(int argc, char **argv) {
    void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!lib) return 2;
    char name[200], version[40];
    while (scanf("%199s %39s", name, version) == 2)
        printf("%s %s %s\n", name, owner(dlsym(lib, name)), owner(dlvsym(lib, name, version)));
    return 0;
}
