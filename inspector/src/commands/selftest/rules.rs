//! `gpumem selftest --rules`: checks the rules of the CUDA driver, natively and preloaded, and writes a verdict that
//! every later process follows ([`gpumem_wire::verdict`]).
//!
//! A broken rule turns off in the verdict everything that relies on it: of the ways to run gpumem without it, the first
//! one is chosen in which every check answers as natively. If there is none, gpumem only records.

use super::cuda::{self, Driver, Gpu, Programs};
use super::suite::{Check, Outcome, Suite};
use super::{Args, Report, Section, Setup, SuitePart};
use crate::context::Context;
use crate::failure::{Failure, Result, plain};
use gpumem_wire::verdict::{self, Subject, Verdict};
use rustix::process::geteuid;
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Users whose processes follow a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum VerdictUsers {
    /// Every user's: /var/lib/gpumem, which takes root
    System,
    /// This user's: gpumem in $XDG_STATE_HOME or ~/.local/state
    User,
}

/// A verdict and its path.
#[derive(Debug, Serialize)]
pub(super) struct WrittenVerdict {
    pub path: PathBuf,
    pub driver: u32,
    pub gpu: String,
    pub pool: bool,
    pub graph_cache: bool,
}

impl WrittenVerdict {
    fn of(path: PathBuf, verdict: Verdict) -> Self {
        let Verdict { subject: Subject { driver, gpu, .. }, pool, graph_cache } = verdict;
        Self { path, driver, gpu, pool, graph_cache }
    }
}

/// Families of checks by the parts that rely on those rules: the prefixes of their names.
const FAMILIES: [(On, &[&str]); 4] = [
    (BOTH, &["capture", "context", "procaddr", "sticky"]),
    (POOL, &["async", "barrier", "give_back", "memory", "pointers", "vmm"]),
    (
        GRAPH_CACHE,
        &["attributes", "copies", "gates", "graph", "handles", "nodes", "pairing", "serial", "setters", "update"],
    ),
    (NOTHING, &["checkpoint"]),
];

/// The parts that are on, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct On(u8);

const NOTHING: On = On(0);
const POOL: On = On(1);
const GRAPH_CACHE: On = On(2);
const BOTH: On = On(3);

impl On {
    /// Returns the parts that stay on without this rule.
    fn without(self, check: &str) -> Self {
        let family = check.split('.').next().unwrap_or_default();
        // An unknown rule concerns everything.
        let of = FAMILIES.iter().find(|(_, names)| names.contains(&family)).map_or(BOTH, |(of, _)| *of);
        Self(self.0 & !of.0)
    }

    fn has(self, part: Self) -> bool {
        self.0 & part.0 == part.0
    }
}

/// A way to run gpumem: the parts that are on, its name, and its variables.
type Way = (On, &'static str, &'static [(&'static str, &'static str)]);

const WAYS: [Way; 3] = [
    (BOTH, "preloaded", &[cuda::ACTIVE]),
    (POOL, "cache-off", &[cuda::ACTIVE, cuda::CACHE_OFF]),
    (GRAPH_CACHE, "pool-off", &[cuda::ACTIVE, ("GPUMEM_POOL", "0")]),
];

/// Runs the checks and writes the verdict.
///
/// # Errors
/// `Code::Error` if a check failed: the verdict turns that part off. `Code::Usage` (2) if nothing could be run or
/// the verdict could not be written: there is none then.
pub(super) fn run(setup: Setup, args: &Args, context: &Context) -> Result<()> {
    let cannot = |why: String| Failure::usage(why);
    let dir = directory(args.place).map_err(cannot)?;
    let tried = cuda::programs(&setup.lib).and_then(|programs| Ok((cuda::asked()?, programs)));
    let there = match &tried {
        Ok((driver, _)) if args.if_missing => there(&dir, driver),
        _ => None,
    };
    if let Some(written) = there {
        let report = Report { verdict: "there", sections: vec![], not_run: vec![], put: None, written: Some(written) };
        return report.finish(context, "", "");
    }
    let (section, written, not_run) = match tried.and_then(|(driver, programs)| tried_on(&setup, &driver, &programs)) {
        Ok((section, verdict, others)) => {
            let path = write(&dir, &verdict).map_err(cannot)?;
            (Some(section), Some(WrittenVerdict::of(path, verdict)), others)
        }
        Err(why) => (None, None, vec![why]),
    };
    let verdict = match &written {
        None => "could-not-run",
        Some(WrittenVerdict { pool: true, graph_cache: true, .. }) => "held",
        Some(_) => "failed",
    };
    let put = args.keep.is_some() || verdict == "failed";
    let report =
        Report { verdict, sections: section.into_iter().collect(), not_run, put: put.then(|| setup.kept()), written };
    let failed = "a rule does not hold: the verdict turns off the parts that rely on it";
    report.finish(context, failed, "the selftest could not run, and there is no verdict")
}

/// Returns the subject of a verdict: one kind of device under a driver.
fn subject(driver: &Driver, gpu: &Gpu) -> Subject {
    let release = env!("CARGO_PKG_VERSION").to_owned();
    Subject { release, driver: driver.version, gpu: gpu.name.clone(), capability: gpu.capability }
}

/// Returns a directory's verdict on the device to be tested, if later processes of this user accept it.
fn there(dir: &Path, driver: &Driver) -> Option<WrittenVerdict> {
    let subject = subject(driver, driver.gpus.first()?);
    let (found, _) = verdict::find(&[dir.to_owned()], &subject, geteuid().as_raw());
    found.map(|found| WrittenVerdict::of(found.path, found.verdict))
}

/// The findings on the first device, the verdict on its kind, and the kinds that were not tested.
type Tried = (Section, Verdict, Vec<String>);

fn tried_on(setup: &Setup, driver: &Driver, programs: &Programs) -> std::result::Result<Tried, String> {
    let first = driver.gpus.first().ok_or("the CUDA driver: it has no device")?;
    let suite = cuda::suite(&programs.conformance);
    let native = cuda::natively(&suite, setup)?;
    let mut parts = vec![SuitePart::of("conformance", "native", &native.checks, None)];
    let on = decided(&native.checks, |way| {
        let run = preloaded(setup, &suite, programs, &native.checks, way)?;
        let holds = run.iter().all(|part| part.ok > 0 && part.fails_as_natively());
        parts.extend(run);
        Ok(holds)
    })?;
    let subject = subject(driver, first);
    let mut others: Vec<&Gpu> = driver.gpus.iter().filter(|gpu| *gpu != first).collect();
    others.dedup();
    let others = others.iter().map(|gpu| {
        let Gpu { name, capability: (major, minor) } = gpu;
        format!("{name} ({major}.{minor}): name it in CUDA_VISIBLE_DEVICES to try it")
    });
    let section = Section::new("CUDA", &native, parts);
    Ok((section, Verdict { subject, pool: on.has(POOL), graph_cache: on.has(GRAPH_CACHE) }, others.collect()))
}

/// Returns the parts that may be on: as many as possible of those that no broken rule concerns, and only those that
/// pass `holds`.
fn decided(
    native: &[Check],
    mut holds: impl FnMut(Way) -> std::result::Result<bool, String>,
) -> std::result::Result<On, String> {
    let broken = native.iter().filter(|check| check.result == Outcome::Fail);
    let most = broken.fold(BOTH, |on, check| on.without(&check.name));
    for way in WAYS.into_iter().filter(|way| most.has(way.0)) {
        if holds(way)? {
            return Ok(way.0);
        }
    }
    Ok(NOTHING)
}

/// Runs the checks under the preload with these parts on, and random graph programs if the graph cache is on.
fn preloaded(
    setup: &Setup,
    suite: &Suite,
    programs: &Programs,
    native: &[Check],
    (on, name, variables): Way,
) -> std::result::Result<Vec<SuitePart>, String> {
    eprintln!("selftest: the same under the preload ({name})");
    let mut parts = vec![suite.preloaded(setup, native, name, variables, None)?];
    if on.has(GRAPH_CACHE) {
        eprintln!("selftest: random graph programs for {} s, from number {} on", setup.seconds, setup.seed);
        let (part, _) = cuda::differential(&programs.differ, setup, variables);
        parts.push(SuitePart { run: name, ..part });
    }
    Ok(parts)
}

/// Returns the directory of the verdict.
fn directory(place: Option<VerdictUsers>) -> std::result::Result<PathBuf, String> {
    match place.unwrap_or(if geteuid().is_root() { VerdictUsers::System } else { VerdictUsers::User }) {
        VerdictUsers::System => Ok(verdict::SYSTEM.into()),
        VerdictUsers::User => {
            let variable = |name| std::env::var_os(name);
            let place = verdict::user_place(variable("XDG_STATE_HOME").as_deref(), variable("HOME").as_deref());
            place.ok_or_else(|| "neither XDG_STATE_HOME nor HOME is an absolute path".into())
        }
    }
}

/// Writes a verdict and returns its path. A concurrent reader finds the old one or the new one.
fn write(dir: &Path, verdict: &Verdict) -> std::result::Result<PathBuf, String> {
    let path = dir.join(verdict.subject.file_name());
    let failed = |error: std::io::Error| format!("cannot write {}: {}", path.display(), plain(&error));
    let is_new = !dir.exists();
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    if is_new {
        // For any umask: every process searches this directory. An existing one keeps its mode.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    let written = tempfile::NamedTempFile::new_in(dir).and_then(|mut file| {
        file.write_all(verdict.to_string().as_bytes())?;
        // For any umask: every process reads it.
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        Ok(file.persist(&path)?)
    });
    written.map_err(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn checks(failed: &[&str]) -> Vec<Check> {
        let check = |name: &str, result| Check { name: name.to_owned(), result, detail: Vec::new() };
        let ok = ["memory.zero", "graph.held"].map(|name| check(name, Outcome::Ok));
        failed.iter().map(|name| check(name, Outcome::Fail)).chain(ok).collect()
    }

    /// Returns the decision if these checks fail natively and those ways to run it hold, and the ways that were tried.
    fn on(native: &[&str], held: &[On]) -> (On, Vec<On>) {
        let mut tried = Vec::new();
        let on = decided(&checks(native), |(on, ..)| {
            tried.push(on);
            Ok(held.contains(&on))
        });
        (on.unwrap(), tried)
    }

    #[test]
    fn as_much_is_on_as_holds() {
        assert_eq!(on(&[], &[BOTH, POOL]), (BOTH, vec![BOTH]));
        assert_eq!(on(&[], &[POOL, GRAPH_CACHE]), (POOL, vec![BOTH, POOL]));
        assert_eq!(on(&[], &[GRAPH_CACHE]), (GRAPH_CACHE, vec![BOTH, POOL, GRAPH_CACHE]));
        assert_eq!(on(&[], &[]), (NOTHING, vec![BOTH, POOL, GRAPH_CACHE]));
    }

    #[test]
    fn what_a_broken_rule_concerns_is_not_even_tried() {
        assert_eq!(on(&["graph.x"], &[BOTH, POOL]), (POOL, vec![POOL]));
        assert_eq!(on(&["give_back.x"], &[BOTH, GRAPH_CACHE]), (GRAPH_CACHE, vec![GRAPH_CACHE]));
        assert_eq!(on(&["gates.x"], &[BOTH, POOL]), (POOL, vec![POOL]));
        assert_eq!(on(&["barrier.x"], &[BOTH, GRAPH_CACHE]), (GRAPH_CACHE, vec![GRAPH_CACHE]));
        assert_eq!(on(&["capture.x"], &[BOTH, POOL]), (NOTHING, vec![]));
        assert_eq!(on(&["graph.x", "memory.y"], &[BOTH, POOL]), (NOTHING, vec![]));
        assert_eq!(on(&["somethingnew.x"], &[BOTH, POOL]), (NOTHING, vec![]));
    }

    /// Returns the families of the suite, from the names of checks in its source.
    fn families_of_the_suite() -> BTreeSet<String> {
        let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/src/conformance");
        let files = fs::read_dir(suite).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file());
        let family = |made: &str| made.split_once('"')?.1.split_once('.').map(|(family, _)| family.to_owned());
        let of_file = |path| {
            let text = fs::read_to_string(path).unwrap();
            let made = ["Check::measured(", "Check::documented("].map(|call| text.split(call).skip(1));
            made.into_iter().flatten().filter_map(family).collect::<Vec<_>>()
        };
        files.flat_map(of_file).collect()
    }

    #[test]
    fn every_family_of_the_suite_has_a_row() {
        let all: Vec<String> = FAMILIES.iter().flat_map(|(_, names)| *names).map(|name| (*name).to_owned()).collect();
        let rows: BTreeSet<String> = all.iter().cloned().collect();
        assert_eq!(rows.len(), all.len(), "a family has two rows");
        assert_eq!(families_of_the_suite(), rows);
    }

    #[test]
    fn a_verdict_is_written_for_every_reader() {
        let dir = std::env::temp_dir().join(format!("gpumem-rules-{}", std::process::id()));
        let subject = Subject { release: "1".into(), driver: 14000, gpu: "GPU".into(), capability: (9, 0) };
        let verdict = Verdict { subject: subject.clone(), pool: true, graph_cache: false };
        let path = write(&dir, &verdict).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        let uid = geteuid().as_raw();
        let (found, refused) = verdict::find(std::slice::from_ref(&dir), &subject, uid);
        assert_eq!((found.map(|found| found.verdict), refused), (Some(verdict), vec![]));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&dir).unwrap();
    }
}
