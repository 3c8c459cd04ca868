/* Call sites of which it is known when they made something for the first and for the last time. There is room for the
 * histories of a few only:
 *
 *   late     two small blocks at the beginning; it comes to a row once the large ones are gone, and makes nothing then
 *   churner  one large block at the beginning, and later one that is freed at once
 *   pushed   large at the beginning; its row goes to larger ones, and comes back when those are gone
 *
 * The last line says, in nanoseconds of CLOCK_MONOTONIC, between which two moments each of that was. */
#include "mark.h"
#include "rt.h"
#include <time.h>

#define NOINLINE __attribute__((noinline))
enum { BIG = 9, MIB = 1 << 20, LATE = 6144, CHURNER = 80 * MIB, PUSHED = 5 * MIB, BETWEEN_US = 120000 };

#define SITE(name) NOINLINE static void *name(size_t bytes) { void *p = dev_alloc(bytes); return p; }
SITE(late) SITE(churner) SITE(pushed)
SITE(big0) SITE(big1) SITE(big2) SITE(big3) SITE(big4) SITE(big5) SITE(big6) SITE(big7) SITE(big8)
static void *(*const big[BIG])(size_t) = {big0, big1, big2, big3, big4, big5, big6, big7, big8};

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

struct moment { uint64_t after, before; };
static void say(const char *name, struct moment first, struct moment last, const char *end) {
    printf("\"%s\": {\"first\": [%llu, %llu], \"last\": [%llu, %llu]}%s", name, (unsigned long long)first.after,
           (unsigned long long)first.before, (unsigned long long)last.after, (unsigned long long)last.before, end);
}
static void *timed(struct moment *m, void *(*site)(size_t), size_t bytes) {
    m->after = now();
    void *p = site(bytes);
    m->before = now();
    return p;
}

/* They come, and with them a sample; they go, and there are two samples without them. */
static void large_ones(void) {
    void *held[BIG];
    for (int i = 0; i < BIG; i++) held[i] = big[i]((size_t)(20 + i) * MIB);
    mark();
    usleep(BETWEEN_US);
    for (int i = 0; i < BIG; i++) dev_free(held[i], (size_t)(20 + i) * MIB);
    mark();
    usleep(BETWEEN_US);
    mark();
}

int main(void) {
    /* The first time and the last; each site has one call, which no compiler makes two of. */
    static volatile int times = 2;
    struct moment lates[2], churners[2], pushed_once;
    for (volatile int i = 0; i < times; i++) {
        timed(&lates[i], late, LATE);
        usleep(BETWEEN_US);
    }
    timed(&pushed_once, pushed, PUSHED);
    for (volatile int i = 0; i < times; i++) {
        size_t bytes = i ? MIB : CHURNER;
        void *p = timed(&churners[i], churner, bytes);
        if (i) dev_free(p, bytes);
        mark();
        /* It is known to the sample. */
        churners[i].before = now();
        if (!i) large_ones();
    }
    usleep(BETWEEN_US);
    mark();
    printf("{");
    say("late", lates[0], lates[1], ", ");
    say("churner", churners[0], churners[1], ", ");
    say("pushed", pushed_once, pushed_once, "}\n");
    fflush(stdout);
    _exit(0);
}
