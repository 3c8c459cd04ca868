//! Tools for models of lock-free code: checked atomics, threads and memory.
//!
//! A test of this crate takes a file of the shim by `#[path]` and gives it the atomics of this crate. Under loom the
//! test runs in every order that threads can have, and reads every value that a weak memory may show. Under Miri (`make
//! miri`) it runs as it stands, once for each seed.

#[cfg(not(miri))]
pub use loom::{
    sync::{Arc, Mutex, atomic},
    thread,
};
#[cfg(miri)]
pub use std::{
    sync::{Arc, Mutex, atomic},
    thread,
};

#[cfg(not(miri))]
use loom::cell::UnsafeCell;
#[cfg(miri)]
use std::cell::UnsafeCell;

/// Runs a model. `preemptions`: maximum number of times per run that a runnable thread is interrupted. With more of
/// them runs take longer, and few faults need more than two.
pub fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    #[cfg(not(miri))]
    {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(run);
    }
    #[cfg(miri)]
    {
        let _ = preemptions;
        run();
    }
}

/// Memory that is read and written without atomics. If two threads access it without an order between them, loom and
/// Miri report the race.
#[derive(Debug, Default)]
pub struct Plain<T>(UnsafeCell<T>);

// SAFETY: models run under loom or Miri alone. Both stop at the first access that races, before it is made.
unsafe impl<T: Send> Sync for Plain<T> {}

impl<T: Copy> Plain<T> {
    /// Creates memory with this value.
    pub fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Returns the value.
    pub fn read(&self) -> T {
        #[cfg(not(miri))]
        // SAFETY: loom has looked for a race before it gives the pointer, which is valid for this call.
        return self.0.with(|at| unsafe { *at });
        #[cfg(miri)]
        // SAFETY: Miri looks for a race at the access. The cell is borrowed for this call.
        return unsafe { *self.0.get() };
    }

    /// Sets the value.
    pub fn write(&self, value: T) {
        #[cfg(not(miri))]
        // SAFETY: loom has looked for a race before it gives the pointer, which is valid for this call.
        self.0.with_mut(|at| unsafe { *at = value });
        #[cfg(miri)]
        // SAFETY: Miri looks for a race at the access. The cell is borrowed for this call.
        unsafe {
            *self.0.get() = value;
        }
    }
}

/// Atomics whose loads with `SeqCst` read the last value, as they do among accesses that all have `SeqCst`. With loom's
/// own they may read an older one. A load of another order is loom's own, so a model sees if it is too weak. Stores and
/// exchanges are loom's own: a model does not see if they have `AcqRel` and need `SeqCst`.
#[cfg(not(miri))]
pub mod one_order {
    pub use loom::sync::atomic::{AtomicBool, Ordering, fence};

    use Ordering::{Acquire, SeqCst};

    macro_rules! atomics {
        ($($name:ident $(<$of:ident>)?: $value:ty = $zero:expr;)*) => { $(
            #[derive(Debug, Default)]
            pub struct $name $(<$of>)? (loom::sync::atomic::$name $(<$of>)?);

            impl $(<$of>)? $name $(<$of>)? {
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    match order {
                        // An exchange reads the last value. This one changes none.
                        SeqCst => match self.0.compare_exchange($zero, $zero, Acquire, Acquire) {
                            Ok(value) | Err(value) => value,
                        },
                        order => self.0.load(order),
                    }
                }
            }

            impl $(<$of>)? std::ops::Deref for $name $(<$of>)? {
                type Target = loom::sync::atomic::$name $(<$of>)?;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        )* };
    }
    atomics! {
        AtomicU32: u32 = 0;
        AtomicU64: u64 = 0;
        AtomicPtr<T>: *mut T = std::ptr::null_mut();
    }
}
#[cfg(miri)]
pub use std::sync::atomic as one_order;
