/* Uses the GPU, then becomes itself again by exec, with memory held, as often as the
 * argument says: the process keeps its number and its start time. */
#include "count.h"
#include "cuda_min.h"
#include <unistd.h>

int main(int argc, char **argv) {
    int left = argc > 1 ? atoi(argv[1]) : 2;
    void *p;
    OK(cudaMalloc(&p, 1000u * (unsigned)(left + 1)));
    counted_alloc(DEVICE, 1000u * (unsigned)(left + 1));
    if (left > 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", left - 1);
        execl("/proc/self/exe", argv[0], number, (char *)NULL);
        return 2;
    }
    return report("reexec");
}
