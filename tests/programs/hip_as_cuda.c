/* CUDA's calls that HIP has in another shape: modules instead of libraries,
 * and hipGraphExecUpdate with two results instead of one structure. */
#include "cuda_min.h"
#include <stddef.h>

typedef struct module *hipModule_t;
typedef struct function *hipFunction_t;
int hipModuleLoadData(hipModule_t *, const void *);
int hipModuleUnload(hipModule_t);
int hipModuleGetFunction(hipFunction_t *, hipModule_t, const char *);
int hipModuleLaunchKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          cudaStream_t, void **, void **);
int hipGraphExecUpdate(cudaGraphExec_t, cudaGraph_t, void **, int *);

cudaError_t cudaLibraryLoadData(cudaLibrary_t *lib, const void *code, int *jit, void **jit_values, unsigned jit_n,
                                int *options, void **values, unsigned n) {
    (void)jit, (void)jit_values, (void)jit_n, (void)options, (void)values, (void)n;
    return hipModuleLoadData((hipModule_t *)lib, code);
}
cudaError_t cudaLibraryUnload(cudaLibrary_t lib) { return hipModuleUnload((hipModule_t)lib); }
cudaError_t cudaLibraryGetKernel(cudaKernel_t *k, cudaLibrary_t lib, const char *name) {
    return hipModuleGetFunction((hipFunction_t *)k, (hipModule_t)lib, name);
}
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
    return hipModuleLaunchKernel((hipFunction_t)f, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared,
                                 s, args, NULL);
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t e, cudaGraph_t g, cudaGraphExecUpdateResultInfo *info) {
    (void)info; /* nobody here reads it */
    void *node = NULL;
    int why = 0;
    return hipGraphExecUpdate(e, g, &node, &why);
}
