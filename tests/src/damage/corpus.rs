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
/// What could not be made.
pub fn plant(dir: &Path) -> Result<(), String> {
    let gpumem = |args: &[&std::ffi::OsStr]| {
        let status = Command::new(&artifacts().gpumem).args(args).stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success()).then_some(()).ok_or(format!("gpumem {args:?} failed"))
    };
    for name in PROGRAMS {
        let trace = dir.join(format!("{name}.trace"));
        let ran = program(name).env("GPUMEM_RECORD", &trace).preloaded();
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
    Ok(())
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
/// What cannot be read.
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
            _ => continue,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let image = File::open(&path).and_then(|file| Image::of(&file)).map_err(|error| format!("{name}: {error}"))?;
        corpus.push(Seedling { name, kind, image });
    }
    Ok(corpus)
}
