//! Loading the module and launching its kernels, with sizes checked.

use crate::{Kernel, LaunchError, PTX};
use cudarc::driver::{result, result::DriverError, sys};
use std::{ffi::c_void, ops::Range, time::Duration};

/// Maximum time that [`Kernels::spin`] keeps a device busy. The kernel itself stops there too, so that no mistake can
/// hang a GPU.
pub const MAX_SPIN: Duration = Duration::from_secs(2);

const BLOCK: u32 = 256;
// Enough blocks to fill any device; the kernels loop over the rest.
const MAX_GRID: u64 = 1024;

/// A range of 32-bit words that kernels may read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    address: sys::CUdeviceptr,
    len: u64,
}

impl Words {
    /// Names the `len` words at `address`.
    ///
    /// # Errors
    /// `Address` if it is null or not a multiple of 4, `Range` if it wraps.
    ///
    /// # Safety
    /// The words must stay allocated, and accessible to the device in the context of the stream, until every kernel
    /// launched with them is over.
    pub unsafe fn from_raw(address: sys::CUdeviceptr, len: u64) -> Result<Words, LaunchError> {
        if address == 0 || !address.is_multiple_of(4) {
            return Err(LaunchError::Address { address, align: 4 });
        }
        let fits = len.checked_mul(4).and_then(|bytes| address.checked_add(bytes));
        if fits.is_none() {
            return Err(LaunchError::Range { asked: len, have: (u64::MAX - address) / 4 });
        }
        Ok(Words { address, len })
    }

    /// Returns the words of `range`, counted from the first of these.
    ///
    /// # Errors
    /// `Range` if it is not within these.
    pub fn slice(self, range: Range<u64>) -> Result<Words, LaunchError> {
        if range.start > range.end || range.end > self.len {
            return Err(LaunchError::Range { asked: range.end.max(range.start), have: self.len });
        }
        Ok(Words { address: self.address + range.start * 4, len: range.end - range.start })
    }

    /// Returns the address of the first word.
    pub fn address(self) -> sys::CUdeviceptr {
        self.address
    }

    /// Returns the number of words.
    pub fn len(self) -> u64 {
        self.len
    }

    /// True if there are none; kernels then do nothing.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    fn overlaps(self, other: Words) -> bool {
        self.address < other.address + other.len * 4 && other.address < self.address + self.len * 4
    }
}

/// A stream that outlives the launches made on it.
#[derive(Clone, Copy, Debug)]
pub struct Stream(sys::CUstream);

impl Stream {
    /// The null stream of the current context.
    pub const NULL: Stream = Stream(std::ptr::null_mut());

    /// Names a stream of the context in which the kernels were loaded.
    ///
    /// # Safety
    /// `stream` must be a live stream handle for as long as this is used.
    pub const unsafe fn from_raw(stream: sys::CUstream) -> Stream {
        Stream(stream)
    }

    /// Returns the handle.
    pub fn raw(self) -> sys::CUstream {
        self.0
    }
}

/// The kernels, loaded into one context.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    module: sys::CUmodule,
    functions: [sys::CUfunction; 4],
}

// SAFETY: CUDA lets any thread on which the context is current use module and function handles, and
// the driver locks them itself.
unsafe impl Send for Kernels {}
// SAFETY: no method changes the handles, and CUDA lets several threads use them at once.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads [`PTX`] into the current context.
    ///
    /// # Errors
    /// Those of `cuModuleLoadData` and `cuModuleGetFunction`, such as `CUDA_ERROR_INVALID_CONTEXT` if no context is
    /// current.
    pub fn load() -> Result<Kernels, DriverError> {
        // SAFETY: the driver reads PTX up to a NUL byte, and PTX is a constant that ends in one.
        let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) }?;
        let mut functions = [std::ptr::null_mut(); 4];
        for (slot, kernel) in functions.iter_mut().zip(Kernel::ALL) {
            // SAFETY: the call above loaded `module`, and only `unload` ends it.
            *slot = unsafe { result::module::get_function(module, kernel.name().to_owned()) }?;
        }
        Ok(Kernels { module, functions })
    }

    /// Unloads the module.
    ///
    /// # Errors
    /// Those of `cuModuleUnload`.
    ///
    /// # Safety
    /// No kernel of it may still run, nor be launched afterwards, through a copy of this or through a graph.
    pub unsafe fn unload(self) -> Result<(), DriverError> {
        // SAFETY: our caller vouches that no kernel of the module runs or is launched later. `self`
        // is consumed, so the module is unloaded once.
        unsafe { result::module::unload(self.module) }
    }

    /// Returns the function handle, for graph nodes and launches with attributes.
    pub fn function(&self, kernel: Kernel) -> sys::CUfunction {
        self.functions[kernel as usize]
    }

    /// Writes `value` to every word of `dst`.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, stream: Stream, dst: Words, value: u32) -> Result<(), LaunchError> {
        let (mut p, mut n, mut v) = (dst.address, dst.len, value);
        let mut params = [arg(&mut p), arg(&mut n), arg(&mut v)];
        self.launch(Kernel::Fill, stream, dst.len, &mut params)
    }

    /// Adds to the 64-bit counter at `mismatches` how many words of `src` are not `value`. The caller sets the counter
    /// to 0 first.
    ///
    /// # Errors
    /// `Range` if `mismatches` has fewer than two words, `Address` if it is not a multiple of 8, or the driver's.
    pub fn verify(&self, stream: Stream, src: Words, value: u32, mismatches: Words) -> Result<(), LaunchError> {
        if mismatches.len < 2 {
            return Err(LaunchError::Range { asked: 2, have: mismatches.len });
        }
        if !mismatches.address.is_multiple_of(8) {
            return Err(LaunchError::Address { address: mismatches.address, align: 8 });
        }
        let (mut p, mut n, mut v, mut m) = (src.address, src.len, value, mismatches.address);
        let mut params = [arg(&mut p), arg(&mut n), arg(&mut v), arg(&mut m)];
        self.launch(Kernel::Verify, stream, src.len, &mut params)
    }

    /// Writes `src[i] * factor`, modulo 2^32, to `dst[i]`. The two may be the same words.
    ///
    /// # Errors
    /// `Lengths` if they differ, `Overlap` if they share only some words, or the driver's.
    pub fn scale(&self, stream: Stream, dst: Words, src: Words, factor: u32) -> Result<(), LaunchError> {
        if dst.len != src.len {
            return Err(LaunchError::Lengths { dst: dst.len, src: src.len });
        }
        if dst != src && dst.overlaps(src) {
            return Err(LaunchError::Overlap);
        }
        let (mut d, mut s, mut n, mut f) = (dst.address, src.address, dst.len, factor);
        let mut params = [arg(&mut d), arg(&mut s), arg(&mut n), arg(&mut f)];
        self.launch(Kernel::Scale, stream, dst.len, &mut params)
    }

    /// Keeps `stream` busy for `time`, then writes 1 to the first word of `done`.
    ///
    /// # Errors
    /// `SpinTooLong` above [`MAX_SPIN`], `Range` if `done` is empty, or the driver's.
    pub fn spin(&self, stream: Stream, time: Duration, done: Option<Words>) -> Result<(), LaunchError> {
        if time > MAX_SPIN {
            return Err(LaunchError::SpinTooLong { asked: time });
        }
        if done.is_some_and(Words::is_empty) {
            return Err(LaunchError::Range { asked: 1, have: 0 });
        }
        let (mut ns, mut p) = (time.as_nanos() as u64, done.map_or(0, Words::address));
        let mut params = [arg(&mut ns), arg(&mut p)];
        // One thread: a spin must not keep other kernels off the device.
        // SAFETY: the kernel declares two parameters of 8 bytes. `params` points to two locals of 8
        // bytes.
        unsafe { self.launch_raw(Kernel::Spin, stream, (1, 1), &mut params) }
    }

    fn launch(
        &self,
        kernel: Kernel,
        stream: Stream,
        words: u64,
        params: &mut [*mut c_void],
    ) -> Result<(), LaunchError> {
        // An empty grid is an error to the driver; one idle block is not.
        let grid = words.div_ceil(u64::from(BLOCK)).clamp(1, MAX_GRID) as u32;
        // SAFETY: `launch` is private, and each of its callers passes the parameters that `kernel`
        // declares.
        unsafe { self.launch_raw(kernel, stream, (grid, BLOCK), params) }
    }

    /// # Safety
    /// `params` must point to the parameters that `kernel` declares.
    unsafe fn launch_raw(
        &self,
        kernel: Kernel,
        stream: Stream,
        (grid, block): (u32, u32),
        params: &mut [*mut c_void],
    ) -> Result<(), LaunchError> {
        debug_assert_eq!(params.len(), kernel.parameter_sizes().len());
        let function = self.functions[kernel as usize];
        // SAFETY: the function is one of our module. `Stream::from_raw` promises a live stream,
        // `Words::from_raw` live buffers, and our caller vouches for the parameters.
        unsafe { result::launch_kernel(function, (grid, 1, 1), (block, 1, 1), 0, stream.0, params) }?;
        Ok(())
    }
}

fn arg<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(address: u64, len: u64) -> Result<Words, LaunchError> {
        // SAFETY: from_raw asks for memory that a device may use. These tests give the address to
        // no device.
        unsafe { Words::from_raw(address, len) }
    }

    #[test]
    fn words_refuse_what_no_buffer_can_be() {
        assert!(matches!(words(0, 1), Err(LaunchError::Address { .. })));
        assert!(matches!(words(0x1002, 1), Err(LaunchError::Address { .. })));
        assert!(matches!(words(0x1000, u64::MAX), Err(LaunchError::Range { .. })));
        assert!(matches!(words(u64::MAX - 3, 1), Err(LaunchError::Range { .. })));
    }

    #[test]
    fn slices_stay_inside() {
        let w = words(0x1000, 16).unwrap();
        let tail = w.slice(12..16).unwrap();
        assert_eq!((tail.address(), tail.len()), (0x1030, 4));
        assert!(w.slice(16..16).unwrap().is_empty());
        assert!(matches!(w.slice(12..17), Err(LaunchError::Range { .. })));
        assert!(matches!(w.slice(Range { start: 5, end: 4 }), Err(LaunchError::Range { .. })));
    }

    #[test]
    fn launches_are_refused_before_the_driver_is_called() {
        // No driver is needed: each of these fails its check first.
        let k = Kernels { module: std::ptr::null_mut(), functions: [std::ptr::null_mut(); 4] };
        let w = words(0x1000, 16).unwrap();
        let (a, b) = (w.slice(0..8).unwrap(), w.slice(4..12).unwrap());
        assert!(matches!(k.scale(Stream::NULL, a, w, 2), Err(LaunchError::Lengths { .. })));
        assert!(matches!(k.scale(Stream::NULL, a, b, 2), Err(LaunchError::Overlap)));
        let odd = w.slice(1..3).unwrap();
        assert!(matches!(k.verify(Stream::NULL, a, 1, odd), Err(LaunchError::Address { .. })));
        let one = w.slice(0..1).unwrap();
        assert!(matches!(k.verify(Stream::NULL, a, 1, one), Err(LaunchError::Range { .. })));
        let long = MAX_SPIN + Duration::from_nanos(1);
        assert!(matches!(k.spin(Stream::NULL, long, None), Err(LaunchError::SpinTooLong { .. })));
        let none = w.slice(0..0).unwrap();
        let short = Duration::from_millis(1);
        assert!(matches!(k.spin(Stream::NULL, short, Some(none)), Err(LaunchError::Range { .. })));
    }
}
