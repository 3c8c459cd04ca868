//! How calls come in: one table row per function. The types for the pointers that a program passes are the engine's
//! ([`gpumem_sim_engine::abi`]).
//!
//! A row reads `need base [symbol since, ...] [per-thread symbol since, ...]
//! (call, arguments) { body }`: `base` is what cuGetProcAddress is asked for,
//! `since` the version from which that symbol is the answer. The per-thread
//! symbols are the same function with the calling thread's own default stream.

use gpumem_sim_engine::checkpoint::{self, gate::Inside};
use gpumem_sim_engine::errno::KeepErrno;
use gpumem_sim_engine::{Error, Result, context, fault, lifecycle, lock, stream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use gpumem_sim_engine::abi::{In, Out, Text, bytes_at};
pub use gpumem_sim_engine::handle::H;

/// Condition that must hold before a call may do anything.
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

    /// Lets a call in: its context, and its stay inside.
    fn admit(&self) -> Result<(H, Option<Inside>)> {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        let ready = lifecycle::ready();
        let inside = if ready.is_ok() { checkpoint::gate::enter(self.base)? } else { None };
        if self.need != Need::Any {
            ready?;
        }
        fault::strike(self.name, call)?;
        let ctx = if self.need == Need::Ctx { context::require(&mut lock())? } else { 0 };
        Ok((ctx, inside))
    }

    /// Runs a body. Nothing unwinds out of it.
    pub fn enter(&self, body: impl FnOnce(&Call) -> Result) -> u32 {
        let _errno = KeepErrno::new();
        let run = || {
            let (ctx, _inside) = self.admit()?;
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
            gpumem_sim_engine::api_function!($first $args $body cu!(@row $need $base $first $first_since false));
            $(gpumem_sim_engine::api_twin!($first $name $args cu!(@row $need $base $name $since false));)*
            $(gpumem_sim_engine::api_twin!($first $twin $args cu!(@row $need $base $twin $twin_since true));)*
        )*
        pub static ROWS: &[&$crate::abi::Row] = &[
            $(&$first::ROW, $(&$name::ROW,)* $(&$twin::ROW,)*)*
        ];
    };
    (@row $need:ident $base:ident $name:ident $since:literal $per_thread:literal) => {
        crate::abi::Row::new(
            stringify!($name),
            stringify!($base),
            $since,
            $per_thread,
            crate::abi::Need::$need,
            || super::$name as *const () as usize,
        )
    };
}
