//! Memory that the driver takes of a device for itself: for a context, for code, for the stacks of a kernel's threads.
//! No call tells its size. Free memory falls around calls that ask for none, so the device is asked before and after
//! such calls.
//!
//! If another thread of this process was meanwhile in a call that takes or frees device memory, nothing is counted: the
//! driver may have taken the memory for that call. What other processes did meanwhile is unknown.

use super::contexts;
use crate::backend::{self, reader};
use crate::call::Call;
use crate::process::clock;
use crate::process::device_calls::{self, DeviceCall};
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use gpumem_abi::types::Opaque;
use gpumem_wire::kinds::{EventKind, Taken, Vendor};
use gpumem_wire::layout::{ContextRef, ContextSlot, EventSlot, StrRef};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Free memory of a device at a time when no other thread was in a call that changes it.
pub(crate) struct Look {
    context: ContextRef,
    free: u64,
    total: u64,
    /// Result of [`device_calls::of_others`].
    others: u64,
    /// While this thread measures, no other thread does: each would count what the driver takes for the other.
    _measures: DeviceCall,
}

impl Look {
    /// Returns how much free memory fell from this look to the later look `now`, in bytes; 0 if another thread may have
    /// changed it.
    fn fell(&self, now: &Self) -> i64 {
        if self.others == now.others { self.free.wrapping_sub(now.free) as i64 } else { 0 }
    }

    /// Keeps the device's used bytes: once what was measured is recorded, so that they are not older than that.
    fn keep(&self, shim: &Shim) {
        contexts::used_is(shim, self.context, self.free, self.total, clock::now_ns());
    }
}

/// Asks the device of this thread's context. `None` during a capture, once the process has ended its work, while
/// another thread is in a call that changes free memory, and for HIP, whose answers become the thread's last error.
pub(crate) fn look(shim: &'static Shim, vendor: Vendor) -> Option<Look> {
    if vendor != Vendor::Cuda || shim.registry.streams.capturing() > 0 || shim.has_exited() {
        return None;
    }
    let context = contexts::current(shim, vendor);
    contexts::slot(shim, context)?;
    let (measures, others) = (DeviceCall::begin(), device_calls::of_others()?);
    let (free, total) = backend::of(vendor).memory_info()?;
    // A call that began while the device was asked may have changed the answer.
    let is_certain = device_calls::of_others() == Some(others);
    is_certain.then_some(Look { context, free, total, others, _measures: measures })
}

/// As [`look`], if this thread's context is on that device. It is called before another context is made. An unknown
/// context is not listed for this, since it may have ended, and the next context may get its handle.
pub(crate) fn look_on(shim: &'static Shim, vendor: Vendor, device: u32) -> Option<Look> {
    contexts::known(shim, vendor, backend::of(vendor).current_context()?)?;
    let look = look(shim, vendor)?;
    let there = contexts::slot(shim, look.context)?.device;
    (there == device).then_some(look)
}

/// Returns the device-wide used bytes, summed over devices. For each look since the last call it works out how much was
/// not this process's: called once a second, after the pool has told its idle bytes.
pub(crate) fn device_used(shim: &Shim) -> u64 {
    let mut by_device = BTreeMap::new();
    for &vendor in Vendor::ALL {
        for (_, known) in contexts::all(shim, vendor) {
            let Some(mut slot) = contexts::slot(shim, known.context) else { continue };
            let held = contexts::held(shim, vendor, known.device);
            if slot.not_ours == 0 && slot.used_ns != 0 {
                slot.not_ours = contexts::note_held(shim, known.context, slot.used_bytes, held);
                contexts::forget_note_if_asked_since(shim, known.context, slot.used_ns);
            }
            let used = by_device.entry((vendor as u8, slot.device)).or_insert((0, 0));
            *used = (*used).max((slot.used_ns, slot.used_now(held).0));
        }
    }
    by_device.values().map(|(_, used)| used).sum()
}

/// Attributes the drop of free memory since before the call to the driver; returns the bytes. `of`: the context that it
/// is for, or this thread's if `None`.
pub(crate) fn since(shim: &'static Shim, call: &Call, before: &Look, what: Taken, of: Option<ContextRef>) -> u64 {
    let Some((now, fell)) = fell_since(shim, call, before) else { return 0 };
    took(shim, call, of.unwrap_or(now.context), fell, what, None);
    now.keep(shim);
    fell
}

/// Returns the drop of free memory since before the call, and the look that shows it; `None` if it did not drop.
fn fell_since(shim: &'static Shim, call: &Call, before: &Look) -> Option<(Look, u64)> {
    let now = look(shim, call.vendor)?;
    let fell = u64::try_from(before.fell(&now)).ok().filter(|&fell| fell > 0)?;
    Some((now, fell))
}

/// Adds bytes that the driver took. `kernel`: a kernel's local memory per thread in bytes, and its name.
fn took(shim: &'static Shim, call: &Call, context: ContextRef, bytes: u64, what: Taken, kernel: Option<(u32, StrRef)>) {
    if let Some(taken) = taken(shim, context, what) {
        taken.fetch_add(bytes, Relaxed);
    }
    let stack = shim.site(call.site(), Made::Stream);
    let (per_thread, text) = kernel.unwrap_or_default();
    let (b, code) = (what as u64, per_thread as i32);
    shim.event(EventKind::DriverTook, EventSlot { a: bytes, b, context, stack, code, text, ..Default::default() });
}

/// Returns the bytes that the driver took in a context for one reason.
fn taken(shim: &Shim, context: ContextRef, what: Taken) -> Option<&AtomicU64> {
    contexts::field(shim, context, ContextSlot::taken_at(what))
}

/// If the driver took less for a first launch, local memory is not checked: the drop is code. 8 MiB are 32 bytes a
/// thread on a device with 132 processors.
const LOCAL_FROM: u64 = 8 << 20;

/// As [`since`], for the first launch of a kernel. The drop counts as its local memory if no kernel before had as much
/// per thread.
///
/// # Safety
/// The driver has just accepted the launch of `function`, or refused it and taken nothing.
pub(crate) unsafe fn since_launch(shim: &'static Shim, call: &Call, before: &Look, function: Opaque) {
    let Some((now, fell)) = fell_since(shim, call, before) else { return };
    // SAFETY: our caller vouches for the kernel. It is CUDA's, as `look` answers for no other.
    let local = (fell >= LOCAL_FROM).then(|| unsafe { reader::local_bytes(function) }).flatten();
    let most = contexts::field(shim, now.context, offset_of!(ContextSlot, local_per_thread));
    let is_most = |&local: &u32| most.is_some_and(|most| most.fetch_max(local.into(), Relaxed) < local.into());
    let Some(local) = local.filter(is_most) else {
        took(shim, call, now.context, fell, Taken::Launch, None);
        return now.keep(shim);
    };
    // SAFETY: our caller vouches for the kernel.
    let name = unsafe { reader::name_of(function) }.map_or(0, |name| shim.ledger.texts.intern(name.as_bytes()));
    contexts::set(shim, now.context, offset_of!(ContextSlot, local_kernel), name.into());
    took(shim, call, now.context, fell, Taken::Local, Some((local, name)));
    now.keep(shim);
}

/// Attributes the drop of free memory, since before gpumem made something of its own in this thread's context, to
/// gpumem; returns the bytes.
pub(crate) fn own_since(shim: &'static Shim, before: &Look) -> u64 {
    let Some(now) = look(shim, Vendor::Cuda) else { return 0 };
    let fell = before.fell(&now).max(0) as u64;
    if let Some(taken) = taken(shim, now.context, Taken::Gpumem).filter(|_| fell > 0) {
        taken.fetch_add(fell, Relaxed);
        shim.event_at(EventKind::DriverTook, (fell, Taken::Gpumem as u64), 0, now.context);
        now.keep(shim);
    }
    fell
}

/// Subtracts the rise of free memory since before the call from what the driver took for these reasons. Code that a
/// launch loaded ends with its module, too.
pub(crate) fn given_back(shim: &'static Shim, call: &Call, before: &Look, reasons: &[Taken]) {
    let Some(now) = look(shim, call.vendor) else { return };
    let mut rose = u64::try_from(before.fell(&now).saturating_neg()).unwrap_or(0);
    for &what in reasons {
        let Some(taken) = taken(shim, now.context, what).filter(|_| rose > 0) else { continue };
        let before = taken.fetch_update(Relaxed, Relaxed, |bytes| Some(bytes.saturating_sub(rose)));
        rose = rose.saturating_sub(before.unwrap_or(0));
    }
    now.keep(shim);
}

/// Places for kernels. PyTorch launches some thousand different ones.
const KERNELS: usize = 1 << 14;
/// Number of places tried for a kernel. If all are taken, its first launch is not examined.
const TRIES: usize = 8;
/// The launched kernels, each at or behind a place that follows from its address.
static LAUNCHED: [AtomicU64; KERNELS] = [const { AtomicU64::new(0) }; KERNELS];

/// Time of the first look around a frequent call; then the total time of such looks and of such calls, ns.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
static SPENT_NS: AtomicU64 = AtomicU64::new(0);
static CALLS_NS: AtomicU64 = AtomicU64::new(0);
/// Such looks may take this long in total, and beyond that a share of the time since the first one, and of the calls'
/// time: on a busy machine both are slow.
const FREE_NS: u64 = 20_000_000;
const SHARE: u64 = 128;
const SHARE_OF_CALLS: u64 = 4;

/// Remembers a kernel's launch. Returns true if no earlier launch of it is known.
#[inline(always)]
pub(crate) fn remember_launch(function: u64) -> bool {
    // Functions lie at equal distances, and with the product alone some distances would share few places.
    let place =
        ((function ^ function >> 13).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - KERNELS.ilog2())) as usize;
    LAUNCHED[place].load(Relaxed) != function && remember_behind(place, function)
}

/// Continues [`remember_launch`] behind its first place.
#[inline(never)]
fn remember_behind(place: usize, function: u64) -> bool {
    for at in place..place + TRIES {
        let known = &LAUNCHED[at % KERNELS];
        match known.load(Relaxed) {
            0 => {
                known.store(function, Relaxed);
                return function != 0;
            }
            there if there == function => return false,
            _ => {}
        }
    }
    false
}

/// Forgets launches when code is unloaded: a kernel that is later loaded at its addresses was not launched yet.
pub(crate) fn forget_launches() {
    // A page without entries is not touched.
    LAUNCHED.iter().filter(|known| known.load(Relaxed) != 0).for_each(|known| known.store(0, Relaxed));
}

/// Makes a frequent call, whose time counts for the looks' share.
pub(crate) fn timed<T>(real: impl FnOnce() -> T) -> T {
    let begin = clock::precise_ns();
    let done = real();
    CALLS_NS.fetch_add(clock::precise_ns().saturating_sub(begin), Relaxed);
    done
}

/// As [`look`], unless looks around frequent calls have used up their share of the time.
pub(crate) fn look_in_share(shim: &'static Shim, vendor: Vendor) -> Option<Look> {
    let begin = clock::precise_ns();
    let first = FIRST_NS.compare_exchange(0, begin, Relaxed, Relaxed).err().unwrap_or(begin);
    let share = begin.saturating_sub(first) / SHARE + CALLS_NS.load(Relaxed) / SHARE_OF_CALLS;
    if SPENT_NS.load(Relaxed) > FREE_NS + share {
        return None;
    }
    let look = look(shim, vendor);
    // The look after the call takes as long.
    SPENT_NS.fetch_add(2 * clock::precise_ns().saturating_sub(begin), Relaxed);
    look
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(free: u64, others: u64) -> Look {
        Look { context: 1, free, total: 200, others, _measures: DeviceCall::begin() }
    }

    #[test]
    fn the_fall_of_free_memory_counts_only_if_no_other_thread_may_have_caused_it() {
        assert_eq!(look(100, 0).fell(&look(80, 0)), 20);
        assert_eq!(look(100, 0).fell(&look(120, 0)), -20);
        // Another thread has taken or freed memory meanwhile.
        for free in [60, 80, 120] {
            assert_eq!(look(100, 0).fell(&look(free, 1 << 32)), 0);
        }
    }

    /// Also with more kernels than expected, at addresses spaced like a driver's.
    #[test]
    fn a_kernel_is_launched_for_the_first_time_once() {
        for apart in [0x10, 0x40, 0x150, 0x1c0, 0x2a0, 0x1000] {
            forget_launches();
            let kernels = || (1..=6000_u64).map(|kernel| 0x5500_0000_0000 + kernel * apart);
            let first = kernels().filter(|&kernel| remember_launch(kernel)).count();
            assert!(first >= 5990, "{first} of those that lie {apart:#x} apart");
            assert_eq!(kernels().filter(|&kernel| remember_launch(kernel)).count(), 0);
        }
        assert!(!remember_launch(0));
        forget_launches();
        assert!(remember_launch(0x5000));
    }
}
