//! Finds ledgers, tells whose they are, and opens them without trusting them.
//!
//! * [`world`]: this machine: /proc, boot id, clocks, the directories of this user.
//! * [`process`]: one process as /proc shows it. [`remembered`]: the processes of the last survey.
//! * [`called`](mod@called): the name of a process.
//! * [`standing`]: tells if a process is stopped, traced, or more privileged than its user.
//! * [`folder`]: a directory of ledgers, held open.
//! * [`budget`]: limits of a survey. [`maps`]: the mappings of a process.
//! * [`presence`]: tells if a process has the shim, by its ledger or its mappings.
//! * [`seen`]: a file that was looked up and not opened.
//! * [`open`]: a file to a snapshot: only regular files, of trusted users.
//! * [`find`]: every ledger and every process with the shim. [`found`]: one of them.
//! * [`liveness`]: tells if a ledger's process runs, exited or was killed, and when.
//! * [`choose`]: the ledger that the user means.
//! * [`ask`]: commands to a running process, over its control socket.
//! * [`recording`]: the lines of a recording.
//! * [`nvml`]: device memory of a process as the driver counts it. [`library`]: functions of vendors' libraries.

pub(crate) mod ask;
pub(crate) mod budget;
pub(crate) mod called;
pub(crate) mod choose;
pub(crate) mod find;
pub(crate) mod folder;
mod found;
pub(crate) mod library;
pub(crate) mod liveness;
pub(crate) mod maps;
pub(crate) mod nvml;
pub(crate) mod open;
mod presence;
pub(crate) mod process;
pub(crate) mod recording;
pub(crate) mod remembered;
pub(crate) mod seen;
pub(crate) mod standing;
mod status;
pub(crate) mod world;
