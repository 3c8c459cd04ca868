//! Remedies for findings, the same in every command. A setting that is already in force is never advised.

use crate::model::{Ledger, pool};
use gpumem_wire::kinds::Mode;
use gpumem_wire::layout::StackRef;
use gpumem_wire::settings::{RecordOnly, Settings, Stranded};

const CACHE: &str = "GPUMEM_GRAPH_CACHE";

/// A remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cure {
    /// A command to paste.
    Paste(String),
    /// The command that starts the process next time.
    Start(String),
}

impl Cure {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Paste(text) | Self::Start(text) => text,
        }
    }
}

/// Changes a variable, given without its prefix: by a command if the running process accepts it, else at the next
/// start.
pub(crate) fn set(ledger: &Ledger, change: &str) -> Cure {
    let takes_commands = ledger.status.running() && ledger.snapshot.header.heartbeat_ns != 0;
    match takes_commands {
        true => Cure::Paste(format!("gpumem set {} {change}", ledger.pid())),
        false => Cure::Start(format!("start it with GPUMEM_{change}")),
    }
}

/// Returns the change that helps call sites that strand memory; `None` if one is already in force.
pub(crate) fn of_stranding(ledger: &Ledger) -> Option<&'static str> {
    let settings = ledger.settings();
    match settings.stranded {
        Stranded::Press | Stranded::Spill => None,
        _ if settings.stranded_retries => Some("STRANDED=press"),
        _ => Some("STRANDED=spill"),
    }
}

/// Returns the remedy for a growing call site.
pub(crate) fn of_site(ledger: &Ledger, stack: StackRef) -> Option<Cure> {
    let strands = stack != 0 && pool::stranded_now(ledger).iter().any(|of| of.last.stack == stack && of.now_bytes > 0);
    Some(set(ledger, of_stranding(ledger).filter(|_| strands)?))
}

/// Returns the remedy for a growing number of graphs; `None` if the graph cache limits them already, or cannot.
pub(crate) fn of_graphs(ledger: &Ledger) -> Option<Cure> {
    let started = ledger.started_with();
    let begun = Settings::read(started.iter().map(|(name, value)| (name.into(), value.into()))).0;
    let is_record_only =
        begun.record_only == RecordOnly::Always || ledger.snapshot.header.mode == Mode::RecordOnly as u32;
    for (name, is_so) in [(CACHE, begun.graph_cache == 0), ("GPUMEM_RECORD_ONLY", is_record_only)] {
        // The cache can be turned on again only in a process that was started with it on.
        if let Some((_, value)) = started.iter().find(|(known, _)| is_so && known == name) {
            let said = format!("start it without {name}={value}: the graph cache bounds what graphs take");
            return Some(Cure::Start(said));
        }
    }
    let (default, now) = (Settings::read(std::iter::empty()).0.graph_cache, ledger.settings().graph_cache);
    (!is_record_only && (now == 0 || now > default)).then(|| set(ledger, &format!("GRAPH_CACHE={default}")))
}
