//! The directory of a run, and file systems of its own for its ledgers.

use super::plan::Plan;
use super::trouble::{Files, Trouble};
use crate::harness::run::Scratch;
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directory of a run. It lies in an outer directory that is removed with it, because a run may also write beside
/// its own directory.
pub struct Place {
    /// The outer directory.
    _own: Scratch,
    path: PathBuf,
    mounted: bool,
}

impl Place {
    pub(super) fn new(plan: &Plan) -> Result<Self, String> {
        let own = Scratch::new();
        let at = own.path().join("run");
        let made = |what: std::io::Result<()>| what.map_err(|error| format!("{}: {error}", at.display()));
        made(fs::create_dir(&at))?;
        // Programs run as other users, too.
        made(fs::set_permissions(&at, fs::Permissions::from_mode(0o777)))?;
        for name in ["ledgers", "xdg"] {
            made(fs::create_dir(at.join(name)))?;
            made(fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o700)))?;
        }
        made(fs::write(at.join("file"), ""))?;
        let fifo = CString::new(at.join("fifo").into_os_string().into_vec()).map_err(|error| error.to_string())?;
        // SAFETY: `fifo` is a CString: it ends in NUL and lives until mkfifo returns.
        unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) };
        if let Some(text) = &plan.program.generated {
            made(fs::write(at.join("program"), text))?;
        }
        let mut place = Self { _own: own, path: at.clone(), mounted: false };
        let disk = plan.troubles.iter().find_map(|trouble| match trouble {
            Trouble::Disk { files, kib, .. } => Some((*files, *kib)),
            _ => None,
        });
        place.mounted = match disk {
            Some((Files::Tmpfs, kib)) => mount_tmpfs(&place.ledgers(), kib),
            Some((Files::Ext4, kib)) => mount_ext4(&place.ledgers(), &place.path().join("image"), kib),
            None => false,
        };
        Ok(place)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn ledgers(&self) -> PathBuf {
        self.path.join("ledgers")
    }

    /// True if the ledgers' directory is a file system of its own.
    pub fn is_mounted(&self) -> bool {
        self.mounted
    }

    /// Fills the ledgers' file system, so that nothing more can be written there.
    pub(super) fn fill(&self) {
        if self.mounted
            && let Ok(mut file) = fs::File::create(self.ledgers().join("filler"))
        {
            let zeros = [0; 4096];
            while file.write_all(&zeros).is_ok() {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mounted
            && let Ok(at) = CString::new(self.ledgers().into_os_string().into_vec())
        {
            // SAFETY: `at` is a CString: it ends in NUL and lives until umount2 returns.
            unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

/// Gives this thread and its children mounts of their own. Without the right to do so, nothing happens.
pub fn own_mounts() {
    // SAFETY: unshare takes a number and concerns this thread's mounts alone. The texts are
    // literals that end in NUL, and mount accepts null data here.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) == 0 {
            let none = c"none".as_ptr();
            libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null());
        }
    }
}

/// Mounts a file system in memory with so many KiB. Only root can mount one.
fn mount_tmpfs(at: &Path, kib: u64) -> bool {
    let (Ok(at), Ok(options)) =
        (CString::new(at.as_os_str().as_bytes()), CString::new(format!("size={}k,mode=700", kib.max(4))))
    else {
        return false;
    };
    let kind = c"tmpfs".as_ptr();
    // SAFETY: all texts are literals or CStrings: they end in NUL and live until mount returns.
    unsafe { libc::mount(kind, at.as_ptr(), kind, 0, options.as_ptr().cast()) == 0 }
}

/// Mounts an ext4 file system from an image file, with room for nearly so many KiB.
fn mount_ext4(at: &Path, image: &Path, kib: u64) -> bool {
    let Ok(file) = fs::File::create(image) else { return false };
    if file.set_len((256 + kib) << 10).is_err() {
        return false;
    }
    let done = |command: &mut Command| {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    done(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "1024", "-m", "0", "-O", "^has_journal"]).arg(image))
        && done(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).args([image, at]))
        && fs::set_permissions(at, fs::Permissions::from_mode(0o700)).is_ok()
}
