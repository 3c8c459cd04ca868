//! Resolves addresses of a process to functions, files and lines, out of process.
//!
//! * [`frame`]: one frame of a call stack.
//! * [`words`]: the texts of a ledger, and a limit on the text made from them.
//! * [`modules`]: the file that an address belongs to, and the path to read it by.
//! * [`answers`]: answers that processes with the same files share.
//! * [`apart`]: reads those files in a child process. [`question`]: the questions to that child. [`reader`]: the child.
//!   [`files`]: the files that it opens and maps. [`dwarf`]: debug information. [`later`]: names that another thread
//!   looks up.
//! * [`python`]: Python frames, whose names are in the ledger.
//! * [`runtime`]: one table of the functions of GPU runtimes, which are never a call site.
//!
//! Frames are return addresses, so the byte before is looked up. Symbols in a dump come before those in files.

mod answers;
mod apart;
mod dwarf;
mod files;
mod frame;
mod later;
pub(crate) mod modules;
pub(crate) mod python;
mod question;
mod reader;
pub(crate) mod runtime;
mod words;

pub(crate) use answers::Answers;
pub(crate) use frame::Frame;
pub(crate) use later::Named;
pub(crate) use runtime::is_standard;
pub(crate) use words::Room;

use apart::{Apart, Lost, Patience};
use gpumem_wire::layout::PythonFrame;
use gpumem_wire::read::{Snapshot, as_mapped};
use later::Wanted;
use modules::{Modules, Place};
use python::Codes;
use question::Symbol;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use words::Shared;

/// The file that an address belongs to, and the address in it.
type Whence = Option<(Rc<str>, u64)>;

/// Results for one process, so that a later ledger of it needs no second lookup.
#[derive(Default)]
pub(crate) struct Known {
    frames: FxHashMap<u64, Rc<[Frame]>>,
    /// For each address: its file, its address there, and true if it belongs to a GPU runtime.
    runtime: Vec<(u64, Whence, bool)>,
    lost: Lost,
}

/// The symbols of one ledger, each address looked up once.
pub(crate) struct Symbols {
    modules: Modules,
    /// If false, no files are opened: only modules and offsets are shown.
    enabled: bool,
    /// Symbols from a dump, by return address.
    carried: FxHashMap<u64, Rc<[Frame]>>,
    python: Codes,
    resolved: RefCell<FxHashMap<u64, Rc<[Frame]>>>,
    runtime: RefCell<FxHashMap<u64, bool>>,
    files: Apart,
    room: Room,
    /// If set, another thread looks names up, and these are wanted.
    later: Option<Wanted>,
}

impl Symbols {
    /// Returns the symbols of a ledger whose paths hold under `place`.
    pub(crate) fn new(snapshot: &Snapshot, place: Place) -> Self {
        let modules = Modules::new(snapshot, place);
        Self {
            carried: carried(snapshot, &modules),
            python: Codes::of(snapshot),
            modules,
            enabled: true,
            resolved: RefCell::default(),
            runtime: RefCell::default(),
            files: Apart::default(),
            room: Room::default(),
            later: None,
        }
    }

    /// Opens no files from here on.
    pub(crate) fn disable(&mut self) {
        self.enabled = false;
    }

    /// Gives up slow files: nothing waits for their names.
    pub(crate) fn in_background(&mut self) {
        self.files.wait(Patience::IN_BACKGROUND);
    }

    /// Takes names from these, and adds to them.
    pub(crate) fn share(&mut self, answers: &Rc<Answers>) {
        self.files.share(Rc::clone(answers));
    }

    /// Limits the wait for all names together.
    pub(crate) fn wait_at_most(&mut self, time: Duration) {
        self.files.wait(Patience::of_a_person(time));
    }

    /// Starts with the results of an earlier ledger of the process, as far as the same files are still mapped.
    pub(crate) fn begin_with(&mut self, known: Known) {
        let Known { mut frames, runtime, lost } = known;
        frames.retain(|&address, frames| {
            let whence = frames.first().and_then(|frame| Some((frame.module.clone()?, frame.module_address?)));
            // Python frames are valid only in their own ledger.
            PythonFrame::of(address).is_none() && self.whence(address) == whence
        });
        let same = runtime.into_iter().filter(|(address, whence, _)| self.whence(*address) == *whence);
        self.runtime = RefCell::new(same.map(|(address, _, is)| (address, is)).collect());
        self.resolved = RefCell::new(frames);
        self.files.give_up(lost);
    }

    /// Returns the results, for a later ledger.
    pub(crate) fn into_known(self) -> Known {
        let whence = |address| self.whence(address);
        let runtime = self.runtime.borrow().iter().map(|(&address, &is)| (address, whence(address), is)).collect();
        Known { runtime, frames: self.resolved.into_inner(), lost: self.files.into_lost() }
    }

    /// Takes over what was found for an earlier ledger of the process, which has the same files mapped.
    pub(crate) fn take_over(&mut self, before: &mut Self) {
        std::mem::swap(&mut self.resolved, &mut before.resolved);
        std::mem::swap(&mut self.runtime, &mut before.runtime);
        std::mem::swap(&mut self.files, &mut before.files);
        std::mem::swap(&mut self.room, &mut before.room);
    }

    /// Returns the file that an address belongs to, and its address there.
    fn whence(&self, address: u64) -> Whence {
        self.modules.find(address).map(|module| (Rc::clone(&module.path), module.address(address)))
    }

    /// Returns the frames at a return address, innermost first, or the Python frame that the address stands for. At
    /// least one.
    pub(crate) fn frames(&self, address: u64) -> Rc<[Frame]> {
        if let Some(frames) = self.carried.get(&address) {
            return Rc::clone(frames);
        }
        if let Some(frames) = self.resolved.borrow().get(&address) {
            return Rc::clone(frames);
        }
        if self.puts_off(address) {
            return [self.plain(address)].into();
        }
        let frames: Rc<[Frame]> = self.look_up(address).into();
        self.resolved.borrow_mut().insert(address, Rc::clone(&frames));
        frames
    }

    /// Returns every frame of a stack.
    pub(crate) fn stack(&self, addresses: &[u64]) -> Vec<Frame> {
        addresses.iter().flat_map(|&address| self.frames(address).to_vec()).collect()
    }

    /// Returns the path of the file that an address belongs to, as the process saw it.
    pub(crate) fn module(&self, address: u64) -> Option<&str> {
        self.modules.find(address).map(|module| &*module.path)
    }

    /// True if a frame belongs to a GPU runtime, by its file or, in a statically linked program, by its name.
    pub(crate) fn is_runtime(&self, address: u64) -> bool {
        if let Some(&known) = self.runtime.borrow().get(&address) {
            return known;
        }
        let by_file = self.module(address).is_some_and(runtime::is_library);
        if !by_file && self.puts_off(address) {
            return false;
        }
        let is = by_file || self.name(address).is_some_and(|name| runtime::is_function(&name));
        self.runtime.borrow_mut().insert(address, is);
        is
    }

    /// Returns the call site of a stack: its innermost frame outside of GPU runtimes, or the outermost frame if there
    /// is no other.
    pub(crate) fn site(&self, stack: &[u64]) -> Option<u64> {
        stack.iter().copied().find(|&address| !self.is_runtime(address)).or(stack.last().copied())
    }

    /// Returns the function that contains an address, without inlined ones.
    fn name(&self, address: u64) -> Option<Rc<str>> {
        if let Some(frames) = self.carried.get(&address) {
            return frames.last().and_then(|frame| frame.function.clone());
        }
        let module = self.modules.find(address).filter(|_| self.enabled)?;
        let file = self.modules.readable(module, &self.files)?;
        self.files.name(file, call(module.address(address))?).map(Rc::from)
    }

    /// True if the file at the address was read and has no name for it: it is stripped.
    pub(crate) fn is_stripped(&self, address: u64) -> bool {
        let module = self.modules.find(address).filter(|_| self.enabled && !self.carried.contains_key(&address));
        module.is_some_and(|module| self.modules.readable(module, &self.files).is_some())
            && self.name(address).is_none()
    }

    /// Returns a frame without a name: the file mapped at the address, if any, and the offset in it.
    fn plain(&self, address: u64) -> Frame {
        let module = self.modules.find(address);
        let place = |module: &modules::Module| (Rc::clone(&module.path), module.address(address));
        let (path, at) = module.map(place).unzip();
        Frame { address: as_mapped(address), module: path, module_address: at, ..Frame::default() }
    }

    /// Returns the symbols that a file has for an address.
    fn symbols(&self, address: u64) -> Option<Vec<Symbol>> {
        let module = self.modules.find(address).filter(|_| self.enabled)?;
        let file = self.modules.readable(module, &self.files)?;
        self.files.symbols(file, call(module.address(address))?)
    }

    fn look_up(&self, address: u64) -> Vec<Frame> {
        if let Some(frame) = PythonFrame::of(address) {
            return vec![self.python.frame(frame)];
        }
        self.named(address, &self.symbols(address).unwrap_or_default())
    }

    /// Returns the frames for an address, made from these symbols.
    fn named(&self, address: u64, symbols: &[Symbol]) -> Vec<Frame> {
        let plain = self.plain(address);
        if symbols.is_empty() {
            return vec![plain];
        }
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

/// Returns the instruction before a return address, both as ELF virtual addresses.
fn call(address: u64) -> Option<u64> {
    address.checked_sub(1)
}

/// Most functions at one address, inlined ones included.
const MOST_AT_ADDRESS: usize = 100;

/// Returns the symbols in a dump.
fn carried(snapshot: &Snapshot, modules: &Modules) -> FxHashMap<u64, Rc<[Frame]>> {
    let mut shared = Shared::of(snapshot);
    let mut text = |at| Some(shared.text(at)).filter(|text| !text.is_empty());
    let mut slots: Vec<_> = snapshot.symbols.iter().collect();
    slots.sort_by_key(|slot| (slot.address, slot.inlined));
    let chunks = slots.chunk_by(|a, b| a.address == b.address);
    chunks
        .map(|chain| {
            let frames = chain.iter().take(MOST_AT_ADDRESS).enumerate().map(|(index, slot)| Frame {
                address: as_mapped(slot.address),
                function: text(slot.function),
                file: text(slot.file),
                line: Some(slot.line).filter(|&line| line != 0),
                module: text(slot.module),
                module_address: modules.find(slot.address).map(|module| module.address(slot.address)),
                inlined: index + 1 < chain.len(),
                python: false,
            });
            (chain[0].address, frames.collect())
        })
        .collect()
}
