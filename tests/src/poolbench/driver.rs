//! The driver functions that a replay needs, looked up as a program looks them up, and the driver's own count of memory
//! in use.

use super::elf::own_entry;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

type Address = u64;
type AllocAsync = unsafe extern "C" fn(*mut Address, usize, *mut c_void) -> c_int;
type FreeAsync = unsafe extern "C" fn(Address, *mut c_void) -> c_int;

/// Functions of the CUDA driver, with the first device's primary context current.
pub struct Driver {
    alloc: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    free: unsafe extern "C" fn(Address) -> c_int,
    /// The stream-ordered functions, if the replay uses those instead.
    in_order: Option<(AllocAsync, FreeAsync)>,
    synchronize: unsafe extern "C" fn() -> c_int,
    /// The driver's own function, past every hook, because a hooked one counts kept memory as free.
    info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    stream: *mut c_void,
    baseline: u64,
    hooked: bool,
}

/// How allocations are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `cuMemAlloc`, `cuMemFree`.
    Plain,
    /// `cuMemAllocAsync`, `cuMemFreeAsync` on one stream, from a pool that gives nothing back.
    Async,
}

fn need(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what} gives {code}")) }
}

/// The function `name` of the loaded `library`, as type `F`.
///
/// # Safety
/// `library` is a handle of dlopen that is open, and `F` is the function's type.
unsafe fn symbol<F>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    // SAFETY: our caller vouches that the library is open, and `name` is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("the driver has no {}", name.to_string_lossy()));
    }
    // SAFETY: our caller vouches that `F` is the function's type. A function pointer has the size
    // of `found`.
    Ok(unsafe { transmute_copy(&found) })
}

/// Sets the driver's memory pool up as RMM does: it keeps all memory.
fn keep_everything(library: *mut c_void, device: c_int) -> Result<(), String> {
    const RELEASE_THRESHOLD: c_int = 4;
    type Pool = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
    type Set = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
    let (mut pool, mut all) = (null_mut(), u64::MAX);
    // SAFETY: the types are those of cuda.h for these names. `pool` and `all` are locals, and the
    // attribute takes a u64.
    unsafe {
        need("cuDeviceGetDefaultMemPool", symbol::<Pool>(library, c"cuDeviceGetDefaultMemPool")?(&mut pool, device))?;
        let set = symbol::<Set>(library, c"cuMemPoolSetAttribute")?;
        need("cuMemPoolSetAttribute", set(pool, RELEASE_THRESHOLD, (&raw mut all).cast()))
    }
}

impl Driver {
    /// Opens the driver that the loader finds.
    ///
    /// # Errors
    /// Says what is missing, or which call gave what.
    pub fn open(way: Way) -> Result<Self, String> {
        // SAFETY: the name is a literal that ends in NUL. NVIDIA makes libcuda's initialisers fit
        // for any program.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() {
            return Err("libcuda.so.1 cannot be opened".into());
        }
        type Init = unsafe extern "C" fn(c_uint) -> c_int;
        type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type Current = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Stream = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
        // SAFETY: the types are those of cuda.h for these names, and outputs are locals. `own`
        // finds a function's address, which has a function pointer's size.
        unsafe {
            let (mut device, mut context, mut stream) = (0, null_mut(), null_mut());
            need("cuInit", symbol::<Init>(library, c"cuInit")?(0))?;
            need("cuDeviceGet", symbol::<Get>(library, c"cuDeviceGet")?(&mut device, 0))?;
            let retain = symbol::<Retain>(library, c"cuDevicePrimaryCtxRetain")?;
            need("cuDevicePrimaryCtxRetain", retain(&mut context, device))?;
            need("cuCtxSetCurrent", symbol::<Current>(library, c"cuCtxSetCurrent")?(context))?;
            need("cuStreamCreate", symbol::<Stream>(library, c"cuStreamCreate")?(&mut stream, 1))?;
            let alloc: unsafe extern "C" fn(*mut Address, usize) -> c_int = symbol(library, c"cuMemAlloc_v2")?;
            let in_order = if way == Way::Async {
                keep_everything(library, device)?;
                Some((symbol(library, c"cuMemAllocAsync")?, symbol(library, c"cuMemFreeAsync")?))
            } else {
                None
            };
            let own =
                |name: &CStr| own_entry("libcuda.so", name).ok_or(format!("the driver has no {name:?} of its own"));
            let info = own(c"cuMemGetInfo_v2")?;
            let mut driver = Self {
                alloc,
                free: symbol(library, c"cuMemFree_v2")?,
                in_order,
                synchronize: symbol(library, c"cuCtxSynchronize")?,
                info: transmute_copy(&info),
                stream,
                baseline: 0,
                hooked: alloc as usize != own(c"cuMemAlloc_v2")?,
            };
            let first = driver.take(1)?;
            driver.give(first)?;
            driver.baseline = driver.used()?;
            Ok(driver)
        }
    }

    /// How it allocates.
    #[must_use]
    pub fn way(&self) -> Way {
        if self.in_order.is_some() { Way::Async } else { Way::Plain }
    }

    /// True if calls go through a preloaded library.
    #[must_use]
    pub fn hooked(&self) -> bool {
        self.hooked
    }

    /// Allocates.
    ///
    /// # Errors
    /// Says which call gave what.
    pub fn take(&self, bytes: u64) -> Result<Address, String> {
        let mut address = 0;
        // SAFETY: `open` gave the functions the types that cuda.h has. `address` is a local, and
        // the stream is never destroyed.
        let code = unsafe {
            match self.in_order {
                None => (self.alloc)(&mut address, bytes as usize),
                Some((alloc, _)) => alloc(&mut address, bytes as usize, self.stream),
            }
        };
        if code == 0 { Ok(address) } else { Err(format!("allocating {bytes} bytes gives {code}")) }
    }

    /// Frees what [`Self::take`] gave.
    ///
    /// # Errors
    /// Says which call gave what.
    pub fn give(&self, address: Address) -> Result<(), String> {
        // SAFETY: the functions take an address as a number, and answer with an error for one that
        // is not allocated. The stream is never destroyed.
        let code = unsafe {
            match self.in_order {
                None => (self.free)(address),
                Some((_, free)) => free(address, self.stream),
            }
        };
        need("a free", code)
    }

    /// Waits for the device.
    ///
    /// # Errors
    /// Says what the call gave.
    pub fn synchronize(&self) -> Result<(), String> {
        // SAFETY: cuCtxSynchronize takes no arguments, and `open` gave it the type that cuda.h has.
        need("cuCtxSynchronize", unsafe { (self.synchronize)() })
    }

    /// Bytes that the device has given since this was opened.
    pub fn reserved(&self) -> Result<u64, String> {
        Ok(self.used()?.saturating_sub(self.baseline))
    }

    fn used(&self) -> Result<u64, String> {
        let (mut left, mut total) = (0, 0);
        // SAFETY: cuMemGetInfo writes two sizes, and `left` and `total` are locals with room for
        // them.
        need("cuMemGetInfo", unsafe { (self.info)(&mut left, &mut total) })?;
        Ok((total - left) as u64)
    }
}
