//! Files and functions of GPU runtimes: their frames are never the call site that a user looks for.

/// Prefixes of library names.
const LIBRARIES: &[&str] = &[
    // gpumem itself.
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

/// Prefixes of function names, for runtimes that are linked statically into the program.
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
    // Rust bindings: the caller is the frame that matters.
    "cudarc::driver::sys::",
    "cudarc::driver::result::",
    "cudarc::runtime::sys::",
    "cudarc::runtime::result::",
];

/// Names of driver functions begin with `cu` and a noun.
const DRIVER: &[&str] =
    &["cuMem", "cuArray", "cuMipmappedArray", "cuGraph", "cuStream", "cuImportExternal", "cuIpc", "cuCtx"];

/// True for the path of a GPU runtime's library.
pub(super) fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    LIBRARIES.iter().any(|start| name.starts_with(start))
}

/// Prefixes of functions in the C++ standard library, which pass calls on. Some names, such as that of
/// `std::make_shared` in GCC 12, cannot be demangled.
const STANDARD: &[&str] = &["std::", "__gnu_cxx::", "_ZSt", "_ZNSt", "_ZNKSt", "_ZN9__gnu_cxx", "_ZNK9__gnu_cxx"];

/// True for a frame in the C++ standard library: users look for its callers.
pub(crate) fn is_standard(name: &str) -> bool {
    STANDARD.iter().any(|start| name.starts_with(start))
}

/// True if a function, by its demangled name, belongs to a GPU runtime or only passes its call on.
pub(super) fn is_function(name: &str) -> bool {
    // C++ templates in the vendor's headers begin with their return type.
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
            "_ZSt11make_sharedI6BufferJiEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES3_E4typeEEDpOT0_",
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
