//! Reads a recording: lines in gzip. Memory and time are bounded by the stored size: no line is longer than any that is
//! written, and the total is in proportion to the file.

use super::open;
use crate::failure::{Failure, Result};
use crate::text::with_ending;
use flate2::read::GzDecoder;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// First bytes of a gzip file.
const MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Beginning of the first line.
const FIRST: &[u8] = b"{\"gpumem_recording\"";
/// Longest line that is accepted.
const LONGEST: u64 = 8 << 20;
/// Limit of all lines together: this much, plus a multiple of the file's size.
const ALL: u64 = 8 << 20;
const FACTOR: u64 = 16;

/// How the lines of a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// At the end of the file.
    Whole,
    /// In the middle: the writer was stopped, or the file is damaged.
    Cut,
    /// At the limit: the lines are out of proportion to the file.
    TooMuch,
}

/// True if the file is a recording.
pub(crate) fn is(path: &Path) -> bool {
    let Ok(file) = open::any(path) else { return false };
    let mut begin = Vec::new();
    let _ = GzDecoder::new(file).take(FIRST.len() as u64).read_to_end(&mut begin);
    begin == FIRST
}

/// True if the file begins as gzip does.
pub(crate) fn may_be(path: &Path) -> bool {
    let mut begin = [0; 2];
    open::any(path).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok()) && begin == MAGIC
}

/// Returns the path of the part before this one.
pub(crate) fn part_before(path: &Path) -> PathBuf {
    with_ending(path, ".1")
}

/// Returns the path for another process of a recording: that of the first one, with the pid before `.gz`.
pub(crate) fn of_process(first: &Path, pid: u32) -> PathBuf {
    let (stem, end) = parts(first);
    with_ending(&stem, &format!(".{pid}{end}"))
}

/// Returns the paths that have such names, at most `most`, and the number of all.
pub(crate) fn of_other_processes(first: &Path, most: usize) -> (Vec<PathBuf>, usize) {
    // Links lead to the file beside which the others are. A recording that was moved aside has left them in place.
    let first = first.canonicalize().unwrap_or_else(|_| first.to_owned());
    let bytes = first.as_os_str().as_bytes();
    let (stem, end) = parts(Path::new(OsStr::from_bytes(bytes.strip_suffix(b"~").unwrap_or(bytes))));
    let Some((folder, stem)) = stem.parent().zip(stem.file_name()) else { return (Vec::new(), 0) };
    let pid = |path: &Path| {
        let name = path.file_name()?.as_bytes();
        let pid = name.strip_prefix(stem.as_bytes())?.strip_prefix(b".")?.strip_suffix(end.as_bytes())?;
        std::str::from_utf8(pid).ok()?.parse::<u32>().ok()
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<(u32, PathBuf)> = entries.filter_map(|path| Some((pid(&path)?, path))).collect();
    found.sort();
    let all = found.len();
    (found.into_iter().take(most).map(|(_, path)| path).collect(), all)
}

/// Splits `.gz` off a path.
fn parts(path: &Path) -> (PathBuf, &'static str) {
    match path.extension().is_some_and(|end| end == "gz") {
        true => (path.with_extension(""), ".gz"),
        false => (path.to_owned(), ""),
    }
}

/// Passes every whole line to `each` until it refuses one.
///
/// # Errors
/// The file cannot be opened; errors of `each`.
pub(crate) fn lines(path: &Path, mut each: impl FnMut(&[u8]) -> std::result::Result<(), String>) -> Result<Ended> {
    let file = open::any(path)?;
    let stored = file.metadata().map_err(|error| Failure::io(path.display(), &error))?.len();
    let all = ALL.saturating_add(stored.saturating_mul(FACTOR));
    let mut text = BufReader::with_capacity(1 << 16, GzDecoder::new(BufReader::new(file)).take(all));
    let mut line = Vec::new();
    loop {
        line.clear();
        // An error means a cut or damaged file; the lines before it are good.
        let read = text.by_ref().take(LONGEST).read_until(b'\n', &mut line);
        let left = text.get_ref().limit();
        match read {
            Ok(0) if left > 0 => return Ok(Ended::Whole),
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(_) if left == 0 || line.len() as u64 >= LONGEST => return Ok(Ended::TooMuch),
            Ok(_) | Err(_) => return Ok(Ended::Cut),
        }
        each(&line).map_err(|why| Failure::error(format!("{} cannot be read: {why}", path.display())))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> (Vec<String>, Ended) {
        let dir = tempfile::tempdir().unwrap();
        let (path, mut found) = (dir.path().join("r"), Vec::new());
        std::fs::write(&path, bytes).unwrap();
        let ended = lines(&path, |line| {
            found.push(String::from_utf8_lossy(line).trim_end().to_owned());
            Ok(())
        });
        (found, ended.unwrap())
    }

    #[test]
    fn what_was_written_until_a_cut_is_read() {
        let text: String = (0..5000).map(|n| format!("line {n} {}\n", n * 7919 % 1000)).collect();
        let whole = packed(text.as_bytes());
        let (lines, ended) = read(&whole);
        assert_eq!((lines.len(), ended), (5000, Ended::Whole));
        for len in (0..whole.len()).step_by(97) {
            let (cut, ended) = read(&whole[..len]);
            assert_eq!(ended, Ended::Cut, "{len}");
            assert_eq!(cut, lines[..cut.len()], "{len}");
        }
        assert_eq!(read(b"no gzip at all"), (vec![], Ended::Cut));
    }

    #[test]
    fn lines_out_of_proportion_come_to_an_end() {
        // A line that does not end, and lines without end.
        for text in [vec![b'x'; LONGEST as usize + 1], [&[b'y'; 9999][..], b"\n"].concat().repeat(5 << 10)] {
            let (lines, ended) = read(&packed(&text));
            assert_eq!(ended, Ended::TooMuch);
            assert!(lines.iter().map(String::len).sum::<usize>() < 64 << 20);
        }
    }
}
