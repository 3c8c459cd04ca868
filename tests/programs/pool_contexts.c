/* Two contexts on one device. `pool_contexts MODE MS`:
 *   bound   as many blocks are freed in either: what stays idle in both together
 *   idle    blocks of one are idle while the other has work, and go back though the program waits for nothing
 *   much    blocks are idle, and more is asked for than any device has, while work runs
 * Waits for at most MS milliseconds for the device to use no more than USED_MOST bytes. */
#include "pool.h"

enum { BYTES = 4 * MIB, BLOCKS = 12 };

static void burst(void) {
    CUdeviceptr p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) p[i] = get(BYTES);
    for (int i = 0; i < BLOCKS; i++) give(p[i], BYTES);
}

int main(int argc, char **argv) {
    CUcontext second, old;
    int idle = argc > 1 && !strcmp(argv[1], "idle"), much = argc > 1 && !strcmp(argv[1], "much");
    long left = argc > 2 ? atol(argv[2]) : 0;
    const char *most = getenv("USED_MOST");
    begin();
    OK(cuCtxCreate_v2(&second, 0, 0));
    Gpu own = fitted(second);
    Stream s = stream_new(1);
    OK(cuCtxPopCurrent_v2(&old));
    burst();
    OK(cuCtxPushCurrent_v2(second));
    if (!idle) burst();
    if (idle || much) hold(s);
    uint64_t waits = stat_of("waits");
    if (much) {
        CUdeviceptr p;
        EXPECT(cuMemAlloc_v2(&p, (size_t)1 << 45), 2);
        EXPECT(cuMemAllocPitch_v2(&p, &(size_t){0}, (size_t)1 << 30, (size_t)1 << 15, 16), 2);
    }
    OK(cuCtxPopCurrent_v2(&old));
    for (; left > 0 && most && stat_of("device_used") > strtoull(most, NULL, 10); left -= 20) nap(20);
    fprintf(stderr, "used at the end %llu\n", (unsigned long long)stat_of("device_used"));
    if (idle || much) EXPECT(cuStreamQuery(s), 600);
    EXPECT(stat_of("waits") - waits, 0);
    released = 1;
    OK(cuCtxPushCurrent_v2(second));
    give(own.counter, 8);
    OK(cuCtxPopCurrent_v2(&old));
    OK(cuCtxDestroy_v2(second));
    return end("pool_contexts");
}
