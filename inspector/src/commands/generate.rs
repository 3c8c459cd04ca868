//! `gpumem completions` and `gpumem man`: made from the same table of arguments as the help.

use crate::args::Args as Root;
use crate::failure::{Failure, Result};
use clap::CommandFactory;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Print the completions of a shell
#[derive(Clone, Debug, clap::Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Print the man page, or write one for each command into a directory
#[derive(Clone, Debug, clap::Args)]
pub struct Man {
    /// Write gpumem.1 and gpumem-COMMAND.1 there
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: Option<PathBuf>,
}

/// Prints completions.
///
/// # Errors
/// Those of stdout.
pub fn completions(args: &Completions) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Root::command(), "gpumem", &mut text);
    Ok(std::io::stdout().lock().write_all(&text)?)
}

/// Prints or writes man pages.
///
/// # Errors
/// Those of writing.
pub fn man(args: &Man) -> Result<()> {
    let mut root = Root::command();
    root.build();
    match &args.out {
        None => Ok(std::io::stdout().lock().write_all(&page(&root)?)?),
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| Failure::io(dir.display(), &error))?;
            write(dir, "gpumem".into(), &root)?;
            for command in
                root.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
            {
                write(
                    dir,
                    format!("gpumem-{}", command.get_name()),
                    &command.clone().display_name(format!("gpumem-{}", command.get_name())),
                )?;
            }
            Ok(())
        }
    }
}

fn write(dir: &Path, name: String, command: &clap::Command) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command)?).map_err(|error| Failure::io(path.display(), &error))
}

fn page(command: &clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    Ok(text)
}
