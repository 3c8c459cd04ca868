/* Every HIP call that gives memory, freed by every call that takes it back, and
 * what each says when it cannot. Needs a device. */
#include "count.h"
#include "hip_min.h"

enum { MIB = 1 << 20 };
static const size_t HUGE_SIZE = 1ull << 50;

static void took(enum kind k, size_t bytes) { counted_alloc(k, bytes); }
static void gave(enum kind k, size_t bytes) { counted_free(k, bytes); }

static void device(void) {
    void *p;
    size_t pitch = 0;
    OK(hipMalloc(&p, 3 * MIB + 1));
    took(DEVICE, 3 * MIB + 1);
    OK(hipFree(p));
    gave(DEVICE, 3 * MIB + 1);

    OK(hipExtMallocWithFlags(&p, MIB, 1));
    took(DEVICE, MIB);
    OK(hipFree(p));
    gave(DEVICE, MIB);

    OK(hipMallocPitch(&p, &pitch, 1000, 30));
    took(DEVICE, pitch * 30);
    OK(hipFree(p));
    gave(DEVICE, pitch * 30);

    OK(hipMemAllocPitch(&p, &pitch, 999, 20, 4));
    took(DEVICE, pitch * 20);
    OK(hipFree(p));
    gave(DEVICE, pitch * 20);

    hipPitchedPtr v;
    OK(hipMalloc3D(&v, (hipExtent){700, 5, 4}));
    took(DEVICE, v.pitch * 20);
    OK(hipFree(v.ptr));
    gave(DEVICE, v.pitch * 20);

    OK(hipMallocManaged(&p, MIB, hipMemAttachGlobal));
    took(MANAGED, MIB);
    OK(hipFree(p));
    gave(MANAGED, MIB);

    p = (void *)1;
    OK(hipMalloc(&p, 0)); /* nothing, and no error */
    EXPECT(p == NULL, 1);
    OK(hipFree(p));
    EXPECT(hipMalloc(&p, HUGE_SIZE), hipErrorOutOfMemory);
    EXPECT(hipMallocPitch(&p, &pitch, HUGE_SIZE, 2), hipErrorOutOfMemory);
    EXPECT(hipMallocManaged(&p, HUGE_SIZE, hipMemAttachGlobal), hipErrorOutOfMemory);
    EXPECT(hipMallocPitch(NULL, &pitch, 8, 8), hipErrorInvalidValue);
    (void)hipGetLastError();
}

/* Pools of the device, and one of the host's memory. */
static void in_pools_of(hipStream_t s) {
    hipMemPool_t usual, own, now;
    hipMemPoolProps props = {.allocType = 1, .location = {1, 0}};
    void *p;
    OK(hipDeviceGetDefaultMemPool(&usual, 0));
    OK(hipDeviceGetMemPool(&now, 0));
    EXPECT(now == usual, 1);
    OK(hipMemPoolCreate(&own, &props));
    OK(hipDeviceSetMemPool(0, own));
    OK(hipMallocAsync(&p, 4 * MIB, s));
    took(ASYNC, 4 * MIB);
    OK(hipFreeAsync(p, s));
    gave(ASYNC, 4 * MIB);
    OK(hipDeviceSetMemPool(0, usual));
    OK(hipMemPoolDestroy(own));
    props.location.type = 2;
    OK(hipMemPoolCreate(&own, &props));
    OK(hipMallocFromPoolAsync(&p, 3 * MIB, own, s));
    took(ASYNC, 3 * MIB);
    OK(hipFreeAsync(p, s));
    gave(ASYNC, 3 * MIB);
    OK(hipStreamSynchronize(s));
    OK(hipMemPoolDestroy(own));
}

static void streams(void) {
    hipStream_t s;
    hipMemPool_t pool;
    hipMemPoolProps props = {.allocType = 1, .location = {1, 0}};
    void *p;
    OK(hipStreamCreate(&s));
    OK(hipMallocAsync(&p, MIB, s));
    took(ASYNC, MIB);
    OK(hipFreeAsync(p, s));
    gave(ASYNC, MIB);
    OK(hipMemPoolCreate(&pool, &props));
    OK(hipMallocFromPoolAsync(&p, 2 * MIB, pool, s));
    took(ASYNC, 2 * MIB);
    OK(hipStreamSynchronize(s));
    OK(hipFree(p)); /* stream-ordered memory, freed at once */
    gave(ASYNC, 2 * MIB);
    OK(hipMemPoolDestroy(pool));
    in_pools_of(s);
    EXPECT(hipMallocAsync(&p, HUGE_SIZE, s), hipErrorOutOfMemory);
    OK(hipStreamDestroy(s));
}

/* Four names for one thing, two for its end; each reaches the others inside. */
static void host(void) {
    void *p;
    OK(hipHostMalloc(&p, 100, 0));
    took(HOST, 100);
    OK(hipFreeHost(p));
    gave(HOST, 100);
    OK(hipHostAlloc(&p, 101, 0));
    took(HOST, 101);
    OK(hipHostFree(p));
    gave(HOST, 101);
    OK(hipMallocHost(&p, 102));
    took(HOST, 102);
    OK(hipFreeHost(p));
    gave(HOST, 102);
    OK(hipMemAllocHost(&p, 103));
    took(HOST, 103);
    OK(hipHostFree(p));
    gave(HOST, 103);
    p = aligned_alloc(4096, 8192);
    if (!p) exit(2);
    OK(hipHostRegister(p, 8192, 0));
    took(REGISTERED, 8192);
    EXPECT(hipHostRegister(p, 8192, 0) != 0, 1);
    OK(hipHostUnregister(p));
    gave(REGISTERED, 8192);
    EXPECT(hipHostUnregister(p) != 0, 1);
    free(p);
    EXPECT(hipMallocHost(NULL, 8), hipErrorInvalidValue);
}

static void arrays(void) {
    hipArray_t a;
    hipMipmappedArray_t m;
    hipChannelFormatDesc two_floats = {32, 32, 0, 0, 2};
    OK(hipArrayCreate(&a, &(HIP_ARRAY_DESCRIPTOR){64, 32, 0x20, 1}));
    took(ARRAY, 64 * 32 * 4);
    OK(hipFreeArray(a));
    gave(ARRAY, 64 * 32 * 4);
    OK(hipArray3DCreate(&a, &(HIP_ARRAY3D_DESCRIPTOR){16, 8, 4, 0x02, 2, 0}));
    took(ARRAY, 16 * 8 * 4 * 4);
    OK(hipArrayDestroy(a));
    gave(ARRAY, 16 * 8 * 4 * 4);
    OK(hipMallocArray(&a, &two_floats, 10, 0, 0));
    took(ARRAY, 80);
    OK(hipFreeArray(a));
    gave(ARRAY, 80);
    OK(hipMalloc3DArray(&a, &two_floats, (hipExtent){4, 3, 2}, 0));
    took(ARRAY, 4 * 3 * 2 * 8);
    OK(hipFreeArray(a));
    gave(ARRAY, 4 * 3 * 2 * 8);
    OK(hipMallocMipmappedArray(&m, &two_floats, (hipExtent){8, 8, 0}, 3, 0));
    took(ARRAY, (64 + 16 + 4) * 8);
    OK(hipFreeMipmappedArray(m));
    gave(ARRAY, (64 + 16 + 4) * 8);
    EXPECT(hipMallocArray(&a, &two_floats, 0, 0, 0) != 0, 1);
}

static void mapped(void) {
    hipMemAllocationProp prop = {.type = 1, .location = {1, 0}};
    hipMemAccessDesc access = {{1, 0}, 3};
    hipMemGenericAllocationHandle_t h;
    void *p;
    size_t bytes = 4 * MIB;
    OK(hipMemCreate(&h, bytes, &prop, 0));
    took(VMM, bytes);
    OK(hipMemAddressReserve(&p, bytes, 0, NULL, 0));
    OK(hipMemMap(p, bytes, 0, h, 0));
    OK(hipMemSetAccess(p, bytes, &access, 1));
    OK(hipMemset(p, 5, bytes));
    OK(hipDeviceSynchronize());
    OK(hipMemUnmap(p, bytes));
    OK(hipMemAddressFree(p, bytes));
    OK(hipMemRelease(h));
    gave(VMM, bytes);
    EXPECT(hipMemCreate(&h, HUGE_SIZE, &prop, 0), hipErrorOutOfMemory);
}

int main(void) {
    device();
    streams();
    host();
    arrays();
    mapped();
    return report("hip_kinds");
}
