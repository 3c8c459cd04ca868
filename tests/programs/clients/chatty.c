/* Uses the GPU, then writes to and closes the standard descriptors and reports what
 * came of it: a program that was started without one of them. */
#define _GNU_SOURCE
#include "count.h"
#include "cuda_min.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    void *p;
    char more[256] = "", text[] = "some text that must not land in any file of others";
    OK(cudaMalloc(&p, 4096));
    counted_alloc(DEVICE, 4096);
    for (int fd = 0; fd <= 2; fd++) {
        if (fd == 1) continue; /* where the report goes */
        errno = 0;
        long n = fd == 0 ? (fcntl(0, F_GETFD) >= 0) : write(fd, text, sizeof text);
        snprintf(more + strlen(more), sizeof more - strlen(more), ",\"fd%d\":%ld,\"errno%d\":%d", fd, n, fd, errno);
    }
    int opened = open("/dev/null", O_WRONLY);
    snprintf(more + strlen(more), sizeof more - strlen(more), ",\"opened\":%d", opened);
    OK(cudaFree(p));
    counted_free(DEVICE, 4096);
    return report_more("chatty", more);
}
