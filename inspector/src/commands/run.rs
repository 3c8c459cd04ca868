//! `gpumem run -- COMMAND`: starts a command under the shim, by becoming it.

use super::{Context, doctor};
use crate::failure::{Code, Failure, Result};
use crate::view::text::shell_word;
use gpumem_wire::settings::{self, Kind, Setting};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// Run a command with libgpumem.so preloaded; its exit code and signals are its own
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Print the equivalent shell command instead
    #[arg(long)]
    print_env: bool,
    /// libgpumem.so to preload, instead of the one found beside gpumem
    #[arg(long, value_name = "FILE", env = "GPUMEM_LIB", hide_env_values = true)]
    lib: Option<PathBuf>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// An option for each of the shim's variables: `GPUMEM_STACK_EVERY` is `--stack-every`.
#[derive(Clone, Debug, Default)]
struct Settings {
    given: Vec<(&'static str, String)>,
}

/// Variables that have an option: the directory is a global one.
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
                .value_parser(move |text: &str| match setting.parse(OsStr::new(text)) {
                    Ok(_) => Ok(text.to_owned()),
                    Err(_) => Err(format!("allowed is {}", setting.kind)),
                });
            arg = match setting.kind {
                Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("1").value_name("0|1"),
                Kind::Size { .. } => arg.value_name("SIZE"),
                Kind::Count { .. } => arg.value_name("N"),
                Kind::Path => arg.value_name("PATH"),
                Kind::Text => arg.value_name("TEXT"),
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
    /// Not `command`: that key is every answer's own.
    argv: Vec<String>,
    shell: String,
}

/// Runs the command; returns only when it could not be started.
///
/// # Errors
/// [`Code::RunFailed`], [`Code::NotFound`], [`Code::NotExecutable`].
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let failed = |failure: Failure| Failure { code: Code::RunFailed, ..failure };
    let mut environment = environment(args.lib.as_deref(), &args.command, context).map_err(failed)?;
    environment.extend(args.settings.given.iter().map(|(name, value)| ((*name).into(), value.into())));
    if args.print_env {
        return print_env(args, context, &environment);
    }
    if args.command.is_empty() {
        return Err(Failure::new(Code::Usage, "no command was given").fix("type: gpumem run -- COMMAND ARGUMENTS"));
    }
    become_command(&args.command, environment)
}

/// What every command under the shim is started with.
///
/// # Errors
/// Where the library was looked for; a path that cannot be preloaded.
pub(super) fn environment(
    lib: Option<&Path>,
    command: &[OsString],
    context: &Context,
) -> Result<Vec<(OsString, OsString)>> {
    let lib = library(lib)?;
    let program = command.first().and_then(|program| find_program(program));
    let mut environment: Vec<(OsString, OsString)> = vec![("LD_PRELOAD".into(), preload(&lib, program.as_deref())?)];
    if let Some(dir) = &context.global.dir {
        let dir = std::path::absolute(dir).map_err(|error| Failure::io(dir.display(), &error))?;
        environment.push(("GPUMEM_DIR".into(), dir.into()));
    }
    Ok(environment)
}

/// Fails for a command that is nowhere, before anything is done for it.
///
/// # Errors
/// [`Code::NotFound`].
pub(super) fn look_up(command: &[OsString]) -> Result<()> {
    match command.first() {
        Some(program) if !find_program(program).is_some_and(|path| path.exists()) => {
            Err(not_started(program, &ErrorKind::NotFound.into()))
        }
        _ => Ok(()),
    }
}

/// Becomes a command; returns only when it could not be started.
///
/// # Errors
/// [`Code::NotFound`], [`Code::NotExecutable`].
pub(super) fn become_command(command: &[OsString], environment: Vec<(OsString, OsString)>) -> Result<()> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    if let Some(why) = find_program(program).and_then(|path| doctor::beyond_reach(&path)) {
        tracing::warn!("{}: {why}; it runs as if without gpumem", program.to_string_lossy());
    }
    let error = std::process::Command::new(program).args(arguments).envs(environment).exec();
    Err(not_started(program, &error))
}

/// Why a command could not be started, and what to do.
fn not_started(program: &OsStr, error: &std::io::Error) -> Failure {
    let name = program.to_string_lossy();
    let path = find_program(program).filter(|path| path.exists());
    match (error.kind(), path) {
        (ErrorKind::NotFound, None) if name.contains('/') => {
            Failure::new(Code::NotFound, format!("there is no file {name}"))
        }
        (ErrorKind::NotFound, None) => Failure::new(Code::NotFound, format!("no command {name} was found"))
            .fix("it is in no directory of PATH: give its path, as ./COMMAND"),
        // The file is there: what is missing is what should read it.
        (ErrorKind::NotFound, Some(path)) => {
            Failure::new(Code::NotFound, format!("cannot run {}: its interpreter is missing", path.display()))
                .fix("its first line, or the loader that it was linked for, names a file that is not here")
        }
        (_, Some(path)) if path.is_dir() => {
            Failure::new(Code::NotExecutable, format!("cannot run {}: it is a directory", path.display()))
        }
        (ErrorKind::PermissionDenied, Some(path)) => {
            Failure::new(Code::NotExecutable, format!("cannot run {}: no permission to execute it", path.display()))
                .fix(format!("chmod +x {}, or name its interpreter before it", shell_word(&path.to_string_lossy())))
        }
        _ => Failure { code: Code::NotExecutable, fix: None, ..Failure::io(format!("cannot run {name}"), error) },
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

/// libgpumem.so: where the user says, else near this binary, else where systems keep libraries.
///
/// # Errors
/// Lists where it was looked for.
pub fn library(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named.filter(|named| !named.as_os_str().is_empty()) {
        return std::path::absolute(named)
            .ok()
            .filter(|path| path.is_file())
            .ok_or_else(|| Failure::error(format!("there is no library {}", named.display())));
    }
    let places = places();
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let dirs: Vec<_> =
            places.iter().filter_map(|path| path.parent()).map(|dir| dir.display().to_string()).collect();
        Failure::error(format!("libgpumem.so is in none of {}", dirs.join(", ")))
            .fix("name it with --lib or GPUMEM_LIB")
    })
}

fn places() -> Vec<PathBuf> {
    let exe = std::env::current_exe().ok();
    let bin = exe.as_deref().and_then(Path::parent);
    let near = bin.into_iter().flat_map(|bin| {
        let up = bin.parent().unwrap_or(bin);
        // Beside it in a build directory, in lib/ next to bin/ where it is installed.
        [
            bin.join("libgpumem.so"),
            up.join("lib/libgpumem.so"),
            up.join("lib64/libgpumem.so"),
            up.join("lib/gpumem/libgpumem.so"),
        ]
    });
    let arch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let system = ["/usr/local/lib", "/usr/lib64", "/usr/lib", &arch].map(|dir| Path::new(dir).join("libgpumem.so"));
    near.chain(system).collect()
}

/// Ours first, then what was to be preloaded anyway. Before ours comes what the program is linked with and has to
/// come before all others.
pub(super) fn preload(lib: &Path, program: Option<&Path>) -> Result<OsString> {
    let text = lib.to_string_lossy();
    // The loader splits at spaces and colons and knows no quoting.
    if text.contains([' ', ':', '$']) {
        return Err(Failure::error(format!(
            "LD_PRELOAD cannot hold the path {text}: it has a space, a colon or a dollar"
        ))
        .fix("copy libgpumem.so to a path without and name it with --lib"));
    }
    let others = std::env::var_os("LD_PRELOAD").unwrap_or_default().to_string_lossy().into_owned();
    let ours = |other: &str| other == text || crate::source::find::file_name(other) == "libgpumem.so";
    let kept = others.split([' ', ':']).filter(|other| !other.is_empty() && !ours(other));
    let (mut first, behind): (Vec<&str>, Vec<&str>) = kept.partition(|other| doctor::comes_first(other));
    // By its name: the loader looks for it where it will for the program.
    let linked = program.and_then(doctor::first_of);
    if first.is_empty() {
        first.extend(linked.as_deref());
    }
    Ok(first.into_iter().chain([&*text]).chain(behind).collect::<Vec<_>>().join(":").into())
}

/// The file that a shell would run for this word.
fn find_program(program: &OsStr) -> Option<PathBuf> {
    if program.to_string_lossy().contains('/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())
}
