//! Two fences of different cost: a light one for an operation that a thread does millions of times a second, and a
//! heavy one for an operation that another thread does rarely.
//!
//! Between a store and a load of another word a processor needs a fence, which takes as long as a hundred instructions.
//! If only two sides meet, the rare side can pay for both: `membarrier` (Linux 4.14) runs a fence on every processor
//! that runs a thread of this process. If the kernel refuses it, both sides pay.

use super::wiped;
use std::sync::atomic::{Ordering::*, compiler_fence, fence};

/// The rare side fences for both. 0: not known yet.
const UNLIKE: u8 = 1;
/// Each side has to fence.
const ALIKE: u8 = 2;

// linux/membarrier.h
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes three numbers and follows no pointer.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers with the kernel, once per process and before the first fence, because both sides must use the same kind.
pub(crate) fn prepare() {
    let known = wiped::fences().load(Relaxed);
    if known == ALIKE {
        return;
    }
    let works = || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    let registered = works() || (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && works());
    wiped::fences().store(if registered { UNLIKE } else { ALIKE }, SeqCst);
}

/// Fences for the frequent side. Either the thread that returns from [`heavy`] sees this thread's earlier stores, or
/// this thread's later loads see that thread's earlier stores.
#[inline(always)]
pub(crate) fn light() {
    if wiped::fences().load(Relaxed) == UNLIKE { compiler_fence(SeqCst) } else { fence(SeqCst) }
}

/// Fences for the rare side. Returns false if the kernel has no such fence now.
pub(crate) fn heavy() -> bool {
    fence(SeqCst);
    let alike = wiped::fences().load(Relaxed) != UNLIKE;
    alike || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}
