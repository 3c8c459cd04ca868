/* Holds one block and frees others, which the pool keeps, and says "held". Then answers each line of stdin with the
 * number of driver calls so far; before that, for "free", it allocates one block and frees it. Ends with stdin. For the
 * simulator alone. Arguments: nothing. */
#include "count.h"
#include "cuda_min.h"
#include "sim.h"
#include <string.h>

enum { BLOCK = 64 << 20, BLOCKS = 4 };

int main(void) {
    CUcontext ctx;
    CUdeviceptr held, freed[BLOCKS];
    char line[64];
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    OK(cuMemAlloc_v2(&held, BLOCK));
    for (int i = 0; i < BLOCKS; i++) OK(cuMemAlloc_v2(&freed[i], BLOCK));
    for (int i = 0; i < BLOCKS; i++) OK(cuMemFree_v2(freed[i]));
    uint64_t (*stat)(const char *) = simulator();
    printf("held\n");
    fflush(stdout);
    for (int n = 1; fgets(line, sizeof line, stdin); n++) {
        if (!strcmp(line, "free\n")) {
            OK(cuMemAlloc_v2(&freed[0], BLOCK));
            OK(cuMemFree_v2(freed[0]));
        }
        printf("line %d: %llu calls\n", n, (unsigned long long)stat("driver_calls"));
        fflush(stdout);
    }
    OK(cuMemFree_v2(held));
    return 0;
}
