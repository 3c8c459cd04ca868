//! Kernels. Each launch is counted as a submission ([`super::submit`]). Its arguments are examined while uses of memory
//! are wanted ([`crate::stranded`]).

use super::{attributes, code};
use crate::backend::{attributes_set, params};
use crate::call::{Call, Real};
use crate::gate;
use crate::guard::{self, LaunchKind};
use crate::progress::activity;
use crate::progress::queries;
use crate::records::driver_memory;
use crate::stranded;
use gpumem_abi::types::*;
use std::ffi::c_uint;

/// Number of words examined together.
const WORDS: usize = 64;

/// The program launches a kernel.
#[inline]
pub(crate) unsafe fn kernel(
    call: Call,
    real: Real<(Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, Opaque, Opaque)>,
) -> Status {
    let (function, .., stream, params, extra) = real.args;
    // SAFETY: `params` and `extra` are this launch's.
    unsafe { launched(&call, function, || stream, params, extra, || real.call()) }
}

/// The program launches a kernel whose blocks work together.
#[inline]
pub(crate) unsafe fn cooperative_kernel(
    call: Call,
    real: Real<(Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, Opaque)>,
) -> Status {
    let (function, .., stream, params) = real.args;
    attributes_set::cooperative();
    // SAFETY: `params` is this launch's, and it has no other parameters.
    unsafe { launched(&call, function, || stream, params, std::ptr::null_mut(), || real.call()) }
}

/// The program launches a kernel with attributes.
#[inline]
pub(crate) unsafe fn kernel_with_attributes(
    call: Call,
    real: Real<(*const LaunchConfig, Opaque, Opaque, Opaque)>,
) -> Status {
    let (config, function, params, extra) = real.args;
    // SAFETY: `config`, `params` and `extra` are this launch's.
    unsafe {
        // Read only after success: by then the driver has read it.
        let stream = || (*config).stream;
        let status = launched(&call, function, stream, params, extra, || real.call());
        // By now the driver has read the description. No graph that may hold the kernel is read before this call ends.
        if status == SUCCESS {
            attributes::launch(config);
        }
        status
    }
}

/// Counts a launch, and examines its arguments if uses are wanted.
///
/// # Safety
/// The arguments are those of the launch.
#[inline(always)]
unsafe fn launched(
    call: &Call,
    function: Opaque,
    stream: impl FnOnce() -> Stream,
    params: Opaque,
    extra: Opaque,
    real: impl Fn() -> Status,
) -> Status {
    stranded::submitted();
    if guard::is_on() {
        // SAFETY: our caller vouches that the arguments are the launch's.
        return unsafe { launched_under_guard(call, function, stream, params, extra, real) };
    }
    let status = match driver_memory::remember_launch(function as u64) {
        false => activity::submit(&real),
        // SAFETY: our caller vouches that the arguments are the launch's.
        true => unsafe { code::around_first_launch(call, function, || activity::submit(&real)) },
    };
    activity::saw(status);
    if stranded::watching() && status == SUCCESS {
        // SAFETY: our caller vouches that the arguments are the launch's. The driver has accepted
        // them, and the program's call is not over yet.
        unsafe { look_at(function, params.cast(), extra.cast(), &mut Vec::new()) };
    }
    status
}

/// As [`launched`], and makes the guard note the launch. It is a separate function, so that launches without a guard do
/// not pay for it.
///
/// # Safety
/// The arguments are those of the launch.
#[cold]
#[inline(never)]
unsafe fn launched_under_guard(
    call: &Call,
    function: Opaque,
    stream: impl FnOnce() -> Stream,
    params: Opaque,
    extra: Opaque,
    real: impl FnOnce() -> Status,
) -> Status {
    let status = activity::submit(real);
    activity::saw(status);
    if status == SUCCESS {
        let mut words = Vec::new();
        // SAFETY: our caller vouches that the arguments are the launch's. The driver has accepted
        // them, and the program's call is not over yet.
        unsafe { look_at(function, params.cast(), extra.cast(), &mut words) };
        guard::note_launch(call, stream(), LaunchKind::Kernel(function), &words);
    }
    status
}

/// Looks for memory in the arguments of an accepted launch. `kept`: receives the words for the guard, if there is one.
///
/// # Safety
/// The arguments are those of the launch.
#[cold]
unsafe fn look_at(function: Opaque, params: *const *const u8, extra: *const usize, kept: &mut Vec<u64>) {
    gate::record_if_started(|shim| {
        let mark = |words: &[u64]| {
            shim.stranded.uses.mark(words);
            if guard::is_on() {
                kept.extend_from_slice(words);
            }
        };
        let mut seen = ArgumentWords { words: [0; WORDS], len: 0, mark };
        // SAFETY: our caller vouches for the launch's arguments. The driver has just read as many
        // parameters of these sizes.
        unsafe {
            if !params.is_null() {
                for (index, &bytes) in
                    params::sizes(function, !queries::capturing()).iter().flat_map(|s| s.iter()).enumerate()
                {
                    seen.bytes(*params.add(index), bytes as usize);
                }
            } else if !extra.is_null() {
                let (buffer, bytes) = packed(extra);
                seen.bytes(buffer, bytes);
            }
        }
        seen.tell();
    });
}

/// Returns the buffer that a list of extra parameters names, and its bytes.
///
/// # Safety
/// A list as `cuLaunchKernel` takes it.
unsafe fn packed(extra: *const usize) -> (*const u8, usize) {
    // SAFETY: our caller vouches for a list as cuLaunchKernel takes it.
    let (buffer, bytes) = unsafe { params::packed(extra) }.unwrap_or((std::ptr::null(), 0));
    (buffer, bytes.min(params::MAX_PARAM_BYTES))
}

/// Words of arguments that may be addresses.
struct ArgumentWords<F: FnMut(&[u64])> {
    words: [u64; WORDS],
    len: usize,
    mark: F,
}

impl<F: FnMut(&[u64])> ArgumentWords<F> {
    /// Adds the words of one argument. Addresses in a struct lie at multiples of eight.
    ///
    /// # Safety
    /// `at` is readable for `bytes` bytes.
    unsafe fn bytes(&mut self, at: *const u8, bytes: usize) {
        if at.is_null() {
            return;
        }
        for offset in (0..bytes / 8).map(|word| word * 8) {
            // SAFETY: not null, and our caller vouches for `bytes` bytes from `at`. Each word lies
            // whole within them.
            let word = unsafe { at.add(offset).cast::<u64>().read_unaligned() };
            if !stranded::may_matter(word) {
                continue;
            }
            if self.len == WORDS {
                self.tell();
            }
            self.words[self.len] = word;
            self.len += 1;
        }
    }

    fn tell(&mut self) {
        if self.len > 0 {
            (self.mark)(&self.words[..self.len]);
        }
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_extra_parameters_names_a_buffer() {
        let (buffer, bytes) = ([1_u64, 2, 3], 24_usize);
        let at = |pointer: *const usize| pointer as usize;
        let list = [EXTRA_BYTES, at(&bytes), EXTRA_BUFFER, buffer.as_ptr() as usize, EXTRA_END];
        // SAFETY: the list is pairs of a name and a value and ends with EXTRA_END. `buffer` and
        // `bytes` are locals that outlive the call.
        assert_eq!(unsafe { packed(list.as_ptr()) }, (buffer.as_ptr().cast(), 24));
        // SAFETY: the list has nothing but the end, so nothing behind it is read.
        assert_eq!(unsafe { packed([EXTRA_END].as_ptr()) }, (std::ptr::null(), 0));
    }
}
