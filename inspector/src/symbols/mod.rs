//! Addresses of a process to functions, files and lines, out of process.
//!
//! * [`modules`]: which file an address belongs to, and where that file is to be read.
//! * [`runtime`]: what belongs to a GPU runtime and is never a call site: one table.
//!
//! Frames are return addresses: what is looked up is one byte before. A dump carries its symbols;
//! they win over files.

pub mod modules;
pub mod runtime;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use gpumem_wire::read::Snapshot;
use modules::{Modules, Place};
use rustc_hash::FxHashMap;
use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::rc::Rc;

/// What one frame means; an address has several where functions were inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Frame {
    /// The return address.
    pub address: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Path of the file with the code, as the process knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
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
        self.words(self.function.as_deref().map(without_parameters))
    }

    fn words(&self, function: Option<&str>) -> String {
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
    /// Names only: answers "whose function is this" without reading debug information.
    names: OnceCell<Symbolizer>,
    full: OnceCell<Symbolizer>,
}

impl Symbols {
    /// The symbols of a ledger whose paths hold under `place`.
    pub fn new(snapshot: &Snapshot, place: Place) -> Self {
        let modules = Modules::new(snapshot, place);
        Self {
            carried: carried(snapshot, &modules),
            modules,
            enabled: true,
            resolved: RefCell::default(),
            runtime: RefCell::default(),
            names: OnceCell::new(),
            full: OnceCell::new(),
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
        self.modules.find(address).map(|module| module.path.as_str())
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

    fn name(&self, address: u64) -> Option<String> {
        if let Some(frames) = self.carried.get(&address) {
            return frames.last().and_then(|frame| frame.function.clone());
        }
        let module = self.modules.find(address).filter(|_| self.enabled)?;
        let file = self.modules.readable(module)?;
        let names = self.names.get_or_init(|| {
            Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).enable_demangling(true).build()
        });
        symbolize(names, file, module.address(address), false, |symbol| symbol.name.into_owned())
    }

    fn look_up(&self, address: u64) -> Vec<Frame> {
        let Some(module) = self.modules.find(address) else {
            return vec![Frame { address, ..Frame::default() }];
        };
        let plain = Frame {
            address,
            module: Some(module.path.clone()),
            module_address: Some(module.address(address)),
            ..Frame::default()
        };
        let Some(file) = Some(module).filter(|_| self.enabled).and_then(|module| self.modules.readable(module)) else {
            return vec![plain];
        };
        let full = self.full.get_or_init(|| {
            let builder = Symbolizer::builder().enable_code_info(true).enable_inlined_fns(true).enable_demangling(true);
            builder.set_debug_dirs(Some(self.modules.debug_dirs())).build()
        });
        let frames = symbolize(full, file, module.address(address), true, |symbol| {
            let place = |info: Option<&blazesym::symbolize::CodeInfo<'_>>| {
                let path = info.map(|info| info.to_path().to_string_lossy().into_owned());
                (path, info.and_then(|info| info.line))
            };
            let mut frames = Vec::with_capacity(symbol.inlined.len() + 1);
            for function in symbol.inlined.iter().rev() {
                let (file, line) = place(function.code_info.as_ref());
                frames.push(Frame {
                    function: Some(function.name.to_string()),
                    file,
                    line,
                    inlined: true,
                    ..plain.clone()
                });
            }
            let (file, line) = place(symbol.code_info.as_deref());
            frames.push(Frame { function: Some(symbol.name.to_string()), file, line, ..plain.clone() });
            frames
        });
        frames.unwrap_or_else(|| vec![plain])
    }
}

/// Looks up the instruction before a return address, which is an ELF virtual address.
fn symbolize<T>(
    symbolizer: &Symbolizer,
    file: &Path,
    address: u64,
    debug_syms: bool,
    answer: impl FnOnce(blazesym::symbolize::Sym<'_>) -> T,
) -> Option<T> {
    let mut elf = Elf::new(file);
    elf.debug_syms = debug_syms;
    let call = address.checked_sub(1)?;
    match symbolizer.symbolize_single(&Source::Elf(elf), Input::VirtOffset(call)) {
        Ok(symbolized) => symbolized.into_sym().map(answer),
        Err(error) => {
            tracing::debug!("{}: {error:#}", file.display());
            None
        }
    }
}

/// The symbols in a dump.
fn carried(snapshot: &Snapshot, modules: &Modules) -> FxHashMap<u64, Rc<[Frame]>> {
    let text = |at| Some(snapshot.text(at).into_owned()).filter(|text| !text.is_empty());
    let mut slots = snapshot.symbols.clone();
    slots.sort_by_key(|slot| (slot.address, slot.inlined));
    let chunks = slots.chunk_by(|a, b| a.address == b.address);
    chunks
        .map(|chain| {
            let frames = chain.iter().enumerate().map(|(index, slot)| Frame {
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
    use super::without_parameters;

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
