//! A recording: what was live at each second, by call site, tag and class, with the stacks that it takes to say so.
//!
//! * [`line`]: the lines of the file. [`recorder`]: ledgers to lines, of which `budget` lets so many through. [`reader`]: lines to a [`Recording`]. [`shown`]: that
//!   as charts and flame graphs have it.
//!
//! A file is JSON, a line after another, in gzip: what a recorder that was killed has written by then is a recording.

mod budget;
pub(crate) mod line;
pub(crate) mod reader;
pub(crate) mod recorder;
mod shown;

pub(crate) use reader::Recording;
pub(crate) use recorder::Recorder;

#[cfg(test)]
mod tests;
