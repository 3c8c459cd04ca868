//! Recognises programs that free memory and ask again when an allocation fails.
//!
//! * ggml since llama.cpp's pull request 22155: its pool waits for the device, frees every cached buffer and asks once
//!   more. The library that asks contains the line that it logs then. Older ones abort.
//! * PyTorch: its allocator frees cached blocks and asks again, twice. That is in `libc10_cuda.so`, unless
//!   `PYTORCH_NO_CUDA_MEMORY_CACHING` or `PYTORCH_NO_HIP_MEMORY_CACHING` is set.
//!
//! CuPy's pool retries too, but one module of CuPy asks for its pool and for other uses. It is recognised by its
//! behaviour ([`super::sites`]), or by `GPUMEM_STRANDED_RETRIES=1`. cuBLAS, llama.cpp up to b8833 and most programs
//! abort or report an error.

use crate::process::lock::lock;
use crate::stacks::modules::{self, Module};
use rustc_hash::FxHashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

/// The line that ggml logs before it tries again, without numbers.
const GGML_LINE: &[u8] = b"cached buffers and retrying";
/// Maximum number of modules whose answer is kept.
const KNOWN: usize = 64;

/// Known facts of the process's modules.
pub(crate) struct Programs {
    /// True if PyTorch's cache is switched off.
    pytorch_uncached: bool,
    /// Answers by the module's serial.
    known: Mutex<FxHashMap<u32, bool>>,
}

impl Programs {
    /// Reads the environment, which hooks must not read.
    pub(crate) fn new() -> Self {
        let set = |name| std::env::var_os(name).is_some();
        let pytorch_uncached = set("PYTORCH_NO_CUDA_MEMORY_CACHING") || set("PYTORCH_NO_HIP_MEMORY_CACHING");
        Self { pytorch_uncached, known: Mutex::default() }
    }

    /// True if an allocator is loaded that keeps what the program frees, as PyTorch's does.
    pub(super) fn has_own_cache(&self) -> bool {
        !self.pytorch_uncached && modules::refresh().all().iter().any(has_pytorch_allocator)
    }

    /// True if the code at this address is an allocator that retries. Reads the module's file the first time (5 MB of
    /// strings in a build of ggml: some milliseconds).
    pub(crate) fn retries(&self, pc: u64) -> bool {
        let modules = modules::refresh();
        let Some(module) = modules.find(pc) else { return false };
        let known = || lock(&self.known);
        if let Some(&answer) = known().get(&module.serial) {
            return answer;
        }
        let answer = match has_pytorch_allocator(module) {
            true => !self.pytorch_uncached,
            false => holds(Path::new(OsStr::from_bytes(module.path())), GGML_LINE).unwrap_or(false),
        };
        let mut known = known();
        if known.len() < KNOWN {
            known.insert(module.serial, answer);
        }
        answer
    }
}

fn has_pytorch_allocator(module: &Module) -> bool {
    let name = module.path().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"libc10_cuda.so") || name.starts_with(b"libc10_hip.so")
}

/// Returns true if the constants of an ELF file (`.rodata`) contain this text. Device code, most of such files, is in
/// other sections and not read.
fn holds(path: &Path, text: &[u8]) -> Option<bool> {
    let _uncancelled = crate::process::cancel::Uncancelled::new();
    let file = File::open(path).ok()?;
    let (mut at, end) = rodata(&file)?;
    let mut piece = vec![0; 256 << 10];
    while at < end {
        let len = piece.len().min((end - at) as usize);
        file.read_exact_at(&mut piece[..len], at).ok()?;
        if piece[..len].windows(text.len()).any(|window| window == text) {
            return Some(true);
        }
        if at + len as u64 == end {
            break;
        }
        // The text may span two pieces.
        at += (len - text.len() + 1) as u64;
    }
    Some(false)
}

/// Returns the position of `.rodata` in a 64-bit ELF file.
fn rodata(file: &File) -> Option<(u64, u64)> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |bytes: &[u8], at: usize| bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4)?.first_chunk().map(|b| u32::from_le_bytes(*b));
    let long = |bytes: &[u8], at: usize| bytes.get(at..at + 8)?.first_chunk().map(|b| u64::from_le_bytes(*b));
    let (table, entry) = (long(&header, 0x28)?, usize::from(half(&header, 0x3a)?));
    let (count, names) = (usize::from(half(&header, 0x3c)?), usize::from(half(&header, 0x3e)?));
    if entry < 64 || names >= count {
        return None;
    }
    let mut sections = vec![0; entry * count];
    file.read_exact_at(&mut sections, table).ok()?;
    let section = |index: usize| {
        let bytes = sections.get(index * entry..)?;
        Some((word(bytes, 0)?, long(bytes, 0x18)?, long(bytes, 0x20)?))
    };
    let (_, names_at, names_len) = section(names)?;
    (0..count).filter_map(section).find_map(|(name, offset, bytes)| {
        let mut found = [0; 8];
        let fits = u64::from(name) + found.len() as u64 <= names_len;
        let same = fits && file.read_exact_at(&mut found, names_at + u64::from(name)).is_ok() && &found == b".rodata\0";
        same.then_some((offset, offset.checked_add(bytes)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_of_this_program_is_found_and_another_is_not() {
        let exe = std::env::current_exe().unwrap();
        assert_eq!(holds(&exe, GGML_LINE), Some(true));
        // Not written out here, or it would be a constant of this test, too.
        let other: Vec<u8> = GGML_LINE.iter().rev().copied().collect();
        assert_eq!(holds(&exe, &other), Some(false));
        assert_eq!(holds(Path::new("/dev/null"), GGML_LINE), None);
        assert_eq!(holds(Path::new("/proc/self/stat"), GGML_LINE), None);
    }
}
