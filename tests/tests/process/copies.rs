//! Several copies of libgpumem.so in one process: two files in LD_PRELOAD, or one there and one in /etc/ld.so.preload. The
//! first works, the others step aside, and one line says so. An older release that does not step aside is passed over.

use gpumem_tests::harness::hip;

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, Ran, artifacts, client, command, program};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The copies of one test, in a folder that goes with it.
struct Copies(Scratch);

impl Copies {
    fn new() -> Self {
        Self(Scratch::new())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let folder = self.0.path().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("libgpumem.so");
        fs::write(&path, bytes).expect("a copy");
        path
    }

    fn copy(&self, name: &str) -> PathBuf {
        self.put(name, &fs::read(&artifacts().shim).expect("the library"))
    }

    /// A copy that behaves as releases before the rule: it has no marker, and it recognises no other copy.
    fn older(&self) -> PathBuf {
        let mut bytes = fs::read(&artifacts().shim).expect("the library");
        let mut changed = [0; 2];
        for (section, range) in sections(&bytes) {
            let names: &[(&[u8], &[u8])] = match section.as_str() {
                ".dynstr" => &[(b"\0gpumem_copy\0", b"\0gpumem_0000\0")],
                ".rodata" => &[(b"gpumem_copy\0", b"gpumem_0000\0"), (b"gpumem_push_tag\0", b"gpumem_0000_tag\0")],
                _ => continue,
            };
            for (name, other) in names {
                let part = &mut bytes[range.clone()];
                let found: Vec<usize> =
                    (0..part.len() - name.len()).filter(|&at| part[at..].starts_with(name)).collect();
                changed[usize::from(section == ".rodata")] += found.len();
                found.into_iter().for_each(|at| part[at..at + other.len()].copy_from_slice(other));
            }
        }
        assert!(changed[0] == 1 && changed[1] >= 2, "{changed:?}");
        self.put("older", &bytes)
    }
}

/// The sections of an ELF file for 64 bits: the name of each, and where its bytes are.
fn sections(file: &[u8]) -> Vec<(String, std::ops::Range<usize>)> {
    let number = |at: usize, bytes: usize| {
        file[at..at + bytes].iter().rev().fold(0_usize, |number, &byte| number << 8 | usize::from(byte))
    };
    let (table, size, count, names) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2), number(0x3e, 2));
    let at = |index: usize| table + index * size;
    let range = |index: usize| number(at(index) + 0x18, 8)..number(at(index) + 0x18, 8) + number(at(index) + 0x20, 8);
    let name = |index: usize| {
        let text = &file[range(names).start + number(at(index), 4)..];
        String::from_utf8_lossy(text.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
    };
    // What has no bytes in the file lies behind its end.
    (0..count).map(|index| (name(index), range(index))).filter(|(_, range)| range.end <= file.len()).collect()
}

fn preload(program: &Program, libraries: &[&Path]) -> Program {
    let joined = libraries.iter().map(|path| path.as_os_str()).collect::<Vec<_>>().join(&OsString::from(":"));
    program.clone().env("LD_PRELOAD", joined)
}

/// Programs that come to the driver in each way.
fn programs() -> Vec<Program> {
    vec![
        client("many").arg("3"),
        program("driver"),
        program("driver_dlopen"),
        program("graphs"),
        hip::program("hip_basic"),
        hip::program("hip_graphs"),
    ]
}

/// Runs a program under these libraries. It does what it does natively, one copy records all of it, and the lines of
/// gpumem on stderr are these.
#[track_caller]
fn one_works(program: &Program, libraries: &[&Path], says: &[String]) -> Ran {
    let native = program.native().ok();
    let ran = preload(program, libraries).preloaded().ok();
    let failures = |ran: &Ran| ran.json()["failures"].clone();
    assert_eq!((failures(&ran), ran.violations()), (failures(&native), native.violations()), "{libraries:?}");
    assert_eq!(ran.ours(), says.iter().map(String::as_str).collect::<Vec<_>>(), "{libraries:?}");
    assert_eq!(ran.ledgers().len(), 1, "{libraries:?}");
    ran.ledger().agrees_with(&ran.json()).complete();
    ran
}

const FIX: &str = "name one libgpumem.so in LD_PRELOAD and /etc/ld.so.preload together";

fn not_used(path: &Path) -> String {
    let path = path.display();
    format!("gpumem: {path} is another copy of gpumem in this process, and is not used: {FIX}")
}

#[test]
fn the_first_of_two_copies_works() {
    let copies = Copies::new();
    let (first, second) = (artifacts().shim.clone(), copies.copy("second"));
    for program in programs() {
        let ran = one_works(&program, &[&first, &second], &[not_used(&second)]);
        assert!(ran.ledger().messages().iter().any(|line| line.contains(&not_used(&second)["gpumem: ".len()..])));
        one_works(&program.env("GPUMEM_LOG", "quiet"), &[&second, &first], &[]);
    }
}

#[test]
fn the_first_of_three_copies_works() {
    let copies = Copies::new();
    let (first, second, third) = (artifacts().shim.clone(), copies.copy("second"), copies.copy("third"));
    let others = format!("gpumem: {} and {} are other copies of gpumem", second.display(), third.display());
    let line = format!("{others} in this process, and are not used: {FIX}");
    for program in programs() {
        one_works(&program, &[&first, &second, &third], std::slice::from_ref(&line));
    }
}

#[test]
fn an_older_copy_behind_is_passed_over() {
    let copies = Copies::new();
    let (ours, older, third) = (artifacts().shim.clone(), copies.older(), copies.copy("third"));
    let others = format!("gpumem: {} and {} are other copies of gpumem", older.display(), third.display());
    let line = format!("{others} in this process, and are not used: {FIX}");
    for program in programs() {
        one_works(&program, &[&ours, &older], &[not_used(&older)]);
        one_works(&program, &[&ours, &older, &third], std::slice::from_ref(&line));
    }
}

/// An older copy cannot step aside. So where it is first it works, and the others do.
#[test]
fn behind_an_older_copy_ours_steps_aside() {
    let copies = Copies::new();
    let (ours, older, third) = (artifacts().shim.clone(), copies.older(), copies.copy("third"));
    let line = "is an older copy of gpumem that was loaded first: it works, and this one steps aside";
    let line = format!("gpumem: {} {line}: {FIX}", older.display());
    for program in programs() {
        one_works(&program, &[&older, &ours], std::slice::from_ref(&line));
        one_works(&program, &[&older, &ours, &third], std::slice::from_ref(&line));
        one_works(&program.env("GPUMEM_LOG", "quiet"), &[&older, &ours], &[]);
    }
}

/// An interposer between two copies, which looks the next function up, gets the library's own.
#[test]
fn an_interposer_between_two_copies_finds_the_real_function() {
    let copies = Copies::new();
    let (ours, between) = (artifacts().shim.clone(), artifacts().clients.join("libbetween.so"));
    for other in [copies.copy("second"), copies.older()] {
        for program in [client("many").arg("3"), program("driver")] {
            one_works(&program, &[&ours, &between, &other], &[not_used(&other)]);
        }
    }
}

/// Programs without a GPU are silent, however many copies there are, and GPUMEM_DISABLE is obeyed.
#[test]
fn copies_are_silent_where_nothing_is_to_be_said() {
    let copies = Copies::new();
    let (ours, second, older) = (artifacts().shim.clone(), copies.copy("second"), copies.older());
    for libraries in [[&*ours, &*second], [&older, &ours], [&ours, &older]] {
        let ran = preload(&command("true"), &libraries).preloaded().ok();
        assert_eq!((ran.out.as_str(), ran.err.as_str(), ran.dir.exists()), ("", "", false));
        let ran = preload(&client("many").arg("3"), &libraries).env("GPUMEM_DISABLE", "1").preloaded().ok();
        assert_eq!((ran.ours(), ran.dir.exists()), (vec![], false), "{libraries:?}");
    }
}
