//! Compiled call shapes, walked by the shim and by libgcc.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

type WithDepth = unsafe extern "C" fn(c_int, Callback, *mut c_void);
type Plain = unsafe extern "C" fn(Callback, *mut c_void);
type Registers = unsafe extern "C" fn(c_int, c_int, c_int, c_int, Callback, *mut c_void) -> c_int;
type Realigned = unsafe extern "C" fn(c_int, c_int, c_int, c_int, c_int, c_int, c_int, Callback, *mut c_void) -> c_int;

/// Frames without a frame pointer can be followed only by rules: on x86-64.
const SPARE: &str = if cfg!(target_arch = "x86_64") { "-fomit-frame-pointer" } else { "-fno-omit-frame-pointer" };

const FLAGS: &[&[&str]] =
    &[&["-O2", SPARE], &["-O2", "-fno-omit-frame-pointer"], &["-O0"], &["-O3", SPARE, "-DPAD=3000"]];

#[test]
fn compiled_shapes_walk_as_libgcc_says() {
    for flags in FLAGS {
        let library = Library::new("shapes.c", flags);
        // SAFETY: the functions have the types that shapes.c gives them, and are called while the
        // library is open. `call` takes the probe in `with`.
        unsafe {
            let recurse: WithDepth = library.function("recurse");
            for depth in [1, 2, 33, 150] {
                let probe = Probe::of(|call, with| recurse(depth, call, with));
                probe.assert_same(0);
                assert!(probe.ours.len() > depth as usize);
                // And again with every rule known.
                Probe::of(|call, with| recurse(depth, call, with)).assert_same(0);
            }
            let registers: Registers = library.function("registers");
            Probe::of(|call, with| _ = registers(1, 2, 3, 4, call, with)).assert_same(0);
            let alloca_frame: WithDepth = library.function("alloca_frame");
            Probe::of(|call, with| alloca_frame(5000, call, with)).assert_same(0);
            let realigned: Realigned = library.function("realigned");
            Probe::of(|call, with| _ = realigned(1, 2, 3, 4, 5, 6, 700, call, with)).assert_same(0);
            let noreturn_end: Plain = library.function("noreturn_end");
            Probe::of(|call, with| noreturn_end(call, with)).assert_same(0);
        }
    }
}

#[test]
fn cpp_frames_walk_as_libgcc_says() {
    for flags in [&["-O2"], &["-O0"]] {
        let library = Library::new("virtual.cpp", flags);
        // SAFETY: the functions have the types that virtual.cpp gives them, and are called while
        // the library is open. `call` takes the probe in `with`.
        unsafe {
            let virtual_calls: unsafe extern "C" fn(c_int, Callback, *mut c_void) -> c_int =
                library.function("virtual_calls");
            Probe::of(|call, with| _ = virtual_calls(12, call, with)).assert_same(0);
            let from_catch: unsafe extern "C" fn(Callback, *mut c_void) -> c_int = library.function("from_catch");
            Probe::of(|call, with| _ = from_catch(call, with)).assert_same(0);
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn signal_frames_are_crossed() {
    let library = Library::new("shapes.c", &["-O2"]);
    // SAFETY: the functions have the types that shapes.c gives them, and are called while the
    // library is open. `call` takes the probe in `with`.
    unsafe {
        let fault: WithDepth = library.function("fault");
        Probe::of(|call, with| fault(0, call, with)).assert_same(1);
        let other: Plain = library.function("fault_on_other_stack");
        Probe::of(|call, with| other(call, with)).assert_same(1);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn frame_pointers_at_odd_places_are_followed() {
    let library = Library::new("shapes.c", &["-O2"]);
    // SAFETY: shapes.c gives `odd_frame` this type, and it is called only while the library is
    // open.
    let odd_frame: Plain = unsafe { library.function("odd_frame") };
    // SAFETY: the library is open, and `call` takes the probe in `with`.
    Probe::of(|call, with| unsafe { odd_frame(call, with) }).assert_same(0);
}

#[test]
fn coroutine_stacks_are_walked_and_may_vanish() {
    let library = Library::new("shapes.c", &["-O2"]);
    // SAFETY: shapes.c gives `on_fiber` this type, and it is called only while the library is open.
    let on_fiber: Plain = unsafe { library.function("on_fiber") };
    for _ in 0..3 {
        // SAFETY: the library is open, and `call` takes the probe in `with`.
        let probe = Probe::of(|call, with| unsafe { on_fiber(call, with) });
        // The C library starts it at an address that no function covers.
        probe.assert_same_frames(0);
        assert!(probe.ours.len() >= 6);
    }
}

#[test]
fn the_main_thread_and_others_know_their_stacks() {
    let deep = || {
        let library = Library::new("shapes.c", &["-O2"]);
        // SAFETY: shapes.c gives `recurse` this type, and it is called only while the library is
        // open.
        let recurse: WithDepth = unsafe { library.function("recurse") };
        // SAFETY: the library is open, and `call` takes the probe in `with`.
        Probe::of(|call, with| unsafe { recurse(200, call, with) }).assert_same(0);
    };
    deep();
    // A debug build looks no rule up with less than 48 KiB left.
    std::thread::Builder::new().stack_size(128 << 10).spawn(deep).unwrap().join().unwrap();
    std::thread::Builder::new().stack_size(128 << 20).spawn(deep).unwrap().join().unwrap();
}

#[test]
fn deep_stacks_are_cut_and_say_so() {
    let library = Library::new("shapes.c", &["-O2"]);
    // SAFETY: shapes.c gives `recurse` this type, and it is called only while the library is open.
    let recurse: WithDepth = unsafe { library.function("recurse") };
    let mut cut = Probe::new(10);
    // SAFETY: the library is open. `take` takes the Probe that is passed with it, which outlives
    // the call.
    unsafe { recurse(50, take, (&raw mut *cut).cast()) };
    assert_eq!((cut.ours.len(), cut.walk.cut, cut.walk.complete), (10, true, false));
    assert_eq!(cut.ours, cut.expected()[..10]);
    let mut none = Probe::new(0);
    // SAFETY: the library is open. `take` takes the Probe that is passed with it, which outlives
    // the call.
    unsafe { recurse(50, take, (&raw mut *none).cast()) };
    assert_eq!((none.walk.len, none.walk.cut), (0, true));
}

/// Shapes still to be called, outermost last, and the probe for the innermost.
struct Nest<'a> {
    shapes: Vec<u8>,
    library: &'a Library,
    probe: Box<Probe>,
}

/// # Safety
/// `with` leads to a [`Nest`] that no one else uses.
unsafe extern "C" fn next_shape(with: *mut c_void) {
    // SAFETY: the test passes its Nest with this function, and each shape passes it on. No other
    // reference to it is alive.
    let nest = unsafe { &mut *with.cast::<Nest>() };
    let library = nest.library;
    // SAFETY: the functions have the types that shapes.c gives them, and the Nest borrows the
    // library, so it is open. `next_shape` takes the Nest in `with`, `take` the Probe.
    unsafe {
        match nest.shapes.pop() {
            None => take((&raw mut *nest.probe).cast()),
            Some(0) => _ = (library.function::<Registers>("registers"))(1, 2, 3, 4, next_shape, with),
            Some(1) => (library.function::<WithDepth>("alloca_frame"))(333, next_shape, with),
            Some(2) => _ = (library.function::<Realigned>("realigned"))(1, 2, 3, 4, 5, 6, 99, next_shape, with),
            Some(depth) => (library.function::<WithDepth>("recurse"))(depth.into(), next_shape, with),
        }
    }
}

#[test]
fn walks_that_share_frames_with_the_last_one_are_right() {
    let library = Library::new("shapes.c", &["-O2", SPARE]);
    let mut shapes: Vec<u8> = Vec::new();
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for round in 0..2_000 {
        // The outer shapes stay, some inner ones change.
        shapes.truncate(random(shapes.len() as u64 + 1) as usize);
        (0..random(6)).for_each(|_| shapes.push(random(8) as u8));
        shapes.truncate(12);
        let depth = if random(4) == 0 { 1 + random(40) as usize } else { 400 };
        let mut nest =
            Nest { shapes: shapes.iter().rev().copied().collect(), library: &library, probe: Probe::new(depth) };
        // SAFETY: `next_shape` takes the Nest that is passed with it, which outlives the call.
        unsafe { next_shape((&raw mut nest).cast()) };
        let Nest { probe, .. } = nest;
        if probe.walk.cut {
            assert_eq!(probe.ours, probe.expected()[..depth], "round {round}: {shapes:?}");
        } else {
            probe.assert_same(0);
        }
    }
}

#[test]
fn a_signal_handler_may_walk_whenever_it_comes() {
    static HANDLED: AtomicUsize = AtomicUsize::new(0);
    /// # Safety
    /// It needs nothing of its caller, the C library.
    unsafe extern "C" fn handler(_: c_int) {
        let mut frames = [0; 64];
        let found = walk(Regs::of_caller(), &mut frames);
        // Nothing if it interrupted a walk.
        HANDLED.fetch_add(usize::from(found.len > 0), Ordering::Relaxed);
    }
    let library = Library::new("shapes.c", &["-O2", SPARE]);
    // SAFETY: shapes.c gives `recurse` this type, and it is called only while the library is open.
    let recurse: WithDepth = unsafe { library.function("recurse") };
    // SAFETY: `handler` has the type of a handler, and nothing else in these tests uses SIGUSR2. It
    // touches nothing but a static and its own stack.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as usize) };
    // SAFETY: pthread_self takes no arguments and cannot fail.
    let walker = unsafe { libc::pthread_self() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the scope makes the walker's thread wait for this one, so `walker` is a
                // thread that is alive.
                unsafe { libc::pthread_kill(walker, libc::SIGUSR2) };
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        for _ in 0..300 {
            // SAFETY: the library is open, and `call` takes the probe in `with`.
            Probe::of(|call, with| unsafe { recurse(30, call, with) }).assert_same(0);
        }
        let mut frames = [0; 64];
        // SAFETY: the library is open, and `call` takes the probe in `with`.
        let deep = Probe::of(|call, with| unsafe { recurse(30, call, with) });
        for _ in 0..300_000 {
            walk(Regs { pc: deep.ours[0], ..Regs::default() }, &mut frames);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // SAFETY: SIG_DFL is a valid disposition. The thread that sent the signals has ended with the
    // scope.
    unsafe { libc::signal(libc::SIGUSR2, libc::SIG_DFL) };
    assert!(HANDLED.load(Ordering::Relaxed) > 10);
}

#[test]
fn hashes_tell_stacks_apart() {
    let library = Library::new("shapes.c", &["-O2"]);
    // SAFETY: shapes.c gives `recurse` this type, and it is called only while the library is open.
    let recurse: WithDepth = unsafe { library.function("recurse") };
    // SAFETY: the library is open, and `call` takes the probe in `with`.
    let hash = |depth| unsafe { Probe::of(|call, with| recurse(depth, call, with)).walk.hash };
    let mut twice: Vec<Vec<u64>> = Vec::new();
    // One call site for both, or the stacks would differ.
    for _ in 0..std::hint::black_box(2) {
        twice.push((1..60).map(hash).collect());
    }
    let mut once = twice.pop().unwrap();
    assert_eq!(once, twice[0]);
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), 59);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn code_without_unwind_information_ends_the_walk() {
    // sub rsp,8; mov rax,rdi; mov rdi,rsi; call rax; add rsp,8; ret
    const CODE: &[u8] = b"\x48\x83\xec\x08\x48\x89\xf8\x48\x89\xf7\xff\xd0\x48\x83\xc4\x08\xc3";
    // SAFETY: without MAP_FIXED the kernel picks addresses that are free. CODE fits into the page
    // that is written.
    let page = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<u8>().copy_from(CODE.as_ptr(), CODE.len());
        page
    };
    for _ in 0..2 {
        let mut probe = Probe::new(64);
        // SAFETY: the page holds the code above, which is a function of this type, and may be
        // executed.
        let jit: Plain = unsafe { std::mem::transmute(page) };
        // In some versions the oracle aborts the process on such code, so only our walk runs.
        /// # Safety
        /// `with` leads to a [`Probe`] that no one else uses.
        unsafe extern "C" fn only_ours(with: *mut c_void) {
            // SAFETY: the call below passes a Probe with this function, and waits for it.
            let probe = unsafe { &mut *with.cast::<Probe>() };
            probe.ours = vec![0; probe.depth];
            probe.walk = walk(Regs::of_caller(), &mut probe.ours);
        }
        // SAFETY: `jit` calls `only_ours` with the Probe, which outlives the call.
        unsafe { jit(only_ours, (&raw mut *probe).cast()) };
        assert_eq!((probe.walk.len, probe.walk.complete, probe.walk.cut), (1, false, false));
        assert_eq!(probe.ours[0], page as u64 + 12);
    }
    // SAFETY: the page was mapped above with this length, and its code runs no more.
    unsafe { libc::munmap(page, 4096) };
}

#[test]
fn garbage_ends_a_walk_and_nothing_else() {
    // SAFETY: `call` takes the probe that comes with it in `with`.
    let genuine = Probe::of(|call, with| unsafe { call(with) });
    let code: Vec<u64> = genuine.ours.clone();
    let local = [0u64; 64];
    let here = local.as_ptr() as u64;
    let mut state = 88172645463325252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut frames = [0; 64];
    for round in 0..200_000 {
        let mut any = |near: u64| match random() % 8 {
            0 => 0,
            1 => random(),
            2 => random() >> 17,
            3 => near.wrapping_add(random() % 4096),
            4 => u64::MAX - random() % 64,
            5 => code[random() as usize % code.len()] + random() % 64,
            _ => near.wrapping_add(random() % 512 * 8),
        };
        let regs = Regs { pc: any(code[round % code.len()]), sp: any(here), fp: any(here) };
        let walk = walk(regs, &mut frames);
        assert!(walk.len <= frames.len() && !(walk.cut && walk.complete));
    }
    assert_eq!(walk(Regs::default(), &mut frames).len, 0);
    genuine.assert_same(0);
}
