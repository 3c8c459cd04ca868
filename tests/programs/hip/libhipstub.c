/* A stub as some frameworks ship it: it stands in for the HIP runtime. */
#include <stddef.h>
#include <stdint.h>

int stub_calls;
int hipMalloc(void **p, size_t bytes) {
    stub_calls++;
    /* An address of its own each time, as memory that lives has. */
    *p = (void *)(uintptr_t)(0x57000 + 0x1000 * stub_calls);
    return bytes == 42 ? 7777 : 0;
}
