/* What allocation calls answer: right and wrong frees, ranges and attributes of what is live, freed, or
 * freed and allocated again, from threads with and without a context. Prints each answer, so that two runs
 * can be held against each other; what is known of the driver is checked besides. */
#include "pool.h"

static void attributes(const char *what, CUdeviceptr p, CUdeviceptr base) {
    unsigned type = 99, all_type = 99, mapped = 99;
    CUdeviceptr start = 1;
    size_t size = 1, range = 1;
    CUdeviceptr at = 0;
    int rc = cuMemGetAddressRange_v2(&at, &size, p);
    SAY("%s: range %d, base %+lld, size %zu", what, rc, rc ? 0 : (long long)(at - base), rc ? 0 : size);
    SAY("%s: memory type %d", what, cuPointerGetAttribute(&type, MEMORY_TYPE, p));
    int ids[] = {MEMORY_TYPE, RANGE_START, RANGE_SIZE, MAPPED};
    void *out[] = {&all_type, &start, &range, &mapped};
    rc = cuPointerGetAttributes(4, ids, out, p);
    SAY("%s: attributes %d: type %u, range %zu, mapped %d", what, rc, all_type, range, mapped & 0xff);
}

static uint64_t number(CUdeviceptr p) {
    uint64_t id = 0;
    OK(cuPointerGetAttribute(&id, BUFFER_ID, p));
    return id;
}

static void *free_it(void *p) { return (void *)(long)cuMemFree_v2(*(CUdeviceptr *)p); }
static void *alloc_without_context(void *out) { return (void *)(long)cuMemAlloc_v2(out, 4096); }
static void *alloc_in_context(void *out) {
    OK(cuCtxSetCurrent(gpu.context));
    return (void *)(long)alloc_any(out, 3 * MIB);
}

/* Each wrong free, before and after the right one. */
static void frees(size_t bytes) {
    SAY("frees of %zu", bytes);
    CUdeviceptr p = get(bytes);
    EXPECT(cuMemFree_v2(p + 256), 1);
    EXPECT(cuMemFree_v2(p + bytes / 2), 1);
    EXPECT(cuMemFree_v2(p + bytes), 1);
    EXPECT(cuMemFree_v2(p - 1), 1);
    attributes("live", p, p);
    attributes("inside", p + bytes - 1, p);
    give(p, bytes);
    EXPECT(cuMemFree_v2(p), 1);
    EXPECT(cuMemFree_v2(p), 1);
    EXPECT(cuMemFree_v2(p + 256), 1);
    EXPECT(cudaFree((void *)(uintptr_t)p), 1);
    SAY("last error %d, then %d", cudaGetLastError(), cudaGetLastError());
    attributes("freed", p, p);
    attributes("inside freed", p + bytes / 2, p);
    EXPECT((long)on_thread(free_it, &p), 1);
    CUdeviceptr q = get(bytes);
    attributes("again", q, q);
    EXPECT((long)on_thread(free_it, &q), 0);
    counted_free(DEVICE, bytes);
    if (sim.free) sim.free(q), sim.freed(q, 0, 0);
    EXPECT(cuMemFree_v2(q), 1);
    attributes("freed elsewhere", q, q);
}

/* Pointers of other kinds. */
static void foreign(void) {
    CUdeviceptr managed = 0, async = 0, p = get(MIB);
    void *host = NULL, *own = NULL;
    OK(cuMemAllocManaged(&managed, MIB, 1));
    OK(cuMemAllocHost_v2(&host, MIB));
    OK(cuMemAllocAsync(&async, MIB, NULL));
    OK(posix_memalign(&own, 4096, 4096));
    OK(cuMemHostRegister_v2(own, 4096, 0));
    EXPECT(cuMemFree_v2((CUdeviceptr)(uintptr_t)host), 1);
    EXPECT(cuMemFree_v2((CUdeviceptr)(uintptr_t)own), 1);
    EXPECT(cuMemFreeHost((void *)(uintptr_t)p), 1);
    EXPECT(cuMemFree_v2((CUdeviceptr)(uintptr_t)&p), 1);
    EXPECT(cuMemFree_v2(0x1000), 1);
    EXPECT(cuMemFree_v2(~0ull), 1);
    EXPECT(cuMemFree_v2(0), 0);
    EXPECT(cudaFree(NULL), 0);
    OK(cuMemFree_v2(managed));
    OK(cuMemFree_v2(async));
    EXPECT(cuMemFree_v2(managed), 1);
    OK(cuMemHostUnregister(own));
    OK(cuMemFreeHost(host));
    give(p, MIB);
    EXPECT(cuMemFreeHost((void *)(uintptr_t)p), 1);
    free(own);
}

/* Stream-ordered frees of what cuMemAlloc gave: the driver takes them (H200, driver 580). */
static void stream_ordered(void) {
    Stream s = stream_new(1);
    for (int round = 0; round < 3; round++) {
        CUdeviceptr p = 0;
        OK(cuMemAlloc_v2(&p, 3 * MIB));
        counted_alloc(DEVICE, 3 * MIB);
        OK(k_fill(&gpu, s, p, 64, 5));
        int rc = cuMemFreeAsync(p, s);
        SAY("stream-ordered free of a plain pointer %d", rc);
        OK(cuStreamSynchronize(s));
        EXPECT(cuMemFree_v2(p), rc ? 0 : 1);
        counted_free(DEVICE, 3 * MIB);
        CUdeviceptr q = get(3 * MIB);
        OK(k_fill(&gpu, s, q, 64, 6));
        EXPECT(wrong_words(&gpu, s, q, 64, 6), 0);
        give(q, 3 * MIB);
    }
    OK(cuStreamDestroy_v2(s));
}

/* Each allocation is another one, at the same address too. */
static void identity(void) {
    enum { N = 8 };
    uint64_t seen[N];
    for (int i = 0; i < N; i++) {
        CUdeviceptr p = get(3 * MIB + 1000);
        unsigned on = 1, now = 9;
        seen[i] = number(p);
        EXPECT(number(p), seen[i]);
        for (int k = 0; k < i; k++) EXPECT(seen[k] == seen[i], 0);
        OK(cuPointerGetAttribute(&now, SYNC_MEMOPS, p));
        SAY("attribute of a new one: %d", now & 0xff);
        OK(cuPointerSetAttribute(&on, SYNC_MEMOPS, p));
        give(p, 3 * MIB + 1000);
    }
}

static void corners(void) {
    CUdeviceptr p = 42, base = 7;
    size_t size = 7;
    EXPECT(cuMemAlloc_v2(NULL, 4096), 1);
    EXPECT(cuMemAlloc_v2(&p, 0), 1);
    SAY("size 0 leaves %llu", p);
    p = 42;
    EXPECT(cuMemAlloc_v2(&p, (size_t)1 << 50), 2);
    SAY("too large leaves %llu", p);
    p = 42;
    EXPECT((long)on_thread(alloc_without_context, &p), 201);
    SAY("without a context leaves %llu", p);
    EXPECT((long)on_thread(alloc_in_context, &p), 0);
    OK(cuMemGetAddressRange_v2(NULL, &size, p + 5));
    EXPECT(size, 3 * MIB);
    OK(cuMemGetAddressRange_v2(&base, NULL, p + 5));
    EXPECT(base == p, 1);
    size = base = 7;
    SAY("range of nothing %d leaves %llu, %zu", cuMemGetAddressRange_v2(&base, &size, 0x1000), base, size);
    give(p, 3 * MIB); /* made by a thread that has ended */
    void *q = (void *)42;
    SAY("runtime: too large %d, last error %d", cudaMalloc(&q, (size_t)1 << 50), cudaPeekAtLastError());
    SAY("cleared %d, then %d", cudaGetLastError(), cudaGetLastError());
    EXPECT(cudaMalloc(&q, 0), 0);
    SAY("runtime: size 0 gives %p", q);
    EXPECT(cudaFree(q), 0);
    EXPECT(cudaMalloc(&q, 5000), 0);
    counted_alloc(DEVICE, 5000);
    EXPECT(cudaFree((char *)q + 256), 1);
    SAY("last error %d", cudaGetLastError());
    EXPECT(cudaFree(q), 0);
    counted_free(DEVICE, 5000);
    EXPECT(cudaFree(q), 1);
    SAY("last error %d", cudaGetLastError());
}

/* What is given back counts as free, whoever keeps it. A block that goes back to the driver at that moment may be in
 * neither count: then the question is asked again. */
static void reclaimable(void) {
    size_t before, held, after, total;
    CUdeviceptr p[8];
    OK(cuMemGetInfo_v2(&before, &total));
    for (int i = 0; i < 8; i++) p[i] = get(16 * MIB);
    OK(cuMemGetInfo_v2(&held, &total));
    for (int i = 0; i < 8; i++) give(p[i], 16 * MIB);
    for (int look = 0; look < 2000; look++) {
        OK(cuMemGetInfo_v2(&after, &total));
        if (!sim.stat || after + MIB >= before) break;
        usleep(1000);
    }
    if (sim.stat) EXPECT(before - held >= 128 * (size_t)MIB && after + MIB >= before, 1);
}

int main(int argc, char **argv) {
    begin();
    for (int round = 0; round < 2; round++) {
        frees(4096);
        frees(100);
        frees(3 * MIB);
        frees(3 * MIB + 1000);
        foreign();
        stream_ordered();
        identity();
        corners();
        reclaimable();
    }
    if (argc > 1 && !strcmp(argv[1], "sticky")) {
        CUdeviceptr idle = get(MIB), live = get(2 * MIB), p = 42;
        give(idle, MIB);
        OK(k_fill(&gpu, NULL, 0x1000, 4, 1));
        EXPECT(cuCtxSynchronize(), 700);
        EXPECT(cuMemAlloc_v2(&p, MIB), 700);
        SAY("leaves %llu", p);
        EXPECT(cuMemFree_v2(live), 700);
        EXPECT(cuMemFree_v2(idle), 700);
        EXPECT(cuMemFree_v2(0), 700);
        size_t a, b;
        EXPECT(cuMemGetInfo_v2(&a, &b), 700);
        void *q = NULL;
        EXPECT(cudaMalloc(&q, MIB), 700);
        EXPECT(cudaFree((void *)(uintptr_t)live), 700);
        return report("pool_answers");
    }
    return end("pool_answers");
}
