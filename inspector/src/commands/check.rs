//! `gpumem check`: makes a running process read all memory that its guard watches.

use super::said;
use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::Result;
use gpumem_wire::command::Request;

/// Look now for writes outside of allocations, and to freed memory, in a process with GPUMEM_GUARD
///
/// The process writes its findings to stderr; gpumem events shows them, too. The guard finds writes up to 512 bytes
/// and more behind an allocation (with GPUMEM_GUARD=front also in front of it), and writes to freed memory that was
/// not used again. It finds no reads, no writes farther away, and nothing in shared memory.
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
