//! `gpumem run -- COMMAND`: starts a command under the shim, by exec.

use crate::args::candidates;
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::launch::start;
use crate::text::shell_word;
use gpumem_wire::settings::{self, Kind, Setting};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Run a command with libgpumem.so preloaded; gpumem becomes the command, with its exit code and signals
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Turn off the caches of PyTorch's and JAX's own allocators, so that each tensor is an allocation with its line
    ///
    /// For finding who holds memory: the program is slower then, and PyTorch cannot capture CUDA graphs. gpumem's pool
    /// stands in for the cache. To turn off CuPy's pool, the program itself has to call
    /// cupy.cuda.set_allocator(None).
    #[arg(long)]
    tensors: bool,
    /// Print the equivalent shell command instead
    #[arg(long)]
    print_env: bool,
    /// libgpumem.so to preload, instead of the one found beside gpumem
    #[arg(long, value_name = "FILE", env = "GPUMEM_LIB", hide_env_values = true)]
    lib: Option<PathBuf>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", add = candidates::offer([candidates::command]))]
    command: Vec<OsString>,
}

/// An option for each of the shim's variables: `GPUMEM_STACK_EVERY` is `--stack-every`.
#[derive(Clone, Debug, Default)]
struct Settings {
    given: Vec<(&'static str, String)>,
}

/// Returns variables that have an option; the directory has a global one.
fn rows() -> impl Iterator<Item = &'static Setting> {
    settings::ALL.iter().filter(|setting| setting.name != "GPUMEM_DIR")
}

fn option_name(setting: &Setting) -> String {
    setting.name.trim_start_matches(settings::PREFIX).to_ascii_lowercase().replace('_', "-")
}

impl clap::Args for Settings {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for setting in rows() {
            let default =
                if setting.default.is_empty() { String::new() } else { format!(", default {}", setting.default) };
            let mut arg = clap::Arg::new(setting.name)
                .long(option_name(setting))
                .help_heading("Settings of the shim")
                .help(format!(
                    "{} [{}: {}{default}]",
                    setting.doc.trim().trim_end_matches('.'),
                    setting.name,
                    setting.kind
                ))
                .value_parser(move |text: &str| {
                    // A variable needs an absolute path, since the program may change its directory. On a command line
                    // a path is relative to the current one.
                    let whole = std::path::absolute(text).ok().filter(|_| setting.kind == Kind::Path);
                    let text = whole.and_then(|path| path.into_os_string().into_string().ok()).unwrap_or(text.into());
                    match setting.parse(OsStr::new(&text)) {
                        Ok(_) => Ok(text),
                        Err(_) => Err(format!("allowed is {}", setting.kind)),
                    }
                });
            arg = match setting.kind {
                Kind::Bool => arg.value_name("0|1"),
                Kind::Size { .. } => arg.value_name("SIZE"),
                Kind::Count { .. } => arg.value_name("N"),
                Kind::Path => arg.value_name("PATH"),
                Kind::Text => arg.value_name("TEXT"),
                Kind::Name => arg.value_name("NAME"),
                Kind::Group => arg.value_name("NAME:SIZE"),
                Kind::Choice(words) => arg.value_name(words.join("|")),
                Kind::Time => arg.value_name("TIME"),
            };
            command = command.arg(arg);
        }
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Settings {
    fn from_arg_matches(matches: &clap::ArgMatches) -> std::result::Result<Self, clap::Error> {
        let given = rows().filter_map(|setting| Some((setting.name, matches.get_one::<String>(setting.name)?.clone())));
        Ok(Self { given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Serialize)]
struct Report {
    environment: BTreeMap<String, String>,
    /// Not called `command`: every answer has that key already.
    argv: Vec<String>,
    shell: String,
}

impl Args {
    /// Runs the command; returns only if it could not be started.
    ///
    /// # Errors
    /// [`Code::RunFailed`], [`Code::NotFound`], [`Code::NotExecutable`].
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let failed = |failure: Failure| Failure { code: Code::RunFailed, ..failure };
        let mut environment =
            start::environment(self.lib.as_deref(), &self.command, context.global.dir.as_deref()).map_err(failed)?;
        let uncached = settings::UNCACHED.iter().filter(|_| self.tensors);
        environment.extend(uncached.map(|switch| (switch.name.into(), switch.value.into())));
        environment.extend(self.settings.given.iter().map(|(name, value)| ((*name).into(), value.into())));
        if self.print_env {
            return print_env(self, context, &environment);
        }
        if self.command.is_empty() {
            return Err(Failure::usage("no command was given").fix("type: gpumem run -- COMMAND ARGUMENTS"));
        }
        start::become_command(&self.command, environment)
    }
}

fn print_env(args: &Args, context: &Context, environment: &[(OsString, OsString)]) -> Result<()> {
    let lossy = |text: &OsString| text.to_string_lossy().into_owned();
    let assignments = environment.iter().map(|(name, value)| format!("{}={}", lossy(name), shell_word(&lossy(value))));
    let words = args.command.iter().map(|word| shell_word(&lossy(word)));
    let report = Report {
        environment: environment.iter().map(|(name, value)| (lossy(name), lossy(value))).collect(),
        argv: args.command.iter().map(lossy).collect(),
        shell: assignments.chain(words).collect::<Vec<_>>().join(" "),
    };
    context.print(&report, |out, report| writeln!(out, "{}", report.shell))
}
