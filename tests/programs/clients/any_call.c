/* Calls any function of the driver, each in a thread of its own, while it is parked. It does what lines on stdin say:
 *   call NAME    looks the function up by dlsym and by cuGetProcAddress, and calls what it gets without arguments
 *   returned     prints the names of functions that were found ("found N"), and of calls that have returned
 *   where NAME   prints "NAME gpumem" or "NAME driver": where the function that dlsym gives lies
 *   end          ends without a call of the driver */
#define _GNU_SOURCE
#include "cuda_min.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CUresult cuCtxCreate_v2(CUcontext *, unsigned, int);
typedef int function(long, long, long, long, long, long, long, long, long, long, long, long);

struct call { char name[128]; function *f; atomic_int returned; };
enum { MOST = 4096 };
static struct call *calls[MOST];
static int made;

static void *run(void *argument) {
    struct call *call = argument;
    call->f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    call->returned = 1;
    return NULL;
}

static void start(const char *name, const char *how, void *f) {
    struct call *call = calloc(1, sizeof *call);
    pthread_attr_t small;
    pthread_t thread;
    if (!f || made == MOST) return;
    snprintf(call->name, sizeof call->name, "%s by %s", name, how);
    call->f = (function *)f;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    if (pthread_create(&thread, &small, run, call)) abort();
    calls[made++] = call;
}

int main(void) {
    char line[256], word[32], name[128];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUcontext ctx;
    CUdeviceptr p;
    if (!driver || cuInit(0) || cuCtxCreate_v2(&ctx, 0, 0) || cuMemAlloc_v2(&p, 1 << 20)) return 1;
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        *name = 0;
        if (sscanf(line, "%31s %127s", word, name) < 1) continue;
        if (!strcmp(word, "end")) _exit(0);
        void *f = dlsym(driver, name);
        if (!strcmp(word, "call")) {
            void *g = NULL;
            start(name, "dlsym", f);
            if (!cuGetProcAddress_v2(name, &g, 13000, 0, NULL)) start(name, "cuGetProcAddress", g);
        }
        if (!strcmp(word, "returned")) {
            printf("found %d\n", made);
            for (int i = 0; i < made; i++)
                if (calls[i]->returned) printf("%s\n", calls[i]->name);
            printf("returned.\n");
        }
        if (!strcmp(word, "where")) {
            Dl_info info;
            if (!f || !dladdr(f, &info)) printf("%s nowhere\n", name);
            else printf("%s %s\n", name, strstr(info.dli_fname, "gpumem.so") ? "gpumem" : "driver");
        }
        fflush(stdout);
    }
    _exit(0);
}
