//! A copy of the loader's list: all objects in the order of loading, and the address of one symbol in each.

use super::shown::{LINKED_WITH, OWN_NAME, Shown, Text, each};
use super::tables::Name;
use super::{here, is_ours};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Room that the last copy needed: objects and bytes of text.
static NEEDED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// All objects at one moment. Its addresses may belong to objects that are gone: they are compared, never read.
pub(crate) struct Listing {
    objects: Vec<Listed>,
    text: Vec<u8>,
}

/// An object. Its texts follow each other, each with a NUL: its path, its own name as a library and, if asked for, the
/// names of the libraries that it was linked with.
#[derive(Clone, Copy)]
struct Listed {
    start: usize,
    end: usize,
    symbol: usize,
    /// Start and end of its texts.
    texts: (usize, usize),
    is_first: bool,
    is_another_copy: bool,
}

/// The kind of gpumem copy that `RTLD_NEXT` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCopy {
    This,
    Another,
}

/// One object of a listing.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub start: usize,
    end: usize,
    /// Address of the requested symbol, 0 if the object does not define it.
    pub symbol: usize,
    text: &'a [u8],
}

impl<'a> Entry<'a> {
    fn texts(&self) -> impl Iterator<Item = &'a [u8]> {
        self.text.strip_suffix(&[0]).unwrap_or(self.text).split(|&byte| byte == 0)
    }

    /// Returns the path as the loader knows it; empty for the program itself.
    pub(crate) fn path(&self) -> &'a [u8] {
        self.texts().next().unwrap_or_default()
    }

    /// Returns the last part of the path.
    pub(crate) fn file_name(&self) -> &'a [u8] {
        super::file_name(self.path())
    }

    fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// True if a DT_NEEDED entry with this name means this library.
    fn is_named(&self, needed: &[u8]) -> bool {
        self.file_name() == needed || self.path() == needed || self.texts().nth(1) == Some(needed)
    }

    /// Names of the libraries that it was linked with.
    fn needed(&self) -> impl Iterator<Item = &'a [u8]> {
        self.texts().skip(2)
    }
}

impl Listing {
    /// Lists all objects with their paths only.
    pub(crate) fn new() -> Self {
        Self::take(None)
    }

    /// Lists all objects with the libraries that each was linked with and the address of this symbol in each.
    pub(crate) fn with_symbol(name: &CStr) -> Self {
        Self::take(Some(&Name::new(name)))
    }

    fn take(name: Option<&Name>) -> Self {
        let mut room = [NEEDED[0].load(Relaxed).max(64), NEEDED[1].load(Relaxed).max(16 << 10)];
        loop {
            let mut listing = Self { objects: Vec::with_capacity(room[0]), text: Vec::with_capacity(room[1]) };
            let mut wants = [0, 0];
            each(|shown| {
                wants[0] += 1;
                wants[1] += listing.add(shown, name);
                true
            });
            if wants[0] == listing.objects.len() && wants[1] == listing.text.len() {
                return listing;
            }
            // More objects may be loaded before the next look.
            room = wants.map(|wanted| wanted + wanted / 4);
            NEEDED.iter().zip(room).for_each(|(known, room)| known.store(room, Relaxed));
        }
    }

    /// Adds an object if there is room for it; returns its bytes of text.
    fn add(&mut self, shown: &Shown, name: Option<&Name>) -> usize {
        const END: u8 = 0;
        let begins = self.text.len();
        let mut wants = 0;
        let text = &mut self.text;
        let mut put = |of: Option<Text>| {
            wants += of.map_or(0, |of| of.len) + 1;
            if of.is_none_or(|of| of.copy_to(text)) && text.len() < text.capacity() {
                text.push(END);
            }
        };
        put(Some(shown.path()));
        if name.is_some() {
            let mut own = None;
            shown.texts(OWN_NAME, |text| own = Some(text));
            put(own);
            shown.texts(LINKED_WITH, |text| put(Some(text)));
        }
        if self.objects.len() < self.objects.capacity() {
            self.objects.push(Listed {
                start: shown.start,
                end: shown.end,
                symbol: name.map_or(0, |name| shown.symbol(name)),
                texts: (begins, self.text.len()),
                is_first: shown.index < super::objects_at_load(),
                is_another_copy: shown.is_another_copy(),
            });
        }
        wants
    }

    fn entry(&self, listed: &Listed) -> Entry<'_> {
        let &Listed { start, end, symbol, texts, .. } = listed;
        Entry { start, end, symbol, text: &self.text[texts.0..texts.1] }
    }

    /// Objects in the order of loading: the program first, then preloaded ones.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Entry<'_>> {
        self.objects.iter().map(|listed| self.entry(listed))
    }

    /// Returns the index, in the order of loading, of the object that holds an address.
    fn position(&self, address: usize) -> Option<usize> {
        self.objects().position(|object| object.holds(address))
    }

    /// Paths of other copies of this library, in the order of loading.
    pub(crate) fn other_copies(&self) -> impl Iterator<Item = &[u8]> {
        let copies = self.objects.iter().filter(|object| object.is_another_copy);
        copies.map(|object| self.entry(object).path())
    }

    /// Returns the copy of gpumem that `RTLD_NEXT` gives the object at an address; `None` if `RTLD_NEXT` gives another
    /// object or finds nothing.
    pub(crate) fn next_copy(&self, address: usize) -> Option<NextCopy> {
        let (caller, us) = (self.position(address)?, self.position(here()));
        let has_it = |object: &Listed| object.symbol != 0 || object.is_another_copy && object.is_first;
        let mut behind = self.objects.iter().enumerate().skip(caller + 1);
        match behind.find(|&(index, object)| Some(index) == us || has_it(object))? {
            (index, _) if Some(index) == us => Some(NextCopy::This),
            (_, object) => object.is_another_copy.then_some(NextCopy::Another),
        }
    }

    /// Returns the address of the symbol's first definition behind the object at an address, in the initial global
    /// scope.
    pub(crate) fn in_first_scope_behind(&self, address: usize) -> Option<usize> {
        let from = self.position(address).filter(|&from| self.objects[from].is_first)?;
        let behind = self.objects[from + 1..].iter().take_while(|object| object.is_first);
        behind.map(|object| object.symbol).find(|&symbol| symbol != 0)
    }

    /// Returns the address of the symbol's first definition behind this library, in the initial global scope.
    pub(crate) fn in_first_scope(&self) -> Option<usize> {
        self.in_first_scope_behind(here())
    }

    /// Returns the address of the symbol's first definition in the object at an address and the libraries it was linked
    /// with, breadth first.
    ///
    /// This is the loader's local scope of an object, found without the loader: a thread in `dlopen` holds the loader's
    /// lock and may wait for us.
    pub(crate) fn in_scope_of(&self, address: usize) -> Option<usize> {
        let mut queue = vec![self.entry(&self.objects[self.position(address)?])];
        let mut next = 0;
        while let Some(&object) = queue.get(next) {
            next += 1;
            if object.symbol != 0 && !is_ours(object.symbol) {
                return Some(object.symbol);
            }
            for needed in object.needed() {
                let found = self.objects().find(|object| object.is_named(needed));
                if let Some(found) = found.filter(|found| !queue.iter().any(|known| known.start == found.start)) {
                    queue.push(found);
                }
            }
        }
        None
    }
}
