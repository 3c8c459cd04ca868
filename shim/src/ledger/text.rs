//! Interned text: each string is in the ledger once. Also places for texts that change.

use super::file::{Backing, Used};
use crate::process::map::{self, Map};
use gpumem_wire::layout::{StrRef, TableKind};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum bytes kept of a text; the rest is cut.
const MAX_BYTES: usize = 4096;

/// The Strings table.
pub(crate) struct Texts {
    base: *mut u8,
    capacity: u64,
    used: Used,
    known: Map<Box<[u8]>, StrRef>,
    next: AtomicU64,
    adding: Mutex<()>,
}

// SAFETY: the texts belong to no thread, and `Backing`, which mapped them, never unmaps them.
unsafe impl Send for Texts {}
// SAFETY: bytes that `reserve` gave are written by one thread, before their reference is given out
// or through a TextPlace that is borrowed mutably. Nothing in this process reads them.
unsafe impl Sync for Texts {}

impl Texts {
    pub(crate) fn new(backing: &'static Backing) -> Self {
        let (base, capacity, used) = backing.table(TableKind::Strings);
        let known = map::new();
        // The first bytes stay empty, so that reference 0 means no text.
        Self { base, capacity, used, known, next: AtomicU64::new(4), adding: Mutex::new(()) }
    }

    /// Returns a text's reference; 0 if it is empty or there is no more room.
    pub(crate) fn intern(&self, text: &[u8]) -> StrRef {
        let text = &text[..text.len().min(MAX_BYTES)];
        if text.is_empty() {
            return 0;
        }
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let Ok(_adding) = self.adding.lock() else { return 0 };
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let Some(at) = self.reserve(text.len()) else { return 0 };
        // SAFETY: `reserve` has just given room for this many bytes, and `adding` is held.
        unsafe { self.write(at, text) };
        let reference = at as StrRef;
        self.known.insert(text.into(), reference);
        reference
    }

    /// Reserves `bytes` bytes at the end, backed, for the caller alone. Called with `adding` held.
    fn reserve(&self, bytes: usize) -> Option<u64> {
        let at = self.next.load(Relaxed);
        let end = at + 4 + bytes as u64;
        // The bound is our own copy; another process may have changed the file's.
        if end > self.capacity || (end > self.used.used() && self.used.grow(end).is_err()) {
            return None;
        }
        self.next.store(end, Relaxed);
        Some(at)
    }

    /// # Safety
    /// `reserve` gave these bytes, and no other thread writes to them now.
    unsafe fn write(&self, at: u64, text: &[u8]) {
        // SAFETY: our caller vouches that `reserve` gave these bytes, so they are backed, and that
        // no one else writes to them now.
        unsafe {
            let place = self.base.add(at as usize);
            place.cast::<u32>().write_unaligned((text.len() as u32).to_le());
            std::ptr::copy_nonoverlapping(text.as_ptr(), place.add(4), text.len());
        }
    }

    /// Returns a place for a text that changes; `None` if there is no more room.
    pub(crate) fn place(&self) -> Option<TextPlace> {
        let _adding = self.adding.lock().ok()?;
        NonZero::new(self.reserve(TextPlace::BYTES)? as StrRef).map(TextPlace)
    }

    /// Writes a text to a place, cut to the place's length; returns its reference. A reader may see parts of the old
    /// text.
    pub(crate) fn rewrite(&self, place: &mut TextPlace, text: &[u8]) -> StrRef {
        // SAFETY: `place` reserved `BYTES` bytes for this TextPlace. It is borrowed mutably, so no one else writes
        // there now.
        unsafe { self.write(place.0.get().into(), &text[..text.len().min(TextPlace::BYTES)]) };
        place.0.get()
    }
}

/// The place of a text that changes.
pub(crate) struct TextPlace(NonZero<StrRef>);

impl TextPlace {
    /// Bytes of a place: the maximum length of a thread's name (PR_SET_NAME).
    pub(crate) const BYTES: usize = 15;
}
