/* Allocates and frees at random for as long as it is told, the same each time: `pool_flat OPERATIONS MS`. Tells of the
 * most that the device's memory was in use by what cuMemGetInfo says, in either half of the run, of what is in use in
 * the end, once all is freed and the device has rested for at most MS milliseconds, and of its host memory then. */
#include "pool.h"

enum { SLOTS = 48, BURST = 8 };
static const size_t SIZES[] = {64 * KIB, MIB, 2 * MIB, 6 * MIB, 10 * MIB, 14 * MIB, 32 * MIB};

static uint64_t in_use(void) {
    size_t free = 0, total = 0;
    OK(cuMemGetInfo_v2(&free, &total));
    return total - free;
}

/* Bytes of this process that no file stands behind. */
static uint64_t host_memory(void) {
    char line[256];
    unsigned long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status) && sscanf(line, "RssAnon: %lu", &kib) != 1) {}
    if (status) fclose(status);
    return (uint64_t)kib * KIB;
}

/* A thread that comes and goes, and leaves what it freed. */
static void *burst(void *unused) {
    OK(cuCtxSetCurrent(gpu.context));
    CUdeviceptr p[BURST];
    for (int i = 0; i < BURST; i++) p[i] = get(MIB);
    for (int i = 0; i < BURST; i++) give(p[i], MIB);
    return unused;
}

int main(int argc, char **argv) {
    long operations = argc > 1 ? atol(argv[1]) : 20000, ms = argc > 2 ? atol(argv[2]) : 0;
    CUdeviceptr p[SLOTS] = {0};
    size_t bytes[SLOTS] = {0};
    unsigned seed = 7;
    uint64_t most[2] = {0, 0};
    begin();
    Stream s = stream_new(1);
    uint64_t first = stat_of("device_used");
    for (long i = 0; i < operations; i++) {
        int slot = rand_r(&seed) % SLOTS;
        if (p[slot]) {
            give(p[slot], bytes[slot]);
            p[slot] = 0;
        } else {
            bytes[slot] = SIZES[rand_r(&seed) % (sizeof SIZES / sizeof *SIZES)];
            p[slot] = get(bytes[slot]);
            OK(k_fill(&gpu, s, p[slot], 16, 1));
        }
        if (i % 1000 == 999) on_thread(burst, NULL);
        uint64_t now = in_use(), *half = &most[i >= operations / 2];
        if (now > *half) *half = now;
    }
    for (int i = 0; i < SLOTS; i++)
        if (p[i]) give(p[i], bytes[i]);
    OK(cuStreamDestroy_v2(s));
    for (; ms > 0 && stat_of("device_used") > first + 2 * MIB; ms -= 20) nap(20);
    fprintf(stderr, "first half %llu, second half %llu, in the end %llu\n", (unsigned long long)most[0],
            (unsigned long long)most[1], (unsigned long long)(stat_of("device_used") - first));
    fprintf(stderr, "host %llu\n", (unsigned long long)host_memory());
    return end("pool_flat");
}
