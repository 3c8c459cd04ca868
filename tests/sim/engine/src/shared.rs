//! The device bytes that a process has in use, for a test that watches several processes (`SIM_SHARED=FILE:INDEX`): the word
//! of that index in the file. Its low 40 bits are the bytes. The other bits count the changes, so that a watcher can tell
//! whether all words had the values that it read at one moment.

use crate::config::config;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Bits of a word that are bytes.
pub const BYTES: u32 = 40;

fn word() -> Option<&'static AtomicU64> {
    static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *WORD.get_or_init(|| {
        let (file, index) = config().shared.as_deref()?.rsplit_once(':')?;
        let file = OpenOptions::new().read(true).write(true).open(file).ok()?;
        let (index, words) = (index.parse::<usize>().ok()?, file.metadata().ok()?.len() as usize / 8);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: mmap takes numbers, and the descriptor is open. The file is `words` words long, and whoever runs us leaves
        // it so. The mapping is never unmapped, and an atomic may have any bytes.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), words * 8, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
            (at != libc::MAP_FAILED && index < words).then(|| &*at.cast::<AtomicU64>().add(index))
        }
    })
}

/// Writes the bytes that all devices together have in use.
pub fn tell(bytes: u64) {
    if let Some(word) = word() {
        let changes = (word.load(Relaxed) >> BYTES) + 1;
        word.store(changes << BYTES | bytes, SeqCst);
    }
}
