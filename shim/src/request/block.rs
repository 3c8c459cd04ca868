//! Plain device memory: an idle block of the pool, or a new one from the driver.

use super::Request;
use super::ladder::{obtain, spill};
use crate::call::Call;
use crate::gate;
use crate::pool::context_pool::ContextPool;
use crate::pool::{Lookup, Pool};
use crate::process::device_calls::DeviceCall;
use crate::stranded::{Verdict, Watch};
use gpumem_abi::types::{DevicePtr, OUT_OF_MEMORY as NO_MEMORY, SUCCESS, Status};
use gpumem_wire::settings::OomFallback;

/// Result of the pool's part of a request.
pub(super) enum Outcome {
    /// The request is answered, and a block is recorded if there is one.
    Done(Status),
    /// The driver or a limit has no memory for the request.
    Failed(Status),
    /// The pool does not handle this request.
    Aside,
}

/// Serves a request from the pool, or by calling `real`.
///
/// # Safety
/// `out` is the program's out-parameter: NULL, or valid for a write. `real` has written it when it succeeds.
#[inline]
pub(super) unsafe fn get(
    pool: &'static Pool,
    call: &Call,
    request: &Request,
    out: *mut DevicePtr,
    real: &mut impl FnMut(usize) -> Status,
) -> Outcome {
    let bytes = request.bytes;
    if out.is_null() || bytes == 0 {
        return Outcome::Aside;
    }
    match gate::note(|shim| pool.find(shim, call, bytes)) {
        Some(Lookup::Block(block)) => {
            pool.fill(block);
            // SAFETY: not NULL, as was checked above, and our caller vouches for the program's
            // out-parameter.
            unsafe { out.write(block.addr()) };
            Outcome::Done(SUCCESS)
        }
        Some(Lookup::None(context_pool, rounded)) => {
            // SAFETY: our caller vouches for `real` and `out`, and `grow` asks for the same.
            unsafe { grow(pool, call, bytes, context_pool, out, rounded, real) }
        }
        Some(Lookup::Aside) | None => Outcome::Aside,
    }
}

/// Gets a new block for a request that no idle block fits.
///
/// # Safety
/// As for [`get`].
#[cold]
unsafe fn grow(
    pool: &'static Pool,
    call: &Call,
    bytes: u64,
    context_pool: &'static ContextPool,
    out: *mut DevicePtr,
    rounded: u64,
    real: &mut impl FnMut(usize) -> Status,
) -> Outcome {
    let _call = DeviceCall::begin();
    let generation = context_pool.generation();
    pool.releaser.make_way_for(context_pool, rounded);
    let watch = Watch::new(call, bytes, Some(context_pool.record()));
    let mut ask = |bytes: u64| real(bytes as usize);
    let got = match watch.verdict {
        Verdict::Refuse => return Outcome::Done(NO_MEMORY),
        Verdict::Spill => spill(call, context_pool, bytes, OomFallback::Managed),
        Verdict::Nothing if pool.rules.place_growth_in_managed() && watch.is_pool_growth() => {
            spill(call, context_pool, bytes, OomFallback::Managed)
        }
        Verdict::Nothing => Err(NO_MEMORY),
    };
    let mut room = None;
    match got.or_else(|_| obtain(pool, call, context_pool, rounded, bytes, &mut ask, &mut room)) {
        Ok(obtained) => {
            // SAFETY: our caller vouches for the program's out-parameter, which is not NULL: `get` has checked that. If
            // `obtained` has no address, `real` has succeeded and written it.
            unsafe {
                let addr = obtained.addr.unwrap_or_else(|| out.read());
                out.write(pool.adopt(call, (context_pool, generation), addr, obtained, &watch));
            }
            Outcome::Done(SUCCESS)
        }
        Err(status) => {
            watch.answered(status, 0);
            Outcome::Failed(status)
        }
    }
}
