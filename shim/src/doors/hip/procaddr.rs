//! `hipGetProcAddress`: the HIP runtime's functions by name.

use super::{export_named, holds, ours};
use crate::call::Call;
use crate::doors::rows::PER_THREAD;
use crate::gate;
use crate::hooks::written;
use gpumem_abi::types::*;
use gpumem_wire::layout::Door;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Flag 2 asks for the twin whose default stream is per thread, if there is one.
pub unsafe fn hip(
    _: Call,
    real: unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
    found: *mut c_int,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came. After success `pfn` is
    // written, and `symbol`, which is not NULL, is a C string.
    unsafe {
        let status = real(symbol, pfn, version, flags, found);
        if status != SUCCESS || symbol.is_null() {
            return status;
        }
        let (Some(answer), name) = (written(status, pfn), CStr::from_ptr(symbol).to_bytes()) else { return status };
        let twin = (flags & PER_THREAD != 0).then(|| export_named(&[name, b"_spt"].concat())).flatten();
        let twin = twin.filter(|_| holds(answer as usize));
        if let Some(found) = twin.or_else(|| ours(name, answer as usize)) {
            *pfn = found as *mut c_void;
            gate::door(Door::ProcAddress);
        }
        status
    }
}
