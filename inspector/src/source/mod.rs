//! Which ledgers there are, whose they are, and opening one without trusting it.
//!
//! * [`world`]: this machine: /proc, boot id, clocks, the directories of this user.
//! * [`process`]: one process as /proc shows it.
//! * [`called`](mod@called): the name of a process.
//! * [`standing`]: whether a process is stopped, traced, or has more rights than its user.
//! * [`folder`]: a directory of ledgers, held open.
//! * [`budget`]: what a look around may take. [`maps`]: the mappings of a process.
//! * [`seen`]: a file that was looked at and not opened.
//! * [`open`]: a file to a snapshot: no links, no pipes, nobody else's files.
//! * [`find`]: every ledger and every process with the shim.
//! * [`life`]: whether the process behind a ledger runs, said goodbye or was killed, and when.
//! * [`choose`]: the one that the user means.
//! * [`ask`]: commands to a running process, over its control socket.
//! * [`recording`]: the lines of a recording.
//! * [`nvml`]: what the driver says a process holds.

pub(crate) mod ask;
pub(crate) mod budget;
pub(crate) mod called;
pub(crate) mod choose;
pub(crate) mod find;
pub(crate) mod folder;
pub(crate) mod liveness;
pub(crate) mod maps;
pub(crate) mod nvml;
pub(crate) mod open;
pub(crate) mod process;
pub(crate) mod recording;
pub(crate) mod seen;
pub(crate) mod standing;
mod status;
pub(crate) mod world;
