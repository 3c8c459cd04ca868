//! Sources of bytes, and the number of bytes stored: a file's length says nothing, since it may have holes.

use std::io;
use std::ops::Range;

/// A file that may change or shrink meanwhile, or a buffer.
pub trait Source {
    /// Fills as much of `buffer` from `offset` on as there is; returns the number of bytes.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns the first stored stretch from `offset` on; `None` if there is none. Bytes outside such stretches read as
    /// zeroes.
    fn stored_from(&self, offset: u64) -> io::Result<Option<Range<u64>>>;

    /// Returns the number of stored bytes, without holes.
    fn stored(&self) -> io::Result<u64> {
        let (mut sum, mut offset) = (0_u64, 0);
        while let Some(stretch) = self.stored_from(offset)? {
            sum = sum.saturating_add(stretch.end - stretch.start);
            offset = stretch.end;
        }
        Ok(sum)
    }
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)) else { return Ok(0) };
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn stored_from(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        Ok(Some(offset..self.len() as u64).filter(|stretch| !stretch.is_empty()))
    }
}

#[cfg(unix)]
impl Source for std::fs::File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        let mut done = 0;
        while done < buffer.len() {
            match FileExt::read_at(self, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn stored_from(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let Some(start) = seek(self, offset, libc::SEEK_DATA)? else { return Ok(None) };
        let end = seek(self, start, libc::SEEK_HOLE)?.filter(|&end| end > start);
        // It shrank meanwhile.
        Ok(end.map(|end| start..end))
    }
}

/// Returns the offset of the next stored byte or the next hole; `None` behind the end. A file system that does not tell
/// answers as if there were no holes.
#[cfg(unix)]
fn seek(file: &std::fs::File, offset: u64, what: libc::c_int) -> io::Result<Option<u64>> {
    use std::os::fd::AsRawFd;
    let Ok(offset) = libc::off_t::try_from(offset) else { return Ok(None) };
    // SAFETY: lseek takes numbers, and `file` keeps the descriptor open. No one relies on the
    // position that lseek moves: all other reads name an offset.
    match u64::try_from(unsafe { libc::lseek(file.as_raw_fd(), offset, what) }) {
        Ok(at) => Ok(Some(at)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error if error.raw_os_error() == Some(libc::EINVAL) => {
                let len = file.metadata()?.len();
                let at = if what == libc::SEEK_DATA { offset as u64 } else { len };
                Ok(Some(at).filter(|&at| at < len || what == libc::SEEK_HOLE))
            }
            error => Err(error),
        },
    }
}
