/* An independent count of what a program asked of the CUDA driver, by CUPTI.
 *
 * Loaded by the driver itself (CUDA_INJECTION64_PATH=…/libcount.so), at its own boundary: it knows
 * nothing of gpumem and sees the calls that arrive, whoever made them. At exit it writes
 * $COUNT_DIR/<pid>.json: successful allocations and frees by kind (the kinds of `gpumem stats`), the
 * bytes where the call says them, graphs, execs, launches and updates, and each call by name.
 *
 *     cc -O2 -fPIC -shared -I$CUDA/include -I$CUPTI/include count.c -o libcount.so -L$CUPTI/lib64 -lcupti
 */
#include <cuda.h>
#include <cupti.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KINDS(X)                                                                                         \
    X(device, "device") X(pitch, "pitch") X(managed, "managed") X(host_pinned, "host-pinned")            \
    X(host_registered, "host-registered") X(async, "async") X(vmm_physical, "vmm-physical")              \
    X(vmm_mapping, "vmm-mapping") X(vmm_reservation, "vmm-reservation") X(array, "array")                \
    X(mipmapped_array, "mipmapped-array") X(ipc_import, "ipc-import")                                    \
    X(external_memory, "external-memory") X(external_mapping, "external-mapping")                        \
    X(vmm_import, "vmm-import")

#define SCALARS(X)                                                                                       \
    X(graphs_created) X(graphs_destroyed) X(execs_created) X(execs_destroyed) X(instantiate_failures)    \
    X(launches) X(launch_failures) X(updates) X(update_failures) X(captures_begun) X(captures_ended)     \
    X(captures_failed) X(unknown_frees) X(free_failures) X(async_while_capturing)

enum {
#define X(id, name) K_##id,
    KINDS(X)
#undef X
    K_COUNT
};
static const char *const kind_name[] = {
#define X(id, name) name,
    KINDS(X)
#undef X
};
static struct { long long allocs, frees, bytes, freed_bytes, failures; } kind[K_COUNT];
static struct {
#define X(id) long long id;
    SCALARS(X)
#undef X
} sum;
static long long calls[CUPTI_DRIVER_TRACE_CBID_SIZE];
static long long open_captures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner;

/* ---- what is live: (family, key) -> kind and bytes. Addresses of different families may coincide. */
enum family { POINTER, HOST, REGISTERED, HANDLE, MAPPING, RESERVATION, ARRAY, MIPMAP, EXTERNAL };
/* owed: frees counted already, see allocated(). more: how often memory of another process is open beyond once. */
struct entry { struct entry *next; uint64_t key, bytes; uint8_t family, kind, owed, more; };
enum { BUCKETS = 1 << 16 };
static struct entry *table[BUCKETS];

static struct entry **find(enum family family, uint64_t key) {
    struct entry **at = &table[((key * 0x9e3779b97f4a7c15ull) >> 48) ^ (unsigned)family];
    while (*at && ((*at)->key != key || (*at)->family != family)) at = &(*at)->next;
    return at;
}
static void allocated(int ok, int k, enum family family, uint64_t key, uint64_t bytes) {
    if (!ok) {
        kind[k].failures++;
        return;
    }
    kind[k].allocs++;
    kind[k].bytes += (long long)bytes;
    struct entry **at = find(family, key), *e = *at;
    if (e) { /* another thread's free of this address has not come back yet */
        kind[e->kind].frees++;
        kind[e->kind].freed_bytes += (long long)e->bytes;
        e->owed++;
    } else {
        e = calloc(1, sizeof *e);
        if (!e) abort();
        *at = e;
    }
    e->key = key, e->bytes = bytes, e->family = (uint8_t)family, e->kind = (uint8_t)k;
}
/* The driver counts how often memory of another process is open; it is one import all the same. */
static void opened(int ok, uint64_t key) {
    struct entry *e = ok ? *find(POINTER, key) : NULL;
    if (e && e->kind == K_ipc_import && !e->owed) e->more++;
    else allocated(ok, K_ipc_import, POINTER, key, 0);
}
static void remove_at(struct entry **at) {
    struct entry *e = *at;
    kind[e->kind].frees++;
    kind[e->kind].freed_bytes += (long long)e->bytes;
    *at = e->next;
    free(e);
}
static void freed(int ok, enum family family, uint64_t key) {
    if (!ok) {
        sum.free_failures++;
        return;
    }
    if (!key) return; /* freeing null succeeds and frees nothing */
    struct entry **at = find(family, key);
    if (*at && (*at)->owed) (*at)->owed--;
    else if (*at && (*at)->more) (*at)->more--;
    else if (*at) remove_at(at);
    else sum.unknown_frees++;
}
/* One unmap may end several mappings. */
static void unmapped(int ok, uint64_t start, uint64_t size) {
    struct entry **at = find(MAPPING, start);
    if (!ok || (*at && (*at)->bytes == size)) {
        freed(ok, MAPPING, start);
        return;
    }
    for (int b = 0; b < BUCKETS; b++)
        for (at = &table[b]; *at;)
            if ((*at)->family == MAPPING && (*at)->key - start < size) remove_at(at);
            else at = &(*at)->next;
}
static uint64_t texels(CUarray_format format, uint64_t channels) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4 * channels;
    default: return 2 * channels;
    }
}
static uint64_t or_one(uint64_t n) { return n ? n : 1; }
#define BYTES_2D(d) ((d)->Width * or_one((d)->Height) * texels((d)->Format, (d)->NumChannels))
#define BYTES_3D(d) (BYTES_2D(d) * or_one((d)->Depth))

static void alloc_async(int ok, uint64_t key, uint64_t bytes) {
    if (ok && open_captures > 0) sum.async_while_capturing++; /* may be a node, not memory */
    allocated(ok, K_async, POINTER, key, bytes);
}
static void capture_ended(int ok, CUgraph *graph) {
    if (open_captures > 0) open_captures--;
    if (ok && graph && *graph) sum.captures_ended++, sum.graphs_created++;
    else sum.captures_failed++;
}
static void began(int ok) { if (ok) sum.captures_begun++, open_captures++; }

/* CUPTI knows these under two names, one of them without parameters of its own. */
typedef cuMemHostAlloc_params cuMemHostAlloc_v2_params;

/* ---- every call that is counted: its name and what its success means. `p` is its parameters.
 * Drivers of CUDA 13 have more than one name for several of these; a call comes under one of them. */
#define PTSZ(ROW, name, ...) ROW(name, __VA_ARGS__) ROW(name##_ptsz, __VA_ARGS__)
#define CALLS(ROW)                                                                                       \
    ROW(cuMemAlloc_v2, allocated(ok, K_device, POINTER, ok ? *p->dptr : 0, p->bytesize))                 \
    ROW(cuMemAllocPitch_v2, allocated(ok, K_pitch, POINTER, ok ? *p->dptr : 0,                           \
                                      ok ? *p->pPitch * p->Height : 0))                                  \
    ROW(cuMemAllocManaged, allocated(ok, K_managed, POINTER, ok ? *p->dptr : 0, p->bytesize))            \
    ROW(cuMemFree_v2, freed(ok, POINTER, p->dptr))                                                       \
    ROW(cuMemAllocHost_v2, allocated(ok, K_host_pinned, HOST, ok ? (uint64_t)*p->pp : 0, p->bytesize))   \
    ROW(cuMemHostAlloc, allocated(ok, K_host_pinned, HOST, ok ? (uint64_t)*p->pp : 0, p->bytesize))      \
    ROW(cuMemHostAlloc_v2, allocated(ok, K_host_pinned, HOST, ok ? (uint64_t)*p->pp : 0, p->bytesize))   \
    ROW(cuMemFreeHost, freed(ok, HOST, (uint64_t)p->p))                                                  \
    ROW(cuMemHostRegister_v2, allocated(ok, K_host_registered, REGISTERED, (uint64_t)p->p, p->bytesize)) \
    ROW(cuMemHostUnregister, freed(ok, REGISTERED, (uint64_t)p->p))                                      \
    PTSZ(ROW, cuMemAllocAsync, alloc_async(ok, ok ? *p->dptr : 0, p->bytesize))                          \
    PTSZ(ROW, cuMemAllocFromPoolAsync, alloc_async(ok, ok ? *p->dptr : 0, p->bytesize))                  \
    PTSZ(ROW, cuMemFreeAsync, freed(ok, POINTER, p->dptr))                                               \
    ROW(cuMemCreate, allocated(ok, K_vmm_physical, HANDLE, ok ? *p->handle : 0, p->size))                \
    ROW(cuMemImportFromShareableHandle, allocated(ok, K_vmm_import, HANDLE, ok ? *p->handle : 0, 0))     \
    ROW(cuMemRelease, freed(ok, HANDLE, p->handle))                                                      \
    ROW(cuMemMap, allocated(ok, K_vmm_mapping, MAPPING, p->ptr, p->size))                                \
    ROW(cuMemUnmap, unmapped(ok, p->ptr, p->size))                                                       \
    ROW(cuMemAddressReserve, allocated(ok, K_vmm_reservation, RESERVATION, ok ? *p->ptr : 0, p->size))   \
    ROW(cuMemAddressFree, freed(ok, RESERVATION, p->ptr))                                                \
    ROW(cuArrayCreate_v2, allocated(ok, K_array, ARRAY, ok ? (uint64_t)*p->pHandle : 0,                  \
                                    ok ? BYTES_2D(p->pAllocateArray) : 0))                               \
    ROW(cuArray3DCreate_v2, allocated(ok, K_array, ARRAY, ok ? (uint64_t)*p->pHandle : 0,                \
                                      ok ? BYTES_3D(p->pAllocateArray) : 0))                             \
    ROW(cuArrayDestroy, freed(ok, ARRAY, (uint64_t)p->hArray))                                           \
    ROW(cuMipmappedArrayCreate, allocated(ok, K_mipmapped_array, MIPMAP,                                 \
                                          ok ? (uint64_t)*p->pHandle : 0, 0))                            \
    ROW(cuMipmappedArrayDestroy, freed(ok, MIPMAP, (uint64_t)p->hMipmappedArray))                        \
    ROW(cuIpcOpenMemHandle_v2, opened(ok, ok ? *p->pdptr : 0))                                           \
    ROW(cuIpcCloseMemHandle, freed(ok, POINTER, p->dptr))                                                \
    ROW(cuMemPoolImportPointer, allocated(ok, K_ipc_import, POINTER, ok ? *p->ptr_out : 0, 0))           \
    ROW(cuImportExternalMemory, allocated(ok, K_external_memory, EXTERNAL,                               \
                                          ok ? (uint64_t)*p->extMem_out : 0, 0))                         \
    ROW(cuDestroyExternalMemory, freed(ok, EXTERNAL, (uint64_t)p->extMem))                               \
    ROW(cuExternalMemoryGetMappedBuffer, allocated(ok, K_external_mapping, POINTER,                      \
                                                   ok ? *p->devPtr : 0, 0))                              \
    ROW(cuStreamBeginCapture, began(ok); (void)p)                                                        \
    ROW(cuStreamBeginCapture_ptsz, began(ok); (void)p)                                                   \
    PTSZ(ROW, cuStreamBeginCapture_v2, began(ok); (void)p)                                               \
    PTSZ(ROW, cuStreamBeginCaptureToGraph, began(ok); sum.graphs_created -= ok; (void)p)                 \
    PTSZ(ROW, cuStreamEndCapture, capture_ended(ok, p->phGraph))                                         \
    ROW(cuGraphCreate, sum.graphs_created += ok; (void)p)                                                \
    ROW(cuGraphClone, sum.graphs_created += ok; (void)p)                                                 \
    ROW(cuGraphDestroy, sum.graphs_destroyed += ok; (void)p)                                             \
    ROW(cuGraphInstantiate, sum.execs_created += ok; sum.instantiate_failures += !ok; (void)p)           \
    ROW(cuGraphInstantiate_v2, sum.execs_created += ok; sum.instantiate_failures += !ok; (void)p)        \
    ROW(cuGraphInstantiateWithFlags, sum.execs_created += ok; sum.instantiate_failures += !ok; (void)p)  \
    PTSZ(ROW, cuGraphInstantiateWithParams, sum.execs_created += ok; sum.instantiate_failures += !ok;    \
         (void)p)                                                                                        \
    ROW(cuGraphExecDestroy, sum.execs_destroyed += ok; (void)p)                                          \
    PTSZ(ROW, cuGraphLaunch, sum.launches += ok; sum.launch_failures += !ok; (void)p)                    \
    ROW(cuGraphExecUpdate, sum.updates += ok; sum.update_failures += !ok; (void)p)                       \
    ROW(cuGraphExecUpdate_v2, sum.updates += ok; sum.update_failures += !ok; (void)p)

static void counted(CUpti_CallbackId id, const void *params, int ok) {
    switch (id) {
#define ROW(name, ...)                                      \
    case CUPTI_DRIVER_TRACE_CBID_##name: {                  \
        const name##_params *p = params;                    \
        __VA_ARGS__;                                        \
        break;                                              \
    }
        CALLS(ROW)
#undef ROW
    default: return;
    }
    calls[id] += ok;
}

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
    const CUpti_CallbackData *call = data;
    (void)user;
    if (domain != CUPTI_CB_DOMAIN_DRIVER_API || call->callbackSite != CUPTI_API_EXIT) return;
    const CUresult *result = call->functionReturnValue;
    pthread_mutex_lock(&lock);
    counted(id, call->functionParams, result && *result == CUDA_SUCCESS);
    pthread_mutex_unlock(&lock);
}

/* Written at exit and again when the library goes, so that what static destructors do counts too. */
static void write_counts(void) {
    const char *dir = getenv("COUNT_DIR");
    if (!dir || owner != getpid()) return;
    char path[4096], temporary[4200];
    if (snprintf(path, sizeof path, "%s/%d.json", dir, (int)owner) >= (int)sizeof path) return;
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *out = fopen(temporary, "w");
    if (!out) {
        fprintf(stderr, "count: cannot write %s\n", temporary);
        return;
    }
    pthread_mutex_lock(&lock);
    fprintf(out, "{\"pid\":%d", (int)owner);
#define X(id) fprintf(out, ",\"" #id "\":%lld", sum.id);
    SCALARS(X)
#undef X
    const char *comma = "";
    fprintf(out, ",\"kinds\":{");
    for (int k = 0; k < K_COUNT; k++) {
        if (!kind[k].allocs && !kind[k].failures) continue;
        fprintf(out, "%s\"%s\":{\"allocs\":%lld,\"frees\":%lld,\"bytes\":%lld,\"freed_bytes\":%lld,\"failures\":%lld}",
                comma, kind_name[k], kind[k].allocs, kind[k].frees, kind[k].bytes, kind[k].freed_bytes,
                kind[k].failures);
        comma = ",";
    }
    comma = "";
    fprintf(out, "},\"calls\":{");
#define ROW(name, ...)                                                                                      \
    if (calls[CUPTI_DRIVER_TRACE_CBID_##name]) {                                                            \
        fprintf(out, "%s\"" #name "\":%lld", comma, calls[CUPTI_DRIVER_TRACE_CBID_##name]);                 \
        comma = ",";                                                                                        \
    }
    CALLS(ROW)
#undef ROW
    fprintf(out, "}}\n");
    pthread_mutex_unlock(&lock);
    if (fclose(out) == 0) rename(temporary, path);
}
__attribute__((destructor)) static void at_unload(void) {
    if (owner) write_counts();
}

/* The driver calls this once, inside cuInit. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
    static CUpti_SubscriberHandle subscriber;
    if (owner == getpid()) return 1;
    CUptiResult result = cuptiSubscribe(&subscriber, (CUpti_CallbackFunc)on_call, NULL);
    if (result != CUPTI_SUCCESS) {
        fprintf(stderr, "count: cuptiSubscribe failed (%d): nothing will be counted\n", (int)result);
        return 1;
    }
#define ROW(name, ...)                                                                                      \
    cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_##name);
    CALLS(ROW)
#undef ROW
    owner = getpid();
    atexit(write_counts);
    return 1;
}
