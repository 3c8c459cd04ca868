//! How calls come in: one table row per function, and types for the pointers
//! that a program passes.
//!
//! A row reads `need name [twin] (call, arguments) { body }`; the twin is the
//! same function with the calling thread's own default stream (`..._spt`).
//!
//! # Safety rule
//! - **The API's pointers**: whoever calls a function of the API passes pointers that the reference of the real
//!   library allows: NULL, or valid for the call, with as many elements as an argument says. The types [`Out`],
//!   [`In`] and [`Text`] hold such a pointer: an argument, or one that an argument leads to.

use gpumem_sim_engine::{Error, Result, context, fault, lifecycle, lock, stream};
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use gpumem_sim_engine::handle::H;

thread_local! {
    static LAST: Cell<u32> = const { Cell::new(0) };
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

/// What must hold before a call may do anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing, not even a device.
    Any,
    /// A device. Without one, HIP answers 101 (libamdhip64 5.2.3, no GPU).
    Init,
    /// The context of the thread's device, which HIP makes when it needs it.
    Ctx,
}

pub struct Row {
    pub name: &'static str,
    per_thread: bool,
    need: Need,
    calls: AtomicU64,
}

impl Row {
    pub const fn new(name: &'static str, per_thread: bool, need: Need) -> Row {
        Row { name, per_thread, need, calls: AtomicU64::new(0) }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn admit(&self) -> Result<H> {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        if self.need != Need::Any {
            init()?;
        }
        fault::strike(self.name, call)?;
        if self.need == Need::Ctx { current() } else { Ok(0) }
    }

    /// Runs a body; what it answers becomes the thread's last error, success
    /// and "not ready" too (ROCm before 7). Nothing unwinds out of it.
    pub fn enter(&self, body: impl FnOnce(&Call) -> Result) -> u32 {
        let run = || {
            let ctx = self.admit()?;
            body(&Call { ctx, per_thread: self.per_thread })
        };
        let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(Ok(())) => 0,
            Ok(Err(e)) => e.0,
            Err(_) => {
                gpumem_sim_engine::report::violation("simulator_panic", self.name);
                Error::UNKNOWN.0
            }
        };
        LAST.set(code);
        code
    }
}

fn init() -> Result {
    match lifecycle::init() {
        Err(Error::NO_DEVICE) => Err(Error::INVALID_DEVICE),
        other => other,
    }
}

/// The last error, and none afterwards if `take`.
pub fn last_error(take: bool) -> u32 {
    if take { LAST.replace(0) } else { LAST.get() }
}

pub fn device() -> i32 {
    DEVICE.get()
}

pub fn set_device(n: i32) {
    DEVICE.set(n);
}

/// The context of the thread's device, made if need be and current now.
pub fn current() -> Result<H> {
    let n = device();
    let (_, active) = context::primary_state(n)?;
    let ctx = if active { lock().devices[n as usize].primary } else { context::retain_primary(n)? };
    if context::current() != Some(ctx) {
        context::set_current(ctx)?;
    }
    context::require(&mut lock())
}

/// What a call of another exported function answered.
pub fn answer(code: u32) -> Result {
    if code == 0 { Ok(()) } else { Err(Error(code)) }
}

/// One call in progress.
pub struct Call {
    /// The thread's context; 0 for rows that need none.
    pub ctx: H,
    per_thread: bool,
}

impl Call {
    /// The stream that the caller means; its default stream depends on which
    /// twin of the function was called.
    pub fn stream(&self, h: H) -> Result<H> {
        if h > stream::PER_THREAD {
            let mut m = lock();
            let s = stream::resolve(&mut m, 0, h)?;
            let ctx = m.stream(s)?.ctx;
            context::check(&mut m, ctx)?;
            return Ok(s);
        }
        let ctx = if self.ctx != 0 { self.ctx } else { current()? };
        let h = if h == 0 && self.per_thread { stream::PER_THREAD } else { h };
        stream::resolve(&mut lock(), ctx, h)
    }
}

macro_rules! hip {
    ($(
        $(#[$doc:meta])*
        $need:ident $name:ident [$($twin:ident)?] $args:tt $body:block
    )*) => {
        $(
            hip!(@first $need $name $args $body);
            $(hip!(@twin $need $name $twin $args);)?
        )*
        pub static ROWS: &[&$crate::abi::Row] = &[$(&$name::ROW, $(&$twin::ROW,)?)*];
    };
    (@first $need:ident $name:ident ($c:ident $(, $a:ident : $t:ty)* $(,)?) $body:block) => {
        #[allow(non_snake_case)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[allow(clippy::too_many_arguments)]
            pub(super) fn body($c: &$crate::abi::Call $(, $a: $t)*) -> gpumem_sim_engine::Result {
                let _ = $c;
                $body
            }
            pub(super) static ROW: $crate::abi::Row =
                $crate::abi::Row::new(stringify!($name), false, $crate::abi::Need::$need);
        }
        hip!(@export $name $name ($c $(, $a : $t)*));
    };
    (@twin $need:ident $first:ident $name:ident $args:tt) => {
        #[allow(non_snake_case)]
        mod $name {
            pub(super) static ROW: $crate::abi::Row =
                $crate::abi::Row::new(stringify!($name), true, $crate::abi::Need::$need);
        }
        hip!(@export $first $name $args);
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

    pub fn at(address: usize) -> Out<T> {
        Out(address as *mut T)
    }

    /// The same place for another type.
    pub fn cast<U>(other: Out<U>) -> Out<T> {
        Out(other.0.cast())
    }
}

/// What the caller points at.
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
