/* A call that finds no device memory while gpumem keeps some: says what it answered, and how often the driver was asked.
 * `ran_out WAY [WHAT]`. WHAT is kept meanwhile:
 *   blocks   one block of all that was free, which the program has freed (this if nothing is said)
 *   graphs   what a graph took when it was launched and has freed since; the rest of the device is live
 *   nothing  all of the device is live; a third argument names a function whose calls are counted
 *   captured as blocks, while a stream captures in the mode that the third argument says */
#include "graph.h"

CUresult cuModuleLoadDataEx(CUmodule *, const void *, unsigned, void *, void *);
CUresult cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
CUresult cuLibraryGetKernel(CUfunction *, void *, const char *);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, Stream), cuMemFreeAsync(CUdeviceptr, Stream);
CUresult cuMemGetInfo_v2(size_t *, size_t *), cuStreamCreateWithPriority(Stream *, unsigned, int);
CUresult cuIpcGetMemHandle(cudaIpcMemHandle_t *, CUdeviceptr), cuIpcOpenMemHandle_v2(CUdeviceptr *, cudaIpcMemHandle_t, unsigned);

enum { MIB = 1 << 20, NEEDED = 16 * MIB, DEVICE_LAUNCH = 4 };
static uint64_t (*stat_of)(const char *);
static Stream s;
static CUdeviceptr words;
static CUfunction late;
static Graph plain;
static Exec held;

/* A graph that takes so many bytes while it runs. */
static Exec graph_that_takes(size_t bytes) {
    CUdeviceptr p;
    capture_begin(s);
    OK(cuMemAllocAsync(&p, bytes, s));
    OK(cuMemFreeAsync(p, s));
    Graph g = capture_end(s);
    return exec_of(g);
}

static void prepare(const char *way) {
    void *library;
    s = stream_new();
    words = words_new();
    if (!strcmp(way, "launch")) {
        OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
        OK(cuLibraryGetKernel(&late, library, "gpumem_fill"));
    }
    capture_begin(s);
    fill(s, words, 1);
    plain = capture_end(s);
}

static CUresult ask(const char *way) {
    CUdeviceptr p = 0;
    CUarray array;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_ARRAY_DESCRIPTOR desc = {.Width = 2048, .Height = 2048, .Format = 0x20 /* CU_AD_FORMAT_FLOAT */, .NumChannels = 1};
    size_t pitch;
    CUmodule m;
    CUcontext c;
    Stream stream;
    cudaIpcMemHandle_t shown;
    Exec e;
    void *library;
    uint64_t n = WORDS;
    unsigned value = 9;
    void *params[] = {&words, &n, &value};
    if (!strcmp(way, "plain")) return cuMemAlloc_v2(&p, NEEDED);
    if (!strcmp(way, "pitch")) return cuMemAllocPitch_v2(&p, &pitch, 16384, 1024, 16);
    if (!strcmp(way, "async")) return cuMemAllocAsync(&p, NEEDED, s);
    if (!strcmp(way, "create")) return cuMemCreate(&h, NEEDED, &prop, 0);
    if (!strcmp(way, "array")) return cuArrayCreate_v2(&array, &desc);
    if (!strcmp(way, "managed")) return cuMemAllocManaged(&p, NEEDED, 1);
    if (!strcmp(way, "stream")) return cuStreamCreateWithPriority(&stream, 1, 0);
    if (!strcmp(way, "context")) return cuCtxCreate_v2(&c, 0, 0);
    if (!strcmp(way, "opened")) return cuIpcGetMemHandle(&shown, words), cuIpcOpenMemHandle_v2(&p, shown, 1);
    if (!strcmp(way, "module")) return cuModuleLoadData(&m, image);
    if (!strcmp(way, "module_ex")) return cuModuleLoadDataEx(&m, image, 0, NULL, NULL);
    if (!strcmp(way, "library")) return cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (!strcmp(way, "launch")) return cuLaunchKernel(late, 1, 1, 1, 64, 1, 1, 0, (void *)s, params, NULL);
    if (!strcmp(way, "instantiate")) return cuGraphInstantiateWithFlags(&e, plain, DEVICE_LAUNCH);
    if (!strcmp(way, "instantiate_ours")) return cuGraphInstantiateWithFlags(&e, plain, 0);
    fprintf(stderr, "ran_out: unknown way %s\n", way);
    exit(2);
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "", *what = argc > 2 ? argv[2] : "blocks";
    bool captures = !strcmp(what, "captured");
    const char *counted = argc > 3 && !captures ? argv[3] : NULL;
    Stream capturing = NULL;
    size_t free, total;
    CUdeviceptr all;
    begin();
    stat_of = simulator();
    prepare(way);
    if (!strcmp(what, "graphs")) {
        held = graph_that_takes(2 * NEEDED);
        launch(held, s);
        wait_for(s);
    }
    OK(cuMemGetInfo_v2(&free, &total));
    OK(cuMemAlloc_v2(&all, free));
    if (!strcmp(what, "blocks") || captures) OK(cuMemFree_v2(all));
    if (captures) {
        capturing = stream_new();
        OK(cuStreamBeginCapture_v2(capturing, argc > 3 ? atoi(argv[3]) : 0));
    }
    uint64_t before = counted ? stat_of(counted) : 0;
    CUresult answer = ask(way);
    printf("%d", answer);
    if (counted) printf(" after %llu", (unsigned long long)(stat_of(counted) - before));
    printf("\n");
    fflush(stdout);
    if (captures) graph_end(capture_end(capturing));
    wait_for(s);
    if (!strcmp(way, "launch") && !answer) EXPECT(word_of(words), 9);
    return did.failures;
}
