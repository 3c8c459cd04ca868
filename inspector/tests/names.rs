//! Names are bytes: directories, files and processes that are called what is no UTF-8 work everywhere, and in JSON
//! each byte that is none is written as `\xNN`.

mod common;
use common::*;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// A cut multibyte name.
const ODD: &[u8] = b"gpum\xe9m \xc3";
const SHOWN: &str = r"gpum\xe9m \xc3";

fn odd_dir(dir: &Dir) -> PathBuf {
    let path = dir.path().join(OsStr::from_bytes(ODD));
    std::fs::create_dir(&path).unwrap();
    path
}

fn in_dir(path: &Path, args: &[&OsStr]) -> Answer {
    let mut command = gpumem();
    command.env("GPUMEM_DIR", path).args(args);
    answer(command)
}

fn json(path: &Path, args: &[&OsStr]) -> serde_json::Value {
    let answer = in_dir(path, &[args, &["--json".as_ref()]].concat());
    assert_eq!(answer.code, 0, "{args:?}: {}", answer.err);
    serde_json::from_str(&answer.out).unwrap()
}

#[test]
fn directories_and_files_need_not_be_utf8() {
    let dir = dir();
    let path = odd_dir(&dir);
    let file = path.join(me().ledger_name());
    std::fs::write(&file, demo(me()).finish()).unwrap();
    let os = OsStr::new;
    let named = |value: &serde_json::Value| value.as_str().unwrap().contains(SHOWN);
    assert!(named(&json(&path, &[os("ps")])["processes"][0]["ledger"]));
    for view in ["allocs", "graphs", "stats", "events"] {
        assert!(named(&json(&path, &[os(view)])["process"]["ledger"]), "{view}");
        assert!(named(&json(&path, &[os(view), file.as_os_str()])["process"]["ledger"]), "{view}");
        assert!(named(&json(&path, &[os(view), os("--file"), file.as_os_str()])["process"]["ledger"]), "{view}");
    }
    json(&path, &[os("diff"), file.as_os_str(), file.as_os_str()]);
    json(&path, &[os("doctor")]);
    let dump = path.join(OsStr::from_bytes(b"\xff.gpumem"));
    assert!(named(&json(&path, &[os("dump"), os("-o"), dump.as_os_str()])["file"]));
    assert!(dump.exists());
    assert_eq!(in_dir(&path, &[os("export"), os("--format"), os("json"), dump.as_os_str()]).code, 0);
    // `--dir` names it too, and a socket in it is reached.
    let listener = UnixListener::bind(path.join(me().socket_name())).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"ok\n").unwrap();
        std::thread::sleep(std::time::Duration::from_secs(1));
    });
    let mut command = gpumem();
    let answer = answer({
        command.arg("--dir").arg(&path).args(["mark", "x"]);
        command
    });
    assert_eq!(answer.code, 0, "{}", answer.err);
    // Where several fit, what to type is what a shell takes.
    let dead = gone();
    std::fs::write(path.join(dead.ledger_name()), demo(dead).finish()).unwrap();
    let cleaned = json(&path, &[os("clean"), os("--all")]);
    assert!(named(&cleaned["removed"][0]["file"]), "{cleaned:#}");
}

#[test]
fn what_to_type_can_be_typed() {
    let dir = dir();
    let path = odd_dir(&dir);
    let other = Sleeper::start();
    for id in [me(), other.id()] {
        std::fs::write(path.join(id.ledger_name()), demo(id).finish()).unwrap();
    }
    let mut command = gpumem();
    command.arg("--dir").arg(&path).arg("allocs");
    let answer = answer(command);
    assert_eq!(answer.code, 4);
    assert!(answer.err.contains(&format!(r"{SHOWN}' allocs {}", me().pid)), "{}", answer.err);
    assert!(answer.err.contains("--dir $'"), "{}", answer.err);
}

#[test]
fn a_process_may_be_called_anything() {
    let dir = dir();
    // A link by such a name: the kernel calls the process so.
    let program = dir.path().join(OsStr::from_bytes(b"n\xe9\xc3"));
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let mut command = std::process::Command::new(&program);
    let other = Sleeper(command.arg0(OsString::from("sleep")).arg("600").spawn().unwrap());
    dir.put(other.id(), demo(other.id()));
    let report = dir.json(&["ps"]);
    assert_eq!(report["processes"][0]["status"], "running", "{report:#}");
    assert_eq!(dir.json(&["allocs"])["process"]["life"], "running");
    assert_eq!(dir.gpumem(&["clean", "--all"]).code, 0);
    assert!(dir.path().join(other.id().ledger_name()).exists());
    dir.json(&["doctor", &other.id().pid.to_string()]);
}

/// A process can be named as `ps` lists it, also once its program's file was replaced.
#[test]
fn what_is_listed_can_be_named() {
    let dir = dir();
    let sleeper = Sleeper::start();
    let mut ledger = demo(sleeper.id());
    ledger.header.exe = ledger.text("/opt/demo/upgraded-server (deleted)");
    dir.put(sleeper.id(), ledger);
    let listed = dir.json(&["ps"])["processes"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!(listed, "upgraded-server");
    assert_eq!(dir.json(&["stats", &listed])["process"]["pid"], sleeper.id().pid);
}
