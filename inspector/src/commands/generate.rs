//! `gpumem completions` and `gpumem man`: made from the same table of arguments as the help.

use crate::context::{Command, Context};
use crate::failure::{Code, Failure, Result};
use gpumem_wire::settings;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Print the completions of a shell
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Print the man page, or write one for each command into a directory
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Man {
    /// Write gpumem.1 and gpumem-COMMAND.1 there
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: Option<PathBuf>,
}

impl Command for Completions {
    const NAME: &'static str = "completions";
    const READS_LEDGERS: bool = false;

    /// Prints completions.
    ///
    /// # Errors
    /// Those of stdout.
    fn run(&self, context: &Context) -> Result<()> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut (context.root)(), "gpumem", &mut text);
        Ok(std::io::stdout().lock().write_all(&text)?)
    }
}

impl Command for Man {
    const NAME: &'static str = "man";
    const READS_LEDGERS: bool = false;

    /// Prints or writes man pages.
    ///
    /// # Errors
    /// Those of writing.
    fn run(&self, context: &Context) -> Result<()> {
        // There is no page of it.
        let mut root = (context.root)().disable_help_subcommand(true);
        root.build();
        let mut of_all = page(&root)?;
        of_all.extend(more().into_bytes());
        let Some(dir) = &self.out else { return Ok(std::io::stdout().lock().write_all(&of_all)?) };
        std::fs::create_dir_all(dir).map_err(|error| Failure::io(dir.display(), &error))?;
        write(dir, "gpumem".into(), &of_all)?;
        for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = format!("gpumem-{}", command.get_name());
            let page = page(&command.clone().display_name(name.clone()))?;
            write(dir, name, &page)?;
        }
        Ok(())
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
