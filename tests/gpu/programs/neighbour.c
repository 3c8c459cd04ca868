// A neighbour on a card: it allocates and frees up to 256 MiB, loads and unloads code, until its input ends. It prints a line
// once it has begun.
//
//     neighbour SEED
#include <cuda.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        int code_ = (int)(call);                                                                       \
        if (code_ != 0) {                                                                              \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, code_);                  \
            exit(2);                                                                                   \
        }                                                                                              \
    } while (0)

enum { BLOCKS = 8, MODULES = 4 };
static const char ptx[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
                          ".visible .global .align 4 .b8 table[%d];\n.visible .entry none() { ret; }\n";

int main(int count, char **arguments) {
    unsigned seed = count > 1 ? (unsigned)atoi(arguments[1]) : 1;
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CUdeviceptr blocks[BLOCKS] = {0};
    CUmodule modules[MODULES] = {0};
    puts("{\"held\": true}");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 5 + (int)(rand_r(&seed) % 20)) == 0) {
        unsigned at = rand_r(&seed) % BLOCKS;
        if (blocks[at]) CHECK(cuMemFree(blocks[at]));
        CHECK(cuMemAlloc(&blocks[at], (1u + rand_r(&seed) % 32) << 20));
        if (rand_r(&seed) % 4) continue;
        at = rand_r(&seed) % MODULES;
        char source[sizeof ptx + 16];
        snprintf(source, sizeof source, ptx, (int)(1 + rand_r(&seed) % 8) << 20);
        if (modules[at]) CHECK(cuModuleUnload(modules[at]));
        CHECK(cuModuleLoadData(&modules[at], source));
        CUfunction none;
        CHECK(cuModuleGetFunction(&none, modules[at], "none"));
        CHECK(cuLaunchKernel(none, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    }
    return 0;
}
