//! Handles: numbers that look like pointers and point nowhere.
//!
//! They lie in a reserved range without access, so that a program or an
//! interposer that follows one faults, and never collides with real memory.

use crate::config::config;
use std::collections::{BTreeSet, HashMap};

/// A stream, event, context, graph, ... as the program sees it.
pub type H = usize;

/// Less where this runs under qemu, which keeps a record of each page of a reservation.
const SPACE: usize = if cfg!(target_arch = "aarch64") { 4 << 30 } else { 64 << 30 };
const STEP: usize = 64;

pub struct Handles {
    base: usize,
    next: usize,
    freed: HashMap<&'static str, BTreeSet<H>>,
}

impl Handles {
    pub fn new() -> Handles {
        // SAFETY: without MAP_FIXED the kernel picks addresses that are free, so no other mapping
        // is touched.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SPACE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let base = if p == libc::MAP_FAILED { 0x5100_0000_0000 } else { p as usize };
        Handles { base, next: base + STEP, freed: HashMap::new() }
    }

    pub fn make(&mut self, kind: &'static str) -> H {
        if config().reuse_handles
            && let Some(h) = self.freed.get_mut(kind).and_then(BTreeSet::pop_last)
        {
            return h;
        }
        let h = self.next;
        self.next += STEP;
        h
    }

    pub fn retire(&mut self, kind: &'static str, h: H) {
        if config().reuse_handles {
            self.freed.entry(kind).or_default().insert(h);
        }
    }

    /// True if `h` was ever given out.
    pub fn known(&self, h: H) -> bool {
        h >= self.base && h < self.next
    }
}

impl Default for Handles {
    fn default() -> Self {
        Self::new()
    }
}
