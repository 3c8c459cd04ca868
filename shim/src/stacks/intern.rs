//! Numbers for call stacks: the same frames give the same number.
//!
//! Open addressing over the stacks' 64-bit hashes. Frames are not compared (of 65 536 stacks two share a hash with a
//! probability of 10⁻¹⁰). A known stack is found without a lock and without a write; a new one takes a short spinning
//! lock.
//!
//! An entry's place follows from its hash, so in a large table each entry is on a page of its own. The first table is
//! one page; a larger one replaces it when it is half full.

use crate::process::heap;
use crate::process::page::map;
use crate::process::threads;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

struct Entry {
    /// 0: the entry is free. Written after `id`.
    hash: AtomicU64,
    id: AtomicU32,
}

/// Slots of the first table, as a number of bits, and the bits that each next table has more.
const FIRST_BITS: u32 = 8;
const MORE_BITS: u32 = 2;
/// Number of tables; the last one is larger than 32-bit numbers can fill.
const TABLES: usize = 14;

/// The address of a table. A page's address has zeroes in its low bits, which hold the number of bits of a slot's
/// index.
#[derive(Clone, Copy)]
struct Table(usize);

const BITS: usize = 0xfff;

impl Table {
    /// Makes the empty table at a place in the order of sizes; `None` if there is no memory for it.
    fn new(place: usize) -> Option<Self> {
        let bits = FIRST_BITS + MORE_BITS * place as u32;
        // Zeroes are free entries.
        let at = map(size_of::<Entry>() << bits, libc::MAP_NORESERVE)?;
        // SAFETY: mmap made this mapping of this size just above, and no other thread knows it yet.
        unsafe { heap::use_small_pages(at, size_of::<Entry>() << bits) };
        Some(Self(at as usize | bits as usize))
    }

    #[inline(always)]
    fn slots(self) -> u64 {
        1 << (self.0 & BITS)
    }

    /// # Safety
    /// The table's interner lives that long.
    #[inline(always)]
    unsafe fn entry<'a>(self, index: u64) -> &'a Entry {
        let entries = (self.0 & !BITS) as *const Entry;
        // SAFETY: `new` made the mapping with `slots` slots, a power of two that masks the index. Our caller vouches
        // that it is still there: only the interner's end unmaps tables.
        unsafe { &*entries.add((index & (self.slots() - 1)) as usize) }
    }
}

/// Numbers stacks from 0, up to a capacity.
pub(crate) struct Interner {
    /// The [`Table`] that has all stacks.
    table: AtomicUsize,
    /// All tables ever made. The smaller ones may still be read.
    tables: [AtomicUsize; TABLES],
    capacity: u32,
    len: AtomicU32,
    /// Id of the thread that is adding a stack, else 0.
    adding: AtomicI32,
}

impl Interner {
    /// Creates an interner for `capacity` stacks: 32 to 170 bytes each.
    ///
    /// `None` if there is no memory for the first ones. Does not call malloc.
    pub(crate) fn new(capacity: u32) -> Option<Interner> {
        let first = Table::new(0)?;
        let tables = [const { AtomicUsize::new(0) }; TABLES];
        tables[0].store(first.0, Ordering::Relaxed);
        let (table, len) = (AtomicUsize::new(first.0), AtomicU32::new(0));
        Some(Interner { table, tables, capacity: capacity.max(8), len, adding: AtomicI32::new(0) })
    }

    /// Returns the number of known stacks.
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the number of the stack with this hash ([`Walk::hash`](super::Walk::hash)).
    ///
    /// For a new stack, `add` is called with the next number before any thread can get that number, one call at a time.
    /// If `add` returns false, the number is not used. `None` in that case, if the capacity is used up, or if a signal
    /// handler interrupts its own thread in `add`.
    #[inline]
    pub(crate) fn intern(&self, hash: u64, add: impl FnOnce(u32) -> bool) -> Option<u32> {
        // 0 means free, so a stack with hash 0 shares a number with those of hash 1.
        let hash = hash.max(1);
        match self.find(hash) {
            Ok(id) => Some(id),
            Err(_) => self.add(hash, add),
        }
    }

    #[inline(always)]
    fn table(&self) -> Table {
        Table(self.table.load(Ordering::Acquire))
    }

    /// Returns the number, or the table and the index for a new entry.
    #[inline(always)]
    fn find(&self, hash: u64) -> Result<u32, (Table, u64)> {
        let table = self.table();
        // The upper bits of the walk's hash are the best mixed.
        let mut index = hash >> 20;
        loop {
            // SAFETY: the table is this interner's, which lives for longer than this call.
            let entry = unsafe { table.entry(index) };
            match entry.hash.load(Ordering::Acquire) {
                0 => return Err((table, index)),
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
        let mut place = match self.find(hash) {
            Ok(id) => return Some(id),
            Err(place) => place,
        };
        let id = self.len();
        // At most half full, so that searches are short.
        if u64::from(id) * 2 >= place.0.slots() {
            self.grow()?;
            place = self.find(hash).err()?;
        }
        if id >= self.capacity || !add(id) {
            return None;
        }
        // SAFETY: the table is this interner's, which lives for longer than this call.
        let entry = unsafe { place.0.entry(place.1) };
        entry.id.store(id, Ordering::Relaxed);
        entry.hash.store(hash, Ordering::Release);
        self.len.store(id + 1, Ordering::Release);
        Some(id)
    }

    /// Replaces the table by a larger one; `None` if there is no memory for it. Only for a thread that holds the lock.
    fn grow(&self) -> Option<()> {
        let old = self.table();
        let made = self.tables.iter().position(|table| table.load(Ordering::Relaxed) == 0)?;
        let new = Table::new(made)?;
        for index in 0..old.slots() {
            // SAFETY: both tables are this interner's, which lives for longer than this call.
            let entry = unsafe { old.entry(index) };
            let hash = entry.hash.load(Ordering::Relaxed);
            if hash != 0 {
                // SAFETY: the new table is this interner's too, which lives for longer than this call. It has room for
                // four times as many.
                let free = (hash >> 20..).map(|index| unsafe { new.entry(index) });
                let free = free.into_iter().find(|entry| entry.hash.load(Ordering::Relaxed) == 0)?;
                free.id.store(entry.id.load(Ordering::Relaxed), Ordering::Relaxed);
                free.hash.store(hash, Ordering::Relaxed);
            }
        }
        self.tables[made].store(new.0, Ordering::Relaxed);
        self.table.store(new.0, Ordering::Release);
        Some(())
    }

    fn lock(&self) -> Option<Unlock<'_>> {
        let me = threads::os_id();
        // Adding a stack takes microseconds, but the ledger may have to grow for it: milliseconds, on a busy disk. A
        // thread that was killed while adding must not stop others for good.
        const SPINS: u32 = 1000;
        const SLEEPS: u32 = 20_000;
        for attempt in 0..SPINS + SLEEPS {
            match self.adding.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Unlock(self)),
                Err(holder) if holder == me => return None,
                Err(_) if attempt < SPINS => std::hint::spin_loop(),
                Err(_) => crate::process::cancel::sleep(std::time::Duration::from_micros(50)),
            }
        }
        None
    }
}

impl Drop for Interner {
    fn drop(&mut self) {
        let tables = self.tables.iter_mut().map(|table| Table(*table.get_mut()));
        for table in tables.filter(|table| table.0 != 0) {
            let bytes = table.slots() as usize * size_of::<Entry>();
            // SAFETY: `new` made this mapping with this length. The interner is being dropped, so
            // nothing borrows from it any more.
            unsafe { libc::munmap((table.0 & !BITS) as *mut libc::c_void, bytes) };
        }
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

    /// A stack found in a smaller table keeps its number in larger ones. Most processes have few stacks.
    #[test]
    fn tables_grow_with_their_stacks() {
        let interner = Interner::new(1 << 20).unwrap();
        let slots = |stacks: std::ops::Range<u64>| {
            for number in stacks {
                assert_eq!(interner.intern(hash(number), |_| true), Some(number as u32));
            }
            interner.table().slots()
        };
        assert_eq!((slots(0..128), slots(128..129), slots(129..512)), (256, 1024, 1024));
        assert_eq!(slots(512..3000), 16_384);
        assert!((0..3000).all(|number| interner.intern(hash(number), |_| panic!("known")) == Some(number as u32)));
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
