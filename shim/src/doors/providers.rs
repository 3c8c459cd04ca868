//! Which library of several a caller means: two cudarts in one process, plugins with their own, stubs
//! and other interposers in scope.
//!
//! For each name, a caller gets what it would have got without us: another interposer in the global
//! scope behind us, else what its own dependencies lead to, else the first in the global scope, else
//! the first library of the right name that is loaded. The loader itself is not asked: a thread in
//! `dlopen` holds its lock and may wait, in a constructor, for a thread that is here. The answers are kept per calling object, and
//! the object per thread, until a library is unloaded ([`dl::generation`]).
//!
//! No locks: a child of `fork` must not find one held by a thread it does not have. Records are
//! published whole, never freed, and used again when the same object comes back.

use super::dl;
use super::elf;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

/// A calling object, and the functions it was found to mean; 0 where it was not asked yet.
pub struct Caller<const N: usize> {
    start: usize,
    end: usize,
    generation: AtomicUsize,
    functions: [AtomicUsize; N],
}

impl<const N: usize> Caller<N> {
    fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// The calling object that a thread saw last.
pub type LastCaller<const N: usize> = Cell<Option<&'static Caller<N>>>;

/// Calling objects that are remembered; more take the place of the oldest.
const CALLERS: usize = 128;

/// The functions of one table, wherever they come from.
pub struct Providers<const N: usize> {
    names: &'static [&'static CStr; N],
    /// What the file of the real library is called, e.g. `libcudart.so`.
    file: &'static [u8],
    callers: [AtomicPtr<Caller<N>>; CALLERS],
    next: AtomicUsize,
}

impl<const N: usize> Providers<N> {
    pub const fn new(names: &'static [&'static CStr; N], file: &'static [u8]) -> Self {
        let callers = [const { AtomicPtr::new(std::ptr::null_mut()) }; CALLERS];
        Self { names, file, callers, next: AtomicUsize::new(0) }
    }

    /// Address of the function at `index` that a caller means; 0 if there is none.
    #[inline]
    pub fn function(&self, address: usize, last: &LastCaller<N>, index: usize) -> usize {
        if let Some(caller) = last.get()
            && caller.holds(address)
            && caller.generation.load(Relaxed) == dl::generation()
        {
            let known = caller.functions[index].load(Relaxed);
            if known != 0 {
                return known;
            }
        }
        self.function_slow(address, last, index)
    }

    #[cold]
    fn function_slow(&self, address: usize, last: &LastCaller<N>, index: usize) -> usize {
        // A caller in no object is code made at run time: nothing to remember it by.
        let Some(caller) = self.caller(address) else { return self.resolve(address, self.names[index]) };
        last.set(Some(caller));
        let mut function = caller.functions[index].load(Relaxed);
        if function == 0 {
            function = self.resolve(address, self.names[index]);
            caller.functions[index].store(function, Relaxed);
        }
        function
    }

    /// The record of the object that an address lies in, with nothing in it that may be out of date.
    fn caller(&self, address: usize) -> Option<&'static Caller<N>> {
        let generation = dl::generation();
        // SAFETY: pointers in the list are null or leaked boxes.
        let known = self.callers.iter().filter_map(|place| unsafe { place.load(Acquire).as_ref() });
        let mut known = known.filter(|caller| caller.holds(address));
        if let Some(caller) = known.clone().find(|caller| caller.generation.load(Relaxed) == generation) {
            return Some(caller);
        }
        let object = elf::object_at(address)?;
        let (start, end) = (object.start, object.end);
        if let Some(caller) = known.find(|caller| (caller.start, caller.end) == (start, end)) {
            caller.functions.iter().for_each(|function| function.store(0, Relaxed));
            caller.generation.store(generation, Relaxed);
            return Some(caller);
        }
        let functions = [const { AtomicUsize::new(0) }; N];
        let caller = Caller { start, end, generation: AtomicUsize::new(generation), functions };
        let caller: &'static Caller<N> = Box::leak(Box::new(caller));
        let place = self.next.fetch_add(1, Relaxed) % CALLERS;
        self.callers[place].store(std::ptr::from_ref(caller).cast_mut(), Release);
        Some(caller)
    }

    fn resolve(&self, caller: usize, name: &CStr) -> usize {
        let first = elf::symbol_in_first_scope(name);
        if let Some(interposer) = first.filter(|&address| !self.is_real(address)) {
            return interposer;
        }
        let through_caller = elf::object_at(caller).and_then(|object| elf::symbol_in_scope_of(&object, name));
        let any = || {
            let objects = elf::objects();
            let mut loaded = objects.iter().filter(|object| object.file_name().starts_with(self.file));
            loaded.find_map(|object| object.symbol(name))
        };
        through_caller.or(first).or_else(any).unwrap_or(0)
    }

    /// Whether an address lies in a file named as the real library is.
    pub fn is_real(&self, address: usize) -> bool {
        elf::object_at(address).is_some_and(|object| object.file_name().starts_with(self.file))
    }
}
