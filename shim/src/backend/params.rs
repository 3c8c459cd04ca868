//! How long the parameters of kernels are, which a launch by pointers does not say.

use crate::doors::driver;
use crate::gate;
use gpumem_abi::types::{Opaque, SUCCESS};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of each parameter, by kernel. Those of code that goes are forgotten with all others: handles come
/// back.
static KNOWN: Mutex<Option<FxHashMap<usize, Arc<[u32]>>>> = Mutex::new(None);
/// Kernels that are kept, and parameters of one.
const KERNELS: usize = 8192;
const PARAMS: usize = 4096;
/// Largest parameter space, bytes (since CUDA 12.1).
const MOST_BYTES: usize = 32_764;

/// Bytes of each parameter of a kernel that was just launched, none if the driver does not say. `None` if it
/// is not to be asked now, or another thread is here: nobody waits.
pub fn sizes(function: Opaque, may_ask: bool) -> Option<Arc<[u32]>> {
    let key = function as usize;
    if let Some(sizes) = KNOWN.try_lock().ok()?.as_ref().and_then(|known| known.get(&key)) {
        return Some(sizes.clone());
    }
    let sizes: Arc<[u32]> = may_ask.then(|| ask(function).unwrap_or_default())?.into();
    let mut known = KNOWN.try_lock().ok()?;
    let known = known.get_or_insert_default();
    if known.len() < KERNELS {
        known.insert(key, sizes.clone());
    }
    Some(sizes)
}

/// Code goes, or a context with all of its own.
pub fn forget() {
    // Nor is anything known. In a child of a fork the lock may be held for ever.
    if gate::shim().is_none() {
        return;
    }
    if let Some(known) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        known.clear();
    }
}

#[cold]
fn ask(function: Opaque) -> Option<Vec<u32>> {
    let mut sizes = Vec::new();
    let mut is_kernel = false;
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: a handle that the driver has just launched; both numbers are written.
        let status = unsafe {
            match is_kernel {
                false => driver::cuFuncGetParamInfo(function, sizes.len(), &mut offset, &mut size),
                true => driver::cuKernelGetParamInfo(function, sizes.len(), &mut offset, &mut size),
            }
        };
        match status {
            Some(SUCCESS) if sizes.len() < PARAMS && size <= MOST_BYTES => sizes.push(size as u32),
            // One behind the last parameter.
            Some(1) => return Some(sizes),
            // Launches take a kernel of a library in a function's place.
            Some(_) if sizes.is_empty() && !is_kernel => is_kernel = true,
            _ => return None,
        }
    }
}
