//! Lines for people on the program's stderr.

use super::cancel::Uncancelled;
use super::{load, write};
use gpumem_wire::settings::{Id, Log, Value};

/// True if GPUMEM_LOG=quiet stands in the environment. For lines that are said without the settings.
pub(crate) fn is_to_be_quiet() -> bool {
    let log = Id::Log.setting();
    std::env::var_os(log.name).and_then(|said| log.parse(&said).ok()) == Some(Value::Choice(Log::Quiet as usize))
}

/// One line on stderr, in one write.
pub(crate) fn say(line: &dyn std::fmt::Display) {
    let line = format!("gpumem: {line}\n");
    let _uncancelled = Uncancelled::new();
    // No line is put into a file that has stderr's number by now.
    if load::stderr_is_the_same() {
        write::to_stderr(line.as_bytes());
    }
}
