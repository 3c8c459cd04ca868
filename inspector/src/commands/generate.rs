//! `gpumem completions` and `gpumem man`: made from the same table of arguments as the help.

use crate::args::Args as Root;
use crate::failure::{Code, Failure, Result};
use clap::CommandFactory;
use gpumem_wire::settings;
use std::fmt::Write as _;
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
    // There is no page of it.
    let mut root = Root::command().disable_help_subcommand(true);
    root.build();
    let mut of_all = page(&root)?;
    of_all.extend(more().into_bytes());
    match &args.out {
        None => Ok(std::io::stdout().lock().write_all(&of_all)?),
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| Failure::io(dir.display(), &error))?;
            write(dir, "gpumem".into(), &of_all)?;
            for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
                write(
                    dir,
                    format!("gpumem-{}", command.get_name()),
                    &page(&command.clone().display_name(format!("gpumem-{}", command.get_name())))?,
                )?;
            }
            Ok(())
        }
    }
}

fn write(dir: &Path, name: String, page: &[u8]) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page).map_err(|error| Failure::io(path.display(), &error))
}

/// Exit codes and variables, after what clap knows.
fn more() -> String {
    // A dash that is none of typography; the texts begin with no full stop or quote, and have no backslash.
    let text = |text: &str| text.trim().replace('-', "\\-");
    let mut page = String::from(".SH \"EXIT STATUS\"\n");
    for (code, meaning) in Code::ALL {
        let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", *code as u8, text(meaning));
    }
    page += ".SH ENVIRONMENT\n";
    for setting in settings::ALL {
        let default = if setting.default.is_empty() { "unset" } else { setting.default };
        let allowed = text(&format!("{}; default {default}", setting.kind));
        let _ = writeln!(page, ".TP\n\\fB{}\\fR ({allowed})\n{}", setting.name, text(setting.doc));
    }
    for (name, doc) in settings::INSPECTOR {
        let _ = writeln!(page, ".TP\n\\fB{name}\\fR\n{}", text(doc));
    }
    page
}

fn page(command: &clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    Ok(text)
}
