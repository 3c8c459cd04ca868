//! Addresses of a process to functions, files and lines, out of process.
//!
//! * [`modules`]: which file an address belongs to, and where that file is to be read.
//! * [`apart`]: reading those files, in a child process.
//! * [`runtime`]: what belongs to a GPU runtime and is never a call site: one table.
//!
//! Frames are return addresses: what is looked up is one byte before. A dump carries its symbols;
//! they win over files.

mod apart;
pub mod modules;
pub mod runtime;

use apart::Apart;
use gpumem_wire::layout::StrRef;
use gpumem_wire::read::Snapshot;
use modules::{Modules, Place};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What one frame means; an address has several where functions were inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Frame {
    /// The return address.
    pub address: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<Rc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Rc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Path of the file with the code, as the process knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<Rc<str>>,
    /// The address within that file (an ELF virtual address).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_address: Option<u64>,
    /// True for a function that was inlined into the next frame.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
}

impl Frame {
    /// On one line: function, then file and line if known, else the module.
    pub fn text(&self) -> String {
        self.words(self.function.as_deref())
    }

    /// As [`Frame::text`], without the function's parameters: the line tells overloads apart.
    pub fn label(&self) -> String {
        let function = self.function.as_deref().map(|function| apart::cut(function, MOST_WORDS));
        self.words(function.map(without_parameters))
    }

    fn words(&self, function: Option<&str>) -> String {
        // The longest that is shown in words; a row of JSON has all of it.
        let function = function.map(|function| apart::cut(function, MOST_WORDS));
        let module = self.module.as_deref().map(crate::source::find::file_name);
        match (function, &self.file, &module) {
            (Some(function), Some(file), _) => {
                let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
                format!("{function} {}{line}", crate::source::find::file_name(file))
            }
            (Some(function), None, Some(module)) => format!("{function} ({module})"),
            (Some(function), None, None) => function.to_owned(),
            (None, _, Some(module)) => format!("{module}+{:#x}", self.module_address.unwrap_or(0)),
            (None, _, None) => format!("{:#x}", self.address),
        }
    }
}

/// Bytes of a function's name that words hold.
const MOST_WORDS: usize = 4096;

/// Room for words that are made of a ledger's texts: each text is in the file once, and may be in any number of
/// words. Where the room is used up, words are cut short.
#[derive(Debug)]
pub struct Room(Cell<usize>);

/// What all words together take before they are cut, and each word from then on.
const ALL_WORDS: usize = 16 << 20;
const CUT_WORD: usize = 80;

impl Default for Room {
    fn default() -> Self {
        Self(Cell::new(ALL_WORDS))
    }
}

impl Room {
    /// A word, or the beginning of it.
    pub fn word(&self, word: &str) -> Rc<str> {
        match self.0.get().checked_sub(word.len()) {
            Some(left) => self.0.set(left),
            None => return apart::cut(word, CUT_WORD).into(),
        }
        word.into()
    }
}

/// `ns::f<int>(void*)::{lambda(int)#1}::operator()(int) const` without its last list in parentheses.
fn without_parameters(name: &str) -> &str {
    let body = name.strip_suffix(" const").unwrap_or(name);
    if !body.ends_with(')') {
        return name;
    }
    let mut depth = 0_usize;
    for (at, c) in body.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let cut = &body[..at];
            // `(anonymous namespace)` and the like are no parameters; `operator()` keeps its name.
            let named = cut.ends_with(|c: char| c.is_alphanumeric() || "_>)]=<+-*/%!&|^~,\"".contains(c));
            return if named && !cut.ends_with("operator") { cut } else { name };
        }
    }
    name
}

/// The symbols of one ledger, each address looked up once.
pub struct Symbols {
    modules: Modules,
    /// False: files are not opened, only modules and offsets are shown.
    enabled: bool,
    /// Symbols that a dump brought, by return address.
    carried: FxHashMap<u64, Rc<[Frame]>>,
    resolved: RefCell<FxHashMap<u64, Rc<[Frame]>>>,
    runtime: RefCell<FxHashMap<u64, bool>>,
    files: Apart,
    room: Room,
}

impl Symbols {
    /// The symbols of a ledger whose paths hold under `place`.
    pub fn new(snapshot: &Snapshot, place: Place) -> Self {
        let modules = Modules::new(snapshot, place);
        let files = Apart::new(modules.debug_dirs());
        Self {
            carried: carried(snapshot, &modules),
            modules,
            enabled: true,
            resolved: RefCell::default(),
            runtime: RefCell::default(),
            files,
            room: Room::default(),
        }
    }

    /// Opens no files from here on.
    pub fn disable(&mut self) {
        self.enabled = false;
    }

    /// The frames at a return address, innermost first; at least one.
    pub fn frames(&self, address: u64) -> Rc<[Frame]> {
        if let Some(frames) = self.carried.get(&address) {
            return Rc::clone(frames);
        }
        if let Some(frames) = self.resolved.borrow().get(&address) {
            return Rc::clone(frames);
        }
        let frames: Rc<[Frame]> = self.look_up(address).into();
        self.resolved.borrow_mut().insert(address, Rc::clone(&frames));
        frames
    }

    /// Every frame of a stack.
    pub fn stack(&self, addresses: &[u64]) -> Vec<Frame> {
        addresses.iter().flat_map(|&address| self.frames(address).to_vec()).collect()
    }

    /// Path of the file that an address belongs to, as the process knew it.
    pub fn module(&self, address: u64) -> Option<&str> {
        self.modules.find(address).map(|module| &*module.path)
    }

    /// True if a frame belongs to a GPU runtime, by its file or (where that is linked statically)
    /// by its name.
    pub fn is_runtime(&self, address: u64) -> bool {
        if let Some(&known) = self.runtime.borrow().get(&address) {
            return known;
        }
        let by_file = self.module(address).is_some_and(runtime::is_library);
        let is = by_file || self.name(address).is_some_and(|name| runtime::is_function(&name));
        self.runtime.borrow_mut().insert(address, is);
        is
    }

    /// The call site of a stack: its innermost frame outside of GPU runtimes; the outermost frame
    /// of a stack that has no other.
    pub fn site(&self, stack: &[u64]) -> Option<u64> {
        stack.iter().copied().find(|&address| !self.is_runtime(address)).or(stack.last().copied())
    }

    fn name(&self, address: u64) -> Option<Rc<str>> {
        if let Some(frames) = self.carried.get(&address) {
            return frames.last().and_then(|frame| frame.function.clone());
        }
        let module = self.modules.find(address).filter(|_| self.enabled)?;
        let file = self.modules.readable(module, &self.files)?;
        self.files.name(file, call(module.address(address))?).map(Rc::from)
    }

    fn look_up(&self, address: u64) -> Vec<Frame> {
        let Some(module) = self.modules.find(address) else {
            return vec![Frame { address, ..Frame::default() }];
        };
        let plain = Frame {
            address,
            module: Some(Rc::clone(&module.path)),
            module_address: Some(module.address(address)),
            ..Frame::default()
        };
        let symbols = || {
            let file = self.modules.readable(module, &self.files)?;
            self.files.symbols(file, call(module.address(address))?)
        };
        let Some(symbols) = Some(()).filter(|()| self.enabled).and_then(|()| symbols()) else { return vec![plain] };
        let frames = symbols.iter().map(|symbol| Frame {
            function: Some(self.room.word(&symbol.function)),
            file: symbol.file.as_deref().map(|file| self.room.word(file)),
            line: symbol.line,
            inlined: symbol.inlined,
            ..plain.clone()
        });
        frames.collect()
    }
}

/// The instruction before a return address, both as ELF virtual addresses.
fn call(address: u64) -> Option<u64> {
    address.checked_sub(1)
}

/// Texts of a ledger, each of them once.
struct Shared<'a> {
    snapshot: &'a Snapshot,
    known: FxHashMap<StrRef, Rc<str>>,
}

impl<'a> Shared<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, known: FxHashMap::default() }
    }

    fn text(&mut self, at: StrRef) -> Rc<str> {
        Rc::clone(self.known.entry(at).or_insert_with(|| self.snapshot.text(at).into()))
    }
}

/// Functions that an address has at most, inlined ones included.
const MOST_AT_ADDRESS: usize = 100;

/// The symbols in a dump.
fn carried(snapshot: &Snapshot, modules: &Modules) -> FxHashMap<u64, Rc<[Frame]>> {
    let mut shared = Shared::of(snapshot);
    let mut text = |at| Some(shared.text(at)).filter(|text| !text.is_empty());
    let mut slots: Vec<_> = snapshot.symbols.iter().collect();
    slots.sort_by_key(|slot| (slot.address, slot.inlined));
    let chunks = slots.chunk_by(|a, b| a.address == b.address);
    chunks
        .map(|chain| {
            let frames = chain.iter().take(MOST_AT_ADDRESS).enumerate().map(|(index, slot)| Frame {
                address: slot.address,
                function: text(slot.function),
                file: text(slot.file),
                line: Some(slot.line).filter(|&line| line != 0),
                module: text(slot.module),
                module_address: modules.find(slot.address).map(|module| module.address(slot.address)),
                inlined: index + 1 < chain.len(),
            });
            (chain[0].address, frames.collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{CUT_WORD, Room, without_parameters};

    #[test]
    fn words_are_cut_once_there_are_too_many() {
        let (room, long) = (Room::default(), "x".repeat(1 << 20));
        let words: Vec<_> = (0..100).map(|_| room.word(&long)).collect();
        assert_eq!((words[0].len(), words[99].len()), (long.len(), CUT_WORD));
        assert!(words.iter().map(|word| word.len()).sum::<usize>() <= 17 << 20);
    }

    #[test]
    fn labels_leave_parameters_out() {
        for (name, label) in [
            ("cudaMalloc", "cudaMalloc"),
            ("pool::alloc(unsigned long, unsigned long*)", "pool::alloc"),
            ("f(int (*)(char), int)", "f"),
            ("g<void (int)>(int) const", "g<void (int)>"),
            ("h(int)::{lambda(float)#1}::operator()(float) const", "h(int)::{lambda(float)#1}::operator()"),
            ("s::operator()", "s::operator()"),
            ("operator==(a, b)", "operator=="),
            ("<a::B as c::D>::e", "<a::B as c::D>::e"),
            ("(anonymous namespace)", "(anonymous namespace)"),
            ("odd)", "odd)"),
            (")(", ")("),
            ("", ""),
        ] {
            assert_eq!(without_parameters(name), label);
        }
    }
}
