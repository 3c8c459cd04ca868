//! Numbers for call stacks: the same frames give the same number.
//!
//! Open addressing over the stacks' 64-bit hashes; frames are not compared (of 65 536 stacks two
//! share a hash with a probability of 10⁻¹⁰). A known stack is found without a lock and without a
//! write; a new one takes a short spinning lock.

use crate::process::threads;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

struct Entry {
    /// 0: free. Written after `id`.
    hash: AtomicU64,
    id: AtomicU32,
}

/// Gives out numbers from 0, one for each stack, up to a capacity.
pub struct Interner {
    entries: *const Entry,
    mask: u64,
    capacity: u32,
    len: AtomicU32,
    /// Thread id of who is adding a stack, 0 when nobody is.
    adding: AtomicI32,
}

// SAFETY: the entries belong to no thread. Their mapping lives as long as the interner.
unsafe impl Send for Interner {}
// SAFETY: the entries are atomics, which many threads may use at once.
unsafe impl Sync for Interner {}

impl Interner {
    /// Room for `capacity` stacks: 32 to 64 bytes each, of which only touched pages are backed.
    ///
    /// `None` if the memory cannot be had. Does not call malloc.
    pub fn new(capacity: u32) -> Option<Interner> {
        // At most half full, so that searches are short.
        let slots = (u64::from(capacity.max(8)) * 2).next_power_of_two();
        // SAFETY: without MAP_FIXED the kernel picks addresses that are free. Zeroes are free
        // entries.
        let entries = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), slots as usize * size_of::<Entry>(), access, flags, -1, 0)
        };
        (entries != libc::MAP_FAILED).then(|| Interner {
            entries: entries.cast(),
            mask: slots - 1,
            capacity,
            len: AtomicU32::new(0),
            adding: AtomicI32::new(0),
        })
    }

    /// Stacks known.
    pub fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    /// Whether no stack is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the stack with this hash ([`Walk::hash`](super::Walk::hash)).
    ///
    /// For a new one `add` is called with the next number, before anybody can get it, one call at
    /// a time; if it returns false the number is not given out. `None` then, when the capacity is
    /// used up, and when a signal handler interrupts its own thread in `add`.
    #[inline]
    pub fn intern(&self, hash: u64, add: impl FnOnce(u32) -> bool) -> Option<u32> {
        // 0 means free; that stack shares a number with those of hash 1.
        let hash = hash.max(1);
        match self.find(hash) {
            Ok(id) => Some(id),
            Err(_) => self.add(hash, add),
        }
    }

    #[inline(always)]
    fn entry(&self, index: u64) -> &Entry {
        // SAFETY: the mapping has `mask + 1` entries, and the index is masked by that. It lives as
        // long as `self`.
        unsafe { &*self.entries.add((index & self.mask) as usize) }
    }

    /// The number, or the index where it would be put.
    #[inline(always)]
    fn find(&self, hash: u64) -> Result<u32, u64> {
        // The upper bits of the walk's hash are the best mixed.
        let mut index = hash >> 20;
        loop {
            let entry = self.entry(index);
            match entry.hash.load(Ordering::Acquire) {
                0 => return Err(index),
                found if found == hash => return Ok(entry.id.load(Ordering::Relaxed)),
                _ => index += 1,
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn add(&self, hash: u64, add: impl FnOnce(u32) -> bool) -> Option<u32> {
        if self.len() >= self.capacity {
            // The last place may have gone to this very stack since the caller looked.
            return self.find(hash).ok();
        }
        let _adding = self.lock()?;
        let index = match self.find(hash) {
            Ok(id) => return Some(id),
            Err(index) => index,
        };
        let id = self.len();
        if id >= self.capacity || !add(id) {
            return None;
        }
        let entry = self.entry(index);
        entry.id.store(id, Ordering::Relaxed);
        entry.hash.store(hash, Ordering::Release);
        self.len.store(id + 1, Ordering::Release);
        Some(id)
    }

    fn lock(&self) -> Option<Unlock<'_>> {
        let me = threads::os_id();
        // Adding a stack takes microseconds, but the ledger may have to grow for it: milliseconds, on
        // a busy disk. Whoever died in it (a killed thread) must not stop others for good.
        const SPINS: u32 = 1000;
        const SLEEPS: u32 = 20_000;
        for attempt in 0..SPINS + SLEEPS {
            match self.adding.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Unlock(self)),
                Err(owner) if owner == me => return None,
                Err(_) if attempt < SPINS => std::hint::spin_loop(),
                Err(_) => crate::process::cancel::sleep(std::time::Duration::from_micros(50)),
            }
        }
        None
    }
}

impl Drop for Interner {
    fn drop(&mut self) {
        let bytes = (self.mask as usize + 1) * size_of::<Entry>();
        // SAFETY: `new` made this mapping with this length. The interner is being dropped, so
        // nothing borrows from it any more.
        unsafe { libc::munmap(self.entries.cast_mut().cast(), bytes) };
    }
}

struct Unlock<'a>(&'a Interner);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.adding.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xff51_afd7_ed55_8ccd)
    }

    #[test]
    fn same_hash_same_number_until_full() {
        let interner = Interner::new(100).unwrap();
        for number in 0..100 {
            assert_eq!(interner.intern(hash(number), |id| id == number as u32), Some(number as u32));
        }
        for number in 0..100 {
            assert_eq!(interner.intern(hash(number), |_| panic!("known")), Some(number as u32));
        }
        assert_eq!(interner.intern(hash(100), |_| panic!("full")), None);
        assert_eq!(interner.len(), 100);
    }

    #[test]
    fn a_number_that_could_not_be_recorded_is_not_given_out() {
        let interner = Interner::new(8).unwrap();
        assert_eq!(interner.intern(5, |_| false), None);
        assert_eq!(interner.intern(5, |id| id == 0), Some(0));
    }

    #[test]
    fn adding_within_adding_gives_nothing() {
        let interner = Interner::new(8).unwrap();
        let outer = interner.intern(1, |_| interner.intern(2, |_| panic!("re-entered")).is_none());
        assert_eq!(outer, Some(0));
        assert_eq!(interner.intern(2, |_| true), Some(1));
    }

    #[test]
    fn threads_agree_and_each_stack_is_added_once() {
        const STACKS: u64 = 5_000;
        let interner = Interner::new(STACKS as u32).unwrap();
        let added = AtomicUsize::new(0);
        let answers: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let add = |_| added.fetch_add(1, Ordering::Relaxed) < usize::MAX;
                        (0..STACKS).map(|number| interner.intern(hash(number), add).unwrap()).collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(added.into_inner(), STACKS as usize);
        assert!(answers.iter().all(|ids| *ids == answers[0]));
        let mut ids = answers[0].clone();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..STACKS as u32));
    }
}
