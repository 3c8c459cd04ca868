// The kernels of kernels/, compiled for the host: what clang gives device code stands here, and attributes that only it knows
// mean nothing to another compiler. A test compares them with the simulator's versions.
#include <pthread.h>
#include <vector>

static __thread unsigned tid_x, ctaid_x, ctaid_y, nctaid_x;
static unsigned __nvvm_read_ptx_sreg_tid_x() { return tid_x; }
static unsigned __nvvm_read_ptx_sreg_ctaid_x() { return ctaid_x; }
static unsigned __nvvm_read_ptx_sreg_ctaid_y() { return ctaid_y; }
static unsigned __nvvm_read_ptx_sreg_nctaid_x() { return nctaid_x; }
static pthread_barrier_t threads_of_block;
static void __syncthreads() { pthread_barrier_wait(&threads_of_block); }

namespace scan {
#include "scan.cu"
}
namespace guard {
#include "guard.cu"
}

// One thread after another: they do not wait for each other.
extern "C" void run_scan(const void *ranges, unsigned long long count, void *answers, const unsigned *cancel, unsigned launch, const void *wanted, unsigned tiles) {
    nctaid_x = tiles;
    for (ctaid_y = 0; ctaid_y < count; ctaid_y++)
        for (ctaid_x = 0; ctaid_x < tiles; ctaid_x++)
            for (tid_x = 0; tid_x < THREADS; tid_x++)
                scan::gpumem_scan((const scan::Range *)ranges, count, (scan::Answers *)answers, cancel, launch, *(const scan::Wanted *)wanted);
}

struct Thread {
    const unsigned char *p;
    unsigned long long bytes, chunk, chunks;
    unsigned value, tid;
    guard::Found *answers;
};
static void *run_thread(void *of) {
    const Thread *it = (const Thread *)of;
    tid_x = it->tid;
    for (ctaid_x = 0; ctaid_x < it->chunks; ctaid_x++) {
        guard::gpumem_guard_verify(it->p, it->bytes, it->chunk, it->value, it->answers);
        // The next block of threads has the same shared memory.
        __syncthreads();
    }
    return nullptr;
}
extern "C" void run_guard(const unsigned char *p, unsigned long long bytes, unsigned long long chunk, unsigned long long chunks, unsigned value, void *answers) {
    pthread_barrier_init(&threads_of_block, nullptr, THREADS);
    std::vector<Thread> threads;
    std::vector<pthread_t> running(THREADS);
    for (unsigned i = 0; i < THREADS; i++) threads.push_back({p, bytes, chunk, chunks, value, i, (guard::Found *)answers});
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&running[i], nullptr, run_thread, &threads[i])) __builtin_trap();
    for (pthread_t thread : running) pthread_join(thread, nullptr);
    pthread_barrier_destroy(&threads_of_block);
}
