//! Real files: what programs on the simulated driver leave, and the files that `gpumem` makes from those.

use super::image::Image;
use crate::harness::{artifacts, program};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ledger,
    Dump,
    Trace,
    Recording,
    /// A program, with debug information or a link to it.
    Program,
}

/// A real file from which damaged files are made.
pub struct Seedling {
    pub name: String,
    pub kind: Kind,
    pub image: Image,
}

/// Programs that together fill every table of a ledger.
const PROGRAMS: &[&str] = &["basic", "graphs", "captures", "pool_graphs", "errors", "driver"];

/// Makes the files of a corpus in a directory.
///
/// # Errors
/// Says what could not be made.
pub fn plant(dir: &Path) -> Result<(), String> {
    let gpumem = |args: &[&std::ffi::OsStr]| {
        let status = Command::new(&artifacts().gpumem).args(args).stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success()).then_some(()).ok_or(format!("gpumem {args:?} failed"))
    };
    for name in PROGRAMS {
        let trace = dir.join(format!("{name}.trace"));
        let ran = program(name).env("GPUMEM_ALLOC_TRACE", &trace).preloaded();
        let left = std::fs::read_dir(&ran.dir).map_err(|error| format!("{}: {error}", ran.dir.display()))?;
        let ledger =
            left.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "ledger"));
        let ledger = ledger.ok_or(format!("{name} left no ledger: {}", ran.err))?;
        let kept = dir.join(format!("{name}.ledger"));
        let image = File::open(&ledger).and_then(|file| Image::of(&file));
        let written = image.and_then(|image| image.write(&File::create(&kept)?));
        written.map_err(|error| format!("{}: {error}", kept.display()))?;
        let dump = dir.join(format!("{name}.dump"));
        gpumem(&["dump".as_ref(), ledger.as_os_str(), "-o".as_ref(), dump.as_os_str()])?;
        if !trace.exists() {
            return Err(format!("{name} left no trace"));
        }
        record(&dir.join(format!("{name}.recording")), &ran.dir, name)?;
    }
    programs(dir)
}

/// Programs with debug information as it comes: in them, packed, and beside them.
fn programs(dir: &Path) -> Result<(), String> {
    const SOURCE: &str = "static inline __attribute__((always_inline)) int leaf(int n) { return n * 3; }\n\
                          int middle(int n) { return leaf(n) + 1; }\nint main(void) { return middle(2); }\n";
    let at = |name: &str| dir.join(name).to_str().expect("a scratch directory is text").to_owned();
    std::fs::write(at("app.c"), SOURCE).map_err(|error| error.to_string())?;
    std::fs::write(at("link"), [&b"program.debug\0\0\0"[..], &[1; 4]].concat()).map_err(|error| error.to_string())?;
    std::fs::write(at("altlink"), [&b"program.debug\0"[..], &[7; 20]].concat()).map_err(|error| error.to_string())?;
    let run = |words: &[&str]| {
        let status = Command::new(words[0]).args(&words[1..]).stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success()).then_some(()).ok_or(format!("{words:?} failed"))
    };
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    run(&[&cc, "-g", "-O1", "-o", &at("whole.elf"), &at("app.c")])?;
    run(&["objcopy", "--compress-debug-sections=zlib", &at("whole.elf"), &at("packed.elf")])?;
    run(&["objcopy", "--only-keep-debug", &at("whole.elf"), &at("apart.elf")])?;
    let link = format!(".gnu_debuglink={}", at("link"));
    let altlink = format!(".gnu_debugaltlink={}", at("altlink"));
    run(&["objcopy", "--strip-debug", "--add-section", &link, &at("whole.elf"), &at("linked.elf")])?;
    run(&["objcopy", "--add-section", &link, "--add-section", &altlink, &at("whole.elf"), &at("twice.elf")])
}

/// Records a run of a program.
fn record(path: &Path, dir: &Path, name: &str) -> Result<(), String> {
    let mut gpumem = Command::new(&artifacts().gpumem);
    gpumem.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", &artifacts().stage).env("GPUMEM_DIR", dir);
    gpumem.env("GPUMEM_LIB", &artifacts().shim).args(["record", "-d", "0.05", "-o"]).arg(path);
    gpumem.arg("--").arg(artifacts().programs.join(name));
    let ran = gpumem.stdin(Stdio::null()).output().map_err(|error| format!("gpumem record: {error}"))?;
    match path.exists() {
        true => Ok(()),
        false => Err(format!("{name} left no recording: {}", String::from_utf8_lossy(&ran.stderr))),
    }
}

/// Reads a corpus.
///
/// # Errors
/// Says what cannot be read.
pub fn gather(dir: &Path) -> Result<Vec<Seedling>, String> {
    let entries = std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut corpus = Vec::new();
    for path in paths {
        let kind = match path.extension().and_then(|end| end.to_str()) {
            Some("ledger") => Kind::Ledger,
            Some("dump") => Kind::Dump,
            Some("trace") => Kind::Trace,
            Some("recording") => Kind::Recording,
            Some("elf") => Kind::Program,
            _ => continue,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let image = File::open(&path).and_then(|file| Image::of(&file)).map_err(|error| format!("{name}: {error}"))?;
        corpus.push(Seedling { name, kind, image });
    }
    Ok(corpus)
}
