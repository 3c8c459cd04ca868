/* What frames of Python add to an allocation: pairs of cudaMalloc and cudaFree that the pool serves, without frames and
 * with twenty of as many functions, as CPython 3.11 and 3.12 lay them out.
 *
 *   python_cost 11|12 [thread]     prints nanoseconds a pair: without, warm, and with code that was never seen before */
#include "cuda_min.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern uint64_t _PyRuntime[1024], PyCode_Type, PyUnicode_Type, PyBytes_Type;
extern unsigned long Py_Version;

enum { FRAMES = 20, PAIRS = 2000, BATCHES = 60, COLD = 200 };

/* A text as long as a path is, a table as long as that of a function of ten lines. */
struct text { uint64_t words[6]; char bytes[64]; };
struct table { uint64_t words[4]; uint8_t bytes[160]; };
struct function { uint64_t code[64]; struct text name, file; struct table lines; uint64_t frame[16]; };

static struct function *functions[FRAMES];
static uint64_t state[64], cframe[4];
static pthread_key_t key;
static int v12;
static uint32_t serial = 1;

static void text(struct text *text, const char *what, unsigned number, int hashed) {
    size_t head = v12 ? 40 : 48;
    memset(text, 0, sizeof *text);
    int len = snprintf((char *)text + head, 56, what, number);
    text->words[1] = (uint64_t)&PyUnicode_Type;
    text->words[2] = len;
    text->words[3] = hashed ? 0x9e3779b97f4a7c15u * (number + 1) : (uint64_t)-1;
    ((uint32_t *)text->words)[8] = 1 << 2 | 1 << 5 | 1 << 6;
}

static void make(int index, unsigned number) {
    struct function *f = functions[index] ? functions[index] : (functions[index] = calloc(1, sizeof *f));
    text(&f->name, "Module.method_%u", number, 1);
    text(&f->file, "/usr/lib/python3/site-packages/package/module_%u.py", number / 7, 0);
    f->lines.words[1] = (uint64_t)&PyBytes_Type;
    f->lines.words[2] = sizeof f->lines.bytes;
    for (size_t at = 0; at + 1 < sizeof f->lines.bytes; at += 2)
        f->lines.bytes[at] = 0xd8, f->lines.bytes[at + 1] = 1; /* one instruction, a line further on */
    f->code[1] = (uint64_t)&PyCode_Type;
    ((uint32_t *)f->code)[(v12 ? 68 : 72) / 4] = number;
    if (v12)
        ((uint32_t *)f->code)[92 / 4] = serial++;
    f->code[112 / 8] = (uint64_t)&f->file;
    f->code[128 / 8] = (uint64_t)&f->name;
    f->code[136 / 8] = (uint64_t)&f->lines;
    uint64_t outer = index + 1 < FRAMES ? (uint64_t)functions[index + 1]->frame : 0;
    f->frame[(v12 ? 0 : 32) / 8] = (uint64_t)f->code;
    f->frame[(v12 ? 8 : 48) / 8] = outer;
    f->frame[56 / 8] = (uint64_t)f->code + (v12 ? 192 : 184) + 40;
}

static void make_all(unsigned first) {
    for (int index = FRAMES - 1; index >= 0; index--)
        make(index, first + index);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

__attribute__((noinline)) static void pair(void) {
    void *p;
    if (cudaMalloc(&p, 4096) || cudaFree(p))
        exit(1);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double pairs(void) {
    double batches[BATCHES];
    for (int batch = 0; batch < BATCHES; batch++) {
        double begin = now();
        for (int i = 0; i < PAIRS; i++)
            pair();
        batches[batch] = (now() - begin) / PAIRS;
    }
    qsort(batches, BATCHES, sizeof *batches, by_size);
    return batches[0];
}

static void *run(void *unused) {
    state[(v12 ? 136 : 152) / 8] = (uint64_t)pthread_self();
    state[56 / 8] = (uint64_t)cframe;
    state[16 / 8] = (uint64_t)_PyRuntime; /* 3.12: the first interpreter lies in there */
    pair();
    double without = pairs();
    make_all(1);
    cframe[v12 ? 0 : 1] = (uint64_t)functions[0]->frame;
    pthread_setspecific(key, state);
    pair();
    double warm = pairs(), cold = 0;
    for (int i = 1; i <= COLD; i++) {
        make_all(i * FRAMES + 1);
        double begin = now();
        pair();
        cold += now() - begin;
    }
    printf("without %.0f ns, warm %.0f ns (+%.0f), never seen before %.0f ns\n", without, warm, warm - without, cold / COLD);
    return unused;
}

int main(int argc, char **argv) {
    v12 = argc > 1 && !strcmp(argv[1], "12");
    Py_Version = v12 ? 0x030c01f0 : 0x030b07f0;
    pthread_key_create(&key, NULL);
    ((uint32_t *)_PyRuntime)[146] = 1;
    ((uint32_t *)_PyRuntime)[147] = key;
    if (argc > 2) {
        pthread_t thread;
        pthread_create(&thread, NULL, run, NULL);
        pthread_join(thread, NULL);
    } else {
        run(NULL);
    }
    return 0;
}
