//! Files that the user names with `-o`. The file at the end of the path is written, and is never replaced by a file of
//! another kind.

use crate::failure::{Failure, Result};
use crate::text::{self, units};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Modes of a file for the user alone, as a ledger is, and of a file that others may read if the umask allows it.
pub(super) const PRIVATE: u32 = 0o600;
pub(super) const FOR_OTHERS: u32 = 0o644;

/// Writes a file and returns the number of bytes.
///
/// A regular file, or a new one, is written beside its place and renamed, so that no reader sees half of it. Links are
/// followed. Any other file (a device, a pipe) is written in place.
///
/// # Errors
/// Those of the system; an existing file is then unchanged.
pub(super) fn save(path: &Path, mode: u32, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    let place = match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => path.canonicalize()?,
        Ok(_) => return fill(OpenOptions::new().write(true).open(path)?, write),
        // The link's target does not exist yet. Opening the link creates it.
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_symlink() => {
            return fill(OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?, write);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let draft = draft_of(&place)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    let written = fill(file, write).and_then(|bytes| std::fs::rename(&draft, &place).map(|()| bytes));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}

/// A file that was written, for messages and JSON.
#[derive(serde::Serialize)]
pub(super) struct Written {
    #[serde(serialize_with = "text::serialize_path")]
    file: PathBuf,
    bytes: u64,
}

impl Written {
    /// Writes a file as [`save`] does.
    ///
    /// # Errors
    /// Those of the system, with the file's name.
    pub(super) fn new(path: &Path, mode: u32, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Self> {
        let name = text::os(path.as_os_str());
        let bytes = save(path, mode, write).map_err(|error| Failure::io(format!("cannot write {name}"), &error))?;
        Ok(Self { file: path.to_owned(), bytes })
    }
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", text::path(&self.file), units::bytes(self.bytes))
    }
}

/// Returns a file beside the target: a rename cannot leave the file system.
fn draft_of(place: &Path) -> io::Result<PathBuf> {
    let mut name = place.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    Ok(place.with_file_name(name))
}

fn fill(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, Counted::new(file));
    write(&mut out)?;
    out.flush()?;
    Ok(out.get_ref().bytes)
}

/// Counts the bytes that pass through. A pipe has no length to query afterwards, nor has a file that is still being
/// compressed.
pub(super) struct Counted<W> {
    out: W,
    pub(super) bytes: u64,
}

impl<W> Counted<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, bytes: 0 }
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
