//! Modules and libraries: PTX text in, functions out.

use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::memory;
use crate::ptx;
use std::collections::HashMap;
use std::sync::Arc;

pub struct Module {
    pub ctx: H,
    pub functions: Vec<H>,
    pub globals: HashMap<String, (u64, u64)>,
}

/// A context-independent library; its module is made where it is first used.
pub struct Library {
    pub text: Arc<str>,
    pub modules: HashMap<H, H>,
    pub kernels: Vec<H>,
}

pub struct Function {
    pub name: String,
    /// The name with a terminating NUL, for cuFuncGetName.
    pub c_name: std::ffi::CString,
    /// The module it belongs to; a kernel of a library has none.
    pub module: H,
    pub library: H,
    pub layout: Arc<[(u32, u32)]>,
    pub attrs: HashMap<u32, i32>,
}

fn add_functions(m: &mut Machine, image: &ptx::Image, module: H, library: H) -> Vec<H> {
    let mut list = Vec::new();
    for e in &image.entries {
        let h = m.handles.make("function");
        let f = Function {
            name: e.name.clone(),
            c_name: std::ffi::CString::new(e.name.clone()).unwrap_or_default(),
            module,
            library,
            layout: e.params.clone().into(),
            attrs: HashMap::new(),
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
    load_image(&mut m, ctx, &image, 0)
}

fn load_image(m: &mut Machine, ctx: H, image: &ptx::Image, library: H) -> Result<H> {
    let mut globals = HashMap::new();
    for v in &image.variables {
        let addr = memory::alloc_kind(m, ctx, v.size.max(1), memory::Kind::Device)?;
        globals.insert(v.name.clone(), (addr, v.size));
    }
    let h = m.handles.make("module");
    let functions = add_functions(m, image, h, library);
    m.modules.insert(h, Module { ctx, functions, globals });
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
    for f in module.functions {
        m.functions.remove(&f);
        m.handles.retire("function", f);
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
    let kernels = add_functions(&mut m, &image, 0, h);
    m.libraries.insert(h, Library { text: text.into(), modules: HashMap::new(), kernels });
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
    for f in l.kernels {
        m.functions.remove(&f);
        m.handles.retire("function", f);
    }
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
    let module = load_image(&mut m, ctx, &image, library)?;
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
        (f.library, f.name.clone())
    };
    function(library_module(library, ctx)?, &name)
}
