/* hipDeviceReset takes everything with it; what comes after is new. */
#include "count.h"
#include "hip_min.h"

hipError_t hipInit(unsigned);
hipError_t hipDeviceReset(void);

int main(void) {
    void *a, *b, *c;
    OK(hipInit(0));
    OK(hipMalloc(&a, 1000));
    OK(hipHostMalloc(&b, 2000, 0));
    OK(hipDeviceReset());
    EXPECT(hipFree(a), hipErrorInvalidValue);
    OK(hipMalloc(&c, 3000));
    return report("reset");
}
