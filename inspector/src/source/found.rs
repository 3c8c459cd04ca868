//! A process that a survey found, with its ledger.

use super::called;
use super::folder::{FileIdentity, Folder};
use super::liveness::{Life, Status};
use super::process::{Mapped, Process};
use crate::failure::Failure;
use gpumem_wire::read::Snapshot;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A process with the shim, or the ledger that a dead one left.
#[derive(Debug)]
pub(crate) struct FoundProcess {
    /// Pid as seen from here; for a dead process, as it saw itself.
    pub pid: u32,
    pub process: Option<Process>,
    pub what: LedgerFile,
    /// Directory in which its ledger was seen; `None` if it was reached through the process.
    pub at: Option<At>,
    /// The ledger, if the survey left it open.
    pub file: Option<File>,
}

/// A file in a directory that the survey searched.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub folder: Rc<Folder>,
    pub name: OsString,
    pub seen: FileIdentity,
}

/// State of a process's ledger file.
#[derive(Debug)]
pub(crate) enum LedgerFile {
    /// A ledger, with its header and the tables that the survey reads.
    Ledger { path: PathBuf, summary: Box<Snapshot>, status: Status },
    /// A file with a ledger's name that cannot be read. `other_version` is set if it is a ledger of another layout.
    Unreadable { path: PathBuf, why: Failure, other_version: Option<u32> },
    /// The shim is mapped and has written nothing.
    NoLedger { mapped: Mapped, expected: PathBuf },
}

impl FoundProcess {
    pub(crate) fn name(&self) -> String {
        match (&self.what, &self.process) {
            (LedgerFile::Ledger { summary, .. }, _) => called::name_of(summary, self.running()),
            (_, Some(process)) => process.name.clone(),
            _ => "?".into(),
        }
    }

    /// True if the user may mean this process by `name`: its own name, or its program's.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let is_exe = |summary: &Snapshot| called::program_of(summary, self.running()) == name;
        self.name() == name || matches!(&self.what, LedgerFile::Ledger { summary, .. } if is_exe(summary))
    }

    /// Returns the path of its ledger.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.what {
            LedgerFile::Ledger { path, .. } | LedgerFile::Unreadable { path, .. } => Some(path),
            LedgerFile::NoLedger { .. } => None,
        }
    }

    /// Returns the status of a readable ledger.
    pub(crate) fn status(&self) -> Option<&Status> {
        match &self.what {
            LedgerFile::Ledger { status, .. } => Some(status),
            _ => None,
        }
    }

    /// True if the ledger cannot be read and its process does not run, by the pid and start time in its name.
    pub(crate) fn is_unreadable_and_dead(&self) -> bool {
        matches!(self.what, LedgerFile::Unreadable { .. }) && self.process.is_none()
    }

    /// True if the process is dead and another version of gpumem can read its ledger.
    pub(crate) fn is_dead_of_other_version(&self) -> bool {
        self.is_unreadable_and_dead() && matches!(self.what, LedgerFile::Unreadable { other_version: Some(_), .. })
    }

    /// Returns the process, if it runs the program of the ledger.
    pub(crate) fn running(&self) -> Option<&Process> {
        self.process.as_ref().filter(|_| self.status().is_none_or(|status| status.life != Life::Replaced))
    }

    /// True if the ledger's process runs.
    pub(crate) fn is_live(&self) -> bool {
        self.status().is_some_and(Status::running)
    }
}
