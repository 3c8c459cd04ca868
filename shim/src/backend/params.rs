//! Bytes of kernel parameters, which a launch by pointers does not state.

pub(crate) use super::cuda_graphs::functions::MAX_PARAM_BYTES;
use super::cuda_graphs::functions::params_of;
use crate::process::wiped::{Place, Word};
use gpumem_abi::types::{EXTRA_BUFFER, EXTRA_BYTES, EXTRA_END, Opaque};
use rustc_hash::FxHashMap;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

/// Bytes of each parameter, by kernel. When code is unloaded all are forgotten, because handles come back.
// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const KNOWN: Place<Mutex<FxHashMap<usize, Arc<[u32]>>>> = unsafe { Place::new(Word::KernelParams) };
/// Maximum number of kernels kept.
const KERNELS: usize = 8192;

/// Returns the bytes of each parameter of a kernel that was just launched, none if the driver does not tell. `None` if
/// it may not be asked now, or another thread is here, which is not waited for.
pub(crate) fn sizes(function: Opaque, may_ask: bool) -> Option<Arc<[u32]>> {
    let key = function as usize;
    let known = KNOWN.get_or_default()?;
    if let Some(sizes) = known.try_lock().ok()?.get(&key) {
        return Some(sizes.clone());
    }
    let sizes: Arc<[u32]> = may_ask.then(|| ask(function).unwrap_or_default())?.into();
    let mut known = known.try_lock().ok()?;
    if known.len() < KERNELS {
        known.insert(key, sizes.clone());
    }
    Some(sizes)
}

/// Maximum number of entries in a list of extra parameters.
const MOST_EXTRA: usize = 16;

/// Returns the buffer that a list of extra parameters names, and its bytes. `None` if it names none, or has an unknown
/// entry.
///
/// # Safety
/// NULL, or a list as `cuLaunchKernel` takes it.
pub(crate) unsafe fn packed(extra: *const usize) -> Option<(*const u8, usize)> {
    if extra.is_null() {
        return None;
    }
    let (mut buffer, mut bytes) = (null(), 0);
    for index in (0..MOST_EXTRA).step_by(2) {
        // SAFETY: our caller vouches for a list as cuLaunchKernel takes it: each key but the last
        // has a value, and EXTRA_END ends the list.
        unsafe {
            let value = || *extra.add(index + 1);
            match *extra.add(index) {
                EXTRA_END => break,
                EXTRA_BUFFER => buffer = value() as *const u8,
                EXTRA_BYTES => bytes = (value() as *const usize).read_unaligned(),
                _ => return None,
            }
        }
    }
    (!buffer.is_null()).then_some((buffer, bytes))
}

/// Forgets all kernels, when code or a context goes.
pub(crate) fn forget() {
    KNOWN.locked().clear();
}

#[cold]
fn ask(function: Opaque) -> Option<Vec<u32>> {
    // Launches accept a library's kernel in place of a function.
    let params = params_of(function, null_mut()).or_else(|| params_of(null_mut(), function))?;
    Some(params.into_iter().map(|(_, bytes)| bytes).collect())
}
