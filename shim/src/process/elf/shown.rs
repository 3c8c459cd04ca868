//! Loaded objects, visited while the loader's list is locked.
//!
//! Only here is memory read of objects that may be closed at any time: `dlclose` in another thread takes the same lock
//! before it unmaps one. While the lock is held, no function of another library is called, not even `malloc`, `memcpy`
//! or `strlen`. A checker that replaces these (ThreadSanitizer) takes a lock of its own in them, and walks the loaded
//! objects while it holds that lock. Copies go into room that was made before; what does not fit is only counted.

use super::tables::{Name, Tables, entries};
use super::{copies, our_dynamic};
use std::ffi::{c_int, c_void};

/// An object during its visit.
pub(crate) struct Shown<'a> {
    info: &'a libc::dl_phdr_info,
    /// Number of objects visited before it.
    pub index: usize,
    pub start: usize,
    pub end: usize,
    pub dynamic: usize,
    /// Bytes of each thread's storage that belong to it.
    pub thread_storage: usize,
    /// Number of objects that the loader has loaded so far, and of those that it has unloaded.
    pub counts: (u64, u64),
}

/// A text of an object, during its visit.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    pub at: *const u8,
    pub len: usize,
}

impl Text {
    /// # Safety
    /// `at` is null, or there is a C string for as long as the text is used.
    unsafe fn at(at: *const u8) -> Self {
        let mut len = 0;
        // SAFETY: our caller vouches for a C string. The loop stops at its NUL, so nothing behind
        // the NUL is read.
        while !at.is_null() && unsafe { at.add(len).read_volatile() } != 0 {
            len += 1;
        }
        Self { at, len }
    }

    /// Appends the text if there is room for it; returns true if there was.
    pub(super) fn copy_to(self, to: &mut Vec<u8>) -> bool {
        let used = to.len();
        if self.len > to.capacity() - used {
            return false;
        }
        for index in 0..self.len {
            // SAFETY: `index` is below the text's length, which `at` has measured. The lines above
            // made sure that `to` has room for all of it.
            unsafe { to.as_mut_ptr().add(used + index).write_volatile(self.at.add(index).read_volatile()) };
        }
        // SAFETY: the loop has written all `self.len` bytes behind the first `used`, within the
        // capacity.
        unsafe { to.set_len(used + self.len) };
        true
    }
}

impl Shown<'_> {
    pub(super) fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Returns the address in the process minus the address in the ELF file.
    pub(crate) fn bias(&self) -> u64 {
        self.info.dlpi_addr
    }

    /// Returns the headers of its segments.
    pub(crate) fn headers(&self) -> &[libc::Elf64_Phdr] {
        headers(self.info)
    }

    /// Returns the path as the loader knows it; empty for the program itself.
    pub(crate) fn path(&self) -> Text {
        // SAFETY: the loader's name is null or a C string. It stays while the list is locked, and a
        // Shown lives no longer than that.
        unsafe { Text::at(self.info.dlpi_name.cast()) }
    }

    fn tables(&self) -> Option<Tables> {
        // SAFETY: the object is in the loader's list, so it is mapped. It stays so while the list
        // is locked, and a Shown lives no longer than that.
        unsafe { Tables::of(self.info.dlpi_addr as usize, self.dynamic) }
    }

    /// Returns the tables for symbol lookup; `None` for another copy of this library.
    fn tables_to_search(&self) -> Option<Tables> {
        self.tables().filter(|_| !self.is_another_copy())
    }

    /// True if this is another copy of this library.
    pub(super) fn is_another_copy(&self) -> bool {
        // SAFETY: the tables are those of this object, which stays mapped while the list is locked
        // (see `tables`).
        self.dynamic != our_dynamic() && self.tables().is_some_and(|tables| unsafe { copies::is_copy(&tables) })
    }

    /// True if this object defines a symbol, also if it is another copy of this library.
    pub(super) fn defines(&self, name: &Name) -> bool {
        // SAFETY: the tables are those of this object, which stays mapped while the list is locked
        // (see `tables`).
        self.tables().is_some_and(|tables| unsafe { tables.find(name) } != 0)
    }

    /// Looks up, in this object and for any version, the symbols that have no address yet.
    pub(super) fn symbols(&self, names: &[Name], found: &mut [usize]) {
        let Some(tables) = self.tables_to_search() else { return };
        for (name, found) in names.iter().zip(found) {
            if *found == 0 {
                // SAFETY: the tables are those of this object, which stays mapped while the list is
                // locked (see `tables`).
                *found = unsafe { tables.find(name) };
            }
        }
    }

    /// Returns the address of one symbol, 0 if this object does not define it.
    pub(super) fn symbol(&self, name: &Name) -> usize {
        // SAFETY: the tables are those of this object, which stays mapped while the list is locked
        // (see `tables`).
        self.tables_to_search().map_or(0, |tables| unsafe { tables.find(name) })
    }

    /// Shows each text that the object's dynamic section has under a tag: [`OWN_NAME`] or [`LINKED_WITH`].
    pub(super) fn texts(&self, tag: i64, mut show: impl FnMut(Text)) {
        let Some(tables) = self.tables() else { return };
        // SAFETY: an object with tables has a dynamic section, mapped while the list is locked (see `tables`).
        for (_, value) in unsafe { entries(self.dynamic) }.filter(|(its, _)| *its == tag) {
            // SAFETY: the value under such a tag is the offset of a C string in the string table.
            show(unsafe { Text::at(tables.string(value)) });
        }
    }
}

/// Tag of the object's own name as a library (`DT_SONAME`).
pub(super) const OWN_NAME: i64 = 14;
/// Tag of the name of a library that the object was linked with (`DT_NEEDED`).
pub(super) const LINKED_WITH: i64 = 1;

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    let len = if info.dlpi_phdr.is_null() { 0 } else { info.dlpi_phnum.into() };
    // SAFETY: the loader's `dlpi_phdr` points to `dlpi_phnum` headers, which stay mapped while it holds its lock.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(info.dlpi_phdr, len) } }
}

/// Visits objects in the order of loading until `visit` returns false. `visit` keeps to the rules at the head of this
/// file.
pub(crate) fn each<F: FnMut(&Shown) -> bool>(visit: F) {
    struct Walk<F> {
        visit: F,
        index: usize,
    }
    /// # Safety
    /// The loader calls it, with the address of a `Walk<F>` as `data`.
    unsafe extern "C" fn show<F: FnMut(&Shown) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes an `info` that is valid for this call, and the `data` that was
        // given below: the only pointer to the Walk.
        let (info, walk) = unsafe { (&*info, &mut *data.cast::<Walk<F>>()) };
        let bias = info.dlpi_addr as usize;
        let mut shown = Shown {
            info,
            index: walk.index,
            start: usize::MAX,
            end: 0,
            dynamic: 0,
            thread_storage: 0,
            counts: (info.dlpi_adds, info.dlpi_subs),
        };
        walk.index += 1;
        for header in headers(info) {
            let at = bias.wrapping_add(header.p_vaddr as usize);
            match header.p_type {
                libc::PT_LOAD => {
                    shown.start = shown.start.min(at);
                    shown.end = shown.end.max(at.wrapping_add(header.p_memsz as usize));
                }
                libc::PT_DYNAMIC => shown.dynamic = at,
                libc::PT_TLS => shown.thread_storage = header.p_memsz as usize,
                _ => {}
            }
        }
        c_int::from(shown.end > shown.start && !(walk.visit)(&shown))
    }
    let mut walk = Walk { visit, index: 0 };
    // SAFETY: `show` has the type that the loader asks for. `walk` is a local that outlives the
    // call, and no one else borrows it meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(show::<F>), (&raw mut walk).cast()) };
}
