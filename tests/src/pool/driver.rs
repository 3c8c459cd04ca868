//! The driver and the runtime as the dynamic loader finds them, and what the simulator is told.

use super::program::STREAMS;
use crate::conformance::cu;
use cudarc::driver::sys;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// Functions of the simulator that a real driver does not have.
#[derive(Clone, Copy)]
pub struct Notes {
    alloc: unsafe extern "C" fn(u64, u64),
    free: unsafe extern "C" fn(u64),
    freed: unsafe extern "C" fn(u64, u32, i32),
    /// Frees have the barrier of cuMemFree here.
    strict: bool,
}

/// Says that frees wait: natively, and under GPUMEM_FREE=strict.
pub const STRICT: &str = "POOLER_STRICT";

/// The function of that name among those of an open library.
fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: callers pass a handle of dlopen that is never closed, and `name` is a C string.
    Some(unsafe { libc::dlsym(library, name.as_ptr()) }).filter(|found| !found.is_null())
}

impl Notes {
    pub fn open() -> Option<Self> {
        // SAFETY: RTLD_NOLOAD loads nothing and runs no initialisers. The name is a literal that
        // ends in NUL.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        let (alloc, free) = (symbol(library, c"sim_note_alloc")?, symbol(library, c"sim_note_free")?);
        let freed = symbol(library, c"sim_note_freed")?;
        // SAFETY: only the simulator has functions of these names, and it defines them with these
        // types.
        unsafe {
            Some(Self {
                alloc: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, u64)>(alloc),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64)>(free),
                freed: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, u32, i32)>(freed),
                strict: std::env::var_os(STRICT).is_some(),
            })
        }
    }

    pub fn alloc(&self, ptr: u64, bytes: u64) {
        // SAFETY: the simulator's function takes any two numbers and follows no pointer.
        unsafe { (self.alloc)(ptr, bytes) }
    }

    /// Frees by a call that has the barrier of cuMemFree, or not.
    pub fn around(&self, ptr: u64, barrier: bool, free: impl FnOnce() -> u32) -> u32 {
        // SAFETY: the simulator's function takes any number and follows no pointer.
        unsafe { (self.free)(ptr) };
        let status = free();
        // SAFETY: the simulator's function takes any three numbers and follows no pointer.
        unsafe { (self.freed)(ptr, status, i32::from(barrier && self.strict)) };
        status
    }
}

/// Allocation by the runtime's names.
#[derive(Clone, Copy)]
pub struct Runtime {
    pub malloc: unsafe extern "C" fn(*mut u64, usize) -> u32,
    pub free: unsafe extern "C" fn(u64) -> u32,
    /// Gives the thread's last error and clears it.
    pub last: unsafe extern "C" fn() -> u32,
}

impl Runtime {
    pub fn open() -> Option<Self> {
        let open = |name: &CStr| {
            // SAFETY: `name` is a C string. Loading runs the initialisers of NVIDIA's runtime,
            // which NVIDIA makes fit for any program.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) }
        };
        let names = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so"];
        let library = names.into_iter().map(open).find(|library| !library.is_null())?;
        let (malloc, free) = (symbol(library, c"cudaMalloc")?, symbol(library, c"cudaFree")?);
        let last = symbol(library, c"cudaGetLastError")?;
        // SAFETY: the runtime's headers give the three names these types, with pointers and
        // enumerations as numbers of their size.
        unsafe {
            Some(Self {
                malloc: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize) -> u32>(malloc),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> u32>(free),
                last: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u32>(last),
            })
        }
    }
}

/// A context with what is used in it.
#[derive(Clone, Debug)]
pub struct Context {
    pub handle: usize,
    pub device: i32,
    fill: usize,
    verify: usize,
    spin: usize,
    pub streams: [usize; STREAMS],
    pub events: [usize; STREAMS],
    /// Eight bytes that kernels count into.
    pub counter: u64,
}

fn need(what: &str, status: u32) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what} gives {status}")) }
}

/// Bytes that each context holds for itself.
pub const OF_CONTEXT: u64 = 8;

impl Context {
    /// The primary context of a device.
    pub fn primary(device: i32) -> Result<Self, String> {
        let mut ctx = null_mut();
        need("cuDevicePrimaryCtxRetain", cu!(cuDevicePrimaryCtxRetain(&mut ctx, device)))?;
        need("cuCtxPushCurrent", cu!(cuCtxPushCurrent_v2(ctx)))?;
        let made = Self::fit_out(ctx as usize, device);
        need("cuCtxPopCurrent", cu!(cuCtxPopCurrent_v2(&mut ctx)))?;
        made
    }

    /// A new one of the first device.
    pub fn own() -> Result<Self, String> {
        let mut ctx = null_mut();
        need("cuCtxCreate", cu!(cuCtxCreate_v4(&mut ctx, null_mut(), 0, 0)))?;
        let made = Self::fit_out(ctx as usize, 0);
        need("cuCtxPopCurrent", cu!(cuCtxPopCurrent_v2(&mut ctx)))?;
        made
    }

    /// With the context current.
    fn fit_out(handle: usize, device: i32) -> Result<Self, String> {
        let (mut module, mut counter) = (null_mut(), 0);
        let image = gpumem_kernels::PTX;
        need("cuModuleLoadData", cu!(cuModuleLoadData(&mut module, image.as_ptr().cast())))?;
        let function = |name: &CStr| -> Result<usize, String> {
            let mut function = null_mut();
            need("cuModuleGetFunction", cu!(cuModuleGetFunction(&mut function, module, name.as_ptr())))?;
            Ok(function as usize)
        };
        let (fill, verify, spin) = (function(c"gpumem_fill")?, function(c"gpumem_verify")?, function(c"gpumem_spin")?);
        need("cuMemAlloc", cu!(cuMemAlloc_v2(&mut counter, OF_CONTEXT as usize)))?;
        let (mut streams, mut events) = ([0; STREAMS], [0; STREAMS]);
        for (i, (s, e)) in streams.iter_mut().zip(&mut events).enumerate() {
            let (mut stream, mut event) = (null_mut(), null_mut());
            if i > 0 {
                need("cuStreamCreate", cu!(cuStreamCreate(&mut stream, u32::from(i > 1))))?;
            }
            need("cuEventCreate", cu!(cuEventCreate(&mut event, 2)))?;
            (*s, *e) = (stream as usize, event as usize);
        }
        let made = Self { handle, device, fill, verify, spin, streams, events, counter };
        // A lazily loaded kernel must not be loaded by its first launch inside a capture.
        need("a launch", made.fill(0, counter, 0, 0))?;
        need("a launch", made.verify(0, counter, 0, 0))?;
        need("a launch", made.spin(0, 1000))?;
        need("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
        Ok(made)
    }

    /// Runs with this context current.
    pub fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        let mut old = null_mut();
        cu!(cuCtxPushCurrent_v2(self.handle as sys::CUcontext));
        let got = run();
        cu!(cuCtxPopCurrent_v2(&mut old));
        got
    }

    pub fn stream(&self, s: usize) -> sys::CUstream {
        self.streams[s % STREAMS] as sys::CUstream
    }

    pub fn event(&self, s: usize) -> sys::CUevent {
        self.events[s % STREAMS] as sys::CUevent
    }

    fn launch(&self, function: usize, stream: usize, params: &mut [*mut c_void]) -> u32 {
        let (function, stream) = (function as sys::CUfunction, self.stream(stream));
        cu!(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params.as_mut_ptr(), null_mut()))
    }

    pub fn fill(&self, s: usize, mut at: u64, mut words: u64, mut value: u32) -> u32 {
        let params = &mut [(&raw mut at).cast(), (&raw mut words).cast(), (&raw mut value).cast()];
        self.launch(self.fill, s, params)
    }

    fn verify(&self, s: usize, mut at: u64, mut words: u64, mut value: u32) -> u32 {
        let mut into = self.counter;
        let params =
            &mut [(&raw mut at).cast(), (&raw mut words).cast(), (&raw mut value).cast(), (&raw mut into).cast()];
        self.launch(self.verify, s, params)
    }

    pub fn spin(&self, s: usize, mut ns: u64) -> u32 {
        let mut done = 0_u64;
        self.launch(self.spin, s, &mut [(&raw mut ns).cast(), (&raw mut done).cast()])
    }

    /// How many of the words are not `value`, counted on the stream.
    pub fn wrong(&self, s: usize, at: u64, words: u64, value: u32) -> Result<u64, String> {
        let mut wrong = u64::MAX;
        need("cuMemsetD32Async", cu!(cuMemsetD32Async(self.counter, 0, 2, self.stream(s))))?;
        need("a launch", self.verify(s, at, words, value))?;
        need("cuStreamSynchronize", cu!(cuStreamSynchronize(self.stream(s))))?;
        let to = (&raw mut wrong).cast();
        need("cuMemcpyDtoH", cu!(cuMemcpyDtoHAsync_v2(to, self.counter, 8, self.stream(s))))?;
        need("cuStreamSynchronize", cu!(cuStreamSynchronize(self.stream(s))))?;
        Ok(wrong)
    }

    /// Functions for another thread's own use.
    pub fn for_thread(&self, stream: sys::CUstream, counter: u64) -> Self {
        Self { streams: [stream as usize; STREAMS], counter, ..self.clone() }
    }
}
