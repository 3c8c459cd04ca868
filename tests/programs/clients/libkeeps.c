/* A library that keeps 512 bytes for each thread, where only what is there from a thread's start will do. */
static __thread char kept[512] __attribute__((tls_model("initial-exec")));

char *kept_here(void) {
    return kept;
}
