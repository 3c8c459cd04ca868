//! Lines for the user on the program's stderr.

use super::cancel::Uncancelled;
use super::{load, write};
use gpumem_wire::settings::{Id, Log, Value};

/// True if the environment has GPUMEM_LOG=quiet. For lines printed without the settings.
pub(crate) fn is_to_be_quiet() -> bool {
    let log = Id::Log.setting();
    std::env::var_os(log.name).and_then(|said| log.parse(&said).ok()) == Some(Value::Choice(Log::Quiet as usize))
}

/// Prints one line on stderr, in one write.
pub(crate) fn say(line: &dyn std::fmt::Display) {
    let line = format!("gpumem: {line}\n");
    let _uncancelled = Uncancelled::new();
    // Never writes into a file that has taken stderr's number.
    if load::stderr_is_the_same() {
        write::to_stderr(line.as_bytes());
    }
}
