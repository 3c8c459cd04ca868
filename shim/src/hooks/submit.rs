//! Work for the device: kernels, copies, fills, host functions, events, waits. Each call is counted and its
//! answer looked at ([`crate::activity`]); nothing else is done about it.

use crate::activity;
use crate::backend::given;
use crate::call::Call;
use crate::stranded;
use gpumem_abi::types::{LaunchConfig, Opaque, Status};

macro_rules! work {
    ($($name:ident($($arg:ident: $ty:ident),+) $first:block)*) => { $(
        /// The program gives the device work, with that many arguments.
        #[inline]
        pub unsafe fn $name<$($ty),+>(
            _: Call,
            real: unsafe extern "C-unwind" fn($($ty),+) -> Status,
            $($arg: $ty),+
        ) -> Status {
            $first
            // SAFETY: the program's own call.
            let status = activity::submit(|| unsafe { real($($arg),+) });
            activity::saw(status);
            status
        }
    )* };
}

work! {
    work_1(a: A) {}
    work_2(a: A, b: B) {}
    work_3(a: A, b: B, c: C) {}
    work_4(a: A, b: B, c: C, d: D) {}
    work_5(a: A, b: B, c: C, d: D, e: E) {}
    work_6(a: A, b: B, c: C, d: D, e: E, f: F) {}
    work_8(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H) {}
    work_9(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I) {}
    work_10(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J) {}
    work_11(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K) {}
    // Kernels: the thread is in the middle of a computation.
    kernel_1(a: A) { stranded::submitted() }
    kernel_3(a: A, b: B, c: C) { stranded::submitted() }
    kernel_4(a: A, b: B, c: C, d: D) { stranded::submitted() }
    cooperative_3(a: A, b: B, c: C) { stranded::submitted(); given::cooperative() }
    cooperative_10(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J) {
        stranded::submitted();
        given::cooperative()
    }
    kernel_11(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K) { stranded::submitted() }
}

/// The program launches a kernel, with attributes.
#[inline]
pub unsafe fn kernel_ex(
    call: Call,
    real: unsafe extern "C-unwind" fn(*const LaunchConfig, Opaque, Opaque, Opaque) -> Status,
    config: *const LaunchConfig,
    function: Opaque,
    params: Opaque,
    extra: Opaque,
) -> Status {
    // SAFETY: the program's own call.
    unsafe {
        given::launch(config);
        kernel_4(call, real, config, function, params, extra)
    }
}
