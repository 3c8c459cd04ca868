//! `gpumem top`: watches a process, or all of them.
//!
//! * [`live`]: the view on a terminal, with keys. [`worker`]: its reading thread. [`gather`]: a ledger to a look.
//!   [`draw`]: a state and a look to a screen. [`state`]: effects of keys. [`look`]: result of a look. [`keys`]: the
//!   keys.

mod draw;
mod gather;
mod keys;
mod live;
mod look;
mod state;
mod worker;

use crate::args::{Target, interval};
use crate::context::Context;
use crate::failure::{Failure, Result};
use std::time::Duration;

/// Watch a process, or all of them: what is live and what grows, with keys
///
/// Needs a terminal. gpumem stats and gpumem allocs print text and JSON.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = keys::help())]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Time between two refreshes: seconds, or a time such as 500ms or 2m
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1", value_parser = interval(Duration::from_secs(86_400)))]
    interval: Duration,
    /// Change nothing in the process: no mark, no trim
    #[arg(long)]
    readonly: bool,
    /// Draw only with ASCII characters; the default if the locale is not UTF-8
    #[arg(long)]
    ascii: bool,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// `Code::Usage` without a terminal; those of choosing and reading the ledger, and of the terminal.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        context.no_json("top")?;
        if !live::is_possible() {
            let failure = Failure::usage("top needs a terminal with keys");
            return Err(failure.fix("gpumem stats and gpumem allocs print text and JSON"));
        }
        live::run(self, context)
    }
}
