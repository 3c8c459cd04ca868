//! Files and sockets that others planted: nothing is waited for without an end, and nobody else is believed.

mod common;
use common::*;
use gpumem_wire::layout::{AllocSlot, StackSlot};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than every time limit, and much shorter than for ever.
const GUARD: Duration = Duration::from_secs(60);

fn run(program: &str, args: &[&std::ffi::OsStr]) {
    let status = Command::new(program).args(args).status().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program}");
}

fn fifo(path: &Path) {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: `name` is a CString: it ends in NUL and lives until mkfifo returns.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// A program whose debug information is in a file of its own, and an address in it.
fn program(dir: &Path) -> (std::path::PathBuf, u64) {
    let (source, app) = (dir.join("app.c"), dir.join("app"));
    std::fs::write(&source, "int middle(int n) { return n * 3; }\nint main(int n) { return middle(n); }\n").unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    run(&cc, &["-g".as_ref(), "-O0".as_ref(), "-o".as_ref(), app.as_ref(), source.as_ref()]);
    let nm = Command::new("nm").arg(&app).output().unwrap();
    let symbols = String::from_utf8(nm.stdout).unwrap();
    let line = symbols.lines().find(|line| line.ends_with(" middle")).unwrap();
    (app, u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap() + 4)
}

fn ledger_of(dir: &Dir, app: &Path, address: u64) {
    let bias = 0x5555_0000_0000;
    let mut composer = begin(me());
    module(&mut composer, app.to_str().unwrap(), bias, 0x10_0000, bias);
    composer.stack(0, StackSlot { allocs: 1, ..Default::default() }, &[bias + address]);
    composer.slots([AllocSlot { stack: 1, bytes: MIB, kind: 1, ..Default::default() }]);
    dir.put(me(), composer);
}

#[test]
fn a_debug_link_to_a_pipe_is_not_opened() {
    let dir = dir();
    let (app, address) = program(dir.path());
    let debug = dir.path().join("app.debug");
    run("objcopy", &["--only-keep-debug".as_ref(), app.as_ref(), debug.as_ref()]);
    run("objcopy", &["--strip-debug".as_ref(), app.as_ref()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    run("objcopy", &[link.as_ref(), app.as_ref()]);
    std::fs::remove_file(&debug).unwrap();
    fifo(&debug);
    ledger_of(&dir, &app, address);
    let begin = Instant::now();
    let answer = dir.gpumem(&["allocs"]);
    assert!(begin.elapsed() < GUARD);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(answer.out.contains("middle (app)"), "the name is the program's own: {}", answer.out);
    assert_eq!(answer.err, "");
}

#[test]
fn pipes_are_neither_exported_nor_recorded_over() {
    let dir = dir();
    let pipe = dir.path().join("pipe");
    fifo(&pipe);
    let pipe = pipe.to_str().unwrap();
    for args in [&["export", "--to", "csv", pipe][..], &["export", "--format", "json", pipe], &["diff", pipe, pipe]] {
        let answer = dir.gpumem(args);
        assert!(matches!(answer.code, 1 | 125), "{args:?}: {}", answer.err);
        assert!(answer.err.contains("regular file"), "{args:?}: {}", answer.err);
    }
    // A trace of a terabyte that stores nothing.
    let trace = dir.path().join("sparse.trace");
    let file = std::fs::File::create(&trace).unwrap();
    file.set_len(1 << 40).unwrap();
    let begin = Instant::now();
    assert_eq!(dir.gpumem(&["export", "--to", "csv", trace.to_str().unwrap()]).code, 1);
    let mut header = [0_u8; 4096];
    header[..8].copy_from_slice(&gpumem_wire::trace::MAGIC);
    header[8..12].copy_from_slice(&gpumem_wire::trace::VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(gpumem_wire::trace::RECORD_BYTES as u32).to_le_bytes());
    std::os::unix::fs::FileExt::write_all_at(&file, &header, 0).unwrap();
    assert_eq!(dir.ok(&["export", "--to", "csv", trace.to_str().unwrap()]).lines().count(), 1);
    assert!(begin.elapsed() < GUARD);
}

#[test]
fn damaged_debug_information_costs_names_and_no_more() {
    let dir = dir();
    let (app, address) = program(dir.path());
    ledger_of(&dir, &app, address);
    let whole = std::fs::read(&app).unwrap();
    let sections = Command::new("readelf").args(["-SW"]).arg(&app).output().unwrap();
    let sections = String::from_utf8(sections.stdout).unwrap();
    let section = |name: &str| {
        let words: Vec<_> =
            sections.lines().find(|line| line.contains(name))?.split(']').nth(1)?.split_whitespace().collect();
        let number = |at: usize| usize::from_str_radix(words[at], 16).unwrap();
        Some(number(3)..number(3) + number(4))
    };
    let names = [".debug_info", ".debug_abbrev", ".debug_line ", ".debug_str ", ".symtab", ".dynsym"];
    let ranges: Vec<_> = names.iter().filter_map(|name| section(name)).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..40 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round % 8 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let range = &ranges[(random >> 60) as usize % ranges.len()];
            bytes[range.start + (random >> 24) as usize % range.len()] = (random >> 16) as u8;
        }
        std::fs::write(&app, &bytes).unwrap();
        let answer = dir.gpumem(&["allocs", "--stacks"]);
        assert_eq!(answer.code, 0, "{round}: {}", answer.err);
        assert!(!answer.err.contains("panicked"), "{round}: {}", answer.err);
    }
}

#[test]
fn a_full_queue_of_connections_is_not_waited_for() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let path = dir.path().join(me().socket_name());
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: listen takes two numbers, and `listener` keeps the descriptor open.
    assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) }, 0);
    let mut waiting = Vec::new();
    loop {
        let (send, receive) = std::sync::mpsc::channel();
        let path = path.clone();
        std::thread::spawn(move || send.send(UnixStream::connect(path)));
        match receive.recv_timeout(Duration::from_millis(500)) {
            Ok(stream) => waiting.push(stream),
            Err(_) => break,
        }
    }
    for args in [&["mark", "x"][..], &["trim"]] {
        let begin = Instant::now();
        let answer = dir.gpumem(args);
        assert!(begin.elapsed() < GUARD);
        assert_eq!(answer.code, 1);
        assert!(answer.err.contains("the request was not sent"), "{}", answer.err);
    }
    assert_eq!(dir.gpumem(&["clean", "--all"]).code, 0);
    assert!(path.exists());
}

#[test]
fn who_answers_has_to_be_the_process() {
    let dir = dir();
    let other = Sleeper::start();
    dir.put(other.id(), demo(other.id()));
    // This test is not that process.
    let listener = UnixListener::bind(dir.path().join(other.id().socket_name())).unwrap();
    listener.set_nonblocking(true).unwrap();
    let answer = dir.gpumem(&["trim", &other.id().pid.to_string()]);
    assert_eq!(answer.code, 1);
    let served = format!("served by pid {}", std::process::id());
    assert!(answer.err.contains(&served), "{}", answer.err);
    let mut said = String::new();
    let (mut stream, _) = listener.accept().unwrap();
    std::io::Read::read_to_string(&mut stream, &mut said).unwrap();
    assert_eq!(said, "", "nothing is said to it");
}

#[test]
fn a_slow_answer_is_not_waited_for_letter_by_letter() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let listener = UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while std::io::Write::write_all(&mut stream, b"o").is_ok() {
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    let begin = Instant::now();
    let answer = dir.gpumem(&["trim"]);
    assert!(begin.elapsed() < GUARD);
    assert!(answer.err.contains("if it has begun the command, it may still finish it"), "{}", answer.err);
}

#[test]
fn a_server_that_hangs_up_does_not_end_gpumem() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let listener = UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    std::thread::spawn(move || {
        loop {
            drop(listener.accept());
        }
    });
    for _ in 0..20 {
        assert_eq!(dir.gpumem(&["trim"]).code, 1, "an error, and no SIGPIPE");
    }
}
