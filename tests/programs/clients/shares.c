/* Shares memory with other processes, a line on stdin at a time, each of which is answered by one on stdout. `make MIB`,
 * `export`, `free`, `end` (of the context, with all that is in it); `open HANDLE`, `close`; `import MIB` (of its own, by a
 * descriptor), `map MIB` (the same, mapped). Arguments: nothing. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>

CUresult cuIpcGetMemHandle(cudaIpcMemHandle_t *, CUdeviceptr), cuIpcOpenMemHandle_v2(CUdeviceptr *, cudaIpcMemHandle_t, unsigned);
CUresult cuIpcCloseMemHandle(CUdeviceptr), cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, int, unsigned long long);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, int);
#define NOINLINE __attribute__((noinline))
enum { MIB = 1 << 20, DESCRIPTOR = 1 };

static CUdeviceptr block, theirs;
static cudaIpcMemHandle_t handle;

NOINLINE static void publish(size_t bytes) { OK(cuMemAlloc_v2(&block, bytes)); __asm__ volatile(""); }
NOINLINE static void attach(void) { OK(cuIpcOpenMemHandle_v2(&theirs, handle, 1)); __asm__ volatile(""); }
NOINLINE static void import(size_t bytes, int maps) {
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = DESCRIPTOR, .location = {1, 0}};
    CUmemGenericAllocationHandle made, imported;
    int fd = -1;
    OK(cuMemCreate(&made, bytes, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, made, DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(long)fd, DESCRIPTOR));
    if (maps) {
        CUdeviceptr at;
        OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
        OK(cuMemMap(at, bytes, 0, imported, 0));
    }
    __asm__ volatile("");
}

static void begin(void) {
    CUcontext ctx;
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
}

int main(void) {
    char line[256], word[16], text[200] = "";
    OK(cuInit(0));
    begin();
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %199s", word, text) >= 1) {
        unsigned char *bytes = (unsigned char *)&handle;
        if (!strcmp(word, "make")) publish((size_t)atol(text) * MIB);
        if (!strcmp(word, "free")) OK(cuMemFree_v2(block));
        if (!strcmp(word, "close")) OK(cuIpcCloseMemHandle(theirs));
        if (!strcmp(word, "import")) import((size_t)atol(text) * MIB, 0);
        if (!strcmp(word, "map")) import((size_t)atol(text) * MIB, 1);
        if (!strcmp(word, "end")) {
            OK(cuDevicePrimaryCtxReset_v2(0));
            begin();
        }
        if (!strcmp(word, "open")) {
            for (size_t i = 0; i < sizeof handle; i++) sscanf(text + 2 * i, "%2hhx", &bytes[i]);
            attach();
        }
        printf("%s", word);
        if (!strcmp(word, "export")) {
            OK(cuIpcGetMemHandle(&handle, block));
            printf(" ");
            for (size_t i = 0; i < sizeof handle; i++) printf("%02x", bytes[i]);
        }
        printf(" done\n");
        fflush(stdout);
    }
    return did.failures != 0;
}
