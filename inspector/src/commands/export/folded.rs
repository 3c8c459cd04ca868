//! Folded stacks, the input of flame graphs: `kind;outermost;…;innermost BYTES`, one line for each call stack. Source:
//! the README of Brendan Gregg's FlameGraph, "Fold stacks"; inferno reads the same.

use super::stacks::{self, StackBytes};
use crate::model::Ledger;
use crate::symbols::Frame;
use crate::text;
use std::io::Write;

pub(super) fn write(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    for StackBytes { kind, stack, bytes, .. } in stacks::held(ledger) {
        write!(out, "{}", kind.name())?;
        let frames = ledger.frames(stack);
        for frame in frames.iter().rev() {
            write!(out, ";{}", step(frame))?;
        }
        if frames.is_empty() {
            write!(out, ";{}", stacks::NO_STACK)?;
        }
        writeln!(out, " {bytes}")?;
    }
    Ok(())
}

/// Returns a frame in words that cannot end a step or a line.
fn step(frame: &Frame) -> String {
    text::clean(&frame.label()).replace(';', ":").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_no_step() {
        let frame = |function: &str| Frame { function: Some(function.into()), ..Frame::default() };
        assert_eq!(step(&frame("f<a;b>\nc")), step(&frame("f<a:b>\nc")));
        assert!(!step(&frame("a;b\nc")).contains([';', '\n']));
    }
}
