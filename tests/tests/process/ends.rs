//! Beginnings and ends of processes: programs without a GPU, children of all kinds, ways out of a process.

use gpumem_tests::harness::{Ledger, Program, artifacts, client, command, program};
use gpumem_tests::skipped::installed;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, State};

/// Programs that make no GPU call are silent, leave nothing, and start nothing.
#[test]
fn programs_without_a_gpu_leave_nothing() {
    let mut quiet: Vec<Program> = vec![
        command("/bin/true"),
        command("sh").args(["-c", "echo hello; ls / >/dev/null; exit 3"]),
        command("mkdir").args(["-p", "/tmp"]),
        command("ls").arg("/no/such/folder"),
        // Nothing of a vendor in the process: no library, no socket, no thread, no open file.
        command("sh").args(["-c", "grep -c -e libcuda -e libamdhip64 -e ledger /proc/$$/maps; ls /proc/self/fd | wc -l; ls /proc/self/task | wc -l"]),
    ];
    if installed("python3").is_some() {
        let script = "import os, threading; print(len(os.listdir('/proc/self/task')), threading.active_count())";
        quiet.push(command("python3").args(["-c", script]));
    }
    for program in quiet {
        let (native, preloaded) = (program.native(), program.preloaded());
        assert_eq!(
            (preloaded.code, &preloaded.out, &preloaded.err),
            (native.code, &native.out, &native.err),
            "{program:?}"
        );
        assert!(!preloaded.dir.exists(), "{program:?} left something");
    }
}

/// Refused variables are told by programs that use the GPU, and by no others.
#[test]
fn programs_without_a_gpu_say_nothing_of_variables() {
    let ran = command("/bin/true").env("GPUMEM_STACKS", "many").env("GPUMEM_NO_SUCH", "1").preloaded().ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
}

/// Children before and after the first GPU call. Each that uses the GPU has its own ledger, and
/// none touches its parent's.
#[test]
fn children_have_their_own_identity() {
    let fork = program("fork");
    let native = fork.native().ok();
    for _ in 0..3 {
        let ran = fork.preloaded().ok();
        assert_eq!(ran.json()["kinds"], native.json()["kinds"]);
        assert_eq!((ran.violations(), ran.ours()), (native.violations(), vec![]));
        ran.ledger().agrees_with(&ran.json()).complete().balanced();
        let ledgers = ran.ledgers();
        let children: Vec<&Ledger> = ledgers.iter().filter(|ledger| ledger.id.pid != ran.pid).collect();
        // Forked before the first call; spawned twice; exec after vfork; exec after fork.
        assert_eq!(children.len(), 5, "one for each child that could use the GPU, none for the others");
        for child in children {
            child.sound().complete().balanced();
            assert_eq!(child.snapshot.header.pid, child.id.pid);
            assert_eq!(child.counter(counters::allocs(AllocKind::Device)), 1);
            assert_eq!(child.counter(counters::alloc_bytes(AllocKind::Device)), 40000);
        }
    }
}

/// A program that becomes another by exec, with memory held: one process, one ledger, the last.
#[test]
fn exec_in_place_starts_anew() {
    let ran = client("reexec").arg("3").preloaded().ok();
    let ledgers = ran.ledgers();
    assert_eq!(ledgers.len(), 1);
    ledgers[0].agrees_with(&ran.json()).complete();
    assert_eq!(ledgers[0].snapshot.allocs.iter().map(|alloc| alloc.bytes).collect::<Vec<_>>(), [1000]);
}

/// Every way out of a process ends as natively, and the ledger says how it was.
#[test]
fn every_way_out() {
    let exits: &[(&str, State, Option<u64>)] = &[
        ("static", State::Exited, None),
        ("tls", State::Exited, Some(0)),
        ("late", State::Exited, Some(123456)),
        ("leak", State::Exited, Some(123456)),
        ("_exit", State::Recording, Some(123456)),
        ("abort", State::Recording, Some(123456)),
        ("kill", State::Recording, Some(123456)),
        ("thread", State::Exited, None),
    ];
    for (mode, state, live) in exits {
        let exit = program("exits").arg(*mode);
        let (native, preloaded) = (exit.native(), exit.preloaded());
        let (after, before) = ((preloaded.code, &preloaded.err), (native.code, &native.err));
        assert_eq!(after, before, "{mode}");
        assert!(*mode != "thread" || native.code == 6, "{mode}: {before:?}");
        assert_eq!(preloaded.violations(), native.violations(), "{mode}");
        let ledger = preloaded.ledger();
        assert_eq!(ledger.snapshot.header.state, *state as u32, "{mode}");
        if let Some(live) = live {
            ledger.sound();
            let listed: u64 = ledger.snapshot.allocs.iter().map(|alloc| alloc.bytes).sum();
            assert_eq!(listed, *live, "{mode}");
        }
    }
}

/// The first GPU call is made in a library's constructor, with the loader's lock held: of a library that is opened,
/// beside another thread's first call too, and of one that the program is linked with.
#[test]
fn the_first_call_in_a_constructor() {
    let library = artifacts().clients.join("libctor.so");
    let opened = client("ctor").arg(&library);
    // With a thread that the constructor waits for, and that may not need the loader.
    let warm = opened.clone().arg("warm").env("CTOR", "thread");
    for ctor in [opened.clone(), opened.arg("both"), warm, client("ctor_linked")] {
        let native = ctor.native().ok();
        let ran = ctor.preloaded().ok();
        assert_eq!((&ran.out, ran.ours(), ran.violations()), (&native.out, vec![], native.violations()));
        ran.ledger().sound().complete().balanced();
    }
}

/// Threads may go on while the process ends. Once the driver has ended each call fails, so what takes long at the end is
/// done before: the threads have no more time to act on a failure than they have natively.
#[test]
fn threads_that_outlive_the_driver_have_no_more_time_than_natively() {
    let late = client("ends_late");
    assert_eq!(late.native().ok().out, "error 4, 0 sockets\n");
    for _ in 0..10 {
        let ran = late.preloaded().ok();
        assert_eq!(ran.out, "error 4, 0 sockets\n");
        ran.ledger().complete();
    }
}

/// Threads of ours have room beside a program's thread-local storage.
#[test]
fn a_program_with_much_thread_local_storage() {
    let ran = client("bigtls").preloaded().ok();
    assert_eq!(ran.ours(), [""; 0]);
    let ledger = ran.ledger();
    ledger.agrees_with(&ran.json()).complete().balanced();
    assert!(ledger.snapshot.samples.len() > 1, "the control thread runs");
}

/// A thread that is cancelled ends where the program lets it, and in no system call of ours.
#[test]
fn cancelled_threads_end_where_they_would() {
    let native = client("cancel").native().ok();
    assert_eq!(native.out, "cancelled after 2000\n", "natively");
    let ran = client("cancel").preloaded().ok();
    assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()));
    ran.ledger().sound().complete().balanced();
    // If a sandbox forbids process_vm_readv, stacks are read from a file.
    let denied = client("cancel").denied("process_vm_readv:1-").preloaded().ok();
    assert_eq!(denied.out, native.out);
    // The guard makes driver calls of its own on this thread. The driver may reach a cancellation point within them.
    for guard in ["1", "front"] {
        let guarded = client("cancel").env("GPUMEM_GUARD", guard).preloaded().ok();
        assert_eq!(guarded.out, native.out, "GPUMEM_GUARD={guard}");
    }
}

/// A call of gpumem's own may be where the driver reaches a cancellation point, too: here one that fails, since the
/// simulator writes each failure to a file.
#[test]
fn cancelled_threads_end_in_no_call_of_ours() {
    let native = client("cancel").native().ok();
    let log = native.scratch().join("struck");
    for name in ["cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute", "cuMemGetInfo_v2"] {
        for call in [1, 2, 3, 5, 8] {
            let fault = format!("{name}:{call}=2");
            let ran = client("cancel").env("SIM_FAULT", &fault).env("SIM_FAULT_LOG", &log).preloaded();
            assert_eq!((ran.code, &ran.out), (0, &native.out), "{fault}: {}", ran.err);
        }
    }
}

/// The same where the process gets hardly more memory than it has: exit handlers get a stack that they can use. The shim
/// and its thread take memory, so the program may get less than natively, and may end by a status of its own.
#[test]
fn main_ends_where_memory_is_limited() {
    for who in ["thread", "main"] {
        let limits = (15_000..39_000).step_by(1_500);
        let limited =
            |kib: &u32| client("main_ends").arg(who).shell(&format!("ulimit -c 0; ulimit -d {kib}; exec \"$@\""));
        // The thread of ours looks once a second whether it is the last, so all run at once.
        let running: Vec<_> = limits.clone().map(|kib| limited(&kib).start(true)).collect();
        let ended = running.into_iter().map(|running| running.finish().code);
        let codes: Vec<(u32, i32)> = limits.zip(ended).collect();
        assert_eq!(limited(&15_000).native().code, 0, "{who}: natively the least of these is enough");
        // 2: the program was refused a thread or memory; 97: the simulated driver was.
        assert!(codes.iter().all(|(_, code)| [0, 2, 97].contains(code)), "{who}: {codes:?}");
        assert_eq!(codes.last().map(|(_, code)| *code), Some(0), "{who}: {codes:?}");
    }
}

/// The system refuses the control thread the file that tells whether it is the last thread.
#[test]
fn main_ends_where_nothing_can_be_opened() {
    let main_ends = client("main_ends").arg("main");
    let native = main_ends.native().ok();
    for nth in 1..=8 {
        let ran = main_ends.clone().denied(format!("open:{nth}-")).preloaded().ok();
        assert_eq!(ran.out, native.out, "open:{nth}-");
    }
}

/// The control thread is refused once. The next try has the same stack, so exit handlers have as much room.
#[test]
fn main_ends_where_a_thread_is_refused_once() {
    let main_ends = client("main_ends").arg("main");
    let ran = main_ends.clone().denied("pthread_create:1").preloaded().ok();
    assert_eq!(ran.out, main_ends.native().ok().out);
}

/// Main has ended by pthread_exit. Once the control thread is the last thread, the process ends as natively, with
/// all exit handlers, on a stack as large as another thread's.
#[test]
fn main_ends_before_its_threads() {
    for who in ["thread", "main"] {
        let main_ends = client("main_ends").arg(who);
        let (native, preloaded) = (main_ends.native().ok(), main_ends.preloaded().ok());
        assert_eq!((&preloaded.out, &preloaded.err), (&native.out, &native.err), "{who}");
        assert_eq!(preloaded.violations(), native.violations(), "{who}");
        let ledger = preloaded.ledger();
        ledger.agrees_with(&preloaded.json()).complete().balanced();
        assert_eq!(ledger.snapshot.header.state, State::Exited as u32, "{who}");
        let files = std::fs::read_dir(&preloaded.dir).expect("its directory").count();
        assert_eq!(files, 1, "{who}: a ledger is all that is left");
    }
}
