/* What every program here shares: checked calls, an independent count of what
 * the program did, and the one summary line. The counts are kept by the program
 * from the calls that succeeded; nothing is asked of the runtime. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum kind { DEVICE, HOST, REGISTERED, MANAGED, ASYNC, ARRAY, VMM, KINDS };
static const char *const kind_name[KINDS] = {"device", "host", "registered", "managed", "async", "array", "vmm"};

/* Weak: one for the whole program, however many files include this. */
__attribute__((weak)) struct {
    atomic_long allocs[KINDS], frees[KINDS], bytes[KINDS], live[KINDS], peak[KINDS];
    atomic_long all_live, all_peak;
    atomic_long graphs_created, graphs_destroyed, execs_created, execs_destroyed;
    atomic_long graph_launches, exec_updates, exec_updates_failed, captures, kernel_launches;
    atomic_int failures;
} did;

static inline void raise_to(atomic_long *peak, long now) {
    long seen = atomic_load(peak);
    while (seen < now && !atomic_compare_exchange_weak(peak, &seen, now)) {}
}
static inline void counted_alloc(enum kind k, size_t bytes) {
    did.allocs[k]++;
    did.bytes[k] += (long)bytes;
    raise_to(&did.peak[k], atomic_fetch_add(&did.live[k], (long)bytes) + (long)bytes);
    raise_to(&did.all_peak, atomic_fetch_add(&did.all_live, (long)bytes) + (long)bytes);
}
static inline void counted_free(enum kind k, size_t bytes) {
    did.frees[k]++;
    did.live[k] -= (long)bytes;
    did.all_live -= (long)bytes;
}

static inline int expect_(long got, long want, const char *what, const char *file, int line) {
    if (got != want) {
        fprintf(stderr, "%s:%d: %s: expected %ld, got %ld\n", file, line, what, want, got);
        did.failures++;
    }
    return got == want;
}
/* Goes on after a mismatch; the program's exit status tells. */
#define EXPECT(what, want) expect_((long)(what), (long)(want), #what, __FILE__, __LINE__)
/* Ends the program: nothing after it would make sense. */
#define OK(call) \
    do { if (!EXPECT(call, 0)) exit(2); } while (0)

static inline long sum_of(atomic_long *v) {
    long s = 0;
    for (int k = 0; k < KINDS; k++) s += v[k];
    return s;
}

/* Prints the summary line; its return value is for main to return. `more` is
 * either "" or further members that begin with a comma. */
static inline int report_more(const char *program, const char *more) {
    printf("{\"program\":\"%s\",\"ok\":%s,\"allocs\":%ld,\"frees\":%ld,\"bytes_allocated\":%ld,\"bytes_peak\":%ld,\"bytes_live\":%ld",
           program, did.failures ? "false" : "true", sum_of(did.allocs), sum_of(did.frees), sum_of(did.bytes),
           (long)did.all_peak, (long)did.all_live);
    printf(",\"graphs_created\":%ld,\"graphs_destroyed\":%ld,\"execs_created\":%ld,\"execs_destroyed\":%ld",
           (long)did.graphs_created, (long)did.graphs_destroyed, (long)did.execs_created, (long)did.execs_destroyed);
    printf(",\"graph_launches\":%ld,\"exec_updates\":%ld,\"exec_updates_failed\":%ld,\"captures\":%ld,\"kernel_launches\":%ld",
           (long)did.graph_launches, (long)did.exec_updates, (long)did.exec_updates_failed, (long)did.captures,
           (long)did.kernel_launches);
    printf(",\"kinds\":{");
    for (int k = 0, first = 1; k < KINDS; k++)
        if (did.allocs[k]) {
            printf("%s\"%s\":{\"allocs\":%ld,\"frees\":%ld,\"bytes\":%ld,\"peak\":%ld}", first ? "" : ",", kind_name[k],
                   (long)did.allocs[k], (long)did.frees[k], (long)did.bytes[k], (long)did.peak[k]);
            first = 0;
        }
    printf("},\"failures\":%d%s}\n", (int)did.failures, more);
    fflush(stdout);
    return did.failures ? 1 : 0;
}
static inline int report(const char *program) { return report_more(program, ""); }
