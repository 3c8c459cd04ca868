//! Kernels that graphs call: the layout of their parameters, and the load of a module that they come from.
//!
//! A function's address may come back when its module is unloaded and loaded again (JITs do that). So each load is a
//! *generation*, which is part of every record that names the function.

use crate::backend::answer::told;
use crate::backend::graphs::{Code, Visit};
use crate::backend::{cuda, driver};
use crate::process::map::{self, Map};
use gpumem_abi::types::*;
use rustc_hash::FxHashMap;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// More parameters than any kernel has.
const MAX_PARAMS: usize = 4096;
/// Largest parameter space, bytes (since CUDA 12.1).
pub(crate) const MAX_PARAM_BYTES: usize = 32_764;

/// Compile-time attributes that decide if one kernel can stand in for another in an exec:
/// `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET` and the required cluster's width, height, depth.
const TRAITS: [i32; 4] = [10, 11, 12, 13];

/// `CUDA_ERROR_INVALID_VALUE`: for example, a kernel has no parameter with this number, or a record does not fit its
/// kind.
pub(super) const INVALID: Status = 1;
/// `CUDA_ERROR_NOT_FOUND`: a library is not loaded in a context.
const NOT_FOUND: Status = 500;

/// A kernel.
#[derive(Debug)]
pub(crate) struct Function {
    pub generation: u32,
    /// Offset and bytes of each parameter.
    pub params: Vec<(u32, u32)>,
    /// Bytes of all parameters.
    pub bytes: u32,
    /// Its [`TRAITS`], packed.
    pub traits: u32,
    /// Module and library that it came from; 0: none, or unknown.
    homes: [u64; 2],
    context: u64,
}

/// Kernels by handle.
pub(crate) struct Functions {
    map: Map<u64, Arc<Function>>,
    /// Kernels whose code is being unloaded.
    going: Map<u64, Arc<Function>>,
    generations: AtomicU32,
}

impl Default for Functions {
    fn default() -> Self {
        Self { map: map::new(), going: map::new(), generations: AtomicU32::new(0) }
    }
}

/// Returns offset and bytes of each parameter of a live function, or of a kernel if the function is NULL; `None` if the
/// driver does not tell.
pub(crate) fn params_of(function: Opaque, kernel: Opaque) -> Option<Vec<(u32, u32)>> {
    let mut params = Vec::new();
    let ask = |index| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: rule of answers: `offset` and `size` take the numbers. Our caller passes a function or a kernel of
        // the program's node or launch, so it is alive.
        let status = unsafe {
            match function.is_null() {
                false => driver::cuFuncGetParamInfo(function, index, &mut offset, &mut size),
                true => driver::cuKernelGetParamInfo(kernel, index, &mut offset, &mut size),
            }
        };
        (status, offset, size)
    };
    loop {
        let (offset, size) = match ask(params.len()) {
            (Some(SUCCESS), offset, size) => (offset, size),
            // The driver gives this status behind the last parameter. A call may also fail with it once. Then the
            // second call succeeds, and the list is incomplete.
            (Some(INVALID), ..) => return (ask(params.len()).0 == Some(INVALID)).then_some(params),
            _ => return None,
        };
        if offset.saturating_add(size) > MAX_PARAM_BYTES || params.len() == MAX_PARAMS {
            return None;
        }
        params.push((offset as u32, size as u32));
    }
}

impl Functions {
    /// Returns a kernel's facts: by its function, or by its kernel handle if the function is 0.
    pub(crate) fn get(&self, function: u64, kernel: u64) -> Option<Arc<Function>> {
        let key = if function != 0 { function } else { kernel };
        if let Some(known) = self.map.get(&key) {
            return Some(known.clone());
        }
        let made = Arc::new(self.ask(function, kernel)?);
        Some(self.map.entry(key).or_insert(made).clone())
    }

    /// As [`get`](Self::get), without asking the driver, for a function that may be gone.
    pub(crate) fn known(&self, function: u64, kernel: u64) -> Option<Arc<Function>> {
        self.map.get(&if function != 0 { function } else { kernel }).map(|known| known.clone())
    }

    #[cold]
    fn ask(&self, function: u64, kernel: u64) -> Option<Function> {
        let (function, kernel) = (function as Opaque, kernel as Opaque);
        let params = params_of(function, kernel)?;
        let bytes = params.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        // SAFETY: rule of answers: `context` takes the handle.
        let context = told(|context| unsafe { driver::cuCtxGetCurrent(context) }).ok()?;
        let mut traits = 0_u32;
        let (mut module, mut library): (Opaque, Opaque) = (null_mut(), null_mut());
        // SAFETY: rule of answers: each call writes a local of the type that its row declares.
        // Function and kernel are those of a node of a live graph, so they are alive.
        unsafe {
            let plain = match function.is_null() {
                true => told(|plain| driver::cuKernelGetFunction(plain, kernel)).ok()?,
                false => function,
            };
            // If the module is unknown, the function is forgotten whenever any code is unloaded.
            let _ = driver::cuFuncGetModule(&mut module, plain);
            if !kernel.is_null() {
                let _ = driver::cuKernelGetLibrary(&mut library, kernel);
            }
            for attribute in TRAITS {
                // Drivers that do not know an attribute have no such kernels.
                let value = told(|value| driver::cuFuncGetAttribute(value, attribute, plain)).unwrap_or(0);
                traits = (traits << 8) | (value as u32 & 0xff);
            }
        }
        let generation = self.generations.fetch_add(1, Relaxed) + 1;
        Some(Function {
            generation,
            params,
            bytes,
            traits,
            homes: [module as u64, library as u64],
            context: context as u64,
        })
    }

    /// Returns the handles of this code's functions, and of functions whose code is unknown.
    pub(crate) fn of(&self, code: Code, visit: Visit<'_>) -> Vec<u64> {
        let (home, modules) = match code {
            Code::Module(module) => (module as u64, FxHashMap::default()),
            Code::Library(library) => (library as u64, self.modules_of(library, visit)),
        };
        let is_of = |function: &Function| match function.homes {
            [0, 0] => true,
            homes if homes.contains(&home) => true,
            [module, 0] => modules.get(&function.context).is_some_and(|its| its.is_none_or(|its| its == module)),
            _ => false,
        };
        self.map.iter().filter(|entry| is_of(entry.value())).map(|entry| *entry.key()).collect()
    }

    /// Returns the library's module in each context that has functions of an unknown library. The driver tells the
    /// library only of kernels, and programs may name just the function. `None` if the driver does not tell.
    fn modules_of(&self, library: Opaque, visit: Visit<'_>) -> FxHashMap<u64, Option<u64>> {
        let mut modules = FxHashMap::default();
        for entry in self.map.iter().filter(|entry| entry.homes[1] == 0) {
            modules.insert(entry.context, None);
        }
        modules.retain(|&context, its| {
            let told = module_in(context, library, visit);
            *its = told.and_then(Result::ok);
            told != Some(Err(NOT_FOUND))
        });
        modules
    }

    /// Sets these functions aside until it is known if they are gone.
    pub(crate) fn forget(&self, functions: &[u64]) {
        for (handle, function) in functions.iter().filter_map(|handle| self.map.remove(handle)) {
            self.going.insert(handle, function);
        }
    }

    /// Drops the functions if they are gone. Otherwise restores them, and records of them stay valid.
    pub(crate) fn unloaded(&self, functions: &[u64], gone: bool) {
        for (handle, function) in functions.iter().filter_map(|handle| self.going.remove(handle)) {
            if !gone {
                self.map.insert(handle, function);
            }
        }
    }

    /// Forgets the functions of a context, which end with it: their addresses come back.
    pub(crate) fn forget_of(&self, context: u64) {
        self.map.retain(|_, function| function.context != context);
        self.going.retain(|_, function| function.context != context);
    }
}

/// Returns the library's module in a context, or the driver's error; `None` for a context that is ending or unknown.
fn module_in(context: u64, library: Opaque, visit: Visit<'_>) -> Option<Result<u64, Status>> {
    let mut said = None;
    // The program's own call is another one, so its other threads may end the context.
    visit(context, &mut || {
        let entered = cuda::enter(context);
        // SAFETY: rule of answers: `module` takes the handle. The program unloads `library` with
        // the call that this thread is in, and the driver has not begun yet.
        let module = told(|module| unsafe { driver::cuLibraryGetModule(module, library) });
        if entered {
            cuda::leave();
        }
        said = Some(module.map(|module| module as u64));
    });
    said
}
