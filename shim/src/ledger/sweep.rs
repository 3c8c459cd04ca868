//! Removes files of dead processes, each time a ledger is made.
//!
//! On a busy disk it takes 10 to 50 ms to remove one file. So the control thread does it, a few files at a time. The
//! program's own thread does it only if there will be no control thread, or if there are so many files that control
//! threads evidently had no time.

use super::{file, storage};
use gpumem_wire::layout::Header;
use gpumem_wire::place::{self, ProcessId};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Number of ledgers kept for later readers: of processes that exited, and of processes that died, whose ledgers tell
/// what happened.
const KEPT: usize = 8;

/// Maximum number of files that one sweep removes.
const AT_ONCE: usize = 16;

/// With this many ledgers in a directory, control threads evidently do not get to sweep it: those of programs that end
/// at once.
const OVERDUE: usize = 128;

/// True if control threads have left too many ledgers in this directory.
pub(super) fn is_overdue(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let names = entries.flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_str().and_then(ProcessId::from_ledger_name).is_some()).nth(OVERDUE - 1).is_some()
}

/// Removes files of this user's dead processes: their sockets, and their ledgers except the newest few of either kind.
/// Returns true if it reached its limit, so that there may be more.
pub(super) fn sweep(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let (mut exited, mut killed) = (Vec::new(), Vec::new());
    let mut left = AT_ONCE;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(ProcessId::from_ledger_name) else { continue };
        // A ledger's header counts only if the file's owner is the user it names. Any user can write a ledger that
        // names another process, or make a link.
        if let Ok(what) = entry.metadata()
            && let Some(header) = file::header_of(&entry.path())
            && (header.pid, header.start_ticks) == (id.pid, id.start_ticks)
            && is_dead(&header, id)
        {
            let socket = dir.join(id.socket_name());
            if std::fs::symlink_metadata(&socket).is_ok_and(|socket| socket.uid() == what.uid()) {
                remove(&socket, &mut left);
            }
            let which = if header.exited_ns == 0 { &mut killed } else { &mut exited };
            which.push((what.modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
        }
    }
    for mut which in [exited, killed] {
        which.sort_unstable_by(|a, b| b.cmp(a));
        for (_, path) in which.iter().skip(KEPT).filter(|(_, path)| storage::open_own(path).is_some()) {
            remove(path, &mut left);
        }
    }
    left == 0
}

/// Removes a file if this sweep may remove another one.
fn remove(path: &Path, left: &mut usize) {
    if *left > 0 && std::fs::remove_file(path).is_ok() {
        *left -= 1;
    }
}

/// True if the process that wrote a ledger is certainly gone. For a process in another pid namespace (a container that
/// shares the directory) nothing is certain.
fn is_dead(header: &Header, id: ProcessId) -> bool {
    let unknown = [0; 16];
    let boots = (header.boot_id, file::boot_id());
    if boots.0 != boots.1 {
        return boots.0 != unknown && boots.1 != unknown;
    }
    if header.pid_ns == 0 || header.pid_ns != file::pid_namespace() {
        return false;
    }
    match std::fs::read(format!("/proc/{}/stat", id.pid)) {
        // A process that cannot be read counts as alive.
        Ok(stat) => place::start_ticks(&stat).is_some_and(|start| start != id.start_ticks),
        // A /proc that hides processes also hides living ones.
        Err(error) => error.kind() == io::ErrorKind::NotFound && is_no_process(id.pid),
    }
}

/// True if the kernel says that no process has this number.
fn is_no_process(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return true };
    // SAFETY: kill takes two numbers, and signal 0 is sent to no process.
    let there = unsafe { libc::kill(pid, 0) } == 0;
    !there && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use zerocopy::FromZeros;

    fn header(id: ProcessId) -> Header {
        let mut header = Header::new_zeroed();
        (header.pid, header.start_ticks) = (id.pid, id.start_ticks);
        (header.boot_id, header.pid_ns) = (file::boot_id(), file::pid_namespace());
        header
    }

    #[test]
    fn a_process_whose_name_is_half_a_character_is_alive() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "printf '\\346\\274' > /proc/$$/comm; echo; read x"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let stat = std::fs::read(format!("/proc/{}/stat", child.id())).unwrap();
        assert!(std::str::from_utf8(&stat).is_err(), "the name was taken");
        let id = ProcessId { pid: child.id(), start_ticks: place::start_ticks(&stat).unwrap() };
        assert!(!is_dead(&header(id), id));
        let before = ProcessId { start_ticks: id.start_ticks - 1, ..id };
        assert!(is_dead(&header(before), before), "its number was another's");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(is_dead(&header(id), id));
    }
}
