/* Linked to a library whose constructor allocates, then to a stub that exports cudaMalloc: the constructor's call is
 * the stub's, though that of the preload has not run yet. */
#include <stdio.h>

extern int stub_calls, ctor_failed;

int main(void) {
    printf("calls %d failed %d\n", stub_calls, ctor_failed);
    return 0;
}
