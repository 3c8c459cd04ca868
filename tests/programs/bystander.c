/* A program that has nothing to do with a GPU but uses dlsym the hard way. It must
 * behave as if nothing were preloaded: RTLD_NEXT finds the next definition and not
 * its own, names that only begin like CUDA's pass, and no CUDA name exists where
 * no CUDA library is loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;
static void expect(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "bystander: failed: %s\n", what);
        failures++;
    }
}

/* An interposer, as malloc profilers write it. */
static int depth, seen;
pid_t getppid(void) {
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getppid");
    if (++depth > 3) _exit(3); /* RTLD_NEXT found us again */
    seen++;
    pid_t parent = next ? next() : -1;
    depth--;
    return parent;
}

/* Names that begin with cu but are not the driver's. */
int cudnnCreate(void) { return 41; }
int curl_easy_init(void) { return 42; }
int customMemAlloc(void) { return 43; }

static int count_lines(const char *path, const char *needle) {
    char line[4096];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) n += strstr(line, needle) != NULL;
    if (f) fclose(f);
    return n;
}

int main(void) {
    static const char *const absent[] = {"cudaMalloc", "cudaFree", "cudaGraphLaunch", "cuMemAlloc_v2", "cuInit",
                                         "cuGetProcAddress_v2", "hipMalloc", "hipFree", "hipGraphLaunch"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        expect(dlsym(RTLD_DEFAULT, absent[i]) == NULL, absent[i]);
        expect(dlsym(RTLD_NEXT, absent[i]) == NULL, absent[i]);
    }
    void *self = dlopen(NULL, RTLD_NOW);
    expect(dlsym(self, "cudaMalloc") == NULL, "cudaMalloc in the program's own scope");
    expect(dlsym(RTLD_DEFAULT, "cudnnCreate") == (void *)cudnnCreate, "cudnnCreate is the program's");
    expect(dlsym(RTLD_DEFAULT, "curl_easy_init") == (void *)curl_easy_init, "curl_easy_init is the program's");
    expect(dlsym(self, "customMemAlloc") == (void *)customMemAlloc, "customMemAlloc is the program's");

    expect(getppid() > 0 && seen == 1 && depth == 0, "RTLD_NEXT finds the C library's getppid");
    expect(dlsym(RTLD_NEXT, "getppid") != (void *)getppid, "RTLD_NEXT skips the caller");

    /* dlerror: an error is reported once, then none. */
    dlerror();
    expect(dlsym(RTLD_DEFAULT, "gpumem_no_such_name") == NULL, "an unknown name");
    const char *message = dlerror();
    expect(message && strstr(message, "gpumem_no_such_name"), "dlerror names the symbol");
    expect(dlerror() == NULL, "dlerror forgets");
    errno = 7;
    dlsym(RTLD_DEFAULT, "strlen");
    expect(errno == 7, "errno is untouched");

    void *versioned = dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14");
    void *plain = dlsym(RTLD_DEFAULT, "memcpy");
#ifdef __x86_64__
    expect(versioned != NULL && plain != NULL, "dlvsym finds a version");
#endif
    (void)versioned;
    (void)plain;
    expect(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_0.0") == NULL, "dlvsym refuses a version that is not there");

    /* No thread, no socket, no vendor library for a program without a GPU. */
    expect(count_lines("/proc/self/status", "Threads:\t1\n") == 1, "one thread");
    expect(count_lines("/proc/self/maps", "libcuda") == 0, "no libcuda");
    expect(count_lines("/proc/self/maps", "libamdhip64") == 0, "no libamdhip64");
    printf("{\"program\":\"bystander\",\"ok\":%s,\"failures\":%d}\n", failures ? "false" : "true", failures);
    return failures ? 1 : 0;
}
