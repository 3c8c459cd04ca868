//! `gpumem selftest`: checks on this device that the rules gpumem relies on hold, and that a preloaded program behaves
//! as it does natively. For devices and drivers that gpumem was never run on.
//!
//! * [`cuda`]: the rules of the CUDA driver and random graph programs, by two programs of gpumem.
//! * [`hip`]: graphs and memory through the HIP runtime, by one of these programs.
//! * [`rules`]: `--rules`, the verdict that later processes follow.
//! * [`suite`]: runs a suite of checks, even if its process dies.
//! * [`ways`]: what may be on.

mod cuda;
mod hip;
mod rules;
mod suite;
mod ways;

use crate::args::{number, number_in};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::launch::library;
use crate::text;
use crate::view::table::{BAD, DIM, GOOD, HEAD, WARN, paint};
use serde::Serialize;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use suite::{Check, Outcome, SuiteReport};

/// Try gpumem on this machine's GPU: compare native and preloaded runs, say what may be switched on
///
/// On the CUDA driver the selftest checks every rule of the driver that gpumem is built on, natively and preloaded. It
/// also runs random graph programs natively and preloaded, with graph caches of 1, 2 and 8 execs, and compares them. If
/// an answer differs, it does the same without the graph cache, then without the pool, until nothing differs. On HIP it
/// runs graphs of memsets, copies, child graphs and (if libhiprtc is installed) kernels: natively, under the graph cache,
/// and with GPUMEM_HIP_RETARGET=1. It also frees memory and allocates it again. It changes nothing on this machine,
/// except that --rules writes a verdict. Close other programs that use the GPU: the checks take memory, and other work
/// can make them wait.
///
/// With --rules the selftest tries only the CUDA driver and writes a verdict on it, which every later process follows.
/// The verdict says what may be on with this driver, on this kind of GPU, with this release of gpumem. On a driver of a
/// new major version gpumem only records until a verdict allows more. If a rule is broken, the verdict turns off what is
/// built on the rule.
///
/// Exit code: 0 everything passed; 1 something failed (with --rules: the verdict turns it off); 2 the selftest could not
/// run, for example without a GPU driver (with --rules: no verdict was written).
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to run random graph programs
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = number_in::<u64>(1, 86_400))]
    seconds: u64,
    /// Number of the first random program; each number is a program
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u64>)]
    seed: u64,
    /// Keep the answers of every check, the ledgers and failing programs in this directory; without it only failing programs are kept
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    keep: Option<PathBuf>,
    /// libgpumem.so to preload, instead of the one found beside gpumem
    #[arg(long, value_name = "FILE", env = "GPUMEM_LIB", hide_env_values = true)]
    lib: Option<PathBuf>,
    /// Try only the CUDA driver, and write a verdict on it for later processes
    #[arg(long)]
    rules: bool,
    /// Whose processes the verdict is for [default: system if root runs it, else user]
    #[arg(long, value_enum, value_name = "PLACE", requires = "rules")]
    place: Option<rules::VerdictUsers>,
    /// Try nothing if that place already has a verdict on this driver, GPU and release
    #[arg(long, requires = "rules")]
    if_missing: bool,
}

/// Data that every part needs.
struct Setup {
    lib: PathBuf,
    /// Folder of all files.
    dir: PathBuf,
    /// That folder, if it is removed at the end because no user has to look into it.
    passing: Option<tempfile::TempDir>,
    seconds: u64,
    seed: u64,
}

impl Setup {
    /// Keeps the folder for the user and returns it.
    fn kept(self) -> PathBuf {
        self.passing.map_or(self.dir, tempfile::TempDir::keep)
    }

    /// Returns the environment to run a part of this name under the preload. The error says why it cannot run here.
    fn under(&self, part: &str, variables: &[ways::Variable]) -> std::result::Result<suite::Under<'_>, String> {
        let ledgers = self.dir.join(format!("ledgers-{part}"));
        private(&ledgers).map_err(|failure| failure.what)?;
        Ok(suite::Under { lib: &self.lib, ledgers, variables: variables.to_vec() })
    }

    fn log(&self, part: &str) -> PathBuf {
        self.dir.join(format!("{part}.jsonl"))
    }
}

fn private(dir: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| Failure::io(format!("cannot make {}", dir.display()), &error))
}

/// A failed check or program.
#[derive(Debug, Serialize)]
struct Failed {
    name: String,
    why: String,
}

/// One suite, run in one way.
#[derive(Debug, Serialize)]
struct SuitePart {
    part: &'static str,
    /// `native`, `preloaded`, `retargeting`.
    run: &'static str,
    ok: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<Failed>,
    /// Reasons why checks were skipped, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skips: Vec<String>,
}

impl SuitePart {
    fn new(part: &'static str, run: &'static str) -> Self {
        Self { part, run, ok: 0, failed: 0, skipped: 0, failures: Vec::new(), skips: Vec::new() }
    }

    /// Returns a part that did not finish.
    fn broken(part: &'static str, run: &'static str, why: String) -> Self {
        let mut broken = Self::new(part, run);
        broken.fail(part, why);
        broken
    }

    /// Returns the checks of a suite. Under the preload the answers are compared with the `native` ones.
    fn of(part: &'static str, run: &'static str, checks: &[Check], native: Option<&[Check]>) -> Self {
        let mut all = Self::new(part, run);
        for check in checks {
            let before = native.map(|native| native.iter().find(|other| other.name == check.name));
            match (check.result, before.map(|before| before.map(|before| before.result))) {
                (Outcome::Ok, _) => all.ok += 1,
                (Outcome::Skip, None | Some(Some(Outcome::Skip))) => {
                    all.skipped += 1;
                    all.skips.extend(check.detail.iter().find(|why| !all.skips.contains(why)).cloned());
                }
                (Outcome::Skip, _) => all.fail(&check.name, format!("not so natively: {}", check.detail.join("; "))),
                (Outcome::Fail, Some(Some(Outcome::Fail))) => {
                    all.fail(&check.name, format!("as natively: {}", check.detail.join("; ")));
                }
                (Outcome::Fail, _) => all.fail(&check.name, check.detail.join("; ")),
            }
        }
        for check in native.into_iter().flatten().filter(|check| !checks.iter().any(|other| other.name == check.name)) {
            all.fail(&check.name, "it did not run");
        }
        all
    }

    fn fail(&mut self, name: &str, why: impl Into<String>) {
        self.failed += 1;
        self.failures.push(Failed { name: name.to_owned(), why: why.into() });
    }

    fn held(&self) -> bool {
        self.failed == 0 && self.ok > 0
    }

    /// True if all failures happened natively too.
    fn fails_as_natively(&self) -> bool {
        self.failures.iter().all(|failed| failed.why.starts_with("as natively"))
    }
}

/// A variable to set.
#[derive(Debug, Serialize)]
struct Advice {
    variable: &'static str,
    value: &'static str,
    /// True if failures occur without it; else it is optional.
    needed: bool,
    why: String,
}

impl Advice {
    fn new((variable, value): ways::Variable, needed: bool, why: impl Into<String>) -> Self {
        Self { variable, value, needed, why: why.into() }
    }

    fn disable() -> Self {
        let why = "what failed fails without the graph cache too: do not use gpumem here";
        Self::new(("GPUMEM_DISABLE", "1"), true, why)
    }
}

/// Findings on one kind of GPU.
#[derive(Debug, Serialize)]
struct Section {
    vendor: &'static str,
    device: String,
    parts: Vec<SuitePart>,
    advice: Vec<Advice>,
    /// Open questions, and findings that need no variable.
    notes: Vec<String>,
}

impl Section {
    fn new(vendor: &'static str, native: &SuiteReport, parts: Vec<SuitePart>) -> Self {
        Self { vendor, device: native.device.clone(), parts, advice: Vec::new(), notes: Vec::new() }
    }

    fn held(&self) -> bool {
        self.parts.iter().all(SuitePart::held)
    }
}

/// The result of all checks.
#[derive(Serialize)]
struct Findings {
    sections: Vec<Section>,
    /// Checks that could not run here, and why.
    not_run: Vec<String>,
    /// The verdict that later processes follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<rules::WrittenVerdict>,
}

impl Findings {
    /// Tests everything that this machine has.
    fn of(setup: &Setup) -> Self {
        let (mut sections, mut not_run) = (Vec::new(), Vec::new());
        for section in [cuda::section(setup), hip::section(setup)] {
            match section {
                Ok(section) => sections.push(section),
                Err(why) => not_run.push(why),
            }
        }
        Self { sections, not_run, written: None }
    }

    fn verdict(&self) -> &'static str {
        let held = self.sections.iter().all(Section::held);
        match &self.written {
            None if self.sections.is_empty() => "could-not-run",
            Some(_) if self.sections.is_empty() => "there",
            written if written.as_ref().map_or(held, |written| written.pool && written.graph_cache) => "held",
            _ => "failed",
        }
    }
}

#[derive(Serialize)]
struct Report {
    /// `held`, `failed`, `could-not-run`, `there`.
    verdict: &'static str,
    #[serde(flatten)]
    findings: Findings,
    /// Folder of failing programs, answers and ledgers.
    #[serde(skip_serializing_if = "Option::is_none")]
    put: Option<PathBuf>,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Code::Error`] if a check failed, [`Code::Usage`] (2) if nothing could be run.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let cannot = |failure: Failure| Failure { code: Code::Usage, ..failure };
        let lib = library::find(self.lib.as_deref()).map_err(cannot)?;
        library::preload(&lib, None).map_err(cannot)?;
        let (dir, passing) = match &self.keep {
            Some(dir) => (std::path::absolute(dir).map_err(|error| cannot(Failure::io(dir.display(), &error)))?, None),
            None => {
                // A fresh name: an earlier process may have kept a folder under any number.
                let made = tempfile::Builder::new().prefix("gpumem-selftest-").tempdir();
                let made = made.map_err(|error| cannot(Failure::io("cannot make a temporary directory", &error)))?;
                (made.path().to_owned(), Some(made))
            }
        };
        private(&dir).map_err(cannot)?;
        let setup = Setup { lib, dir, passing, seconds: self.seconds, seed: self.seed };
        let findings = if self.rules { rules::findings(&setup, self)? } else { Findings::of(&setup) };
        let verdict = findings.verdict();
        let put = self.keep.is_some() && verdict != "there" || verdict == "failed";
        context.print(&Report { verdict, findings, put: put.then(|| setup.kept()) }, print)?;
        match (verdict, self.rules) {
            ("failed", true) => {
                Err(Failure::error("a rule does not hold: the verdict turns off the parts that rely on it"))
            }
            ("failed", false) => Err(Failure::error("a part of the selftest failed")),
            ("could-not-run", true) => Err(Failure::usage("the selftest could not run, and there is no verdict")),
            ("could-not-run", false) => Err(Failure::usage("the selftest could not run")),
            _ => Ok(()),
        }
    }
}

/// Failures of a part that the text shows; JSON has all.
const SHOWN: usize = 12;

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for section in &report.findings.sections {
        writeln!(out, "{}  {}", paint(HEAD, text::clean(&section.device)), section.vendor)?;
        for part in &section.parts {
            print_part(out, part)?;
        }
        for advice in &section.advice {
            let (style, word) = if advice.needed { (BAD, "set") } else { (GOOD, "may be set:") };
            writeln!(
                out,
                "  {} {}={}  {}",
                paint(style, word),
                advice.variable,
                advice.value,
                text::clean(&advice.why)
            )?;
        }
        for note in &section.notes {
            writeln!(out, "  {}", text::clean(note))?;
        }
    }
    for why in &report.findings.not_run {
        writeln!(out, "{} {}", paint(DIM, "not run:"), text::clean(why))?;
    }
    if let Some(put) = &report.put {
        writeln!(out, "{} {}", paint(DIM, "answers, ledgers and failing programs are in"), put.display())?;
    }
    if let Some(written) = &report.findings.written {
        let word = |on| if on { "on" } else { "off" };
        let (pool, cache) = (word(written.pool), word(written.graph_cache));
        writeln!(out, "{} {}: pool {pool}, graph cache {cache}", paint(HEAD, "verdict"), written.path.display())?;
    }
    let (style, words) = match report.verdict {
        "held" => (GOOD, "everything held"),
        "failed" => (BAD, "something failed"),
        "there" => (GOOD, "there is a verdict already"),
        _ => (WARN, "nothing could be run"),
    };
    writeln!(out, "{}", paint(style, words))
}

fn print_part(out: &mut dyn Write, part: &SuitePart) -> std::io::Result<()> {
    let style = if part.held() { GOOD } else { BAD };
    let skipped = text::if_any(part.skipped, |n| format!(", {n} skipped"));
    let counts = format!("{} ok, {} failed{skipped}", part.ok, part.failed);
    writeln!(out, "  {:<13} {:<11}  {}", part.part, part.run, paint(style, counts))?;
    for failed in part.failures.iter().take(SHOWN) {
        writeln!(out, "    {} {}", paint(BAD, text::clean(&failed.name)), text::clean(&failed.why))?;
    }
    if part.failures.len() > SHOWN {
        writeln!(out, "    and {} more: --json has all", part.failures.len() - SHOWN)?;
    }
    for why in &part.skips {
        writeln!(out, "    {} {}", paint(DIM, "skipped:"), text::clean(why))?;
    }
    Ok(())
}
