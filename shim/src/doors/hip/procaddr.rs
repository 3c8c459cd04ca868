//! `hipGetProcAddress` and `hipGetDriverEntryPoint`: the HIP runtime's functions by name.
//!
//! Both answer with exported functions, which `hipGetProcAddress` finds by `dlsym` in the library itself (ROCm/clr,
//! hipamd/src/hip_device.cpp, `hipGetProcAddress`). Up to ROCm 6.4 it ignores its flags. So only the answer tells which
//! form a program got: the plain one, or the twin with the thread's own default stream.

use super::{export_named, holds, ours};
use crate::call::{Call, Real};
use crate::gate;
use crate::hooks::written;
use crate::process::elf;
use gpumem_abi::types::*;
use gpumem_wire::layout::Door;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Returns our function for an answer to this name. If the answer is HIP's own twin `…_spt`, it is our function of that
/// twin.
fn ours_for(name: &[u8], answer: usize) -> Option<usize> {
    let twin = || {
        let name = [name, b"_spt"].concat();
        let hook = export_named(&name)?;
        let symbol = CString::new(name).ok()?;
        (elf::object_at(answer)?.symbol(&symbol) == Some(answer)).then_some(hook)
    };
    if !holds(answer) {
        return None;
    }
    twin().or_else(|| ours(name, answer))
}

/// # Safety
/// `symbol` is NULL or a C string, and `pfn` is the program's out-parameter of a call that answered `status`.
unsafe fn answered(status: Status, symbol: *const c_char, pfn: *mut *mut c_void) -> Status {
    if status != SUCCESS || symbol.is_null() {
        return status;
    }
    // SAFETY: our caller vouches for both. After success `pfn` is written, or NULL.
    unsafe {
        let Some(answer) = written(status, pfn) else { return status };
        if let Some(found) = ours_for(CStr::from_ptr(symbol).to_bytes(), answer as usize) {
            *pfn = found as *mut c_void;
            gate::door(Door::ProcAddress);
        }
    }
    status
}

pub(super) unsafe fn hip(_: Call, real: Real<(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int)>) -> Status {
    let (symbol, pfn, ..) = real.args;
    // SAFETY: the arguments and the answer of one call are what `answered` wants.
    unsafe { answered(real.call(), symbol, pfn) }
}

/// The form since ROCm 7.1, without a version.
pub(super) unsafe fn entry_point(_: Call, real: Real<(*const c_char, *mut *mut c_void, u64, *mut c_int)>) -> Status {
    let (symbol, pfn, ..) = real.args;
    // SAFETY: the arguments and the answer of one call are what `answered` wants.
    unsafe { answered(real.call(), symbol, pfn) }
}
