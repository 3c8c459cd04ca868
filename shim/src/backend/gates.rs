//! Gates: thunks in front of the driver's functions, in a process that shares a card (`GPUMEM_SHARE`).
//!
//! While such a process is parked, a call of the driver waits, answers an error, or ends the process (`cuStreamQuery`
//! on an H200, driver 580). So the program and the shim call the driver through gates. A gate jumps to its function,
//! unless the gates are closed: then the calling thread waits first. Other processes have no gates.

use crate::process::thunks::{self, Words, claim};
use crate::process::{own, wiped};
use gpumem_wire::share;
use once_cell::race::OnceBool;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;

/// Number of gates. Driver 580 has 1,100 functions.
const GATES: usize = 2048;

/// The function behind each gate.
static REAL: [AtomicUsize; GATES] = [const { AtomicUsize::new(0) }; GATES];
/// Not 0 while the gates are closed; each gate reads it. In a child of a fork the word on the wiped page is the truth.
static CLOSED: AtomicU32 = AtomicU32::new(0);
/// The `fn()` that waits, 0 before there is one.
static WAIT: AtomicUsize = AtomicUsize::new(0);
/// True once a function found no free gate.
static FULL: AtomicBool = AtomicBool::new(false);

thunks::pool!(gate_at, GATES, through);
thunks::through!(slow, enter);

/// # Safety
/// Entered by a gate, whose number is in r11. r10 is free at a call of a C function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn through() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "cmp dword ptr [rip + {closed}], 0",
        "jne {slow}",
        "lea r10, [rip + {real}]",
        "jmp qword ptr [r10 + 8*r11]",
        ".cfi_endproc",
        closed = sym CLOSED,
        real = sym REAL,
        slow = sym slow,
    )
}

/// # Safety
/// Entered by a gate, whose number is in w9.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn through() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "adrp x16, {closed}",
        "ldr w16, [x16, :lo12:{closed}]",
        "cbnz w16, 2f",
        "adrp x16, {real}",
        "add x16, x16, :lo12:{real}",
        "ldr x16, [x16, x9, lsl #3]",
        "br x16",
        "2: b {slow}",
        ".cfi_endproc",
        closed = sym CLOSED,
        real = sym REAL,
        slow = sym slow,
    )
}

/// Waits while the gates are closed; returns the function behind the gate.
///
/// # Safety
/// Called by a gate, with the words that it keeps.
unsafe extern "C" fn enter(index: usize, _: &mut Words, _: usize) -> usize {
    let wait = WAIT.load(Acquire);
    // The shim's own threads are quiet while the process is parked, and the one that opens the gates must not wait.
    if wait != 0 && are_closed() && !own::is_this_thread() {
        // SAFETY: WAIT holds nothing but a `fn()`, which `wait_by` has put there.
        unsafe { std::mem::transmute::<usize, fn()>(wait)() };
    }
    REAL[index].load(Relaxed)
}

/// True if this process shares a card. Read once.
pub(crate) fn is_member() -> bool {
    static MEMBER: OnceBool = OnceBool::new();
    MEMBER.get_or_init(|| {
        // SAFETY: the name is a literal that ends in NUL. The value is a C string, and is read before anything else
        // runs here that could change the environment.
        let name = unsafe {
            let name = libc::getenv(c"GPUMEM_SHARE".as_ptr());
            if name.is_null() { &[] } else { std::ffi::CStr::from_ptr(name).to_bytes() }
        };
        std::str::from_utf8(name).is_ok_and(share::is_name) && !wiped::disabled()
    })
}

/// Returns the gate in front of a driver function of this name; the function itself if it may be called at any time, or
/// if this process has no gates.
pub(crate) fn in_front_of(name: &[u8], real: usize) -> usize {
    if real == 0 || !is_member() || answers_while_parked(name) || behind(real) != real {
        return real;
    }
    let gate = claim(&REAL, real).map(gate_at);
    gate.unwrap_or_else(|| {
        FULL.store(true, Relaxed);
        real
    })
}

/// Returns the function behind a gate, or the address itself if no gate lies there.
pub(crate) fn behind(address: usize) -> usize {
    let gates = gate_at(0)..gate_at(GATES);
    match gates.contains(&address) {
        true => REAL[(address - gates.start) / thunks::STRIDE].load(Relaxed),
        false => address,
    }
}

/// True if a function was handed out without a gate because there were too many.
pub(crate) fn are_too_few() -> bool {
    FULL.load(Relaxed)
}

/// True if a function asks nothing of a device, so that it answers while the process is parked.
fn answers_while_parked(name: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 4] = [b"cuDriverGetVersion", b"cuGetError", b"cuGetProcAddress", b"cuCheckpoint"];
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// Sets the function by which threads wait at closed gates.
pub(crate) fn wait_by(wait: fn()) {
    WAIT.store(wait as usize, Release);
}

/// True while threads of this process wait at the gates.
pub(crate) fn are_closed() -> bool {
    wiped::known_numbers().is_some_and(|numbers| numbers.gates_closed.load(SeqCst) != 0)
}

/// Closes the gates, if this process has some.
pub(crate) fn close() {
    if is_member()
        && let Some(numbers) = wiped::numbers()
    {
        numbers.gates_closed.store(1, SeqCst);
        CLOSED.store(1, SeqCst);
    }
}

/// Opens the gates.
pub(crate) fn open() {
    CLOSED.store(0, SeqCst);
    if let Some(numbers) = wiped::known_numbers() {
        numbers.gates_closed.store(0, SeqCst);
    }
    // SAFETY: the call takes the address of a static. It only wakes threads.
    unsafe { libc::syscall(libc::SYS_futex, CLOSED.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

/// Waits until the gates open, for at most this time. A signal ends the wait, too.
pub(crate) fn wait_for_opening(longest: Duration) {
    let time = libc::timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the call takes the address of a static and that of a local, which outlive it, and changes neither.
    unsafe { libc::syscall(libc::SYS_futex, CLOSED.as_ptr(), operation, 1, &raw const time) };
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn sum(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, x: f64) -> f64 {
        (a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g) as f64 * x
    }

    static WAITED: AtomicU32 = AtomicU32::new(0);

    /// Clobbers what a call may clobber, and opens the gates.
    fn wait() {
        WAITED.fetch_add(1, SeqCst);
        std::hint::black_box([1.5; 64].iter().sum::<f64>());
        open();
    }

    /// One test for all of it, because there is one set of gates.
    #[test]
    fn a_closed_gate_makes_a_call_wait_and_then_lets_it_through_unchanged() {
        let gate = claim(&REAL, sum as *const () as usize).map(gate_at).expect("a free gate");
        assert_eq!((behind(gate), behind(gate + 0x10_0000)), (sum as *const () as usize, gate + 0x10_0000));
        type Sum = extern "C" fn(usize, usize, usize, usize, usize, usize, usize, f64) -> f64;
        // SAFETY: a gate leaves all arguments as they came and jumps to its function, so it has that prototype.
        let call = || unsafe { std::mem::transmute::<usize, Sum>(gate) }(1, 1, 1, 1, 1, 1, 2, 0.5);
        assert_eq!((call(), WAITED.load(SeqCst)), (17.5, 0));
        wait_by(wait);
        let close = || {
            wiped::numbers().expect("a page").gates_closed.store(1, SeqCst);
            CLOSED.store(1, SeqCst);
        };
        close();
        assert_eq!((call(), WAITED.load(SeqCst), are_closed()), (17.5, 1, false));
        // A child of a fork: the page is wiped, the static is not.
        close();
        wiped::numbers().expect("a page").gates_closed.store(0, SeqCst);
        assert_eq!((call(), WAITED.load(SeqCst)), (17.5, 1));
        open();
        assert_eq!((call(), WAITED.load(SeqCst)), (17.5, 1));
    }

    #[test]
    fn a_process_that_shares_no_card_has_no_gates() {
        assert!(!is_member());
        assert_eq!(in_front_of(b"cuMemAlloc_v2", 0x1000), 0x1000);
        close();
        assert!(CLOSED.load(SeqCst) == 0 && !are_too_few());
    }
}
