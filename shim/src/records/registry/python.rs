//! Python frames in call stacks: the code that they run, each function written into the ledger once.

use crate::ledger::Ledger;
use crate::process::lock::lock;
use crate::process::threads;
use crate::stacks::python::{Code, Python, Verdict, Walk};
use gpumem_wire::counters;
use gpumem_wire::layout::{CodeSlot, StrRef};
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// The process's interpreter, and its code seen so far.
pub(crate) struct PythonSites {
    python: Python,
    /// Slots of code by name, file and first line.
    codes: Mutex<FxHashMap<(StrRef, StrRef, u32), u32>>,
}

impl PythonSites {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        let sites = Self { python: Python::new(), codes: Mutex::default() };
        sites.look(ledger);
        sites
    }

    /// True if there is an interpreter whose frames may be read.
    #[inline(always)]
    pub(crate) fn is_there(&self) -> bool {
        self.python.is_there()
    }

    /// Looks for an interpreter if none is known.
    #[cold]
    pub(crate) fn look(&self, ledger: &Ledger) {
        if let Some(verdict) = self.python.look() {
            say(ledger, verdict);
        }
    }

    /// Writes the calling thread's Python frames, innermost first.
    pub(crate) fn walk(&self, ledger: &Ledger, frames: &mut [u64]) -> Walk {
        self.python.walk(frames, &mut |code| self.number(ledger, code), &mut |verdict| say(ledger, verdict))
    }

    /// Returns the number of code; `None` if there is no room for it.
    fn number(&self, ledger: &Ledger, code: &Code) -> Option<u32> {
        let name = ledger.texts.intern(&code.name);
        let file = ledger.texts.intern(&code.file);
        let mut codes = lock(&self.codes);
        let key = (name, file, code.first_line);
        if let Some(&slot) = codes.get(&key) {
            return Some(slot);
        }
        // Code without a slot is not kept here either: a program may make code for as long as it runs.
        let Some(slot) = ledger.codes.take() else {
            ledger.count(threads::shard(), counters::DROPPED_RECORDS, 1);
            return None;
        };
        ledger.codes.write(slot, CodeSlot { name, file, first_line: code.first_line, ..Default::default() });
        codes.insert(key, slot);
        Some(slot)
    }
}

/// Writes the interpreter found and, if its frames are not read, the reason.
#[cold]
fn say(ledger: &Ledger, verdict: Verdict) {
    let why = verdict.refused.map_or(String::new(), |why| format!("\n{why}"));
    let text = ledger.texts.intern(format!("{}{why}", verdict.interpreter).as_bytes());
    ledger.header().python().store(text, Relaxed);
}
