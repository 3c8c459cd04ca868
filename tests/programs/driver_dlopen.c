/* Opens the driver as Python bindings do: dlopen of libcuda.so.1, dlsym of
 * cuGetProcAddress and of plain names, nothing linked. Takes "local" (default)
 * or "global" for the dlopen mode, and a library name. */
#include "count.h"
#include "cuda_min.h"
#include <dlfcn.h>
#include <string.h>

extern const char gpumem_ptx[];
static void *lib;
static CUresult (*get_proc)(const char *, void **, int, uint64_t, int *);

static void *by_name(const char *name) {
    void *f = dlsym(lib, name);
    if (!f) {
        fprintf(stderr, "driver_dlopen: %s: %s\n", name, dlerror());
        exit(2);
    }
    return f;
}
static void *by_version(const char *name, int version) {
    void *f = NULL;
    OK(get_proc(name, &f, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    return f;
}

static void one_round(CUfunction fill, void *(*find)(const char *)) {
    CUresult (*alloc)(CUdeviceptr *, size_t) = find("cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = find("cuMemFree_v2");
    CUresult (*to_host)(void *, CUdeviceptr, size_t) = find("cuMemcpyDtoH_v2");
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t,
                       void **, void **) = find("cuLaunchKernel");
    static uint32_t host[10000];
    CUdeviceptr p;
    uint64_t n = 10000;
    uint32_t value = 123;
    OK(alloc(&p, sizeof host));
    counted_alloc(DEVICE, sizeof host);
    OK(launch(fill, 40, 1, 1, 256, 1, 1, 0, NULL, (void *[]){&p, &n, &value}, NULL));
    did.kernel_launches++;
    memset(host, 0, sizeof host);
    OK(to_host(host, p, sizeof host));
    int wrong = 0;
    for (uint64_t i = 0; i < n; i++) wrong += host[i] != value;
    EXPECT(wrong, 0);
    OK(release(p));
    counted_free(DEVICE, sizeof host);
}

/* cuGetProcAddress takes names without their version suffix. */
static void *find_versioned(const char *name) {
    char base[64];
    size_t len = strcspn(name, "_");
    memcpy(base, name, len);
    base[len] = 0;
    return by_version(base, 12000);
}

int main(int argc, char **argv) {
    int mode = argc > 1 && !strcmp(argv[1], "global") ? RTLD_GLOBAL : RTLD_LOCAL;
    const char *name = argc > 2 ? argv[2] : "libcuda.so.1";
    lib = dlopen(name, RTLD_NOW | mode);
    if (!lib) {
        fprintf(stderr, "driver_dlopen: %s\n", dlerror());
        return 2;
    }
    get_proc = by_name("cuGetProcAddress_v2");
    CUresult (*init)(unsigned) = by_name("cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = by_name("cuDevicePrimaryCtxRetain");
    CUresult (*drop)(CUdevice) = by_name("cuDevicePrimaryCtxRelease_v2");
    CUresult (*set)(CUcontext) = by_name("cuCtxSetCurrent");
    CUresult (*load)(CUmodule *, const void *) = by_name("cuModuleLoadData");
    CUresult (*unload)(CUmodule) = by_name("cuModuleUnload");
    CUresult (*function)(CUfunction *, CUmodule, const char *) = by_name("cuModuleGetFunction");
    CUcontext ctx;
    CUmodule module;
    CUfunction fill;
    OK(init(0));
    OK(retain(&ctx, 0));
    OK(set(ctx));
    OK(load(&module, gpumem_ptx));
    OK(function(&fill, module, "gpumem_fill"));
    one_round(fill, by_name);
    one_round(fill, find_versioned);
    /* The library's own handle and the default scope find the same functions
     * or, for a local one, none in the default scope. */
    EXPECT(dlsym(lib, "cuMemAlloc_v2") != NULL, 1);
    EXPECT(dlsym(lib, "cuNoSuchFunction") == NULL, 1);
    OK(unload(module));
    OK(drop(0));
    return report("driver_dlopen");
}
