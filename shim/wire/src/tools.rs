//! Profilers and checkers that watch the GPU, by the files of their libraries.

/// Beginnings of file names. libcupti is not among them: PyTorch loads it for its own profiler, which watches nothing
/// until it is asked to.
const TOOLS: [&[u8]; 5] =
    [b"libsanitizer-collection", b"libcuinj64", b"libTreeLauncher", b"libToolsInjection", b"librocprof"];

/// Three libraries that look like tools and are none. libamdhip64 needs the one that looks for tools since ROCm 6
/// (ROCm/clr, hipamd/src/hip_api_trace.cpp, `ToolInit`). RCCL and others need the one with which programs mark their
/// ranges. PyTorch needs the one with which it profiles itself when asked (Kineto, libkineto/src/RocprofLogger.cpp).
/// For the same reason a `rocprofiler_configure` does not make a library a tool.
const NONE: [&[u8]; 3] = [b"librocprofiler-register", b"librocprofiler-sdk-roctx", b"librocprofiler-sdk.so"];

/// True if a library with this file name watches the GPU. With it the shim only records.
pub fn is_tool(file: &[u8]) -> bool {
    let is = |names: &[&[u8]]| names.iter().any(|name| file.starts_with(name));
    is(&TOOLS) && !is(&NONE)
}

#[cfg(test)]
mod tests {
    use super::is_tool;

    #[test]
    fn what_watches_nothing_is_no_tool() {
        assert!(is_tool(b"libsanitizer-collection.so") && is_tool(b"librocprofiler64.so.1"));
        for none in [&b"libcupti.so.13"[..], b"librocprofiler-sdk.so.0", b"libsanitizer-public.so", b"libcuda.so.1"] {
            assert!(!is_tool(none), "{none:?}");
        }
    }
}
