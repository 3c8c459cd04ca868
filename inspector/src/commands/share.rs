//! `gpumem share NAME`: several programs take turns on a card that cannot hold them all.

use crate::args::{size, span};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::parking::driver::Driver;
use crate::parking::share::service::{self, Options};
use crate::parking::share::turns::Rules;
use std::io::Write;
use std::time::Duration;

/// Let programs that were started with GPUMEM_SHARE=NAME take turns on a GPU that cannot hold them all
///
/// If one program is short of memory, the program that has been idle longest is parked: its device memory goes to host
/// memory. The next GPU call of a parked program waits until the memory is back. gpumem share runs until you end it.
/// Programs that are parked at that time can be resumed by hand, or by the next service of that name. See gpumem help
/// one-card.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The name in GPUMEM_SHARE
    #[arg(value_name = "NAME", default_value = "default", value_parser = name)]
    name: String,
    /// How long a program keeps the card after it was resumed, unless it is idle (GPUMEM_SHARE_IDLE)
    ///
    /// If parking and resuming the program took long, the program keeps the card for longer than TIME: for at least
    /// four times the time that parking and resuming took.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = span)]
    quantum: Duration,
    /// How long to wait for the work of a program to end before it is parked
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span)]
    lock_time: Duration,
    /// Free memory that must be left on a card after a program is resumed
    ///
    /// If the driver finds no room for a program's memory, it never tries again, and the program can only be killed.
    /// Other programs may take memory at the same moment, so leave a margin.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    margin: u64,
}

fn name(text: &str) -> std::result::Result<String, String> {
    match gpumem_wire::share::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "allowed: 1 to {} letters, digits, dots, underscores and hyphens; the first is no dot",
            gpumem_wire::share::MAX_NAME
        )),
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// The driver cannot park, another service has the name, or the quantum is too short.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        context.no_json("what share says")?;
        if self.quantum < Duration::from_secs(1) {
            return Err(Failure::new(
                Code::Usage,
                "--quantum: at least 1s is allowed: shorter turns would be spent on moving memory",
            ));
        }
        let driver = Driver::open().map_err(|why| Failure::error(format!("nothing can be shared: {why}")))?;
        let rules = Rules { quantum: self.quantum, margin: self.margin };
        let options = Options { name: self.name.clone(), rules, lock: self.lock_time };
        service::serve(&context.world, driver, &options, &mut |line| {
            let _ = writeln!(anstream::stdout(), "{}", crate::text::clean(&line));
        })
    }
}
