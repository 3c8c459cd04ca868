/* A server of which docs/guides/is-it-a-leak.md tells what is wrong with it. It answers requests until the pipe that it reads from is closed, and says
 * "holding" once its cache is full. With a number it answers so many and ends.
 *
 *   weights   64 MiB for as long as it runs
 *   cache     a block for each of sixteen keys: it fills, and stays
 *   history   what the last requests left, which nobody shortens: it grows, and each of it is still referred to
 *   retry     where a request is answered twice, the address of the first answer is written over: it is lost
 *   scale     a request whose length is no multiple of 256 is scaled up to the next one: behind its end */
#include "rt.h"
#include <poll.h>

#define NOINLINE __attribute__((noinline))
enum { WEIGHTS = 64 << 20, ENTRY = 1 << 20, KEYS = 16, NOTE = 64 << 10, ANSWER = 256 << 10, ROUND = 256, SHORT = 100 };

NOINLINE static void *device_block(size_t bytes) {
    void *p = NULL;
    OK(cudaMalloc(&p, bytes));
    return p;
}
NOINLINE static void *load_weights(void) { void *p = device_block(WEIGHTS); return p; }
NOINLINE static void *fill_cache(void) { void *p = device_block(ENTRY); return p; }

struct note { struct note *next; void *block; };
static struct note *volatile history;
NOINLINE static void keep_history(void) {
    struct note *note = malloc(sizeof *note);
    *note = (struct note){history, device_block(NOTE)};
    history = note;
}

static struct { void *volatile block; } answer;
NOINLINE static void answer_request(long request) {
    answer.block = device_block(ANSWER);
    if (request % 4 == 3) answer.block = device_block(ANSWER); /* tried again */
}

/* Rounds the length up, and has a block of as many words as were asked for. */
NOINLINE static void scale(uint64_t words) {
    void *p = device_block(words * 4);
    uint64_t rounded = (words + ROUND - 1) / ROUND * ROUND;
    OK(k_scale(p, p, rounded, 3, NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
}

/* Writes over what calls left on the stack, as a larger server's next request does. */
NOINLINE static void render(void) {
    volatile char page[64 << 10];
    for (size_t i = 0; i < sizeof page; i++) page[i] = 0;
}

static void *volatile weights, *volatile cache[KEYS];

int main(int argc, char **argv) {
    long most = argc > 1 ? atol(argv[1]) : 0;
    kernels_load();
    weights = load_weights();
    for (long request = 0; !most || request < most; request++) {
        long key = request * 7 % KEYS;
        if (!cache[key]) cache[key] = fill_cache();
        answer_request(request);
        if (most) scale(request % 2 ? ROUND * 4 : ROUND * 4 - SHORT);
        if (request % 2) keep_history();
        OK(cudaFree(answer.block));
        answer.block = NULL;
        render();
        if (request == KEYS) {
            printf("holding\n");
            fflush(stdout);
        }
        /* Until whoever has the other end of the pipe closes it. */
        struct pollfd in = {0, 0, 0};
        if (!most && poll(&in, 1, request < 2 * KEYS ? 1 : 25) > 0) break;
    }
    return 0;
}
