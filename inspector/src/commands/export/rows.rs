//! Everything in a ledger, as JSON; and a line for each live allocation: CSV, and JSON.

use crate::context::Context;
use crate::model::overview::Overview;
use crate::model::rows::SlotRow;
use crate::model::sites::Sites;
use crate::model::{Head, Ledger, growth, totals};
use crate::source::liveness::real_ns;
use crate::source::nvml::Books;
use crate::view::json;
use crate::view::lazy::Lazy;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, ExecSlot, GraphSlot, StackRef};
use gpumem_wire::{counters, read};
use serde::Serialize;
use std::io::Write;

pub(super) fn csv(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    writeln!(
        out,
        "address,bytes,kind,time_unix_ns,age_ns,serial,tid,thread,tag,context,device,location,stream,flags,site"
    )?;
    let sites = Sites::of_allocs(ledger);
    for alloc in &ledger.snapshot.allocs {
        let device = ledger.device(alloc.context);
        writeln!(
            out,
            "{:#x},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            alloc.addr,
            alloc.bytes,
            AllocKind::name_of(alloc.kind),
            real_ns(&ledger.snapshot.header, alloc.time_ns),
            ledger.age(alloc.time_ns),
            alloc.serial,
            alloc.tid,
            field(ledger.thread(alloc.tid)),
            field(&ledger.snapshot.text(alloc.tag)),
            alloc.context,
            field(&device),
            ledger.location(alloc),
            alloc.stream,
            Ledger::flags(alloc).join(" "),
            field(&sites.name(alloc.stack)),
        )?;
    }
    Ok(())
}

/// Returns a field, quoted if necessary. A spreadsheet would take a leading `=`, `+`, `-` or `@` for a formula.
fn field(text: &str) -> String {
    let text = crate::text::clean(text);
    let formula = text.starts_with(['=', '+', '-', '@']);
    if formula || text.contains([',', '"', '\n']) {
        format!("\"{}{}\"", if formula { "'" } else { "" }, text.replace('"', "\"\""))
    } else {
        text.into_owned()
    }
}

/// A line of JSON also has the call site in words.
#[derive(serde::Serialize)]
struct AllocLine<'a> {
    #[serde(flatten)]
    alloc: WithStack<'a, AllocSlot>,
    site: &'a str,
}

/// Writes one JSON object a line for each allocation.
pub(super) fn json_lines(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    let sites = Sites::of_allocs(ledger);
    for alloc in &ledger.snapshot.allocs {
        let line = AllocLine { alloc: with_stack(ledger, alloc, alloc.stack), site: &sites.name(alloc.stack) };
        json::plain(out, &line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[derive(Serialize)]
pub(super) struct Everything<'a> {
    process: crate::model::Head,
    #[serde(flatten)]
    overview: Overview,
    host: totals::Host,
    counters: std::collections::BTreeMap<&'static str, u64>,
    samples: Vec<std::collections::BTreeMap<&'static str, u64>>,
    stacks: Lazy<'a, StackRow>,
    allocations: Lazy<'a, WithStack<'a, AllocSlot>>,
    graphs: Lazy<'a, WithStack<'a, GraphSlot>>,
    execs: Lazy<'a, WithStack<'a, ExecSlot>>,
}

#[derive(Serialize)]
struct StackRow {
    stack: StackRef,
    frames: Vec<crate::symbols::Frame>,
    allocs: u64,
    alloc_bytes: u64,
    graphs: u64,
    execs: u64,
}

/// A row, and the number of its call stack.
#[derive(Serialize)]
#[serde(bound = "SlotRow<'a, S>: Serialize")]
struct WithStack<'a, S> {
    #[serde(flatten)]
    of: SlotRow<'a, S>,
    stack: StackRef,
}

fn with_stack<'a, S>(ledger: &'a Ledger, slot: &'a S, stack: StackRef) -> WithStack<'a, S> {
    WithStack { of: SlotRow { ledger, slot }, stack }
}

pub(super) fn everything<'a>(context: &Context, ledger: &'a Ledger) -> Everything<'a> {
    let snapshot = &ledger.snapshot;
    let mut stacks: Vec<_> = snapshot.stacks.iter().collect();
    stacks.sort_by_key(|(reference, _)| **reference);
    Everything {
        process: Head::of(ledger),
        overview: Overview::of(ledger, &Books::default()),
        host: totals::host(&context.world, ledger),
        counters: counters::ALL.iter().map(|&(index, name, _)| (name, snapshot.counter(index))).collect(),
        samples: growth::samples(ledger),
        stacks: Lazy::of(stacks, move |(&stack, slot): (&u32, &read::Stack)| StackRow {
            stack,
            frames: ledger.frames(stack),
            allocs: slot.allocs,
            alloc_bytes: slot.alloc_bytes,
            graphs: slot.graphs,
            execs: slot.execs,
        }),
        allocations: Lazy::of(snapshot.allocs.iter().collect(), |slot| with_stack(ledger, slot, slot.stack)),
        graphs: Lazy::of(snapshot.graphs.iter().collect(), |slot| with_stack(ledger, slot, slot.stack)),
        execs: Lazy::of(snapshot.execs.iter().collect(), |slot| with_stack(ledger, slot, slot.stack)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_break_out() {
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("=cmd()"), "\"'=cmd()\"");
    }
}
