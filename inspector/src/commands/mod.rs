//! One file per command. Each gathers a report from the model, then prints it as text or as JSON.
//! [`cache`] and [`pool`] are what several of them say of the graph cache and of the pool.

pub mod allocs;
pub mod cache;
pub mod clean;
pub mod diff;
pub mod doctor;
pub mod dump;
pub mod events;
pub mod export;
pub mod generate;
pub mod graphs;
pub mod mark;
pub mod off;
pub mod output;
pub mod pool;
pub mod ps;
pub mod record;
pub mod retype;
pub mod run;
pub mod selftest;
pub mod set;
pub mod stats;
pub mod top;
pub mod trim;

use crate::args::{Args, Color, Command, Global, Target};
use crate::failure::{Code, Failure, Result};
use crate::model::{Head, Ledger};
use crate::source::choose::{self, Asked};
use crate::source::world::World;
use crate::view::out::Limited;
use crate::view::{json, table, text, units};
use clap::Parser;
use gpumem_wire::place::DIR_VARIABLE;
use gpumem_wire::settings::Settings;
use std::cell::{Cell, RefCell};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

/// What every command gets.
pub struct Context {
    pub world: World,
    pub global: Global,
    /// The command's name, for JSON.
    pub name: &'static str,
    /// What is wrong with a file that was shown all the same.
    damage: RefCell<Vec<String>>,
    /// Bytes that the files store that were read.
    stored: Cell<u64>,
}

/// What an answer has at most: so much for every byte that the files store, and so much besides. A stack of 128
/// frames behind an allocation comes nowhere near.
const ANSWER_FACTOR: u64 = 1024;
const ANSWER_BYTES: u64 = 64 << 20;

/// Parses the command line, runs the command, prints its failure.
pub fn main() -> ExitCode {
    // SAFETY: SIG_DFL is a valid disposition; nothing else runs yet. A reader that goes away
    // (`gpumem allocs | head`) ends us quietly, as it does any other tool.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let args = Args::parse();
    start_log(args.global.verbose);
    match args.global.color {
        Color::Auto => {}
        Color::Always => anstream::ColorChoice::Always.write_global(),
        Color::Never => anstream::ColorChoice::Never.write_global(),
    }
    ExitCode::from(answer(args) as u8)
}

/// Runs a command and prints its failure.
pub fn answer(args: Args) -> Code {
    match dispatch(args) {
        Ok(()) => Code::Ok,
        Err(failure) => {
            anstream::eprintln!("{} {failure}", table::paint(table::BAD, "gpumem:"));
            failure.code
        }
    }
}

fn dispatch(args: Args) -> Result<()> {
    let looks_at_ledgers = !matches!(
        args.command,
        Command::Run(_)
            | Command::Record(_)
            | Command::Doctor(_)
            | Command::Selftest(_)
            | Command::Completions(_)
            | Command::Man(_)
    );
    if looks_at_ledgers && args.global.dir.is_none() {
        warn_of_refused_dir();
    }
    let with = |name, run: &dyn Fn(&Context) -> Result<()>| {
        let (world, global) = (World::here(args.global.dir.clone()), args.global.clone());
        let context = Context { world, global, name, damage: RefCell::default(), stored: Cell::default() };
        run(&context)?;
        context.whole()
    };
    match &args.command {
        Command::Run(run) => with("run", &|context| run::run(run, context)),
        Command::Record(record) => with("record", &|context| record::run(record, context)),
        Command::Ps(ps) => with("ps", &|context| ps::run(ps, context)),
        Command::Allocs(allocs) => with("allocs", &|context| allocs::run(allocs, context)),
        Command::Graphs(graphs) => with("graphs", &|context| graphs::run(graphs, context)),
        Command::Stats(stats) => with("stats", &|context| stats::run(stats, context)),
        Command::Events(events) => with("events", &|context| events::run(events, context)),
        Command::Top(top) => with("top", &|context| top::run(top, context)),
        Command::Mark(mark) => with("mark", &|context| mark::run(mark, context)),
        Command::Trim(trim) => with("trim", &|context| trim::run(trim, context)),
        Command::Off(off) => with("off", &|context| off::run(off, context)),
        Command::Set(set) => with("set", &|context| set::run(set, context)),
        Command::Dump(dump) => with("dump", &|context| dump::run(dump, context)),
        Command::Diff(diff) => with("diff", &|context| diff::run(diff, context)),
        Command::Export(export) => with("export", &|context| export::run(export, context)),
        Command::Clean(clean) => with("clean", &|context| clean::run(clean, context)),
        Command::Doctor(doctor) => with("doctor", &|context| doctor::run(doctor, context)),
        Command::Selftest(selftest) => with("selftest", &|context| selftest::run(selftest, context)),
        Command::Completions(completions) => generate::completions(completions),
        Command::Man(man) => generate::man(man),
    }
}

/// The shim refuses a relative GPUMEM_DIR, and looks elsewhere: who set it would look in vain. Of the others,
/// doctor has a check of its own, and what is run under the shim is told by that.
fn warn_of_refused_dir() {
    let set = std::env::var_os(DIR_VARIABLE).map(|dir| (DIR_VARIABLE.into(), dir));
    let (_, complaints) = Settings::read(set.into_iter());
    for complaint in complaints {
        tracing::warn!("{complaint}");
    }
}

fn start_log(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let default = match verbose {
        0 => "warn",
        1 => "gpumem_inspector=info",
        _ => "gpumem_inspector=debug",
    };
    let filter = EnvFilter::try_from_env("GPUMEM_INSPECTOR_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none())
        .without_time()
        .with_target(false)
        .init();
}

impl Context {
    /// The ledger that the user means.
    ///
    /// # Errors
    /// See [`choose::ledger`].
    pub fn ledger(&self, target: &Target) -> Result<Ledger> {
        self.choose(target, false)
    }

    /// As [`Context::ledger`], for commands that ask the process itself: what is dead is not offered.
    ///
    /// # Errors
    /// See [`choose::ledger`].
    pub fn live_ledger(&self, target: &Target) -> Result<Ledger> {
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
        let retype = |pid: u32| retype::with_target(&words, target.target.as_deref(), &pid.to_string());
        let asked = Asked { target: name.as_deref(), live, retype: &retype };
        let mut ledger = choose::ledger(&self.world, &asked)?;
        if let Some(cut) = ledger.cut_short()
            && !self.damage.borrow().contains(&cut)
        {
            self.damage.borrow_mut().push(cut);
        }
        self.stored.set(self.stored.get().saturating_add(ledger.snapshot.stored));
        if target.no_symbols {
            ledger.symbols.disable();
        }
        Ok(ledger)
    }

    /// Fails where what was shown is not all that there was.
    fn whole(&self) -> Result<()> {
        match self.damage.borrow().as_slice() {
            [] => Ok(()),
            damage => Err(Failure::error(damage.join("\n"))),
        }
    }

    /// Prints a report: as JSON if asked, else by `text`.
    ///
    /// # Errors
    /// Those of stdout.
    pub fn print<T: serde::Serialize>(
        &self,
        report: &T,
        text: impl FnOnce(&mut dyn Write, &T) -> std::io::Result<()>,
    ) -> Result<()> {
        self.write(|out| match self.global.json {
            true => json::print(out, self.name, report),
            false => text(out, report),
        })
    }

    /// Writes an answer to stdout as it is made.
    ///
    /// # Errors
    /// Those of stdout; an answer that is out of proportion to the files that were read.
    pub fn write(&self, answer: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let most = ANSWER_BYTES.saturating_add(self.stored.get().saturating_mul(ANSWER_FACTOR));
        let mut out = Limited::new(BufWriter::with_capacity(1 << 16, anstream::stdout().lock()), most);
        let written = answer(&mut out).and_then(|()| out.flush());
        written.map_err(|error| Failure::io("cannot write to stdout", &error))
    }

    /// Writes what was rendered to stdout.
    ///
    /// # Errors
    /// Those of stdout.
    pub fn say(&self, out: &[u8]) -> Result<()> {
        let mut stdout = anstream::stdout().lock();
        let written = stdout.write_all(out).and_then(|()| stdout.flush());
        written.map_err(|error| Failure::io("cannot write to stdout", &error))
    }

    /// A report as [`Context::print`] writes it, colours included.
    ///
    /// # Errors
    /// Those of `text`.
    pub fn render<T: serde::Serialize>(
        &self,
        report: &T,
        text: impl FnOnce(&mut dyn Write, &T) -> std::io::Result<()>,
    ) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        if self.global.json {
            json::print(&mut out, self.name, report)?;
        } else {
            text(&mut out, report)?;
        }
        Ok(out)
    }
}

/// How many rows to show: what was asked for, else all in JSON and a screenful of text.
pub fn rows(asked: Option<usize>, context: &Context) -> usize {
    match (asked, context.global.json) {
        (Some(0), _) | (None, true) => usize::MAX,
        (Some(limit), _) => limit,
        (None, false) => 40,
    }
}

/// The lines above every view of one process.
pub fn print_head(out: &mut dyn Write, head: &Head, ledger: &Ledger) -> std::io::Result<()> {
    let life = match ledger.status.running() {
        true => format!("recorded for {}", units::span(head.recorded_ns)),
        false => format!("{}, recorded for {}", ledger.status.text(), units::span(head.recorded_ns)),
    };
    let mode = if head.mode == "record-only" { format!(", record-only: {}", head.mode_reason) } else { String::new() };
    let name = table::paint(table::HEAD, text::clean(&head.name));
    writeln!(out, "{name}  pid {}, {life}, interception {}{}", head.pid, head.interception, text::clean(&mode))?;
    for warning in head.warnings() {
        writeln!(out, "{} {}", table::paint(table::WARN, "warning:"), text::clean(&warning))?;
    }
    Ok(())
}
