//! `gpumem trim`: makes a running process release its pool's idle memory.

use super::said;
use crate::args::Asked;
use crate::context::{Command, Context};
use crate::failure::Result;
use gpumem_wire::command::Request;

/// Give the memory that gpumem's pool keeps in a running process back to the driver
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Also refuse one request of the call site that strands most, so that the program frees its stranded memory
    ///
    /// Only for programs that are known to free and retry when memory runs out: see
    /// GPUMEM_STRANDED_RETRIES.
    #[arg(long)]
    press: bool,
    #[command(flatten)]
    whom: Asked,
}

impl Command for Args {
    const NAME: &'static str = "trim";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it.
    fn run(&self, context: &Context) -> Result<()> {
        said::print(context, &self.whom.target(), &Request::Trim { press: self.press }, "")
    }
}
