/* A line about the memory of the process and of the device, for those who compare two runs. */
#pragma once
#include "rt.h"
#include "sim.h"
#include <unistd.h>

/* Memory so far: the process's (and what of that has no file behind it, but for the simulator's own records), the
 * device's, and the simulator's own count where there is one. */
static inline void sample(long step) {
    long pages = 0, mine = 0, shared = 0;
    double mib = (double)sysconf(_SC_PAGESIZE) / 1048576;
    size_t left = 0, all = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm && fscanf(statm, "%ld %ld %ld", &pages, &mine, &shared) != 3) mine = shared = 0;
    if (statm) fclose(statm);
    OK(cudaMemGetInfo(&left, &all));
    uint64_t (*stat)(const char *) = simulator();
    double records = stat ? (double)stat("own_host") / 1048576 : 0;
    printf("{\"sample\":%ld,\"host_mib\":%.1f,\"anonymous_mib\":%.3f,\"device_mib\":%.1f", step, (double)mine * mib,
           (double)(mine - shared) * mib - records, (double)(all - left) / 1048576);
    for (int i = 0; stat && i < 3; i++) {
        static const char *const names[] = {"live_execs", "graph_host_held", "graph_device_held"};
        printf(",\"%s\":%llu", names[i], (unsigned long long)stat(names[i]));
    }
    puts("}");
    fflush(stdout);
}
