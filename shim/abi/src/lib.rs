//! The tables: one row for each function that gpumem intercepts.
//!
//! A row names the exported symbol, when `cuGetProcAddress` gives it (base name, first version,
//! stream flavour), the function of cudarc's `sys` whose ABI it must have, the hook that handles
//! it, and its arguments. Everything else is made from the rows: the exported functions, the slots
//! for the real ones, the answers of `dlsym` and `cuGetProcAddress`, the ABI check, the tests. A row
//! whose hook does not exist, or takes other arguments, does not compile.
//!
//! * [`driver_functions!`]: `cu*`, where CUDA's meaning lives.
//! * [`graph_thunks!`]: driver functions without a hook that may be given a graph handle of ours, and so
//!   are passed on with the real one in its place; [`hip_graph_thunks!`]: HIP's.
//! * [`driver_calls!`]: driver functions that the shim itself calls; [`hip_calls!`]: HIP's.
//! * [`runtime_functions!`]: `cuda*`, which give the call site and carry no meaning of their own.
//! * [`hip_functions!`]: `hip*`, hooked themselves, since HIP has no lower boundary.
//!
//! Not in the tables, and so passed through untouched: everything else. That includes allocation by the
//! functions from before CUDA 3.2 (`cuMemAlloc` without `_v2`), whose pointers have 32 bits; the shim
//! notices when a program asks for one of those. Functions that give the device work are there in all their
//! versions, and [`may_submit`] knows those of the future by their names.

#![allow(non_camel_case_types)]

#[macro_use]
mod driver;
#[macro_use]
mod hip;
#[macro_use]
mod runtime;
pub mod types;

/// Whether a driver function of this name gives the device work, as far as a name can tell. A driver that
/// is newer than the tables may have more of them than there are rows.
pub fn may_submit(name: &[u8]) -> bool {
    const BEGINNINGS: &[&str] = &[
        "cuLaunch",
        "cuMemcpy",
        "cuMemset",
        "cuMemPrefetch",
        "cuMemDiscard",
        "cuMemBatch",
        "cuMemMapArray",
        "cuStreamAddCallback",
        "cuStreamAttachMem",
        "cuStreamBatchMemOp",
        "cuStreamWait",
        "cuStreamWrite",
        "cuEventRecord",
        "cuCtxRecordEvent",
        "cuCtxWaitEvent",
        "cuGreenCtxRecordEvent",
        "cuGreenCtxWaitEvent",
        "cuSignalExternal",
        "cuWaitExternal",
        "cuGraphicsMap",
        "cuGraphicsUnmap",
        "cuGLMap",
        "cuGLUnmap",
        "cuEGLStreamConsumerAcquire",
        "cuEGLStreamConsumerRelease",
        "cuEGLStreamProducerPresent",
        "cuEGLStreamProducerReturn",
    ];
    // `cuda…`, `cublas…` are not the driver's.
    let Ok(name) = std::str::from_utf8(name) else { return false };
    if !name.starts_with("cu") || !name[2..].starts_with(|third: char| third.is_ascii_uppercase()) {
        return false;
    }
    let plain = name.strip_suffix("_ptsz").or(name.strip_suffix("_ptds")).unwrap_or(name);
    let plain =
        plain.rsplit_once("_v").filter(|(_, digits)| digits.parse::<u32>().is_ok()).map_or(plain, |split| split.0);
    BEGINNINGS.iter().any(|start| plain.starts_with(start)) || plain.ends_with("Async")
}

#[cfg(test)]
mod check;
