//! A file that was looked up and not opened: its type and owner are known before anything happens to it.
//!
//! Opening a device acts on it, and opening a pipe waits. A path that another user controls may lead to either, by a
//! link, a mount or a swap at the right moment. So such a path is only looked up (O_PATH). Later that very file is
//! opened if it is regular, even if another file has taken its name.
//!
//! Paths of a process hold in its own file system: they are looked up [inside](Seen::inside) it, and no link leads out.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, open, openat, openat2, readlinkat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Treatment of a link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    /// Looks up the link itself.
    Keep,
}

/// A looked-up file.
#[derive(Debug)]
pub(crate) struct Seen {
    fd: OwnedFd,
    stat: Stat,
}

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Link limit, as in the kernel.
const MOST_LINKS: usize = 40;
/// Names of a path still to look up; links add to them.
const MOST_NAMES: usize = 4096;
/// Tries of a lookup that the kernel gives up because of concurrent renames.
const TRIES: usize = 16;
/// `PROC_SUPER_MAGIC`.
const PROC: i64 = 0x9fa0;

impl Seen {
    /// Looks up a trusted path, relative to a directory.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn at(dir: impl AsFd, path: &Path, last: LastLink) -> io::Result<Self> {
        Self::of(openat(dir, path, LOOK | no_follow(last), Mode::empty())?)
    }

    /// Looks up a trusted path. One below `/proc/PID/root` holds in the file system of that process.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn named(path: &Path, last: LastLink) -> io::Result<Self> {
        match in_root(path) {
            Some((root, inner)) => Self::inside(&root, inner, last),
            None => Self::at(CWD, path, last),
        }
    }

    /// Looks up a path in another file system with root `root`. No link leads out of it, and /proc links to files of
    /// processes lead nowhere.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn inside(root: &Path, path: &Path, last: LastLink) -> io::Result<Self> {
        let root = open(root, LOOK | OFlags::DIRECTORY, Mode::empty())?;
        let found = match by_kernel(root.as_fd(), path, last) {
            // Kernels before 5.6, and containers whose system call filter does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => by_steps(root, path, last),
            found => found,
        };
        Self::of(found?)
    }

    fn of(fd: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        Ok(Self { fd, stat })
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    pub(crate) fn owner(&self) -> u32 {
        self.stat.st_uid
    }

    /// Returns the device and inode.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// Returns the /proc path of its descriptor, by which the kernel reaches the file wherever it is.
    pub(crate) fn by_descriptor(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// The file is not regular; those of the system.
    pub(crate) fn open(&self) -> io::Result<File> {
        if !self.is_regular() {
            return Err(io::Error::other("it is not a regular file"));
        }
        // NONBLOCK: do not wait for the holder of a lease.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(File::from(open(self.by_descriptor(), flags, Mode::empty())?))
    }
}

/// Splits a path into `/proc/PID/root` and the path below it.
fn in_root(path: &Path) -> Option<(PathBuf, &Path)> {
    let pid = path.strip_prefix("/proc").ok()?.components().next()?.as_os_str();
    let is_pid = pid.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let root = is_pid.then(|| Path::new("/proc").join(pid).join("root"))?;
    let inner = path.strip_prefix(&root).ok().filter(|inner| !inner.as_os_str().is_empty())?;
    Some((root, inner))
}

fn no_follow(last: LastLink) -> OFlags {
    if last == LastLink::Keep { OFlags::NOFOLLOW } else { OFlags::empty() }
}

fn by_kernel(root: BorrowedFd, path: &Path, last: LastLink) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let look = || openat2(root, path, LOOK | no_follow(last), Mode::empty(), resolve);
    let tries = (1..TRIES).map(|_| look()).find(|found| !matches!(found, Err(Errno::AGAIN | Errno::INTR)));
    tries.unwrap_or_else(look)
}

/// Looks up one name after another, from directories that are held open.
fn by_steps(root: OwnedFd, path: &Path, last: LastLink) -> rustix::io::Result<OwnedFd> {
    let mut names = VecDeque::new();
    put_first(&mut names, path)?;
    // The directories on the way, without the root.
    let mut way: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        // All of these are directories, so "." adds no check.
        if name == "." || name == ".." {
            way.truncate(way.len() - usize::from(name == ".." && !way.is_empty()));
            continue;
        }
        let here = way.last().unwrap_or(&root);
        let fd = openat(here, &name, LOOK | OFlags::NOFOLLOW, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::Directory => way.push(fd),
            FileType::Symlink if names.is_empty() && last == LastLink::Keep => return Ok(fd),
            FileType::Symlink => {
                links += 1;
                if links > MOST_LINKS || fstatfs(&fd)?.f_type as i64 == PROC {
                    return Err(Errno::LOOP);
                }
                let target = OsString::from_vec(readlinkat(&fd, "", Vec::new())?.into_bytes());
                if Path::new(&target).is_absolute() {
                    way.clear();
                }
                put_first(&mut names, Path::new(&target))?;
            }
            _ if names.is_empty() => return Ok(fd),
            _ => return Err(Errno::NOTDIR),
        }
    }
    Ok(way.pop().unwrap_or(root))
}

/// Puts the names of a path before the remaining ones.
fn put_first(names: &mut VecDeque<OsString>, path: &Path) -> rustix::io::Result<()> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    let mut first: Vec<OsString> = path.components().filter_map(step).map(OsStr::to_owned).collect();
    // A slash at the end asks for a directory.
    if path.as_os_str().as_bytes().ends_with(b"/") && !first.is_empty() {
        first.push(".".into());
    }
    if first.len() + names.len() > MOST_NAMES {
        return Err(Errno::NAMETOOLONG);
    }
    first.into_iter().rev().for_each(|name| names.push_front(name));
    Ok(())
}

fn step(component: Component<'_>) -> Option<&OsStr> {
    match component {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Returns a file system with links that would lead out of it, and files beside it.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "inner").unwrap();
        std::fs::write(dir.path().join("secret"), "outer").unwrap();
        std::fs::create_dir(root.join("etc")).unwrap();
        std::fs::write(root.join("etc/hosts"), "inner").unwrap();
        for (target, name) in [
            ("/etc/hosts", "absolute"),
            ("../../../secret", "up"),
            ("a/b", "dir"),
            ("/", "slash"),
            ("loop", "loop"),
            ("none", "dangling"),
            ("../a/./b/../b/file", "etc/winding"),
            ("dir/file", "two"),
        ] {
            symlink(target, root.join(name)).unwrap();
        }
        dir
    }

    /// Both ways give the same answer: a file's bytes or its type, or the error number.
    fn both(root: &Path, path: &str, last: LastLink) -> Result<String, i32> {
        let open_root = || open(root, LOOK | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let said = |found: rustix::io::Result<OwnedFd>| {
            let seen = Seen::of(found.map_err(Errno::raw_os_error)?).unwrap();
            Ok(match seen.kind() {
                FileType::RegularFile => io::read_to_string(seen.open().unwrap()).unwrap(),
                kind => format!("{kind:?} {}", seen.stat.st_ino),
            })
        };
        let steps = said(by_steps(open_root(), Path::new(path), last));
        let kernel = by_kernel(open_root().as_fd(), Path::new(path), last);
        if !matches!(kernel, Err(Errno::NOSYS | Errno::PERM)) {
            assert_eq!(said(kernel), steps, "{path} {last:?}");
        }
        steps
    }

    #[test]
    fn no_link_leads_out_by_either_way() {
        let dir = tree();
        let root = dir.path().join("root");
        let read = |path: &str| both(&root, path, LastLink::Follow);
        for path in ["/a/b/file", "a/b/file", "/absolute", "dir/file", "/slash/etc/hosts", "etc/winding", "two"] {
            assert_eq!(read(path), Ok("inner".into()), "{path}");
        }
        assert_eq!(read("../../a/../etc//hosts"), Ok("inner".into()));
        for path in ["up", "../secret", "slash/../../secret", "none", "dangling", "a/none/../b"] {
            assert_eq!(read(path), Err(libc::ENOENT), "{path}");
        }
        assert_eq!(read("loop"), Err(libc::ELOOP));
        assert_eq!(read("a/b/file/x"), Err(libc::ENOTDIR));
        assert_eq!(read("a/b/file/"), Err(libc::ENOTDIR));
        assert_eq!(read(""), Err(libc::ENOENT));
        assert!(read("dir").unwrap().starts_with("Directory"));
        assert!(read("/").unwrap().starts_with("Directory"));
        assert!(both(&root, "up", LastLink::Keep).unwrap().starts_with("Symlink"));
        assert_eq!(both(&root, "loop/x", LastLink::Keep), Err(libc::ELOOP));
    }

    #[test]
    fn paths_of_a_process_are_told_by_their_beginning() {
        let of = |path: &'static str| in_root(Path::new(path));
        assert_eq!(of("/proc/12/root/tmp/x"), Some(("/proc/12/root".into(), Path::new("tmp/x"))));
        assert_eq!(of("/proc//12/root//../x"), Some(("/proc/12/root".into(), Path::new("../x"))));
        for path in
            ["/proc/12/root", "/proc/12/exe", "/proc/self/root/x", "/x/proc/12/root/x", "proc/12/root/x", "/proc"]
        {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn links_of_proc_lead_nowhere() {
        for path in ["/proc/self/exe", "/proc/self/root/etc", "/proc/self/cwd", "/proc/thread-self/fd/0"] {
            let path = path.replace("self", &std::process::id().to_string()).replace("thread-", "");
            assert_eq!(both(Path::new("/"), &path, LastLink::Follow), Err(libc::ELOOP), "{path}");
        }
    }

    #[test]
    fn pipes_and_directories_are_not_opened() {
        let dir = tree();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [&pipe, dir.path()] as [&Path; 2] {
            let seen = Seen::at(rustix::fs::CWD, path, LastLink::Follow).unwrap();
            assert!(!seen.is_regular());
            assert!(seen.open().unwrap_err().to_string().contains("not a regular file"));
        }
    }

    #[test]
    fn what_was_looked_at_is_what_is_opened() {
        let dir = tree();
        let path = dir.path().join("root/a/b/file");
        let seen = Seen::inside(&dir.path().join("root"), Path::new("/a/b/file"), LastLink::Keep).unwrap();
        std::fs::rename(dir.path().join("secret"), &path).unwrap();
        assert_eq!(io::read_to_string(seen.open().unwrap()).unwrap(), "inner");
    }
}
