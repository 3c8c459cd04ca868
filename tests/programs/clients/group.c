/* A member of a limit group, on the driver's API.
 *   group              does what lines on stdin say, and prints "WORD N: STATUS" for each:
 *       alloc N, create N, async N, pitch N   takes N MiB
 *       free                  frees what was taken last, if that was by alloc
 *       drop                  releases what was created last
 *       info                  prints "info FREE TOTAL", MiB, instead
 *       context               destroys the context with all that is in it, and makes another
 *       contexts N            makes N contexts more; the last one is current
 *       fork                  a child does nothing and stays, and ends with its parent
 *       exec                  becomes another image of this program
 *       close                 closes all descriptors from 3 on
 *   group churn SEED   takes and frees at random until it is killed. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

CUresult cuMemAllocAsync(CUdeviceptr *, size_t, void *), cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, int), cuCtxDestroy_v2(CUcontext);
enum { MIB = 1 << 20, MOST = 4096 };
static CUdeviceptr block[MOST];
static CUmemGenericAllocationHandle handle[MOST];
static int blocks, handles;
static CUcontext ctx;

static int create(CUmemGenericAllocationHandle *h, size_t bytes) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return cuMemCreate(h, bytes, &prop, 0);
}

static void begin(void) {
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&ctx, 0, 0));
}

static unsigned long seed;
static unsigned below(unsigned n) {
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(seed >> 33) % n;
}

/* The sizes are whole units of 2 MiB: what the driver has given is what was asked for. */
static void churn(void) {
    for (;;) {
        size_t bytes = (size_t)(1 + below(8)) * 2 * MIB;
        switch (below(5)) {
        case 0: case 1:
            if (blocks < 8 && cuMemAlloc_v2(&block[blocks], bytes) == 0) blocks++;
            break;
        case 2:
            if (handles < 4 && create(&handle[handles], bytes) == 0) handles++;
            break;
        case 3:
            if (handles > 0) OK(cuMemRelease(handle[--handles]));
            break;
        default:
            if (blocks > 0) OK(cuMemFree_v2(block[--blocks]));
        }
        if (below(4) == 0) usleep(below(2000));
    }
}

static int child(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) return pid < 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

static int obey(char **argv, const char *word, size_t bytes) {
    size_t free, total, pitch;
    CUdeviceptr p;
    if (!strcmp(word, "alloc")) {
        int status = cuMemAlloc_v2(&block[blocks], bytes);
        if (!status) blocks++;
        return status;
    }
    if (!strcmp(word, "create")) {
        int status = create(&handle[handles], bytes);
        if (!status) handles++;
        return status;
    }
    if (!strcmp(word, "async")) return cuMemAllocAsync(&p, bytes, NULL);
    if (!strcmp(word, "pitch")) return cuMemAllocPitch_v2(&p, &pitch, 1024, bytes / 1024, 16);
    if (!strcmp(word, "free")) return cuMemFree_v2(block[--blocks]);
    if (!strcmp(word, "drop")) return cuMemRelease(handle[--handles]);
    if (!strcmp(word, "fork")) return child();
    if (!strcmp(word, "close")) {
        for (int fd = 3; fd < 1024; fd++) close(fd);
        return 0;
    }
    if (!strcmp(word, "context")) {
        OK(cuCtxDestroy_v2(ctx));
        blocks = 0;
        return cuCtxCreate_v2(&ctx, 0, 0);
    }
    if (!strcmp(word, "contexts")) {
        for (size_t made = 0; made < bytes / MIB; made++) OK(cuCtxCreate_v2(&ctx, 0, 0));
        return 0;
    }
    if (!strcmp(word, "exec")) {
        printf("exec 0: %d\n", execv("/proc/self/exe", argv) == 0);
        return 1;
    }
    if (!strcmp(word, "info")) {
        int status = cuMemGetInfo_v2(&free, &total);
        printf("info %zu %zu\n", free / MIB, total / MIB);
        return status;
    }
    return -1;
}

int main(int argc, char **argv) {
    char line[256], word[32];
    const bool churns = argc > 2 && !strcmp(argv[1], "churn");
    /* Whoever runs the members may be killed: they do not stay. */
    if (churns) prctl(PR_SET_PDEATHSIG, SIGKILL);
    begin();
    if (churns) {
        seed = strtoul(argv[2], NULL, 10);
        churn();
    }
    /* What an image before this one left unread is this one's. */
    setvbuf(stdin, NULL, _IONBF, 0);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long mib = 0;
        if (sscanf(line, "%31s %lu", word, &mib) < 1) continue;
        printf("%s %lu: %d\n", word, mib, obey(argv, word, mib * MIB));
        fflush(stdout);
    }
    return 0;
}
