//! Events in words: their kind, their severity, and what happened.

use super::Ledger;
use crate::text::count;
use crate::text::units::{self, bytes};
use gpumem_wire::kinds::{AllocKind, EventKind, Severity, Taken};
use gpumem_wire::layout::EventSlot;

/// Returns the name of an event's kind.
pub(crate) fn name(event: &EventSlot) -> String {
    EventKind::from_u8(event.kind).map_or(format!("kind {}", event.kind), |kind| kind.name().to_owned())
}

/// Returns the severity of an event.
pub(crate) fn severity(event: &EventSlot) -> Severity {
    use EventKind::*;
    match EventKind::from_u8(event.kind) {
        Some(Message) => u8::try_from(event.code).ok().and_then(Severity::from_u8).unwrap_or(Severity::Info),
        Some(OomRetry) if event.code != 0 => Severity::Error,
        Some(AllocFailed | InstantiateFailed | OutOfMemory | WrittenOutside | WrittenAfterFree) => Severity::Error,
        Some(FreedGraphLaunched | LaunchedGraph | NextOwner) => Severity::Error,
        Some(FreeFailed | CaptureFailed | Thrash | OomRetry | Spilled | LimitRefused) => Severity::Warning,
        Some(StrandedSite | Pressed | TopHolder | FreedInGraph) => Severity::Warning,
        _ => Severity::Info,
    }
}

/// Returns the event in words.
pub(crate) fn sentence(ledger: &Ledger, event: &EventSlot) -> String {
    use EventKind::*;
    let kind = EventKind::from_u8(event.kind);
    let words = ledger.snapshot.text(event.text).into_owned();
    let (a, b, code) = (event.a, event.b, event.code);
    let said = match kind {
        None | Some(Message | Mark | LibraryBound) => String::new(),
        Some(ContextCreated | ContextDestroyed) => {
            format!("context {} on device {}", event.context, ledger.device(event.context))
        }
        Some(AllocFailed) => format!("{} of {} memory refused with error {code}", bytes(a), AllocKind::name_of(b)),
        Some(InstantiateFailed) => format!("graph {a:#x} refused with error {code}"),
        Some(CaptureFailed) => format!("the capture on stream {a:#x} gave no graph, error {code}"),
        Some(PeakGrew) => format!("{} of device memory live", bytes(a)),
        Some(FreeFailed) => format!("free of {a:#x} refused with error {code}"),
        // The words name the variable to raise.
        Some(Thrash) => {
            let (execs, held) = (count(a, "real exec"), bytes(b));
            let to_raise = if words.is_empty() { String::new() } else { format!(": raise {words}") };
            return format!(
                "the graph cache evicts execs that are launched again soon, at {execs} of {held}{to_raise}"
            );
        }
        Some(OomRetry) => {
            let then = if code == 0 { "succeeded".into() } else { format!("failed with error {code}") };
            format!("a graph call ran out of memory; gpumem gave {} back, then the call {then}", bytes(a))
        }
        Some(PoolReleased) => format!("the pool gave {} of idle memory back to the driver", bytes(a)),
        Some(Spilled) => format!("{} were placed outside of the device's memory", bytes(a)),
        Some(LimitRefused) => {
            let whose = if b == 1 { "its group" } else { "this process" };
            format!("{} refused: over the limit of {whose}", bytes(a))
        }
        Some(OutOfMemory) => {
            format!("{} could not be allocated: {} are live, and all idle memory was given back", bytes(a), bytes(b))
        }
        Some(StrandedSite) => {
            let (unused, blocks) = (bytes(a), count(b, "older block"));
            format!("a call site asks for larger and larger buffers; {unused} in {blocks} lie unused")
        }
        Some(kind) => of_memory(kind, a, b, code),
    };
    match (said.is_empty(), words.is_empty()) {
        (true, _) => words,
        (false, true) => said,
        (false, false) => format!("{said}: {words}"),
    }
}

/// Returns an event of memory in words. The guard's own findings say it themselves.
fn of_memory(kind: EventKind, a: u64, b: u64, code: i32) -> String {
    use EventKind::*;
    match kind {
        FreedInGraph => format!("{} at {a:#x} were freed while a live graph still refers to them", bytes(b)),
        TopHolder => format!("this call site held {} in {} when memory ran out", bytes(a), count(b, "allocation")),
        Pressed => format!("{} were refused once, so that the program frees {} that it strands", bytes(a), bytes(b)),
        DriverTook => {
            let what = u8::try_from(b).ok().and_then(Taken::from_u8).map_or("itself", Taken::name);
            let took = format!("the driver took {}, reason: {what}", bytes(a));
            match u64::try_from(code) {
                // The event's text is the kernel's name.
                Ok(local) if local > 0 => format!("{took}, as a kernel has {} of local memory a thread", bytes(local)),
                _ => format!("{took} (free memory fell by that much during the call)"),
            }
        }
        FreedHere => format!("{} at {a:#x} were freed here", bytes(b)),
        FreedGraphLaunched if b == 0 => {
            format!("a graph was launched after memory at {a:#x} that it refers to was freed")
        }
        LaunchedGraph => {
            format!("this was launch {} of exec {a:#x}, instantiated here", units::number(b.saturating_add(1)))
        }
        Parked => format!("{} of device memory were moved to the host", bytes(a)),
        Resumed => format!("{} of device memory are back on the device after {}", bytes(a), units::span(b)),
        NextOwner => format!("the memory now belongs to {} at {a:#x}, allocated here", bytes(b)),
        FreedGraphLaunched => format!("a graph that refers to {} at {a:#x} was launched after their free", bytes(b)),
        PossibleWriter => {
            let how = match (b & 1 != 0, b & 2 != 0) {
                (false, false) => "launched meanwhile",
                (true, false) => "launched with its address meanwhile",
                (false, true) => "launched first after the free",
                (true, true) => "launched first after the free, with its address",
            };
            format!("{how}, on stream {a:#x}")
        }
        _ => String::new(),
    }
}
