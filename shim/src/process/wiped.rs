//! Values that belong to this process and not to a child of its fork: one page that a fork wipes, with a word for each
//! thing that exists once per process.
//!
//! The page is mapped with `MADV_WIPEONFORK`: in a child made by `fork` or by a bare `clone` it reads as zeroes. So the
//! child starts as a process of its own, whatever locks its parent's threads held. (`vfork` children share the parent's
//! memory and make no GPU calls.)
//!
//! Each room keeps its own things in a [`Place`]. This file only assigns the words and knows no room's types.

use super::elf::{self, First};
use super::errno::KeepErrno;
use super::lock::lock;
use super::page;
use gpumem_wire::kinds::Vendor;
use std::marker::PhantomData;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard};

/// A thing that has a word on the page.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// The records of the process: [`crate::gate`].
    Shim,
    /// The allocation trace: [`crate::trace`].
    Trace,
    /// The thread that visits contexts: [`crate::progress::device`]. Both outlive a stop of the recording.
    Visits,
    /// Graph caches: [`crate::graphs`]. They outlive a stop of the recording, because the program holds handles.
    Cache(Vendor),
    /// The report made when memory ran out: [`crate::request`].
    OutOfMemory,
    /// Pools: [`crate::pool`]. The program holds their blocks.
    Pool(Vendor),
    /// Captures that have begun: [`crate::backend::attributes_set`].
    Captures,
    /// Graphs, functions and kernels with an unknown attribute: [`crate::backend::attributes_set`].
    UnknownAttributes,
    /// [`crate::backend::green`].
    GreenContexts,
    /// Bytes of kernel parameters: [`crate::backend::params`].
    KernelParams,
    /// [`crate::graphs::nodes`].
    DestroyedNodes,
    /// Contexts that the program attached to: [`crate::hooks`].
    AttachedContexts,
    /// [`crate::pool::claims`].
    Claims,
    /// [`crate::references`].
    DriverPatterns,
}

const WORDS: usize = 16;

impl Word {
    /// Words that nearly every call reads come first.
    #[inline(always)]
    const fn index(self) -> usize {
        match self {
            Self::Shim => 0,
            Self::Cache(vendor) => vendor as usize,
            Self::Pool(vendor) => 2 + vendor as usize,
            Self::Trace => 5,
            Self::Visits => 6,
            Self::OutOfMemory => 7,
            Self::Captures => 8,
            Self::UnknownAttributes => 9,
            Self::GreenContexts => 10,
            Self::KernelParams => 11,
            Self::DestroyedNodes => 12,
            Self::AttachedContexts => 13,
            Self::Claims => 14,
            Self::DriverPatterns => 15,
        }
    }
}

#[repr(C, align(4096))]
struct Page {
    numbers: Numbers,
    words: [AtomicPtr<()>; WORDS],
}

/// Numbers of the process that a fork resets to 0. [`crate::gate`] explains them.
#[repr(C)]
pub(crate) struct Numbers {
    pub stage: AtomicU32,
    pub doors: AtomicU32,
    /// 1 once the driver's initialisation came through a door.
    pub initialised: AtomicU32,
    /// Threads that read a list of loaded objects: [`crate::stacks::modules`].
    pub module_readers: AtomicU32,
    /// 1 while calls of the driver wait: [`crate::backend::gates`].
    pub gates_closed: AtomicU32,
    /// How far the process is parked: [`crate::records::parking`].
    pub parking: AtomicU32,
    /// The process's id, once known; [`UNWIPED`] if a child of a bare `clone` would inherit it.
    id: AtomicU32,
}

const UNWIPED: u32 = u32::MAX;

impl Numbers {
    fn wipe(&self) {
        // The id is [`UNWIPED`] in each process of this kernel.
        let Self { stage, doors, initialised, module_readers, gates_closed, parking, id: _ } = self;
        [stage, doors, initialised, module_readers, gates_closed, parking]
            .into_iter()
            .for_each(|number| number.store(0, Relaxed));
    }
}

/// Values that nearly every call reads, in one cache line. They outlive a fork.
#[repr(C, align(64))]
struct ReadByEachCall {
    page: AtomicPtr<Page>,
    /// Starts of the ranges of exec and graph handles, by vendor. A child of a fork still has to tell its parent's
    /// handles from the library's.
    execs: [AtomicUsize; 2],
    graphs: [AtomicUsize; 2],
    /// Cached answer of [`disabled`]: 1 for no, 2 for yes.
    disabled: AtomicU32,
    flags: [AtomicBool; FLAGS],
    fences: AtomicU8,
}

/// A flag that nearly every call asks for. As statics of their rooms, each would take a cache line of its own.
#[derive(Clone, Copy)]
pub(crate) enum Flag {
    /// The process has a guard: [`crate::guard`].
    Guard,
    /// A trace is written: [`crate::trace`].
    Trace,
    /// Devices may access each other's memory: [`crate::pool`].
    PeerAccess,
    /// A context no longer works: [`crate::progress::activity`].
    Broken,
    /// Something submits work without being counted: [`crate::progress::activity`].
    Uncountable,
}

const FLAGS: usize = Flag::Uncountable as usize + 1;

/// Returns a flag. It outlives a fork.
#[inline(always)]
pub(crate) fn flag(flag: Flag) -> &'static AtomicBool {
    &KNOWN.flags[flag as usize]
}

/// Returns the kind of fences that the process uses: [`super::fences`].
#[inline(always)]
pub(super) fn fences() -> &'static AtomicU8 {
    &KNOWN.fences
}

static KNOWN: ReadByEachCall = ReadByEachCall {
    page: AtomicPtr::new(null_mut()),
    execs: [const { AtomicUsize::new(0) }; 2],
    graphs: [const { AtomicUsize::new(0) }; 2],
    disabled: AtomicU32::new(0),
    flags: [const { AtomicBool::new(false) }; FLAGS],
    fences: AtomicU8::new(0),
};

/// Returns the page, made now if needed; `None` if there is no memory for it.
fn page() -> Option<&'static Page> {
    known_page().or_else(map_page)
}

/// Returns the page if it exists.
#[inline(always)]
fn known_page() -> Option<&'static Page> {
    // SAFETY: null until `map_page` sets it, then the address of a whole Page, which is never
    // unmapped.
    unsafe { KNOWN.page.load(Acquire).as_ref() }
}

#[cold]
fn map_page() -> Option<&'static Page> {
    let _errno = KeepErrno::new();
    let bytes = size_of::<Page>();
    let map = page::map(bytes, 0)?;
    // SAFETY: mmap has just given this range. Before Linux 4.14 madvise fails. Then `wipe`, which
    // has the type that is asked for, does the same in children of `fork`.
    unsafe {
        if libc::madvise(map, bytes, libc::MADV_WIPEONFORK) != 0 {
            (*map.cast::<Page>()).numbers.id.store(UNWIPED, Relaxed);
            libc::pthread_atfork(None, None, Some(wipe));
        }
    }
    if let Err(first) = KNOWN.page.compare_exchange(null_mut(), map.cast(), AcqRel, Acquire) {
        // SAFETY: another thread published its page first. No one has seen ours, and a page that is
        // published is never unmapped.
        unsafe {
            libc::munmap(map, bytes);
            return Some(&*first);
        }
    }
    // SAFETY: the mapping is as long and as aligned as a Page, for which zeroes are valid. It is
    // published now and never unmapped.
    Some(unsafe { &*map.cast::<Page>() })
}

/// # Safety
/// The C library calls it in a child of `fork`, whose only thread it is.
unsafe extern "C" fn wipe() {
    if let Some(Page { numbers, words }) = known_page() {
        numbers.wipe();
        words.iter().for_each(|word| word.store(null_mut(), Relaxed));
    }
}

/// Returns this process's numbers if the page exists.
#[inline(always)]
pub(crate) fn known_numbers() -> Option<&'static Numbers> {
    known_page().map(|page| &page.numbers)
}

/// Returns this process's numbers; `None` if there is no memory for the page.
pub(crate) fn numbers() -> Option<&'static Numbers> {
    page().map(|page| &page.numbers)
}

/// Returns the process's id, without a system call if it is known. It is right in a child of a bare `clone` as well. A
/// child of `vfork` gets the id of its parent, whose memory it shares.
#[inline]
pub(crate) fn process_id() -> libc::pid_t {
    // SAFETY: getpid takes no arguments and cannot fail.
    let ask = || unsafe { libc::getpid() };
    match known_numbers().map(|numbers| (&numbers.id, numbers.id.load(Relaxed))) {
        None | Some((_, UNWIPED)) => ask(),
        Some((id, 0)) => {
            let pid = ask();
            id.store(pid as u32, Relaxed);
            pid
        }
        Some((_, id)) => id as libc::pid_t,
    }
}

/// The place of a thing that exists once per process. What is put there is never freed.
pub(crate) struct Place<T: 'static> {
    word: Word,
    holds: PhantomData<fn() -> &'static T>,
}

impl<T> Place<T> {
    /// Creates the place behind a word.
    ///
    /// # Safety
    /// All places of one word hold one type.
    #[inline(always)]
    pub(crate) const unsafe fn new(word: Word) -> Self {
        Self { word, holds: PhantomData }
    }

    #[inline(always)]
    fn of(&self, page: &'static Page) -> &'static AtomicPtr<()> {
        &page.words[self.word.index()]
    }

    /// Returns what lies there, if anything.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&'static T> {
        let word = self.of(known_page()?);
        // SAFETY: `new` asks that all places of a word hold one type, so a word that is not null
        // leads to a `T`. It is never freed.
        unsafe { word.load(Acquire).cast::<T>().as_ref() }
    }

    /// Puts something there, replacing what was there. Does nothing if there is no memory for the page.
    pub(crate) fn set(&self, thing: &'static T) {
        if let Some(page) = page() {
            self.of(page).store(from_ref(thing).cast_mut().cast(), Release);
        }
    }

    /// Puts something there if the place is empty; returns what is there then. If there is no memory for the page,
    /// later calls do not find it.
    pub(crate) fn set_if_empty(&self, made: Box<T>) -> &'static T {
        let made: &'static T = Box::leak(made);
        let Some(page) = page() else { return made };
        match self.of(page).compare_exchange(null_mut(), from_ref(made).cast_mut().cast(), AcqRel, Acquire) {
            Ok(_) => made,
            // SAFETY: the exchange failed, so `first` is not null. `new` asks that all places of a
            // word hold one type, so it leads to a `T`, which is never freed.
            Err(first) => unsafe { &*first.cast::<T>() },
        }
    }

    /// Returns what lies there, made now if there is nothing; `None` if there is no memory for the page.
    pub(crate) fn get_or_default(&self) -> Option<&'static T>
    where
        T: Default,
    {
        self.get().or_else(|| page().map(|_| self.set_if_empty(Box::default())))
    }

    /// Takes out what lies there, without a lock and without memory.
    pub(crate) fn take(&self) -> Option<&'static T> {
        let word = self.of(known_page()?);
        // SAFETY: `new` asks that all places of a word hold one type, so a word that is not null
        // leads to a `T`. It is never freed.
        unsafe { word.swap(null_mut(), AcqRel).cast::<T>().as_ref() }
    }
}

impl<T: Default> Place<Mutex<T>> {
    /// Locks what lies there, made now if there is nothing. A child of a fork begins with a lock and a value of its own,
    /// even if another thread of its parent held the lock.
    pub(crate) fn locked(&self) -> MutexGuard<'static, T> {
        lock(self.get().unwrap_or_else(|| self.set_if_empty(Box::default())))
    }
}

/// True if the shim is switched off for this process image: no hook is handed out, and all others are a jump. Read
/// once.
///
/// Besides `GPUMEM_DISABLE` there are three reasons:
/// - The program has more rights than the user who started it (setuid, file capabilities); the library can get into it
///   by /etc/ld.so.preload. Its environment is not to be trusted, and its allocations are not for others to read.
/// - The processor lacks what this library was built to use ([`super::processor`]).
/// - Another copy of this library works ([`super::elf`]).
#[inline(always)]
pub(crate) fn disabled() -> bool {
    match KNOWN.disabled.load(Relaxed) {
        1 => false,
        2 => true,
        _ => asked_to_be_disabled(),
    }
}

#[cold]
#[inline(never)]
fn asked_to_be_disabled() -> bool {
    let yes = is_to_be_disabled();
    KNOWN.disabled.store(if yes { 2 } else { 1 }, Relaxed);
    yes
}

/// Computes the answer of [`disabled`] anew.
pub(super) fn is_to_be_disabled() -> bool {
    is_switched_off() || elf::first_copy() != First::This
}

/// True if the shim must leave this process alone.
pub(super) fn is_switched_off() -> bool {
    // SAFETY: getauxval takes a number and follows no pointer. The name is a literal that ends in NUL. The value is a
    // C string, and is read before anything else runs here that could change the environment.
    unsafe {
        libc::getauxval(libc::AT_SECURE) != 0 || super::processor::lacking().is_some() || {
            let value = libc::getenv(c"GPUMEM_DISABLE".as_ptr());
            let value = if value.is_null() { &[] } else { std::ffi::CStr::from_ptr(value).to_bytes() };
            std::str::from_utf8(value).ok().and_then(gpumem_wire::settings::parse_bool) == Some(true)
        }
    }
}

/// Returns the start of the range of a vendor's exec handles; 0 while there is none.
#[inline(always)]
pub(crate) fn exec_handles(vendor: Vendor) -> &'static AtomicUsize {
    &KNOWN.execs[vendor as usize - 1]
}

/// As [`exec_handles`], for graph handles.
#[inline(always)]
pub(crate) fn graph_handles(vendor: Vendor) -> &'static AtomicUsize {
    &KNOWN.graphs[vendor as usize - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two words at one place would be one thing with two types.
    #[test]
    fn each_word_has_a_place_of_its_own() {
        let vendors = [Vendor::Cuda, Vendor::Hip];
        let of_vendors = vendors.into_iter().flat_map(|vendor| [Word::Cache(vendor), Word::Pool(vendor)]);
        let mut places: Vec<usize> = [Word::Shim, Word::Trace, Word::Visits, Word::OutOfMemory]
            .into_iter()
            .chain([Word::Captures, Word::UnknownAttributes, Word::GreenContexts, Word::KernelParams])
            .chain([Word::DestroyedNodes, Word::AttachedContexts, Word::Claims, Word::DriverPatterns])
            .chain(of_vendors)
            .map(Word::index)
            .collect();
        places.sort_unstable();
        assert_eq!(places, (0..WORDS).collect::<Vec<_>>());
    }
    /// A wrong id would be that of a process whose memory is then read and written.
    #[test]
    fn children_of_each_kind_of_fork_have_an_id_of_their_own() {
        numbers().expect("a page");
        let own = process_id();
        // SAFETY: the children only make system calls and read memory that they inherit, and end without any cleaning
        // up. `clone` gets no flag but the signal, so it is a bare fork.
        let children: [fn() -> libc::pid_t; 2] =
            unsafe { [|| libc::fork(), || libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t] };
        for child in children {
            let child = child();
            // SAFETY: as above; the parent waits for its own child.
            unsafe {
                if child == 0 {
                    let right = process_id() == libc::getpid() && process_id() != own;
                    libc::_exit(i32::from(!right));
                }
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                assert_eq!(status, 0, "the child has another id");
            }
        }
        assert_eq!((process_id(), own), (own, std::process::id() as libc::pid_t));
    }
}
