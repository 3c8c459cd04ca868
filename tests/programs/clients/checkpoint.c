/* Parks and resumes processes, and is itself one that is parked. It does what lines on stdin say, and prints "LINE: STATUS"
 * for each:
 *   lock PID MS, checkpoint PID, restore PID, unlock PID
 *   state PID, thread PID    print "STATUS STATE", "STATUS ID" instead
 *   alloc N, managed N       takes N MiB, and writes them
 *   free                     frees what was taken last
 *   check                    prints how many words of all that was taken are wrong, instead
 *   work MS                  submits work that takes so long
 *   sync                     waits for it
 *   query                    asks if it is done
 *   info                     prints "FREE TOTAL", MiB, instead of 0
 *   nvml                     prints what NVML says: "USED PID=MIB...", MiB, instead
 *   fork                     a child without a driver stays, and ends when this process's stdin does
 * Functions that the driver does not have answer -1. */
#include "count.h"
#include "cuda_min.h"
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

CUresult cuDeviceGetUuid(void *, int), cuMemGetInfo_v2(size_t *, size_t *), cuCtxCreate_v2(CUcontext *, unsigned, int);
CUresult cuStreamQuery(void *), cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuLaunchHostFunc(void *, void (*)(void *), void *);
enum { MIB = 1 << 20, MOST = 256 };
static CUdeviceptr block[MOST];
static size_t words[MOST];
static int blocks;

static int take(size_t mib, bool managed) {
    size_t bytes = mib * MIB;
    CUdeviceptr p;
    int status = managed ? cuMemAllocManaged(&p, bytes, 1) : cuMemAlloc_v2(&p, bytes);
    if (status) return status;
    block[blocks] = p;
    words[blocks++] = bytes / 4;
    return cuMemsetD32_v2(p, 0xabc00000u + blocks, bytes / 4);
}

static unsigned long wrong(void) {
    static unsigned copy[MIB / 4];
    unsigned long wrong = 0;
    for (int b = 0; b < blocks; b++)
        for (size_t at = 0; at < words[b]; at += MIB / 4) {
            OK(cuMemcpyDtoH_v2(copy, block[b] + at * 4, MIB));
            for (size_t i = 0; i < MIB / 4; i++) wrong += copy[i] != 0xabc00001u + b;
        }
    return wrong;
}

static void rest(void *ms) { usleep((size_t)ms * 1000); }

static void child(void) {
    fflush(stdout);
    if (fork()) return;
    char c;
    while (read(0, &c, 1) > 0) continue;
    _exit(0);
}

static int nvml(void) {
    struct { unsigned pid; unsigned long long used; unsigned gi, ci; } all[64];
    struct { unsigned long long total, free, used; } memory;
    unsigned count = 64, seen = 0;
    char uuid[96], own[16], hex[40] = "GPU-";
    void *device, *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!lib) return -1;
    ((int (*)(void))dlsym(lib, "nvmlInit_v2"))();
    ((int (*)(unsigned *))dlsym(lib, "nvmlDeviceGetCount_v2"))(&seen);
    ((int (*)(unsigned, void **))dlsym(lib, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    ((int (*)(void *, char *, unsigned))dlsym(lib, "nvmlDeviceGetUUID"))(device, uuid, sizeof uuid);
    OK(cuDeviceGetUuid(own, 0));
    for (int i = 0; i < 16; i++)
        sprintf(hex + strlen(hex), i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)own[i]);
    if (seen != 1 || strcmp(uuid, hex)) return -1;
    ((int (*)(void *, void *))dlsym(lib, "nvmlDeviceGetMemoryInfo"))(device, &memory);
    ((int (*)(void *, unsigned *, void *))dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3"))(device, &count, all);
    printf("nvml: %llu", memory.used / MIB);
    for (unsigned i = 0; i < count; i++) printf(" %u=%llu", all[i].pid, all[i].used / MIB);
    printf("\n");
    return 0;
}

static int checkpoint(const char *word, int pid, unsigned limit, int *value) {
    static const char *const names[][2] = {
        {"lock", "cuCheckpointProcessLock"}, {"checkpoint", "cuCheckpointProcessCheckpoint"},
        {"restore", "cuCheckpointProcessRestore"}, {"unlock", "cuCheckpointProcessUnlock"},
        {"state", "cuCheckpointProcessGetState"}, {"thread", "cuCheckpointProcessGetRestoreThreadId"},
    };
    for (int i = 0; i < 6; i++) {
        void *f = NULL;
        if (strcmp(word, names[i][0])) continue;
        if (cuGetProcAddress_v2(names[i][1], &f, 12080, 0, NULL) || !f) return -1;
        unsigned args[16] = {limit};
        return ((int (*)(int, void *))f)(pid, i < 4 ? (void *)args : (void *)value);
    }
    return -2;
}

int main(void) {
    char line[256], word[32];
    CUcontext ctx;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&ctx, 0, 0));
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long n = 0, limit = 0;
        size_t free, total;
        int value = -1;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%31s %lu %lu", word, &n, &limit) < 1) continue;
        int status = checkpoint(word, (int)n, (unsigned)limit, &value);
        if (!strcmp(word, "alloc") || !strcmp(word, "managed")) status = take(n, *word == 'm');
        if (!strcmp(word, "free")) status = cuMemFree_v2(block[--blocks]);
        if (!strcmp(word, "work")) status = cuLaunchHostFunc(NULL, rest, (void *)n);
        if (!strcmp(word, "sync")) status = cuCtxSynchronize();
        if (!strcmp(word, "query")) status = cuStreamQuery(NULL);
        if (!strcmp(word, "fork")) child(), status = 0;
        if (!strcmp(word, "nvml")) OK(nvml());
        else if (!strcmp(word, "check")) printf("check: %lu\n", wrong());
        else if (!strcmp(word, "info")) {
            status = cuMemGetInfo_v2(&free, &total);
            if (status) printf("info: %d\n", status);
            else printf("info: %zu %zu\n", free / MIB, total / MIB);
        }
        else if (value != -1) printf("%s: %d %d\n", line, status, value);
        else printf("%s: %d\n", line, status);
        fflush(stdout);
    }
    return 0;
}
