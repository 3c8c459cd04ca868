//! Finds the library that a caller means, if there are several: two cudarts in one process, plugins with their own,
//! stubs and other interposers in scope.
//!
//! For each name, a caller gets the function that it would have got without us. In this order: another interposer in
//! the global scope behind us, then the caller's own dependencies, then the first in the global scope, then the first
//! loaded library of the right name. The loader itself is not asked: a thread in `dlopen` holds its lock and may wait,
//! in a constructor, for a thread that is here. The answers are kept per calling object, and the object per thread,
//! until a library is unloaded ([`elf::generation`]).
//!
//! No thread waits: a child of `fork` must not find a lock held by a thread that it does not have. The number of
//! records is fixed ([`caller`]).

mod caller;

mod atomic {
    pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
}

use crate::process::copies;
use crate::process::elf::{self, Object};
pub(crate) use caller::Caller;
use caller::is_of;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// The calling object that a thread saw last.
pub(crate) type LastCaller<const N: usize> = Cell<Option<&'static Caller<N>>>;

/// Number of calling objects that are remembered. Further ones replace the oldest.
const CALLERS: usize = 128;

/// The functions of one table, from any library.
pub(crate) struct Providers<const N: usize> {
    names: &'static [&'static CStr; N],
    /// Beginning of the real library's file name, e.g. `libcudart.so`.
    file: &'static [u8],
    /// Records, made on first need and never freed.
    callers: [AtomicPtr<Caller<N>>; CALLERS],
    next: AtomicUsize,
}

impl<const N: usize> Providers<N> {
    pub(crate) const fn new(names: &'static [&'static CStr; N], file: &'static [u8]) -> Self {
        let callers = [const { AtomicPtr::new(std::ptr::null_mut()) }; CALLERS];
        Self { names, file, callers, next: AtomicUsize::new(0) }
    }

    /// Returns the address of the function at `index` that a caller means; 0 if there is none.
    #[inline]
    pub(crate) fn function(&self, address: usize, last: &LastCaller<N>, index: usize) -> usize {
        match last.get().and_then(|caller| caller.function(address, index, elf::generation())) {
            None | Some(0) => self.function_slow(address, last, index),
            Some(known) => known,
        }
    }

    #[cold]
    fn function_slow(&self, address: usize, last: &LastCaller<N>, index: usize) -> usize {
        let function_of = |caller: &Caller<N>| caller.function(address, index, elf::generation());
        let known = self.records().find_map(|caller| Some((caller, function_of(caller)?)));
        if let Some((caller, function)) = known {
            last.set(Some(caller));
            if function != 0 {
                return function;
            }
        }
        // The answer is valid for the objects that are loaded now.
        let generation = elf::generation();
        let function = self.resolve(address, self.names[index]);
        let caller = known.map(|(caller, _)| caller).or_else(|| {
            // A caller outside any object is code made at run time. There is nothing to remember it by.
            let object = elf::object_at(address)?;
            self.remember(&object, generation)
        });
        if let Some(caller) = caller {
            last.set(Some(caller));
            let stamp = caller.stamp.load(Acquire);
            if is_of(stamp, generation) && caller.holds(address) {
                caller.change(stamp, generation, |caller| caller.functions[index].store(function, Relaxed));
            }
        }
        function
    }

    fn records(&self) -> impl Iterator<Item = &'static Caller<N>> {
        // SAFETY: a place holds null or a pointer out of a leaked box, which is never freed.
        self.callers.iter().filter_map(|place| unsafe { place.load(Acquire).as_ref() })
    }

    /// Returns an empty record for an object: its earlier one, a new one, or the oldest. `None` while other threads
    /// change these.
    fn remember(&self, object: &Object, generation: usize) -> Option<&'static Caller<N>> {
        let (start, end) = (object.start, object.end);
        let is_library = usize::from(object.file_name().starts_with(self.file));
        let begin = |caller: &'static Caller<N>| {
            let is_ours = caller.change(caller.stamp.load(Acquire), generation, |caller| {
                caller.start.store(start, Relaxed);
                caller.end.store(end, Relaxed);
                caller.is_library.store(is_library, Relaxed);
                caller.functions.iter().for_each(|function| function.store(0, Relaxed));
            });
            is_ours.then_some(caller)
        };
        let same = |caller: &&Caller<N>| (caller.start.load(Relaxed), caller.end.load(Relaxed)) == (start, end);
        if let Some(before) = self.records().find(same) {
            return begin(before);
        }
        let place = &self.callers[self.next.fetch_add(1, Relaxed) % CALLERS];
        // SAFETY: a place holds null or a pointer out of a leaked box, which is never freed.
        if let Some(oldest) = unsafe { place.load(Acquire).as_ref() } {
            return begin(oldest);
        }
        let made = Box::into_raw(Box::new(Caller {
            stamp: AtomicU64::new(u64::from(generation as u32)),
            start: AtomicUsize::new(start),
            end: AtomicUsize::new(end),
            is_library: AtomicUsize::new(is_library),
            functions: [const { AtomicUsize::new(0) }; N],
        }));
        if place.compare_exchange(std::ptr::null_mut(), made, AcqRel, Relaxed).is_err() {
            // SAFETY: the exchange failed, so no one has seen the box that was made above.
            drop(unsafe { Box::from_raw(made) });
            return None;
        }
        // SAFETY: the exchange put the box into the list, and what is in the list is never freed.
        Some(unsafe { &*made })
    }

    fn resolve(&self, caller: usize, name: &CStr) -> usize {
        copies::say_that_we_step_aside();
        let objects = elf::Listing::with_symbol(name);
        let first = objects.in_first_scope();
        if let Some(interposer) = first.filter(|&address| !self.is_real(address)) {
            return interposer;
        }
        let any = || {
            let mut loaded = objects.objects().filter(|object| object.file_name().starts_with(self.file));
            loaded.find(|object| object.symbol != 0).map(|object| object.symbol)
        };
        objects.in_scope_of(caller).or(first).or_else(any).unwrap_or(0)
    }

    /// True if an address lies in a file with the real library's name.
    pub(crate) fn is_real(&self, address: usize) -> bool {
        elf::object_at(address).is_some_and(|object| object.file_name().starts_with(self.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAMES: [&CStr; 2] = [c"getenv", c"malloc"];

    fn object(start: usize, end: usize) -> Object {
        let mut object = elf::object_at(NAMES.as_ptr() as usize).expect("the test itself");
        (object.start, object.end) = (start, end);
        object
    }

    #[test]
    fn callers_that_come_and_go_take_no_more_records_than_there_are() {
        static PROVIDERS: Providers<2> = Providers::new(&NAMES, b"libc.so");
        let generation = elf::generation();
        let mut all: Vec<*const Caller<2>> = Vec::new();
        for n in 1..10 * CALLERS {
            let caller = PROVIDERS.remember(&object(n << 20, (n << 20) + 4096), generation).expect("a record");
            assert_eq!(caller.function((n << 20) + 8, 1, elf::generation()), Some(0), "nothing of the one before");
            let stamp = caller.stamp.load(Relaxed);
            assert!(caller.change(stamp, generation, |caller| caller.functions[1].store(n, Relaxed)));
            assert_eq!(caller.function((n << 20) + 8, 1, elf::generation()), Some(n));
            assert_eq!(caller.function(((n + 1) << 20) + 8, 1, elf::generation()), None);
            all.push(caller);
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), CALLERS);
    }

    #[test]
    fn a_record_is_changed_by_one_at_a_time_and_believed_by_nobody_meanwhile() {
        static PROVIDERS: Providers<2> = Providers::new(&NAMES, b"libc.so");
        let generation = elf::generation();
        let caller = PROVIDERS.remember(&object(4096, 8192), generation).expect("a record");
        let stamp = caller.stamp.load(Relaxed);
        let changed = caller.change(stamp, generation, |caller| {
            assert_eq!(caller.function(5000, 0, elf::generation()), None);
            assert!(!caller.change(caller.stamp.load(Relaxed), generation, |_| panic!("two at a time")));
        });
        assert!(changed && !caller.change(stamp, generation, |_| panic!("out of date")));
        assert_eq!(caller.function(5000, 0, elf::generation()), Some(0));
    }

    #[test]
    fn a_caller_finds_the_function_and_finds_it_again() {
        static PROVIDERS: Providers<2> = Providers::new(&NAMES, b"libc.so");
        let (here, last) = (NAMES.as_ptr() as usize, Cell::new(None));
        let found = PROVIDERS.function(here, &last, 0);
        assert_ne!(found, 0);
        assert_eq!(last.get().and_then(|caller| caller.function(here, 0, elf::generation())), Some(found));
        assert_eq!(PROVIDERS.function(here, &last, 0), found);
        assert!(
            !last.get().is_some_and(|caller| caller.is_library(here, elf::generation())),
            "the C library is another"
        );
    }
}
