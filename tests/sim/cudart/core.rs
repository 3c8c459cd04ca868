//! How runtime calls come in: the lazy context, the last error, the table.

use super::driver::{P, Result, Rt, driver};
use std::cell::Cell;
use std::sync::Mutex;

pub const INVALID_VALUE: u32 = 1;
pub const INITIALIZATION_ERROR: u32 = 3;
pub const INVALID_DEVICE: u32 = 101;
pub const UNKNOWN: u32 = 999;

thread_local! {
    static LAST: Cell<u32> = const { Cell::new(0) };
    static DEVICE: Cell<i32> = const { Cell::new(0) };
    static PUT_OFF: Cell<bool> = const { Cell::new(false) };
}

/// The state that a function needs before its body runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing at all.
    Any,
    /// The driver, initialised.
    Init,
    /// A current context: the device's primary one if there is none.
    Ctx,
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

/// Chooses a device for the next call that needs a context, as runtimes before 12 do.
pub fn set_device_later(n: i32) {
    DEVICE.set(n);
    PUT_OFF.set(true);
}

/// Primary contexts that this runtime retains, by device.
static RETAINED: Mutex<Vec<Option<P>>> = Mutex::new(Vec::new());

/// Forgets a device's context after a reset.
pub fn forget(n: i32) {
    let mut list = RETAINED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(slot) = list.get_mut(n as usize) {
        *slot = None;
    }
}

/// The device's primary context, retained once.
pub fn primary(rt: Rt, n: i32) -> Result<P> {
    let mut list = RETAINED.lock().unwrap_or_else(|e| e.into_inner());
    let at = usize::try_from(n).map_err(|_| INVALID_DEVICE)?;
    if let Some(Some(ctx)) = list.get(at) {
        return Ok(*ctx);
    }
    let mut ctx: P = 0;
    rt.cuDevicePrimaryCtxRetain(&raw mut ctx as P, n)?;
    if list.len() <= at {
        list.resize(at + 1, None);
    }
    list[at] = Some(ctx);
    Ok(ctx)
}

fn init(rt: Rt) -> Result {
    match rt.cuInit(0) {
        Err(3) => Err(INITIALIZATION_ERROR),
        other => other,
    }
}

/// Makes a context current if none is.
fn ensure_context(rt: Rt) -> Result {
    if PUT_OFF.replace(false) {
        rt.cuCtxSetCurrent(primary(rt, DEVICE.get())?)?;
    }
    let mut now: P = 0;
    rt.cuCtxGetCurrent(&raw mut now as P)?;
    if now != 0 {
        // A primary context that was reset must be retained again.
        let mut active = 1i32;
        let mut flags = 0u32;
        let n = DEVICE.get();
        rt.cuDevicePrimaryCtxGetState(n, &raw mut flags as P, &raw mut active as P)?;
        if active != 0 {
            return Ok(());
        }
        forget(n);
        return if primary(rt, n)? == now { Ok(()) } else { rt.cuCtxSetCurrent(primary(rt, n)?) };
    }
    let ctx = primary(rt, DEVICE.get())?;
    rt.cuCtxSetCurrent(ctx)
}

/// Runs a body; its error becomes the thread's last error.
pub fn enter(need: Need, per_thread: bool, body: impl FnOnce(Rt) -> Result) -> u32 {
    let _errno = super::errno::KeepErrno::new();
    let run = || {
        let rt = Rt { driver: driver()?, per_thread };
        if need != Need::Any {
            init(rt)?;
        }
        if need == Need::Ctx {
            ensure_context(rt)?;
        }
        body(rt)
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    let code = match result {
        Ok(Ok(())) => 0,
        Ok(Err(e)) => e,
        Err(_) => UNKNOWN,
    };
    if code != 0 {
        LAST.set(code);
    }
    code
}

/// One row per runtime function: what it needs, its name, its per-thread twin,
/// its arguments and its body.
macro_rules! rt {
    ($($need:ident $name:ident [$($twin:ident)?] $args:tt $body:block)*) => {
        $(
            rt!(@export $need $name false $args $body);
            $(rt!(@export $need $twin true $args $body);)?
        )*
    };
    (@export $need:ident $name:ident $per_thread:literal
        ($rt:ident $(, $a:ident: $t:ty)*) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub extern "C" fn $name($($a: $t),*) -> u32 {
            let need = $crate::cudart::core::Need::$need;
            $crate::cudart::core::enter(need, $per_thread, |$rt| {
                let _ = $rt;
                $body
            })
        }
    };
}

/// Reads the value that the program's pointer points to; NULL gives 1.
pub fn read<T: Copy>(p: P) -> Result<T> {
    if p == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null. The runtime's API has the caller pass a pointer to a valid `T`, aligned or
    // not.
    Ok(unsafe { (p as *const T).read_unaligned() })
}

/// Writes a value to the program's pointer; NULL gives 1.
pub fn write<T>(p: P, value: T) -> Result {
    if p == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null. The runtime's API has the caller pass a pointer that takes one `T`, aligned
    // or not.
    unsafe { (p as *mut T).write_unaligned(value) };
    Ok(())
}

/// Calls the driver with a local result.
pub fn ask<T: Default>(call: impl FnOnce(P) -> Result) -> Result<T> {
    let mut out = T::default();
    call(&raw mut out as P)?;
    Ok(out)
}
