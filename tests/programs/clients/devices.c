/* Memory on several devices, and devices that are reset with memory on them. Waits for
 * the end of stdin with half of it held. */
#include "count.h"
#include "cuda_min.h"
#include <unistd.h>

int main(void) {
    int n = 0;
    void *p[8], *lost;
    char byte;
    OK(cudaGetDeviceCount(&n));
    for (int i = 0; i < n && i < 8; i++) {
        OK(cudaSetDevice(i));
        OK(cudaMalloc(&p[i], (size_t)(i + 1) << 20));
        counted_alloc(DEVICE, (size_t)(i + 1) << 20);
    }
    report("devices");
    while (read(0, &byte, 1) < 0) {}
    /* Freed from whichever device is current. */
    OK(cudaFree(p[0]));
    counted_free(DEVICE, 1 << 20);
    /* The rest ends with its device's context; then the device is used again. */
    for (int i = 1; i < n && i < 8; i++) {
        OK(cudaSetDevice(i));
        OK(cudaDeviceReset());
        counted_free(DEVICE, (size_t)(i + 1) << 20);
        OK(cudaMalloc(&lost, 77));
        counted_alloc(DEVICE, 77);
        OK(cudaFree(lost));
        counted_free(DEVICE, 77);
    }
    return report("devices");
}
