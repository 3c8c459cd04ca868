//! Loaded objects and their symbols, read from memory.
//!
//! It serves where `dlsym` cannot be used: to find the real `dlsym`, and to take a vendor's function from one
//! particular file although others in the process export the same name. `RTLD_NOLOAD`, which would keep an object
//! loaded, is not used either: a thread in `dlopen` holds the loader's lock and may wait, in a constructor, for a
//! thread that is here.
//!
//! * [`copies`]: other copies of this library, which every symbol lookup here passes over.
//! * [`shown`]: objects while the loader's list is locked, when their memory may be read.
//! * [`listing`]: a copy of the whole list.
//! * [`tables`]: symbols of one object.

mod copies;
mod listing;
mod shown;
mod tables;

pub(crate) use copies::{First, first_copy};
pub(crate) use listing::{Listing, NextCopy};
pub(crate) use shown::{Shown, Text, each};
use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
pub(crate) use tables::Name;
use tables::Tables;

/// An object that was loaded at the time of the lookup.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// The path as the loader knows it. Empty for the program itself.
    pub path: Vec<u8>,
    pub start: usize,
    pub end: usize,
    dynamic: usize,
}

/// Returns the last part of a path.
fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

impl Object {
    /// Returns the last part of the path.
    pub(crate) fn file_name(&self) -> &[u8] {
        file_name(&self.path)
    }

    /// True if the address lies in this object.
    pub(crate) fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Returns the address of a symbol that this object itself defines, of any version.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<usize> {
        self.symbols(&[Name::new(name)]).next().filter(|&address| address != 0)
    }

    /// Returns the addresses of several symbols, 0 for each that the object does not define. All are 0 if the object is
    /// gone.
    pub(crate) fn symbols(&self, names: &[Name]) -> std::vec::IntoIter<usize> {
        let mut found = vec![0; names.len()];
        each(|shown| {
            let is_it = (shown.start, shown.end, shown.dynamic) == (self.start, self.end, self.dynamic);
            if is_it {
                shown.symbols(names, &mut found);
            }
            !is_it
        });
        found.into_iter()
    }
}

/// Returns an address in this library.
fn here() -> usize {
    is_ours as *const () as usize
}

/// Returns the address of this library's dynamic section.
fn our_dynamic() -> usize {
    unsafe extern "C" {
        /// The linker defines it in each object.
        #[link_name = "_DYNAMIC"]
        static OURS: u8;
    }
    &raw const OURS as usize
}

/// Returns the address of each symbol's first definition among the initial objects behind this library, 0 for a symbol
/// that none of them defines. All these objects are in the global scope.
pub(crate) fn symbols_in_first_scope(names: &[Name]) -> std::vec::IntoIter<usize> {
    let mut found = vec![0; names.len()];
    let (here, first, mut behind) = (here(), objects_at_load(), false);
    each(|shown| {
        if behind && shown.index < first {
            shown.symbols(names, &mut found);
        }
        behind |= shown.holds(here);
        shown.index < first
    });
    found.into_iter()
}

/// As [`symbols_in_first_scope`], for one symbol.
pub(crate) fn symbol_in_first_scope(name: &CStr) -> Option<usize> {
    symbols_in_first_scope(&[Name::new(name)]).next().filter(|&address| address != 0)
}

/// True if an object before this library in the global scope defines `name`, including another copy of this library.
pub(crate) fn is_before_us(name: &CStr) -> bool {
    let (here, name, mut is_before) = (here(), Name::new(name), false);
    each(|shown| {
        let ours = shown.holds(here);
        is_before |= !ours && shown.defines(&name);
        !ours && !is_before
    });
    is_before
}

/// Returns the object that holds an address.
pub(crate) fn object_at(address: usize) -> Option<Object> {
    let mut object = Object { path: Vec::with_capacity(256), start: 0, end: 0, dynamic: 0 };
    loop {
        let (mut is_there, mut is_whole, mut wants) = (false, false, 0);
        each(|shown| {
            if shown.holds(address) {
                is_there = true;
                (object.start, object.end, object.dynamic) = (shown.start, shown.end, shown.dynamic);
                wants = shown.path().len;
                is_whole = shown.path().copy_to(&mut object.path);
            }
            !is_there
        });
        match (is_there, is_whole) {
            (false, _) => return None,
            (true, true) => return Some(object),
            (true, false) => object.path = Vec::with_capacity(wants),
        }
    }
}

/// True if an address lies in another copy of this library.
pub(crate) fn is_in_another_copy(address: usize) -> bool {
    let mut is_in_copy = false;
    each(|shown| {
        let is_there = shown.holds(address);
        is_in_copy |= is_there && shown.is_another_copy();
        !is_there
    });
    is_in_copy
}

/// Returns the first object that defines `name`, without its path.
pub(crate) fn object_that_defines(name: &CStr) -> Option<Object> {
    let (name, mut found) = (Name::new(name), None);
    each(|shown| {
        if shown.symbol(&name) != 0 {
            found = Some((shown.start, shown.end, shown.dynamic));
        }
        found.is_none()
    });
    found.map(|(start, end, dynamic)| Object { path: Vec::new(), start, end, dynamic })
}

/// Returns how many objects the loader has loaded so far, and how many of those it has unloaded.
pub(crate) fn counts() -> (u64, u64) {
    let mut counts = (0, 0);
    each(|object| {
        counts = object.counts;
        false
    });
    counts
}

/// Bytes of thread-local storage per thread for all objects together. The C library puts it on a new thread's stack.
pub(crate) fn thread_storage() -> usize {
    let mut bytes = 0;
    each(|object| {
        bytes += object.thread_storage;
        true
    });
    bytes
}

/// True if an address lies in this library.
pub(crate) fn is_ours(address: usize) -> bool {
    static RANGE: once_cell::race::OnceBox<(usize, usize)> = once_cell::race::OnceBox::new();
    let &(start, end) = RANGE.get_or_init(|| {
        let here = here();
        Box::new(object_at(here).map_or((here, here + 1), |object| (object.start, object.end)))
    });
    (start..end).contains(&address)
}

/// Returns the address of `name` in the first object after this library that defines it. Without preloading, the loader
/// would have bound a caller in the global scope to that definition.
///
/// This is called for the C library's own functions before anything else works, possibly inside another allocator, or
/// inside a checker that replaces `dl_iterate_phdr` and is not ready yet. So it calls nothing that can be replaced.
fn symbol_after_us(name: &CStr) -> Option<usize> {
    let (ours, name) = (our_dynamic(), Name::new(name));
    // Objects that were loaded later may be closed during the search.
    let mut behind = first_objects().take(objects_at_load()).skip_while(|&(_, dynamic)| dynamic != ours);
    behind.next()?;
    // SAFETY: `take` leaves only objects that the program began with. The loader never unmaps
    // these.
    let mut found = behind.filter_map(|(bias, dynamic)| unsafe {
        let tables = Tables::of(bias, dynamic)?;
        let address = tables.find(&name);
        (address != 0 && !copies::is_copy(&tables)).then_some(address)
    });
    found.next()
}

/// As [`symbol_after_us`], looked up for a `slot` until it is found; 0 if there is none.
pub(crate) fn symbol_after_us_once(slot: &AtomicUsize, name: &CStr) -> usize {
    match slot.load(Relaxed) {
        0 => {
            let found = symbol_after_us(name).unwrap_or(0);
            slot.store(found, Relaxed);
            found
        }
        known => known,
    }
}

/// The loader's count of unloaded objects at the last look. A thread that unloads an object finds at least its own
/// count here.
static UNLOADS: AtomicU64 = AtomicU64::new(0);

/// Returns a number that changes whenever the program may have unloaded a library.
#[inline]
pub(crate) fn generation() -> usize {
    UNLOADS.load(Relaxed) as usize
}

/// Returns true if an object was unloaded since the last look. Earlier facts about loaded objects may then be wrong.
pub(crate) fn look_for_unloads() -> bool {
    let (_, unloads) = counts();
    UNLOADS.fetch_max(unloads, Relaxed) < unloads
}

/// Returns the number of objects that the program began with. They come first in the loader's order, are all in the
/// global scope, and are never unloaded. They are counted at the first call.
pub(crate) fn objects_at_load() -> usize {
    static OBJECTS: AtomicUsize = AtomicUsize::new(0);
    if OBJECTS.load(Relaxed) == 0 {
        // A second thread finds the same number, or a larger one if constructors have opened objects.
        let _ = OBJECTS.compare_exchange(0, first_objects().count(), Relaxed, Relaxed);
    }
    OBJECTS.load(Relaxed)
}

/// Iterates over objects in the loader's list for debuggers, in the order of loading: the offset to add to an ELF
/// address, and the dynamic section. The list is not locked, but the initial objects stay.
fn first_objects() -> impl Iterator<Item = (usize, usize)> {
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
    // SAFETY: the kernel gives the address and number of the program's own headers, which stay
    // mapped. The dynamic section ends with DT_NULL, and its DT_DEBUG entry leads to the loader's
    // record.
    let mut next = unsafe {
        let headers = libc::getauxval(libc::AT_PHDR) as *const libc::Elf64_Phdr;
        let len = if headers.is_null() { 0 } else { libc::getauxval(libc::AT_PHNUM) as usize };
        let headers = if len == 0 { &[] } else { std::slice::from_raw_parts(headers, len) };
        let at = |kind| headers.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr as usize);
        let bias = at(libc::PT_PHDR).map_or(0, |address| headers.as_ptr() as usize - address);
        let dynamic = at(libc::PT_DYNAMIC).map(|dynamic| bias + dynamic);
        match dynamic.and_then(|dynamic| tables::entries(dynamic).find(|(tag, _)| *tag == DT_DEBUG)) {
            Some((_, record)) if record != 0 => *((record + R_MAP) as *const *const LinkMap),
            _ => ptr::null(),
        }
    };
    std::iter::from_fn(move || {
        // SAFETY: `next` is null or an element of the loader's list. Callers stop at the objects
        // that the program began with, whose elements are never freed.
        let map = unsafe { next.as_ref() }?;
        next = map.next;
        Some((map.bias, map.dynamic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_functions_are_found_where_dlsym_finds_them() {
        for name in [c"malloc", c"dlsym", c"dlvsym", c"getenv"] {
            // SAFETY: dlsym takes RTLD_NEXT, and `name` is a C string.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
            let found = Listing::with_symbol(name).objects().any(|object| object.symbol == expected);
            assert!(expected == 0 || found, "{name:?}");
            let object = object_at(expected);
            assert!(expected == 0 || object.and_then(|object| object.symbol(name)) == Some(expected), "{name:?}");
        }
        let nowhere = Listing::with_symbol(c"no_such_function_anywhere");
        assert!(nowhere.objects().all(|object| object.symbol == 0));
    }

    #[test]
    fn addresses_belong_to_one_object() {
        let here = addresses_belong_to_one_object as *const () as usize;
        assert!(object_at(here).is_some());
        assert!(is_ours(here));
        assert!(!is_ours(libc::malloc as *const () as usize));
    }

    #[test]
    fn a_listing_has_what_each_object_was_linked_with() {
        let listing = Listing::with_symbol(c"getenv");
        let scope = listing.in_scope_of(here()).expect("libc is linked to");
        assert!(listing.objects().any(|object| object.symbol == scope && object.file_name().starts_with(b"libc.")));
        assert_eq!(Listing::new().objects().count(), listing.objects().count());
        assert!(listing.objects().any(|object| object.path().starts_with(b"/")));
    }
}
