//! The command line as data: help, completions, man page and docs/cli.md come from it. Runs the command and prints its
//! failure.

use crate::args::candidates::{COMPLETE, behind_dashes};
use crate::args::{Color, Global};
use crate::commands::Command;
use crate::context::Context;
use crate::failure::{Code, Result};
use crate::text::clean_lines;
use crate::view::table::{BAD, DIM, WARN, paint};
use clap::builder::styling::{AnsiColor, Styles};
use clap::{CommandFactory, Parser};
use clap_complete::env::CompleteEnv;
use gpumem_wire::place::DIR_VARIABLE;
use gpumem_wire::settings::Settings;
use std::fmt;
use std::process::ExitCode;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

/// Shows what a process holds on the GPU: which call site, which graph, how many bytes, since when.
#[derive(Debug, Parser)]
#[command(name = "gpumem", version, styles = STYLES, max_term_width = 100, disable_help_subcommand = true)]
#[command(
    after_help = "Begin with: gpumem run -- COMMAND, then gpumem leaks. What to do when memory grows: gpumem help memory-grows"
)]
pub struct Args {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Parses the command line, runs the command, prints its failure.
pub fn main() -> ExitCode {
    // SAFETY: SIG_DFL is a valid disposition, and no other thread runs yet that could set another. A reader that goes
    // away (`gpumem allocs | head`) then ends this process quietly, as for other tools.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    CompleteEnv::with_factory(|| behind_dashes(Args::command())).var(COMPLETE).complete();
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
            anstream::eprintln!("{} {failure}", paint(BAD, "gpumem:"));
            failure.code
        }
    }
}

fn dispatch(args: Args) -> Result<()> {
    let Args { global, command } = args;
    if command.reads_ledgers() && global.dir.is_none() {
        warn_of_refused_dir();
    }
    let context = Context::new(command.name(), global, Args::command);
    command.run(&context)?;
    context.whole()
}

/// The shim refuses a relative GPUMEM_DIR and uses another directory, so the user would find no ledgers in it. doctor
/// checks the other variables, and commands that run under the shim report them.
fn warn_of_refused_dir() {
    let set = std::env::var_os(DIR_VARIABLE).map(|dir| (DIR_VARIABLE.into(), dir));
    let (_, complaints) = Settings::read(set.into_iter());
    for complaint in complaints {
        tracing::warn!("{complaint}");
    }
}

fn start_log(verbose: u8) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::prelude::*;
    let default = || match verbose {
        0 => Targets::new().with_default(LevelFilter::WARN),
        1 => Targets::new().with_target("gpumem_inspector", LevelFilter::INFO),
        _ => Targets::new().with_target("gpumem_inspector", LevelFilter::DEBUG),
    };
    let asked = std::env::var("GPUMEM_INSPECTOR_LOG").ok().and_then(|filter| filter.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| crate::view::screen::Stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none())
        .event_format(LogLine);
    tracing_subscriber::registry().with(asked.unwrap_or_else(default)).with(lines).init();
}

/// A line of the log in the form of gpumem's other messages: `gpumem: warning: …`.
struct LogLine;

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer, event: &tracing::Event) -> fmt::Result {
        let (level, style) = match *event.metadata().level() {
            tracing::Level::ERROR => ("error", BAD),
            tracing::Level::WARN => ("warning", WARN),
            tracing::Level::INFO => ("info", DIM),
            _ => ("debug", DIM),
        };
        let mut text = String::new();
        context.field_format().format_fields(Writer::new(&mut text), event)?;
        let text = clean_lines(&text);
        match out.has_ansi_escapes() {
            true => writeln!(out, "{} {text}", paint(style, format_args!("gpumem: {level}:"))),
            false => writeln!(out, "gpumem: {level}: {text}"),
        }
    }
}
