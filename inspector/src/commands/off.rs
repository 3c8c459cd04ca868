//! `gpumem off`: makes gpumem step aside in a running process.

use super::said;
use crate::args::Asked;
use crate::context::{Command, Context};
use crate::failure::Result;
use gpumem_wire::command::Request;

/// Turn the pool and the graph cache off in a running process
///
/// Later allocations and graphs are the driver's own, and the memory that the pool keeps goes back to the driver.
/// What was allocated or instantiated before stays as it is. Recording goes on. To turn both on again: gpumem set
/// PID POOL=default GRAPH_CACHE=default.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    whom: Asked,
}

impl Command for Args {
    const NAME: &'static str = "off";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it.
    fn run(&self, context: &Context) -> Result<()> {
        said::print(context, &self.whom.target(), &Request::Off, "pool and graph cache are off")
    }
}
