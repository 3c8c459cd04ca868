//! The mappings of a process, read line by line. There may be tens of thousands, each with a path of thousands of
//! bytes, so only one line is held and only the requested amount is read.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of mappings that are read of each process when many are looked at: several thousand mappings.
pub(super) const FEW: u64 = 1 << 20;
/// Most bytes of mappings that are read: as many mappings as a process may have, with paths of usual length.
pub(crate) const MOST: u64 = 8 << 20;

/// Passes the lines of `PROC/maps` to `each` until that has seen enough. False if the limit cut the lines off.
///
/// # Errors
/// Permission denied for processes of other users.
pub(crate) fn each_line(
    proc: &Path,
    most: u64,
    time: Duration,
    mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<bool> {
    let mut file = File::open(proc.join("maps"))?;
    let until = Instant::now() + time;
    let (mut begun, mut piece, mut read) = (Vec::new(), vec![0; 64 << 10], 0);
    loop {
        let got = match file.read(&mut piece) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut rest = &piece[..got];
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            begun.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            if each(&begun).is_break() {
                return Ok(true);
            }
            begun.clear();
        }
        begun.extend_from_slice(rest);
        read += got as u64;
        if got == 0 {
            if !begun.is_empty() {
                let _ = each(&begun);
            }
            return Ok(true);
        }
        if read >= most || Instant::now() >= until {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come_and_end_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let line = |n: usize| format!("{n} {}", "x".repeat(n * 7919 % 5000));
        let text: String = (0..1000).map(|n| line(n) + "\n").collect();
        std::fs::write(dir.path().join("maps"), text.trim_end()).unwrap();
        let lines = |most, time| {
            let mut seen = Vec::new();
            let whole = each_line(dir.path(), most, time, |line| {
                seen.push(String::from_utf8(line.to_vec()).unwrap());
                ControlFlow::Continue(())
            });
            (seen, whole.unwrap())
        };
        let (seen, whole) = lines(MOST, Duration::from_secs(60));
        assert!(whole && seen.len() == 1000 && seen.iter().enumerate().all(|(n, seen)| *seen == line(n)));
        for (most, time) in [(FEW, Duration::from_secs(60)), (MOST, Duration::ZERO)] {
            let (seen, whole) = lines(most, time);
            assert!(!whole && seen.len() < 1000 && seen.iter().enumerate().all(|(n, seen)| *seen == line(n)));
        }
        let mut first = None;
        let found = each_line(dir.path(), MOST, Duration::from_secs(60), |line| {
            first = Some(line.to_vec());
            ControlFlow::Break(())
        });
        assert!(found.unwrap() && first == Some(b"0 ".to_vec()));
    }
}
