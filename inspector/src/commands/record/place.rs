//! The file of a recording: JSON lines in gzip, flushed at each tick, in two parts that together stay within the limit.

use crate::commands::output::Counted;
use crate::failure::{Failure, Result};
use crate::model::recording::line::Line;
use crate::source::recording;
use crate::text;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Output of a recording.
pub(super) struct RecordingFile {
    path: PathBuf,
    /// Most bytes of one part.
    most: u64,
    out: GzEncoder<Counted<BufWriter<File>>>,
    /// Bytes of the parts that were removed.
    before: u64,
}

impl RecordingFile {
    /// Creates the file. An existing recording gets another name.
    ///
    /// # Errors
    /// Those of the system; also if there is a file that is no recording.
    pub(super) fn new(path: &Path, most: u64) -> Result<Self> {
        // A link stays a link; its target is moved.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if let Some(aside) = make_way(&path)? {
            super::say(format_args!("gpumem: the recording that was there is now {}\n", text::path(&aside)));
        }
        let out = open(&path).map_err(|error| Failure::io(format!("cannot write {}", text::path(&path)), &error))?;
        Ok(Self { path, most: most / 2, out, before: 0 })
    }

    /// Writes lines and flushes them, so that they can be read at once.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn write(&mut self, lines: &[Line]) -> Result<()> {
        let written = lines.iter().try_for_each(|line| {
            serde_json::to_writer(&mut self.out, line)?;
            self.out.write_all(b"\n")
        });
        let written = written.and_then(|()| self.out.flush());
        written.map_err(|error| Failure::io(format!("cannot write {}", text::path(&self.path)), &error))
    }

    /// True if the next tick belongs in another part.
    pub(super) fn is_full(&self) -> bool {
        self.out.get_ref().bytes >= self.most
    }

    /// Begins the next part. The present part takes the name of the earlier part, which is removed.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn next_part(&mut self) -> Result<()> {
        self.end()?;
        let failed = |error: io::Error| Failure::io(format!("cannot write {}", text::path(&self.path)), &error);
        self.before += self.out.get_ref().bytes;
        std::fs::rename(&self.path, recording::part_before(&self.path)).map_err(failed)?;
        self.out = open(&self.path).map_err(failed)?;
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn end(&mut self) -> Result<()> {
        let ended = self.out.try_finish().and_then(|()| self.out.get_mut().flush());
        ended.map_err(|error| Failure::io(format!("cannot write {}", text::path(&self.path)), &error))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes written.
    pub(super) fn bytes(&self) -> u64 {
        self.before + self.out.get_ref().bytes
    }
}

/// Opens it for the user alone, as a ledger.
fn open(path: &Path) -> io::Result<GzEncoder<Counted<BufWriter<File>>>> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(GzEncoder::new(Counted::new(BufWriter::new(file)), Compression::new(7)))
}

/// Moves an existing recording to the name with a `~`, and returns that name.
fn make_way(path: &Path) -> Result<Option<PathBuf>> {
    let left_alone = |path: &Path| {
        Err(Failure::error(format!("{} exists and is not a recording: it is not overwritten", text::path(path)))
            .fix("name another file with -o"))
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::io(text::path(path), &error)),
        Ok(_) if !recording::is(path) => return left_alone(path),
        Ok(_) => {}
    }
    let aside = text::with_ending(path, "~");
    if aside.exists() && !recording::is(&aside) {
        return left_alone(&aside);
    }
    std::fs::rename(path, &aside).map_err(|error| Failure::io(text::path(path), &error))?;
    // Its older part would be taken for a part of the new recording.
    let part = recording::part_before(path);
    if recording::is(&part) {
        let _ = std::fs::rename(&part, recording::part_before(&aside));
    }
    Ok(Some(aside))
}
