//! Whether a preload reaches a program: not if it is static, privileged, or of another kind.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// What the start of an ELF file says about its loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub bits: u8,
    pub machine: u16,
    /// Path of the dynamic loader; `None`: statically linked.
    pub interpreter: Option<String>,
}

/// Reads an ELF program's headers; `None` for what is none (scripts).
pub fn program(path: &Path) -> Option<Program> {
    if !std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let mut head = [0; 64];
    file.read_exact(&mut head).ok()?;
    if head[..4] != *b"\x7fELF" || head[5] != 1 {
        return None;
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let machine = half(18);
    if head[4] != 2 {
        return Some(Program { bits: 32, machine, interpreter: Some(String::new()) });
    }
    let (entry_bytes, entries) = (u64::from(half(54)), u64::from(half(56)));
    let table = u64::from_le_bytes(head[32..40].try_into().ok()?);
    let interpreter = (0..entries.min(256)).find_map(|index| {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.checked_add(index * entry_bytes)?).ok()?;
        let word = |at: usize| entry[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        // PT_INTERP
        (entry[..4] == 3_u32.to_le_bytes()).then_some(())?;
        let mut path = vec![0; word(32)?.min(4096) as usize];
        file.read_exact_at(&mut path, word(8)?).ok()?;
        Some(String::from_utf8_lossy(&path).trim_end_matches('\0').to_owned())
    });
    Some(Program { bits: 64, machine, interpreter })
}

/// The machine that this binary was built for, as ELF numbers it.
pub const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Why a preload does not reach a program; `None`: nothing speaks against it.
pub fn beyond_reach(path: &Path) -> Option<String> {
    let meta = std::fs::metadata(path).ok()?;
    // SAFETY: geteuid and getegid have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    if meta.mode() & 0o4000 != 0 && meta.uid() != uid || meta.mode() & 0o2000 != 0 && meta.gid() != gid {
        return Some("it is setuid or setgid, and the loader ignores LD_PRELOAD with a path then".into());
    }
    let program = program(path)?;
    match program.interpreter {
        None => Some("it is statically linked, so no library can be preloaded".into()),
        _ if program.bits != 64 => Some("it is a 32-bit program, and libgpumem.so has 64 bits".into()),
        _ if program.machine != MACHINE => Some("it is built for another processor than libgpumem.so".into()),
        Some(loader) if loader.contains("ld-musl") => {
            Some("it uses musl's loader, and libgpumem.so is built for glibc".into())
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_within_reach() {
        let exe = std::env::current_exe().unwrap();
        let program = program(&exe).unwrap();
        assert_eq!((program.bits, program.machine), (64, MACHINE));
        assert_eq!(beyond_reach(&exe), None);
        assert_eq!(super::program(Path::new("/etc/passwd")), None);
        assert_eq!(super::program(Path::new("/dev/zero")), None);
    }

    #[test]
    fn static_foreign_and_short_programs_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut head = vec![0_u8; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        std::fs::write(&path, &head).unwrap();
        assert!(beyond_reach(&path).unwrap().contains("statically"));
        head[4] = 1;
        std::fs::write(&path, &head).unwrap();
        assert!(beyond_reach(&path).unwrap().contains("32-bit"));
        std::fs::write(&path, &head[..20]).unwrap();
        assert_eq!(beyond_reach(&path), None);
    }
}
