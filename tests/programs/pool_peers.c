/* Two devices: work of one on memory of the other, freed while it runs. Without a second device it only says
 * so. */
#include "pool.h"

CUresult cuDeviceCanAccessPeer(int *, CUdevice, CUdevice);
enum { WORDS = 4096, BYTES = 3 * MIB };

int main(void) {
    int devices = 0, can = 0;
    begin();
    OK(cuDeviceGetCount(&devices));
    if (devices > 1) OK(cuDeviceCanAccessPeer(&can, 1, 0));
    if (!can) {
        fprintf(stderr, "pool_peers: no two devices with access to one another\n");
        return end("pool_peers");
    }
    CUcontext first = gpu.context, second;
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    Gpu other = fitted(second);
    Stream theirs = stream_new(1);
    /* Freed before access was granted: still the first device's. */
    OK(cuCtxSetCurrent(first));
    Stream ours = stream_new(1);
    for (int i = 0; i < 4; i++) give(get(BYTES), BYTES);
    CUdeviceptr before = get(BYTES);
    OK(cuCtxSetCurrent(second));
    EXPECT(cuCtxEnablePeerAccess(first, 0), 0);
    EXPECT(cuCtxEnablePeerAccess(first, 0), 704);
    for (int i = 0; i < 8; i++) {
        OK(cuCtxSetCurrent(first));
        CUdeviceptr p = i ? get(BYTES) : before;
        OK(k_fill(&gpu, ours, p, WORDS, 1));
        OK(cuStreamSynchronize(ours));
        OK(cuCtxSetCurrent(second));
        EXPECT(wrong_words(&other, theirs, p, WORDS, 1), 0);
        OK(k_spin(&other, theirs, 30));
        OK(k_fill(&other, theirs, p, WORDS, 2));
        if (i & 1) OK(cuCtxSetCurrent(first));
        give(p, BYTES);
        EXPECT(cuStreamQuery(theirs), 0);
        OK(cuCtxSetCurrent(first));
        CUdeviceptr q = get(BYTES);
        OK(k_fill(&gpu, ours, q, WORDS, 3));
        EXPECT(wrong_words(&gpu, ours, q, WORDS, 3), 0);
        give(q, BYTES);
        /* Blocks of one device are not the other's. */
        OK(cuCtxSetCurrent(second));
        CUdeviceptr r = get(BYTES);
        void *owner = NULL;
        OK(cuPointerGetAttribute(&owner, 1, r));
        EXPECT(owner == (void *)second, 1);
        give(r, BYTES);
    }
    EXPECT(cuCtxDisablePeerAccess(first), 0);
    EXPECT(cuCtxDisablePeerAccess(first), 705);
    OK(cuCtxSetCurrent(first));
    for (int i = 0; i < 4; i++) give(get(BYTES), BYTES);
    OK(cuCtxSetCurrent(second));
    OK(cuCtxSynchronize());
    give(other.counter, 8);
    OK(cuCtxSetCurrent(first));
    return end("pool_peers");
}
