/* Allocation beside work that ends only when the program says so. `pool_waits MODE`, on a device of 1 GiB:
 *   beside    200 MiB are freed, work begins, 850 MiB are asked for
 *   devices   the same on one device, while another thread does it on a second one and ends the first one's work
 *   kinds     as `beside`, with 850 MiB of pitched rows, and as physical memory
 *   captured  200 MiB are freed, a capture begins, 850 MiB are asked for, in each mode that allows it
 *   decay     200 MiB are freed and work begins: what is used after at most MS milliseconds (second argument)
 *   stuck     200 MiB are freed on each of two devices: what is used after at most MS milliseconds (second argument)
 *   small     a little less than 16 KiB where so much and no more is left
 *   between   blocks are freed, and after 0 to 12 ms work begins that goes on while others are asked for, N times
 *             (second argument): with a short decay, work often begins while a block goes back
 *   parts     20 blocks are freed under work, so that memory is in many pieces
 * Natively none of these calls waits. */
#include "pool.h"

enum { SMALL = 200 * MIB, LARGE = 850 * MIB, PIECE = 40 * MIB, PIECES = 20 };

/* The work of a stream goes on. */
static void still_works(Stream s) { EXPECT(cuStreamQuery(s), 600); }

/* Memory is had while work goes on that ends when the program says so. */
static void large_beside_work(void) {
    Stream s = stream_new(1);
    hold(s);
    CUdeviceptr p = get(LARGE);
    still_works(s);
    /* As natively: the free waits for the work. */
    released = 1;
    give(p, LARGE);
    OK(cuStreamDestroy_v2(s));
}

static void beside(void) {
    give(get(SMALL), SMALL);
    large_beside_work();
}

static void in_pieces(void) {
    CUdeviceptr p[PIECES];
    for (int i = 0; i < PIECES; i++) p[i] = get(PIECE);
    for (int i = 0; i < PIECES; i++) give(p[i], PIECE);
    large_beside_work();
}

static void other_kinds(void) {
    CUmemAllocationProp what = {.type = 1, .location = {.type = 1}};
    CUdeviceptr p = 0;
    size_t pitch = 0;
    CUmemGenericAllocationHandle physical = 0;
    Stream s = stream_new(1);
    for (int physically = 0; physically < 2; physically++) {
        give(get(SMALL), SMALL);
        hold(s);
        OK(physically ? cuMemCreate(&physical, LARGE, &what, 0) : cuMemAllocPitch_v2(&p, &pitch, MIB, 850, 16));
        still_works(s);
        released = 1;
        OK(cuStreamSynchronize(s));
        OK(physically ? cuMemRelease(physical) : cuMemFree_v2(p));
    }
    OK(cuStreamDestroy_v2(s));
}

/* Allocation is allowed within a relaxed capture, and between exchanges of the thread's mode within any. */
static void captured(void) {
    enum { GLOBAL, THREAD_LOCAL, RELAXED };
    Stream s = stream_new(1);
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        CUdeviceptr p = 0;
        Graph graph;
        int exchanged = RELAXED;
        give(get(SMALL), SMALL);
        OK(cuStreamBeginCapture_v2(s, mode));
        if (mode != RELAXED) OK(cuThreadExchangeStreamCaptureMode(&exchanged));
        p = get(LARGE);
        if (mode != RELAXED) OK(cuThreadExchangeStreamCaptureMode(&exchanged));
        OK(cuStreamEndCapture(s, &graph));
        OK(cuGraphDestroy(graph));
        give(p, LARGE);
    }
    OK(cuStreamDestroy_v2(s));
}

/* Idle memory goes back in time though the device works. */
static void decay(long ms) {
    const char *most = getenv("USED_MOST");
    give(get(SMALL), SMALL);
    Stream s = stream_new(1);
    hold(s);
    for (; ms > 0 && most && stat_of("device_used") > strtoull(most, NULL, 10); ms -= 20) nap(20);
    fprintf(stderr, "used at the end %llu\n", (unsigned long long)stat_of("device_used"));
    still_works(s);
    released = 1;
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
}

/* Idle memory of a device goes back in time though that of another one does not. */
static void stuck(long ms) {
    const char *most = getenv("USED_MOST");
    CUcontext context;
    give(get(SMALL), SMALL);
    OK(cuDevicePrimaryCtxRetain(&context, 1));
    OK(cuCtxSetCurrent(context));
    give(get(SMALL), SMALL);
    for (; ms > 0 && most && stat_of("device_used") > strtoull(most, NULL, 10); ms -= 20) nap(20);
    fprintf(stderr, "used at the end %llu\n", (unsigned long long)stat_of("device_used"));
    OK(cuCtxSetCurrent(gpu.context));
}

/* Work begins while idle memory goes back: memory is had beside the work all the same. */
static void between(int rounds) {
    enum { BLOCKS = 24, BLOCK = 4 * MIB };
    CUdeviceptr p[BLOCKS], q[2];
    Stream s = stream_new(1);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < BLOCKS; i++) p[i] = get(BLOCK);
        for (int i = 0; i < BLOCKS; i++) give(p[i], BLOCK);
        nap(round % 13);
        hold(s);
        q[0] = get(BLOCK);
        nap(3);
        q[1] = get(BLOCK + round % 8 * MIB);
        still_works(s);
        released = 1;
        OK(cuStreamSynchronize(s));
        give(q[0], BLOCK);
        give(q[1], BLOCK + round % 8 * MIB);
    }
    OK(cuStreamDestroy_v2(s));
}

/* The driver puts small requests side by side: what a block's size is above what was asked for may not fit. */
static void small(void) {
    enum { MOST = 4096, LEAST = 1 << 14 };
    static CUdeviceptr all[MOST];
    size_t sizes[MOST];
    int n = 0, last = -1;
    for (size_t size = 512 * MIB; size >= 512; size /= 2)
        while (n < MOST && alloc_any(&all[n], size) == 0) sizes[n++] = size;
    EXPECT(n < MOST, 1);
    for (int i = 0; i < n; i++)
        if (sizes[i] == LEAST) last = i;
    EXPECT(last >= 0, 1);
    OK(free_any(all[last], LEAST));
    CUdeviceptr tiny = get(512), rest = get(LEAST - 512 - 300);
    give(rest, LEAST - 512 - 300);
    give(tiny, 512);
    for (int i = 0; i < n; i++)
        if (i != last) give(all[i], sizes[i]);
}

static atomic_int asks;
static Stream of_first;

static void *second_device(void *unused) {
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 1));
    OK(cuCtxSetCurrent(context));
    Stream s = stream_new(1);
    CUdeviceptr own = get(MIB);
    give(get(SMALL), SMALL);
    OK(cuMemsetD32Async(own, 0, 8, s));
    OK(cuStreamSynchronize(s));
    while (!asks) nap(1);
    nap(200); /* the first one's request is on its way */
    CUdeviceptr p = get(LARGE);
    still_works(of_first);
    released = 1;
    give(p, LARGE);
    give(own, MIB);
    OK(cuStreamDestroy_v2(s));
    OK(cuDevicePrimaryCtxRelease_v2(1));
    return unused;
}

static void devices(void) {
    pthread_t second;
    give(get(SMALL), SMALL);
    of_first = stream_new(1);
    hold(of_first);
    pthread_create(&second, NULL, second_device, NULL);
    asks = 1;
    CUdeviceptr p = get(LARGE);
    pthread_join(second, NULL);
    give(p, LARGE);
    OK(cuStreamDestroy_v2(of_first));
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "beside";
    begin();
    if (!strcmp(mode, "beside")) beside();
    if (!strcmp(mode, "devices")) devices();
    if (!strcmp(mode, "kinds")) other_kinds();
    if (!strcmp(mode, "captured")) captured();
    if (!strcmp(mode, "decay")) decay(argc > 2 ? atol(argv[2]) : 0);
    if (!strcmp(mode, "stuck")) stuck(argc > 2 ? atol(argv[2]) : 0);
    if (!strcmp(mode, "small")) small();
    if (!strcmp(mode, "between")) between(argc > 2 ? atoi(argv[2]) : 1);
    if (!strcmp(mode, "parts")) in_pieces();
    return end("pool_waits");
}
