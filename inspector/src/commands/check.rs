//! `gpumem check`: makes a running process read all memory that its guard watches.

use super::said;
use crate::args::{Asked, span};
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::source::ask::longest_work_ms;
use gpumem_wire::command::Request;
use std::time::Duration;

/// Look now for writes outside of allocations, and to freed memory, in a process with GPUMEM_GUARD
///
/// The process writes its findings to stderr; gpumem events also shows them. The guard finds writes to the first 512
/// bytes behind an allocation, and often to further ones (with GPUMEM_GUARD=front also in front of it). It finds writes
/// to freed memory that was not used again. It finds no reads, no writes farther away, and nothing in shared memory. The
/// answer counts memory that could not be read in time.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Asked,
    /// How long the command waits for the process at most
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    timeout: Duration,
}

impl Command for Args {
    const NAME: &'static str = "check";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it; also if it has no guard.
    fn run(&self, context: &Context) -> Result<()> {
        let longest_ms = longest_work_ms(self.timeout);
        said::print_within(context, &self.whom.target(), &Request::Check { longest_ms }, self.timeout)
    }
}
