//! One file per command. Each owns its arguments, gathers a report from the model, and prints it as text or as JSON.
//! This file lists the commands in the order of the help.

mod allocs;
mod check;
mod clean;
mod diff;
pub(crate) mod doctor;
mod dump;
mod events;
pub(crate) mod examples;
mod export;
mod generate;
mod get;
mod graphs;
mod help;
mod leaks;
mod mark;
mod off;
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
mod trim;

use crate::context::{self, Context};
use crate::failure::Result;

pub(crate) use run::joined;

macro_rules! commands {
    ($($variant:ident($args:ty)),+ $(,)?) => {
        /// What to do.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Command {
            $(#[command(name = <$args as context::Command>::NAME)] $variant($args)),+
        }

        impl Command {
            /// Returns the name on the command line.
            pub(crate) fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => <$args as context::Command>::NAME),+ }
            }

            /// True if it looks for ledgers in GPUMEM_DIR.
            pub(crate) fn reads_ledgers(&self) -> bool {
                match self { $(Self::$variant(_) => <$args as context::Command>::READS_LEDGERS),+ }
            }

            /// Runs it.
            ///
            /// # Errors
            /// Each command documents its own.
            pub(crate) fn run(&self, context: &Context) -> Result<()> {
                match self { $(Self::$variant(args) => context::Command::run(args, context)),+ }
            }
        }
    };
}

commands! {
    Run(run::Args),
    Record(record::Args),
    Ps(ps::Args),
    Allocs(allocs::Args),
    Leaks(leaks::Args),
    Graphs(graphs::Args),
    Stats(stats::Args),
    Events(events::Args),
    Top(top::Args),
    Mark(mark::Args),
    Trim(trim::Args),
    Check(check::Args),
    Set(set::Args),
    Get(get::Args),
    Off(off::Args),
    Park(park::Args),
    Resume(resume::Args),
    Share(share::Args),
    Dump(dump::Args),
    Diff(diff::Args),
    Export(export::Args),
    Serve(serve::Args),
    Report(report::Args),
    Clean(clean::Args),
    Doctor(doctor::Args),
    Selftest(selftest::Args),
    Completions(generate::Completions),
    Man(generate::Man),
    Help(help::Args),
}
