//! How calls come in: one table row per function, and types for the pointers
//! that a program passes.
//!
//! A row reads `need base [symbol since, ...] [per-thread symbol since, ...]
//! (call, arguments) { body }`: `base` is what cuGetProcAddress is asked for,
//! `since` the version from which that symbol is the answer. The per-thread
//! symbols are the same function with the calling thread's own default stream.
//!
//! # Safety rule
//! - **The API's pointers**: whoever calls a function of the API passes pointers that the reference of the real
//!   library allows: NULL, or valid for the call, with as many elements as an argument says. The types [`Out`],
//!   [`In`] and [`Text`] hold such a pointer: an argument, or one that an argument leads to.

use gpumem_sim_engine::{Error, Result, context, fault, lifecycle, lock, stream};
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use gpumem_sim_engine::handle::H;

/// What must hold before a call may do anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing, not even cuInit.
    Any,
    /// cuInit.
    Init,
    /// A current context without a sticky error.
    Ctx,
}

pub struct Row {
    pub name: &'static str,
    pub base: &'static str,
    pub since: u32,
    pub per_thread: bool,
    pub address: fn() -> usize,
    need: Need,
    calls: AtomicU64,
}

impl Row {
    pub const fn new(
        name: &'static str,
        base: &'static str,
        since: u32,
        per_thread: bool,
        need: Need,
        address: fn() -> usize,
    ) -> Row {
        Row { name, base, since, per_thread, address, need, calls: AtomicU64::new(0) }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn admit(&self) -> Result<H> {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        if self.need != Need::Any {
            lifecycle::ready()?;
        }
        fault::strike(self.name, call)?;
        if self.need == Need::Ctx { context::require(&mut lock()) } else { Ok(0) }
    }

    /// Runs a body. Nothing unwinds out of it.
    pub fn enter(&self, body: impl FnOnce(&Call) -> Result) -> u32 {
        let run = || {
            let ctx = self.admit()?;
            body(&Call { ctx, per_thread: self.per_thread })
        };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(Ok(())) => 0,
            Ok(Err(e)) => e.0,
            Err(_) => {
                gpumem_sim_engine::report::violation("simulator_panic", self.name);
                Error::UNKNOWN.0
            }
        }
    }
}

/// One call in progress.
pub struct Call {
    /// The current context; 0 for rows that need none.
    pub ctx: H,
    per_thread: bool,
}

impl Call {
    /// The stream that the caller means; its default stream depends on which
    /// twin of the function was called.
    pub fn stream(&self, h: H) -> Result<H> {
        let h = if h == 0 && self.per_thread { stream::PER_THREAD } else { h };
        let mut m = lock();
        if h > stream::PER_THREAD {
            let s = stream::resolve(&mut m, 0, h)?;
            let ctx = m.stream(s)?.ctx;
            context::check(&mut m, ctx)?;
            return Ok(s);
        }
        let ctx = if self.ctx != 0 { self.ctx } else { context::require(&mut m)? };
        stream::resolve(&mut m, ctx, h)
    }
}

macro_rules! cu {
    ($(
        $(#[$doc:meta])*
        $need:ident $base:ident [$first:ident $first_since:literal $(, $name:ident $since:literal)*]
        [$($twin:ident $twin_since:literal),*] $args:tt $body:block
    )*) => {
        $(
            cu!(@first $need $base $first $first_since $args $body);
            $(cu!(@other $need $base $first $name $since false $args);)*
            $(cu!(@other $need $base $first $twin $twin_since true $args);)*
        )*
        pub static ROWS: &[&$crate::abi::Row] = &[
            $(&$first::ROW, $(&$name::ROW,)* $(&$twin::ROW,)*)*
        ];
    };
    (@first $need:ident $base:ident $name:ident $since:literal
        ($c:ident $(, $a:ident : $t:ty)* $(,)?) $body:block) => {
        #[allow(non_snake_case)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[allow(clippy::too_many_arguments)]
            pub(super) fn body(
                $c: &$crate::abi::Call
                $(, $a: $t)*
            ) -> gpumem_sim_engine::Result {
                let _ = $c;
                $body
            }
            cu!(@row $need $base $name $since false);
        }
        cu!(@export $name $name ($c $(, $a : $t)*));
    };
    (@other $need:ident $base:ident $first:ident $name:ident $since:literal $pt:literal $args:tt) => {
        #[allow(non_snake_case)]
        mod $name {
            cu!(@row $need $base $name $since $pt);
        }
        cu!(@export $first $name $args);
    };
    (@row $need:ident $base:ident $name:ident $since:literal $pt:literal) => {
        pub(super) static ROW: $crate::abi::Row = $crate::abi::Row::new(
            stringify!($name),
            stringify!($base),
            $since,
            $pt,
            $crate::abi::Need::$need,
            || super::$name as *const () as usize,
        );
    };
    (@export $first:ident $name:ident ($c:ident $(, $a:ident : $t:ty)* $(,)?)) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, non_snake_case)]
        pub extern "C" fn $name($($a: $t),*) -> u32 {
            $name::ROW.enter(|call| $first::body(call $(, $a)*))
        }
    };
}

/// Where a result goes. NULL gives 1.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

// Copies of a pointer: taking `self` by value is the point.
#[allow(clippy::wrong_self_convention)]
impl<T> Out<T> {
    pub fn set(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        self.put(value);
        Ok(())
    }

    /// For optional results: NULL is passed over.
    pub fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null. By the rule of the API's pointers the caller's pointer takes one
            // `T`, aligned or not.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Fails early, before anything is done that would have to be undone.
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
}

/// What the caller points at.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T>(*const T);

#[allow(clippy::wrong_self_convention)]
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
}

impl<T> Out<T> {
    pub fn at(address: usize) -> Out<T> {
        Out(address as *mut T)
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

impl<T> Out<T> {
    /// The same place for another type.
    pub fn cast<U>(other: Out<U>) -> Out<T> {
        Out(other.0.cast())
    }
}

impl<T> In<T> {
    /// The same place read as another type.
    pub fn cast<U>(other: In<U>) -> In<T> {
        In(other.0.cast())
    }
}
