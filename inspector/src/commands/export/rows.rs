//! A line for each live allocation: CSV, and JSON.

use super::all::WithStack;
use crate::model::Ledger;
use crate::model::rows::Alloc;
use crate::model::sites::Sites;
use crate::source::liveness::real_ns;
use crate::view::json;
use gpumem_wire::kinds::AllocKind;
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
            AllocKind::from_u8(alloc.kind).map_or("unknown", AllocKind::name),
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
    alloc: WithStack<Alloc>,
    site: &'a str,
}

/// Writes one JSON object a line for each allocation.
pub(super) fn json_lines(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    let sites = Sites::of_allocs(ledger);
    for alloc in &ledger.snapshot.allocs {
        json::plain(out, &AllocLine { alloc: WithStack::of_alloc(ledger, alloc), site: &sites.name(alloc.stack) })?;
        out.write_all(b"\n")?;
    }
    Ok(())
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
