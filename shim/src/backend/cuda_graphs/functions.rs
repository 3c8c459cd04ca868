//! Kernels that graphs call: how their parameters lie, and which load of a module they are of.
//!
//! A function's address comes back when its module is unloaded and loaded again (JITs do that), so
//! each load is a *generation*, which is part of every record that names the function.

use crate::doors::driver;
use dashmap::DashMap;
use gpumem_abi::types::*;
use rustc_hash::FxBuildHasher;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// More parameters than any kernel has.
const MAX_PARAMS: usize = 4096;
/// Largest parameter space, bytes (since CUDA 12.1).
pub const MAX_PARAM_BYTES: usize = 32_764;

/// Compile-time attributes that decide whether one kernel can stand in for another in an exec:
/// `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET` and the required cluster's width, height, depth.
const TRAITS: [i32; 4] = [10, 11, 12, 13];

/// A kernel.
#[derive(Debug)]
pub struct Function {
    pub generation: u32,
    /// Offset and bytes of each parameter.
    pub params: Vec<(u32, u32)>,
    /// Bytes of all parameters.
    pub bytes: u32,
    /// Its [`TRAITS`], packed.
    pub traits: u32,
    /// Module and library that it came from; 0: none, or the driver does not say.
    homes: [u64; 2],
    context: u64,
}

/// Kernels by handle.
#[derive(Default)]
pub struct Functions {
    map: DashMap<u64, Arc<Function>, FxBuildHasher>,
    generations: AtomicU32,
}

fn ok(status: Option<Status>) -> Option<()> {
    (status == Some(SUCCESS)).then_some(())
}

/// Offset and bytes of each parameter of a live function, or kernel where that is NULL; `None` if the driver
/// does not say.
pub fn params_of(function: Opaque, kernel: Opaque) -> Option<Vec<(u32, u32)>> {
    let mut params = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: a live function or kernel; both numbers are written.
        let status = unsafe {
            match function.is_null() {
                false => driver::cuFuncGetParamInfo(function, params.len(), &mut offset, &mut size),
                true => driver::cuKernelGetParamInfo(kernel, params.len(), &mut offset, &mut size),
            }
        };
        match status {
            Some(SUCCESS) => {}
            // One behind the last parameter.
            Some(1) => return Some(params),
            _ => return None,
        }
        if offset + size > MAX_PARAM_BYTES || params.len() == MAX_PARAMS {
            return None;
        }
        params.push((offset as u32, size as u32));
    }
}

impl Functions {
    /// What is known of a kernel: by its function, or by its kernel handle where that is 0.
    pub fn get(&self, function: u64, kernel: u64) -> Option<Arc<Function>> {
        let key = if function != 0 { function } else { kernel };
        if let Some(known) = self.map.get(&key) {
            return Some(known.clone());
        }
        let made = Arc::new(self.ask(function, kernel)?);
        Some(self.map.entry(key).or_insert(made).clone())
    }

    /// The same, without asking the driver: of a function that may be gone.
    pub fn known(&self, function: u64, kernel: u64) -> Option<Arc<Function>> {
        self.map.get(&if function != 0 { function } else { kernel }).map(|known| known.clone())
    }

    #[cold]
    fn ask(&self, function: u64, kernel: u64) -> Option<Function> {
        let (function, kernel) = (function as Opaque, kernel as Opaque);
        let params = params_of(function, kernel)?;
        let bytes = params.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        let mut context = null_mut();
        // SAFETY: writes the handle.
        ok(unsafe { driver::cuCtxGetCurrent(&mut context) })?;
        let mut traits = 0_u32;
        let (mut module, mut library): (Opaque, Opaque) = (null_mut(), null_mut());
        // SAFETY: a live function or kernel; each call writes its out-parameter.
        unsafe {
            let mut plain = function;
            if plain.is_null() {
                ok(driver::cuKernelGetFunction(&mut plain, kernel))?;
            }
            // Not known: it goes when any code goes.
            let _ = driver::cuFuncGetModule(&mut module, plain);
            if !kernel.is_null() {
                let _ = driver::cuKernelGetLibrary(&mut library, kernel);
            }
            for attribute in TRAITS {
                let mut value = 0;
                // Drivers that do not know an attribute have no such kernels.
                let _ = driver::cuFuncGetAttribute(&mut value, attribute, plain);
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

    /// Handles of the functions of a module or library, and of those of which it is not known where
    /// they are from.
    pub fn of(&self, home: u64) -> Vec<u64> {
        self.map.iter().filter(|entry| is_of(entry.value(), home)).map(|entry| *entry.key()).collect()
    }

    /// Forgets those functions.
    pub fn forget(&self, home: u64) {
        self.map.retain(|_, function| !is_of(function, home));
    }

    /// Forgets those of a context, which goes with them: their addresses come back.
    pub fn forget_of(&self, context: u64) {
        self.map.retain(|_, function| function.context != context);
    }
}

fn is_of(function: &Function, home: u64) -> bool {
    function.homes == [0; 2] || function.homes.contains(&home)
}
