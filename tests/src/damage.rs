//! Damaged files: real ledgers, dumps, traces and recordings, changed at random, and `gpumem` on each of them.
//!
//! * [`corpus`]: real files, made by programs on the simulated driver.
//! * [`image`]: a file as the stretches that it stores, holes left out.
//! * [`mutate`]: what a seed makes of an image.
//! * [`heap`]: how much memory an answer takes.
//! * [`recording`]: the same of a recording, whose lines are packed.
//! * [`worker`]: one case after another in a process that may be lost.
//! * [`campaign`]: workers, watched.
//!
//! An answer is right when it is one: an exit code that is documented, in [`MOST_TIME`], with no more memory than
//! [`most_memory`] allows a file of so many stored bytes. docs/ledger.md states the same.

pub mod campaign;
pub mod corpus;
pub mod heap;
pub mod image;
pub mod mutate;
pub mod recording;
pub mod worker;

use std::time::Duration;

/// The longest time that an answer may take.
pub const MOST_TIME: Duration = Duration::from_secs(5);
/// Memory that any answer may take.
const MEMORY_BYTES: u64 = 128 << 20;
/// Memory that an answer may take in addition for each byte that the file stores.
const MEMORY_FACTOR: u64 = 64;

/// Bytes of memory that an answer about a file may take.
pub fn most_memory(stored: u64) -> u64 {
    MEMORY_BYTES + MEMORY_FACTOR * stored
}
