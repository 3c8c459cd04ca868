//! Modules and libraries: PTX text in, functions out.

use crate::config::config;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::memory;
use crate::node::Kernel;
use crate::ptx;
use crate::report;
use std::collections::HashMap;
use std::sync::Arc;

pub struct Module {
    pub ctx: H,
    /// The key under which its functions' addresses are kept after it is unloaded.
    image: u64,
    pub functions: Vec<H>,
    pub globals: HashMap<String, (u64, u64)>,
}

/// A context-independent library; its module is made where it is first used.
pub struct Library {
    pub text: Arc<str>,
    pub modules: HashMap<H, H>,
    pub kernels: Vec<H>,
    image: u64,
}

pub struct Function {
    pub name: String,
    /// The name with a terminating NUL, for cuFuncGetName.
    pub c_name: std::ffi::CString,
    /// The module it belongs to; a kernel of a library has none.
    pub module: H,
    pub library: H,
    pub layout: Arc<[(u32, u32)]>,
    /// Bytes of local memory that each thread has.
    pub local: u32,
    pub attrs: HashMap<u32, i32>,
    /// Number of the function. Unlike its address, the number is never reused.
    pub load: u64,
}

/// Addresses of unloaded functions, by image and name: the next load of the
/// same text gets them again, as it can on a real driver (10 addresses in 40
/// loads on an H200).
pub type Unloaded = HashMap<(u64, bool, String), Vec<H>>;

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn drop_functions(m: &mut Machine, list: Vec<H>, image: u64, kernels: bool) {
    for h in list {
        if let Some(f) = m.functions.remove(&h) {
            m.unloaded.entry((image, kernels, f.name)).or_default().push(h);
        }
    }
}

fn add_functions(m: &mut Machine, image: &ptx::Image, hash: u64, module: H, library: H) -> Vec<H> {
    let mut list = Vec::new();
    let load = m.id();
    for e in &image.entries {
        let back = m.unloaded.get_mut(&(hash, module == 0, e.name.clone())).and_then(Vec::pop);
        let h = back.unwrap_or_else(|| m.handles.make("function"));
        let f = Function {
            name: e.name.clone(),
            c_name: std::ffi::CString::new(e.name.clone()).unwrap_or_default(),
            module,
            library,
            layout: e.params.clone().into(),
            local: e.local,
            attrs: HashMap::new(),
            load,
        };
        m.functions.insert(h, f);
        list.push(h);
    }
    list
}

/// Loads PTX text into a context.
pub fn load(ctx: H, text: &str) -> Result<H> {
    let image = ptx::parse(text).ok_or(Error::INVALID_IMAGE)?;
    let mut m = lock();
    load_image(&mut m, ctx, &image, hash(text), 0)
}

fn load_image(m: &mut Machine, ctx: H, image: &ptx::Image, hash: u64, library: H) -> Result<H> {
    let device = m.context(ctx)?.device;
    m.charge(device, config().code_mem)?;
    let mut globals = HashMap::new();
    for v in &image.variables {
        let addr = memory::alloc_kind(m, ctx, v.size.max(1), memory::Kind::Device)?;
        globals.insert(v.name.clone(), (addr, v.size));
    }
    let h = m.handles.make("module");
    let functions = add_functions(m, image, hash, h, library);
    let ctx = m.owner(ctx);
    m.modules.insert(h, Module { ctx, image: hash, functions, globals });
    Ok(h)
}

pub fn unload(h: H) -> Result {
    let mut m = lock();
    m.module(h)?;
    crate::capture::forbid_unsafe(&mut m)?;
    drop_module(&mut m, h);
    Ok(())
}

pub fn drop_module(m: &mut Machine, h: H) {
    let Some(module) = m.modules.remove(&h) else {
        return;
    };
    for (addr, _) in module.globals.into_values() {
        memory::drop_alloc(m, addr);
    }
    drop_functions(m, module.functions, module.image, false);
    if let Ok(device) = m.context(module.ctx).map(|context| context.device) {
        m.refund(device, config().code_mem);
    }
    m.handles.retire("module", h);
}

pub fn function(module: H, name: &str) -> Result<H> {
    let mut m = lock();
    let list = m.module(module)?.functions.clone();
    list.into_iter().find(|f| m.functions.get(f).is_some_and(|f| f.name == name)).ok_or(Error::NOT_FOUND)
}

pub fn global(module: H, name: &str) -> Result<(u64, u64)> {
    lock().module(module)?.globals.get(name).copied().ok_or(Error::NOT_FOUND)
}

pub fn load_library(text: &str) -> Result<H> {
    let image = ptx::parse(text).ok_or(Error::INVALID_IMAGE)?;
    let mut m = lock();
    let h = m.handles.make("library");
    let kernels = add_functions(&mut m, &image, hash(text), 0, h);
    m.libraries.insert(h, Library { text: text.into(), modules: HashMap::new(), kernels, image: hash(text) });
    Ok(h)
}

pub fn unload_library(h: H) -> Result {
    let mut m = lock();
    m.library(h)?;
    let Some(l) = m.libraries.remove(&h) else {
        return Ok(());
    };
    for module in l.modules.into_values() {
        drop_module(&mut m, module);
    }
    drop_functions(&mut m, l.kernels, l.image, true);
    m.handles.retire("library", h);
    Ok(())
}

/// The module of a library in a context, made on first use.
pub fn library_module(library: H, ctx: H) -> Result<H> {
    let mut m = lock();
    let l = m.library(library)?;
    if let Some(module) = l.modules.get(&ctx) {
        return Ok(*module);
    }
    let text = l.text.clone();
    let image = ptx::parse(&text).ok_or(Error::INVALID_IMAGE)?;
    let module = load_image(&mut m, ctx, &image, hash(&text), library)?;
    m.library(library)?.modules.insert(ctx, module);
    Ok(module)
}

pub fn library_kernel(library: H, name: &str) -> Result<H> {
    let mut m = lock();
    let list = m.library(library)?.kernels.clone();
    list.into_iter().find(|f| m.functions.get(f).is_some_and(|f| f.name == name)).ok_or(Error::NOT_FOUND)
}

/// cuKernelGetFunction: the function of a kernel in a context.
pub fn kernel_function(kernel: H, ctx: H) -> Result<H> {
    let (library, name) = {
        let mut m = lock();
        let f = m.function(kernel)?;
        if f.module != 0 {
            return Err(Error::INVALID_HANDLE);
        }
        (f.library, f.name.clone())
    };
    function(library_module(library, ctx)?, &name)
}

/// The kernel of a library that a function was made of; 0 if of a module.
pub fn kernel_of(m: &Machine, func: H) -> H {
    let Some(f) = m.functions.get(&func) else { return 0 };
    let kernels = m.libraries.get(&f.library).map_or(&[][..], |l| &l.kernels);
    let named = |h: &&H| m.functions.get(h).is_some_and(|k| k.name == f.name);
    kernels.iter().find(named).copied().unwrap_or(0)
}

impl Machine {
    /// Checks that the code of a kernel is still loaded. If not, a call that uses it goes wrong: a real driver crashes,
    /// or runs the code that is there now.
    pub fn still_loaded(&self, k: &Kernel, what: &str) -> Result {
        let now = self.functions.get(&k.func);
        if now.is_some_and(|f| f.load == k.load) {
            return Ok(());
        }
        let text = match now {
            None => format!("{what} a kernel of an unloaded module"),
            Some(f) => format!("{what} a kernel of an unloaded module; {} has its address now", f.name),
        };
        report::violation("unloaded_function", &text);
        Err(Error::INVALID_HANDLE)
    }
}
