/* A library that calls the runtime: it is loaded and unloaded while others look symbols up. */
int cudaRuntimeGetVersion(int *version);
int cudaDriverGetVersion(int *version);
int cudaMalloc(void **p, unsigned long bytes);
int cudaFree(void *p);

int call_the_runtime(void) {
    int v = 0;
    void *p = 0;
    int failed = cudaMalloc(&p, 4096);
    failed |= cudaFree(p);
    return failed || cudaRuntimeGetVersion(&v) || v == 0;
}
