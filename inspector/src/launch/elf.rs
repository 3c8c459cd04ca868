//! Whether a preload reaches a program: not if it is static, privileged, or of another kind; and what has to come
//! before it.

use crate::source::open;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// What the start of an ELF file says about its loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub bits: u8,
    pub machine: u16,
    /// Path of the dynamic loader; `None`: statically linked.
    pub interpreter: Option<String>,
    /// Libraries that it was linked with.
    needed: Vec<String>,
}

/// Reads an ELF program's headers; `None` for what is none (scripts).
pub(crate) fn program(path: &Path) -> Option<Program> {
    let mut file = open::any(path).ok()?;
    let mut head = [0; 64];
    file.read_exact(&mut head).ok()?;
    if head[..4] != *b"\x7fELF" || head[5] != 1 {
        return None;
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let machine = half(18);
    if head[4] != 2 {
        return Some(Program { bits: 32, machine, interpreter: Some(String::new()), needed: Vec::new() });
    }
    let (entry_bytes, entries) = (u64::from(half(54)), u64::from(half(56)));
    let table = u64::from_le_bytes(head[32..40].try_into().ok()?);
    let segments: Vec<Segment> = (0..entries.min(256))
        .map_while(|index| {
            let mut entry = [0; 56];
            file.read_exact_at(&mut entry, table.checked_add(index * entry_bytes)?).ok()?;
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| entry[at + byte]));
            let kind = u32::from_le_bytes(std::array::from_fn(|byte| entry[byte]));
            Some(Segment { kind, offset: word(8), address: word(16), bytes: word(32) })
        })
        .collect();
    let interpreter = segments.iter().find(|segment| segment.kind == PT_INTERP).and_then(|segment| {
        let mut path = vec![0; segment.bytes.min(4096) as usize];
        file.read_exact_at(&mut path, segment.offset).ok()?;
        Some(String::from_utf8_lossy(&path).trim_end_matches('\0').to_owned())
    });
    let needed = needed(&file, &segments).unwrap_or_default();
    Some(Program { bits: 64, machine, interpreter, needed })
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// A part of the file, and where it is mapped.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// The names of DT_NEEDED. `None` if the file is not as it should be.
fn needed(file: &std::fs::File, segments: &[Segment]) -> Option<Vec<String>> {
    /// More is not read: of the dynamic section, and of a name.
    const MOST: u64 = 64 << 10;
    const LONGEST: usize = 256;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let mut bytes = vec![0; dynamic.bytes.min(MOST) as usize];
    file.read_exact_at(&mut bytes, dynamic.offset).ok()?;
    let word = |at: &[u8]| u64::from_le_bytes(std::array::from_fn(|byte| at[byte]));
    let entries: Vec<(u64, u64)> = bytes.chunks_exact(16).map(|entry| (word(entry), word(&entry[8..]))).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let mapped = |segment: &&Segment| {
        segment.kind == PT_LOAD && strings.checked_sub(segment.address).is_some_and(|at| at < segment.bytes)
    };
    let segment = segments.iter().find(mapped)?;
    let strings = segment.offset.checked_add(strings - segment.address)?;
    let names = entries.iter().take_while(|(tag, _)| *tag != 0).filter(|(tag, _)| *tag == DT_NEEDED);
    let name = |&(_, at): &(u64, u64)| {
        let mut name = [0; LONGEST];
        let read = file.read_at(&mut name, strings.checked_add(at)?).ok()?;
        let end = name[..read].iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&name[..end]).into_owned())
    };
    Some(names.filter_map(name).collect())
}

/// Whether a library refuses to start unless it comes before all others: AddressSanitizer's.
pub(crate) fn comes_first(library: &str) -> bool {
    let name = library.rsplit('/').next().unwrap_or(library);
    ["libasan.so", "libclang_rt.asan"].iter().any(|first| name.starts_with(first))
}

/// Which library of this program's has to come before whatever is preloaded.
pub(crate) fn first_of(path: &Path) -> Option<String> {
    program(path)?.needed.into_iter().find(|library| comes_first(library))
}

/// The machine that this binary was built for, as ELF numbers it.
pub(crate) const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Why a preload does not reach a program; `None`: nothing speaks against it.
pub(crate) fn beyond_reach(path: &Path) -> Option<String> {
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
        assert!(program.needed.iter().any(|library| library.starts_with("libc.so")), "{:?}", program.needed);
        assert_eq!(first_of(&exe), None);
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
