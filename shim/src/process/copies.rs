//! Messages about other copies of this library in the process.

use super::elf::{self, First, Listing};
use super::{stderr, wiped};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const FIX: &str = "name one libgpumem.so in LD_PRELOAD and /etc/ld.so.preload together";

/// Returns the working copy's line about the other copies, if there are any.
pub(crate) fn line_about_others() -> Option<String> {
    let objects = Listing::new();
    let paths: Vec<_> = objects.other_copies().map(String::from_utf8_lossy).collect();
    let (last, before) = paths.split_last()?;
    let others = match before {
        [] => format!("{last} is another copy of gpumem in this process, and is not used"),
        _ => format!("{} and {last} are other copies of gpumem in this process, and are not used", before.join(", ")),
    };
    Some(format!("{others}: {FIX}"))
}

/// Reports once that this copy steps aside while calls still pass through it, if the working copy is of a release that
/// does not report it.
#[cold]
pub(crate) fn say_that_we_step_aside() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_ours_to_say = || elf::first_copy() == First::Older && !wiped::is_switched_off() && !stderr::is_to_be_quiet();
    if SAID.swap(true, Relaxed) || !is_ours_to_say() {
        return;
    }
    let objects = Listing::new();
    let Some(first) = objects.other_copies().next() else { return };
    let line = "is an older copy of gpumem that was loaded first: it works, and this one steps aside";
    stderr::say(&format_args!("{} {line}: {FIX}", String::from_utf8_lossy(first)));
}
