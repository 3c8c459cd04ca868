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
use crate::view::{json, table, text, units};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

/// What every command gets.
pub struct Context {
    pub world: World,
    pub global: Global,
    /// The command's name, for JSON.
    pub name: &'static str,
}

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
    let code = match dispatch(args) {
        Ok(()) => Code::Ok,
        Err(failure) => {
            anstream::eprintln!("{} {failure}", table::paint(table::BAD, "gpumem:"));
            failure.code
        }
    };
    ExitCode::from(code as u8)
}

fn dispatch(args: Args) -> Result<()> {
    let context = |name| Context { world: World::here(args.global.dir.clone()), global: args.global.clone(), name };
    match &args.command {
        Command::Run(run) => run::run(run, &context("run")),
        Command::Record(record) => record::run(record, &context("record")),
        Command::Ps(ps) => ps::run(ps, &context("ps")),
        Command::Allocs(allocs) => allocs::run(allocs, &context("allocs")),
        Command::Graphs(graphs) => graphs::run(graphs, &context("graphs")),
        Command::Stats(stats) => stats::run(stats, &context("stats")),
        Command::Events(events) => events::run(events, &context("events")),
        Command::Top(top) => top::run(top, &context("top")),
        Command::Mark(mark) => mark::run(mark, &context("mark")),
        Command::Trim(trim) => trim::run(trim, &context("trim")),
        Command::Set(set) => set::run(set, &context("set")),
        Command::Dump(dump) => dump::run(dump, &context("dump")),
        Command::Diff(diff) => diff::run(diff, &context("diff")),
        Command::Export(export) => export::run(export, &context("export")),
        Command::Clean(clean) => clean::run(clean, &context("clean")),
        Command::Doctor(doctor) => doctor::run(doctor, &context("doctor")),
        Command::Selftest(selftest) => selftest::run(selftest, &context("selftest")),
        Command::Completions(completions) => generate::completions(completions),
        Command::Man(man) => generate::man(man),
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
        let name = target.target.as_deref().or(target.file.as_deref());
        // --file names a file even if it looks like a pid.
        let name = match (&target.file, name) {
            (Some(file), _) if !file.contains('/') => Some(format!("./{file}")),
            (_, name) => name.map(str::to_owned),
        };
        let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let retype = |pid: u32| retype::with_target(&words, target.target.as_deref(), &pid.to_string());
        let asked = Asked { target: name.as_deref(), live, retype: &retype };
        let mut ledger = choose::ledger(&self.world, &asked)?;
        if target.no_symbols {
            ledger.symbols.disable();
        }
        Ok(ledger)
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
        self.say(&self.render(report, text)?)
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
