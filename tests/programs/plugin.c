/* Loads plugins that are linked to cudart, each with RTLD_LOCAL as ggml loads its
 * backends, and works through them by turns. Arguments: the plugins' paths; with
 * none, plugin_a.so beside the program. Built a second time as `deepbind`, where
 * the plugins see their own libraries before anything preloaded. */
#define _GNU_SOURCE
#include "count.h"
#include "plugin.h"
#include <dlfcn.h>
#include <libgen.h>
#include <string.h>
#include <unistd.h>

#ifdef DEEPBIND
static const char name[] = "deepbind";
static const int mode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#else
static const char name[] = "plugin";
static const int mode = RTLD_NOW | RTLD_LOCAL;
#endif

int main(int argc, char **argv) {
    char beside[4096];
    const char *path[8];
    int n = 0;
    for (int i = 1; i < argc && n < 8; i++) path[n++] = argv[i];
    if (n == 0) {
        ssize_t len = readlink("/proc/self/exe", beside, sizeof beside - 20);
        if (len < 0) return 2;
        beside[len] = 0;
        strcat(dirname(beside), "/plugin_a.so");
        path[n++] = beside;
    }
    struct plugin_work (*work[8])(size_t, uint32_t);
    int (*version[8])(void);
    int versions[8];
    for (int i = 0; i < n; i++) {
        void *lib = dlopen(path[i], mode);
        if (!lib) {
            fprintf(stderr, "%s: %s\n", name, dlerror());
            return 2;
        }
        work[i] = dlsym(lib, "plugin_work");
        version[i] = dlsym(lib, "plugin_runtime_version");
        if (!work[i] || !version[i]) return 2;
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < n; i++) {
            struct plugin_work w = work[i](1000 + 4096 * (size_t)(i + 1), 40u + (uint32_t)round);
            EXPECT(w.failures, 0);
            for (int k = 0; k < w.allocs; k++) counted_alloc(DEVICE, w.bytes / (size_t)w.allocs);
            for (int k = 0; k < w.frees; k++) counted_free(DEVICE, w.bytes / (size_t)w.allocs);
            did.graphs_created += w.graphs;
            did.graphs_destroyed += w.graphs;
            did.execs_created += w.graphs;
            did.execs_destroyed += w.graphs;
            did.captures += w.graphs;
            did.graph_launches += w.graph_launches;
        }
    char more[256];
    int at = snprintf(more, sizeof more, ",\"runtime_versions\":[");
    for (int i = 0; i < n; i++) {
        versions[i] = version[i]();
        at += snprintf(more + at, sizeof more - (size_t)at, "%s%d", i ? "," : "", versions[i]);
    }
    snprintf(more + at, sizeof more - (size_t)at, "]");
    return report_more(name, more);
}
