//! `gpumem selftest --rules`: checks the rules of the CUDA driver, natively and preloaded, and writes a verdict that
//! every later process follows ([`gpumem_wire::verdict`]): what may be on. If that is nothing, gpumem only records.

use super::cuda::{self, Driver, Gpu};
use super::ways::{GRAPH_CACHE, POOL};
use super::{Args, Findings, Setup};
use crate::failure::{Failure, Result, plain};
use gpumem_wire::verdict::{self, Subject, Verdict};
use rustix::process::geteuid;
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Users whose processes follow a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum VerdictUsers {
    /// Every user's: /var/lib/gpumem, which takes root
    System,
    /// This user's: gpumem in $XDG_STATE_HOME or ~/.local/state
    User,
}

/// A verdict and its path.
#[derive(Debug, Serialize)]
pub(super) struct WrittenVerdict {
    pub path: PathBuf,
    pub driver: u32,
    pub gpu: String,
    pub pool: bool,
    pub graph_cache: bool,
}

impl WrittenVerdict {
    fn of(path: PathBuf, verdict: Verdict) -> Self {
        let Verdict { subject: Subject { driver, gpu, .. }, pool, graph_cache } = verdict;
        Self { path, driver, gpu, pool, graph_cache }
    }
}

/// Returns the verdict of that place on the device to be tested, if the user asked for no second one and later processes
/// of this user accept it.
fn there(dir: &Path, subject: &Subject, args: &Args) -> Option<WrittenVerdict> {
    let (found, _) = verdict::find(&[dir.to_owned()], subject, geteuid().as_raw());
    found.filter(|_| args.if_missing).map(|found| WrittenVerdict::of(found.path, found.verdict))
}

/// Tests the first device, and writes the verdict on its kind; names the kinds that were not tested.
///
/// # Errors
/// `Code::Usage` (2) if the verdict could not be written: there is none then.
pub(super) fn findings(setup: &Setup, args: &Args) -> Result<Findings> {
    let dir = directory(args.place).map_err(Failure::usage)?;
    let tried = || {
        let programs = cuda::programs(&setup.lib)?;
        let Driver { version, gpus } = cuda::asked(&programs)?;
        let first = gpus.first().ok_or("the CUDA driver: it has no device")?;
        let release = env!("CARGO_PKG_VERSION").to_owned();
        let subject = Subject { release, driver: version, gpu: first.name.clone(), capability: first.capability };
        if let Some(there) = there(&dir, &subject, args) {
            return Ok(Err(there));
        }
        let (section, _, on) = cuda::tried(setup, &programs)?;
        let mut others: Vec<&Gpu> = gpus.iter().filter(|gpu| *gpu != first).collect();
        others.dedup();
        let others = others.iter().map(|gpu| {
            let Gpu { name, capability: (major, minor) } = gpu;
            format!("{name} ({major}.{minor}): name it in CUDA_VISIBLE_DEVICES to try it")
        });
        Ok(Ok((section, Verdict { subject, pool: on.has(POOL), graph_cache: on.has(GRAPH_CACHE) }, others.collect())))
    };
    let (sections, written, not_run) = match tried() {
        Err(why) => (vec![], None, vec![why]),
        Ok(Err(there)) => (vec![], Some(there), vec![]),
        Ok(Ok((section, verdict, others))) => {
            let path = write(&dir, &verdict).map_err(Failure::usage)?;
            (vec![section], Some(WrittenVerdict::of(path, verdict)), others)
        }
    };
    Ok(Findings { sections, not_run, written })
}

/// Returns the directory of the verdict.
fn directory(place: Option<VerdictUsers>) -> std::result::Result<PathBuf, String> {
    match place.unwrap_or(if geteuid().is_root() { VerdictUsers::System } else { VerdictUsers::User }) {
        VerdictUsers::System => Ok(verdict::SYSTEM.into()),
        VerdictUsers::User => {
            let variable = |name| std::env::var_os(name);
            let place = verdict::user_place(variable("XDG_STATE_HOME").as_deref(), variable("HOME").as_deref());
            place.ok_or_else(|| "neither XDG_STATE_HOME nor HOME is an absolute path".into())
        }
    }
}

/// Writes a verdict and returns its path. A concurrent reader finds the old one or the new one.
fn write(dir: &Path, verdict: &Verdict) -> std::result::Result<PathBuf, String> {
    let path = dir.join(verdict.subject.file_name());
    let failed = |error: std::io::Error| format!("cannot write {}: {}", path.display(), plain(&error));
    let is_new = !dir.exists();
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    if is_new {
        // For any umask: every process searches this directory. An existing one keeps its mode.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    let written = tempfile::NamedTempFile::new_in(dir).and_then(|mut file| {
        file.write_all(verdict.to_string().as_bytes())?;
        // For any umask: every process reads it.
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        Ok(file.persist(&path)?)
    });
    written.map_err(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_written_for_every_reader() {
        let dir = std::env::temp_dir().join(format!("gpumem-rules-{}", std::process::id()));
        let subject = Subject { release: "1".into(), driver: 14000, gpu: "GPU".into(), capability: (9, 0) };
        let verdict = Verdict { subject: subject.clone(), pool: true, graph_cache: false };
        let path = write(&dir, &verdict).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        let uid = geteuid().as_raw();
        let (found, refused) = verdict::find(std::slice::from_ref(&dir), &subject, uid);
        assert_eq!((found.map(|found| found.verdict), refused), (Some(verdict), vec![]));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&dir).unwrap();
    }
}
