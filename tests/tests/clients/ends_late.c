/* Threads that go on allocating while the process ends. A handler that runs after the driver has ended, and before the
 * preload ends, looks whether the control socket is still there. */
#include "cuda_min.h"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int sockets(void) {
    const char *name = getenv("GPUMEM_DIR");
    DIR *dir = name ? opendir(name) : NULL;
    int found = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        found += strstr(entry->d_name, ".sock") != NULL;
    if (dir)
        closedir(dir);
    return found;
}

static void late(void) {
    void *p;
    printf("error %d, %d sockets\n", cudaMalloc(&p, 4096), sockets());
    fflush(stdout);
}

static void *run(void *unused) {
    for (;;) {
        void *p;
        if (!cudaMalloc(&p, 4096))
            cudaFree(p);
    }
    return unused;
}

int main(void) {
    void *p;
    atexit(late);
    if (cudaMalloc(&p, 1000))
        return 3;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL))
            return 4;
    }
    /* Until the control thread listens. */
    for (int i = 0; i < 2000 && getenv("GPUMEM_DIR") && !sockets(); i++)
        usleep(1000);
    return 0;
}
