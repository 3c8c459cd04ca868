//! The common parts of the simulated APIs: the pointers that a program passes, the structs that CUDA and HIP declare
//! alike, and the way from an exported function to its row.
//!
//! # Safety rule
//! - **The API's pointers**: whoever calls a function of an API passes pointers that the reference of the real
//!   library allows: NULL, or valid for the call, with as many elements as an argument says. The types [`Out`],
//!   [`In`] and [`Text`] hold such a pointer: an argument, or one that an argument leads to.

use crate::{Error, Result};
use std::ffi::{CStr, c_char};

/// The first function of a row: a module with its body and its row, and the exported function. The types
/// `Call` and `Row` are those of the calling simulator's own module `abi`.
#[allow(clippy::crate_in_macro_def)]
#[macro_export]
macro_rules! api_function {
    ($name:ident ($c:ident $(, $a:ident : $t:ty)* $(,)?) $body:block $row:expr) => {
        #[allow(non_snake_case)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[allow(clippy::too_many_arguments)]
            pub(super) fn body($c: &crate::abi::Call $(, $a: $t)*) -> $crate::Result {
                let _ = $c;
                $body
            }
            pub(super) static ROW: crate::abi::Row = $row;
        }
        $crate::api_export!($name $name ($c $(, $a : $t)*));
    };
}

/// A further function of a row, which has the body of the first one.
#[allow(clippy::crate_in_macro_def)]
#[macro_export]
macro_rules! api_twin {
    ($first:ident $name:ident $args:tt $row:expr) => {
        #[allow(non_snake_case)]
        mod $name {
            pub(super) static ROW: crate::abi::Row = $row;
        }
        $crate::api_export!($first $name $args);
    };
}

/// The exported function `name`, which runs the body of `first`.
#[macro_export]
macro_rules! api_export {
    ($first:ident $name:ident ($c:ident $(, $a:ident : $t:ty)* $(,)?)) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, non_snake_case)]
        pub extern "C" fn $name($($a: $t),*) -> u32 {
            $name::ROW.enter(|call| $first::body(call $(, $a)*))
        }
    };
}

/// The functions that tests look up in a simulated library. `rows` gives all rows of the crate, `more` the number of a
/// name that only this library has.
#[macro_export]
macro_rules! test_functions {
    ($rows:ident, $more:expr) => {
        /// For tests: how many violations there were in this process.
        #[unsafe(no_mangle)]
        pub extern "C" fn sim_violations() -> u64 {
            $crate::report::violations()
        }

        /// For tests: a number by name. The name of a function gives its calls (`cuMemAlloc_v2`), those that the
        /// library itself made included. Other names are listed in the engine's `machine::stat`. Unknown names give 0.
        ///
        /// # Safety
        /// `name` is a NUL-terminated string.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn sim_stat(name: *const std::ffi::c_char) -> u64 {
            let Ok(name) = $crate::abi::Text(name).get() else {
                return 0;
            };
            if let Some(row) = $rows().find(|row| row.name == name) {
                return row.calls();
            }
            if name == "driver_calls" {
                return $rows().map(|row| row.calls()).sum();
            }
            let more: fn(&str) -> Option<u64> = $more;
            more(&name).or_else(|| $crate::machine::stat(&name)).unwrap_or_else(|| $crate::report::counted(&name))
        }

        /// For tests: an allocation of the program has returned. See the engine's `note`.
        #[unsafe(no_mangle)]
        pub extern "C" fn sim_note_alloc(ptr: u64, bytes: u64) {
            $crate::note::alloc(ptr, bytes);
        }

        /// For tests: the program is about to free this.
        #[unsafe(no_mangle)]
        pub extern "C" fn sim_note_free(ptr: u64) {
            $crate::note::free(ptr);
        }

        /// For tests: that free has returned `status`; `strict` if it has cuMemFree's barrier.
        #[unsafe(no_mangle)]
        pub extern "C" fn sim_note_freed(ptr: u64, status: u32, strict: i32) {
            $crate::note::freed(ptr, status, strict != 0);
        }
    };
}

/// Address that takes a result. NULL gives 1.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub fn set(self, value: T) -> Result {
        self.need()?.put(value);
        Ok(())
    }

    /// Writes an optional result. NULL is skipped.
    pub fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null. By the rule of the API's pointers the caller's pointer takes one
            // `T`, aligned or not.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Fails before the call does anything that would have to be undone.
    pub fn need(self) -> Result<Self> {
        if self.0.is_null() { Err(Error::INVALID_VALUE) } else { Ok(self) }
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn get(self) -> Result<T> {
        In(self.0.cast_const()).get()
    }

    /// Writes as many as there are, up to `n`.
    pub fn fill(self, n: usize, values: impl IntoIterator<Item = T>) {
        for (i, v) in values.into_iter().take(n).enumerate() {
            // SAFETY: by the rule of the API's pointers the caller's array takes `n` elements, and
            // `take` writes no more.
            unsafe { self.0.add(i).write_unaligned(v) }
        }
    }

    pub fn at(address: usize) -> Out<T> {
        Out(address as *mut T)
    }

    /// The same place for another type.
    pub fn cast<U>(other: Out<U>) -> Out<T> {
        Out(other.0.cast())
    }
}

/// The value that a pointer of the caller's points to.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    pub fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null. By the rule of the API's pointers it leads to one valid `T`, aligned or
        // not.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn list(self, n: usize) -> Result<Vec<T>> {
        if n == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null. By the rule of the API's pointers the array has `n` valid elements.
        Ok((0..n).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }

    pub fn at(address: usize) -> In<T> {
        In(address as *const T)
    }

    /// The same place read as another type.
    pub fn cast<U>(other: In<U>) -> In<T> {
        In(other.0.cast())
    }
}

/// A NUL-terminated string of the caller's.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(pub *const c_char);

impl Text {
    pub fn get(self) -> Result<String> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null. By the rule of the API's pointers the string ends in NUL and lives
        // during the call.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// `n` bytes at an address that the caller gave.
pub fn bytes_at(address: usize, n: usize) -> Vec<u8> {
    let mut out = vec![0; n];
    // SAFETY: by the rule of the API's pointers a parameter's value has the `n` bytes that the
    // kernel declares. `out` is a new buffer of `n` bytes.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), n) };
    out
}

/// `CUmemLocation`, `hipMemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemAccessDesc`, `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: u32,
}

/// `CUmemPoolProps`, `hipMemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProps {
    pub alloc_type: u32,
    pub handle_types: u32,
    pub location: Location,
    pub security: usize,
    pub max_size: usize,
    pub rest: [u8; 56],
}

/// `CUmemAllocationProp`, `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProp {
    pub alloc_type: u32,
    pub handle_types: u32,
    pub location: Location,
    pub security: usize,
    pub flags: [u8; 8],
}

/// `CUDA_ARRAY_DESCRIPTOR`, `HIP_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayDesc {
    pub width: usize,
    pub height: usize,
    pub format: u32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`, `HIP_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3DDesc {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}
