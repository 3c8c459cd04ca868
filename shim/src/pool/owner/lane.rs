//! The stream on which blocks of a context go back without waiting for its work.

use super::Owner;
use crate::vendor::memory::Lane;
use std::sync::atomic::Ordering::*;

/// In place of [`Owner::lane`]: nobody has asked for one.
pub(in crate::pool) const UNKNOWN: usize = 0;
/// There is no such way here.
const NONE: usize = 1;

impl Owner {
    /// The stream on which blocks go back without waiting, in the current context.
    pub(in crate::pool) fn lane(&self) -> Option<Lane> {
        match self.lane.load(Acquire) {
            UNKNOWN => self.new_lane(),
            NONE => None,
            lane => Some(lane),
        }
    }

    /// Makes it, while there is memory for one: a stream takes some.
    pub(in crate::pool) fn prepare(&self) {
        if self.lane.load(Relaxed) == UNKNOWN {
            self.within(|| self.new_lane());
        }
    }

    #[cold]
    fn new_lane(&self) -> Option<Lane> {
        let made = match self.calls.lane(self.device) {
            Ok(made) => made,
            // There may be memory for it later.
            Err(_) => return None,
        };
        match self.lane.compare_exchange(UNKNOWN, made.unwrap_or(NONE), AcqRel, Acquire) {
            Ok(_) => made,
            Err(known) => {
                made.into_iter().for_each(|made| self.calls.end_lane(made));
                (known != NONE).then_some(known)
            }
        }
    }

    /// Whether blocks go back without waiting for work.
    pub fn gives_back_at_once(&self) -> bool {
        self.within(|| self.lane()).is_some()
    }
}
