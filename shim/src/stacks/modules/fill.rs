//! Makes a snapshot of the loaded objects.

use super::{Module, Modules, SERIALS, Snapshot};
use crate::process::elf::{Shown, Text, each};
use crate::process::page::map;
use crate::process::peek::read_memory;
use std::ffi::CStr;
use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::Ordering;

/// Fills a mapping as [`each`] shows the objects. While the loader's list is locked it calls no function of another
/// library, not even `memcpy` or `strlen`: a checker may replace these, take a lock of its own in them, and walk the
/// loaded objects while it holds that lock.
struct Filler {
    modules: *mut Module,
    capacity: usize,
    len: usize,
    text: *mut u8,
    text_room: usize,
    counts: (u64, u64),
    /// True if modules or names exceed the room.
    overflow: bool,
    seen: usize,
    /// The program's own path, and the directory for relative names: start and length of each text.
    exe: (*const u8, usize),
    cwd: (*const u8, usize),
}

/// Makes a snapshot that no other thread knows yet; `None` if the kernel gives no memory.
pub(super) fn snapshot(known: &Modules) -> Option<*mut Snapshot> {
    let mut capacity = known.all().len() + 64;
    for _ in 0..8 {
        let table = size_of::<Snapshot>() + capacity * size_of::<Module>();
        let bytes = table + capacity * 160 + 4 * libc::PATH_MAX as usize;
        let at = map(bytes, 0)?;
        let snapshot = at.cast::<Snapshot>();
        let mut filler = Filler {
            // SAFETY: the mapping has room for the header, then `capacity` modules, then the text.
            modules: unsafe { snapshot.add(1).cast() },
            capacity,
            len: 0,
            // SAFETY: `table` is the length of header and modules, so the text begins inside the
            // mapping.
            text: unsafe { at.cast::<u8>().add(table) },
            text_room: bytes - table,
            counts: (0, 0),
            overflow: false,
            seen: 0,
            exe: (std::ptr::null(), 0),
            cwd: (std::ptr::null(), 0),
        };
        filler.exe = filler.link(c"/proc/self/exe");
        filler.cwd = filler.link(c"/proc/self/cwd");
        each(|object| {
            filler.add(object);
            true
        });
        if filler.overflow {
            // SAFETY: the mapping was made above with this length, and is not published.
            unsafe { libc::munmap(at, bytes) };
            capacity = (filler.seen + 64).max(capacity * 2);
            continue;
        }
        let Filler { counts, len, modules, .. } = filler;
        // SAFETY: `add` has written `len` modules there, and no other reference to them is alive.
        let list = unsafe { std::slice::from_raw_parts_mut(modules, len) };
        list.sort_unstable_by_key(|module| module.start);
        for module in list {
            complete(module, known, counts.1);
        }
        let generation = known.generation() + 1;
        // SAFETY: the mapping begins with room for a Snapshot and is page-aligned. No other thread
        // knows it yet.
        unsafe { snapshot.write(Snapshot { bytes, generation, counts, len }) };
        return Some(snapshot);
    }
    None
}

/// Adds the build id and the serial. An object from the earlier snapshot keeps them.
fn complete(module: &mut Module, known: &Modules, unloads: u64) {
    let old = known.find(module.start).filter(|old| old.start == module.start);
    let nothing_left = known.snapshot().is_some_and(|snapshot| snapshot.counts.1 == unloads);
    match old.filter(|_| nothing_left) {
        Some(old) => (module.build_id, module.build_id_len) = (old.build_id, old.build_id_len),
        None => read_build_id(module),
    }
    module.serial = match old.filter(|old| old.same_object(module)) {
        Some(old) => old.serial,
        None => SERIALS.fetch_add(1, Ordering::Relaxed),
    };
}

fn read_build_id(module: &mut Module) {
    const NT_GNU_BUILD_ID: u32 = 3;
    let (mut at, end) = module.notes;
    // A few notes are usual. The bound guards against garbage.
    for _ in 0..16 {
        if at + 16 > end {
            return;
        }
        // namesz, descsz, type, name, id
        let mut note = [MaybeUninit::uninit(); 16 + 32];
        let most = note.len().min((end - at) as usize);
        let read = read_memory(at, &mut note[..most]);
        let Some((head, id)) = read.split_at_checked(16) else { return };
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let padded = |size: u32| u64::from(size).next_multiple_of(4);
        if word(8) == NT_GNU_BUILD_ID && word(0) == 4 && &head[12..] == b"GNU\0" {
            let id = &id[..id.len().min(word(4) as usize)];
            module.build_id[..id.len()].copy_from_slice(id);
            module.build_id_len = id.len() as u8;
            return;
        }
        at += 12 + padded(word(0)) + padded(word(4));
    }
}

impl Filler {
    fn add(&mut self, object: &Shown) {
        self.counts = object.counts;
        self.seen += 1;
        let (mut eh_frame_hdr, mut notes) = (0, (0, 0));
        for header in object.headers() {
            let at = object.bias().wrapping_add(header.p_vaddr);
            match header.p_type {
                libc::PT_GNU_EH_FRAME => eh_frame_hdr = at,
                // If there are several segments of notes, the build id is in the one that is aligned to 4 bytes.
                libc::PT_NOTE if notes.0 == 0 || header.p_align == 4 => {
                    notes = (at, at.saturating_add(header.p_memsz));
                }
                _ => {}
            }
        }
        if self.len == self.capacity {
            self.overflow = true;
            return;
        }
        let Some((path, path_len)) = self.path(object.path()) else {
            self.overflow = true;
            return;
        };
        let module = Module {
            serial: 0,
            start: object.start as u64 & !0xfff,
            end: object.end as u64,
            bias: object.bias(),
            build_id: [0; 32],
            build_id_len: 0,
            path,
            path_len,
            eh_frame_hdr,
            notes,
        };
        // SAFETY: `len` is below `capacity`, so the place lies in the part of the mapping that is
        // for modules.
        unsafe { self.modules.add(self.len).write(module) };
        self.len += 1;
    }

    /// Stores an absolute path for the loader's name; `None` if there is no room.
    fn path(&mut self, name: Text) -> Option<(*const u8, u32)> {
        let start = self.text.cast_const();
        // SAFETY: the name has `len` bytes.
        let is_slash = |at: usize| unsafe { name.at.add(at).read_volatile() } == b'/';
        let is_relative = (0..name.len).any(is_slash) && !is_slash(0);
        // The program itself is the first object and has no name. Other objects without a name have no file.
        match name.len {
            0 if self.len == 0 => self.text(self.exe)?,
            0 => {}
            _ => {
                if is_relative {
                    self.text(self.cwd)?;
                    self.text((b"/".as_ptr(), 1))?;
                }
                self.text((name.at, name.len))?;
            }
        }
        // SAFETY: `start` is an earlier value of `text`, and both point into the text part of the
        // mapping.
        let len = unsafe { self.text.cast_const().offset_from(start) };
        Some((start, len as u32))
    }

    /// Stores the target of a link; an empty path if the link cannot be read.
    fn link(&mut self, path: &CStr) -> (*const u8, usize) {
        let (start, room) = (self.text.cast_const(), (libc::PATH_MAX as usize).min(self.text_room));
        // SAFETY: `path` is a C string. At most `room` bytes are written, and the text part has
        // that many left.
        let len = unsafe { libc::readlink(path.as_ptr(), self.text.cast(), room) };
        let len = usize::try_from(len).unwrap_or(0);
        self.advance(len);
        (start, len)
    }

    /// Appends a text, byte by byte: the head of [`Filler`] says why no function copies it.
    fn text(&mut self, (from, len): (*const u8, usize)) -> Option<()> {
        if len >= self.text_room {
            return None;
        }
        for index in 0..len {
            // SAFETY: `len` is below `text_room`, so there is room in the mapping, which is new.
            // Our caller's text has `len` bytes.
            unsafe { self.text.add(index).write_volatile(from.add(index).read_volatile()) };
        }
        self.advance(len);
        Some(())
    }

    fn advance(&mut self, len: usize) {
        // SAFETY: our callers pass a `len` of at most `text_room`, so the pointer stays inside the
        // mapping.
        self.text = unsafe { self.text.add(len) };
        self.text_room -= len;
    }
}
