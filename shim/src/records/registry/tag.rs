//! Tags: names that the program gives to its allocations.

use crate::ledger::text::Texts;
use crate::process::threads;
use gpumem_wire::layout::StrRef;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Maximum number of different tags. All further ones share one name.
const MOST_TAGS: usize = 4096;

/// A tag's text, kept for good. It is written into the ledger when something is recorded under it, since a program may
/// set tags long before its first GPU call.
pub(crate) struct Tag {
    text: Box<[u8]>,
    /// The process that wrote it into its ledger, and its place: the pid in the upper half, the reference in the lower.
    place: AtomicU64,
}

impl Tag {
    /// Returns the tag of a text. `None` if the text is empty, or if the tag would need a lock held by a thread that a
    /// `fork` left behind.
    pub(crate) fn of(text: &[u8]) -> Option<&'static Tag> {
        static KNOWN: Mutex<BTreeMap<&'static [u8], &'static Tag>> = Mutex::new(BTreeMap::new());
        /// The process in which the lock is lost, because its holder was left behind by a `fork`.
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

    /// Returns the calling thread's innermost tag in force, if any.
    #[inline]
    pub(crate) fn in_force() -> Option<&'static Tag> {
        // SAFETY: only `push` puts something into these slots, and that is a Tag.
        threads::local(|local| unsafe { local.tags.innermost().get() })
    }

    /// Puts a tag in force; `None` hides the outer ones.
    pub(crate) fn push(tag: Option<&'static Tag>) {
        threads::local(|local| {
            if let Some(place) = local.tags.push() {
                place.set(tag);
            }
        });
    }

    /// Returns its text's reference in this process's ledger.
    pub(crate) fn reference(&self, texts: &Texts, pid: u32) -> StrRef {
        let place = self.place.load(Relaxed);
        if (place >> 32) as u32 == pid {
            return place as StrRef;
        }
        let reference = texts.intern(&self.text);
        self.place.store(u64::from(pid) << 32 | u64::from(reference), Relaxed);
        reference
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
        assert_eq!(Tag::in_force().map(|tag| &*tag.text), Some(&b"inner"[..]));
        for _ in 0..67 {
            pop();
        }
        assert_eq!(Tag::in_force().map(|tag| &*tag.text), Some(&b"outer"[..]));
        pop();
        assert!(Tag::in_force().is_none());
    }
}
