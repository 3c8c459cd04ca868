/* Loads the plugin beside it, or at the path that is its argument, RTLD_LOCAL, runs it, unloads it, and once more. */
#include "count.h"
#include <dlfcn.h>
#include <string.h>

int main(int argc, char **argv) {
    char path[4096];
    snprintf(path, sizeof path - 20, "%s", argv[argc - 1]);
    if (argc == 1) strcpy(strrchr(path, '/') + 1, "libhipplugin.so");
    for (size_t bytes = 100; bytes <= 200; bytes += 100) {
        void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!plugin) return 2;
        int (*run)(size_t) = (int (*)(size_t))dlsym(plugin, "plugin_run");
        OK(run(bytes));
        counted_alloc(DEVICE, bytes);
        counted_free(DEVICE, bytes);
        counted_alloc(HOST, bytes);
        counted_free(HOST, bytes);
        OK(dlclose(plugin));
    }
    return report("plugin");
}
