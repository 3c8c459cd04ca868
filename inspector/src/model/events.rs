//! Events in words: their kind, their severity, and what happened.

use super::Ledger;
use crate::text::{count, units};
use gpumem_wire::kinds::{AllocKind, EventKind, Severity, Taken};
use gpumem_wire::layout::EventSlot;

/// Returns the name of an event's kind.
pub(crate) fn name(event: &EventSlot) -> String {
    EventKind::from_u8(event.kind).map_or(format!("kind {}", event.kind), |kind| kind.name().to_owned())
}

/// Returns the severity of an event.
pub(crate) fn severity(event: &EventSlot) -> Severity {
    match EventKind::from_u8(event.kind) {
        Some(EventKind::Message) => u8::try_from(event.code).ok().and_then(Severity::from_u8).unwrap_or(Severity::Info),
        Some(EventKind::AllocFailed | EventKind::InstantiateFailed | EventKind::OutOfMemory) => Severity::Error,
        Some(EventKind::OomRetry) if event.code != 0 => Severity::Error,
        Some(EventKind::FreeFailed | EventKind::CaptureFailed | EventKind::Thrash | EventKind::OomRetry) => {
            Severity::Warning
        }
        Some(
            EventKind::Spilled
            | EventKind::LimitRefused
            | EventKind::StrandedSite
            | EventKind::Pressed
            | EventKind::TopHolder
            | EventKind::FreedInGraph,
        ) => Severity::Warning,
        Some(EventKind::WrittenOutside | EventKind::WrittenAfterFree) => Severity::Error,
        Some(EventKind::FreedGraphLaunched | EventKind::LaunchedGraph | EventKind::NextOwner) => Severity::Error,
        _ => Severity::Info,
    }
}

/// Returns the event in words.
pub(crate) fn sentence(ledger: &Ledger, event: &EventSlot) -> String {
    let kind = EventKind::from_u8(event.kind);
    let words = ledger.snapshot.text(event.text).into_owned();
    let (a, b, code) = (event.a, event.b, event.code);
    let said = match kind {
        None | Some(EventKind::Message | EventKind::Mark | EventKind::LibraryBound) => String::new(),
        Some(EventKind::ContextCreated | EventKind::ContextDestroyed) => {
            format!("context {} on device {}", event.context, ledger.device(event.context))
        }
        Some(EventKind::AllocFailed) => {
            let kind = AllocKind::name_of(b);
            format!("{} of {kind} memory refused with error {code}", units::bytes(a))
        }
        Some(EventKind::InstantiateFailed) => format!("graph {a:#x} refused with error {code}"),
        Some(EventKind::CaptureFailed) => format!("the capture on stream {a:#x} gave no graph, error {code}"),
        Some(EventKind::PeakGrew) => format!("{} of device memory live", units::bytes(a)),
        Some(EventKind::FreeFailed) => format!("free of {a:#x} refused with error {code}"),
        // The words name the variable to raise.
        Some(EventKind::Thrash) => {
            let (execs, bytes) = (count(a, "real exec"), units::bytes(b));
            let to_raise = if words.is_empty() { String::new() } else { format!(": raise {words}") };
            return format!(
                "the graph cache evicts execs that are launched again soon, at {execs} of {bytes}{to_raise}"
            );
        }
        Some(EventKind::OomRetry) => {
            let then = if code == 0 { "succeeded".into() } else { format!("failed with error {code}") };
            format!("a graph call ran out of memory; gpumem gave {} back, then the call {then}", units::bytes(a))
        }
        Some(EventKind::PoolReleased) => format!("the pool gave {} of idle memory back to the driver", units::bytes(a)),
        Some(EventKind::Spilled) => format!("{} were placed outside of the device's memory", units::bytes(a)),
        Some(EventKind::LimitRefused) => {
            let whose = if b == 1 { "its group" } else { "this process" };
            format!("{} refused: over the limit of {whose}", units::bytes(a))
        }
        Some(EventKind::OutOfMemory) => {
            let (asked, live) = (units::bytes(a), units::bytes(b));
            format!("{asked} could not be allocated: {live} are live, and all idle memory was given back")
        }
        Some(EventKind::StrandedSite) => {
            let (bytes, blocks) = (units::bytes(a), count(b, "older block"));
            format!("a call site asks for larger and larger buffers; {bytes} in {blocks} lie unused")
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
    match kind {
        EventKind::FreedInGraph => {
            format!("{} at {a:#x} were freed while a live graph still refers to them", units::bytes(b))
        }
        EventKind::TopHolder => {
            format!("this call site held {} in {} when memory ran out", units::bytes(a), count(b, "allocation"))
        }
        EventKind::Pressed => {
            let (asked, older) = (units::bytes(a), units::bytes(b));
            format!("{asked} were refused once, so that the program frees {older} that it strands")
        }
        EventKind::DriverTook => {
            let what = u8::try_from(b).ok().and_then(Taken::from_u8).map_or("itself", Taken::name);
            let took = format!("the driver took {}, reason: {what}", units::bytes(a));
            match u64::try_from(code) {
                // The event's text is the kernel's name.
                Ok(local) if local > 0 => {
                    format!("{took}, as a kernel has {} of local memory a thread", units::bytes(local))
                }
                _ => format!("{took} (free memory fell by that much during the call)"),
            }
        }
        EventKind::FreedHere => format!("{} at {a:#x} were freed here", units::bytes(b)),
        EventKind::FreedGraphLaunched if b == 0 => {
            format!("a graph was launched after memory at {a:#x} that it refers to was freed")
        }
        EventKind::LaunchedGraph => {
            format!("this was launch {} of exec {a:#x}, instantiated here", units::number(b.saturating_add(1)))
        }
        EventKind::Parked => format!("{} of device memory were moved to the host", units::bytes(a)),
        EventKind::Resumed => {
            format!("{} of device memory are back on the device after {}", units::bytes(a), units::span(b))
        }
        EventKind::NextOwner => format!("the memory now belongs to {} at {a:#x}, allocated here", units::bytes(b)),
        EventKind::FreedGraphLaunched => {
            format!("a graph that refers to {} at {a:#x} was launched after their free", units::bytes(b))
        }
        EventKind::PossibleWriter => {
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
