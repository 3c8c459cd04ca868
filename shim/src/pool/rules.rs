//! Settings for the use of blocks.

use super::size;
use gpumem_wire::settings::{Fill, FreeMode, Settings};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Rules for the blocks of one pool.
pub(crate) struct BlockRules {
    /// Deferred mode: a free does not wait.
    deferred: AtomicBool,
    managed: AtomicBool,
    fill: Fill,
    /// Bytes of freed blocks that are kept from use.
    quarantine: u64,
    watched: bool,
    /// Blocks are exactly as large as the request, because questions about sizes are not seen.
    exact: bool,
    /// Blocks are used unchanged: they have the sizes of classes, are not filled and are not kept from use. All calls
    /// that submit work or change a thread's context are seen.
    plain: bool,
}

impl BlockRules {
    pub(super) fn new(settings: &Settings, exact: bool, watched: bool, sees_all: bool) -> Self {
        let (fill, quarantine) = (settings.pool_fill, settings.quarantine);
        let rules = Self {
            deferred: AtomicBool::new(false),
            managed: AtomicBool::new(false),
            fill,
            quarantine,
            watched,
            exact,
            plain: sees_all && !exact && fill == Fill::None && quarantine == 0 && !watched,
        };
        rules.apply_settings(settings);
        rules
    }

    /// Applies new values of these variables.
    pub(super) fn apply_settings(&self, settings: &Settings) {
        self.deferred.store(settings.free == FreeMode::Deferred, Relaxed);
        self.managed.store(settings.pool_managed, Relaxed);
    }

    /// Returns true if the fast path may serve and keep blocks.
    #[inline(always)]
    pub(super) fn are_plain(&self) -> bool {
        self.plain
    }

    /// Returns true if frees do not wait.
    pub(super) fn defer(&self) -> bool {
        self.deferred.load(Relaxed)
    }

    /// Returns true if growth of the program's own memory pools is placed in managed memory.
    pub(crate) fn place_growth_in_managed(&self) -> bool {
        self.managed.load(Relaxed)
    }

    /// Returns the block size for a request that is not watched. `None` if it is more than any device has.
    #[inline]
    pub(super) fn rounded(&self, bytes: u64) -> Option<u64> {
        if self.exact { Some(bytes) } else { size::rounded(bytes) }
    }

    /// Returns the class of a block, if threads keep blocks of its size.
    #[inline]
    pub(super) fn class_of(&self, rounded: u64) -> Option<usize> {
        if self.exact { None } else { size::class_of(rounded) }
    }

    /// Returns by how many bytes a block may exceed `rounded` and still serve a request.
    #[inline]
    pub(super) fn slack(&self, rounded: u64) -> u64 {
        if self.exact { 0 } else { size::slack(rounded) }
    }

    /// Returns true if freed blocks are changed.
    #[inline]
    pub(super) fn change_freed(&self) -> bool {
        self.quarantine != 0 || self.fill == Fill::Poison || self.watched
    }

    /// Returns true if freed blocks are filled, so that their use is recognised.
    pub(super) fn poison(&self) -> bool {
        self.fill == Fill::Poison
    }

    /// Returns true if blocks are zeroed before the program gets them again.
    pub(super) fn zero(&self) -> bool {
        self.fill == Fill::Zero
    }

    /// Returns true if a block has to be filled, or watched, before the program gets it again.
    pub(super) fn change_served(&self) -> bool {
        !self.plain && (self.fill != Fill::None || self.watched)
    }

    /// Returns the bytes of freed blocks to keep from use, if freed blocks are kept. `watched`: the bytes that are
    /// kept if blocks are watched.
    pub(super) fn quarantine(&self, watched: Option<u64>) -> Option<u64> {
        let most = self.quarantine.max(watched.unwrap_or(0));
        (self.quarantine != 0 || watched.is_some()).then_some(most)
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
        assert!(!rules.defer());
        rules.apply_settings(&Settings::read(std::iter::once(("GPUMEM_FREE".into(), "deferred".into()))).0);
        assert!(rules.defer());
    }
}
