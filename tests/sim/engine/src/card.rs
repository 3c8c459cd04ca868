//! One card for several processes (`SIM_CARD=FILE`): what all of them have of their first device, in a file that they map.
//!
//! The file is made of words of 64 bits: [`HEAD`] of the card, then [`SLOT`] for each of [`SLOTS`] processes. A process has
//! a slot as long as it holds the lock of the slot's first byte, which ends with the process. Whoever changes a word holds
//! a lock of the whole file (`flock`).

use crate::config::config;
use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

/// Words of the card: its bytes, and the most that were ever in use.
const HEAD: usize = 4;
const SIZE: usize = 0;
const MOST: usize = 1;
/// Words of a slot: the process, the bytes that it has on the card, and those that a checkpoint took.
const SLOT: usize = 4;
const PID: usize = 0;
const BYTES: usize = 1;
const PARKED: usize = 2;
const SLOTS: usize = 64;
const FILE_BYTES: usize = (HEAD + SLOTS * SLOT) * 8;

/// The file's words, and the slot of this process.
struct Card {
    words: &'static [AtomicU64],
    own: usize,
}

/// The file while this thread changes it. Its locks are held through it.
struct Open(File);

/// The descriptor of the file while it is open, else -1. Only one is, since the machine is locked.
static OPEN: AtomicI32 = AtomicI32::new(-1);

impl Open {
    fn new(path: &str) -> io::Result<Open> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        OPEN.store(file.as_raw_fd(), SeqCst);
        // SAFETY: flock takes numbers, and the descriptor is open.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(Open(file))
    }

    /// Asks the kernel about the lock of a slot, or for it; the type that comes back.
    fn slot_lock(&self, command: libc::c_int, slot: usize) -> Option<libc::c_int> {
        // SAFETY: zeroes are a valid flock.
        let mut what: libc::flock = unsafe { std::mem::zeroed() };
        what.l_type = libc::F_WRLCK as _;
        what.l_whence = libc::SEEK_SET as _;
        what.l_start = ((HEAD + slot * SLOT) * 8) as _;
        what.l_len = 1;
        // SAFETY: the descriptor is open, and `what` is a flock that lives until fcntl returns.
        let done = unsafe { libc::fcntl(self.0.as_raw_fd(), command, &mut what) } == 0;
        done.then_some(what.l_type.into())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A child of `fork` may have the descriptor for a moment.
        // SAFETY: flock takes numbers, and the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
        OPEN.store(-1, SeqCst);
    }
}

/// In a child of `fork`: closes the descriptor, through which its parent's locks are held.
pub fn close_in_child() {
    let descriptor = OPEN.swap(-1, SeqCst);
    if descriptor >= 0 {
        // SAFETY: the descriptor is the child's copy, and the thread that used it is not in the child.
        unsafe { libc::close(descriptor) };
    }
}

/// Calls `change` with the card, which no other process changes meanwhile. `None` if processes share no card.
///
/// # Panics
/// If the file cannot be used.
fn with<T>(change: impl FnOnce(&Card) -> T) -> Option<T> {
    static CARD: OnceLock<Card> = OnceLock::new();
    let path = config().card.as_deref()?;
    let open = Open::new(path).expect("SIM_CARD names a file");
    let card = CARD.get_or_init(|| Card::join(&open).expect("SIM_CARD names a file with a free slot"));
    card.reap(&open);
    Some(change(card))
}

impl Card {
    /// Takes a slot. The mapping keeps the slot's lock after the descriptor is closed; a child of `fork` does not get it.
    fn join(open: &Open) -> io::Result<Card> {
        if open.0.metadata()?.len() < FILE_BYTES as u64 {
            open.0.set_len(FILE_BYTES as u64)?;
        }
        let own = (0..SLOTS).find(|slot| open.slot_lock(libc::F_OFD_SETLK, *slot).is_some());
        let own = own.ok_or(io::ErrorKind::StorageFull)?;
        let (protection, file) = (libc::PROT_READ | libc::PROT_WRITE, open.0.as_raw_fd());
        // SAFETY: mmap and madvise take numbers. The file is so long, and whoever runs us leaves it so. The mapping is never
        // unmapped, and an atomic may have any bytes.
        let words = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), FILE_BYTES, protection, libc::MAP_SHARED, file, 0);
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(at, FILE_BYTES, libc::MADV_DONTFORK);
            std::slice::from_raw_parts(at.cast::<AtomicU64>(), FILE_BYTES / 8)
        };
        let card = Card { words, own };
        card.clear(own);
        card.words[SIZE].store(config().device_mem, SeqCst);
        card.word(own, PID).store(std::process::id().into(), SeqCst);
        Ok(card)
    }

    fn word(&self, slot: usize, which: usize) -> &AtomicU64 {
        &self.words[HEAD + slot * SLOT + which]
    }

    fn clear(&self, slot: usize) {
        (0..SLOT).for_each(|which| self.word(slot, which).store(0, SeqCst));
    }

    /// Clears the slots of processes that have ended.
    fn reap(&self, open: &Open) {
        let others = (0..SLOTS).filter(|slot| *slot != self.own && self.word(*slot, PID).load(SeqCst) != 0);
        for slot in others {
            if open.slot_lock(libc::F_OFD_GETLK, slot) == Some(libc::F_UNLCK) {
                self.clear(slot);
            }
        }
    }

    fn sum(&self) -> u64 {
        (0..SLOTS).map(|slot| self.word(slot, BYTES).load(SeqCst)).sum()
    }
}

/// Takes bytes of the card.
///
/// # Errors
/// Out of memory, if all processes together would have more than there is.
pub fn take(bytes: u64) -> Result {
    let taken = with(|card| {
        let sum = card.sum() + bytes;
        if sum > config().device_mem {
            return Err(Error::OUT_OF_MEMORY);
        }
        card.word(card.own, BYTES).fetch_add(bytes, SeqCst);
        card.words[MOST].fetch_max(sum, SeqCst);
        Ok(())
    });
    taken.unwrap_or(Ok(()))
}

pub fn give(bytes: u64) {
    with(|card| card.word(card.own, BYTES).fetch_sub(bytes, SeqCst));
}

/// Bytes that all processes have of the card; `None` if they share none.
pub fn used() -> Option<u64> {
    with(Card::sum)
}

/// Tells how many bytes of this process a checkpoint took from the card.
pub fn tell_parked(bytes: u64) {
    with(|card| card.word(card.own, PARKED).store(bytes, SeqCst));
}
