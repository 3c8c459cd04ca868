/* Device memory whose address stands in no memory that is read as a matter of course: it was shown to other
 * processes, so that they may have the address, or it lies in memory that may not be read or written just now, in one page
 * of a vast reservation too; and some that is lost. Says where each is, and waits until its input ends. */
#include "pool.h"
#include <sys/mman.h>

#define NOINLINE __attribute__((noinline))
CUresult cuMemPoolExportPointer(void *, CUdeviceptr), cuMemGetHandleForAddressRange(void *, CUdeviceptr, size_t, int, uint64_t);
enum fate { LOST, SHOWN, SHOWN_INSIDE, RANGE, IN_ORDER, UNREADABLE, WRITE_ONLY, VAST, SHARED_HIDDEN, SHARED_READ_ONLY, FATES };
static const char *const words[] = {"lost", "shown", "shown-inside", "range", "in-order", "unreadable", "write-only",
                                    "vast", "shared-hidden", "shared-read-only"};
static const CUdeviceptr KEY = 0xa5a5000000000000u;
static CUdeviceptr hidden[FATES];
enum { PAGE = 4096 };
static const size_t RESERVED = (size_t)17 << 30, EMPTY = (size_t)40 << 30;

static CUdeviceptr *mapped(size_t bytes, int may, int how) {
    void *at = mmap(NULL, bytes, may, how | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? (perror("mmap"), exit(1), at) : at;
}
/* The address stands there, and from then on nobody may do but this with the memory. */
static void kept_in(CUdeviceptr *at, size_t bytes, CUdeviceptr p, int may) {
    at[bytes / 2 / sizeof *at] = p;
    if (mprotect(at, bytes, may)) perror("mprotect"), exit(1);
}
NOINLINE static void plant(enum fate fate, Stream s) {
    CUdeviceptr p = 0;
    char data[64];
    int fd = -1;
    if (fate == IN_ORDER) {
        OK(cuMemAllocAsync(&p, MIB, s));
        OK(cuStreamSynchronize(s));
        counted_alloc(ASYNC, MIB);
    } else {
        p = get(MIB);
    }
    hidden[fate] = p ^ KEY;
    cudaIpcMemHandle_t handle;
    switch (fate) {
    case SHOWN: OK(cuIpcGetMemHandle(&handle, p)); break;
    case SHOWN_INSIDE: OK(cuIpcGetMemHandle(&handle, p + 4096)); break;
    case RANGE: OK(cuMemGetHandleForAddressRange(&fd, p, 4096, 1, 0)); close(fd); break;
    case IN_ORDER: OK(cuMemPoolExportPointer(data, p)); break;
    case UNREADABLE: kept_in(mapped(PAGE, PROT_WRITE, MAP_PRIVATE), PAGE, p, PROT_NONE); break;
    case WRITE_ONLY: kept_in(mapped(PAGE, PROT_WRITE, MAP_PRIVATE), PAGE, p, PROT_WRITE); break;
    case VAST: kept_in(mapped(RESERVED, PROT_WRITE, MAP_PRIVATE), RESERVED, p, PROT_NONE); break;
    case SHARED_HIDDEN: kept_in(mapped(PAGE, PROT_WRITE, MAP_SHARED), PAGE, p, PROT_NONE); break;
    case SHARED_READ_ONLY: kept_in(mapped(PAGE, PROT_WRITE, MAP_SHARED), PAGE, p, PROT_READ); break;
    default: break;
    }
}
NOINLINE static void wipe(void) {
    volatile char space[64 << 10];
    memset((void *)space, 0, sizeof space);
}
NOINLINE static void say(void) {
    SAY("{\"blocks\": [");
    for (int i = 0; i < FATES; i++)
        SAY("%s{\"address\": \"%llx\", \"fate\": \"%s\"}", i ? ", " : "", (unsigned long long)(hidden[i] ^ KEY), words[i]);
    SAY("]}");
    fflush(stdout);
}
NOINLINE static void give_all(Stream s) {
    for (int i = 0; i < FATES; i++) {
        if (i != IN_ORDER) {
            give(hidden[i] ^ KEY, MIB);
            continue;
        }
        OK(cuMemFreeAsync(hidden[i] ^ KEY, s));
        counted_free(ASYNC, MIB);
    }
}

int main(void) {
    begin();
    Stream s = stream_new(1);
    /* A page behind it keeps the two reservations apart. */
    mapped(EMPTY, PROT_NONE, MAP_PRIVATE);
    mapped(PAGE, PROT_READ, MAP_PRIVATE);
    for (enum fate fate = 0; fate < FATES; fate++) plant(fate, s);
    wipe();
    say();
    wipe();
    char byte;
    while (read(0, &byte, 1) > 0) {}
    give_all(s);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
    return end("pool_kept");
}
