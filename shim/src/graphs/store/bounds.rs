//! The bounds of the cache, the execs and bytes that count against them, and the number of execs that are needed.

use super::needed::{Need, Needed};
use crate::graphs::real::RealExec;
use crate::process::clock;
use crate::process::lock::lock;
use gpumem_wire::settings::Settings;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Destroying an exec and instantiating it again costs about ten times a retarget. So an exec has to be idle for this
/// many times `GPUMEM_GRAPH_IDLE` before another class gets its room.
pub(super) const COLD_TIMES: u64 = 10;
/// Time that an unused exec is kept if `GPUMEM_GRAPH_IDLE` is 0 (no time counts as idle).
const LONG_NS: u64 = 10_000_000_000;
/// Execs, and their bytes, that are kept beyond the most that were lately needed at once: one handle that goes through
/// a few shapes finds an exec for each. A native run has no such memory.
const SPARE: Need = Need { execs: 12, bytes: 1 << 20 };

/// Some execs have to be destroyed and could not be yet: execs above the bounds, or execs that no handle can use.
pub(crate) static OVER: AtomicBool = AtomicBool::new(false);

/// Notes that some exec has to be destroyed as soon as possible.
pub(super) fn to_go() {
    OVER.store(true, Relaxed);
}

/// Bounds, as the user set them (0: no such bound; they may change while the process runs), and the execs and bytes
/// that count against them.
pub(super) struct Bounds {
    count: AtomicU64,
    bytes: AtomicU64,
    idle_ns: AtomicU64,
    taken: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    count: u64,
    bytes: u64,
    needed: Needed,
}

impl Bounds {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            count: settings.graph_cache.into(),
            bytes: settings.graph_cache_bytes.into(),
            idle_ns: settings.graph_idle.into(),
            taken: Mutex::default(),
        }
    }

    /// Applies new values of these variables.
    pub(super) fn apply_settings(&self, settings: &Settings) {
        self.bytes.store(settings.graph_cache_bytes, Relaxed);
        self.idle_ns.store(settings.graph_idle, Relaxed);
        // 0 turns the cache off. The existing execs keep their bound.
        if settings.graph_cache != 0 {
            self.count.store(settings.graph_cache, Relaxed);
        }
    }

    /// Returns the most execs and the most bytes.
    fn most(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// Returns the time without a launch after which an exec counts as cold; 0: never.
    pub(super) fn idle_ns(&self) -> u64 {
        self.idle_ns.load(Relaxed)
    }

    /// Returns the time that an object is kept for a handle that may come: as long as an exec of another class.
    pub(super) fn long_ns(&self) -> u64 {
        match self.idle_ns() {
            0 => LONG_NS,
            idle => idle.saturating_mul(COLD_TIMES),
        }
    }

    /// Counts an exec that is about to be made, if there is room for it. With `over`, counts it without room as well.
    /// Returns true if there was room. Sets `pressed` to true if the cache is then near a bound, else to false.
    pub(super) fn reserve(&self, (host, device): (u64, u64), over: bool, pressed: &AtomicBool) -> bool {
        let mut taken = lock(&self.taken);
        let bytes = host + device;
        let room = self.allows(taken.count + 1, taken.bytes + bytes);
        if room || over {
            taken.count += 1;
            taken.bytes += bytes;
            self.look_at_pressure(&taken, pressed);
        }
        room
    }

    /// Stops counting an exec that is gone, or was not made after all. `pressed` as for [`Self::reserve`].
    pub(super) fn release(&self, (host, device): (u64, u64), pressed: &AtomicBool) {
        let mut taken = lock(&self.taken);
        taken.count -= 1;
        taken.bytes -= host + device;
        self.look_at_pressure(&taken, pressed);
    }

    /// Returns true if there would be room for an exec once `other` is destroyed.
    pub(super) fn fits_in_place_of(&self, (host, device): (u64, u64), other: &RealExec) -> bool {
        let taken = lock(&self.taken);
        let left = taken.bytes.saturating_sub(other.bytes());
        self.allows(taken.count, left + host + device)
    }

    fn allows(&self, count: u64, bytes: u64) -> bool {
        let (most, most_bytes) = self.most();
        (most == 0 || count <= most) && (most_bytes == 0 || bytes <= most_bytes)
    }

    fn look_at_pressure(&self, taken: &Totals, pressed: &AtomicBool) {
        let (count, bytes) = self.most();
        let near = |now: u64, most: u64| most != 0 && now >= most - most / 4;
        pressed.store(near(taken.count, count) || near(taken.bytes, bytes), Relaxed);
        if !self.allows(taken.count, taken.bytes) {
            to_go();
        }
    }

    /// Returns true if there are more execs than the bounds allow.
    pub(super) fn are_exceeded(&self) -> bool {
        let taken = lock(&self.taken);
        !self.allows(taken.count, taken.bytes)
    }

    /// Returns true if there are more execs than were lately needed at once, plus a few.
    pub(super) fn has_too_many(&self) -> bool {
        let taken = lock(&self.taken);
        let most = taken.needed.lately(clock::now_ns(), self.long_ns() / 2).with(SPARE, u64::saturating_add);
        taken.count > most.execs || taken.bytes > most.bytes
    }

    /// Returns true if there are fewer execs than handles that need one.
    pub(super) fn has_fewer_than_handles(&self) -> bool {
        let taken = lock(&self.taken);
        taken.count < taken.needed.now().execs
    }

    /// Returns the execs, their bytes, and true if there are as many execs as there may be.
    pub(super) fn taken(&self) -> (u64, u64, bool) {
        let (most, taken) = (self.count.load(Relaxed), lock(&self.taken));
        (taken.count, taken.bytes, most != 0 && taken.count >= most)
    }

    /// Replaces what a handle needed `before` by what it needs now.
    pub(super) fn need_is(&self, before: Need, need: Need) {
        if before != need {
            let (now, window) = (clock::now_ns(), self.long_ns() / 2);
            let needed = &mut lock(&self.taken).needed;
            let others = needed.now().with(before, u64::saturating_sub);
            needed.becomes(others.with(need, u64::saturating_add), now, window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(count: u64, bytes: u64) -> (Bounds, AtomicBool) {
        let (settings, _) = Settings::read(std::iter::empty());
        let bounds = Bounds::new(&settings);
        bounds.count.store(count, Relaxed);
        bounds.bytes.store(bytes, Relaxed);
        (bounds, AtomicBool::new(false))
    }

    /// A large exec does not take the room of small ones, which would all go before it fits.
    #[test]
    fn room_is_made_by_one_that_is_large_enough() {
        let real = RealExec::default();
        real.set_bytes((30, 10));
        for (count, bytes, fits) in
            [(0, 100, (40, true)), (0, 100, (41, false)), (0, 0, (900, true)), (2, 0, (900, true)), (1, 0, (1, false))]
        {
            let (bounds, pressed) = bounds(0, 0);
            // 60 bytes of another, and this one's.
            for bytes in [(50, 10), (30, 10)] {
                bounds.reserve(bytes, true, &pressed);
            }
            bounds.count.store(count, Relaxed);
            bounds.bytes.store(bytes, Relaxed);
            assert_eq!(bounds.fits_in_place_of((fits.0, 0), &real), fits.1, "{count} execs, {bytes} bytes: {fits:?}");
        }
    }

    #[test]
    fn an_exec_above_the_bound_is_counted_if_it_is_made_all_the_same() {
        let (bounds, pressed) = bounds(4, 0);
        assert_eq!([false; 2].map(|over| bounds.reserve((1, 1), over, &pressed)), [true; 2]);
        assert!(!pressed.load(Relaxed));
        assert!(bounds.reserve((1, 1), false, &pressed) && pressed.load(Relaxed), "near the bound");
        assert!(bounds.reserve((1, 1), false, &pressed) && !bounds.are_exceeded());
        assert!(!bounds.reserve((1, 1), false, &pressed) && !bounds.are_exceeded());
        assert!(!bounds.reserve((1, 1), true, &pressed) && bounds.are_exceeded());
        assert_eq!(bounds.taken(), (5, 10, true));
        (0..3).for_each(|_| bounds.release((1, 1), &pressed));
        assert!(!bounds.are_exceeded() && !pressed.load(Relaxed));
    }
}
