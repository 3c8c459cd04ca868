//! `gpumem check`: makes a running process read all memory that its guard watches.

use super::said;
use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::Result;
use gpumem_wire::command::Request;

/// Look now for writes outside of allocations, and to freed memory, in a process with GPUMEM_GUARD
///
/// What is found is said by the process on stderr, and by gpumem events. A guard finds writes within 512 bytes and
/// more behind what was allocated (in front of it with GPUMEM_GUARD=front), and writes to freed memory that was not
/// used again. It finds no reads, no writes farther away, and nothing in shared memory.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
}

impl Command for Args {
    const NAME: &'static str = "check";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it; that it has no guard.
    fn run(&self, context: &Context) -> Result<()> {
        said::print(context, &self.target, &Request::Check, "")
    }
}
