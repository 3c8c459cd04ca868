//! The context that every command gets.
//!
//! * [`retype`]: the command line with another process as its target.

mod retype;

use crate::args::{Global, Target};
use crate::failure::{Failure, Result};
use crate::model::Ledger;
use crate::model::shared::{self, Shared};
use crate::source::choose::{self, Opened, TargetRequest};
use crate::source::find::{self, FoundProcess};
use crate::source::world::World;
use crate::view::json;
use crate::view::out::{Wrapped, limited};
use crate::view::table::terminal_columns;
use std::cell::{Cell, RefCell};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Context that every command gets.
pub(crate) struct Context {
    pub world: World,
    pub global: Global,
    /// The command's name.
    pub name: &'static str,
    /// clap's definition of the whole command line.
    pub root: fn() -> clap::Command,
    /// Problems with files that were shown in spite of them.
    damage: RefCell<Vec<String>>,
    /// Stored bytes of all files read.
    stored: Cell<u64>,
}

/// Most bytes of an answer for every stored byte of the files read, and a constant allowance. A stack of 128 frames
/// behind an allocation comes nowhere near.
const ANSWER_FACTOR: u64 = 1024;
const ANSWER_BYTES: u64 = 64 << 20;

impl Context {
    /// Returns the context for a command of this name.
    pub(crate) fn new(name: &'static str, global: Global, root: fn() -> clap::Command) -> Self {
        let world = World::here(global.dir.clone());
        Self { world, global, name, root, damage: RefCell::default(), stored: Cell::default() }
    }

    /// Opens the ledger that the user means.
    ///
    /// # Errors
    /// See [`choose::ledger`].
    pub(crate) fn ledger(&self, target: &Target) -> Result<Ledger> {
        self.choose(target, false)
    }

    /// As [`Context::ledger`], for commands that ask the process itself: dead processes are not offered.
    ///
    /// # Errors
    /// See [`choose::ledger`].
    pub(crate) fn live_ledger(&self, target: &Target) -> Result<Ledger> {
        self.choose(target, true)
    }

    fn choose(&self, target: &Target, live: bool) -> Result<Ledger> {
        // --file names a file even if it looks like a pid.
        let file = target.file.as_ref().map(|file| match file.as_bytes().contains(&b'/') {
            true => file.clone(),
            false => Path::new(".").join(file).into_os_string(),
        });
        let name = target.target.clone().or(file);
        let words: Vec<_> = std::env::args_os().collect();
        let retype = |pid: u32| retype::with_target((self.root)(), &words, target.target.as_deref(), &pid.to_string());
        let asked = TargetRequest { target: name.as_deref(), live, retype: &retype };
        Ok(self.opened(choose::ledger(&self.world, &asked)?, target))
    }

    /// Returns all running processes with a ledger, if the user named none.
    pub(crate) fn running(&self, target: &Target) -> Vec<FoundProcess> {
        if target.target.is_some() || target.file.is_some() {
            return Vec::new();
        }
        find::survey(&self.world).found.into_iter().filter(FoundProcess::is_live).collect()
    }

    /// Opens the ledger of one of them.
    ///
    /// # Errors
    /// See [`choose::read`].
    pub(crate) fn read(&self, found: &FoundProcess, target: &Target) -> Result<Ledger> {
        Ok(self.opened(choose::read(&self.world, found)?, target))
    }

    /// Returns the memory that a process shares with others.
    pub(crate) fn shared(&self, ledger: &Ledger, target: &Target) -> Shared {
        // The ledgers of the others may lie anywhere.
        let others = if shared::is_shared(ledger) { find::survey(&self.world.wide()).found } else { Vec::new() };
        shared::of(&self.world, ledger, &others, |found| self.read(found, target))
    }

    fn opened(&self, opened: Opened, target: &Target) -> Ledger {
        let mut ledger = Ledger::of(&self.world, opened);
        if let Some(cut) = ledger.cut_short()
            && !self.damage.borrow().contains(&cut)
        {
            self.damage.borrow_mut().push(cut);
        }
        self.stored.set(self.stored.get().saturating_add(ledger.snapshot.stored));
        ledger.stack = target.stack;
        if target.no_symbols {
            ledger.symbols.disable();
        }
        ledger
    }

    /// Fails if a file could not be shown completely.
    ///
    /// # Errors
    /// Describes the problems with the files shown.
    pub(crate) fn whole(&self) -> Result<()> {
        match self.damage.borrow().as_slice() {
            [] => Ok(()),
            damage => Err(Failure::error(damage.join("\n"))),
        }
    }

    /// Returns the number of rows to show: the requested number, or all in JSON and a screenful as text.
    pub(crate) fn rows(&self, asked: Option<usize>) -> usize {
        match (asked, self.global.json) {
            (Some(0), _) | (None, true) => usize::MAX,
            (Some(limit), _) => limit,
            (None, false) => 40,
        }
    }

    /// Refuses `--json` for output that is not JSON: a user who asked for JSON has no use for another form.
    ///
    /// # Errors
    /// `Code::Usage` if JSON was requested.
    pub(crate) fn no_json(&self, what: &str) -> Result<()> {
        match self.global.json {
            true => Err(Failure::usage(format!("--json: {what} is no JSON")).fix("leave --json out")),
            false => Ok(()),
        }
    }

    /// Prints a report: as JSON if requested, else by `text`.
    ///
    /// # Errors
    /// Those of stdout.
    pub(crate) fn print<T: serde::Serialize>(
        &self,
        report: &T,
        text: impl FnOnce(&mut dyn Write, &T) -> std::io::Result<()>,
    ) -> Result<()> {
        self.write(|out| self.answer(out, report, text))
    }

    /// As [`Context::print`], to `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn answer<T: serde::Serialize>(
        &self,
        out: &mut dyn Write,
        report: &T,
        text: impl FnOnce(&mut dyn Write, &T) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        if self.global.json {
            return json::print(out, self.name, report);
        }
        let mut out = Wrapped::new(out, terminal_columns());
        text(&mut out, report)?;
        out.flush()
    }

    /// Writes an answer to stdout while it is being made.
    ///
    /// # Errors
    /// Those of stdout; also if the answer is out of proportion to the files read.
    pub(crate) fn write(&self, answer: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let mut out = self.limited(BufWriter::with_capacity(1 << 16, anstream::stdout().lock()));
        answer(&mut out).and_then(|()| out.flush()).map_err(to_stdout)
    }

    /// Limits `out` in proportion to the files read.
    pub(crate) fn limited<W: Write>(&self, out: W) -> impl Write {
        limited(out, ANSWER_BYTES.saturating_add(self.stored.get().saturating_mul(ANSWER_FACTOR)))
    }
}

/// Returns the failure of writing an answer.
pub(crate) fn to_stdout(error: std::io::Error) -> Failure {
    Failure::io("cannot write to stdout", &error)
}
