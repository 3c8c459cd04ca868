/* Whether the driver is the simulated one, and what it says of itself. */
#pragma once
#include <dlfcn.h>
#include <stdint.h>

/* `sim_stat` of tests/sim, or NULL where the driver is a real one. Ask after the first GPU call. */
static inline uint64_t (*simulator(void))(const char *) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) driver = dlopen("libamdhip64.so.6", RTLD_LAZY | RTLD_NOLOAD);
    return driver ? (uint64_t (*)(const char *))dlsym(driver, "sim_stat") : (uint64_t (*)(const char *))0;
}
