//! A file for each command, or for a few that are alike. Each command owns its arguments, gathers a report from the model,
//! and prints it as text or as JSON. This file lists the commands in the order of the help.

mod allocs;
mod clean;
mod diff;
pub(crate) mod doctor;
mod dump;
mod events;
pub(crate) mod examples;
mod export;
mod generate;
mod graphs;
mod help;
mod leaks;
mod output;
mod park;
mod ps;
mod record;
mod report;
mod resume;
mod run;
mod said;
mod selftest;
mod serve;
mod set;
mod several;
mod share;
mod stats;
mod top;

use crate::context::Context;
use crate::failure::Result;

macro_rules! commands {
    ($($name:literal: $variant:ident($args:ty)),+ $(,)?) => {
        /// What to do.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Command {
            $(#[command(name = $name)] $variant($args)),+
        }

        impl Command {
            /// Returns the name on the command line and in JSON.
            pub(crate) fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name),+ }
            }

            /// Runs it.
            ///
            /// # Errors
            /// Each command documents its own.
            pub(crate) fn run(&self, context: &Context) -> Result<()> {
                match self { $(Self::$variant(args) => args.run(context)),+ }
            }
        }
    };
}

commands! {
    "run": Run(run::Args),
    "record": Record(record::Args),
    "ps": Ps(ps::Args),
    "allocs": Allocs(allocs::Args),
    "leaks": Leaks(leaks::Args),
    "graphs": Graphs(graphs::Args),
    "stats": Stats(stats::Args),
    "events": Events(events::Args),
    "top": Top(top::Args),
    "mark": Mark(said::MarkArgs),
    "trim": Trim(said::TrimArgs),
    "check": Check(said::CheckArgs),
    "set": Set(set::SetArgs),
    "get": Get(set::GetArgs),
    "off": Off(said::OffArgs),
    "park": Park(park::Args),
    "resume": Resume(resume::Args),
    "share": Share(share::Args),
    "dump": Dump(dump::Args),
    "diff": Diff(diff::Args),
    "export": Export(export::Args),
    "serve": Serve(serve::Args),
    "report": Report(report::Args),
    "clean": Clean(clean::Args),
    "doctor": Doctor(doctor::Args),
    "selftest": Selftest(selftest::Args),
    "completions": Completions(generate::Completions),
    "man": Man(generate::Man),
    "help": Help(help::Args),
}

impl Command {
    /// True if it looks for ledgers in GPUMEM_DIR.
    pub(crate) fn reads_ledgers(&self) -> bool {
        use Command::{Completions, Doctor, Help, Man, Run, Selftest};
        !matches!(self, Completions(_) | Doctor(_) | Help(_) | Man(_) | Run(_) | Selftest(_))
    }
}
