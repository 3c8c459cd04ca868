//! Reads memory on the device for the guard, to find bytes that have changed.
//!
//! A [`Reader`] has a stream of its own with no other work on it, so that its reads do not wait for the program's work,
//! nor the program's work for them. It has pinned memory for answers and, if the module could be loaded, the kernel of
//! `kernels/guard.cu`.
//!
//! Memory is filled and read in two ways. By the device's processors (memset and the kernel), which is fast, but waits
//! if a kernel of the program has all processors. By copies on the copy engines, which are slower, but run beside any
//! kernel. Copied memory is compared here.
//!
//! All calls are made in the context of the memory and with the thread's capture mode relaxed
//! ([`super::memory::MemoryCalls::within`]). Only CUDA has readers: on HIP not all questions about sizes are seen, so
//! that nothing can lie behind an allocation unnoticed.

use super::answer::{done, told};
use super::driver;
use crate::process::own;
use gpumem_abi::types::*;
use std::ffi::{CStr, c_uint};
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::atomic::{AtomicU32, Ordering::Release};

/// `…_PORTABLE | …_DEVICEMAP`.
const MAPPED: u32 = 3;
/// Threads of a block, as in the kernel.
const THREADS: u32 = 256;

/// The kernel, as text with the NUL that the driver needs.
const PTX: &str = concat!(include_str!("../../../kernels/guard.ptx"), "\0");

/// Pinned bytes of a reader, for answers and for copied memory.
pub(crate) const ROOM: usize = 1 << 20;
/// Pinned bytes behind those, with the fill pattern for copies.
const PATTERN: usize = 64 << 10;
/// Bytes behind those for the word that makes a kernel end, on a page of its own.
const CANCEL: usize = 4096;
/// All pinned bytes.
pub(crate) const PINNED: usize = ROOM + PATTERN + CANCEL;

/// Result for a chunk, as the kernel writes it. Offsets are from the start of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Mismatch {
    /// The first byte that differs; all ones: none does.
    pub first: u64,
    /// Behind the last byte that differs.
    pub end: u64,
    pub count: u64,
}

/// Number of answers that a reader has room for.
pub(crate) const ANSWERS: usize = ROOM / size_of::<Mismatch>();

impl Mismatch {
    pub(crate) const NOTHING: Self = Self { first: u64::MAX, end: 0, count: 0 };

    /// Combines two results.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), end: self.end.max(other.end), count: self.count + other.count }
    }

    /// Compares bytes at this offset of the range with `value`.
    pub(crate) fn of(bytes: &[u8], offset: u64, value: u8) -> Self {
        // The usual case, as fast as memory is compared: each byte equals the one before it.
        let (Some(&first), Some(last)) = (bytes.first(), bytes.len().checked_sub(1)) else { return Self::NOTHING };
        if first == value && bytes[1..] == bytes[..last] {
            return Self::NOTHING;
        }
        let others = (offset..).zip(bytes).filter(|&(_, &byte)| byte != value);
        others.fold(Self::NOTHING, |found, (at, _)| found.and(Self { first: at, end: at + 1, count: 1 }))
    }
}

/// Reads memory of one context, one operation after another. Its memory is never freed: it ends with its context.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: usize,
    /// Pinned memory, at one address for host and device.
    room: usize,
    /// 0: memory is copied.
    kernel: usize,
    /// Index of its list of `kernels/scan.cu`, while it may be read.
    pub list: Option<usize>,
}

/// Its context is gone, and its memory with it.
impl Drop for Reader {
    fn drop(&mut self) {
        own::remove(self.room as *const u8, PINNED);
    }
}

impl Reader {
    /// Makes a reader for the current context, without a kernel so far. `value`: the fill byte for copies.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(value: u8) -> Result<Self, Status> {
        let (mut stream, mut host, mut room) = (null_mut(), 0, 0);
        // SAFETY: rule of answers: each call writes a local of the type that its row declares. What was made goes back
        // once if a later call fails.
        unsafe {
            done(driver::cuStreamCreate(&mut stream, STREAM_NON_BLOCKING))?;
            let pinned = done(driver::cuMemHostAlloc(&mut host, PINNED, MAPPED))
                .and_then(|()| done(driver::cuMemHostGetDevicePointer_v2(&mut room, host, 0)))
                // One address for both, as on every 64-bit system.
                .and(if room == host { Ok(()) } else { Err(SYMBOL_NOT_FOUND) });
            pinned.inspect_err(|_| {
                if host != 0 {
                    let _ = driver::cuMemFreeHost(host);
                }
                let _ = driver::cuStreamDestroy_v2(stream);
            })?;
            (room as *mut u8).add(ROOM).write_bytes(value, PATTERN);
        }
        // Its contents are not the program's: addresses to be read, and copies of what refers to others.
        own::add(room as *const u8, PINNED);
        Ok(Self { stream: stream as usize, room: room as usize, kernel: 0, list: None })
    }

    /// Loads the kernel into the current context; returns its handle for [`Reader::has`]. Waits for work that runs
    /// there.
    ///
    /// # Errors
    /// The driver's, for example that it has no compiler for PTX.
    pub(crate) fn load() -> Result<usize, Status> {
        load_kernel(PTX, c"gpumem_guard_verify").map(|(_, function)| function as usize)
    }

    /// Reads by this kernel, of the reader's context, from now on.
    pub(crate) fn has(&mut self, kernel: usize) {
        self.kernel = kernel;
    }

    pub(crate) fn has_kernel(&self) -> bool {
        self.kernel != 0
    }

    pub(super) fn stream(&self) -> Stream {
        self.stream as Stream
    }

    /// Returns the room as numbers. Only while nothing is under way.
    pub(super) fn numbers(&mut self) -> &mut [u64] {
        // SAFETY: the room is this reader's, is aligned to pages and as large. No other thread writes it meanwhile: our
        // callers ask before they begin something, or once all is done.
        unsafe { std::slice::from_raw_parts_mut(self.room as *mut u64, ROOM / 8) }
    }

    /// Returns the word that a kernel checks now and then.
    pub(super) fn cancel_word(&self) -> &AtomicU32 {
        // SAFETY: the word lies behind the pattern, in this reader's memory, which is never freed. It is written
        // through this alone.
        unsafe { &*((self.room + ROOM + PATTERN) as *const AtomicU32) }
    }

    /// Makes a kernel that checks its word end soon; its results are then incomplete.
    pub(crate) fn cancel(&self) {
        self.cancel_word().store(1, Release);
    }

    /// Fills memory, after everything that this reader does.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn fill(&self, addr: u64, bytes: u64, value: u8) -> Result<(), Status> {
        // SAFETY: rule of the pool's memory: the range is of a block, or behind or in front of what the program has of
        // it. The stream is this reader's.
        done(unsafe { driver::cuMemsetD8Async(addr, value, bytes as usize, self.stream()) })
    }

    /// As [`fill`](Self::fill), by copies of the byte given to [`Reader::new`].
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn fill_by_copies(&self, addr: u64, bytes: u64) -> Result<(), Status> {
        let pattern = (self.room + ROOM) as Opaque;
        (0..bytes).step_by(PATTERN).try_for_each(|at| {
            let piece = (bytes - at).min(PATTERN as u64) as usize;
            // SAFETY: rule of the pool's memory, as for `fill`. The pattern has as many bytes, and no code writes it.
            done(unsafe { driver::cuMemcpyHtoDAsync_v2(addr + at, pattern, piece, self.stream()) })
        })
    }

    /// Reads memory with the kernel, after everything that this reader does; `at`: the answer of the first chunk.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn read(&self, addr: u64, bytes: u64, chunk: u64, value: u8, at: usize) -> Result<(), Status> {
        let chunks = bytes.div_ceil(chunk);
        if at as u64 + chunks > ANSWERS as u64 {
            return Err(OUT_OF_MEMORY);
        }
        let (mut addr, mut bytes, mut chunk, mut value) = (addr, bytes, chunk, c_uint::from(value));
        let mut answers = (self.room + at * size_of::<Mismatch>()) as u64;
        let mut params: [Opaque; 5] = [
            from_mut(&mut addr).cast(),
            from_mut(&mut bytes).cast(),
            from_mut(&mut chunk).cast(),
            from_mut(&mut value).cast(),
            from_mut(&mut answers).cast(),
        ];
        let (kernel, params, blocks) = (self.kernel as Opaque, params.as_mut_ptr(), chunks as c_uint);
        // SAFETY: `load` gave the kernel, which has these five parameters, and its module is never unloaded. It reads
        // the range, which the pool keeps until this reader has come to it, and writes an answer for each chunk,
        // for which there is room.
        done(unsafe {
            driver::cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, self.stream(), params, null_mut())
        })
    }

    /// Copies memory, after everything that this reader does: [`ROOM`] bytes at most.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn copy(&self, addr: u64, bytes: usize) -> Result<(), Status> {
        let bytes = bytes.min(ROOM);
        // SAFETY: the pool keeps the memory until this reader has come to it. There is room for it.
        done(unsafe { driver::cuMemcpyDtoHAsync_v2(self.room as Opaque, addr, bytes, self.stream()) })
    }

    /// True if all of its work is done.
    ///
    /// # Errors
    /// The driver's: some of the work failed.
    pub(crate) fn is_done(&self) -> Result<bool, Status> {
        // SAFETY: the stream is this reader's, and its context is held.
        match unsafe { driver::cuStreamQuery(self.stream()) } {
            Some(NOT_READY) => Ok(false),
            status => done(status).map(|()| true),
        }
    }

    /// Returns the answers of `chunks` chunks, once all is done.
    pub(crate) fn answers(&mut self, at: usize, chunks: usize) -> Mismatch {
        let (at, chunks) = (at.min(ANSWERS), chunks.min(ANSWERS - at.min(ANSWERS)));
        // SAFETY: the room is this reader's and as large as all answers. Nothing writes it: all is done. Any bytes are
        // a `Mismatch`.
        let answers = unsafe { std::slice::from_raw_parts((self.room as *const Mismatch).add(at), chunks) };
        answers.iter().copied().fold(Mismatch::NOTHING, Mismatch::and)
    }

    /// Copies the first bytes of a part of the room to the device, after everything that this reader does.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `bytes` bytes from `to` on are memory of this context that only a kernel on this reader's stream reads. `bytes`
    /// bytes lie in the room from `at` on.
    pub(super) unsafe fn copy_in(&self, to: u64, at: usize, bytes: usize) -> Result<(), Status> {
        // SAFETY: our caller vouches for both sides.
        done(unsafe { driver::cuMemcpyHtoDAsync_v2(to, (self.room + at) as Opaque, bytes, self.stream()) })
    }

    /// Returns the copied bytes, once all is done.
    pub(crate) fn copied(&mut self, bytes: usize) -> &[u8] {
        // SAFETY: the room is this reader's, and nothing writes it: all is done.
        unsafe { std::slice::from_raw_parts(self.room as *const u8, bytes.min(ROOM)) }
    }
}

/// Loads a kernel into the current context, from text that ends with a NUL; returns its module and its handle. Waits
/// for work that runs there.
///
/// # Errors
/// The driver's, for example that it has no compiler for PTX.
pub(super) fn load_kernel(ptx: &'static str, name: &CStr) -> Result<(Opaque, Opaque), Status> {
    // SAFETY: rule of answers: each call writes a local of the type that its row declares. Both callers pass text that
    // ends with a NUL, and so does the name.
    unsafe {
        let module = told(|module| driver::cuModuleLoadData(module, ptx.as_ptr().cast_mut().cast()))?;
        told(|function| driver::cuModuleGetFunction(function, module, name.as_ptr())).map(|function| (module, function))
    }
}

/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
const LOCAL_SIZE_BYTES: i32 = 3;

/// Returns a kernel of the current context, in the form that calls about functions take. A launch also accepts kernels
/// of libraries.
///
/// # Safety
/// The driver has just been given a launch of the kernel.
unsafe fn function_of(kernel: Opaque) -> Opaque {
    // SAFETY: rule of answers: `function` takes the handle. Our caller vouches for the kernel, and the call refuses one
    // that is a function already (H100, driver 580: 400).
    told(|function| unsafe { driver::cuKernelGetFunction(function, kernel) }).unwrap_or(kernel)
}

/// Returns the bytes of local memory per thread of a kernel.
///
/// # Safety
/// The driver has just been given a launch of the kernel.
pub(crate) unsafe fn local_bytes(kernel: Opaque) -> Option<u32> {
    // SAFETY: rule of answers: `bytes` takes the number. Our caller vouches for the kernel.
    let bytes = told(|bytes| unsafe { driver::cuFuncGetAttribute(bytes, LOCAL_SIZE_BYTES, function_of(kernel)) });
    u32::try_from(bytes.ok()?).ok()
}

/// Returns a kernel's name, if the driver tells it (12.3 does).
///
/// # Safety
/// The driver has just accepted a launch of the kernel.
pub(crate) unsafe fn name_of(kernel: Opaque) -> Option<String> {
    let mut name = null_mut::<std::ffi::c_char>().cast_const();
    // SAFETY: rule of answers: `name` takes a text that the driver keeps for as long as the kernel is loaded. Our
    // caller vouches for the kernel.
    unsafe {
        done(driver::cuFuncGetName(from_mut(&mut name), function_of(kernel))).ok()?;
        let name = name.as_ref().map(from_ref)?;
        Some(CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_other_is_counted_from_the_start_of_the_range() {
        assert_eq!(Mismatch::of(&[7; 9], 100, 7), Mismatch::NOTHING);
        assert_eq!(Mismatch::of(&[], 100, 7), Mismatch::NOTHING);
        assert_eq!(Mismatch::of(&[8; 3], 100, 7), Mismatch { first: 100, end: 103, count: 3 });
        let found = Mismatch::of(&[7, 1, 7, 7, 2, 7], 100, 7);
        assert_eq!(found, Mismatch { first: 101, end: 105, count: 2 });
        assert_eq!(found.and(Mismatch::of(&[7, 8], 106, 7)), Mismatch { first: 101, end: 108, count: 3 });
    }
}
