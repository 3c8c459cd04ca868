/* Initialises the driver until it works, as programs do that wait for a GPU. Prints
 * each answer, and the files in the directory of ledgers before it worked. */
#include "count.h"
#include "cuda_min.h"
#include <dirent.h>

static int files(void) {
    const char *dir = getenv("GPUMEM_DIR");
    DIR *d = dir ? opendir(dir) : NULL;
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

int main(void) {
    CUcontext ctx;
    CUdeviceptr p;
    int rc, tries = 0, before = 0;
    while ((rc = cuInit(0)) != 0 && ++tries < 10) {
        before += files();
        fprintf(stderr, "cuInit: %d\n", rc);
    }
    if (rc) return 1;
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    while ((rc = cuMemAlloc_v2(&p, 777)) != 0 && ++tries < 10) fprintf(stderr, "cuMemAlloc: %d\n", rc);
    if (rc) return 1;
    counted_alloc(DEVICE, 777);
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, 777);
    char more[64];
    snprintf(more, sizeof more, ",\"tries\":%d,\"files_before\":%d", tries, before);
    return report_more("retry", more);
}
