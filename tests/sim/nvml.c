/* An NVML that counts what simulated processes have in use: NVML_WORDS names the file of SIM_SHARED, NVML_PIDS the pids
 * of its words, in order. Their one device has any UUID. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static unsigned read_all(process_t *all) {
    const char *words = getenv("NVML_WORDS"), *pids = getenv("NVML_PIDS");
    FILE *file = words && pids ? fopen(words, "r") : NULL;
    unsigned count = 0;
    unsigned long long word;
    for (; file && count < MOST && *pids && fread(&word, sizeof word, 1, file) == 1; count++) {
        all[count] = (process_t){strtoul(pids, (char **)&pids, 10), word & ((1ull << 40) - 1), ~0u, ~0u};
        pids += *pids == ' ';
    }
    if (file) fclose(file);
    return count;
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)1;
    return strncmp(uuid, "GPU-", 4) ? 6 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    (void)device;
    process_t all[MOST];
    unsigned count = read_all(all);
    memory->total = 16ull << 30;
    memory->used = 0;
    for (unsigned i = 0; i < count; i++) memory->used += all[i].used;
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *list) {
    (void)device;
    process_t all[MOST];
    unsigned have = *count;
    *count = read_all(all);
    if (have < *count) return 7;
    memcpy(list, all, *count * sizeof *all);
    return 0;
}
