/* Memory of device 0, freed while a kernel of device 1 works on it through peer access: does the free wait for
 * that kernel, and does what the program allocates next keep what it writes there? Driver calls only. */
#pragma once

/* Waits `ns`, then writes `value` to the first 4096 bytes. */
static const char late_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry late(.param .u64 at, .param .u64 ns, .param .u32 value) {\n"
    ".reg .u64 %a, %n, %t, %e; .reg .u32 %v, %i; .reg .pred %p;\n"
    "ld.param.u64 %a, [at]; ld.param.u64 %n, [ns]; ld.param.u32 %v, [value];\n"
    "cvta.to.global.u64 %a, %a; mov.u64 %t, %globaltimer; add.u64 %e, %t, %n;\n"
    "wait: mov.u64 %t, %globaltimer; setp.lt.u64 %p, %t, %e; @%p bra wait;\n"
    "mov.u32 %i, 0;\n"
    "store: st.global.u32 [%a], %v; add.u64 %a, %a, 4; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 1024; @%p bra store;\n"
    "ret; }\n";
enum { PEER_BYTES = 64 << 20, LATE_MS = 150, OURS = 0x22222222 };

static void peer(void) {
    fn *count = symbol("cuDeviceGetCount"), *enable = symbol("cuCtxEnablePeerAccess"), *load = symbol("cuModuleLoadData");
    fn *function = symbol("cuModuleGetFunction"), *launch = symbol("cuLaunchKernel"), *set = symbol("cuMemsetD32_v2");
    fn *read = symbol("cuMemcpyDtoH_v2"), *stream_create = symbol("cuStreamCreate"), *stream_sync = symbol("cuStreamSynchronize");
    int n = 0, device;
    must(count(&n), "cuDeviceGetCount");
    if (n < 2) {
        printf("{\"skip\":\"%d device\"}\n", n);
        return;
    }
    void *contexts[2] = {context}, *module, *late, *stream;
    must(cu.device(&device, 1), "cuDeviceGet");
    must(cu.retain(&contexts[1], device), "cuDevicePrimaryCtxRetain");
    for (int turn = 0; turn < 2; turn++) { /* allocated before peer access is enabled, and after */
        CUdeviceptr p, q;
        must(cu.current(contexts[0]), "cuCtxSetCurrent");
        must(cu.alloc(&p, (size_t)PEER_BYTES), "cuMemAlloc");
        if (!turn) {
            must(cu.current(contexts[1]), "cuCtxSetCurrent");
            must(load(&module, late_ptx), "cuModuleLoadData");
            must(function(&late, module, "late"), "cuModuleGetFunction");
            must(stream_create(&stream, 1u), "cuStreamCreate");
            int code = enable(contexts[0], 0u);
            if (code) {
                printf("{\"skip\":\"cuCtxEnablePeerAccess gave %d\"}\n", code);
                return;
            }
            must(cu.current(contexts[0]), "cuCtxSetCurrent");
        }
        must(set(p, 7u, (size_t)PEER_BYTES / 4), "cuMemsetD32");
        must(cu.sync(), "cuCtxSynchronize");
        must(cu.current(contexts[1]), "cuCtxSetCurrent");
        unsigned long long ns = LATE_MS * 1000000ull;
        unsigned value = 0x11111111;
        must(launch(late, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&p, &ns, &value}, NULL), "cuLaunchKernel");
        must(cu.current(contexts[0]), "cuCtxSetCurrent");
        double start = now_ns();
        must(cu.release(p), "cuMemFree");
        double freed = (now_ns() - start) / 1e6;
        must(cu.alloc(&q, (size_t)PEER_BYTES), "cuMemAlloc");
        must(set(q, (unsigned)OURS, (size_t)PEER_BYTES / 4), "cuMemsetD32");
        must(cu.sync(), "cuCtxSynchronize");
        must(cu.current(contexts[1]), "cuCtxSetCurrent");
        int code = stream_sync(stream), wrong = 0; /* natively the kernel may fault: then its context is lost */
        must(cu.current(contexts[0]), "cuCtxSetCurrent");
        static unsigned words[1024];
        int copied = read(words, q, sizeof words);
        for (int i = 0; i < 1024; i++) wrong += words[i] != OURS;
        printf("{\"turn\":%d,\"free_ms\":%.2f,\"kernel_ms\":%d,\"same_address\":%s,\"kernel_code\":%d,\"read_code\":%d,\"wrong_words\":%d}\n",
               turn, freed, LATE_MS, p == q ? "true" : "false", code, copied, wrong);
        fflush(stdout);
        if (code || copied) return;
        must(cu.release(q), "cuMemFree");
    }
}
