//! `gpumem completions` and `gpumem man`: made from the same table of arguments as the help.

use super::examples;
use crate::args::candidates::COMPLETE;
use crate::context::{Context, to_stdout};
use crate::failure::{Code, Failure, Result};
use clap_complete::env::Shells;
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

impl Completions {
    /// Prints completions.
    ///
    /// # Errors
    /// Those of stdout.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        context.no_json("a script of completions")?;
        let mut text = Vec::new();
        let shells = Shells::builtins();
        let name = self.shell.to_string();
        let shell = shells.completer(&name).ok_or_else(|| Failure::error(format!("no completions for {name}")))?;
        let written = shell.write_registration(COMPLETE, "gpumem", "gpumem", "gpumem", &mut text);
        written.map_err(|error| Failure::io("cannot make completions", &error))?;
        std::io::stdout().lock().write_all(&text).map_err(to_stdout)
    }
}

impl Man {
    /// Prints or writes man pages.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        context.no_json("a man page")?;
        let mut root = (context.root)();
        root.build();
        let names: Vec<_> = root.get_subcommands().map(|command| format!("gpumem-{}", command.get_name())).collect();
        let mut of_all = page(&root)?;
        of_all.extend(more().into_bytes());
        of_all.extend(ending("gpumem", &names).into_bytes());
        let Some(dir) = &self.out else {
            return std::io::stdout().lock().write_all(&of_all).map_err(to_stdout);
        };
        std::fs::create_dir_all(dir).map_err(|error| Failure::io(dir.display(), &error))?;
        write(dir, "gpumem".into(), &of_all)?;
        for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = format!("gpumem-{}", command.get_name());
            let mut page = page(&command.clone().display_name(name.clone()))?;
            page.extend(ending(command.get_name(), &["gpumem".into()]).into_bytes());
            write(dir, name, &page)?;
        }
        Ok(())
    }
}

fn write(dir: &Path, name: String, page: &[u8]) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page).map_err(|error| Failure::io(path.display(), &error))
}

/// Returns the exit codes and variables, after clap's own sections.
fn more() -> String {
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

/// Returns text for a man page, with plain dashes. The texts begin with no full stop or quote, and have no backslash.
fn text(text: &str) -> String {
    text.trim().replace('-', "\\-")
}

/// Returns the examples, and the pages to read next.
fn ending(command: &str, names: &[String]) -> String {
    let mut page = String::from(".SH EXAMPLES\n");
    for (line, what) in examples::of(command) {
        let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", text(line), text(what));
    }
    let pages: Vec<_> = names.iter().map(|name| format!("\\fB{}\\fR(1)", text(name))).collect();
    let _ = writeln!(page, ".SH \"SEE ALSO\"\n{}\n.PP\n\\fBgpumem help\\fR lists the guides.", pages.join(", "));
    page
}

fn page(command: &clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let made = clap_mangen::Man::new(command.clone()).render(&mut text);
    made.map(|()| text).map_err(|error| Failure::io("cannot make the page", &error))
}
