//! Checks that a program's C library is new enough for libgpumem.so. If it is older, the loader does not skip the
//! preload: it ends the program.

use super::elf::{Bounded, loader};
use crate::source::open;
use object::LittleEndian;
use object::elf::{FileHeader64, VER_FLG_WEAK};
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionTable};
use std::fs::File;
use std::path::Path;

const LIBC: &str = "libc.so.6";
const ENDIAN: LittleEndian = LittleEndian;

/// Returns a version of the C library, such as `GLIBC_2.28`, that `library` needs and the C library of `program` lacks.
/// `None`: none is missing, or the files do not say.
pub(super) fn lacking(program: &Path, library: &Path) -> Option<String> {
    // The C library lies beside its loader, wherever a distribution keeps both.
    let beside = Path::new(&loader(program)?).canonicalize().ok()?.with_file_name(LIBC);
    let defined = read(&beside, defined)?;
    read(library, needed)?.into_iter().find(|version| !defined.contains(version))
}

type Sections<'a> = SectionTable<'a, FileHeader64<LittleEndian>, Bounded<'a>>;

fn read(path: &Path, what: fn(&Sections, Bounded) -> object::read::Result<Vec<String>>) -> Option<Vec<String>> {
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
        assert_eq!(lacking(&exe, &exe), None);
        let none = Path::new("/etc/passwd");
        assert_eq!((lacking(&exe, none), lacking(none, &exe)), (None, None));
    }
}
