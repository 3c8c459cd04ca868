//! What belongs to a GPU runtime: frames in it are never the call site that a user looks for.

/// Beginnings of the names of libraries.
const LIBRARIES: &[&str] = &[
    // Ours.
    "libgpumem.so",
    // NVIDIA: driver, runtime, and the libraries that allocate for their callers.
    "libcuda.so",
    "libcudart",
    "libcudadebugger",
    "libcublas",
    "libcudnn",
    "libcufft",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libcutensor",
    "libnccl",
    "libnvrtc",
    "libnvJitLink",
    "libnvjitlink",
    "libnvidia-",
    "libnvperf",
    "libcupti",
    // AMD.
    "libamdhip64",
    "libhsa-runtime64",
    "libamd_comgr",
    "libhipblas",
    "libhipfft",
    "libhipsolver",
    "libhipsparse",
    "librocblas",
    "librocfft",
    "librocsolver",
    "librocsparse",
    "libMIOpen",
    "librccl",
];

/// Beginnings of function names, for runtimes that are linked statically into the program.
const FUNCTIONS: &[&str] = &[
    "cudart::",
    "libcudart_static_",
    "__cudart",
    "cudaMalloc",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cudaMemPool",
    "cudaMipmap",
    "cudaArrayCreate",
    "cudaImportExternal",
    "cudaExternalMemory",
    "cudaIpcOpen",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaStreamCreate",
    "cudaGraphClone",
    "cudaGraphCreate",
    "cudaGraphExecUpdate",
    "cudaGraphInstantiate",
    "cudaGraphLaunch",
    "hipMalloc",
    "hipHostMalloc",
    "hipHostRegister",
    "hipGraph",
    "hipStream",
    // Rust's bindings: the frame that matters called them.
    "cudarc::driver::sys::",
    "cudarc::driver::result::",
    "cudarc::runtime::sys::",
    "cudarc::runtime::result::",
];

/// Names of the driver's functions begin with `cu` and a noun.
const DRIVER: &[&str] =
    &["cuMem", "cuArray", "cuMipmappedArray", "cuGraph", "cuStream", "cuImportExternal", "cuIpc", "cuCtx"];

/// True for the path of a library that belongs to a GPU runtime.
pub(super) fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    LIBRARIES.iter().any(|start| name.starts_with(start))
}

/// Beginnings of the names of functions of the standard library of C++, which hand calls on.
const STANDARD: &[&str] = &["std::", "__gnu_cxx::"];

/// True for a frame in the standard library of C++: its callers are what a user looks for.
pub(crate) fn is_standard(name: &str) -> bool {
    STANDARD.iter().any(|start| name.starts_with(start))
}

/// True for the (demangled) name of a function that belongs to a GPU runtime, or only hands its call on.
pub(super) fn is_function(name: &str) -> bool {
    // C++ templates in the vendor's headers carry their return type in front.
    let name = name.strip_prefix("cudaError ").or(name.strip_prefix("cudaError_t ")).unwrap_or(name);
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    begins(FUNCTIONS) || begins(DRIVER) || is_standard(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_and_programs_are_not() {
        for path in
            ["/usr/lib/libcuda.so.1", "/x/libcudart-d0da41ae.so.12", "/opt/rocm/lib/libamdhip64.so.6", "libgpumem.so"]
        {
            assert!(is_library(path), "{path}");
        }
        for path in ["/app/libggml-cuda.so", "/usr/lib/libc.so.6", "/x/libtorch_cuda.so", "/home/libcuda.so/app"] {
            assert!(!is_library(path), "{path}");
        }
        for name in [
            "cudaMalloc",
            "cudart::cudaApiMalloc(void**, unsigned long)",
            "cudaError cudaMallocManaged<float>",
            "cuMemAlloc_v2",
            "std::allocator<float>::allocate(unsigned long)",
        ] {
            assert!(is_function(name), "{name}");
        }
        for name in
            ["ggml_cuda_device_malloc(void**, unsigned long, int)", "main", "curl_easy_init", "cudnnCreate2", "custom"]
        {
            assert!(!is_function(name), "{name}");
        }
    }
}
