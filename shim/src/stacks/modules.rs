//! The loaded objects: a sorted snapshot of what dl_iterate_phdr shows.
//!
//! A snapshot lives in a mapping of its own (no malloc: the program's may call us) and is replaced
//! as a whole. Readers count themselves; a replaced snapshot is unmapped by the first refresh that
//! finds no other reader. What a snapshot says may be out of date at any moment, so nothing
//! follows its addresses except through [`read_memory`]: holding a reference to each object instead would keep the program's dlclose from unloading it.

use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use super::rules;
use crate::process::errno::KeepErrno;
use crate::process::peek::{read_memory, read_value};

/// A loaded object.
#[derive(Clone, Copy)]
pub(crate) struct Module {
    /// Number that no other object of the process has had: what is new or gone is told by it.
    pub serial: u32,
    /// First byte of its lowest segment.
    pub start: u64,
    /// End of its highest segment.
    pub end: u64,
    /// What to add to an ELF address of the file.
    pub bias: u64,
    build_id: [u8; 32],
    build_id_len: u8,
    path: *const u8,
    path_len: u32,
    /// .eh_frame_hdr in memory, 0 without.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) eh_frame_hdr: u64,
    notes: (u64, u64),
}

impl Module {
    /// Absolute path of the file; empty if the object has none (vDSO: its name).
    pub(crate) fn path(&self) -> &[u8] {
        // SAFETY: the path points into the snapshot's mapping, with this length. The mapping
        // outlives every reader of the module.
        unsafe { std::slice::from_raw_parts(self.path, self.path_len as usize) }
    }

    /// The GNU build id, empty without. Ids longer than 32 bytes are cut.
    pub(crate) fn build_id(&self) -> &[u8] {
        &self.build_id[..self.build_id_len as usize]
    }

    fn same_object(&self, other: &Module) -> bool {
        (self.start, self.end, self.bias, self.build_id(), self.path())
            == (other.start, other.end, other.bias, other.build_id(), other.path())
    }
}

/// Start of a snapshot's mapping; modules and paths follow.
struct Snapshot {
    bytes: usize,
    generation: u64,
    adds: u64,
    subs: u64,
    len: usize,
}

impl Snapshot {
    fn modules(&self) -> &[Module] {
        // SAFETY: `take` wrote `len` modules behind the header before anyone could see the
        // snapshot.
        unsafe { std::slice::from_raw_parts((self as *const Snapshot).add(1).cast(), self.len) }
    }
}

static CURRENT: AtomicPtr<Snapshot> = AtomicPtr::new(std::ptr::null_mut());
static READERS: AtomicUsize = AtomicUsize::new(0);
static RETIRED: [AtomicPtr<Snapshot>; 32] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 32];
static SERIALS: AtomicU32 = AtomicU32::new(1);

/// The modules as of the last refresh. Keep it briefly: no snapshot is unmapped meanwhile.
pub(crate) struct Modules {
    snapshot: *const Snapshot,
}

impl Modules {
    /// What is known now; empty before the first refresh.
    pub(crate) fn current() -> Modules {
        READERS.fetch_add(1, Ordering::SeqCst);
        Modules { snapshot: CURRENT.load(Ordering::SeqCst) }
    }

    fn snapshot(&self) -> Option<&Snapshot> {
        // SAFETY: null, or a snapshot that was complete when it was published. It stays mapped
        // while READERS counts us.
        unsafe { self.snapshot.as_ref() }
    }

    /// Changes whenever the modules do; 0 before the first refresh.
    pub(crate) fn generation(&self) -> u64 {
        self.snapshot().map_or(0, |snapshot| snapshot.generation)
    }

    /// The modules by address.
    pub(crate) fn all(&self) -> &[Module] {
        self.snapshot().map_or(&[], Snapshot::modules)
    }

    /// The module that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Module> {
        let all = self.all();
        let after = all.partition_point(|module| module.start <= address);
        all[..after].last().filter(|module| address < module.end)
    }

    fn is_fresh(&self) -> bool {
        let now = load_counts();
        self.snapshot().is_some_and(|snapshot| now == (snapshot.adds, snapshot.subs))
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Looks whether objects were loaded or unloaded since the last look (50 ns on a small VM if not),
/// takes a new snapshot if so, and returns what is true now.
///
/// Takes the loader's list lock for a moment, never while another lock of ours is held.
pub(crate) fn refresh() -> Modules {
    let mut known = Modules::current();
    for _ in 0..4 {
        if known.is_fresh() {
            break;
        }
        let _errno = KeepErrno::new();
        let Some(new) = take(&known) else { break };
        // SAFETY: `take` returned a complete snapshot that no other thread knows yet.
        let unloaded = known.snapshot().is_some_and(|old| old.subs != unsafe { (*new).subs });
        let old = known.snapshot.cast_mut();
        if CURRENT.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            if unloaded {
                rules::forget_all();
            } else {
                rules::forget_unknown();
            }
            retire(old);
        } else {
            unmap(new);
        }
        known = Modules::current();
    }
    known
}

/// Unmaps replaced snapshots unless somebody else may be reading one.
fn retire(old: *mut Snapshot) {
    let mut taken = [std::ptr::null_mut(); RETIRED.len() + 1];
    taken[0] = old;
    for (slot, taken) in RETIRED.iter().zip(&mut taken[1..]) {
        *taken = slot.swap(std::ptr::null_mut(), Ordering::SeqCst);
    }
    // Whoever counts himself from here on finds only the new snapshot; one reader is our caller,
    // who looks at `known` no more.
    let alone = READERS.load(Ordering::SeqCst) == 1;
    for snapshot in taken.into_iter().filter(|snapshot| !snapshot.is_null()) {
        if alone {
            unmap(snapshot);
            continue;
        }
        // For the next refresh; without room it stays mapped for good.
        let _ = RETIRED.iter().any(|slot| {
            slot.compare_exchange(std::ptr::null_mut(), snapshot, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        });
    }
}

fn unmap(snapshot: *mut Snapshot) {
    // SAFETY: our caller has taken the pointer out of every place, and no reader is left. It is the
    // start of a mapping of `bytes` bytes.
    unsafe { libc::munmap(snapshot.cast(), (*snapshot).bytes) };
}

/// What dl_iterate_phdr counts: objects ever loaded, and ever unloaded.
fn load_counts() -> (u64, u64) {
    extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
        // SAFETY: the loader passes an `info` that is valid for this call, and the `to` that is
        // given below: a pair of u64.
        unsafe { *to.cast::<(u64, u64)>() = ((*info).dlpi_adds, (*info).dlpi_subs) };
        1
    }
    let mut counts = (0, 0);
    // SAFETY: `first` has the type that the loader asks for. `counts` is a local that outlives the
    // call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut counts).cast()) };
    counts
}

/// Fills a mapping from dl_iterate_phdr. With the loader's list locked it calls nothing of another library, not
/// even `memcpy` or `strlen`: a checker that replaces these takes a lock of its own in them, and walks the loaded
/// objects while it holds that.
struct Filler {
    modules: *mut Module,
    capacity: usize,
    len: usize,
    text: *mut u8,
    text_room: usize,
    adds: u64,
    subs: u64,
    /// More modules or longer names than there is room for.
    overflow: bool,
    seen: usize,
    /// Where the program's own path is, and where names without a directory begin: start and length of texts.
    exe: (*const u8, usize),
    cwd: (*const u8, usize),
}

fn take(known: &Modules) -> Option<*mut Snapshot> {
    let mut capacity = known.all().len() + 64;
    for _ in 0..8 {
        let table = size_of::<Snapshot>() + capacity * size_of::<Module>();
        let bytes = table + capacity * 160 + 4 * libc::PATH_MAX as usize;
        // SAFETY: without MAP_FIXED the kernel picks addresses that are free, so no other mapping
        // is touched.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return None;
        }
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
            adds: 0,
            subs: 0,
            overflow: false,
            seen: 0,
            exe: (std::ptr::null(), 0),
            cwd: (std::ptr::null(), 0),
        };
        filler.exe = filler.link(c"/proc/self/exe");
        filler.cwd = filler.link(c"/proc/self/cwd");
        // SAFETY: `add` has the type that the loader asks for. `filler` is a local that outlives
        // the call, and no one else borrows it meanwhile.
        unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut filler).cast()) };
        if filler.overflow {
            // SAFETY: the mapping was made above with this length, and is not published.
            unsafe { libc::munmap(at, bytes) };
            capacity = (filler.seen + 64).max(capacity * 2);
            continue;
        }
        let Filler { adds, subs, len, modules, .. } = filler;
        // SAFETY: `add` has written `len` modules there, and no other reference to them is alive.
        let list = unsafe { std::slice::from_raw_parts_mut(modules, len) };
        list.sort_unstable_by_key(|module| module.start);
        for module in list {
            complete(module, known, subs);
        }
        let generation = known.generation() + 1;
        // SAFETY: the mapping begins with room for a Snapshot and is page-aligned. No other thread
        // knows it yet.
        unsafe { snapshot.write(Snapshot { bytes, generation, adds, subs, len }) };
        return Some(snapshot);
    }
    None
}

/// Adds what only needs reading once: build id and serial.
fn complete(module: &mut Module, known: &Modules, subs: u64) {
    let old = known.find(module.start).filter(|old| old.start == module.start);
    let nothing_left = known.snapshot().is_some_and(|snapshot| snapshot.subs == subs);
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
    // A handful of notes is usual; the bound is for garbage.
    for _ in 0..16 {
        if at + 16 > end {
            return;
        }
        // namesz, descsz, type, name
        let Some(head) = read_value::<[u8; 16]>(at) else { return };
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let padded = |size: u32| u64::from(size).next_multiple_of(4);
        if word(8) == NT_GNU_BUILD_ID && word(0) == 4 && &head[12..] == b"GNU\0" {
            let len = (word(4) as usize).min(module.build_id.len());
            let mut id = [MaybeUninit::uninit(); 32];
            let id = read_memory(at + 16, &mut id[..len]);
            module.build_id[..id.len()].copy_from_slice(id);
            module.build_id_len = id.len() as u8;
            return;
        }
        at += 12 + padded(word(0)) + padded(word(4));
    }
}

extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: the loader passes an `info` that is valid for this call, and the `to` that `take`
    // gave it: the only pointer to the Filler.
    let (info, filler) = unsafe { (&*info, &mut *to.cast::<Filler>()) };
    filler.add(info);
    0
}

impl Filler {
    fn add(&mut self, info: &libc::dl_phdr_info) {
        (self.adds, self.subs) = (info.dlpi_adds, info.dlpi_subs);
        self.seen += 1;
        if info.dlpi_phdr.is_null() {
            return;
        }
        // SAFETY: the loader's `dlpi_phdr` points to `dlpi_phnum` headers, which stay mapped while
        // it holds its lock.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let (mut start, mut end) = (u64::MAX, 0);
        let (mut eh_frame_hdr, mut notes) = (0, (0, 0));
        for header in headers {
            let at = info.dlpi_addr.wrapping_add(header.p_vaddr);
            match header.p_type {
                libc::PT_LOAD => {
                    start = start.min(at & !0xfff);
                    end = end.max(at.saturating_add(header.p_memsz));
                }
                libc::PT_GNU_EH_FRAME => eh_frame_hdr = at,
                // Of several, the build id's is the one aligned to 4 bytes.
                libc::PT_NOTE if notes.0 == 0 || header.p_align == 4 => {
                    notes = (at, at.saturating_add(header.p_memsz));
                }
                _ => {}
            }
        }
        if start >= end {
            return;
        }
        if self.len == self.capacity {
            self.overflow = true;
            return;
        }
        let Some((path, path_len)) = self.path(info.dlpi_name.cast()) else {
            self.overflow = true;
            return;
        };
        let module = Module {
            serial: 0,
            start,
            end,
            bias: info.dlpi_addr,
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

    /// Stores an absolute path for the loader's name, which may be null. `None` if there is no room.
    fn path(&mut self, name: *const u8) -> Option<(*const u8, u32)> {
        let start = self.text.cast_const();
        let (mut len, mut is_relative) = (0, false);
        // SAFETY: the loader's name is null or a C string. The loop stops at its NUL, so nothing
        // behind the NUL is read.
        unsafe {
            while !name.is_null() && name.add(len).read_volatile() != 0 {
                is_relative |= name.add(len).read_volatile() == b'/';
                len += 1;
            }
            is_relative &= len != 0 && name.read_volatile() != b'/';
        }
        // The program itself has no name; other nameless objects have no file.
        match len {
            0 if self.len == 0 => self.text(self.exe)?,
            0 => {}
            _ => {
                if is_relative {
                    self.text(self.cwd)?;
                    self.text((b"/".as_ptr(), 1))?;
                }
                self.text((name, len))?;
            }
        }
        // SAFETY: `start` is an earlier value of `text`, and both point into the text part of the
        // mapping.
        let len = unsafe { self.text.cast_const().offset_from(start) };
        Some((start, len as u32))
    }

    /// Stores where a link leads; nothing if that cannot be read.
    fn link(&mut self, path: &CStr) -> (*const u8, usize) {
        let (start, room) = (self.text.cast_const(), (libc::PATH_MAX as usize).min(self.text_room));
        // SAFETY: `path` is a C string. At most `room` bytes are written, and the text part has
        // that many left.
        let len = unsafe { libc::readlink(path.as_ptr(), self.text.cast(), room) };
        let len = usize::try_from(len).unwrap_or(0);
        self.advance(len);
        (start, len)
    }

    /// Appends a text, byte by byte: see the head of [`Filler`] on why no function copies it.
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
