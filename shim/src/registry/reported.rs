//! What the program tells about itself through `gpumem.h`: tags and sub-allocations.

use super::live::Class;
use crate::call::Call;
use crate::ledger::text::Texts;
use crate::process::regs::Regs;
use crate::process::threads;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::StrRef;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of a text that the program gave, at most 255 of them.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: not null, and our caller vouches for a C string, which it does not change while it
    // uses the answer.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    &bytes[..bytes.len().min(255)]
}

/// Different tags that are kept apart; more go by one name.
const MOST_TAGS: usize = 4096;

/// A tag's text, kept for good. It is put into the ledger when something is recorded under it, since
/// a program may tag long before its first GPU call.
pub struct Tag {
    text: Box<[u8]>,
    /// The process that put it into its ledger, and where: pid in the upper half, reference in the lower.
    place: AtomicU64,
}

impl Tag {
    /// The tag of a text; `None` if it is empty, or if it cannot be had without waiting for a thread
    /// that a `fork` left behind.
    pub fn of(text: &[u8]) -> Option<&'static Tag> {
        static KNOWN: Mutex<BTreeMap<&'static [u8], &'static Tag>> = Mutex::new(BTreeMap::new());
        /// The process in which the lock is lost: held by a thread that a fork left behind.
        static LOST_IN: AtomicU32 = AtomicU32::new(0);
        if text.is_empty() || LOST_IN.load(Relaxed) == std::process::id() {
            return None;
        }
        let lock = (0..10_000).find_map(|_| {
            KNOWN.try_lock().ok().or_else(|| {
                std::thread::yield_now();
                None
            })
        });
        let Some(mut known) = lock else {
            LOST_IN.store(std::process::id(), Relaxed);
            return None;
        };
        if let Some(tag) = known.get(text) {
            return Some(tag);
        }
        let text = if known.len() < MOST_TAGS { text } else { b"(more tags)" };
        if let Some(tag) = known.get(text) {
            return Some(tag);
        }
        let tag: &'static Tag = Box::leak(Box::new(Tag { text: text.into(), place: AtomicU64::new(0) }));
        known.insert(&tag.text, tag);
        Some(tag)
    }

    /// The innermost tag of the calling thread that is in force, if any.
    #[inline]
    pub fn in_force() -> Option<&'static Tag> {
        // SAFETY: only `push` puts something into these slots, and that is a Tag.
        threads::local(|local| unsafe { local.tags.innermost().get() })
    }

    /// Puts a tag in force; `None` hides the outer ones.
    fn push(tag: Option<&'static Tag>) {
        threads::local(|local| {
            if let Some(place) = local.tags.push() {
                place.set(tag);
            }
        });
    }

    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Where its text is in this process's ledger.
    pub fn reference(&self, texts: &Texts, pid: u32) -> StrRef {
        let place = self.place.load(Relaxed);
        if (place >> 32) as u32 == pid {
            return place as StrRef;
        }
        let reference = texts.intern(&self.text);
        self.place.store(u64::from(pid) << 32 | u64::from(reference), Relaxed);
        reference
    }
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_push_tag(tag: *const c_char) {
    // SAFETY: gpumem.h asks the program for NULL or a C string, which is copied before this
    // returns.
    Tag::push(Tag::of(unsafe { text(tag) }));
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_pop_tag() {
    threads::local(|local| local.tags.pop());
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_report_alloc(pool: *const c_char, p: *const c_void, bytes: usize) {
    let call = Call::new(Vendor::Cuda, Regs::of_caller());
    // SAFETY: gpumem.h asks the program for NULL or a C string that lasts for this call.
    let pool = unsafe { text(pool) };
    if !p.is_null() {
        call.note(|shim| shim.reported(&call, shim.ledger.texts.intern(pool), p as u64, bytes as u64));
    }
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_report_free(pool: *const c_char, p: *const c_void) {
    let call = Call::new(Vendor::Cuda, Regs::of_caller());
    // SAFETY: gpumem.h asks the program for NULL or a C string that lasts for this call.
    let pool = unsafe { text(pool) };
    if !p.is_null() {
        call.note(|shim| {
            // What was reported before the first GPU call is not known, and nothing is wrong with that.
            if let Some(entry) = shim.freeing(Class::Reported(shim.ledger.texts.intern(pool)), p as u64) {
                shim.ended(entry);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop() {
        threads::local(|local| local.tags.pop());
    }

    #[test]
    fn tags_nest_and_too_many_pops_do_nothing() {
        pop();
        assert!(Tag::in_force().is_none());
        Tag::push(Tag::of(b"outer"));
        for _ in 0..67 {
            Tag::push(Tag::of(b"inner"));
        }
        assert_eq!(Tag::in_force().map(Tag::text), Some(&b"inner"[..]));
        for _ in 0..67 {
            pop();
        }
        assert_eq!(Tag::in_force().map(Tag::text), Some(&b"outer"[..]));
        pop();
        assert!(Tag::in_force().is_none());
    }
}
