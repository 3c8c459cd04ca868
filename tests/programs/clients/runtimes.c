/* Plugins of several runtimes in one process, which choose a device each and allocate there at once. Arguments: the
 * plugins' paths. Prints the devices that the memory was on. */
#include "plugin.h"
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int (*device_of_memory[8])(int), n = 0;
    for (; n < argc - 1 && n < 8; n++) {
        void *lib = dlopen(argv[n + 1], RTLD_NOW | RTLD_LOCAL);
        device_of_memory[n] = lib ? dlsym(lib, "plugin_device_of_memory") : NULL;
        if (!device_of_memory[n]) return 2;
    }
    /* Each of them after the one before, which has been on the first device several times, where its last blocks are at
     * hand. Nothing is on the second device before the second one chooses it. */
    for (int a = 0, b; a < n; a++) {
        b = (a + 1) % n;
        for (int i = 0; i < 3; i++) printf("%d ", device_of_memory[a](0));
        printf("%d %d\n", device_of_memory[b](1), device_of_memory[b](0));
    }
    return 0;
}
