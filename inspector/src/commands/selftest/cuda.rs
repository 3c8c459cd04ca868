//! Tests on the CUDA driver: the conformance suite, natively and preloaded, and the differential tester, which does
//! both itself. They are separate programs, installed beside gpumem. The first also tells the driver's version and devices.

use super::suite::{Outcome, SAYS, Suite, SuiteReport, Under, command, ledger, watch};
use super::ways::{ACTIVE, BOTH, GRAPH_CACHE, On, WAYS, Way, decided};
use super::{Advice, Section, Setup, SuitePart};
use gpumem_wire::kinds::Mode;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The differential tester needs this long after its time is over: it minimises up to three failing programs, each for
/// a minute and a half.
const AFTERWARDS: Duration = Duration::from_secs(330);

/// The differential tester's answer.
#[derive(Deserialize)]
struct DifferAnswer {
    programs: u64,
    differ: Vec<Differs>,
    fleeting: Vec<String>,
    ill: Vec<String>,
}

#[derive(Deserialize)]
struct Differs {
    file: PathBuf,
    what: String,
}

/// Returns a program of the selftest: in `libexec/gpumem` if libgpumem.so or gpumem is installed, under its short name
/// beside them in a build directory.
pub(super) fn helper(name: &str, lib: &Path) -> Result<PathBuf, String> {
    let exe = std::env::current_exe().ok();
    let mut places = Vec::new();
    for dir in [Some(lib), exe.as_deref()].into_iter().flatten().filter_map(Path::parent) {
        // In other folders a program of this name may belong to anyone.
        if dir.join("libgpumem.so").is_file() {
            places.push(dir.join(name));
        }
        let above = dir.ancestors().skip(1).take(2);
        places.extend(above.map(|up| up.join("libexec/gpumem").join(format!("gpumem-{name}"))));
    }
    let mut seen = std::collections::BTreeSet::new();
    places.retain(|path| seen.insert(path.clone()));
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let searched: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        format!(
            "the program {name} is not installed ({}); packages have it, and `make build-selftest install` \
             builds it from the source",
            searched.join(", ")
        )
    })
}

/// The programs that try the CUDA driver.
pub(super) struct Programs {
    pub conformance: PathBuf,
    pub differ: PathBuf,
}

/// Finds both programs.
pub(super) fn programs(lib: &Path) -> Result<Programs, String> {
    let find = |name| helper(name, lib).map_err(|why| format!("the CUDA driver: {why}"));
    Ok(Programs { conformance: find("conformance")?, differ: find("differ")? })
}

/// Tests natively, then in one way after another until one holds. Returns the findings, the native report, and the parts
/// that may be on.
///
/// # Errors
/// Says why it cannot run here.
pub(super) fn tried(setup: &Setup, programs: &Programs) -> Result<(Section, SuiteReport, On), String> {
    let suite = Suite { name: "conformance", program: &programs.conformance, args: &[] };
    eprintln!("selftest: the rules of the CUDA driver, natively");
    let native = suite.natively(setup).map_err(|why| format!("the CUDA driver: {why}"))?;
    let mut parts = vec![SuitePart::of("conformance", "native", &native.checks, None)];
    let on = decided(&native.checks, |way @ (_, name, variables, _)| {
        eprintln!("selftest: the same under the preload ({name})");
        let conformance = suite.preloaded(setup, &native.checks, name, variables, None)?;
        eprintln!("selftest: random graph programs for {} s, from number {} on", setup.seconds, setup.seed);
        let run = [conformance, differential(&programs.differ, setup, way)];
        let holds = run.iter().all(|part| part.ok > 0 && part.fails_as_natively());
        parts.extend(run);
        Ok(holds)
    })?;
    Ok((Section::new("CUDA", &native, parts), native, on))
}

/// Tests everything, and says what to set.
///
/// # Errors
/// Says why it cannot run here.
pub(super) fn section(setup: &Setup) -> Result<Section, String> {
    let programs = programs(&setup.lib)?;
    let (mut section, native, on) = tried(setup, &programs)?;
    let by_default = by_default(&programs.conformance, &native, &setup.under("default", &[])?);
    match (WAYS.iter().find(|way| way.0 == on), by_default) {
        (Some((BOTH, ..)), Ok(())) => {
            section.notes.push("the graph cache is on by default; nothing has to be set".into());
        }
        (Some((BOTH, ..)), Err(why)) if why.starts_with("driver ") => {
            let why =
                format!("safe here, and needed for the graph cache: {why}; gpumem selftest --rules says so for good");
            section.advice.push(Advice::new(ACTIVE, false, why));
        }
        (Some((BOTH, ..)), Err(why)) => section.notes.push(format!("by default gpumem only records here: {why}")),
        (way, by_default) => {
            section.advice.push(way.map_or_else(Advice::disable, |way| without(way, &section)));
            if let Err(why) = by_default {
                section.notes.push(format!("by default gpumem only records here, and should: {why}"));
            }
        }
    }
    Ok(section)
}

/// Returns the advice to turn off what this way turns off.
fn without((_, name, variables, what): &Way, section: &Section) -> Advice {
    let why = match section.parts[1].run == *name {
        true => format!("this driver breaks rules that {what} is built on; nothing else differed"),
        false => format!("preloaded programs do not do what they do natively; without {what}, what was run again did"),
    };
    Advice::new(variables[variables.len() - 1], true, why)
}

/// Checks that a preloaded program without settings does more than record; the error says why not.
fn by_default(conformance: &Path, native: &SuiteReport, under: &Under) -> Result<(), String> {
    let Some(check) = native.checks.iter().find(|check| check.result == Outcome::Ok) else { return Ok(()) };
    let mut one = command(conformance, Some(under));
    one.args(["--json", "--one", &check.name]);
    let ended = watch(one, None, |_| ())?;
    let snapshot = ledger(under, ended.pid).ok_or("it left no ledger")?;
    match snapshot.header.mode == Mode::RecordOnly as u32 {
        true => Err(snapshot.text(snapshot.header.mode_reason).into_owned()),
        false => Ok(()),
    }
}

/// Runs random graph programs, natively against preloaded in this way.
fn differential(differ: &Path, setup: &Setup, (on, run, variables, _): Way) -> SuitePart {
    let name = "differential";
    let caps = if on.has(GRAPH_CACHE) { "1,2,8" } else { "0" };
    let mut hunt = command(differ, None);
    hunt.args(["hunt", "--json", "--caps", caps, "--lib"]).arg(&setup.lib);
    hunt.args(variables.iter().flat_map(|(name, value)| ["--env".to_owned(), format!("{name}={value}")]));
    hunt.args(["--seeds", &format!("{}..{}", setup.seed, u64::MAX), "--seconds", &setup.seconds.to_string()]);
    hunt.arg("--out").arg(&setup.dir);
    let mut answer: Option<DifferAnswer> = None;
    let time = Duration::from_secs(setup.seconds) + AFTERWARDS;
    let ended = watch(hunt, Some(time), |line| answer = serde_json::from_str(&line).ok().or(answer.take()));
    let broken = |why| SuitePart::broken(name, run, why);
    let answer = match (ended, answer) {
        (Err(why), _) => return broken(why),
        (Ok(ended), None) => return broken(format!("{}: {}", ended.words(), ended.last_words())),
        (Ok(_), Some(answer)) => answer,
    };
    let mut part = SuitePart::new(name, run);
    for found in &answer.differ {
        part.fail(&found.file.display().to_string(), in_short(&found.what));
    }
    for why in answer.fleeting {
        part.fail("once", why);
    }
    part.skipped = answer.ill.len() as u64;
    part.skips = answer.ill.into_iter().take(3).collect();
    part.ok = answer.programs.saturating_sub(part.failed + part.skipped);
    if part.ok == 0 && part.failed == 0 {
        part.fail(name, "no program ran to its end");
    }
    part
}

/// Returns the first answers that differ; the file has all.
fn in_short(what: &str) -> String {
    let lines = || what.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let of = |begin: &str| lines().find(|line| line.starts_with(begin));
    let answers: Vec<_> = [of("native "), of("preloaded ")].into_iter().flatten().collect();
    if answers.is_empty() { lines().next().unwrap_or_default() } else { answers.join("; ") }
}

/// A device, as the driver describes it.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) capability: (u32, u32),
}

/// The driver's description of itself.
#[derive(Deserialize)]
pub(super) struct Driver {
    pub(super) version: u32,
    pub(super) gpus: Vec<Gpu>,
}

/// Has the program of the checks describe the driver.
pub(super) fn asked(programs: &Programs) -> Result<Driver, String> {
    let mut asking = command(&programs.conformance, None);
    asking.arg("--driver");
    let mut answer = None;
    let ended = watch(asking, None, |line| answer = serde_json::from_str(&line).ok().or(answer.take()))?;
    answer.ok_or_else(|| {
        let said = ended.last_words().trim_start_matches(SAYS).trim();
        format!("the CUDA driver: {}", if said.is_empty() { ended.words() } else { said.to_owned() })
    })
}
