//! Mistakes of users, and things that machines lack: each gives one clear line, and the program runs as natively.

use gpumem_tests::harness::Ledger;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, Ran, artifacts, client, command, program};
use gpumem_tests::skipped::{ROOT, skipped};
use gpumem_wire::counters;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The program runs as natively, and the shim says just these lines, by what they hold.
#[track_caller]
fn says(program: &Program, lines: &[&[&str]]) -> Ran {
    let (native, preloaded) = (program.native().ok(), program.preloaded());
    assert_eq!((preloaded.code, &preloaded.out), (native.code, &native.out), "{}", preloaded.err);
    assert_eq!(preloaded.violations(), native.violations());
    let ours = preloaded.ours();
    assert_eq!(ours.len(), lines.len(), "{ours:#?}");
    for (line, parts) in ours.iter().zip(lines) {
        assert!(line.starts_with("gpumem: ") && parts.iter().all(|part| line.contains(part)), "{line}: not {parts:?}");
    }
    let others = |ran: &Ran| ran.err.lines().filter(|line| !line.starts_with("gpumem")).count();
    assert_eq!(others(&preloaded), others(&native));
    preloaded
}

fn small() -> Program {
    client("many").arg("50")
}

fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn unknown_variable() {
    let ran = says(
        &small().env("GPUMEM_STACK", "7"),
        &[&["unknown variable GPUMEM_STACK ignored", "did you mean GPUMEM_STACKS?"]],
    );
    let complaints = ran.ledger().gpumem("stats", &[])["process"]["complaints"].clone();
    assert_eq!(complaints.as_array().map(Vec::len), Some(1), "{complaints}");
    let renamed = &["unknown variable GPUMEM_RECORD ignored", "did you mean GPUMEM_ALLOC_TRACE?"];
    says(&small().env("GPUMEM_RECORD", "/tmp/trace"), &[renamed]);
    says(&small().env("GPUMEM_COLOUR_OF_THE_SKY", "7"), &[&["unknown variable GPUMEM_COLOUR_OF_THE_SKY ignored"]]);
}

#[test]
fn refused_values() {
    let cases: &[(&str, &str, &str)] = &[
        ("GPUMEM_STACKS", "many", "a number from 0 to 128"),
        ("GPUMEM_STACKS", "-1", "a number from 0 to 128"),
        ("GPUMEM_LEDGER_MAX", "12XB", "256MiB is used"),
        ("GPUMEM_LEDGER_MAX", "1K", "1MiB to 4GiB: bytes with a unit"),
        ("GPUMEM_LEDGER_MAX", "99999999999999999999G", "1MiB to 4GiB"),
        ("GPUMEM_RECORD_ONLY", "perhaps", "auto"),
        ("GPUMEM_CONTROL", "2", "0 or 1"),
        ("GPUMEM_DISABLE", "perhaps", "0 or 1"),
        ("GPUMEM_EVENTS", "1", "a number from 64"),
    ];
    for (name, value, allowed) in cases {
        let ran = says(&small().env(*name, *value), &[&[name, value, allowed]]);
        ran.ledger().agrees_with(&ran.json()).complete();
    }
}

#[test]
fn several_at_once_are_a_line_each() {
    let bad = small().env("GPUMEM_STACKS", "x").env("GPUMEM_EVENTS", "x").env("GPUMEM_NO", "1");
    says(&bad, &[&["GPUMEM_STACKS"], &["GPUMEM_EVENTS"], &["GPUMEM_NO "]]);
    says(&bad.env("GPUMEM_LOG", "quiet"), &[]);
}

#[test]
fn relative_directory() {
    let scratch = Scratch::new();
    let relative = small().env("GPUMEM_DIR", "ledgers/here").env("XDG_RUNTIME_DIR", scratch.path());
    says(&relative, &[&["GPUMEM_DIR", "an absolute path"]]);
    assert_eq!(fs::read_dir(scratch.path().join("gpumem")).expect("the default").count(), 1);
}

/// A variable that is not UTF-8, or empty.
#[test]
fn odd_bytes() {
    use std::os::unix::ffi::OsStringExt;
    let odd = std::ffi::OsString::from_vec(b"\xff\xfe\x80".to_vec());
    says(&small().env("GPUMEM_STACKS", odd.clone()), &[&["GPUMEM_STACKS", "a number"]]);
    says(&small().env("GPUMEM_TAG", odd), &[&["GPUMEM_TAG", "UTF-8"]]);
    says(&small().env("GPUMEM_STACKS", "").env("GPUMEM_TAG", ""), &[]);
}

/// The directory cannot be made: a file is in its place, the parent does not allow it, /proc has no room.
#[test]
fn directory_that_cannot_be() {
    let scratch = Scratch::new();
    let file = scratch.path().join("file");
    fs::write(&file, "").expect("a file");
    for dir in [&file, &file.join("below"), Path::new("/proc/gpumem")] {
        let name = dir.to_str().expect("UTF-8");
        says(&small().dir(dir), &[&[name, "nothing is recorded", "runs as without gpumem"]]);
    }
}

/// Somebody else's program, in a directory that only its owner may write.
#[test]
fn directory_without_permission() {
    if !is_root() {
        let scratch = Scratch::new();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o500)).expect("its mode");
        says(&small().dir(scratch.path()), &[&["Permission denied", "nothing is recorded"]]);
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.path().join("ledgers");
    fs::create_dir(&dir).expect("a directory");
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).expect("its mode");
    if small().user(65534).native().code != 0 {
        return skipped("another user cannot run the programs", "a checkout that others may read");
    }
    says(&small().user(65534).dir(&dir), &[&["Permission denied", "nothing is recorded"]]);
}

/// The directory of a user who named none, where nothing else is set.
fn own_directory() -> std::path::PathBuf {
    // SAFETY: geteuid takes no arguments and cannot fail.
    gpumem_wire::place::directory(None, None, unsafe { libc::geteuid() })
}

/// The default directory must be this user's alone: links, other owners and open modes are passed over, and the
/// ledger says so.
#[test]
fn foreign_default_directory() {
    let with = |make: &dyn Fn(&Path)| {
        let scratch = Scratch::new();
        make(&scratch.path().join("gpumem"));
        let small = small().without("GPUMEM_DIR").env("XDG_RUNTIME_DIR", scratch.path());
        let ran = says(&small, &[]);
        let ledger = Ledger::of_pid(&own_directory(), ran.pid).expect("a ledger in the next place");
        fs::remove_file(&ledger.path).expect("the ledger");
        let passed = ledger.messages().into_iter().find(|message| message.contains("/gpumem: not a directory of user"));
        assert!(passed.is_some_and(|message| message.contains("GPUMEM_DIR")), "{:?}", ledger.messages());
        let entries = fs::read_dir(scratch.path()).expect("the directory").map(|entry| entry.expect("an entry").path());
        let left = entries.filter(|path| path.is_dir()).map(|path| fs::read_dir(path).expect("readable").count());
        assert_eq!(left.sum::<usize>(), 0, "nothing is left there");
    };
    let mode = |path: &Path, mode| {
        fs::create_dir(path).expect("a directory");
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode");
    };
    with(&|path| mode(path, 0o777));
    with(&|path| mode(path, 0o720));
    with(&|path| {
        fs::create_dir(path.with_extension("elsewhere")).expect("a directory");
        std::os::unix::fs::symlink(path.with_extension("elsewhere"), path).expect("a link");
    });
    if is_root() {
        with(&|path| {
            mode(path, 0o700);
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("another owner");
        });
    }
}

/// A ledger's name is taken by a link: it is not followed.
#[test]
fn link_in_place_of_the_ledger() {
    let scratch = Scratch::new();
    let victim = scratch.path().join("victim");
    fs::write(&victim, "precious").expect("a file");
    // The name holds the start time, which the process knows of itself.
    let script = format!(
        "mkdir -p \"$GPUMEM_DIR\"; ln -s {} \"$GPUMEM_DIR\"/$$-$(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f20).ledger; exec \"$@\"",
        victim.display()
    );
    let ran = says(&small().env("GPUMEM_DIR", scratch.path().join("ledgers")).shell(&script), &[]);
    assert_eq!(ran.code, 0);
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "precious");
}

/// Neither HOME nor a runtime directory: /dev/shm/gpumem-UID.
#[test]
fn no_home_and_no_runtime_directory() {
    let bare = client("many").arg("50").without("GPUMEM_DIR").without("HOME").without("USER").without("PATH");
    let ran = says(&bare, &[]);
    let dir = own_directory();
    let ledger = Ledger::of_pid(&dir, ran.pid).expect("a ledger in the default place");
    ledger.agrees_with(&ran.json());
    fs::remove_file(&ledger.path).expect("the ledger");
    assert_eq!(fs::metadata(&dir).expect("the directory").permissions().mode() & 0o777, 0o700);
}

/// A ledger that is full: what does not fit is counted and dropped, counts stay exact.
#[test]
fn full_ledger() {
    let many = client("many").arg("20000").env("GPUMEM_LEDGER_MAX", "1MiB");
    let ran = says(&many, &[]);
    let ledger = ran.ledger();
    let device =
        |of: fn(gpumem_wire::kinds::AllocKind) -> usize| ledger.counter(of(gpumem_wire::kinds::AllocKind::Device));
    assert_eq!((device(counters::allocs), device(counters::frees)), (40000, 40000));
    assert_eq!(device(counters::alloc_bytes), device(counters::free_bytes));
    let dropped = ledger.counter(counters::DROPPED_RECORDS);
    assert!((20000..40000).contains(&dropped), "{dropped} dropped");
    assert!(fs::metadata(&ledger.path).expect("the ledger").len() <= 4 << 20);
    ledger.balanced();
    assert_eq!(ledger.gpumem("stats", &[])["process"]["dropped_records"], dropped);
}

/// The disk is full from the start, or fills up on the way: never a SIGBUS.
#[test]
fn full_disk() {
    let unshared = command("unshare").args(["-m", "true"]).native().code == 0;
    if !unshared {
        skipped("a small file system can be mounted by root alone", ROOT);
        return;
    }
    for (size, records) in
        [("64k", false), ("200k", false), ("400k", true), ("900k", true), ("1200k", true), ("1500k", true)]
    {
        let script = format!(
            "mkdir -p \"$GPUMEM_DIR\"; mount -t tmpfs -o size={size} tmpfs \"$GPUMEM_DIR\" || exit 99
             \"$@\"; code=$?; cp \"$GPUMEM_DIR\"/*.ledger \"$SAVED\" 2>/dev/null; exit $code"
        );
        let scratch = Scratch::new();
        let many =
            client("many").arg("20000").env("GPUMEM_DIR", scratch.path().join("small")).env("SAVED", scratch.path());
        let many = many.shell(&format!("exec unshare -m sh -c '{}' sh \"$@\"", script.replace('\'', "'\\''")));
        let (native, ran) = (many.native(), many.preloaded());
        assert_eq!((native.code, ran.code, &ran.out), (0, 0, &native.out), "{size}: {}", ran.err);
        let saved = Ledger::all(scratch.path());
        if records {
            assert_eq!(ran.ours(), [""; 0], "{size}");
            assert!(saved[0].counter(counters::DROPPED_RECORDS) > 0, "{size}");
            assert_eq!(saved[0].counter(counters::allocs(gpumem_wire::kinds::AllocKind::Device)), 40000);
        } else {
            assert_eq!(ran.ours().len(), 1, "{size}: {}", ran.err);
            assert!(ran.ours()[0].contains("nothing is recorded"), "{size}: {}", ran.err);
            assert!(saved.is_empty(), "{size}: a ledger that is none was left");
        }
    }
}

/// Started without standard descriptors: none of our files takes their place, so that nothing the
/// program writes there ends in a ledger, and it is told what it would be told natively.
#[test]
fn closed_standard_descriptors() {
    for closed in ["2>&-", "<&-", "<&- 2>&-"] {
        let chatty = client("chatty").env("GPUMEM_NO_SUCH", "1").shell(&format!("exec \"$@\" {closed}"));
        let (native, preloaded) = (chatty.native().ok(), chatty.preloaded().ok());
        assert_eq!(preloaded.json(), native.json(), "{closed}");
        preloaded.ledger().agrees_with(&preloaded.json());
    }
}

/// Nobody reads stderr any more.
#[test]
fn broken_stderr() {
    let small = small().env("GPUMEM_NO_SUCH", "1").env("GPUMEM_SUMMARY", "1");
    let piped = small.clone().shell("{ { sleep 0.2; exec \"$@\"; } 2>&1 >&3 3>&- | true; } 3>&1");
    let ran = piped.preloaded().ok();
    assert_eq!(ran.json()["failures"], 0);
    let full = small.shell("exec \"$@\" 2>/dev/full").preloaded().ok();
    assert_eq!(full.json()["failures"], 0);
    full.ledger().agrees_with(&full.json());
}

/// One line of totals at exit, when asked for.
#[test]
fn summary_line() {
    let ran = says(&small().env("GPUMEM_SUMMARY", "1"), &[&["allocations: 100 made, 0 not freed", "graphs: 0 made"]]);
    assert_eq!(ran.ours().len(), 1);
    let ran = says(&small().env("GPUMEM_LOG", "info"), &[&["recording to", ".ledger"]]);
    assert!(ran.ours()[0].contains(ran.ledger().path.to_str().expect("UTF-8")));
}

/// The shim that cannot be loaded, or twice: the loader's business, and ours to survive.
#[test]
fn preloaded_twice_and_beside_others() {
    let shim = artifacts().shim.display();
    let twice = program("graphs").env("LD_PRELOAD", format!("{shim}:{shim}"));
    let ran = twice.preloaded().ok();
    ran.ledger().agrees_with(&ran.json()).complete().balanced();
    let beside = program("graphs")
        .env("LD_PRELOAD", format!("{}:{shim}", artifacts().clients.join("libnvidia-ask.so").display()));
    let ran = beside.preloaded().ok();
    ran.ledger().agrees_with(&ran.json()).complete().balanced();
}

/// A tool that intercepts, too: record only, and why.
#[test]
fn under_a_tool_it_only_records() {
    let ran = says(&small().env("CUDA_INJECTION64_PATH", "/opt/tool/libinjection.so"), &[]);
    let head = ran.ledger().gpumem("stats", &[])["process"].clone();
    assert_eq!(head["mode"], "record-only");
    assert!(head["mode_reason"].as_str().is_some_and(|why| why.contains("CUDA_INJECTION64_PATH")), "{head}");
    let told = says(&small().env("CUDA_INJECTION64_PATH", "/x").env("GPUMEM_RECORD_ONLY", "0"), &[]);
    assert_eq!(told.ledger().gpumem("stats", &[])["process"]["mode"], "active");
}

/// Without the control thread nothing runs beside the program, and all is recorded.
#[test]
fn without_the_control_thread() {
    let running = client("held").env("GPUMEM_CONTROL", "0").waits().start(true);
    running.says("held");
    let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).expect("it runs");
    let names = tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("comm")).unwrap_or_default());
    assert_eq!(names.filter(|name| name == "gpumem\n").count(), 0);
    let ran = running.finish().ok();
    ran.ledger().agrees_with(&ran.json()).balanced();
}

/// A place without /proc, as a chroot may be: nothing can be recorded there, and one line says why, in words.
#[test]
fn without_proc_a_program_runs_and_is_told_why_nothing_is_recorded() {
    const WITHOUT: &str = r#"exec unshare --mount sh -c 'mount -t tmpfs x /proc && exec "$@"' sh "$@""#;
    if command("true").shell(WITHOUT).native().code != 0 {
        skipped("no mount namespaces can be made here", ROOT);
        return;
    }
    let ran = says(&small().shell(WITHOUT), &[&["/proc is not mounted here", "nothing is recorded"]]);
    assert!(!ran.err.contains("os error"), "{}", ran.err);
}
