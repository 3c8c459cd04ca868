//! The pool's door to who watches its blocks. The pool hands over each block when it changes hands, and knows nothing
//! of what is done with it.
//!
//! A pool is made with its watcher, or without one. `crate::guard` is the only watcher, and no other file of the pool
//! names it.

use super::block::Block;
use super::context_pool::ContextPool;
use crate::call::Call;
use gpumem_wire::settings::Settings;
use std::any::Any;

/// Makes the watcher of a new pool, if the user wants one.
pub(crate) type NewWatcher = fn(&Settings) -> Option<Box<dyn Watcher>>;

/// Watches the blocks of one pool.
pub(crate) trait Watcher: Any + Send + Sync {
    /// Returns the bytes of the block for a request, with room for what is watched. `None` if that is more than any
    /// device has.
    fn rounded(&self, bytes: u64) -> Option<u64>;

    /// Returns the address at which the program's part of a block begins, and the block's flags. The driver gave `bytes`
    /// at `addr` for it, and the program asked for `asked`.
    fn start(&self, addr: u64, bytes: u64, asked: u64) -> (u64, u32);

    /// Watches a block that is about to be the program's.
    fn watch(&self, owner: &'static ContextPool, block: &Block);

    /// Returns the bytes that may be kept from use in all contexts once this live block is freed.
    fn most_kept(&self, block: &Block) -> u64;

    /// Takes a freed block that no work uses, and fills it. Returns false if that is not done; it may still be running
    /// then. Also looks at the blocks that leave the quarantine for this one.
    fn freed(
        &self,
        call: &Call,
        owner: &'static ContextPool,
        block: &'static Block,
        leaving: &[&'static Block],
    ) -> bool;

    /// Looks at blocks that leave the quarantine.
    fn leave(&self, owner: &'static ContextPool, blocks: &[&'static Block]);

    /// Looks at a live block that is about to go back to the driver.
    fn given_up(&self, owner: &'static ContextPool, block: &'static Block);

    /// Stops watching a block. May be called while the program's call is being recorded.
    fn forget(&self, block: &Block);

    /// Returns the bytes that blocks have for it beyond what the program asked for.
    fn taken(&self) -> u64;
}
