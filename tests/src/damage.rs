//! Damaged files: real ledgers, dumps, traces and recordings, changed at random, and `gpumem` on each of them.
//!
//! * [`corpus`]: real files, made by programs on the simulated driver.
//! * [`image`]: a file as the stretches that it stores, holes left out.
//! * [`mutate`]: what a seed makes of an image.
//! * [`scene`]: what more than one file is made of: many ledgers, programs whose symbols are read, mappings.
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
pub mod scene;
pub mod worker;

use std::time::Duration;

/// The longest time that an answer may take.
pub const MOST_TIME: Duration = Duration::from_secs(5);
/// The longest time of an answer for which symbols are read: they have 20 s of their own.
pub const MOST_TIME_WITH_SYMBOLS: Duration = Duration::from_secs(25);
/// Memory that an answer about many files takes, whatever they store: a look around has 64 MiB, and what any answer has.
pub const MOST_MEMORY_OF_A_LOOK: u64 = (64 << 20) + MEMORY_BYTES;
/// Memory that any answer may take.
const MEMORY_BYTES: u64 = 128 << 20;
/// Memory that an answer may take in addition for each byte that the file stores.
const MEMORY_FACTOR: u64 = 64;

/// Bytes of memory that an answer about a file may take.
pub fn most_memory(stored: u64) -> u64 {
    MEMORY_BYTES + MEMORY_FACTOR * stored
}
