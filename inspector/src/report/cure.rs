//! What to do about a finding: one place for every command that says it. It never advises what is in force already.

use crate::model::{Ledger, pool};
use gpumem_wire::kinds::Mode;
use gpumem_wire::layout::StackRef;
use gpumem_wire::settings::{RecordOnly, Settings, Stranded};

const CACHE: &str = "GPUMEM_GRAPH_CACHE";

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cure {
    /// A command to paste.
    Paste(String),
    /// How to start the process the next time.
    Start(String),
}

impl Cure {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Paste(text) | Self::Start(text) => text,
        }
    }
}

/// A change of a variable, without its prefix: a command where the process takes one, else how to start it.
pub(crate) fn set(ledger: &Ledger, change: &str) -> Cure {
    let takes_commands = ledger.status.running() && ledger.snapshot.header.heartbeat_ns != 0;
    match takes_commands {
        true => Cure::Paste(format!("gpumem set {} {change}", ledger.pid())),
        false => Cure::Start(format!("start it with GPUMEM_{change}")),
    }
}

/// The change that addresses call sites that strand memory; `None` where one is at work already.
pub(crate) fn of_stranding(ledger: &Ledger) -> Option<&'static str> {
    let settings = ledger.settings();
    match settings.stranded {
        Stranded::Press | Stranded::Spill => None,
        _ if settings.stranded_retries => Some("STRANDED=press"),
        _ => Some("STRANDED=spill"),
    }
}

/// What addresses a call site that grows.
pub(crate) fn of_site(ledger: &Ledger, stack: StackRef) -> Option<Cure> {
    let strands = stack != 0 && pool::stranded_now(ledger).iter().any(|of| of.last.stack == stack && of.now_bytes > 0);
    Some(set(ledger, of_stranding(ledger).filter(|_| strands)?))
}

/// What bounds graphs that become more and more; `None` if the graph cache bounds them already, or cannot.
pub(crate) fn of_graphs(ledger: &Ledger) -> Option<Cure> {
    let started = ledger.started_with();
    let begun = Settings::read(started.iter().map(|(name, value)| (name.into(), value.into()))).0;
    let is_record_only =
        begun.record_only == RecordOnly::Always || ledger.snapshot.header.mode == Mode::RecordOnly as u32;
    for (name, is_so) in [(CACHE, begun.graph_cache == 0), ("GPUMEM_RECORD_ONLY", is_record_only)] {
        // The cache can only be turned on again in a process that was started with it on.
        if let Some((_, value)) = started.iter().find(|(known, _)| is_so && known == name) {
            let said = format!("start it without {name}={value}: the graph cache bounds what graphs take");
            return Some(Cure::Start(said));
        }
    }
    let (default, now) = (Settings::read(std::iter::empty()).0.graph_cache, ledger.settings().graph_cache);
    (!is_record_only && (now == 0 || now > default)).then(|| set(ledger, &format!("GRAPH_CACHE={default}")))
}
