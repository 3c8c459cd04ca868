/* Pretends to be an interpreter of Python that is not as it should be, and allocates.
 *
 *   newer          of a version that is not known
 *   free-threaded  of a build that publishes its offsets and says so
 *   mute           of a version that publishes its offsets, without them
 *   idle           in which nothing runs
 *   garbled        whose frames lead nowhere
 *   foreign        whose frames lead to what is no code
 *   torn           whose frames are there for one allocation of a thread, and gone for the next one */
#include "cuda_min.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern uint64_t _PyRuntime[1024], PyCode_Type, PyUnicode_Type, PyBytes_Type;
extern unsigned long Py_Version;

static void *held;
__attribute__((noinline)) static void allocate(size_t bytes) {
    if (cudaMalloc(&held, bytes) != 0) {
        printf("cudaMalloc failed\n");
        exit(1);
    }
}

/* A state, a frame and its code as CPython 3.11 lays them out, in a mapping of its own. */
struct made {
    uint64_t state[32], cframe[4], frame[16];
    uint64_t code[64], name[16], table[16];
};

static struct made *make(void) {
    struct made *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        exit(1);
    made->state[152 / 8] = (uint64_t)pthread_self();
    made->state[56 / 8] = (uint64_t)made->cframe;
    made->cframe[1] = (uint64_t)made->frame;
    made->frame[32 / 8] = (uint64_t)made->code;
    made->frame[56 / 8] = (uint64_t)made->code + 184;
    ((uint8_t *)made->frame)[68] = 1;
    made->code[1] = (uint64_t)&PyCode_Type;
    ((int32_t *)made->code)[72 / 4] = 41;
    made->code[112 / 8] = made->code[128 / 8] = (uint64_t)made->name;
    made->code[136 / 8] = (uint64_t)made->table;
    made->name[1] = (uint64_t)&PyUnicode_Type;
    made->name[2] = 7;
    made->name[3] = (uint64_t)-1;
    made->name[4] = 1 << 2 | 1 << 5 | 1 << 6; /* of bytes, compact, ASCII */
    memcpy(&made->name[6], "planted", 7);
    made->table[1] = (uint64_t)&PyBytes_Type;
    made->table[2] = 2;
    memcpy(&made->table[4], "\xd8\x00", 2); /* one instruction, a line further on */
    return made;
}

static pthread_key_t key;
static struct made *made;

static void runs(void) {
    pthread_setspecific(key, made);
    ((uint32_t *)_PyRuntime)[146] = 1;
    ((uint32_t *)_PyRuntime)[147] = key;
}

static void *torn(void *unused) {
    made = make();
    runs();
    allocate(4096);
    allocate(8192);
    munmap(made, sizeof *made);
    allocate(12288);
    return unused;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    pthread_key_create(&key, NULL);
    Py_Version = 0x030b07f0;
    if (!strcmp(what, "newer"))
        Py_Version = 0x030f00f0;
    if (!strcmp(what, "free-threaded") || !strcmp(what, "mute"))
        Py_Version = 0x030d01f0;
    if (!strcmp(what, "free-threaded")) {
        memcpy(_PyRuntime, "xdebugpy", 8);
        _PyRuntime[1] = Py_Version;
        _PyRuntime[2] = 1;
    }
    if (!strcmp(what, "garbled") || !strcmp(what, "foreign")) {
        made = make();
        runs();
        if (!strcmp(what, "garbled"))
            made->cframe[1] = 0xdead0000;
        else
            made->code[1] = (uint64_t)&PyBytes_Type;
    }
    if (!strcmp(what, "torn")) {
        pthread_t thread;
        pthread_create(&thread, NULL, torn, NULL);
        pthread_join(thread, NULL);
    } else {
        allocate(4096);
    }
    printf("done\n");
    return 0;
}
