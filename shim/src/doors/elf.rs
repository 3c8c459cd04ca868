//! Loaded objects and their symbols, read from memory.
//!
//! Used where `dlsym` cannot be: to find the real `dlsym`, and to take a vendor's function from one
//! particular file, whatever else in the process exports the same name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// An object that the loader has mapped.
#[derive(Clone, Debug)]
pub struct Object {
    /// As the loader knows it; empty for the program itself.
    pub path: Vec<u8>,
    /// What to add to an ELF address.
    pub bias: usize,
    pub start: usize,
    pub end: usize,
    dynamic: usize,
}

impl Object {
    /// Last part of the path.
    pub fn file_name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or(&self.path)
    }

    /// Whether an address lies in it.
    pub fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Address of a symbol that this object itself defines, of any version.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        // SAFETY: the dynamic section of a mapped object stays mapped while the object is; callers
        // hold objects of vendors' libraries and of libc, which are not unloaded.
        unsafe { Dynamic::of(self)?.find(name) }
    }
}

impl Object {
    /// Sonames of the libraries that it was linked with, and its own.
    fn links(&self) -> (Vec<&'static [u8]>, Option<&'static [u8]>) {
        const DT_NEEDED: i64 = 1;
        const DT_SONAME: i64 = 14;
        // SAFETY: as for `symbol`; names lie in the object's string table.
        unsafe {
            let Some(dynamic) = Dynamic::of(self) else { return (Vec::new(), None) };
            let text = |offset: i64| CStr::from_ptr(dynamic.strings.add(offset as usize)).to_bytes();
            let entries = || Dynamic::entries(self).map(|[tag, value]| (tag, value));
            let needed = entries().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, value)| text(value)).collect();
            let soname = entries().find(|(tag, _)| *tag == DT_SONAME).map(|(_, value)| text(value));
            (needed, soname)
        }
    }

    /// Whether a library of this name in a DT_NEEDED entry is this one.
    fn is_named(&self, needed: &[u8]) -> bool {
        self.file_name() == needed || self.path == needed || self.links().1 == Some(needed)
    }
}

/// The first object that defines `name` among `first` and what it was linked with, breadth first: the
/// loader's local scope of an object, without asking the loader (a thread in `dlopen` holds its lock,
/// and may wait for us).
pub fn symbol_in_scope_of(first: &Object, name: &CStr) -> Option<usize> {
    let objects = objects();
    let mut queue: Vec<&Object> = vec![objects.iter().find(|object| object.start == first.start)?];
    let mut next = 0;
    while let Some(&object) = queue.get(next) {
        next += 1;
        if let Some(address) = object.symbol(name).filter(|&address| !is_ours(address)) {
            return Some(address);
        }
        for needed in object.links().0 {
            let found = objects.iter().find(|object| object.is_named(needed));
            if let Some(found) = found.filter(|found| !queue.iter().any(|known| known.start == found.start)) {
                queue.push(found);
            }
        }
    }
    None
}

/// The objects behind this library that the program began with, which are all in the global scope.
pub struct FirstScope(Vec<Object>);

impl FirstScope {
    pub fn behind_us() -> Self {
        let mut objects = objects();
        objects.truncate(crate::load::objects());
        let us = objects.iter().position(|object| is_ours(object.start));
        Self(us.map_or_else(Vec::new, |us| objects.split_off(us + 1)))
    }

    /// The first definition of `name`.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        self.0.iter().find_map(|object| object.symbol(name))
    }
}

/// Whether an object before this library in the global scope defines `name`.
pub fn is_before_us(name: &CStr) -> bool {
    objects().iter().take_while(|object| !is_ours(object.start)).any(|object| object.symbol(name).is_some())
}

/// The first definition of `name` in [`FirstScope`].
pub fn symbol_in_first_scope(name: &CStr) -> Option<usize> {
    FirstScope::behind_us().symbol(name)
}

/// Objects in the order of loading; the program is first, preloaded ones follow.
pub fn objects() -> Vec<Object> {
    let mut list = Vec::new();
    each(|object| {
        list.push(object.to_object());
        true
    });
    list
}

/// The object that an address lies in.
pub fn object_at(address: usize) -> Option<Object> {
    let mut found = None;
    each(|object| {
        if (object.start..object.end).contains(&address) {
            found = Some(object.to_object());
        }
        found.is_none()
    });
    found
}

/// How often the loader has unloaded an object.
pub fn unloads() -> u64 {
    let mut unloads = 0;
    each(|object| {
        unloads = object.unloads;
        false
    });
    unloads
}

/// An object as the loader shows it, while it does.
struct Shown<'a> {
    info: &'a libc::dl_phdr_info,
    start: usize,
    end: usize,
    dynamic: usize,
    unloads: u64,
}

impl Shown<'_> {
    fn to_object(&self) -> Object {
        let path = if self.info.dlpi_name.is_null() {
            Vec::new()
        } else {
            // SAFETY: a non-null dlpi_name is a C string.
            unsafe { CStr::from_ptr(self.info.dlpi_name) }.to_bytes().to_vec()
        };
        let bias = self.info.dlpi_addr as usize;
        Object { path, bias, start: self.start, end: self.end, dynamic: self.dynamic }
    }
}

/// Shows objects in the order of loading until `visit` says false. The loader's list is locked
/// meanwhile: `visit` may allocate (our heap takes no lock) and nothing else.
fn each<F: FnMut(&Shown) -> bool>(mut visit: F) {
    unsafe extern "C" fn show<F: FnMut(&Shown) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid info for the time of the call, and `data` is the closure below.
        let (info, visit) = unsafe { (&*info, &mut *data.cast::<F>()) };
        // SAFETY: dlpi_phdr points at dlpi_phnum program headers of the object.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let bias = info.dlpi_addr as usize;
        let mut shown = Shown { info, start: usize::MAX, end: 0, dynamic: 0, unloads: info.dlpi_subs };
        for header in headers {
            let at = bias.wrapping_add(header.p_vaddr as usize);
            match header.p_type {
                libc::PT_LOAD => {
                    shown.start = shown.start.min(at);
                    shown.end = shown.end.max(at.wrapping_add(header.p_memsz as usize));
                }
                libc::PT_DYNAMIC => shown.dynamic = at,
                _ => {}
            }
        }
        c_int::from(shown.end > shown.start && !visit(&shown))
    }
    // SAFETY: the callback matches the prototype and the closure outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(show::<F>), (&raw mut visit).cast()) };
}

/// Whether an address lies in this library.
pub fn is_ours(address: usize) -> bool {
    static RANGE: once_cell::race::OnceBox<(usize, usize)> = once_cell::race::OnceBox::new();
    let &(start, end) = RANGE.get_or_init(|| {
        let here = is_ours as *const () as usize;
        Box::new(object_at(here).map_or((here, here + 1), |object| (object.start, object.end)))
    });
    (start..end).contains(&address)
}

/// Address of `name` in the first object after this library that defines it: what the loader would
/// have bound a caller in the global scope to, had this library not been preloaded.
///
/// Called for the C library's own functions before anything else works, maybe inside somebody's
/// allocator, maybe inside a checker that replaces `dl_iterate_phdr` and is not ready yet: calls
/// nothing that can be replaced.
pub fn symbol_after_us(name: &CStr) -> Option<usize> {
    unsafe extern "C" {
        /// The dynamic section of this library; the linker defines it in each.
        #[link_name = "_DYNAMIC"]
        static OURS: u8;
    }
    let ours = &raw const OURS as usize;
    let mut behind = first_objects().skip_while(|object| object.dynamic != ours);
    behind.next()?;
    behind.find_map(|object| object.symbol(name))
}

/// How many objects are loaded.
pub fn count() -> usize {
    first_objects().count()
}

/// Objects by the list that the loader keeps for debuggers, in the order of loading, without their
/// paths and ranges. The list is not locked; those that the program began with stay.
fn first_objects() -> impl Iterator<Item = Object> {
    #[repr(C)]
    struct LinkMap {
        bias: usize,
        name: *const c_char,
        dynamic: usize,
        next: *const LinkMap,
    }
    const DT_DEBUG: i64 = 21;
    /// Offset of `r_map` in `struct r_debug` (link.h).
    const R_MAP: usize = 8;
    // SAFETY: the kernel gives the program's own headers, which stay mapped; the program's dynamic
    // section holds the loader's record once it has started.
    let mut next = unsafe {
        let headers = libc::getauxval(libc::AT_PHDR) as *const libc::Elf64_Phdr;
        let len = if headers.is_null() { 0 } else { libc::getauxval(libc::AT_PHNUM) as usize };
        let headers = if len == 0 { &[] } else { std::slice::from_raw_parts(headers, len) };
        let at = |kind| headers.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr as usize);
        let bias = at(libc::PT_PHDR).map_or(0, |address| headers.as_ptr() as usize - address);
        let program = at(libc::PT_DYNAMIC).map(|dynamic| Object {
            path: Vec::new(),
            bias,
            start: 0,
            end: 0,
            dynamic: bias + dynamic,
        });
        let debug = program.as_ref().and_then(|object| Dynamic::entries(object).find(|[tag, _]| *tag == DT_DEBUG));
        match debug {
            Some([_, record]) if record != 0 => *((record as usize + R_MAP) as *const *const LinkMap),
            _ => ptr::null(),
        }
    };
    std::iter::from_fn(move || {
        // SAFETY: a pointer of the loader's list, null at its end.
        let map = unsafe { next.as_ref() }?;
        next = map.next;
        Some(Object { path: Vec::new(), bias: map.bias, start: 0, end: 0, dynamic: map.dynamic })
    })
}

/// The tables of a dynamic section that a lookup needs.
struct Dynamic {
    bias: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    gnu_hash: *const u32,
    sysv_hash: *const u32,
}

impl Dynamic {
    /// # Safety
    /// The object must be mapped.
    unsafe fn of(object: &Object) -> Option<Self> {
        const DT_HASH: i64 = 4;
        const DT_STRTAB: i64 = 5;
        const DT_SYMTAB: i64 = 6;
        const DT_GNU_HASH: i64 = 0x6fff_fef5;
        if object.dynamic == 0 {
            return None;
        }
        let mut found = Dynamic {
            bias: object.bias,
            symbols: ptr::null(),
            strings: ptr::null(),
            gnu_hash: ptr::null(),
            sysv_hash: ptr::null(),
        };
        // SAFETY: the object is mapped.
        for [tag, value] in unsafe { Self::entries(object) } {
            // glibc has relocated these in place, except in objects it maps read-only (the vDSO).
            let address = if (value as usize) < object.bias { object.bias + value as usize } else { value as usize };
            match tag {
                DT_HASH => found.sysv_hash = address as *const u32,
                DT_STRTAB => found.strings = address as *const c_char,
                DT_SYMTAB => found.symbols = address as *const libc::Elf64_Sym,
                DT_GNU_HASH => found.gnu_hash = address as *const u32,
                _ => {}
            }
        }
        (!found.symbols.is_null() && !found.strings.is_null()).then_some(found)
    }

    /// Tags and values of the dynamic section.
    ///
    /// # Safety
    /// The object must be mapped and have a dynamic section.
    unsafe fn entries(object: &Object) -> impl Iterator<Item = [i64; 2]> {
        let mut entry = object.dynamic as *const [i64; 2];
        std::iter::from_fn(move || {
            // SAFETY: a dynamic section ends with a DT_NULL entry, where this stops.
            let pair = unsafe { *entry };
            entry = entry.wrapping_add(1);
            (pair[0] != 0).then_some(pair)
        })
    }

    /// # Safety
    /// The object must be mapped.
    unsafe fn find(&self, name: &CStr) -> Option<usize> {
        // SAFETY: as the caller promises.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.find_gnu(name)
            } else if !self.sysv_hash.is_null() {
                self.find_sysv(name)
            } else {
                None
            }
        }
    }

    /// # Safety
    /// `index` must be that of a symbol of the mapped object.
    unsafe fn defined(&self, index: usize, name: &CStr) -> Option<usize> {
        // SAFETY: as the caller promises; names lie in the string table.
        unsafe {
            let symbol = &*self.symbols.add(index);
            let kind = symbol.st_info & 0xf;
            // STT_NOTYPE, STT_OBJECT, STT_FUNC; a real function is never an ifunc in these libraries.
            if symbol.st_shndx == 0 || kind > 2 {
                return None;
            }
            (CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name)
                .then(|| self.bias + symbol.st_value as usize)
        }
    }

    /// # Safety
    /// The object must be mapped and have a GNU hash table.
    unsafe fn find_gnu(&self, name: &CStr) -> Option<usize> {
        let hash = name.to_bytes().iter().fold(5381_u32, |h, &c| h.wrapping_mul(33).wrapping_add(u32::from(c)));
        // SAFETY: the layout of DT_GNU_HASH: four words, the bloom filter, the buckets, the chains.
        unsafe {
            let table = self.gnu_hash;
            let (buckets, first, bloom) = (*table, *table.add(1), *table.add(2) as usize);
            if buckets == 0 {
                return None;
            }
            let bucket_at = table.add(4).add(bloom * 2);
            let chains = bucket_at.add(buckets as usize);
            let mut index = *bucket_at.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let entry = *chains.add((index - first) as usize);
                if (entry | 1) == (hash | 1)
                    && let Some(address) = self.defined(index as usize, name)
                {
                    return Some(address);
                }
                if entry & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// The object must be mapped and have a SysV hash table.
    unsafe fn find_sysv(&self, name: &CStr) -> Option<usize> {
        let hash = name.to_bytes().iter().fold(0_u32, |h, &c| {
            let h = (h << 4).wrapping_add(u32::from(c));
            let high = h & 0xf000_0000;
            (h ^ (high >> 24)) & !high
        });
        // SAFETY: the layout of DT_HASH: two counts, the buckets, the chains.
        unsafe {
            let (buckets, table) = (*self.sysv_hash, self.sysv_hash);
            if buckets == 0 {
                return None;
            }
            let mut index = *table.add(2 + (hash % buckets) as usize);
            while index != 0 {
                if let Some(address) = self.defined(index as usize, name) {
                    return Some(address);
                }
                index = *table.add(2 + buckets as usize + index as usize);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_functions_are_found_where_dlsym_finds_them() {
        for name in [c"malloc", c"dlsym", c"dlvsym", c"getenv"] {
            // SAFETY: a plain lookup.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
            let found = objects().into_iter().filter_map(|object| object.symbol(name)).any(|at| at == expected);
            assert!(expected == 0 || found, "{name:?}");
        }
        assert!(objects().iter().all(|object| object.symbol(c"no_such_function_anywhere").is_none()));
    }

    #[test]
    fn addresses_belong_to_one_object() {
        let here = addresses_belong_to_one_object as *const () as usize;
        assert!(object_at(here).is_some());
        assert!(is_ours(here));
        assert!(!is_ours(libc::malloc as *const () as usize));
    }
}
