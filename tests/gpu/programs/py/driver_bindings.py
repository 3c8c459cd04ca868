"""cuda-bindings: the driver API straight from Python, as libraries without a runtime use it."""
import numpy as np

try:
    from cuda.bindings import driver as cu
except ImportError:
    from cuda import cuda as cu

import digest


def check(answer):
    code, *values = answer
    if code != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"driver answered {code}")
    return values[0] if len(values) == 1 else values


check(cu.cuInit(0))
device = check(cu.cuDeviceGet(0))
context = check(cu.cuDevicePrimaryCtxRetain(device))
check(cu.cuCtxSetCurrent(context))

# Plain memory.
for size in (1, 1000, 4096, 3 << 20):
    pointer = check(cu.cuMemAlloc(size))
    check(cu.cuMemsetD8(pointer, size % 251, size))
    host = np.empty(size, np.uint8)
    check(cu.cuMemcpyDtoH(host.ctypes.data, pointer, size))
    digest.add(host)
    base, extent = check(cu.cuMemGetAddressRange(pointer))
    print("range", int(base) == int(pointer), extent)
    check(cu.cuMemFree(pointer))

# Stream-ordered memory and a graph around it.
stream = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
pointer = check(cu.cuMemAllocAsync(1 << 16, stream))
check(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
for value in range(5):
    check(cu.cuMemsetD32Async(pointer, 1000 + value, 1 << 14, stream))
graph = check(cu.cuStreamEndCapture(stream))
executable = check(cu.cuGraphInstantiate(graph, 0))
for _ in range(3):
    check(cu.cuGraphLaunch(executable, stream))
host = np.empty(1 << 14, np.uint32)
check(cu.cuMemcpyDtoHAsync(host.ctypes.data, pointer, 1 << 16, stream))
check(cu.cuStreamSynchronize(stream))
digest.add(host)
check(cu.cuGraphExecDestroy(executable))
check(cu.cuGraphDestroy(graph))
check(cu.cuMemFreeAsync(pointer, stream))
check(cu.cuStreamSynchronize(stream))
check(cu.cuStreamDestroy(stream))

# Virtual memory: reserve, create, map, write, and all of it back.
properties = cu.CUmemAllocationProp()
properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
properties.location.id = 0
grain = check(cu.cuMemGetAllocationGranularity(properties, cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
space = check(cu.cuMemAddressReserve(4 * grain, 0, cu.CUdeviceptr(0), 0))
handles = [check(cu.cuMemCreate(grain, properties, 0)) for _ in range(4)]
for i, handle in enumerate(handles):
    check(cu.cuMemMap(cu.CUdeviceptr(int(space) + i * grain), grain, 0, handle, 0))
access = cu.CUmemAccessDesc()
access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
access.location.id = 0
access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
check(cu.cuMemSetAccess(space, 4 * grain, [access], 1))
check(cu.cuMemsetD32(space, 77, grain))
host = np.empty(grain // 4, np.uint32)
check(cu.cuMemcpyDtoH(host.ctypes.data, cu.CUdeviceptr(int(space) + 3 * grain), grain))
digest.add(host)
check(cu.cuMemUnmap(space, 4 * grain))
for handle in handles:
    check(cu.cuMemRelease(handle))
check(cu.cuMemAddressFree(space, 4 * grain))

# Refusals answer as they do natively.
print("too much", cu.cuMemAlloc(1 << 50)[0], "wild", cu.cuMemFree(cu.CUdeviceptr(0x1234))[0])
check(cu.cuDevicePrimaryCtxRelease(device))
digest.done()
