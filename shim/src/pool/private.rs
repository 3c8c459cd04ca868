//! Device memory that is taken for a moment and that the program never knows of. The program must not notice: if one of
//! its requests runs out, this memory goes back first ([`give_back`]).

use crate::process::cancel;
use gpumem_abi::types::Device;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;

/// Longest wait of a request for the memory, and the pause between two looks. The memory goes back as soon as the
/// current piece of memory is scanned.
const LONGEST: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_millis(1);

/// The number of the device that memory is taken from, plus 1.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// A thread needs the memory.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Makes memory that is taken of a device go back now. Returns true if there was any.
pub(crate) fn give_back(device: Device) -> bool {
    let is_taken = || TAKEN.load(SeqCst) == device as u64 + 1;
    if !is_taken() {
        return false;
    }
    WANTED.store(true, SeqCst);
    cancel::poll(LONGEST, NAP, || !is_taken());
    true
}

/// Memory of a device that is taken, until this is dropped.
pub(crate) struct Taken(());

impl Taken {
    pub(crate) fn of(device: Device) -> Self {
        WANTED.store(false, SeqCst);
        TAKEN.store(device as u64 + 1, SeqCst);
        Self(())
    }

    /// Returns true if a thread needs the memory.
    pub(crate) fn is_wanted(&self) -> bool {
        WANTED.load(SeqCst)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.store(0, SeqCst);
    }
}
