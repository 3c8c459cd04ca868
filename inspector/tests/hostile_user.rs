//! Obstacles that another user puts in the way of root's `gpumem`: devices, pipes and sockets where a file is expected,
//! links that lead out of a namespace. Only regular files are opened. Cases that root alone can make are tried by root
//! alone.

mod common;
use common::opens::Opens;
use common::skipped::{ROOT, skipped};
use common::*;
use gpumem_wire::layout::{AllocSlot, StackSlot};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// Views that read symbols.
const VIEWS: &[&[&str]] = &[
    &["allocs", "--stacks"],
    &["leaks", "--all", "--stacks"],
    &["graphs", "--all", "--stacks"],
    &["export", "--to", "folded"],
    &["export", "--to", "prometheus"],
    &["report", "-o", "-"],
    &["doctor"],
];

fn tool(name: &str, args: &[&str]) {
    let status = Command::new(name).args(args).status();
    assert!(status.unwrap_or_else(|error| panic!("{name} is needed: {error}")).success(), "{name} {args:?}");
}

/// Makes a node; false where only root may.
fn node(path: &Path, kind: u32) -> bool {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // A device that does nothing, as /dev/null.
    // SAFETY: `name` is a CString that lives until the call returns.
    unsafe { libc::mknod(name.as_ptr(), kind | 0o666, libc::makedev(1, 3)) == 0 }
}

/// Makes things that are no regular files, under names in a directory: a pipe, a socket and, if made by root, a device.
/// Returns their names, and the pipe: it is held open, so that an opening does not wait and is seen.
fn traps(dir: &Path, name: &str) -> (Vec<String>, std::fs::File) {
    let named = |kind: &str| format!("{name}{kind}");
    let mut names = vec![named("pipe"), named("socket")];
    assert!(node(&dir.join(&names[0]), libc::S_IFIFO));
    std::os::unix::net::UnixListener::bind(dir.join(&names[1])).unwrap();
    let held = std::fs::File::options().read(true).write(true).open(dir.join(&names[0])).unwrap();
    match node(&dir.join(named("device")), libc::S_IFCHR) {
        true => names.push(named("device")),
        false => skipped("a device: only root makes one", ROOT),
    }
    (names, held)
}

const SOURCE: &str = r#"
volatile int sink;
__attribute__((noinline)) void callee(void) { sink++; }
__attribute__((noinline)) void middle(void) {
    callee();
    __asm__ volatile(".globl after_middle\nafter_middle:");
    sink++;
}
int main(void) { middle(); return 0; }
"#;

/// A program with debug information: `app`. What comes behind a call in `middle`.
fn build(dir: &Path, more: &[&str]) -> u64 {
    let (source, app) = (dir.join("app.c"), dir.join("app"));
    std::fs::write(&source, SOURCE).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let (source, app) = (source.to_str().unwrap(), app.to_str().unwrap());
    tool(&cc, &[&["-g", "-O1", "-pie", "-fPIE", "-Wl,--build-id", "-o", app, source], more].concat());
    let symbols = Command::new("nm").arg(app).output().expect("nm is needed");
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let line = symbols.lines().find(|line| line.ends_with("after_middle")).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

const BIAS: u64 = 0x5555_0000_0000;

/// The ledger of this test as a program that allocated in `middle` of a file.
fn put(dir: &Dir, file: &str, address: u64) {
    let id = me();
    let mut composer = begin(id);
    module(&mut composer, file, BIAS, 0x10_0000, BIAS);
    let stack = StackSlot { allocs: 1, alloc_bytes: MIB, ..Default::default() };
    composer.stack(0, stack, &[BIAS + address]);
    composer.slots([AllocSlot { stack: 1, bytes: MIB, kind: 1, ..Default::default() }]);
    dir.put(id, composer);
}

/// The bytes of a section that links to a file: its name, filled up to a word, and what it is recognised by.
fn link(name: &[u8], id: &[u8], fill: bool) -> Vec<u8> {
    let mut bytes = [name, &[0]].concat();
    while fill && bytes.len() % 4 != 0 {
        bytes.push(0);
    }
    [&bytes[..], id].concat()
}

#[test]
fn links_to_debug_information_open_nothing_but_files() {
    let (dir, files) = (dir(), tempfile::tempdir().unwrap());
    let address = build(files.path(), &[]);
    let at = |name: &str| files.path().join(name);
    let (names, _held) = traps(files.path(), "trap-");
    let opens = Opens::of(files.path());
    let folder = files.path().file_name().unwrap().to_str().unwrap().to_owned();
    for name in &names {
        let whole = at(name).to_str().unwrap().to_owned();
        for path in [name.clone(), format!("../{folder}/{name}"), whole.clone()] {
            for section in [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"] {
                let bytes = match section {
                    ".gnu_debuglink" => link(path.as_bytes(), &[1, 2, 3, 4], true),
                    ".gnu_debugaltlink" => link(path.as_bytes(), &[7; 20], false),
                    _ => [&[5, 0, 0], &link(path.as_bytes(), &[1, 9], false)[..]].concat(),
                };
                std::fs::write(at("section"), bytes).unwrap();
                let linked = at(&format!("linked{}", section.replace('.', "-")));
                let add = format!("{section}={}", at("section").display());
                tool("objcopy", &["--add-section", &add, at("app").to_str().unwrap(), linked.to_str().unwrap()]);
                put(&dir, linked.to_str().unwrap(), address);
                opens.names();
                for view in VIEWS {
                    let answer = dir.gpumem(view);
                    assert!(matches!(answer.code, 0 | 1 | 5), "{view:?}: {} {}", answer.code, answer.err);
                }
                let opened = opens.names();
                let bad = opened.iter().find(|opened| names.contains(opened));
                assert_eq!(bad, None, "{section} {path}");
                // It is read all the same.
                let report = dir.json(&["allocs"]);
                assert_eq!(report["rows"][0]["site"]["function"], "middle", "{section} {path}: {report:#}");
            }
        }
    }
}

#[test]
fn a_package_beside_a_program_is_a_file_or_left_alone() {
    let (dir, files) = (dir(), tempfile::tempdir().unwrap());
    let address = build(files.path(), &[]);
    let (names, _held) = traps(files.path(), "app.dwp-");
    for name in names {
        std::fs::rename(files.path().join(&name), files.path().join("app.dwp")).unwrap();
        put(&dir, files.path().join("app").to_str().unwrap(), address);
        let opens = Opens::of(files.path());
        let report = dir.json(&["allocs"]);
        assert_eq!(report["rows"][0]["site"]["function"], "middle", "{name}: {report:#}");
        let opened = opens.names();
        assert!(opened.contains("app") && !opened.contains("app.dwp"), "{name}: {opened:?}");
    }
}

#[test]
fn a_module_that_is_no_file_is_left_alone() {
    let (dir, files) = (dir(), tempfile::tempdir().unwrap());
    let (names, _held) = traps(files.path(), "module-");
    let opens = Opens::of(files.path());
    for name in names {
        put(&dir, files.path().join(&name).to_str().unwrap(), 0x1000);
        for view in VIEWS {
            dir.gpumem(view);
        }
        assert!(!opens.names().contains(&name), "{name}");
    }
}

#[test]
fn a_ledgers_name_that_is_no_file_is_left_alone() {
    let dir = dir();
    let (names, _held) = traps(dir.path(), "");
    let opens = Opens::of(dir.path());
    for (number, name) in names.iter().enumerate() {
        let ledger = format!("{}-1.ledger", 0x3fff_0000 + number);
        std::fs::rename(dir.path().join(name), dir.path().join(&ledger)).unwrap();
        let whole = dir.path().join(&ledger);
        for args in [&["ps"][..], &["doctor", "--all"], &["clean"]] {
            dir.gpumem(args);
        }
        for args in
            [&["allocs"][..], &["allocs", "--file"], &["report", "-o", "-"], &["export", "--to", "csv"], &["diff"]]
        {
            let words: Vec<&str> = args.iter().copied().chain([whole.to_str().unwrap()]).collect();
            let answer = dir.gpumem(&words);
            assert_ne!(answer.code, 0, "{words:?}: {}", answer.out);
        }
        let opened = opens.names();
        assert!(!opened.contains(&ledger), "{name}: {opened:?}");
    }
    let report = dir.json(&["ps"]);
    let rows = report["processes"].as_array().unwrap();
    assert!(rows.len() == names.len() && rows.iter().all(|row| row["status"] == "unreadable"), "{report:#}");
}

/// Sockets are looked at before anything connects to them: what has a socket's name, and is none, is neither opened nor
/// removed, and a link to another socket is not followed.
#[test]
fn a_sockets_name_that_is_none_is_left_alone() {
    let dir = dir();
    let sleeper = Sleeper::start();
    dir.put(sleeper.id(), demo(sleeper.id()));
    let (mut names, _held) = traps(dir.path(), "trap-");
    let others = dir.path().join("others");
    let listener = std::os::unix::net::UnixListener::bind(&others).unwrap();
    listener.set_nonblocking(true).unwrap();
    names.retain(|name| !name.ends_with("socket"));
    std::os::unix::fs::symlink(&others, dir.path().join("link")).unwrap();
    names.push("link".into());
    let opens = Opens::of(dir.path());
    for name in names {
        for id in [sleeper.id(), gone()] {
            let socket = dir.path().join(id.socket_name());
            std::fs::rename(dir.path().join(&name), &socket).unwrap();
            let pid = id.pid.to_string();
            for args in [
                &["trim", &pid][..],
                &["mark", "x", &pid],
                &["set", &pid, "POOL=0"],
                &["doctor", &pid],
                &["clean", "--all"],
            ] {
                dir.gpumem(args);
            }
            assert!(!opens.names().contains(socket.file_name().unwrap().to_str().unwrap()), "{name}");
            assert!(std::fs::symlink_metadata(&socket).is_ok(), "{name} is left");
            std::fs::rename(&socket, dir.path().join(&name)).unwrap();
        }
    }
    assert!(listener.accept().is_err(), "nothing connects to another's socket");
}

/// In a mount namespace: a folder of its own with a program, whose debug information lies beside it, and a process with the
/// library. In its way out there: traps under the same names, and links that lead out of the namespace's root.
const INSIDE: &str = r#"
set -e
mkdir "$1/inner" && mount -t tmpfs tmpfs "$1/inner" && cp -a "$1/seed/." "$1/inner/"
mount --bind "$1/inner" "$1/place"
mkdir -m 700 -p "$1/place/ledgers"
start=$(sed 's/.*) //' /proc/$$/stat | cut -d ' ' -f 20)
cp "$1/place/ledger" "$1/place/ledgers/$$-$start.ledger"
echo ready > "$1/ready"
GPUMEM_DIR="$1/place/ledgers" LD_PRELOAD="$2" exec sleep 600
"#;

fn namespaces() -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "mount", "-t", "tmpfs", "x", "/mnt"]);
    let can = probe.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success());
    if !can {
        skipped("no namespaces can be made here", ROOT);
    }
    can
}

#[test]
fn debug_information_of_a_namespace_is_the_namespaces() {
    if !namespaces() {
        return;
    }
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    for dir in ["seed", "place"] {
        std::fs::create_dir(at(dir)).unwrap();
    }
    let address = build(&at("seed"), &[]);
    let seed = |name: &str| at("seed").join(name).to_str().unwrap().to_owned();
    tool("objcopy", &["--only-keep-debug", &seed("app"), &seed("app.debug")]);
    tool("strip", &[&seed("app")]);
    tool("objcopy", &[&format!("--add-gnu-debuglink={}", seed("app.debug")), &seed("app")]);
    // Out here, traps and another program lie under these names.
    let (mut names, _held) = traps(&at("place"), "");
    std::fs::rename(at("place").join(names.pop().unwrap()), at("place/app.debug")).unwrap();
    std::fs::write(at("place/app"), "none").unwrap();
    let library = library(top.path());
    let mut composer = begin(gone());
    composer.header.pid_ns = 0;
    module(&mut composer, at("place/app").to_str().unwrap(), BIAS, 0x10_0000, BIAS);
    composer.stack(0, StackSlot { allocs: 1, alloc_bytes: MIB, ..Default::default() }, &[BIAS + address]);
    composer.slots([AllocSlot { stack: 1, bytes: MIB, kind: 1, ..Default::default() }]);
    std::fs::write(at("seed/ledger"), composer.finish()).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", INSIDE, "sh"]).arg(top.path()).arg(&library).env_remove("XDG_RUNTIME_DIR");
    let process = Sleeper(command.env_remove("GPUMEM_DIR").spawn().unwrap());
    let pid = process.0.id().to_string();
    wait_for(|| std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libgpumem.so")));
    let opens = Opens::of(&at("place"));
    let run = |args: &[&str]| {
        let mut command = gpumem();
        command.args(args);
        answer(command)
    };
    let found = run(&["allocs", "--json", &pid]);
    assert_eq!(found.code, 0, "{}", found.err);
    let report: serde_json::Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(report["rows"][0]["site"]["function"], "middle", "{report:#}");
    assert_eq!(report["rows"][0]["site"]["line"], 5, "{report:#}");
    assert!(opens.names().is_empty(), "out here nothing is opened");
}

/// A process whose ledger's folder is a link: inside its own root, that leads to where the process says, and not to the same
/// path out here; and a link of /proc leads nowhere.
#[test]
fn links_in_a_namespace_lead_nowhere_out_of_it() {
    if !namespaces() {
        return;
    }
    let top = tempfile::tempdir().unwrap();
    let library = library(top.path());
    let mut outer = begin(gone());
    outer.header.pid_ns = 0;
    std::fs::write(top.path().join("ledger"), outer.finish()).unwrap();
    std::fs::create_dir(top.path().join("place")).unwrap();
    // What a link that were followed out here would lead to.
    std::fs::create_dir(top.path().join("out")).unwrap();
    let inside = r#"
set -e
start=$(sed 's/.*) //' /proc/$$/stat | cut -d ' ' -f 20)
name=$$-$start.ledger
cp "$1/ledger" "$1/out/$name"
mount -t tmpfs tmpfs "$1/place"
case $3 in
absolute) ln -s "$1/out" "$1/place/dir" && mount -t tmpfs tmpfs "$1/out";;
proc) ln -s "/proc/1/root$1/out" "$1/place/dir";;
esac
GPUMEM_DIR="$1/place/dir" LD_PRELOAD="$2" exec sleep 600
"#;
    for way in ["absolute", "proc"] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", inside, "sh"]).arg(top.path()).arg(&library).arg(way);
        let process = Sleeper(command.env_remove("XDG_RUNTIME_DIR").spawn().unwrap());
        let pid = process.0.id().to_string();
        wait_for(|| {
            std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libgpumem.so"))
        });
        let name = process.id().ledger_name();
        assert!(top.path().join("out").join(&name).exists(), "out here there is one");
        let opens = Opens::of(&top.path().join("out"));
        let mut command = gpumem();
        command.args(["allocs", &pid]);
        let found = answer(command);
        assert_ne!(found.code, 0, "{way}: {}", found.out);
        assert!(opens.names().is_empty(), "{way}: {}", found.err);
    }
}

fn wait_for(mut is: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it did not come to be in 10 s");
}
