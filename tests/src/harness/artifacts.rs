//! The libraries, the inspector and the programs, beside the test binary in `target/PROFILE`.
//!
//! `make test` builds all of it beforehand. What is missing (`cargo test -p gpumem-tests` alone) is
//! built here, by one process while the others wait.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Paths of the built libraries and programs.
pub struct Artifacts {
    /// libgpumem.so.
    pub shim: PathBuf,
    /// The inspector.
    pub gpumem: PathBuf,
    /// The simulated libraries under their real names, for LD_LIBRARY_PATH.
    pub stage: PathBuf,
    /// The programs that tests/programs builds.
    pub programs: PathBuf,
    /// The programs that tests/programs/clients builds.
    pub clients: PathBuf,
}

/// The top folder.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// How a client of tests/programs/clients is linked.
enum Link {
    /// To the C library alone.
    Plain,
    Driver,
    Runtime,
    /// To the runtime; what it loads can call its functions.
    Exporting,
    /// A shared library that is linked to the C library alone.
    Library,
    /// A shared library that is linked to these libraries of the clients, then to the runtime.
    Plugin(&'static [&'static str]),
    /// A program that is linked to these libraries of the clients, then to the runtime.
    Clients(&'static [&'static str]),
}

/// Clients by the name of their source; libraries first, since programs link to them.
const CLIENTS: &[(&str, Link)] = &[
    ("libaudits.so", Link::Library),
    ("libbackward.so", Link::Plugin(&[])),
    ("libbehind.so", Link::Library),
    ("libbetween.so", Link::Library),
    ("libcaller.so", Link::Plugin(&["libbehind.so"])),
    ("libctor.so", Link::Plugin(&[])),
    ("libcuda.so", Link::Library),
    ("libdenied.so", Link::Library),
    ("libearly.so", Link::Library),
    ("libends.so", Link::Plugin(&[])),
    ("libforking.so", Link::Library),
    ("libkeeps.so", Link::Library),
    ("libnvidia-ask.so", Link::Library),
    ("libplanted.so", Link::Library),
    ("libpretended.so", Link::Library),
    ("libstorm.so", Link::Library),
    ("libstub.so", Link::Library),
    ("libtable.so", Link::Library),
    ("libwaits.so", Link::Library),
    ("libwrap.so", Link::Library),
    ("any_call", Link::Driver),
    ("becomes", Link::Runtime),
    ("bigtls", Link::Runtime),
    ("cancel", Link::Driver),
    ("chatty", Link::Runtime),
    ("closing", Link::Plain),
    ("ctor", Link::Runtime),
    ("ctor_linked", Link::Clients(&["libctor.so"])),
    ("ctor_stubbed", Link::Clients(&["libctor.so", "libstub.so"])),
    ("deep", Link::Runtime),
    ("devices", Link::Runtime),
    ("driver_takes", Link::Driver),
    ("embeds", Link::Exporting),
    ("ends_late", Link::Runtime),
    ("errno", Link::Runtime),
    ("forgets_beside", Link::Runtime),
    ("forks", Link::Runtime),
    ("full_disk", Link::Runtime),
    ("future", Link::Plain),
    ("graph_churn", Link::Driver),
    ("graph_ends", Link::Driver),
    ("graph_gone", Link::Driver),
    ("graph_roots", Link::Driver),
    ("graph_code", Link::Driver),
    ("graph_handles", Link::Driver),
    ("graph_leaves", Link::Driver),
    ("graph_lives", Link::Driver),
    ("graph_order", Link::Driver),
    ("graph_refused", Link::Driver),
    ("graph_steps", Link::Driver),
    ("graph_talks", Link::Driver),
    ("green", Link::Driver),
    ("group", Link::Driver),
    ("checkpoint", Link::Driver),
    ("held", Link::Driver),
    ("holders", Link::Runtime),
    ("idle", Link::Runtime),
    ("limits", Link::Driver),
    ("locations", Link::Driver),
    ("lookup", Link::Plain),
    ("main_ends", Link::Runtime),
    ("many", Link::Runtime),
    ("many_lost", Link::Runtime),
    ("moods", Link::Driver),
    ("newer", Link::Driver),
    ("no_memory", Link::Driver),
    ("nulls", Link::Driver),
    ("own_bytes", Link::Driver),
    ("partial", Link::Plain),
    ("objects", Link::Driver),
    ("opens", Link::Plain),
    ("parked", Link::Driver),
    ("passed", Link::Driver),
    ("perthread", Link::Runtime),
    ("pretender", Link::Clients(&["libpretended.so"])),
    ("python_cost", Link::Clients(&["libpretended.so"])),
    ("ran_out", Link::Driver),
    ("reexec", Link::Runtime),
    ("release", Link::Driver),
    ("reload", Link::Plain),
    ("retry", Link::Driver),
    ("runtime", Link::Runtime),
    ("runtimes", Link::Plain),
    ("shares", Link::Driver),
    ("short_threads", Link::Runtime),
    ("sites", Link::Runtime),
    ("small_stacks", Link::Driver),
    ("streams_beside", Link::Runtime),
    ("stubbed", Link::Clients(&["libstub.so"])),
    ("submits", Link::Driver),
    ("table", Link::Plain),
    ("turnover", Link::Driver),
    ("twins", Link::Plain),
    ("vendor", Link::Plain),
    ("waits_beside", Link::Driver),
    ("walk", Link::Driver),
    ("wild", Link::Driver),
    ("wild_in", Link::Driver),
];

/// Everything that tests need. What is missing is built.
///
/// # Panics
/// With the compiler's output when something cannot be built.
pub fn artifacts() -> &'static Artifacts {
    static ARTIFACTS: OnceLock<Artifacts> = OnceLock::new();
    ARTIFACTS.get_or_init(|| {
        // target/PROFILE/deps/TEST-HASH, or target/PROFILE/NAME of a command.
        let exe = std::env::current_exe().expect("the test's own path");
        let folder = exe.parent().expect("a folder");
        let profile = if folder.ends_with("deps") { folder.parent().expect("target/PROFILE") } else { folder };
        let profile = profile.to_owned();
        let suite = profile.join("suite");
        fs::create_dir_all(&suite).expect("a folder beside the test");
        let lock = File::create(suite.join("lock")).expect("a lock beside the test");
        // SAFETY: flock takes two numbers, and `lock` keeps the descriptor open. Closing it, at the
        // latest on exit, gives the lock back.
        assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0, "the lock");
        libraries(&profile);
        programs(&profile, &suite);
        Artifacts {
            shim: profile.join("libgpumem.so"),
            gpumem: profile.join("gpumem"),
            stage: suite.join("stage"),
            programs: suite.join("programs"),
            clients: suite.join("clients"),
        }
    })
}

/// Builds what cargo makes, if any of it is missing.
fn libraries(profile: &Path) {
    let made = ["libgpumem.so", "gpumem", "libcuda.so", "libcudart11.so", "libcudart12.so", "libcudart13.so"];
    if made.iter().all(|file| profile.join(file).exists()) {
        return;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("build").current_dir(repository()).env("CARGO_TARGET_DIR", profile.parent().expect("target"));
    for package in ["gpumem-shim", "gpumem-inspector", "gpumem-sim-cuda"] {
        cargo.args(["-p", package]);
    }
    for version in [11, 12, 13] {
        cargo.args(["-p".to_owned(), format!("gpumem-sim-cudart{version}")]);
    }
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => &mut cargo,
        Some(name) => cargo.args(["--profile", name]),
    };
    must(&mut cargo);
}

/// Stages the simulator and builds the C programs, if anything they are made of is newer.
fn programs(profile: &Path, suite: &Path) {
    let stamp = suite.join("built");
    let of_clients = repository().join("tests/programs/clients");
    let (of_demo, include) = (repository().join("demo"), repository().join("shim/include"));
    let sources = [repository().join("tests/programs"), of_clients.clone(), of_demo.clone(), include];
    let mut inputs: Vec<PathBuf> = ["libcuda.so", "libcudart11.so", "libcudart12.so", "libcudart13.so"]
        .iter()
        .map(|file| profile.join(file))
        .collect();
    // This file has the table of clients.
    inputs.push(repository().join("tests/src/harness/artifacts.rs"));
    for folder in &sources {
        inputs.extend(fs::read_dir(folder).expect("a source folder").map(|entry| entry.expect("an entry").path()));
    }
    let newest = inputs.iter().map(|path| modified(path)).max();
    if stamp.exists() && newest.is_some_and(|newest| newest <= modified(&stamp)) {
        return;
    }
    // The date is from before the build, so a source that changes during the build counts as newer.
    let now = SystemTime::now();
    let stage = suite.join("stage");
    must(Command::new("sh").arg(repository().join("tests/sim/stage.sh")).arg(profile).arg(&stage));
    let set = |name: &str, path: &Path| format!("{name}={}", path.display());
    let mut make = Command::new("make");
    make.arg("-C").arg(&sources[0]).args([
        "-j2".to_owned(),
        set("OUT", &suite.join("programs")),
        set("CUDART_LIBDIR", &stage),
        set("CUDA_LIBDIR", &stage),
    ]);
    // The simulated HIP exists only if the whole workspace was built.
    if stage.join("libamdhip64.so.6").exists() {
        make.arg(set("HIP_LIBDIR", &stage));
    }
    must(&mut make);
    let clients = suite.join("clients");
    fs::create_dir_all(&clients).expect("a folder for clients");
    for (name, link) in CLIENTS {
        compile(&of_clients, name, link, &stage, &clients);
    }
    compile(&of_demo, "leak", &Link::Plain, &stage, &clients);
    let stamp = File::create(stamp).expect("a stamp");
    stamp.set_modified(now).expect("its date");
}

fn compile(sources: &Path, name: &str, link: &Link, stage: &Path, out: &Path) {
    let source = sources.join(name).with_extension("c");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fno-omit-frame-pointer"]);
    cc.arg("-I").arg(repository().join("tests/programs")).arg("-o").arg(out.join(name)).arg(source);
    let staged = format!("-L{}", stage.display());
    let rpath_link = format!("-Wl,-rpath-link,{}", stage.display());
    let runtime = [&*staged, "-l:libcudart.so.13", &rpath_link];
    let mut clients = |libraries: &[&str]| {
        cc.arg(format!("-L{}", out.display())).arg("-Wl,-rpath,$ORIGIN").arg("-Wl,--no-as-needed");
        cc.args(libraries.iter().map(|library| format!("-l:{library}")));
    };
    match link {
        Link::Plain => &mut cc,
        Link::Driver => cc.args([&staged, "-l:libcuda.so.1"]),
        Link::Runtime => cc.args(runtime),
        Link::Exporting => cc.args(runtime).arg("-rdynamic"),
        Link::Library => cc.args(["-fPIC", "-shared"]),
        Link::Plugin(libraries) => {
            clients(libraries);
            cc.args(["-fPIC", "-shared"]).args(runtime)
        }
        Link::Clients(libraries) => {
            clients(libraries);
            cc.args(runtime)
        }
    };
    must(cc.args(["-pthread", "-ldl"]));
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).and_then(|what| what.modified()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
