//! Checks that this processor has the features that libgpumem.so was built for. Without them the library may end any
//! program under it by SIGILL.

use super::elf::{Bounded, MACHINE};
use crate::source::open;
use gpumem_wire::processor::{SECTION, lacking_here};
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionHeader};
use std::fs::File;
use std::path::Path;

const ENDIAN: LittleEndian = LittleEndian;

/// Returns a feature that a library needs and this processor lacks. `None`: none is missing, or the file does not list
/// its needs.
pub(crate) fn lacking(library: &Path) -> Option<&'static str> {
    lacking_here(needs(library)?)
}

fn needs(library: &Path) -> Option<u64> {
    let cache: ReadCache<File> = ReadCache::new(open::any(library).ok()?);
    let data = Bounded(&cache);
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    if header.e_machine(ENDIAN) != MACHINE {
        return None;
    }
    let sections = header.sections(ENDIAN, data).ok()?;
    let (_, section) = sections.section_by_name(ENDIAN, SECTION.as_bytes())?;
    let bytes = section.data(ENDIAN, data).ok()?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_say_needs_nothing() {
        let exe = std::env::current_exe().unwrap();
        for file in [&*exe, Path::new("/etc/passwd"), Path::new("/nowhere")] {
            assert_eq!(needs(file), None);
            assert_eq!(lacking(file), None);
        }
    }
}
