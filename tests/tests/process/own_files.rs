//! The shim's own files: whatever the umask, the process's name and what lies there already, the program runs as
//! natively, and nobody else's file is touched.

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Ledger, artifacts, client, command};
use gpumem_tests::skipped::{ROOT, skipped};
use gpumem_wire::place::ProcessId;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// The name of the ledger of a shell that runs a script. The program that it becomes by exec has the same name.
const OWN_NAME: &str = "$$-$(sed \"s/.*) //\" /proc/$$/stat | cut -d\" \" -f20)";

fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A umask that takes everything away leaves a directory and files that their owner can use.
#[test]
fn a_umask_takes_nothing_from_us() {
    let scratch = Scratch::new();
    for below in ["ledgers", "some/way/down"] {
        let dir = scratch.path().join(below);
        let many = client("many").arg("50").dir(&dir).env("GPUMEM_ALLOC_TRACE", scratch.path().join("trace"));
        let many = if is_root() { many.user(65534) } else { many };
        let ran = many.shell("umask 0777; exec \"$@\"").preloaded().ok();
        assert_eq!(ran.ours(), [""; 0], "{below}");
        let mode = |path: &Path| fs::metadata(path).expect("it was made").mode() & 0o7777;
        assert_eq!((mode(&dir), mode(&ran.ledger().path)), (0o700, 0o600), "{below}");
        assert_eq!(mode(&scratch.path().join("trace")), 0o600);
        ran.ledger().agrees_with(&ran.json());
        fs::remove_file(scratch.path().join("trace")).expect("the trace");
    }
}

/// A default directory that a umask has closed to its own owner is opened again.
#[test]
fn a_directory_that_was_left_closed_is_opened() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("gpumem");
    fs::create_dir(&dir).expect("a directory");
    fs::set_permissions(&dir, Permissions::from_mode(0o0)).expect("its mode");
    let many = client("many").arg("50").without("GPUMEM_DIR").env("XDG_RUNTIME_DIR", scratch.path());
    let ran = many.preloaded().ok();
    assert_eq!(ran.ours(), [""; 0]);
    Ledger::of_pid(&dir, ran.pid).expect("a ledger").agrees_with(&ran.json());
}

/// A FIFO, a device or a directory under the name of the ledger, the socket or the trace: nothing waits for it.
#[test]
fn what_lies_under_our_names_holds_nobody_up() {
    let kinds: &[&str] = if is_root() { &["mkfifo", "mknod_null", "mkdir"] } else { &["mkfifo", "mkdir"] };
    for kind in kinds {
        for name in ["ledger", "sock", "trace"] {
            let scratch = Scratch::new();
            let make = match *kind {
                "mknod_null" => "node() { mknod \"$1\" c 1 3; }",
                "mkfifo" => "node() { mkfifo \"$1\"; }",
                _ => "node() { mkdir \"$1\"; }",
            };
            let script =
                format!("{make}; mkdir -p \"$GPUMEM_DIR\"; node \"$GPUMEM_DIR/{OWN_NAME}.{name}\"; exec \"$@\"");
            let dir = scratch.path().join("ledgers");
            let many = client("many").arg("50").dir(&dir);
            let many = if name == "trace" { many.env("GPUMEM_ALLOC_TRACE", dir.join("all.trace")) } else { many };
            let script = if name == "trace" {
                format!("{make}; mkdir -p \"$GPUMEM_DIR\"; node \"$GPUMEM_ALLOC_TRACE\"; exec \"$@\"")
            } else {
                script
            };
            let ran = many.shell(&script).preloaded().ok();
            if (*kind, name) == ("mkdir", "ledger") {
                assert!(ran.ours().len() == 1 && ran.ours()[0].contains("nothing is recorded"), "{:?}", ran.ours());
                continue;
            }
            assert_eq!(ran.ours(), [""; 0], "{kind} {name}");
            ran.ledger().agrees_with(&ran.json());
        }
    }
}

/// A thread's name ends in half a character. The process is recorded, and nobody takes it for dead.
#[test]
fn a_name_that_is_not_utf8() {
    let scratch = Scratch::new();
    let odd = "printf \"\\346\\274\" > /proc/$$/comm; exec \"$@\"";
    // The name must outlive the exec, so the program's file bears it.
    let mut bytes = scratch.path().as_os_str().as_bytes().to_vec();
    bytes.extend_from_slice(b"/\xe6\xbc");
    let file = OsString::from_vec(bytes);
    fs::copy(artifacts().clients.join("held"), &file).expect("a copy of the program");
    let dir = scratch.path().join("ledgers");
    let running = command(&file).dir(&dir).waits().start(true);
    running.says("held");
    let stat = fs::read(format!("/proc/{}/stat", running.pid())).expect("it runs");
    assert!(std::str::from_utf8(&stat).is_err(), "{odd}: the name is what it is to be");
    let id = running.ledger().id;
    // Twenty other processes begin and end beside it, and remove old ledgers.
    for _ in 0..20 {
        client("many").arg("1").dir(&dir).preloaded().ok();
    }
    assert!(dir.join(id.ledger_name()).exists() && dir.join(id.socket_name()).exists());
    let ran = running.finish().ok();
    ran.ledger().agrees_with(&ran.json());
}

/// Files in the directory that look like ledgers of the dead and are not ours, or are no ledgers, stay.
#[test]
fn the_sweep_removes_what_is_ours_alone() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("ledgers");
    // Without a control thread a program sweeps before its first call ends.
    let sweeps = client("many").arg("1").dir(&dir).env("GPUMEM_CONTROL", "0");
    for _ in 0..12 {
        sweeps.preloaded().ok();
    }
    let left = Ledger::all(&dir);
    assert!(left.len() <= 9, "{} ledgers of the dead", left.len());
    let bytes = fs::read(&left[0].path).expect("a ledger");
    // Under names that no process writes, and, for root, as another user's.
    let odd: Vec<_> = ["+5-+6.ledger", "05-6.ledger"].iter().map(|name| dir.join(name)).collect();
    let others: Vec<_> =
        (0..12).map(|n| dir.join(ProcessId { pid: 4_000_000 + n, start_ticks: 1 }.ledger_name())).collect();
    for path in odd.iter().chain(&others) {
        fs::write(path, &bytes).expect("a file");
        if is_root() {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("another owner");
        }
    }
    sweeps.preloaded().ok();
    assert!(odd.iter().chain(&others).all(|path| path.exists()));
}

/// A program with more rights than its caller, which the library comes into by /etc/ld.so.preload, is left alone:
/// what the caller wrote into the environment does not count, and nothing is recorded.
#[test]
fn a_setuid_program_is_left_alone() {
    if !is_root() || command("unshare").args(["-m", "true"]).native().code != 0 {
        skipped("no setuid program and no /etc/ld.so.preload can be made but by root", ROOT);
        return;
    }
    let scratch = Scratch::new();
    // In the file system of root, where setuid counts. The libraries come by name: LD_LIBRARY_PATH does not count.
    let place = scratch.path();
    let dir = place.join("ledgers");
    fs::create_dir(&dir).expect("a directory");
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("its mode");
    let program = place.join("many");
    fs::copy(artifacts().clients.join("many"), &program).expect("a copy of the program");
    fs::copy(&artifacts().shim, place.join("libgpumem.so")).expect("a copy of the library");
    let script = format!(
        "mount --make-rprivate / 2>/dev/null; echo {0}/libgpumem.so > {0}/preload; echo {1} > {0}/conf
         mount --bind {1} {0}/stage && touch /etc/ld.so.preload && mount --bind {0}/preload /etc/ld.so.preload || exit 99
         cp -a /etc/ld.so.cache {0}/cache; echo {0}/stage > {0}/ld.so.conf
         ldconfig -C {0}/cache -f {0}/ld.so.conf {0}/stage /lib/x86_64-linux-gnu /lib64 2>/dev/null
         mount --bind {0}/cache /etc/ld.so.cache || exit 99
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"",
        place.display(),
        artifacts().stage.display()
    );
    fs::create_dir(place.join("stage")).expect("a directory");
    let existed = Path::new("/etc/ld.so.preload").exists();
    let run = |mode| {
        fs::set_permissions(&program, Permissions::from_mode(mode)).expect("its mode");
        let many = command(&program).arg("50").env("GPUMEM_DIR", &dir).env("GPUMEM_ALLOC_TRACE", dir.join("trace"));
        let many = many.without("LD_PRELOAD").without("LD_LIBRARY_PATH");
        many.shell(&format!("exec unshare -m sh -c '{script}' sh \"$@\"")).native()
    };
    let (plain, setuid) = (run(0o755), run(0o4755));
    if !existed {
        let _ = fs::remove_file("/etc/ld.so.preload");
    }
    if plain.code != 0 || fs::read_dir(&dir).expect("readable").count() == 0 {
        let why = format_args!("the library does not come by /etc/ld.so.preload here: {}", plain.err.trim());
        skipped(why, "a loader that reads it");
        return;
    }
    let found =
        || fs::read_dir(&dir).expect("readable").map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>();
    assert_eq!(setuid.code, 0, "{}", setuid.err);
    let left = found();
    assert!(left.iter().all(|path| fs::metadata(path).is_ok_and(|what| what.uid() == 65534)), "{left:?}");
    let traces = left.iter().filter(|path| path.to_string_lossy().contains("trace")).count();
    assert_eq!((left.len(), traces), (2, 1), "those of the program without more rights: {left:?}");
}
