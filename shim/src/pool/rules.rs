//! What the settings say of how blocks are used.

use super::size;
use gpumem_wire::settings::{Fill, FreeMode, OomFallback, Settings};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// How the blocks of one pool are used.
pub(crate) struct BlockRules {
    /// Deferred mode: a free does not wait.
    deferred: AtomicBool,
    managed: AtomicBool,
    /// An [`OomFallback`], by its number.
    fallback: AtomicU8,
    fill: Fill,
    /// Bytes of freed blocks that are kept from use.
    quarantine: u64,
    guarded: bool,
    /// Blocks are exactly as large as the request, because questions about sizes are not seen.
    exact: bool,
    /// Blocks come and go as they are: they have sizes of classes, are not filled and are not kept from use. All calls
    /// that submit work are seen, and all that change a thread's context.
    plain: bool,
}

impl BlockRules {
    pub(super) fn new(settings: &Settings, exact: bool, guarded: bool, sees_all: bool) -> Self {
        let (fill, quarantine) = (settings.pool_fill, settings.quarantine);
        let rules = Self {
            deferred: AtomicBool::new(false),
            managed: AtomicBool::new(false),
            fallback: AtomicU8::new(0),
            fill,
            quarantine,
            guarded,
            exact,
            plain: sees_all && !exact && fill == Fill::None && quarantine == 0 && !guarded,
        };
        rules.apply_settings(settings);
        rules
    }

    /// Follows these variables from now on.
    pub(super) fn apply_settings(&self, settings: &Settings) {
        self.deferred.store(settings.free == FreeMode::Deferred, Relaxed);
        self.managed.store(settings.pool_managed, Relaxed);
        self.fallback.store(settings.oom_fallback as u8, Relaxed);
    }

    /// Whether the fast path may serve and keep blocks.
    #[inline(always)]
    pub(super) fn are_plain(&self) -> bool {
        self.plain
    }

    /// Whether a free does not wait.
    pub(super) fn defer(&self) -> bool {
        self.deferred.load(Relaxed)
    }

    /// Whether growth of the program's own memory pools is placed in managed memory.
    pub(crate) fn place_growth_in_managed(&self) -> bool {
        self.managed.load(Relaxed)
    }

    /// Where an allocation that runs out goes.
    pub(crate) fn fallback(&self) -> OomFallback {
        OomFallback::VALUES.get(self.fallback.load(Relaxed) as usize).copied().unwrap_or_default()
    }

    /// The size of a block for a request, where no guard adds to it. `None` if that is more than any device has.
    #[inline]
    pub(super) fn rounded(&self, bytes: u64) -> Option<u64> {
        if self.exact { Some(bytes) } else { size::rounded(bytes) }
    }

    /// The class of sizes of a block, if threads keep blocks of that size.
    #[inline]
    pub(super) fn class_of(&self, rounded: u64) -> Option<usize> {
        if self.exact { None } else { size::class_of(rounded) }
    }

    /// How many bytes more than `rounded` a block may have that serves a request.
    #[inline]
    pub(super) fn slack(&self, rounded: u64) -> u64 {
        if self.exact { 0 } else { size::slack(rounded) }
    }

    /// Whether something is done with each freed block.
    #[inline]
    pub(super) fn change_freed(&self) -> bool {
        self.quarantine != 0 || self.fill == Fill::Poison || self.guarded
    }

    /// Whether freed blocks are filled, so that their use is recognised.
    pub(super) fn poison(&self) -> bool {
        self.fill == Fill::Poison
    }

    /// Whether blocks are zeroed before the program gets them again.
    pub(super) fn zero(&self) -> bool {
        self.fill == Fill::Zero
    }

    /// Whether a block is to be filled, or watched, before the program gets it again.
    pub(super) fn change_served(&self) -> bool {
        !self.plain && (self.fill != Fill::None || self.guarded)
    }

    /// Bytes of freed blocks that are kept from use, if freed blocks are. `by_guard`: how many the guard keeps.
    pub(super) fn quarantine(&self, by_guard: Option<u64>) -> Option<u64> {
        let most = self.quarantine.max(by_guard.unwrap_or(0));
        (self.quarantine != 0 || by_guard.is_some()).then_some(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(set: &[(&str, &str)], exact: bool, guarded: bool) -> BlockRules {
        let set = set.iter().map(|&(name, value)| (name.into(), value.into()));
        BlockRules::new(&Settings::read(set).0, exact, guarded, true)
    }

    #[test]
    fn what_changes_blocks_keeps_them_from_the_fast_path() {
        let plain = rules(&[], false, false);
        assert!(plain.are_plain() && !plain.change_freed() && !plain.change_served());
        for (set, freed, served) in [
            ([("GPUMEM_POOL_FILL", "poison")], true, true),
            ([("GPUMEM_POOL_FILL", "zero")], false, true),
            ([("GPUMEM_QUARANTINE", "1MiB")], true, false),
        ] {
            let rules = rules(&set, false, false);
            let is = (rules.are_plain(), rules.change_freed(), rules.change_served());
            assert_eq!(is, (false, freed, served), "{set:?}");
        }
        let guarded = rules(&[], false, true);
        assert!(!guarded.are_plain() && guarded.change_freed() && guarded.change_served());
        assert_eq!((guarded.quarantine(Some(0)), plain.quarantine(None)), (Some(0), None));
        let exact = rules(&[], true, false);
        assert!(!exact.are_plain());
        assert_eq!((exact.rounded(1000), exact.class_of(1024), exact.slack(1000)), (Some(1000), None, 0));
    }

    #[test]
    fn variables_are_followed() {
        let rules = rules(&[], false, false);
        assert!(!rules.defer() && rules.fallback() == OomFallback::None);
        let set = [("GPUMEM_FREE", "deferred"), ("GPUMEM_OOM_FALLBACK", "host")];
        rules.apply_settings(&Settings::read(set.map(|(name, value)| (name.into(), value.into())).into_iter()).0);
        assert!(rules.defer() && rules.fallback() == OomFallback::Host);
    }
}
