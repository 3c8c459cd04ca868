//! Sweeping up after dead processes, each time a ledger is made.

use super::file;
use gpumem_wire::layout::Header;
use gpumem_wire::place::{self, ProcessId};
use std::path::Path;
use std::time::SystemTime;

/// Ledgers of dead processes that are kept for those who come to look: of those that exited, and of those that
/// did not get to, which tell what happened.
const KEPT: usize = 8;

/// Removes what dead processes left: their ledgers but for the newest few of either kind, and their sockets.
pub fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let (mut exited, mut killed) = (Vec::new(), Vec::new());
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(ProcessId::from_ledger_name) else { continue };
        if let Ok(what) = entry.metadata()
            && what.is_file()
            && let Some(header) = file::header_of(&entry.path())
            && is_dead(&header, id)
        {
            let _ = std::fs::remove_file(dir.join(id.socket_name()));
            let which = if header.exited_ns == 0 { &mut killed } else { &mut exited };
            which.push((what.modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
        }
    }
    for mut which in [exited, killed] {
        which.sort_unstable_by(|a, b| b.cmp(a));
        for (_, path) in which.iter().skip(KEPT) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the process that wrote a ledger is certainly gone. Of a process in another pid namespace
/// (a container that shares the directory) nothing is certain.
fn is_dead(header: &Header, id: ProcessId) -> bool {
    if header.boot_id != file::boot_id() {
        return true;
    }
    if header.pid_ns == 0 || header.pid_ns != file::pid_namespace() {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{}/stat", id.pid)) {
        Ok(stat) => place::start_ticks(&stat).is_some_and(|start| start != id.start_ticks),
        // Without a /proc that shows us, it shows nobody.
        Err(_) => Path::new("/proc/self/stat").exists(),
    }
}
