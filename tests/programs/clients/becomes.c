/* Allocates 8 MiB, says "held", and at a line on stdin becomes cat by exec, without the preload. */
#include "count.h"
#include "cuda_min.h"
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    void *p;
    char byte;
    OK(cudaMalloc(&p, 8 << 20));
    counted_alloc(DEVICE, 8 << 20);
    report("held");
    while (read(0, &byte, 1) == 1 && byte != '\n') {}
    unsetenv("LD_PRELOAD");
    execlp("cat", "cat", (char *)NULL);
    return 1;
}
