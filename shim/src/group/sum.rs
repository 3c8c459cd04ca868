//! Checks for room in a group's limit, without a lock that a killed or stopped member could hold.
//!
//! Each member tells only of itself, in words that only it writes. It first reserves, and then adds up what all have
//! told. If two ask at the same time, at least one sees the other, because a full fence lies between the two steps of
//! each. A member that finds the sum above the limit takes its reservation back. So the sum of granted bytes never
//! exceeds the limit. Both may be refused, and then ask again ([`Answer::Busy`]).
//!
//! Granted bytes stay reserved until they are counted as taken. The reader reads `reserved` first. So it finds bytes
//! that move from `reserved` to `taken` in at least one of the two words, perhaps in both.

use super::atomic::{AtomicU64, Ordering::*, fence};

/// A member's published bytes of a device.
#[repr(C)]
pub(super) struct MemberBytes {
    /// Bytes that the driver has given.
    pub taken: AtomicU64,
    /// Bytes that pending requests have been granted, or are asking for now.
    pub reserved: AtomicU64,
}

/// Answer to a request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// There is room, and it is reserved.
    Granted,
    /// There may be room once pending requests have ended.
    Busy,
    /// There is no room.
    Full,
}

/// Asks for more bytes. `own`: this member's words, of which `before` are reserved; no other thread writes them
/// meanwhile. `others`: the other members, each with the limit that it was given; the smallest limit counts.
pub(super) fn ask<'a, I: Iterator<Item = (u64, Option<&'a MemberBytes>)>>(
    own: &MemberBytes,
    before: u64,
    bytes: u64,
    limit: u64,
    others: impl FnOnce() -> I,
) -> Answer {
    own.reserved.store(before.saturating_add(bytes), Relaxed);
    fence(SeqCst);
    let mut limit = limit;
    let mut taken = own.taken.load(Relaxed);
    let mut reserved = before;
    for (its_limit, told) in others() {
        // 0: the slot has no member.
        if its_limit != 0 {
            limit = limit.min(its_limit);
        }
        if let Some(told) = told {
            reserved = reserved.saturating_add(told.reserved.load(Acquire));
            taken = taken.saturating_add(told.taken.load(Acquire));
        }
    }
    if taken.saturating_add(reserved).saturating_add(bytes) <= limit {
        return Answer::Granted;
    }
    own.reserved.store(before, Release);
    if taken.saturating_add(bytes) > limit { Answer::Full } else { Answer::Busy }
}

/// Publishes the taken and reserved bytes. Bytes no longer reserved are counted as taken, or were not needed.
pub(super) fn tell(own: &MemberBytes, taken: u64, reserved: u64) {
    own.taken.store(taken, Release);
    own.reserved.store(reserved, Release);
}
