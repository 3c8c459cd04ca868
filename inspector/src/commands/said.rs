//! What a running process says to a request, as the whole answer of a command.

use crate::args::Target;
use crate::context::Context;
use crate::failure::Result;
use crate::source::ask::ask;
use crate::text;
use gpumem_wire::command::Request;
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    pid: u32,
    said: String,
}

/// Sends a request to the process that is meant, and prints what it says, or `if_nothing`.
///
/// # Errors
/// Those of choosing the process and of asking it.
pub(super) fn print(context: &Context, target: &Target, request: &Request, if_nothing: &str) -> Result<()> {
    let ledger = context.live_ledger(target)?;
    let report = Report { pid: ledger.pid(), said: ask(&ledger.whom(), request)? };
    context.print(&report, |out, report| {
        let said = if report.said.is_empty() { if_nothing.into() } else { text::clean(&report.said) };
        writeln!(out, "pid {}: {said}", report.pid)
    })
}
