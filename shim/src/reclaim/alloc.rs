//! A request for memory: the pool's idle block, or one more from the driver.

use super::out_of_memory::{obtain, spill};
use crate::call::Call;
use crate::gate;
use crate::pool::Pool;
use crate::pool::context_pool::ContextPool;
use crate::pool::serve::{Lookup, Obtained};
use crate::records;
use crate::stranded::{Verdict, Watch};
use gpumem_abi::types::{DevicePtr, OUT_OF_MEMORY as NO_MEMORY, SUCCESS, Status};
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::settings::OomFallback;
use std::sync::atomic::Ordering::*;

/// Serves a request, if need be by `real`. `None` if the pool has nothing to do with it.
///
/// # Safety
/// `out` is the program's out-parameter, `real` the real function.
#[inline]
pub(crate) unsafe fn alloc(
    pool: &'static Pool,
    call: &Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
    out: *mut DevicePtr,
    bytes: usize,
) -> Option<Status> {
    if out.is_null() || bytes == 0 {
        return None;
    }
    match gate::note(|shim| pool.find(shim, call, bytes as u64))? {
        Lookup::Block(block) => {
            if pool.fills() {
                pool.filled(block);
            }
            // SAFETY: not NULL, as was checked above, and our caller vouches for the program's
            // out-parameter.
            unsafe { out.write(block.addr.load(Relaxed)) };
            Some(SUCCESS)
        }
        Lookup::None(context_pool, rounded) => {
            // SAFETY: our caller vouches for `real` and `out`, and `grow` asks for the same.
            Some(unsafe { grow(pool, call, context_pool, real, out, bytes as u64, rounded) })
        }
        Lookup::Aside => None,
    }
}

/// A request that no idle block fits: one more block.
///
/// # Safety
/// As for [`alloc`].
#[cold]
unsafe fn grow(
    pool: &'static Pool,
    call: &Call,
    context_pool: &'static ContextPool,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
    out: *mut DevicePtr,
    bytes: u64,
    rounded: u64,
) -> Status {
    let generation = context_pool.generation();
    // A block from the cache of a thread that has ended meanwhile.
    if let Some(block) = pool.take_of_ended_threads(context_pool, rounded) {
        gate::note(|shim| pool.handed_out(shim, call, block, context_pool, bytes, bytes as i64));
        if pool.fills() {
            pool.filled(block);
        }
        // SAFETY: our caller vouches for the program's out-parameter. It is not NULL: `alloc` has
        // checked that.
        unsafe { out.write(block.addr.load(Relaxed)) };
        return SUCCESS;
    }
    pool.make_way_for(context_pool, rounded);
    let watch = Watch::new(call, bytes, Some(context_pool.record()));
    // SAFETY: our caller vouches for `real` and for `out`, which is the program's. What `real`
    // leaves there is what the program would find natively.
    let mut ask = |bytes: u64| unsafe { real(out, bytes as usize) };
    let got = match watch.verdict {
        Verdict::Refuse => return NO_MEMORY,
        Verdict::Spill => spill(call, context_pool, bytes, OomFallback::Managed),
        Verdict::Nothing if pool.is_managed() && watch.is_pool_growth() => {
            spill(call, context_pool, bytes, OomFallback::Managed)
        }
        Verdict::Nothing => Err(NO_MEMORY),
    };
    let mut room = None;
    match got.or_else(|_| obtain(pool, call, context_pool, rounded, bytes, &mut ask, &mut room)) {
        Ok(obtained) => {
            // SAFETY: our caller vouches for the program's out-parameter, which is not NULL. Where
            // there is no address of ours, `real` has succeeded and written it.
            let (addr, flags) = unsafe {
                let (addr, flags) = pool.start(obtained.addr.unwrap_or_else(|| out.read()), &obtained, bytes);
                out.write(addr);
                (addr, flags)
            };
            let obtained = Obtained { flags: obtained.flags | flags, ..obtained };
            pool.adopt(call, (context_pool, generation), addr, obtained, &watch);
            SUCCESS
        }
        Err(status) => {
            watch.answered(status, 0);
            gate::note(|shim| records::allocations::failed(shim, call, AllocKind::Device, bytes, status));
            status
        }
    }
}
