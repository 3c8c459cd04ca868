/* A stub as some frameworks ship it: it stands in for the runtime, and says so. */
#include <stddef.h>

int stub_calls;
int cudaMalloc(void **p, size_t bytes) {
    stub_calls++;
    *p = (void *)0x5700b;
    return bytes == 42 ? 7777 : 0;
}
