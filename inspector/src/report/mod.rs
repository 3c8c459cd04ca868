//! What several commands show in the same words.
//!
//! * [`head`]: who the process is, above every view.
//! * [`pool`], [`cache`]: the pool and the graph cache: a few lines for a head, a part of `stats`.
//! * [`cure`]: what is to be set about a finding. [`growth`]: what grows, in words, and what to do about it.
//! * [`shared`]: memory that processes share, and what graphs left behind, in words.
//! * [`lines`]: lines of a kind: a value with its name, a call stack, what was left out.

pub(crate) mod cache;
pub(crate) mod cure;
pub(crate) mod growth;
pub(crate) mod head;
pub(crate) mod lines;
pub(crate) mod pool;
pub(crate) mod shared;
