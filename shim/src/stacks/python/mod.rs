//! Python's frames: what a thread that is in CPython runs there, read without the GIL and without calling it.
//!
//! | file | what it holds |
//! |---|---|
//! | mod.rs | the interpreter of the process: whether there is one, and whether it may be read |
//! | walk.rs | from a thread's state outwards |
//! | code.rs | code objects: names, and whether one is still the one that it was |
//! | known.rs | places in code that were seen before |
//! | lines.rs | from a place in code to a line |
//! | memory.rs | the interpreter's memory, which may go at any moment |
//! | versions.rs | where each version keeps what is read |
//!
//! A thread's state is found by the key that `PyGILState_GetThisThreadState` uses: a thread that has released the GIL
//! still has it, where "the current" state is that of whoever has the GIL now. The key is found by what it leads to: of
//! all that could be one in `_PyRuntime`, it is the one whose value, in this thread, is a state that names this thread.

mod code;
mod known;
mod lines;
mod memory;
mod versions;
mod walk;

pub(crate) use code::Code;
pub(crate) use walk::Walk;

use crate::process::elf::{self, Object};
use crate::process::errno::KeepErrno;
use crate::process::peek::{read_memory, read_value};
use crate::process::threads;
use code::Types;
use known::SeenCode;
use memory::Copies;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering::*};
use versions::Version;
use walk::{Interpreter, own_id};

/// What is known of the process.
mod state {
    /// There is no interpreter.
    pub(super) const NONE: u8 = 0;
    /// There is one that cannot be read.
    pub(super) const REFUSED: u8 = 1;
    /// There is one, and no thread was seen yet that runs code of Python.
    pub(super) const FOUND: u8 = 2;
    /// Frames are read.
    pub(super) const READ: u8 = 3;
}

/// The interpreter of a process.
pub(crate) struct Python {
    state: AtomicU8,
    /// The key of threads' states.
    key: AtomicU32,
    /// The loader's count of unloaded objects when the interpreter was last seen.
    generation: AtomicUsize,
    /// Looks for a thread that runs code of Python, while there was none.
    looks: AtomicU32,
    interpreter: once_cell::race::OnceBox<(Interpreter, Object, Version, u64)>,
    known: SeenCode,
    copies: Copies,
    looking: Mutex<()>,
}

/// The result of a look, for people: the interpreter, and if its frames are not read, why.
pub(crate) struct Verdict {
    pub interpreter: String,
    pub refused: Option<String>,
}

impl Python {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(state::NONE),
            key: AtomicU32::new(0),
            generation: AtomicUsize::new(0),
            looks: AtomicU32::new(0),
            interpreter: once_cell::race::OnceBox::new(),
            known: SeenCode::new(),
            copies: Copies::new(),
            looking: Mutex::new(()),
        }
    }

    /// Whether there is an interpreter whose frames may be read.
    #[inline(always)]
    pub(crate) fn is_there(&self) -> bool {
        self.state.load(Relaxed) >= state::FOUND
    }

    /// Looks for an interpreter among the loaded objects, if none is known. `Some`: there is one now.
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
        let symbols: Vec<u64> = object.symbols(SYMBOLS).map(|address| address as u64).collect();
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
                let found = Interpreter { shape, types: Types { code, text, bytes } };
                let _ = self.interpreter.set(Box::new((found, object, version, runtime)));
                self.generation.store(elf::generation(), Relaxed);
                self.state.store(state::FOUND, Release);
                verdict(None)
            }
        }
    }

    /// Writes the frames of the calling thread, innermost first; none if it runs no code of Python. `name` gives the
    /// number of a code object that was not seen before, `say` hears why frames are not read from now on.
    pub(crate) fn walk(
        &self,
        frames: &mut [u64],
        name: &mut dyn FnMut(&Code) -> Option<u32>,
        say: &mut dyn FnMut(Verdict),
    ) -> Walk {
        let Some((interpreter, _, version, _)) = self.interpreter.get() else { return Walk::default() };
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
        let found = match thread {
            0 => None,
            _ => self.copies.with(tid, |memory| interpreter.walk(memory, thread, &self.known, frames, name)),
        };
        found.unwrap_or_else(|| {
            // This thread is none of Python's, or the interpreter has started again and has another key.
            if records % 128 < 4 {
                self.look_for_key();
            }
            Walk::default()
        })
    }

    /// Finds the key anew, if this thread has a state.
    #[cold]
    fn look_for_key(&self) {
        let Some((interpreter, _, _, runtime)) = self.interpreter.get() else { return };
        if let Some(key) = find_key(*runtime, interpreter.shape.thread_id) {
            self.key.store(key, Relaxed);
        }
    }

    /// Looks, after something was unloaded, whether the interpreter is still there. If so, that is remembered. If not,
    /// no frames are read any more.
    #[cold]
    fn recheck(&self) -> bool {
        let Some((_, object, _, runtime)) = self.interpreter.get() else { return false };
        let generation = elf::generation();
        if object.symbol(RUNTIME) != Some(*runtime as usize) {
            // Another interpreter may come later, and is left alone.
            self.state.store(state::REFUSED, Release);
            return false;
        }
        self.generation.store(generation, Relaxed);
        true
    }

    /// Finds the key of this thread's state, and tries all that the state leads to. False: this thread runs no code of
    /// Python, so nothing is known yet.
    ///
    /// # Errors
    /// Why the frames cannot be read.
    #[cold]
    fn verify(&self) -> Result<bool, &'static str> {
        /// So many first stacks are looked at, and after that one in so many.
        const EACH: u32 = 64;
        let looks = self.looks.fetch_add(1, Relaxed);
        if looks >= EACH && !looks.is_multiple_of(EACH) {
            return Ok(false);
        }
        let _errno = KeepErrno::new();
        let Some((interpreter, _, _, runtime)) = self.interpreter.get() else { return Ok(false) };
        let Some(key) = find_key(*runtime, interpreter.shape.thread_id) else { return Ok(false) };
        if memory::once(|memory| interpreter.check(memory, thread_state(key)))? == 0 {
            return Ok(false);
        }
        self.key.store(key, Relaxed);
        self.state.store(state::READ, Release);
        Ok(true)
    }
}

/// A symbol that every interpreter exports since 3.7. The next ones tell the rest: its types, its version (since 3.11),
/// a function of 3.10 and one of 3.9.
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

/// What this thread has under a key; 0 if nothing.
#[inline(always)]
fn thread_state(key: u32) -> u64 {
    // SAFETY: the C library answers with null where there is no such key.
    unsafe { libc::pthread_getspecific(key) as u64 }
}

/// The key under which this thread has a state that names this thread: a `Py_tss_t`, which is a 1 and the key, in the
/// first part of `_PyRuntime`.
fn find_key(runtime: u64, thread_id: u64) -> Option<u32> {
    /// The key lies 584 to 2336 bytes in.
    const BYTES: usize = 8192;
    const MADE: u32 = 1;
    /// PTHREAD_KEYS_MAX of glibc.
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
