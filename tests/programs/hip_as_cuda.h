/* The demo's CUDA calls as HIP's, by renaming, as ggml does it. Put before
 * everything else (cc -include): cuda_min.h then declares the HIP functions.
 * What HIP has in another shape is in hip_as_cuda.c. */
#pragma once
#define cudaMalloc hipMalloc
#define cudaFree hipFree
#define cudaMemGetInfo hipMemGetInfo
#define cudaMemsetAsync hipMemsetAsync
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaGetLastError hipGetLastError
#define cudaDeviceSynchronize hipDeviceSynchronize
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStreamBeginCapture hipStreamBeginCapture
#define cudaStreamEndCapture hipStreamEndCapture
#define cudaGraphDestroy hipGraphDestroy
#define cudaGraphInstantiate hipGraphInstantiateWithFlags
#define cudaGraphExecDestroy hipGraphExecDestroy
#define cudaGraphLaunch hipGraphLaunch
#define cudaGraphExecUpdate as_cuda_exec_update
#define cudaLibraryLoadData as_cuda_library_load
#define cudaLibraryGetKernel as_cuda_library_kernel
#define cudaLibraryUnload as_cuda_library_unload
#define cudaLaunchKernel as_cuda_launch
