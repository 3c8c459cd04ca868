//! Checks what libgpumem.so needs.
//!
//! If a program's C library is older than it, the loader does not skip the preload: it ends the program. On a processor
//! without the features that it was built for, it may end any program under it by SIGILL.

use super::elf::{Bounded, MACHINE, loader, program};
use crate::source::open;
use gpumem_wire::processor::{SECTION, lacking_here};
use object::LittleEndian;
use object::elf::{FileHeader64, VER_FLG_WEAK};
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionHeader, SectionTable};
use std::fs::File;
use std::path::Path;

const LIBC: &str = "libc.so.6";
const ENDIAN: LittleEndian = LittleEndian;

/// Returns a version of the C library, such as `GLIBC_2.28`, that `library` needs and the C library of `program` lacks.
/// `None`: none is missing, or the files do not say.
pub(super) fn lacking_version(program: &Path, library: &Path) -> Option<String> {
    // The C library lies beside its loader, wherever a distribution keeps both.
    let beside = Path::new(&loader(program)?).canonicalize().ok()?.with_file_name(LIBC);
    let defined = read(&beside, defined)?;
    read(library, needed)?.into_iter().find(|version| !defined.contains(version))
}

/// Returns a feature that a library needs and this processor lacks. `None`: none is missing, or the file does not list
/// its needs.
pub(crate) fn lacking_feature(library: &Path) -> Option<&'static str> {
    lacking_here(features(library)?)
}

fn features(library: &Path) -> Option<u64> {
    program(library).filter(|library| library.machine == MACHINE)?;
    let bytes = read(library, |sections, data| match sections.section_by_name(ENDIAN, SECTION.as_bytes()) {
        Some((_, section)) => section.data(ENDIAN, data).map(<[u8]>::to_vec),
        None => Ok(Vec::new()),
    });
    Some(u64::from_le_bytes(bytes?.try_into().ok()?))
}

type Sections<'a> = SectionTable<'a, FileHeader64<LittleEndian>, Bounded<'a>>;

fn read<T>(path: &Path, what: fn(&Sections, Bounded) -> object::read::Result<T>) -> Option<T> {
    let cache: ReadCache<File> = ReadCache::new(open::any(path).ok()?);
    let data = Bounded(&cache);
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    what(&header.sections(ENDIAN, data).ok()?, data).ok()
}

/// Returns the versions that a library defines.
fn defined(sections: &Sections, data: Bounded) -> object::read::Result<Vec<String>> {
    let mut names = Vec::new();
    let Some((mut versions, strings)) = sections.gnu_verdef(ENDIAN, data)? else { return Ok(names) };
    let strings = sections.strings(ENDIAN, data, strings)?;
    while let Some((_, mut parts)) = versions.next()? {
        if let Some(first) = parts.next()? {
            names.push(String::from_utf8_lossy(first.name(ENDIAN, strings)?).into_owned());
        }
    }
    Ok(names)
}

/// Returns the versions of the C library that a library needs to load.
fn needed(sections: &Sections, data: Bounded) -> object::read::Result<Vec<String>> {
    let mut names = Vec::new();
    let Some((mut libraries, strings)) = sections.gnu_verneed(ENDIAN, data)? else { return Ok(names) };
    let strings = sections.strings(ENDIAN, data, strings)?;
    while let Some((library, mut versions)) = libraries.next()? {
        if library.file(ENDIAN, strings)? != LIBC.as_bytes() {
            continue;
        }
        while let Some(version) = versions.next()? {
            if !version.vna_flags.get(ENDIAN).contains(VER_FLG_WEAK) {
                names.push(String::from_utf8_lossy(version.name(ENDIAN, strings)?).into_owned());
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_has_what_it_asks_for() {
        let exe = std::env::current_exe().unwrap();
        assert!(read(&exe, needed).unwrap().iter().any(|version| version.starts_with("GLIBC_2.")));
        assert_eq!(lacking_version(&exe, &exe), None);
        let none = Path::new("/etc/passwd");
        assert_eq!((lacking_version(&exe, none), lacking_version(none, &exe)), (None, None));
    }

    #[test]
    fn what_does_not_say_needs_nothing() {
        let exe = std::env::current_exe().unwrap();
        for file in [&*exe, Path::new("/etc/passwd"), Path::new("/nowhere")] {
            assert_eq!(features(file), None);
            assert_eq!(lacking_feature(file), None);
        }
    }
}
