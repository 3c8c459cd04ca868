//! `cuGetProcAddress`: the way by which every cudart gets the driver's functions, by name, version and flags.

use super::{gate_of, ours, real_of};
use crate::call::{Call, Real};
use crate::doors::rows::{PER_THREAD, Row, is_at, row_at, row_for, rows_of};
use crate::doors::spare;
use crate::gate;
use crate::hooks::{runtime_memory, written};
use crate::process::elf;
use gpumem_abi::NEWEST;
use gpumem_abi::types::*;
use gpumem_wire::layout::Door;
use std::ffi::{CStr, c_char, c_int, c_void};

/// The form of CUDA 11.3, which runtimes since 12 do not call.
pub(super) unsafe fn v1(_: Call, real: Real<(*const c_char, *mut *mut c_void, c_int, u64)>) -> Status {
    let (symbol, pfn, version, flags) = real.args;
    runtime_memory::asked_as_old();
    // SAFETY: rule of the call: `real` gets the arguments as they came. It is asked again with an
    // out-parameter of ours. `answer` gets the call's arguments and status.
    unsafe {
        let status = real.call();
        let before = |version| {
            let mut other = std::ptr::null_mut();
            (real.with((symbol, &mut other, version, flags)) == SUCCESS).then_some(other as usize)
        };
        answer(status, symbol, pfn, (version, flags), before);
        status
    }
}

/// The form since CUDA 12.
pub(super) unsafe fn v2(_: Call, real: Real<(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int)>) -> Status {
    let (symbol, pfn, version, flags, _) = real.args;
    // SAFETY: rule of the call: `real` gets the arguments as they came. It is asked again with
    // out-parameters of ours. `answer` gets the call's arguments and status.
    unsafe {
        let status = real.call();
        let before = |version| {
            let (mut other, mut found) = (std::ptr::null_mut(), 0);
            (real.with((symbol, &mut other, version, flags, &mut found)) == SUCCESS).then_some(other as usize)
        };
        answer(status, symbol, pfn, (version, flags), before);
        status
    }
}

/// Replaces the driver's answer by our function, if the answer is a function of the table, or one that no table has.
/// `before` asks for the same function as of another version.
///
/// # Safety
/// The arguments of a call that has just returned `status`.
unsafe fn answer(
    status: Status,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    (version, flags): (c_int, u64),
    before: impl FnOnce(c_int) -> Option<usize>,
) {
    if status != SUCCESS || symbol.is_null() {
        return;
    }
    // SAFETY: our caller vouches for the arguments, and the call has succeeded. So `pfn` is
    // written, and `symbol`, which is not NULL, is a C string.
    let (Some(real), name) = (unsafe { written(status, pfn) }, unsafe { CStr::from_ptr(symbol) }) else { return };
    if real.is_null() {
        return;
    }
    let (real, name) = (real as usize, name.to_bytes());
    let row = row_of(real, name, version as u32, flags);
    let answer = row.map(ours).or_else(|| {
        // The function is newer than the table. Whatever it does, it must get the driver's own handles, and its
        // submissions must be noticed.
        if elf::is_ours(real) {
            return None;
        }
        let gate = gate_of(name, real);
        let new = is_new(real, name, version, before);
        new.then(|| spare::of(gate.unwrap_or(real), name)).flatten().or(gate)
    });
    if let Some(ours) = answer {
        // SAFETY: the driver has just written `pfn`, so it is not NULL and may be written.
        unsafe { *pfn = ours as *mut c_void };
        gate::door(Door::ProcAddress);
    }
}

/// True if a function without a row is unknown: by its name, or because the newest version whose functions are known
/// gives another function.
fn is_new(real: usize, base: &[u8], version: c_int, before: impl FnOnce(c_int) -> Option<usize>) -> bool {
    if !gpumem_abi::is_drivers(base) {
        return false;
    }
    let newest = NEWEST as c_int;
    !gpumem_abi::knows(base) || spare::is_for(base) || (version > newest && before(newest) != Some(real))
}

/// Returns the row of the driver's answer: by its address, or else by the table's entry for the version.
fn row_of(real: usize, base: &[u8], version: u32, flags: u64) -> Option<&'static Row> {
    if let Some(row) = rows_of(base).find(|row| is_at(row, real)).or_else(|| row_at(real)) {
        return Some(row);
    }
    // For a later version our function is given only if the driver itself shows that it is the same function.
    row_for(base, version, flags & PER_THREAD != 0).filter(|row| version <= NEWEST && real_of(row) != 0)
}
