//! How calls come in: one table row per function. The types for the pointers that a program passes are the engine's
//! ([`gpumem_sim_engine::abi`]).
//!
//! A row reads `need name [twin] (call, arguments) { body }`; the twin is the
//! same function with the calling thread's own default stream (`..._spt`).

use gpumem_sim_engine::errno::KeepErrno;
use gpumem_sim_engine::{Error, Result, context, fault, lifecycle, lock, stream};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use gpumem_sim_engine::abi::{In, Out, Text, bytes_at};
pub use gpumem_sim_engine::handle::H;

thread_local! {
    static LAST: Cell<u32> = const { Cell::new(0) };
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

/// The condition under which a call's body may run.
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

    /// Runs a body. Its answer becomes the thread's last error, success
    /// and "not ready" included (ROCm before 7). No panic leaves it.
    pub fn enter(&self, body: impl FnOnce(&Call) -> Result) -> u32 {
        let _errno = KeepErrno::new();
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

/// The answer of a call of another exported function.
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
            gpumem_sim_engine::api_function!($name $args $body hip!(@row $need $name false));
            $(gpumem_sim_engine::api_twin!($name $twin $args hip!(@row $need $twin true));)?
        )*
        pub static ROWS: &[&$crate::abi::Row] = &[$(&$name::ROW, $(&$twin::ROW,)?)*];
    };
    (@row $need:ident $name:ident $twin:literal) => {
        crate::abi::Row::new(stringify!($name), $twin, crate::abi::Need::$need)
    };
}
