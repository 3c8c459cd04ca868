/* The backward pass of a program like PyTorch: a thread of its own, without frames of Python, that keeps a gradient of
 * each step. */
#include <pthread.h>

int cudaMalloc(void **p, unsigned long bytes);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int asked, done, failed;

__attribute__((noinline)) static void *keep_gradient(void) {
    void *gradient = 0;
    failed |= cudaMalloc(&gradient, 32 << 10);
    return gradient;
}

static void *backward_thread(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (done == asked) pthread_cond_wait(&changed, &lock);
        keep_gradient();
        done++;
        pthread_cond_broadcast(&changed);
    }
    return unused;
}

/* One step; 0 if it succeeded. */
int backward(void) {
    static pthread_t thread;
    pthread_mutex_lock(&lock);
    if (asked++ == 0 && pthread_create(&thread, 0, backward_thread, 0)) failed = 1;
    pthread_cond_broadcast(&changed);
    while (done != asked && !failed) pthread_cond_wait(&changed, &lock);
    int status = failed;
    pthread_mutex_unlock(&lock);
    return status;
}
