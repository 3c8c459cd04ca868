//! Other copies of this library in the process: two files in LD_PRELOAD, or one there and one in /etc/ld.so.preload.
//!
//! The copy that was loaded first works. The others step aside: their hooks do nothing
//! ([`crate::process::wiped::disabled`]). Each copy passes over the others when it resolves a name, so that no two of
//! them call each other for ever. A release without this rule does not step aside, so with such a release the order of
//! loading decides.

use super::tables::{Name, Tables};
use super::{first_objects, our_dynamic};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const RELEASE: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The symbol by which copies recognise each other. It holds the release.
#[used]
#[unsafe(export_name = "gpumem_copy")]
static COPY: [u8; RELEASE.len()] = *RELEASE.as_bytes().first_chunk().expect("all of it");

const MARKER: &CStr = c"gpumem_copy";
/// Symbols of releases without the marker; such a copy has both.
const OLDER: [&CStr; 2] = [c"gpumem_push_tag", c"dlsym"];

/// Returns the kind of copy, of any release, that has these tables; `None` for any other library.
///
/// # Safety
/// As for [`Tables::of`].
unsafe fn copy_of(tables: &Tables) -> Option<First> {
    // SAFETY: our caller vouches that the object is mapped.
    let defines = |name| unsafe { tables.find(&Name::new(name)) } != 0;
    match () {
        () if defines(MARKER) => Some(First::Another),
        () if OLDER.iter().all(|name| defines(name)) => Some(First::Older),
        () => None,
    }
}

/// True if these are the tables of a copy of this library.
///
/// # Safety
/// As for [`Tables::of`].
pub(super) unsafe fn is_copy(tables: &Tables) -> bool {
    // SAFETY: our caller vouches for what `copy_of` wants.
    unsafe { copy_of(tables) }.is_some()
}

/// The copy that was loaded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum First {
    This = 1,
    Another,
    /// A copy of a release that does not recognise other copies.
    Older,
}

/// Returns the copy that was loaded first, the one that works. It is looked up when this library is loaded.
pub(crate) fn first_copy() -> First {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Relaxed) {
        known if known == First::This as u8 => First::This,
        known if known == First::Another as u8 => First::Another,
        known if known == First::Older as u8 => First::Older,
        _ => {
            let first = look_for_first();
            KNOWN.store(first as u8, Relaxed);
            first
        }
    }
}

fn look_for_first() -> First {
    let mut first = None;
    for (bias, dynamic) in first_objects() {
        if dynamic == our_dynamic() {
            return first.unwrap_or(First::This);
        }
        // SAFETY: this runs while the program is loaded, when all objects stay, or while `dlopen` loads this library
        // and holds the loader's lock. So no object before this one is unmapped meanwhile.
        let kind = unsafe { Tables::of(bias, dynamic).and_then(|tables| copy_of(&tables)) };
        first = first.or(kind);
    }
    // With `dlmopen` the loader keeps this library in another list.
    First::This
}
