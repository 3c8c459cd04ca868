/* One buffer, two processes: the child is this program again, given the handle. */
#include "count.h"
#include "hip_min.h"
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

typedef struct { unsigned char reserved[64]; } hipIpcMemHandle_t;
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *, void *);
hipError_t hipIpcOpenMemHandle(void **, hipIpcMemHandle_t, unsigned);
hipError_t hipIpcCloseMemHandle(void *);
extern char **environ;
enum { N = 3 << 20 };

static int child(const char *hex) {
    hipIpcMemHandle_t h;
    unsigned char byte = 0;
    void *p;
    for (int i = 0; i < 64; i++) sscanf(hex + 2 * i, "%2hhx", &h.reserved[i]);
    OK(hipIpcOpenMemHandle(&p, h, 1));
    OK(hipMemcpy(&byte, (char *)p + N - 1, 1, hipMemcpyDeviceToHost));
    EXPECT(byte, 0x5a);
    EXPECT(hipFree(p), hipErrorInvalidValue);
    OK(hipIpcCloseMemHandle(p));
    return did.failures != 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return child(argv[1]);
    hipIpcMemHandle_t h;
    char hex[129];
    void *p;
    int status = -1;
    pid_t pid;
    OK(hipMalloc(&p, N));
    counted_alloc(DEVICE, N);
    OK(hipMemset(p, 0x5a, N));
    OK(hipDeviceSynchronize());
    OK(hipIpcGetMemHandle(&h, p));
    for (int i = 0; i < 64; i++) sprintf(hex + 2 * i, "%02x", h.reserved[i]);
    OK(posix_spawn(&pid, argv[0], NULL, NULL, (char *[]){argv[0], hex, NULL}, environ));
    OK(waitpid(pid, &status, 0) != pid);
    EXPECT(status, 0);
    OK(hipFree(p));
    counted_free(DEVICE, N);
    return report("ipc");
}
