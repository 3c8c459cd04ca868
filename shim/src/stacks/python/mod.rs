//! Python frames of a thread inside CPython, read without the GIL and without calling the interpreter.
//!
//! | file | what it holds |
//! |---|---|
//! | mod.rs | the interpreter of the process: its presence, and whether it may be read |
//! | walk.rs | the walk from a thread's state outwards |
//! | code.rs | code objects: names, and whether one is still the same |
//! | known.rs | known places in code |
//! | lines.rs | the line of a place in code |
//! | memory.rs | the interpreter's memory, which may be unmapped at any moment |
//! | recent.rs | what the last stacks of a thread read, and the stack to expect next |
//! | versions.rs | offsets of what is read, by version |
//!
//! A thread's state is found by the key that `PyGILState_GetThisThreadState` uses. A thread that has released the GIL
//! still has that state, while "the current" state belongs to the thread that has the GIL. The key is found by its
//! value: among all candidates in `_PyRuntime`, it is the one whose value, in this thread, is a state that names this
//! thread.

mod code;
mod known;
mod lines;
mod memory;
mod recent;
mod versions;
mod walk;

pub(crate) use code::Code;
pub(crate) use walk::Walk;

use crate::process::elf;
use crate::process::errno::KeepErrno;
use crate::process::keys;
use crate::process::peek::{read_memory, read_value};
use crate::process::threads;
use code::Types;
use known::SeenCode;
use recent::Copies;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};
use versions::Version;
use walk::{Interpreter, own_id};

/// States of the search for an interpreter.
mod state {
    /// There is no interpreter.
    pub(super) const NONE: u8 = 0;
    /// There is one that cannot be read.
    pub(super) const REFUSED: u8 = 1;
    /// There is one, but no thread was seen yet that runs Python code.
    pub(super) const FOUND: u8 = 2;
    /// Frames are read.
    pub(super) const READ: u8 = 3;
}

/// The interpreter of a process.
pub(crate) struct Python {
    state: AtomicU8,
    /// The key of threads' states.
    key: AtomicU32,
    /// True if an end of the interpreter is seen: it deletes its key.
    sees_ends: AtomicBool,
    /// The loader's count of unloaded objects when the interpreter was last seen.
    generation: AtomicUsize,
    /// Number of looks for a thread that runs Python code, while there was none.
    looks: AtomicU32,
    interpreter: once_cell::race::OnceBox<(Interpreter, Version, u64)>,
    known: SeenCode,
    copies: Copies,
    looking: Mutex<()>,
}

/// The result of a look, for the user: the interpreter and, if its frames are not read, the reason.
pub(crate) struct Verdict {
    pub interpreter: String,
    pub refused: Option<String>,
}

impl Python {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(state::NONE),
            key: AtomicU32::new(0),
            sees_ends: AtomicBool::new(false),
            generation: AtomicUsize::new(0),
            looks: AtomicU32::new(0),
            interpreter: once_cell::race::OnceBox::new(),
            known: SeenCode::new(),
            copies: Copies::new(),
            looking: Mutex::new(()),
        }
    }

    /// True if there is an interpreter whose frames may be read.
    #[inline(always)]
    pub(crate) fn is_there(&self) -> bool {
        self.state.load(Relaxed) >= state::FOUND
    }

    /// Looks for an interpreter among the loaded objects, if none is known. `Some`: one was found.
    #[cold]
    pub(crate) fn look(&self) -> Option<Verdict> {
        if self.state.load(Acquire) != state::NONE {
            return None;
        }
        let _errno = KeepErrno::new();
        let _looking = self.looking.try_lock().ok()?;
        if self.interpreter.get().is_some() {
            return None;
        }
        let object = elf::object_that_defines(RUNTIME)?;
        let symbols: Vec<u64> = object.symbols(&SYMBOLS.map(elf::Name::new)).map(|address| address as u64).collect();
        let &[runtime, code, text, bytes, version, since_310, since_39] = symbols.as_slice() else { return None };
        let version = Version(match (version, since_310, since_39) {
            (0, 0, 0) => 0x0308_0000,
            (0, 0, _) => 0x0309_0000,
            (0, _, _) => 0x030a_0000,
            (at, _, _) => read_value::<u32>(at)?,
        });
        let verdict = |refused| Some(Verdict { interpreter: version.to_string(), refused });
        let shape = match versions::shape(version, runtime) {
            Ok(_) if [code, text, bytes].contains(&0) => Err("it does not export its types".into()),
            shape => shape,
        };
        match shape {
            Err(why) => {
                self.state.store(state::REFUSED, Release);
                verdict(Some(why))
            }
            Ok(shape) => {
                let found = Interpreter { shape, types: Types { code, text, bytes }, object };
                let _ = self.interpreter.set(Box::new((found, version, runtime)));
                self.generation.store(elf::generation(), Relaxed);
                self.state.store(state::FOUND, Release);
                verdict(None)
            }
        }
    }

    /// Writes the calling thread's frames, innermost first; none if it runs no Python code. `name` returns the number
    /// of a new code object. `say` is told if frames are not read from now on, and why.
    pub(crate) fn walk(
        &self,
        frames: &mut [u64],
        name: &mut dyn FnMut(&Code) -> Option<u32>,
        say: &mut dyn FnMut(Verdict),
    ) -> Walk {
        let Some((interpreter, version, _)) = self.interpreter.get() else { return Walk::default() };
        if elf::generation() != self.generation.load(Relaxed) && !self.recheck() {
            return Walk::default();
        }
        if self.state.load(Acquire) != state::READ {
            match self.verify() {
                Ok(true) => {}
                Ok(false) => return Walk::default(),
                Err(why) => {
                    self.state.store(state::REFUSED, Release);
                    say(Verdict { interpreter: version.to_string(), refused: Some(why.into()) });
                    return Walk::default();
                }
            }
        }
        let key = self.key.load(Relaxed);
        let (thread, tid, records) =
            threads::local(|local| (thread_state(key), local.known_tid(), local.records.get()));
        let _errno = KeepErrno::new();
        let starts = self.sees_ends.load(Relaxed).then(keys::deletions);
        let found = match thread {
            0 => None,
            _ => self.copies.with(tid, |recent| interpreter.walk(recent, thread, &self.known, starts, frames, name)),
        };
        found.unwrap_or_else(|| {
            // This thread is not one of Python's, or the interpreter has started again and has another key.
            if records % 128 < 4 {
                self.look_for_key();
            }
            Walk::default()
        })
    }

    /// Looks for the key again, if this thread has a state.
    #[cold]
    fn look_for_key(&self) {
        let Some((interpreter, _, runtime)) = self.interpreter.get() else { return };
        if let Some(key) = find_key(*runtime, interpreter.shape.thread_id) {
            self.uses(key);
        }
    }

    fn uses(&self, key: u32) {
        self.sees_ends.store(keys::watch(key), Relaxed);
        self.key.store(key, Release);
    }

    /// Checks, after something was unloaded, if the interpreter is still there, and remembers that. If not, no frames
    /// are read any more.
    #[cold]
    fn recheck(&self) -> bool {
        let Some((Interpreter { object, .. }, _, runtime)) = self.interpreter.get() else { return false };
        let generation = elf::generation();
        if object.symbol(RUNTIME) != Some(*runtime as usize) {
            // Another interpreter may come later; it is left alone.
            self.state.store(state::REFUSED, Release);
            return false;
        }
        self.generation.store(generation, Relaxed);
        true
    }

    /// Finds the key of this thread's state, and tries everything that the state leads to. Returns false if this thread
    /// runs no Python code, so that nothing is known yet.
    ///
    /// # Errors
    /// Why the frames cannot be read.
    #[cold]
    fn verify(&self) -> Result<bool, &'static str> {
        /// Number of first stacks that are checked; after that one in this many.
        const EACH: u32 = 64;
        let looks = self.looks.fetch_add(1, Relaxed);
        if looks >= EACH && !looks.is_multiple_of(EACH) {
            return Ok(false);
        }
        let _errno = KeepErrno::new();
        let Some((interpreter, _, runtime)) = self.interpreter.get() else { return Ok(false) };
        let Some(key) = find_key(*runtime, interpreter.shape.thread_id) else { return Ok(false) };
        if memory::once(|memory| interpreter.check(memory, thread_state(key)))? == 0 {
            return Ok(false);
        }
        self.uses(key);
        self.state.store(state::READ, Release);
        Ok(true)
    }
}

/// A symbol that every interpreter exports since 3.7. The next symbols tell the rest: its types, its version (since
/// 3.11), a function of 3.10 and one of 3.9.
const RUNTIME: &CStr = c"_PyRuntime";
const SYMBOLS: [&CStr; 7] = [
    RUNTIME,
    c"PyCode_Type",
    c"PyUnicode_Type",
    c"PyBytes_Type",
    c"Py_Version",
    c"Py_NewRef",
    c"PyThreadState_GetFrame",
];

/// Returns this thread's value of a key; 0 if there is none.
#[inline(always)]
fn thread_state(key: u32) -> u64 {
    // SAFETY: the C library answers with null where there is no such key.
    unsafe { libc::pthread_getspecific(key) as u64 }
}

/// Finds the key under which this thread has a state that names this thread: a `Py_tss_t`, which is a 1 and the key, in
/// the first part of `_PyRuntime`.
fn find_key(runtime: u64, thread_id: u64) -> Option<u32> {
    /// The key lies 584 to 2336 bytes in.
    const BYTES: usize = 8192;
    const MADE: u32 = 1;
    /// glibc's PTHREAD_KEYS_MAX.
    const KEYS: u32 = 1024;
    let mut bytes = [MaybeUninit::uninit(); BYTES];
    let read = read_memory(runtime, &mut bytes);
    let words: Vec<u32> = read.as_chunks::<4>().0.iter().map(|&word| u32::from_ne_bytes(word)).collect();
    let keys = words.windows(2).filter(|pair| pair[0] == MADE).map(|pair| pair[1]);
    let mut keys = keys.filter(|&key| key < KEYS);
    keys.find(|&key| match thread_state(key) {
        0 => false,
        state => read_value::<u64>(state.wrapping_add(thread_id)) == Some(own_id()),
    })
}
