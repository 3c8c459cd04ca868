//! Replaces this process by a command that runs under the shim.

use super::{elf, library, needs};
use crate::failure::{Code, Failure, Result};
use crate::text::shell_word;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;

/// Returns the environment of every command under the shim.
///
/// # Errors
/// The library was not found, with the paths that were searched; or a path cannot be preloaded.
pub(crate) fn environment(
    lib: Option<&Path>,
    command: &[OsString],
    dir: Option<&Path>,
) -> Result<Vec<(OsString, OsString)>> {
    let lib = library::find(lib)?;
    let program = command.first().and_then(|program| find_program(program));
    let mut environment: Vec<(OsString, OsString)> = Vec::new();
    let lacking = program.as_deref().and_then(|program| needs::lacking_version(program, &lib));
    if let Some(feature) = needs::lacking_feature(&lib) {
        let lib = lib.display();
        tracing::warn!(
            "{lib} was built to use {feature}, which this processor does not have; the command runs without gpumem"
        );
    } else if let (Some(version), Some(program)) = (&lacking, &program) {
        let (program, lib) = (program.display(), lib.display());
        tracing::warn!("{program}: its C library is older than {version}, which {lib} needs; it runs without gpumem");
    } else if !program.as_deref().is_some_and(elf::dies_of_a_preload) {
        environment.push(("LD_PRELOAD".into(), library::preload(&lib, program.as_deref())?));
    }
    if let Some(dir) = dir {
        let dir = std::path::absolute(dir).map_err(|error| Failure::io(dir.display(), &error))?;
        environment.push(("GPUMEM_DIR".into(), dir.into()));
    }
    Ok(environment)
}

/// Fails if a command does not exist, before anything else is done.
///
/// # Errors
/// [`Code::NotFound`].
pub(crate) fn look_up(command: &[OsString]) -> Result<()> {
    match command.first() {
        Some(program) if !find_program(program).is_some_and(|path| path.exists()) => {
            Err(not_started(program, &ErrorKind::NotFound.into()))
        }
        _ => Ok(()),
    }
}

/// Executes a command in place of this process; returns only if it could not be started.
///
/// # Errors
/// [`Code::NotFound`], [`Code::NotExecutable`].
pub(crate) fn become_command(command: &[OsString], environment: Vec<(OsString, OsString)>) -> Result<()> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    warn(program);
    let error = std::process::Command::new(program).args(arguments).envs(environment).exec();
    Err(not_started(program, &error))
}

/// Starts a command as a child.
///
/// # Errors
/// [`Code::NotFound`], [`Code::NotExecutable`].
pub(crate) fn spawn(command: &[OsString], environment: Vec<(OsString, OsString)>) -> Result<Child> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::usage("no command was given"));
    };
    warn(program);
    let child = std::process::Command::new(program).args(arguments).envs(environment).spawn();
    child.map_err(|error| not_started(program, &error))
}

fn warn(program: &OsStr) {
    if let Some(why) = find_program(program).and_then(|path| elf::beyond_reach(&path)) {
        tracing::warn!("{}: {why}; it runs without gpumem", program.to_string_lossy());
    }
}

/// Returns the failure of starting a command, with the remedy.
fn not_started(program: &OsStr, error: &std::io::Error) -> Failure {
    let name = program.to_string_lossy();
    let path = find_program(program).filter(|path| path.exists());
    match (error.kind(), path) {
        (ErrorKind::NotFound, None) if name.contains('/') => {
            Failure::new(Code::NotFound, format!("there is no file {name}"))
        }
        (ErrorKind::NotFound, None) => Failure::new(Code::NotFound, format!("no command {name} was found"))
            .fix("it is in no directory of PATH: give its path, such as ./COMMAND"),
        // The file exists: its interpreter or loader is missing.
        (ErrorKind::NotFound, Some(path)) => {
            Failure::new(Code::NotFound, format!("cannot run {}: its interpreter is missing", path.display()))
                .fix("its first line, or its dynamic loader, names a file that does not exist")
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

/// Returns the file that a shell would run for this word.
fn find_program(program: &OsStr) -> Option<PathBuf> {
    if program.to_string_lossy().contains('/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())
}
