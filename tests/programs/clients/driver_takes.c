/* Where the driver takes memory for itself, and where nobody may ask how much. The file that it is given gets the
 * image of a module. */
#include "graph.h"

CUresult cuModuleLoad(CUmodule *, const char *);
CUresult cuModuleLoadDataEx(CUmodule *, const void *, unsigned, void *, void *);
CUresult cuModuleLoadFatBinary(CUmodule *, const void *);
CUresult cuLibraryLoadFromFile(void **, const char *, void *, void *, unsigned, void *, void *, unsigned);
CUresult cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned), cuLibraryUnload(void *);
CUresult cuLibraryGetModule(CUmodule *, void *);
CUresult cuFuncLoad(CUfunction);
CUresult cuLibraryGetKernel(CUfunction *, void *, const char *);
CUresult cuCtxSetLimit(int, size_t);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, int), cuCtxDestroy_v2(CUcontext);
#define NOINLINE __attribute__((noinline))

static uint64_t (*stat_of)(const char *);

NOINLINE static CUmodule load_file(const char *path) {
    CUmodule loaded;
    OK(cuModuleLoad(&loaded, path));
    return loaded;
}
NOINLINE static void launch_late(CUfunction kernel, CUdeviceptr p, Stream s) {
    uint64_t n = WORDS;
    unsigned value = 9;
    void *params[] = {&p, &n, &value};
    for (int i = 0; i < 3; i++) OK(cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, s, params, NULL));
    wait_for(s);
    EXPECT(word_of(p), 9);
}
NOINLINE static void one_more_context(void) {
    CUcontext more;
    OK(cuCtxCreate_v2(&more, 0, 0));
    OK(cuCtxDestroy_v2(more));
    OK(cuCtxSetCurrent(context));
}
/* One is destroyed again. */
NOINLINE static void two_streams(void) {
    Stream a = stream_new();
    (void)stream_new();
    OK(cuStreamDestroy_v2(a));
}
/* Larger stacks, and what costs nothing more. */
NOINLINE static void larger_stacks(void) {
    OK(cuCtxSetLimit(0, 4096));
    OK(cuCtxSetLimit(0, 2048));
    OK(cuCtxSetLimit(1, 16 << 20));
}
/* A kernel whose threads have 16 KiB of local memory each, and one with less. */
static const char hungry_image[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry hungry()\n{\n.local .align 4 .b8 depot[16384];\nret;\n}\n"
    ".visible .entry modest()\n{\n.local .align 4 .b8 depot[4096];\nret;\n}\n";
NOINLINE static void launch_loaded(CUmodule code, CUdeviceptr p, Stream s) {
    CUfunction kernel;
    OK(cuModuleGetFunction(&kernel, code, "gpumem_fill"));
    OK(cuFuncLoad(kernel));
    launch_late(kernel, p, s);
}
NOINLINE static void launch_hungry(void *code, const char *name, Stream s) {
    CUfunction kernel; /* of a library, as the runtime launches it */
    OK(cuLibraryGetKernel(&kernel, code, name));
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    wait_for(s);
}
/* Code that comes while something captures: the device is not asked. */
NOINLINE static void load_in_capture(Stream s) {
    CUmodule loaded;
    OK(cuStreamBeginCapture_v2(s, 2));
    uint64_t before = stat_of("cuMemGetInfo_v2");
    OK(cuModuleLoadDataEx(&loaded, image, 0, NULL, NULL));
    EXPECT(stat_of("cuMemGetInfo_v2"), before);
    graph_end(capture_end(s));
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "image.ptx";
    FILE *file = fopen(path, "w");
    if (!file || fputs(image, file) < 0 || fclose(file)) return 2;
    begin();
    stat_of = simulator();
    CUdeviceptr p = words_new();
    Stream s = stream_new();
    CUmodule loaded = load_file(path), nothing;
    EXPECT(cuModuleLoadFatBinary(&nothing, "no code at all") != 0, 1);
    void *library;
    CUfunction kernel;
    OK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "gpumem_fill"));
    launch_late(kernel, p, s);
    launch_loaded(loaded, p, s);
    one_more_context();
    two_streams();
    larger_stacks();
    void *hungry;
    OK(cuLibraryLoadData(&hungry, hungry_image, NULL, NULL, 0, NULL, NULL, 0));
    CUmodule of_library; /* its code is loaded now, not at the launch */
    OK(cuLibraryGetModule(&of_library, hungry));
    launch_hungry(hungry, "hungry", s);
    launch_hungry(hungry, "modest", s);
    load_in_capture(s);
    uint64_t before = stat_of("cuMemGetInfo_v2");
    for (unsigned i = 0; i < 100; i++) {
        uint64_t n = WORDS;
        void *params[] = {&p, &n, &i};
        OK(cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, s, params, NULL));
    }
    EXPECT(stat_of("cuMemGetInfo_v2"), before); /* what was launched before is not looked at */
    wait_for(s);
    OK(cuLibraryUnload(hungry));
    OK(cuModuleUnload(loaded));
    OK(cuStreamDestroy_v2(s));
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, WORDS * 4);
    return report("driver_takes");
}
