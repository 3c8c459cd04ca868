//! Which library of several a caller means: two cudarts in one process, plugins with their own.
//!
//! A provider is a library that exports the functions of one table. A caller gets what it would have
//! got without us: another interposer in the global scope behind us, else what its own dependencies
//! lead to, else the first in the global scope, else the first one loaded. The answer is kept per calling object, and per thread for the last one, until a library
//! is unloaded ([`dl::generation`]).
//!
//! No locks: a child of `fork` must not find one held by a thread it does not have. Records are
//! published whole, never freed, and used again when the same library comes back.

use super::dl;
use super::elf::{self, Object};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

/// A library with the addresses of the `N` functions of a table; 0 where it lacks one.
pub struct Provider<const N: usize> {
    path: Vec<u8>,
    start: usize,
    functions: [usize; N],
}

/// A calling object and what it was last found to mean.
struct Caller<const N: usize> {
    start: usize,
    end: usize,
    provider: &'static Provider<N>,
    generation: AtomicUsize,
}

/// What a thread saw last: range of the calling object, generation, provider.
pub type LastCaller<const N: usize> = Cell<(usize, usize, usize, Option<&'static Provider<N>>)>;

/// An append-only list of leaked records; when it is full, the oldest place is taken.
struct List<T: 'static, const PLACES: usize> {
    places: [AtomicPtr<T>; PLACES],
    next: AtomicUsize,
}

impl<T: 'static, const PLACES: usize> List<T, PLACES> {
    const fn new() -> Self {
        Self { places: [const { AtomicPtr::new(std::ptr::null_mut()) }; PLACES], next: AtomicUsize::new(0) }
    }

    fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<&'static T> {
        // SAFETY: pointers in the list are null or leaked boxes.
        self.places.iter().filter_map(|place| unsafe { place.load(Acquire).as_ref() }).find(|record| wanted(record))
    }

    fn add(&self, record: T) -> &'static T {
        let record: &'static T = Box::leak(Box::new(record));
        let place = self.next.fetch_add(1, Relaxed) % PLACES;
        self.places[place].store(std::ptr::from_ref(record).cast_mut(), Release);
        record
    }
}

/// All providers of one table.
pub struct Providers<const N: usize> {
    names: &'static [&'static CStr; N],
    /// What the file of a provider is called, e.g. `libcudart.so`.
    file: &'static [u8],
    known: List<Provider<N>, 8>,
    callers: List<Caller<N>, 128>,
}

impl<const N: usize> Providers<N> {
    pub const fn new(names: &'static [&'static CStr; N], file: &'static [u8]) -> Self {
        Self { names, file, known: List::new(), callers: List::new() }
    }

    /// Address of the function at `index` that a caller means; 0 if there is none.
    #[inline]
    pub fn function(&self, caller: usize, last: &LastCaller<N>, index: usize) -> usize {
        let (start, end, generation, provider) = last.get();
        if let Some(provider) = provider
            && (start..end).contains(&caller)
            && generation == dl::generation()
            && provider.functions[index] != 0
        {
            return provider.functions[index];
        }
        self.function_slow(caller, last, index)
    }

    #[cold]
    fn function_slow(&self, caller: usize, last: &LastCaller<N>, index: usize) -> usize {
        // A caller in no object is code made at run time: nothing to remember it by.
        let provider = self.find(caller, last, index).or_else(|| self.resolve(caller, self.names[index]));
        match provider.map(|provider| provider.functions[index]) {
            // What the caller means otherwise lacks this one: a stub library beside the real one.
            Some(0) => self.resolve(caller, self.names[index]).map_or(0, |other| other.functions[index]),
            found => found.unwrap_or(0),
        }
    }

    fn find(&self, caller: usize, last: &LastCaller<N>, index: usize) -> Option<&'static Provider<N>> {
        let generation = dl::generation();
        let known =
            self.callers.find(|c| (c.start..c.end).contains(&caller) && c.generation.load(Relaxed) == generation);
        let known = match known {
            Some(known) => known,
            None => {
                let object = elf::object_at(caller)?;
                let provider = self.resolve(caller, self.names[index])?;
                let same = |c: &Caller<N>| {
                    (c.start, c.end) == (object.start, object.end) && std::ptr::eq(c.provider, provider)
                };
                let fresh = AtomicUsize::new(generation);
                let known = self.callers.find(same).unwrap_or_else(|| {
                    self.callers.add(Caller { start: object.start, end: object.end, provider, generation: fresh })
                });
                known.generation.store(generation, Relaxed);
                known
            }
        };
        last.set((known.start, known.end, generation, Some(known.provider)));
        Some(known.provider)
    }

    fn resolve(&self, caller: usize, name: &CStr) -> Option<&'static Provider<N>> {
        let next = dl::next_behind(name);
        if next != 0 && !self.is_provider(next) {
            return self.at(next);
        }
        let through_caller = dl::through_caller(name, caller);
        if through_caller != 0 {
            return self.at(through_caller);
        }
        if next != 0 {
            return self.at(next);
        }
        let objects = elf::objects();
        let mut loaded = objects.iter().filter(|object| object.file_name().starts_with(self.file));
        self.at(loaded.find_map(|object| object.symbol(name))?)
    }

    /// The provider that an address lies in.
    pub fn at(&self, address: usize) -> Option<&'static Provider<N>> {
        let object = elf::object_at(address).filter(|object| !elf::is_ours(object.start))?;
        let same = |p: &Provider<N>| p.start == object.start && p.path == object.path;
        Some(self.known.find(same).unwrap_or_else(|| self.known.add(self.bind(&object))))
    }

    fn bind(&self, object: &Object) -> Provider<N> {
        Provider {
            start: object.start,
            path: object.path.clone(),
            functions: self.names.map(|name| object.symbol(name).unwrap_or(0)),
        }
    }

    /// Whether an address lies in a file named as providers are.
    pub fn is_provider(&self, address: usize) -> bool {
        elf::object_at(address).is_some_and(|object| object.file_name().starts_with(self.file))
    }
}
