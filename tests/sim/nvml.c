/* An NVML that counts what simulated processes have in use: NVML_WORDS names the file of SIM_SHARED, NVML_PIDS the pids
 * of its words, in order; or NVML_CARD names the file of SIM_CARD. Their one device has any UUID, and answers that of the
 * simulated driver's first device. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;

/* The card's layout is that of tests/sim/engine/src/card.rs. Processes that have ended, or are parked, have no bytes. */
static unsigned read_card(const char *path, process_t *all, unsigned long long *size) {
    enum { HEAD = 4, SLOT = 4 };
    unsigned long long words[HEAD + MOST * SLOT] = {0};
    unsigned count = 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t have = fread(words, sizeof *words, HEAD + MOST * SLOT, file);
    for (unsigned slot = 0; have == HEAD + MOST * SLOT && slot < MOST; slot++) {
        const unsigned long long *of = words + HEAD + slot * SLOT;
        struct flock lock = {.l_type = F_WRLCK, .l_start = (HEAD + slot * SLOT) * sizeof *words, .l_len = 1};
        if (!of[0] || !of[1] || fcntl(fileno(file), F_OFD_GETLK, &lock) || lock.l_type == F_UNLCK) continue;
        all[count++] = (process_t){of[0], of[1], ~0u, ~0u};
    }
    *size = words[0];
    fclose(file);
    return count;
}

static unsigned read_all(process_t *all, unsigned long long *size) {
    *size = 16ull << 30;
    if (getenv("NVML_CARD")) return read_card(getenv("NVML_CARD"), all, size);
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
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)1;
    return index ? 2 : 0;
}
static int text(const char *what, char *to, unsigned room) {
    return strlen(what) < room ? (strcpy(to, what), 0) : 7;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned room) {
    (void)device;
    /* SIMULATED-GPU-, as cuDeviceGetUuid answers. */
    return text("GPU-53494d55-4c41-5445-442d-4750552d0000", uuid, room);
}
int nvmlSystemGetDriverVersion(char *version, unsigned room) { return text("580.159.04", version, room); }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    (void)device, (void)now, (void)pending;
    return 3;
}
int nvmlDeviceGetVirtualizationMode(void *device, unsigned *mode) {
    (void)device;
    *mode = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    (void)device;
    process_t all[MOST];
    unsigned count = read_all(all, &memory->total);
    memory->used = 0;
    for (unsigned i = 0; i < count; i++) memory->used += all[i].used;
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *list) {
    (void)device;
    process_t all[MOST];
    unsigned have = *count;
    unsigned long long size;
    *count = read_all(all, &size);
    if (have < *count) return 7;
    memcpy(list, all, *count * sizeof *all);
    return 0;
}
