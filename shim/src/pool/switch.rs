//! Switch of a pool: it serves and keeps blocks, or the real functions alone decide.

use crate::process::wiped::{self, Flag};
use crate::progress::activity;
use crate::shim::Shim;
use gpumem_wire::kinds::{Interception, Mode};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Notes that devices may access each other's memory from now on. Work of one device may then use blocks of another, and
/// no barrier of the block's context covers that work.
pub(crate) fn peer_access_enabled() {
    wiped::flag(Flag::PeerAccess).store(true, SeqCst);
}

pub fn is_peer_access_enabled() -> bool {
    wiped::flag(Flag::PeerAccess).load(Relaxed)
}

/// The switch of one pool.
pub(crate) struct Switch {
    /// Nothing is kept and only the limit holds, because the pool is off or the process is ending.
    closed: AtomicBool,
    /// The process is ending: nothing is given back any more.
    ending: AtomicBool,
}

impl Switch {
    pub(super) fn new(is_open: bool) -> Self {
        Self { closed: AtomicBool::new(!is_open), ending: AtomicBool::new(false) }
    }

    /// Returns true if the real functions alone decide now.
    #[inline(always)]
    pub(crate) fn aside(&self, shim: &Shim) -> bool {
        let header = shim.ledger.header();
        self.closed.load(Relaxed)
            || is_peer_access_enabled()
            || shim.registry.streams.capturing() > 0
            || activity::broken()
            || header.interception().load(Relaxed) != Interception::Complete as u32
            || header.mode().load(Relaxed) != Mode::Active as u32
    }

    /// Ends the pool with the process: every free is the real one, nothing is kept, and nothing goes back any more.
    pub(super) fn end(&self) {
        self.shut();
        self.ending.store(true, SeqCst);
    }

    /// Stops serving and keeping blocks. Takes no lock: the allocator calls this.
    pub(super) fn shut(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Serves and keeps blocks again, unless the process is ending.
    pub(super) fn open(&self) {
        if !self.is_ending() {
            self.closed.store(false, SeqCst);
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_an_ending_process_stays_shut() {
        let switch = Switch::new(false);
        assert!(switch.is_closed());
        switch.open();
        assert!(!switch.is_closed() && !switch.is_ending());
        switch.end();
        switch.open();
        assert!(switch.is_closed() && switch.is_ending());
    }
}
