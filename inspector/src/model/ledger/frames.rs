//! Selects and orders the frames of a stack that are shown, and finds its call site.
//!
//! A ledger has a stack's native frames, followed by its Python frames. This module merges them: each interpreter
//! function that runs Python frames is replaced by the frames that it ran, and the other frames in the interpreter's
//! file are left out.
//!
//! The call site of a stack with Python frames is the program's innermost one: outside of Python's standard library and
//! of the packages that programs allocate through ([`python::whose`]). If that frame lies in a package, the user's own
//! innermost line is named with it.

use super::Ledger;
use crate::symbols::is_standard;
use crate::symbols::python::{self, Whose};
use crate::text::CALLED_BY;
use gpumem_wire::layout::{PythonFrame, StackRef};
use std::borrow::Cow;
use std::rc::Rc;

/// Frames to show if a stack has native and Python frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StackMode {
    /// Only native frames
    Native,
    /// Only frames of Python, if the stack has any
    Python,
    /// Both, without the interpreter's own
    #[default]
    Mixed,
}

/// Returns the native frames and the Python frames of a stack.
fn parts(ledger: &Ledger, stack: StackRef) -> (&[u64], &[u64]) {
    let all = ledger.snapshot.stacks.get(&stack).map_or(&[][..], |stack| ledger.snapshot.frames(stack));
    let native = all.iter().position(|&frame| PythonFrame::of(frame).is_some()).unwrap_or(all.len());
    all.split_at(native)
}

/// Returns the shown frames, innermost first.
pub(super) fn shown(ledger: &Ledger, stack: StackRef) -> Cow<'_, [u64]> {
    let (native, python) = parts(ledger, stack);
    match ledger.stack {
        _ if python.is_empty() => Cow::Borrowed(native),
        StackMode::Native => Cow::Borrowed(native),
        StackMode::Python => Cow::Borrowed(python),
        StackMode::Mixed => Cow::Owned(mixed(ledger, native, python)),
    }
}

fn mixed(ledger: &Ledger, native: &[u64], mut python: &[u64]) -> Vec<u64> {
    let symbols = &ledger.symbols;
    // Inlined functions come before the function that contains them.
    let function = |address: u64| symbols.frames(address).last().and_then(|frame| frame.function.clone());
    let runs_frames = |address: u64| function(address).is_some_and(|name| python::runs_frames(&name));
    let interpreter = native.iter().find(|&&address| runs_frames(address));
    // Without symbols the interpreter is recognised by its file's name, and its frames are adjacent.
    let together = interpreter.is_none();
    let by_name = || native.iter().find(|&&address| symbols.module(address).is_some_and(python::is_interpreter));
    let module = interpreter.or_else(by_name).and_then(|&address| symbols.module(address));
    let mut frames = Vec::with_capacity(native.len() + python.len());
    for &address in native {
        let is_interpreter = module.is_some() && symbols.module(address) == module;
        if is_interpreter && (together || runs_frames(address)) {
            let is_entry = |&frame: &u64| PythonFrame::of(frame).is_none_or(|frame| frame.entry);
            let ran = python.iter().position(is_entry).filter(|_| !together).map_or(python.len(), |last| last + 1);
            frames.extend_from_slice(&python[..ran]);
            python = &python[ran..];
        } else if !is_interpreter {
            frames.push(address);
        }
    }
    // The outermost native frames may have been cut off.
    frames.extend_from_slice(python);
    frames
}

/// Returns the call site of a stack.
pub(super) fn site(ledger: &Ledger, stack: StackRef) -> Option<u64> {
    let (native, python) = parts(ledger, stack);
    if python.is_empty() || ledger.stack == StackMode::Native {
        return ledger.symbols.site(native);
    }
    let whose = |frame: u64| whose(ledger, frame);
    let of_program = python.iter().copied().find(|&frame| whose(frame) != Whose::Framework);
    of_program.or(python.first().copied())
}

fn whose(ledger: &Ledger, frame: u64) -> Whose {
    ledger.symbols.frames(frame)[0].file.as_deref().map_or(Whose::Framework, python::whose)
}

/// Returns the frames that name a stack: its call site, the user's own line if that is another frame, and the callers
/// of that line.
pub(in crate::model) fn steps(ledger: &Ledger, stack: StackRef) -> (Cow<'_, [u64]>, usize) {
    let (native, python) = parts(ledger, stack);
    let is_native = python.is_empty() || ledger.stack == StackMode::Native;
    let frames = if is_native { native } else { python };
    let site = ledger.site(stack).and_then(|site| frames.iter().position(|&frame| frame == site));
    let steps = &frames[site.unwrap_or(0)..];
    let is_own = |&frame: &u64| whose(ledger, frame) == Whose::Own;
    match if is_native { None } else { steps.iter().position(is_own) } {
        Some(own @ 1..) => (steps[..1].iter().chain(&steps[own..]).copied().collect(), 2),
        _ => (Cow::Borrowed(steps), 1),
    }
}

/// Returns a step of a stack's name. [`steps`] says how many of its first frames form one step, which is never split.
pub(in crate::model) fn step(
    ledger: &Ledger,
    stack: StackRef,
    mut depth: usize,
    words: impl Fn(u64) -> Option<Rc<[Rc<str>]>>,
) -> Option<Rc<str>> {
    let (steps, together) = steps(ledger, stack);
    if let (0, 2, [site, own, ..]) = (depth, together, &steps[..]) {
        let (site, own) = (words(*site)?, words(*own)?);
        return Some(format!("{}{}{}", site.first()?, CALLED_BY, own.first()?).into());
    }
    let skipped = together - 1;
    for (outwards, &frame) in steps[skipped..].iter().enumerate() {
        let words = words(frame)?;
        let is_shown = |&(inlined, word): &(usize, &Rc<str>)| outwards + inlined == 0 || !is_standard(word);
        let mut shown = words.iter().enumerate().filter(is_shown).map(|(_, word)| word);
        match shown.clone().nth(depth) {
            Some(word) => return Some(Rc::clone(word)),
            None => depth -= shown.by_ref().count(),
        }
    }
    None
}
