/* Does what lines on stdin say, and what that took of the driver: `pair` (allocates and frees 8 MiB), `keep` (allocates
 * 16 MiB), `drop` (frees it), `work` and `rest` (work begins that lasts until it is ended; the end of it), `works` (what
 * the driver says of that work, in place of allocations), `end`. */
#include "pool.h"

enum { PAIR = 8 * MIB, KEPT = 16 * MIB };

int main(void) {
    char line[32];
    CUdeviceptr kept = 0;
    begin();
    Stream s = stream_new(1);
    give(get(PAIR), PAIR);
    SAY("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n")) {
        uint64_t allocs = stat_of("cuMemAlloc_v2"), frees = stat_of("cuMemFree_v2");
        if (!strcmp(line, "pair\n")) give(get(PAIR), PAIR);
        if (!strcmp(line, "keep\n")) kept = get(KEPT);
        if (!strcmp(line, "drop\n")) give(kept, KEPT);
        if (!strcmp(line, "work\n")) hold(s);
        if (!strcmp(line, "rest\n")) {
            released = 1;
            OK(cuStreamSynchronize(s));
        }
        if (!strcmp(line, "works\n")) allocs -= (uint64_t)cuStreamQuery(s);
        SAY("%llu allocs %llu frees %llu used, done", (unsigned long long)(stat_of("cuMemAlloc_v2") - allocs),
            (unsigned long long)(stat_of("cuMemFree_v2") - frees), (unsigned long long)stat_of("device_used"));
        fflush(stdout);
    }
    OK(cuStreamDestroy_v2(s));
    return end("pool_aside");
}
