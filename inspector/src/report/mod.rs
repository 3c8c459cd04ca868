//! Texts that several commands share.
//!
//! * [`pool`], [`cache`]: the pool and the graph cache: a few lines for a head, and a part of `stats`.
//! * [`cure`]: remedies for findings. [`growth`]: growth in words, with its remedy.
//! * [`shared`]: memory that processes share, and memory that graphs left behind, in words.
//! * [`lines`]: common lines: the process, above every view; a value with its name, a call stack, the number of hidden rows.

pub(crate) mod cache;
pub(crate) mod cure;
pub(crate) mod growth;
pub(crate) mod lines;
pub(crate) mod pool;
pub(crate) mod shared;
