//! Tests on the CUDA driver: the conformance suite, natively and preloaded, and the differential tester, which does
//! both itself. They are separate programs, installed beside gpumem. Also the driver's version and devices, queried in a
//! process of its own.

use super::suite::{Check, Outcome, Suite, SuiteReport, Under, command, ledger, watch};
use super::{Advice, Section, Setup, SuitePart};
use crate::failure::{Failure, plain};
use crate::source::library::functions;
use gpumem_wire::kinds::Mode;
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The differential tester needs this long after its time is over: it minimises up to three failing programs, each for
/// a minute and a half.
const AFTERWARDS: Duration = Duration::from_secs(330);
pub(super) const ACTIVE: (&str, &str) = ("GPUMEM_RECORD_ONLY", "0");
pub(super) const CACHE_OFF: (&str, &str) = ("GPUMEM_GRAPH_CACHE", "0");

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

/// Returns the conformance suite.
pub(super) fn suite(program: &Path) -> Suite<'_> {
    Suite { name: "conformance", program, args: &[] }
}

/// Its report without the preload.
pub(super) fn natively(suite: &Suite, setup: &Setup) -> Result<SuiteReport, String> {
    eprintln!("selftest: the rules of the CUDA driver, natively");
    suite.natively(setup).map_err(|why| format!("the CUDA driver: {why}"))
}

/// Runs everything.
///
/// # Errors
/// Says why it cannot run here.
pub(super) fn section(setup: &Setup) -> Result<Section, String> {
    let Programs { conformance, differ } = programs(&setup.lib)?;
    let suite = suite(&conformance);
    let native = natively(&suite, setup)?;
    let by_default = by_default(&conformance, &native, &setup.under("default", &[])?);
    eprintln!("selftest: the same under the preload");
    let preloaded = suite.preloaded(setup, &native.checks, "preloaded", &[ACTIVE], None)?;
    eprintln!("selftest: random graph programs for {} s, from number {} on", setup.seconds, setup.seed);
    let (differential, files) = differential(&differ, setup, &[ACTIVE]);
    let parts = vec![SuitePart::of("conformance", "native", &native.checks, None), preloaded, differential];
    let mut section = Section::new("CUDA", &native, parts);
    if section.held() {
        match by_default {
            Ok(()) => section.notes.push("the graph cache is on by default; nothing has to be set".into()),
            Err(why) if why.starts_with("driver ") => {
                let why = format!(
                    "safe here, and needed for the graph cache: {why}; gpumem selftest --rules says so for good"
                );
                section.advice.push(Advice::new(ACTIVE, false, why));
            }
            Err(why) => section.notes.push(format!("by default gpumem only records here: {why}")),
        }
    } else {
        let cured = cured(&suite, setup, &native.checks, &differ, &section, &files)?;
        section.advice.push(cured);
        if let Err(why) = by_default {
            section.notes.push(format!("by default gpumem only records here, and should: {why}"));
        }
    }
    Ok(section)
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

/// Runs random graph programs, natively against preloaded with these variables. Also returns the files of those that
/// differ.
pub(super) fn differential(
    differ: &Path,
    setup: &Setup,
    variables: &[(&'static str, &'static str)],
) -> (SuitePart, Vec<PathBuf>) {
    let (name, run) = ("differential", "preloaded");
    let mut hunt = command(differ, None);
    hunt.args(["hunt", "--json", "--caps", "1,2,8", "--lib"]).arg(&setup.lib);
    hunt.args(variables.iter().flat_map(|(name, value)| ["--env".to_owned(), format!("{name}={value}")]));
    hunt.args(["--seeds", &format!("{}..{}", setup.seed, u64::MAX), "--seconds", &setup.seconds.to_string()]);
    hunt.arg("--out").arg(&setup.dir);
    let mut answer: Option<DifferAnswer> = None;
    let time = Duration::from_secs(setup.seconds) + AFTERWARDS;
    let ended = watch(hunt, Some(time), |line| answer = serde_json::from_str(&line).ok().or(answer.take()));
    let broken = |why| (SuitePart::broken(name, run, why), Vec::new());
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
    (part, answer.differ.into_iter().map(|found| found.file).collect())
}

/// Returns the first answers that differ; the file has all.
fn in_short(what: &str) -> String {
    let lines = || what.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let of = |begin: &str| lines().find(|line| line.starts_with(begin));
    let answers: Vec<_> = [of("native "), of("preloaded ")].into_iter().flatten().collect();
    if answers.is_empty() { lines().next().unwrap_or_default() } else { answers.join("; ") }
}

/// Finds the setting that helps: failed tests are run again without the graph cache.
fn cured(
    suite: &Suite,
    setup: &Setup,
    native: &[Check],
    differ: &Path,
    section: &Section,
    files: &[PathBuf],
) -> Result<Advice, String> {
    eprintln!("selftest: what failed again, without the graph cache");
    let again = suite.preloaded(setup, native, "cache-off", &[ACTIVE, CACHE_OFF], None)?;
    let same = |file: &PathBuf| {
        let mut pair = command(differ, None);
        pair.arg("pair").arg(file).arg("--lib").arg(&setup.lib);
        pair.args(["--env", "GPUMEM_RECORD_ONLY=0", "--env", "GPUMEM_GRAPH_CACHE=0"]);
        watch(pair, None, |_| ()).is_ok_and(|ended| ended.status.is_some_and(|status| status.success()))
    };
    let why = match () {
        () if !again.fails_as_natively() || !files.iter().all(same) => return Ok(Advice::disable()),
        () if section.parts[1..].iter().all(SuitePart::fails_as_natively) => {
            "this driver breaks rules that the graph cache is built on; nothing else differed"
        }
        () => "preloaded programs do not do what they do natively; without the graph cache, what was run again did",
    };
    Ok(Advice::new(CACHE_OFF, true, why))
}

/// A device, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) capability: (u32, u32),
}

/// The driver's description of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Driver {
    pub(super) version: u32,
    pub(super) gpus: Vec<Gpu>,
}

/// Queries the driver in a process of its own.
pub(super) fn asked() -> Result<Driver, String> {
    let exe = std::env::current_exe().map_err(|error| plain(&error))?;
    let mut asking = command(&exe, None);
    asking.args(["selftest", "--ask-driver"]);
    let mut answer = None;
    let ended = watch(asking, None, |line| answer = serde_json::from_str(&line).ok().or(answer.take()))?;
    answer.ok_or_else(|| {
        let said = ended.last_words().trim_start_matches("gpumem:").trim();
        format!("the CUDA driver: {}", if said.is_empty() { ended.words() } else { said.to_owned() })
    })
}

/// Runs the hidden form of the command: one JSON line about the driver.
///
/// # Errors
/// Code 2 if there is no driver or no device.
pub(super) fn tell() -> crate::failure::Result<()> {
    let driver = ask().map_err(Failure::usage)?;
    let line = serde_json::to_string(&driver).map_err(|error| Failure::error(error.to_string()))?;
    println!("{line}");
    Ok(())
}

functions! {
    /// The driver's functions that describe it.
    struct Functions {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGetName(*mut c_char, c_int, c_int);
        cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    }
}

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

fn ask() -> Result<Driver, String> {
    // SAFETY: loading runs the initialisers of NVIDIA's driver, which NVIDIA makes fit for any
    // program.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    let library = library.map_err(|_| "there is no libcuda.so.1: no driver is installed here")?;
    let cuda = Functions::of(library).map_err(|name| format!("libcuda.so.1 lacks {name}"))?;
    let ok = |name: &str, status: c_int| (status == 0).then_some(()).ok_or_else(|| format!("{name} gives {status}"));
    let (mut version, mut count) = (0, 0);
    // SAFETY: the types are cuda.h's, the library stays open, and the out-parameters are locals of
    // those types.
    unsafe {
        ok("cuInit", (cuda.cuInit)(0))?;
        ok("cuDriverGetVersion", (cuda.cuDriverGetVersion)(&mut version))?;
        ok("cuDeviceGetCount", (cuda.cuDeviceGetCount)(&mut count))?;
    }
    let mut gpus = Vec::new();
    for device in 0..count {
        let (mut name, mut capability) = ([0_u8; 256], [0; 2]);
        // SAFETY: the types are cuda.h's, and cuInit succeeded. The driver writes at most
        // `name.len()` bytes of the name, and each value is one element of `capability`.
        unsafe {
            ok("cuDeviceGetName", (cuda.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, device))?;
            for (value, attribute) in capability.iter_mut().zip(CAPABILITY) {
                ok("cuDeviceGetAttribute", (cuda.cuDeviceGetAttribute)(value, attribute, device))?;
            }
        }
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..len]).into_owned();
        gpus.push(Gpu { name, capability: (capability[0] as u32, capability[1] as u32) });
    }
    Ok(Driver { version: version as u32, gpus })
}
