//! This machine, as far as ledgers need it. Tests make their own.

use crate::failure::Failure;
use gpumem_wire::place;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Command that mounts /proc.
pub(crate) const MOUNT: &str = "mount -t proc proc /proc";

/// Advice if no process runs under the shim.
pub(crate) const START: &str = "start one with: gpumem run -- COMMAND";

/// Places to search, and the current time.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// `/proc`.
    pub proc: PathBuf,
    /// The current user.
    pub uid: u32,
    /// Directory of this user's ledgers.
    pub own_dir: PathBuf,
    /// Other usual directories.
    pub(super) more_dirs: Vec<PathBuf>,
    /// True if the user named the directory: the survey then lists no others.
    pub narrow: bool,
    pub(super) boot_id: Option<[u8; 16]>,
    /// Usual directories with so many names that only part was searched.
    pub(super) crowded: Vec<String>,
}

impl World {
    /// Returns the real machine; `dir` overrides the directory from the environment.
    pub(crate) fn here(dir: Option<PathBuf>) -> Self {
        let uid = geteuid().as_raw();
        let gpumem = std::env::var_os(place::DIR_VARIABLE);
        let runtime = place::runtime_dir(uid);
        let narrow = dir.is_some() || accepted(gpumem.as_deref()).is_some();
        let own_dir = dir.unwrap_or_else(|| directory(gpumem.as_deref(), runtime.as_deref(), uid));
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let mut crowded = Vec::new();
        let more_dirs = match uid {
            _ if narrow => Vec::new(),
            0 => everyones_dirs(Path::new("/"), &mut crowded),
            // The XDG directory may be missing in this shell (sudo, cron) though the program had it.
            _ => directories(None, Some(format!("/run/user/{uid}").as_ref()), uid),
        };
        Self {
            proc: "/proc".into(),
            uid,
            more_dirs: more_dirs.into_iter().filter(|more| *more != own_dir).collect(),
            own_dir,
            narrow,
            boot_id: boot_id.and_then(|text| place::boot_id(&text)),
            crowded,
        }
    }

    /// Returns the reason why no process can be seen: /proc is missing, or belongs to another pid namespace.
    pub(crate) fn lacks_proc(&self) -> Option<String> {
        // `self` exists for every process in the namespace of this /proc, whatever else it hides.
        let is_there = std::fs::metadata(self.proc.join("self/stat")).is_ok();
        (!is_there).then(|| format!("{} is not mounted here: no running process can be seen", self.proc.display()))
    }

    /// Returns the failure of a command that needs to see processes when none can be seen.
    pub(crate) fn without_proc(&self) -> Option<Failure> {
        self.lacks_proc().map(|why| Failure::nothing(why).fix(MOUNT))
    }

    /// Returns the failure of a command that finds nothing to look at.
    pub(crate) fn nothing_found(&self) -> Failure {
        let dir = self.own_dir.display();
        Failure::nothing(format!("no process with libgpumem.so was found, and no ledger in {dir}")).fix(START)
    }

    /// Returns the same machine, with all places searched.
    pub(crate) fn wide(&self) -> Self {
        Self { narrow: false, ..self.clone() }
    }
}

/// Returns the GPUMEM_DIR in effect: as in the shim, a relative path is ignored.
fn accepted(dir: Option<&OsStr>) -> Option<&OsStr> {
    dir.filter(|dir| Path::new(dir).is_absolute())
}

/// Returns the directory in which a process with this environment has its ledger, if it can be written.
pub(crate) fn directory(gpumem_dir: Option<&OsStr>, runtime_dir: Option<&OsStr>, uid: u32) -> PathBuf {
    place::directory(accepted(gpumem_dir), runtime_dir, uid)
}

/// Returns the directories in which it may have its ledger, the likeliest first.
pub(crate) fn directories(gpumem_dir: Option<&OsStr>, runtime_dir: Option<&OsStr>, uid: u32) -> Vec<PathBuf> {
    place::directories(accepted(gpumem_dir), runtime_dir, uid)
}

/// Names of a directory that are read: any user can make any number of files in a public one.
const MOST_NAMES: usize = 100_000;

/// Returns the usual directories of all users: each belongs to the user whose number it has.
fn everyones_dirs(root: &Path, crowded: &mut Vec<String>) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    let runtime = std::iter::once(("run/user", "", "gpumem"));
    let shared = place::SHARED.iter().map(|dir| (dir.trim_start_matches('/'), place::SHARED_PREFIX, ""));
    for (dir, before, below) in runtime.chain(shared) {
        let place = root.join(dir);
        let mut entries = std::fs::read_dir(&place).into_iter().flatten().flatten();
        for entry in entries.by_ref().take(MOST_NAMES) {
            let name = entry.file_name();
            let uid = name.to_str().and_then(|name| name.strip_prefix(before)?.parse::<u32>().ok());
            let path = || if below.is_empty() { entry.path() } else { entry.path().join(below) };
            dirs.extend(uid.map(|uid| (uid, path())).filter(|(uid, path)| is_dir_of(path, *uid)).map(|(_, path)| path));
        }
        if entries.next().is_some() {
            crowded.push(format!("{} has more than {MOST_NAMES} names: not all were looked at", place.display()));
        }
    }
    dirs.sort();
    dirs
}

/// True for a directory of this user, but not for a link to one: any user can write to /tmp.
fn is_dir_of(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

/// Reads CLOCK_MONOTONIC, nanoseconds: the clock of every ledger.
pub(crate) fn monotonic_ns() -> u64 {
    clock(ClockId::Monotonic).as_nanos() as u64
}

/// Reads a clock of the kernel.
pub(crate) fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_directory_is_that_users() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: String| {
            let path = root.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let uid = geteuid().as_raw();
        let (run, tmp) = (make(format!("run/user/{uid}/gpumem")), make(format!("tmp/gpumem-{uid}")));
        let shm = make(format!("dev/shm/gpumem-{uid}"));
        make(format!("tmp/gpumem-{}", uid + 1));
        make(format!("run/user/{}/gpumem", uid + 1));
        make("tmp/gpumem-x".into());
        std::os::unix::fs::symlink(&tmp, root.path().join("tmp/gpumem-7")).unwrap();
        let mut crowded = Vec::new();
        assert_eq!(everyones_dirs(root.path(), &mut crowded), [shm, run, tmp]);
        assert!(crowded.is_empty());
    }
}
