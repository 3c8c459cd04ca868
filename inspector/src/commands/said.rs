//! Commands whose whole output is the answer of a running process.

use crate::args::Target;
use crate::context::Context;
use crate::failure::Result;
use crate::source::ask::{Whom, ask, ask_patiently};
use crate::text;
use gpumem_wire::command::Request;
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Report {
    pid: u32,
    /// Of a trim.
    #[serde(skip_serializing_if = "Option::is_none")]
    press: Option<bool>,
    said: String,
}

/// Sends a request to the target process, and prints its answer, or `if_nothing`.
///
/// # Errors
/// Those of choosing the process and of asking it.
pub(super) fn print(context: &Context, target: &Target, request: &Request, if_nothing: &str) -> Result<()> {
    told(context, target, request, |whom| ask(whom, request), if_nothing)
}

/// As [`print`], with a longer patience.
///
/// # Errors
/// As [`print`].
pub(super) fn print_within(context: &Context, target: &Target, request: &Request, patience: Duration) -> Result<()> {
    told(context, target, request, |whom| ask_patiently(whom, request, patience), "")
}

fn told(
    context: &Context,
    target: &Target,
    request: &Request,
    ask: impl Fn(&Whom<'_>) -> Result<String>,
    if_nothing: &str,
) -> Result<()> {
    let ledger = context.live_ledger(target)?;
    let press = if let Request::Trim { press } = request { Some(*press) } else { None };
    let report = Report { pid: ledger.pid(), press, said: ask(&ledger.whom())? };
    context.print(&report, |out, report| {
        let said = if report.said.is_empty() { if_nothing.into() } else { text::clean(&report.said) };
        writeln!(out, "pid {}: {said}", report.pid)
    })
}
