//! `gpumem top`: a process, or all of them, looked at again and again.
//!
//! * [`live`]: on a terminal, with keys. [`worker`]: the thread that reads for it. [`gather`]: a ledger to a look.
//!   [`draw`]: a state and a look to a screen. [`state`]: what keys do. [`look`]: what a look has. [`keys`]: the keys.
//! * [`plain`]: looks as text or JSON.

mod draw;
mod gather;
mod keys;
mod live;
mod look;
mod plain;
mod state;
mod worker;

use crate::args::{Target, span};
use crate::context::{Command, Context};
use crate::failure::Result;
use std::time::Duration;

/// Watch a process, or all of them: what is live and what grows, with keys
///
/// On a terminal top is a live view with keys. Without a terminal, and with --once, --count or --json, it prints text or JSON.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = live::help())]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Show once and exit
    #[arg(long)]
    once: bool,
    /// Time between two refreshes: seconds, or a time such as 500ms or 2m
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print this many refreshes as text, and exit
    #[arg(long, value_name = "N", value_parser = crate::args::number::<u64>)]
    count: Option<u64>,
    /// How many call sites to print with each refresh [default: as many as fit]
    #[arg(short = 'n', long, value_name = "ROWS", value_parser = crate::args::number::<usize>)]
    limit: Option<usize>,
    /// Change nothing in the process: no mark, no trim, no variable
    #[arg(long)]
    readonly: bool,
    /// Draw with ASCII characters alone; the default where the locale is not UTF-8
    #[arg(long)]
    ascii: bool,
}

/// More often would keep a core busy. More rarely would show nothing.
fn interval(text: &str) -> std::result::Result<Duration, String> {
    let interval = span(text)?;
    match (Duration::from_millis(50)..=Duration::from_secs(86_400)).contains(&interval) {
        true => Ok(interval),
        false => Err("allowed: 0.05 to 86400 seconds".into()),
    }
}

impl Command for Args {
    const NAME: &'static str = "top";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger, and of the terminal.
    fn run(&self, context: &Context) -> Result<()> {
        let as_text = self.once || self.count.is_some() || context.global.json;
        if as_text || !live::is_possible() { plain::run(self, context) } else { live::run(self, context) }
    }
}
