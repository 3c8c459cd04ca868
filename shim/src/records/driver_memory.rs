//! Memory that the driver takes of a device for itself: for a context, for code, for the stacks of a kernel's threads.
//! No call says how much. Free memory falls around calls that ask for none, so the device is asked before and after
//! such calls.
//!
//! What this process allocated or gave back meanwhile is taken off. What other processes did meanwhile is not known.

use super::contexts;
use crate::call::Call;
use crate::process::clock;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use crate::vendor;
use gpumem_wire::kinds::{EventKind, Taken, Vendor};
use gpumem_wire::layout::{ContextRef, ContextSlot};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Free memory of a device, and what this process is known to have of it.
pub(crate) struct Look {
    context: ContextRef,
    free: u64,
    held: u64,
}

impl Look {
    /// By how many bytes free memory is lower in the later look `now`, without what the process itself allocated in
    /// between.
    fn fell(&self, now: &Self) -> i64 {
        let free = self.free.wrapping_sub(now.free) as i64;
        free.saturating_sub(now.held.wrapping_sub(self.held) as i64)
    }
}

/// Asks the device of this thread's context. `None` while anything captures, once the process has ended its work, and
/// for HIP, where each answer becomes the thread's last error.
pub(crate) fn look(shim: &'static Shim, vendor: Vendor) -> Option<Look> {
    if vendor != Vendor::Cuda || shim.registry.streams.capturing() > 0 || shim.has_exited() {
        return None;
    }
    let context = contexts::current(shim, vendor);
    let device = contexts::slot(shim, context)?.device;
    let (free, _) = vendor::of(vendor).memory_info()?;
    Some(Look { context, free, held: held(shim, vendor, device) })
}

/// As [`look`], if this thread's context is on that device. It is asked before another context is made. A context that
/// was never seen is not listed for this, since it may have ended, and the next context may have its handle.
pub(crate) fn look_on(shim: &'static Shim, vendor: Vendor, device: u32) -> Option<Look> {
    contexts::known(shim, vendor, vendor::of(vendor).current_context()?)?;
    let look = look(shim, vendor)?;
    let there = contexts::slot(shim, look.context)?.device;
    (there == device).then_some(look)
}

/// What the process is known to have of a device: live and idle memory, and what the driver was seen to take.
fn held(shim: &Shim, vendor: Vendor, device: u32) -> u64 {
    let of = |context| {
        let slot = contexts::slot(shim, context).unwrap_or_default();
        [slot.live_bytes, slot.idle_bytes, slot.taken_bytes].into_iter().fold(0, u64::wrapping_add)
    };
    contexts::on(shim, vendor, device as i32).into_iter().map(of).fold(0, u64::wrapping_add)
}

/// The driver has taken the difference of free memory since before the call. `of`: the context that it is for, or this
/// thread's if that is `None`.
pub(crate) fn since(shim: &'static Shim, call: &Call, before: &Look, what: Taken, of: Option<ContextRef>) {
    let Some(now) = look(shim, call.vendor) else { return };
    let fell = before.fell(&now);
    if fell <= 0 {
        return;
    }
    let context = of.unwrap_or(now.context);
    if let Some(taken) = contexts::field(shim, context, offset_of!(ContextSlot, taken_bytes)) {
        taken.fetch_add(fell as u64, Relaxed);
    }
    let stack = shim.site(call.site(), Made::Stream);
    shim.event(EventKind::DriverTook, |event| {
        event.a = fell as u64;
        event.b = what as u64;
        event.context = context;
        event.stack = stack;
    });
}

/// The driver has taken the difference of free memory since before something of gpumem's own was made in this thread's
/// context: how much.
pub(crate) fn own_since(shim: &'static Shim, before: &Look) -> u64 {
    let Some(now) = look(shim, Vendor::Cuda) else { return 0 };
    let fell = before.fell(&now).max(0) as u64;
    let taken = contexts::field(shim, now.context, offset_of!(ContextSlot, taken_bytes));
    if let Some(taken) = taken.filter(|_| fell > 0) {
        taken.fetch_add(fell, Relaxed);
        shim.event(EventKind::DriverTook, |event| {
            event.a = fell;
            event.b = Taken::Gpumem as u64;
            event.context = now.context;
        });
    }
    fell
}

/// The driver has given back the difference of free memory since before the call.
pub(crate) fn given_back(shim: &'static Shim, call: &Call, before: &Look) {
    let Some(now) = look(shim, call.vendor) else { return };
    let rose = before.fell(&now).saturating_neg();
    let taken = contexts::field(shim, now.context, offset_of!(ContextSlot, taken_bytes));
    if let Some(taken) = taken.filter(|_| rose > 0) {
        let _ = taken.fetch_update(Relaxed, Relaxed, |bytes| Some(bytes.saturating_sub(rose as u64)));
    }
}

/// How many kernels are remembered. The first launch of further kernels is not looked at.
const KERNELS: usize = 4096;
/// The kernels that were launched, each at a place that follows from its address.
static LAUNCHED: [AtomicU64; KERNELS] = [const { AtomicU64::new(0) }; KERNELS];

/// When a first launch was looked at first, and the time that all such looks took, ns.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
static SPENT_NS: AtomicU64 = AtomicU64::new(0);
/// Such looks may take this long in all, and beyond that a share of the time since the first one.
const FREE_NS: u64 = 20_000_000;
const SHARE: u64 = 128;

/// Remembers that a kernel was launched. True if no earlier launch of it is known.
#[inline(always)]
pub(crate) fn remember_launch(function: u64) -> bool {
    let place = function.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - KERNELS.ilog2());
    let known = &LAUNCHED[place as usize];
    match known.load(Relaxed) {
        0 => {
            known.store(function, Relaxed);
            function != 0
        }
        // The kernel was launched before; or another kernel has the place, and this one is left out.
        _ => false,
    }
}

/// Code is unloaded. A kernel that comes to its addresses later was not launched yet.
pub(crate) fn forget_launches() {
    LAUNCHED.iter().for_each(|known| known.store(0, Relaxed));
}

/// As [`look`], unless looks at first launches have taken their share of the time.
pub(crate) fn look_at_launch(shim: &'static Shim, vendor: Vendor) -> Option<Look> {
    let begin = clock::precise_ns();
    let first = FIRST_NS.compare_exchange(0, begin, Relaxed, Relaxed).err().unwrap_or(begin);
    if SPENT_NS.load(Relaxed) > FREE_NS + begin.saturating_sub(first) / SHARE {
        return None;
    }
    let look = look(shim, vendor);
    // The look behind the launch takes as long.
    SPENT_NS.fetch_add(2 * clock::precise_ns().saturating_sub(begin), Relaxed);
    look
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_allocated_meanwhile_is_not_the_drivers() {
        let look = |free, held| Look { context: 1, free, held };
        assert_eq!(look(100, 30).fell(&look(60, 50)), 20);
        // Another thread gave memory back.
        assert_eq!(look(100, 30).fell(&look(110, 10)), 10);
        assert_eq!(look(100, 30).fell(&look(120, 30)), -20);
    }

    #[test]
    fn a_kernel_is_launched_for_the_first_time_once() {
        assert!(remember_launch(0x5000));
        assert!(!remember_launch(0x5000));
        assert!(!remember_launch(0));
        forget_launches();
        assert!(remember_launch(0x5000));
    }
}
