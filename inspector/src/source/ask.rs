//! Asking a running process: one line over the control socket that lies beside its ledger.

use super::life::Life;
use crate::failure::{Failure, Result};
use crate::model::Ledger;
use gpumem_wire::command::{MAX_LINE, Request};
use gpumem_wire::place::{LEDGER_SUFFIX, SOCKET_SUFFIX};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The control thread answers between two samples, at once; a process that does not is stopped.
const PATIENCE: Duration = Duration::from_secs(3);

/// Sends a request to the process of a ledger; the text of its answer.
///
/// # Errors
/// When it is gone, has no control thread, does not answer, or refuses.
pub fn ask(ledger: &Ledger, request: &Request) -> Result<String> {
    let who = format!("pid {} ({})", ledger.head().pid, ledger.name());
    if ledger.status.life != Life::Running {
        return Err(Failure::nothing(format!("{who} does not run: {}", ledger.status.text()))
            .fix("only running processes take commands"));
    }
    let path = socket_path(&ledger.path);
    let no_socket = || {
        Failure::error(format!("{who} takes no commands: there is no control socket {}", path.display()))
            .fix("it was started with GPUMEM_CONTROL=0, or gpumem events says why the socket could not be made")
    };
    let meta = std::fs::symlink_metadata(&path).map_err(|_| no_socket())?;
    let owner = ledger.process.as_ref().map(|process| process.uid);
    if !meta.file_type().is_socket() || owner.is_some_and(|owner| meta.uid() != owner) {
        return Err(Failure::error(format!("{} is not the socket of {who}", path.display())));
    }
    exchange(&path, request).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Failure::error(format!("{who} did not answer in {} s", PATIENCE.as_secs()))
                .fix("it is stopped, frozen or starved of processor time")
        }
        ErrorKind::ConnectionRefused => no_socket(),
        _ => Failure::io(format!("cannot ask {who}"), &error),
    })?
}

fn exchange(path: &Path, request: &Request) -> std::io::Result<Result<String>> {
    let mut stream = connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.line().as_bytes())?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while answer.len() < MAX_LINE && stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Ok(match answer.split_once(' ').unwrap_or((&answer, "")) {
        ("ok", text) => Ok(text.to_owned()),
        ("error", why) => Err(Failure::error(format!("it refused: {why}"))),
        _ => Err(Failure::error("what answered is not a libgpumem.so")),
    })
}

/// Through its directory's descriptor: the whole path may be longer than a socket's address holds.
fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(ErrorKind::InvalidInput.into()) };
    let dir = File::open(dir)?;
    UnixStream::connect(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

/// True if somebody listens on the control socket of this ledger's process.
pub fn answers(ledger: &Path) -> bool {
    connect(&socket_path(ledger)).is_ok()
}

fn socket_path(ledger: &Path) -> PathBuf {
    let text = ledger.to_string_lossy();
    PathBuf::from(format!("{}{SOCKET_SUFFIX}", text.strip_suffix(LEDGER_SUFFIX).unwrap_or(&text)))
}
