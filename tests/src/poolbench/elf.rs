//! A function of a loaded library as its own symbol table has it, past everything that is preloaded.

use std::ffi::{CStr, c_int, c_void};
use std::mem::size_of;
use std::slice;

struct Wanted<'a> {
    library: &'a str,
    symbol: &'a CStr,
    found: Option<usize>,
}

/// The address of `symbol` in the loaded library whose file's name begins with `library`.
#[must_use]
pub fn own_entry(library: &str, symbol: &CStr) -> Option<usize> {
    let mut wanted = Wanted { library, symbol, found: None };
    // SAFETY: `each` has the type that the loader asks for. `wanted` is a local that outlives the
    // call, and no one else borrows it meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut wanted).cast()) };
    wanted.found
}

/// # Safety
/// The loader calls it, with the address of a [`Wanted`] as `data`.
unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes an `info` that is valid for this call, and the `data` that
    // `own_entry` gave it: the only pointer to a Wanted.
    let (wanted, info) = unsafe { (&mut *data.cast::<Wanted<'_>>(), &*info) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: not null, and the loader's names end in NUL and live while their library is loaded.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
    if !name.rsplit('/').next().is_some_and(|file| file.starts_with(wanted.library)) {
        return 0;
    }
    // SAFETY: the library that `info` describes is loaded. It stays so during this call, because
    // the loader holds its lock.
    wanted.found = unsafe { lookup(info, wanted.symbol) };
    c_int::from(wanted.found.is_some())
}

/// # Safety
/// `info` describes a library that is loaded.
unsafe fn lookup(info: &libc::dl_phdr_info, symbol: &CStr) -> Option<usize> {
    let base = info.dlpi_addr as usize;
    // SAFETY: our caller vouches that the library is loaded. So its program headers, its dynamic
    // section and the tables that this names are mapped.
    unsafe {
        let headers = slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let (mut symbols, mut strings, mut hash) = (None, None, None);
        let mut entry = (base + dynamic.p_vaddr as usize) as *const [usize; 2];
        while (*entry)[0] != 0 {
            match (*entry)[0] {
                DT_SYMTAB => symbols = Some((*entry)[1] as *const libc::Elf64_Sym),
                DT_STRTAB => strings = Some((*entry)[1] as *const libc::c_char),
                DT_GNU_HASH => hash = Some((*entry)[1] as *const u32),
                _ => {}
            }
            entry = entry.add(1);
        }
        let (symbols, strings, hash) = (symbols?, strings?, hash?);
        let (buckets, first, bloom) = (*hash as usize, *hash.add(1) as usize, *hash.add(2) as usize);
        let bucket = hash.add(4 + bloom * (size_of::<usize>() / size_of::<u32>()));
        let chain = bucket.add(buckets);
        for b in 0..buckets {
            let mut i = *bucket.add(b) as usize;
            while i >= first && i != 0 {
                let found = &*symbols.add(i);
                if found.st_value != 0 && CStr::from_ptr(strings.add(found.st_name as usize)) == symbol {
                    return Some(base + found.st_value as usize);
                }
                if *chain.add(i - first) & 1 != 0 {
                    break;
                }
                i += 1;
            }
        }
    }
    None
}

const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_dlsym_finds() {
        let found = own_entry("libc.so", c"getpid").expect("libc has getpid");
        // SAFETY: `found` is the C library's getpid, which has this type, takes no arguments and
        // cannot fail.
        let pid = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(found)() };
        assert_eq!(pid as u32, std::process::id());
        assert_eq!(own_entry("libc.so", c"no_such_function"), None);
    }
}
