//! A recording: live memory at each second by call site, tag and class, with the call stacks.
//!
//! * [`line`]: the lines of the file. [`recorder`]: ledgers to lines, limited by `budget`. [`reader`]: lines to a
//!   [`Recording`]. [`shown`]: a recording as charts and flame graphs.
//!
//! A file is gzip with one JSON object a line. The part that a killed recorder has written is a valid recording.

mod budget;
pub(crate) mod line;
pub(crate) mod reader;
pub(crate) mod recorder;
mod shown;

pub(crate) use reader::Recording;
pub(crate) use recorder::Recorder;

#[cfg(test)]
mod tests;
