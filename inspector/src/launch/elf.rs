//! Tells if a preload reaches a program: not if it is static, privileged, or of another machine. Also finds the library
//! that must come before the preload.

use crate::source::open;
use object::LittleEndian;
use object::elf::{DT_NEEDED, DT_NULL, DT_STRTAB, EM_AARCH64, EM_X86_64, FileHeader32, FileHeader64, Machine, PT_LOAD};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{FileKind, ReadCache, ReadRef, StringTable};
use rustix::fs::getxattr;
use rustix::process::{getegid, geteuid, getuid};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zerocopy::IntoBytes;

/// Facts about loading from the headers of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) bits: u8,
    pub(crate) machine: Machine,
    /// Path of the dynamic loader; `None`: statically linked.
    interpreter: Option<String>,
    /// Libraries that it is linked to.
    needed: Vec<String>,
}

/// An untrusted file: no read of it is longer than [`Bounded::MOST`], no name longer than [`Bounded::LONGEST_NAME`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounded<'a>(pub(super) &'a ReadCache<File>);

impl Bounded<'_> {
    const MOST: u64 = 4 << 20;
    const LONGEST_NAME: u64 = 4096;
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > Self::MOST { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let end = range.end.min(range.start.saturating_add(Self::LONGEST_NAME));
        self.0.read_bytes_at_until(range.start..end, delimiter)
    }
}

/// Reads an ELF program's headers; `None` for other files (scripts), and for files that cannot be read.
pub(crate) fn program(path: &Path) -> Option<Program> {
    let cache = ReadCache::new(open::any(path).ok()?);
    let data = Bounded(&cache);
    match FileKind::parse(data).ok()? {
        FileKind::Elf32 => {
            let machine = FileHeader32::<LittleEndian>::parse(data).ok()?.e_machine(LittleEndian);
            Some(Program { bits: 32, machine, interpreter: Some(String::new()), needed: Vec::new() })
        }
        FileKind::Elf64 => {
            let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
            let segments = header.program_headers(LittleEndian, data).ok()?;
            let mut interpreters = segments.iter().filter_map(|one| one.interpreter(LittleEndian, data).ok().flatten());
            let interpreter = interpreters.next().map(|path| String::from_utf8_lossy(path).into_owned());
            let needed = needed(segments, data).unwrap_or_default();
            Some(Program { bits: 64, machine: header.e_machine(LittleEndian), interpreter, needed })
        }
        _ => None,
    }
}

type Segment = <FileHeader64<LittleEndian> as FileHeader>::ProgramHeader;

/// Returns the names of DT_NEEDED. `None` if the file is malformed.
fn needed(segments: &[Segment], data: Bounded) -> Option<Vec<String>> {
    let dynamic = segments.iter().find_map(|one| one.dynamic(LittleEndian, data).ok().flatten())?;
    let entries = || dynamic.iter().take_while(|entry| entry.d_tag(LittleEndian) != DT_NULL);
    let value = |entry: &<FileHeader64<LittleEndian> as FileHeader>::Dyn| entry.d_val(LittleEndian);
    let strings = entries().find(|entry| entry.d_tag(LittleEndian) == DT_STRTAB).map(value)?;
    let mapped = |segment: &&Segment| {
        let (start, bytes) = (segment.p_vaddr(LittleEndian), segment.p_filesz(LittleEndian));
        segment.p_type(LittleEndian) == PT_LOAD && strings.checked_sub(start).is_some_and(|at| at < bytes)
    };
    let segment = segments.iter().find(mapped)?;
    let (start, bytes) = segment.file_range(LittleEndian);
    let begin = start.checked_add(strings - segment.p_vaddr(LittleEndian))?;
    let table = StringTable::new(data, begin, start.checked_add(bytes)?);
    let names = entries().filter(|entry| entry.d_tag(LittleEndian) == DT_NEEDED);
    let name = |entry| table.get(u32::try_from(value(entry)).ok()?).ok();
    Some(names.filter_map(name).map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// True if a library refuses to start unless it comes before all others: AddressSanitizer's.
pub(super) fn comes_first(library: &str) -> bool {
    let name = library.rsplit('/').next().unwrap_or(library);
    ["libasan.so", "libclang_rt.asan"].iter().any(|first| name.starts_with(first))
}

/// Returns the library of this program that must come before any preload.
pub(super) fn first_of(path: &Path) -> Option<String> {
    program(path)?.needed.into_iter().find(|library| comes_first(library))
}

/// The machine that this binary was built for, by its ELF number.
pub(crate) const MACHINE: Machine = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// Returns the dynamic loader of a program.
pub(super) fn loader(path: &Path) -> Option<String> {
    program(path)?.interpreter
}

/// Beginning of the name of musl's loaders, for any processor.
const MUSL: &str = "ld-musl";

/// True if a preload ends this program: musl's loader does so if a library needs symbols that only glibc has.
pub(super) fn dies_of_a_preload(path: &Path) -> bool {
    loader(path).is_some_and(|loader| loader.contains(MUSL))
}

/// Message for a program with more rights than the user who starts it.
pub(crate) const PRIVILEGED: &str =
    "it is setuid or setgid or has file capabilities, and the loader ignores LD_PRELOAD with a path then";

/// Returns the reason why a preload does not reach a program that this process starts; `None`: there is none.
pub(crate) fn beyond_reach(path: &Path) -> Option<String> {
    if is_privileged(path) { Some(PRIVILEGED.into()) } else { foreign(path) }
}

/// True if a program would have more rights than this process.
fn is_privileged(path: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let is_set = meta.mode() & 0o4000 != 0 && meta.uid() != uid || meta.mode() & 0o2000 != 0 && meta.gid() != gid;
    // Root has all capabilities anyway, and the loader accepts root's environment.
    is_set || !getuid().is_root() && has_capabilities(path)
}

/// True if executing a file grants capabilities.
fn has_capabilities(path: &Path) -> bool {
    let mut words = [0_u32; 6];
    let len = getxattr(path, "security.capability", words.as_mut_bytes()).unwrap_or(0);
    // The kernel's vfs_cap_data: a version with the effective bit, then permitted and inheritable capabilities.
    let [magic, permitted, _, permitted_high, ..] = words.map(u32::from_le);
    len >= 12 && (magic & 1 != 0 || permitted != 0 || len >= 20 && permitted_high != 0)
}

/// Returns the reason why this library's preload cannot work in a program, whoever starts it.
pub(crate) fn foreign(path: &Path) -> Option<String> {
    let program = program(path)?;
    match program.interpreter {
        None => Some("it is statically linked, so no library can be preloaded".into()),
        _ if program.bits != 64 => Some("it is a 32-bit program, and libgpumem.so has 64 bits".into()),
        _ if program.machine != MACHINE => Some("it is built for another processor than libgpumem.so".into()),
        Some(loader) if loader.contains(MUSL) => {
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
        head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        head[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
        std::fs::write(&path, &head).unwrap();
        assert!(beyond_reach(&path).unwrap().contains("statically"));
        head[4] = 1;
        std::fs::write(&path, &head).unwrap();
        assert!(beyond_reach(&path).unwrap().contains("32-bit"));
        std::fs::write(&path, &head[..20]).unwrap();
        assert_eq!(beyond_reach(&path), None);
    }
}
