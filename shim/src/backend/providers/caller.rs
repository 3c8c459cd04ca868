//! A record that threads read without a lock while another thread changes it. Its stamp, which a reader checks before
//! and after, shows if it was taken for another object.

use super::atomic::{AtomicU64, AtomicUsize, Ordering::*, fence};

/// A calling object, and the functions found for it; 0 if not looked up yet.
pub(crate) struct Caller<const N: usize> {
    /// The generation in the lower half, the count of changes above it, and [`CHANGING`].
    pub(super) stamp: AtomicU64,
    pub(super) start: AtomicUsize,
    pub(super) end: AtomicUsize,
    /// 1 if the object is one of the libraries that the functions come from.
    pub(super) is_library: AtomicUsize,
    pub(super) functions: [AtomicUsize; N],
}

/// Set while a thread changes the record. Then the record is not valid, and no other thread changes it.
const CHANGING: u64 = 1 << 63;

/// True if a record with this stamp is valid in a generation.
pub(super) fn is_of(stamp: u64, generation: usize) -> bool {
    stamp & CHANGING == 0 && stamp as u32 == generation as u32
}

impl<const N: usize> Caller<N> {
    pub(super) fn holds(&self, address: usize) -> bool {
        (self.start.load(Relaxed)..self.end.load(Relaxed)).contains(&address)
    }

    /// Returns the function at `index`, if this is the record of the object at an address: 0 if it was not looked up
    /// yet.
    #[inline(always)]
    pub(super) fn function(&self, address: usize, index: usize, generation: usize) -> Option<usize> {
        self.read(address, generation, |caller| caller.functions[index].load(Relaxed))
    }

    /// True if this is the record of a library that itself has the functions, and the address is in it.
    #[inline(always)]
    pub(crate) fn is_library(&self, address: usize, generation: usize) -> bool {
        self.read(address, generation, |caller| caller.is_library.load(Relaxed)) == Some(1)
    }

    /// Reads a field, if this is the record of the object at an address.
    #[inline(always)]
    fn read(&self, address: usize, generation: usize, field: impl FnOnce(&Self) -> usize) -> Option<usize> {
        let stamp = self.stamp.load(Acquire);
        if !is_of(stamp, generation) || !self.holds(address) {
            return None;
        }
        let value = field(self);
        fence(Acquire);
        (self.stamp.load(Relaxed) == stamp).then_some(value)
    }

    /// Changes the record that has this stamp, unless the stamp has changed or another thread is changing it.
    pub(super) fn change(&self, stamp: u64, generation: usize, change: impl FnOnce(&Self)) -> bool {
        let ours =
            stamp & CHANGING == 0 && self.stamp.compare_exchange(stamp, stamp | CHANGING, AcqRel, Relaxed).is_ok();
        if ours {
            fence(Release);
            change(self);
            let count = (stamp >> 32).wrapping_add(1) << 32 & !CHANGING;
            self.stamp.store(count | u64::from(generation as u32), Release);
        }
        ours
    }
}
