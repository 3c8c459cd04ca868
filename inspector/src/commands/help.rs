//! `gpumem help`: a command's help, or a guide.

use super::examples;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::text;
use crate::view::table::{DIM, HEAD, paint, terminal_size};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;

/// Guides: name, subject, and text.
const GUIDES: &[(&str, &str, &str)] = &[
    ("memory-grows", "memory grows: five minutes to the answer", include_str!("../../guides/memory-grows.md")),
    ("is-it-a-leak", "a leak, a list without a bound, a stray write", include_str!("../../guides/is-it-a-leak.md")),
    ("examples", "four programs, three commands each", include_str!("../../guides/examples.md")),
    ("views", "how to read each view", include_str!("../../guides/views.md")),
    ("llama.cpp", "llama-server under gpumem", include_str!("../../guides/llama.cpp.md")),
    ("pytorch", "PyTorch under gpumem", include_str!("../../guides/pytorch.md")),
    ("diffusion", "stable-diffusion.cpp and ComfyUI", include_str!("../../guides/diffusion.md")),
    ("services", "systemd, containers, Kubernetes, metrics", include_str!("../../guides/services.md")),
    ("one-card", "park idle programs, let several take turns", include_str!("../../guides/one-card.md")),
    ("metrics", "every metric, alerts, TLS and users", include_str!("../../metrics.md")),
    ("packages", "the wheel, its module, Jupyter, .deb, .rpm", include_str!("../../guides/packages.md")),
    ("missing", "when something is missing", include_str!("../../guides/missing.md")),
    ("faq", "questions", include_str!("../../guides/faq.md")),
];

/// Show the help of a command, or a guide: memory-grows, views, llama.cpp, pytorch, …
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A command or a guide; without it: all of them
    #[arg(value_name = "COMMAND|GUIDE", add = ArgValueCompleter::new(topics))]
    topic: Option<String>,
}

/// Guides and commands, for shell completion.
fn topics(word: &OsStr) -> Vec<CompletionCandidate> {
    let typed = word.to_str().unwrap_or_default();
    let guides = GUIDES.iter().map(|&(name, about, _)| (name, about));
    let commands = examples::EXAMPLES.iter().map(|&(line, _)| (examples::command_of(line), ""));
    let all = guides.chain(commands).filter(|(name, _)| name.starts_with(typed)).collect::<BTreeMap<_, _>>();
    let offered = |(name, about): (&str, &'static str)| {
        CompletionCandidate::new(name).help(Some(about).filter(|about| !about.is_empty()).map(Into::into))
    };
    all.into_iter().map(offered).collect()
}

impl Args {
    /// Prints it.
    ///
    /// # Errors
    /// `Code::Usage` if it is neither.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        context.no_json("help")?;
        let mut root = (context.root)();
        root.build();
        let Some(topic) = self.topic.as_deref() else {
            let guides = GUIDES.iter().map(|(name, about, _)| format!("  {name:<14}{about}\n")).collect::<String>();
            let text =
                format!("{}\n{}\n{guides}", root.render_help().ansi(), paint(HEAD, "Guides (gpumem help GUIDE):"));
            return context.write(|out| out.write_all(text.as_bytes()));
        };
        if let Some(command) = root.find_subcommand_mut(topic) {
            return context.write(|out| write!(out, "{}", command.render_long_help().ansi()));
        }
        match GUIDES.iter().find(|(name, ..)| *name == topic.to_lowercase()) {
            Some((.., text)) => {
                context.write(|out| page(out, text, terminal_size().map_or(100, |(columns, _)| columns)))
            }
            None => {
                let names: Vec<_> = GUIDES.iter().map(|(name, ..)| *name).collect();
                let what = format!("{topic:?} is neither a command nor a guide; guides are {}", names.join(", "));
                Err(Failure::usage(what).fix("gpumem help lists the commands"))
            }
        }
    }
}

/// Prints a guide as text for a terminal, without markup, and with wrapped lines.
fn page(out: &mut dyn Write, text: &str, columns: usize) -> std::io::Result<()> {
    let columns = columns.clamp(40, 100);
    let (mut is_code, mut head) = (false, Vec::new());
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        match line {
            _ if is_code => writeln!(out, "    {}", paint(DIM, line))?,
            _ if line.starts_with('#') => writeln!(out, "{}", paint(HEAD, plain(line.trim_start_matches(['#', ' ']))))?,
            _ if line.starts_with("|---") => {}
            _ if line.starts_with('|') => {
                let cells = line.trim_matches('|').split('|').map(|cell| plain(cell).trim().to_owned()).collect();
                if head.is_empty() {
                    head = cells;
                } else {
                    row(out, &head, &cells, columns)?;
                }
            }
            _ => {
                head.clear();
                let indent = if line.starts_with("- ") { 2 } else { 0 };
                writeln!(out, "{}", text::wrap_at(&plain(line), columns, indent))?;
            }
        }
    }
    Ok(())
}

/// Prints a table's row as an item of a list. If there are more than two cells, all but the first have their heading.
fn row(out: &mut dyn Write, head: &[String], cells: &[String], columns: usize) -> std::io::Result<()> {
    let [first, more @ ..] = cells else { return Ok(()) };
    if let [second] = more {
        return writeln!(out, "{}", text::wrap_at(&format!("- {first}: {second}"), columns, 2));
    }
    writeln!(out, "{}", text::wrap_at(&format!("- {first}"), columns, 2))?;
    for (head, cell) in head.iter().skip(1).zip(more) {
        writeln!(out, "  {}", text::wrap_at(&format!("{head}: {cell}"), columns - 2, 2).replace('\n', "\n  "))?;
    }
    Ok(())
}

/// Returns text without markup; a link keeps only its words.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, (words, behind))) =
        rest.split_once('[').and_then(|(before, link)| Some((before, link.split_once("](")?)))
    {
        out.push_str(before);
        out.push_str(words);
        rest = behind.split_once(')').map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out.replace(['`', '*'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guides_are_readable_in_a_terminal() {
        for (name, _, text) in GUIDES {
            let mut out = Vec::new();
            page(&mut out, text, 80).unwrap();
            let shown = anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string();
            assert!(
                shown.lines().filter(|line| !line.starts_with("    ")).all(|line| text::width(line) <= 80),
                "{name}"
            );
            assert!(!shown.contains("](") && !shown.contains("**") && !shown.contains("```"), "{name}: {shown}");
        }
    }

    /// The heading of a table is no item of the list.
    #[test]
    fn tables_are_lists() {
        let shown = |text: &str| {
            let mut out = Vec::new();
            page(&mut out, text, 40).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown("|you ask|type|\n|---|---|\n|who?|`ps`|\n"), "- who?: ps\n");
        assert_eq!(
            shown("|a|because|do|\n|---|---|---|\n|x|y|z z z z z z z z z z z z z z z z z z z|\n"),
            "- x\n  because: y\n  do: z z z z z z z z z z z z z z z z z\n    z z\n"
        );
    }

    #[test]
    fn links_leave_their_words() {
        assert_eq!(plain("see [the page](a/b.md#c), `x` and **y**"), "see the page, x and y");
        assert_eq!(plain("an [index] of *z*"), "an [index] of z");
    }
}
