//! What every command gets, and what every command is.
//!
//! * [`retype`]: the command line again, with another process named.

mod retype;

use crate::args::{Global, Target};
use crate::failure::{Code, Failure, Result};
use crate::model::Ledger;
use crate::model::shared::{self, Shared};
use crate::source::choose::{self, Opened, TargetRequest};
use crate::source::find::{self, FoundProcess};
use crate::source::world::World;
use crate::view::json;
use crate::view::out::{Limited, Wrapped};
use crate::view::table::terminal_columns;
use std::cell::{Cell, RefCell};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A command: its arguments, and what it does with them.
pub(crate) trait Command: clap::Args {
    /// Its name, as it is typed and as JSON has it.
    const NAME: &'static str;
    /// True if it looks for ledgers in the directory that GPUMEM_DIR names.
    const READS_LEDGERS: bool = true;

    /// Runs the command.
    ///
    /// # Errors
    /// Each command says which.
    fn run(&self, context: &Context) -> Result<()>;
}

/// What every command gets.
pub(crate) struct Context {
    pub world: World,
    pub global: Global,
    /// The command's name, for JSON.
    name: &'static str,
    /// The whole command line, as clap knows it.
    pub root: fn() -> clap::Command,
    /// What is wrong with a file that was shown all the same.
    damage: RefCell<Vec<String>>,
    /// Bytes that the files store that were read.
    stored: Cell<u64>,
}

/// An answer has at most this many bytes for every byte that the files store, and so many besides. A stack of 128
/// frames behind an allocation comes nowhere near.
const ANSWER_FACTOR: u64 = 1024;
const ANSWER_BYTES: u64 = 64 << 20;

impl Context {
    /// What a command of this name gets.
    pub(crate) fn new(name: &'static str, global: Global, root: fn() -> clap::Command) -> Self {
        let world = World::here(global.dir.clone());
        Self { world, global, name, root, damage: RefCell::default(), stored: Cell::default() }
    }

    /// The ledger that the user means.
    ///
    /// # Errors
    /// See [`choose::ledger`].
    pub(crate) fn ledger(&self, target: &Target) -> Result<Ledger> {
        self.choose(target, false)
    }

    /// As [`Context::ledger`], for commands that ask the process itself: what is dead is not offered.
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

    /// All processes that run and have a ledger, if the user named none.
    pub(crate) fn running(&self, target: &Target) -> Vec<FoundProcess> {
        if target.target.is_some() || target.file.is_some() {
            return Vec::new();
        }
        find::survey(&self.world).found.into_iter().filter(FoundProcess::is_live).collect()
    }

    /// The ledger of one of them.
    ///
    /// # Errors
    /// See [`choose::read`].
    pub(crate) fn read(&self, found: &FoundProcess, target: &Target) -> Result<Ledger> {
        Ok(self.opened(choose::read(&self.world, found)?, target))
    }

    /// Returns the memory that a process shares with others.
    pub(crate) fn shared(&self, ledger: &Ledger, target: &Target) -> Shared {
        // The others may have their ledgers anywhere.
        let others = match shared::is_shared(ledger) {
            true => find::survey(&self.world.wide()).found,
            false => Vec::new(),
        };
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

    /// Fails if not everything could be shown.
    ///
    /// # Errors
    /// What is wrong with the files that were shown.
    pub(crate) fn whole(&self) -> Result<()> {
        match self.damage.borrow().as_slice() {
            [] => Ok(()),
            damage => Err(Failure::error(damage.join("\n"))),
        }
    }

    /// How many rows to show: the number that was asked for, or else all in JSON and a screenful of text.
    pub(crate) fn rows(&self, asked: Option<usize>) -> usize {
        match (asked, self.global.json) {
            (Some(0), _) | (None, true) => usize::MAX,
            (Some(limit), _) => limit,
            (None, false) => 40,
        }
    }

    /// Refuses `--json` for what is no JSON: an answer of another form helps nobody who asked for it.
    ///
    /// # Errors
    /// [`Code::Usage`] where JSON was asked for.
    pub(crate) fn no_json(&self, what: &str) -> Result<()> {
        match self.global.json {
            true => Err(Failure::new(Code::Usage, format!("--json: {what} is no JSON")).fix("leave --json out")),
            false => Ok(()),
        }
    }

    /// Prints a report: as JSON if asked, else by `text`.
    ///
    /// # Errors
    /// Those of stdout.
    pub(crate) fn print<T: serde::Serialize>(
        &self,
        report: &T,
        text: impl FnOnce(&mut dyn Write, &T) -> std::io::Result<()>,
    ) -> Result<()> {
        self.write(|out| match self.global.json {
            true => json::print(out, self.name, report),
            false => {
                let mut out = Wrapped::new(out, terminal_columns());
                text(&mut out, report)?;
                out.flush()
            }
        })
    }

    /// Writes an answer to stdout as it is made.
    ///
    /// # Errors
    /// Those of stdout; an answer that is out of proportion to the files that were read.
    pub(crate) fn write(&self, answer: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let mut out = self.limited(BufWriter::with_capacity(1 << 16, anstream::stdout().lock()));
        answer(&mut out).and_then(|()| out.flush()).map_err(to_stdout)
    }

    /// `out`, until the answer is out of proportion to the files that were read.
    pub(crate) fn limited<W: Write>(&self, out: W) -> Limited<W> {
        Limited::new(out, ANSWER_BYTES.saturating_add(self.stored.get().saturating_mul(ANSWER_FACTOR)))
    }

    /// Writes what was rendered to stdout.
    ///
    /// # Errors
    /// Those of stdout.
    pub(crate) fn say(&self, out: &[u8]) -> Result<()> {
        let mut stdout = anstream::stdout().lock();
        stdout.write_all(out).and_then(|()| stdout.flush()).map_err(to_stdout)
    }

    /// A report as [`Context::print`] writes it, colours included.
    ///
    /// # Errors
    /// Those of `text`.
    pub(crate) fn render<T: serde::Serialize>(
        &self,
        report: &T,
        text: impl FnOnce(&mut dyn Write, &T) -> std::io::Result<()>,
    ) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let made = match self.global.json {
            true => json::print(&mut out, self.name, report),
            false => text(&mut out, report),
        };
        made.map_err(|error| Failure::io("cannot make the answer", &error))?;
        Ok(out)
    }
}

/// Why an answer could not be written.
pub(crate) fn to_stdout(error: std::io::Error) -> Failure {
    Failure::io("cannot write to stdout", &error)
}
