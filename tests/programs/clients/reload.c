/* Loads a plugin, works through it, and unloads it, again and again, as often as the
 * second argument says: the code of its call sites comes and goes. */
#include "count.h"
#include "plugin.h"
#include <dlfcn.h>

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 20;
    for (int i = 0; i < rounds; i++) {
        void *lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        struct plugin_work (*work)(size_t, uint32_t) = lib ? dlsym(lib, "plugin_work") : NULL;
        if (!work) return 2;
        struct plugin_work w = work(3000 + (size_t)i, 9);
        EXPECT(w.failures, 0);
        for (int k = 0; k < w.allocs; k++) counted_alloc(DEVICE, 3000 + (size_t)i);
        for (int k = 0; k < w.frees; k++) counted_free(DEVICE, 3000 + (size_t)i);
        did.graphs_created += w.graphs;
        did.graphs_destroyed += w.graphs;
        did.execs_created += w.graphs;
        did.execs_destroyed += w.graphs;
        did.captures += w.graphs;
        did.graph_launches += w.graph_launches;
        EXPECT(dlclose(lib), 0);
    }
    return report("reload");
}
