//! Random programs of allocation on the simulator: natively and under the preload they answer the same, and
//! no memory is given out under work. And: the tester that says so finds what a careless cache does wrong.

use gpumem_tests::harness::artifacts;
use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::pool::generate;
use gpumem_tests::pool::hunt::{Hunt, Setup, Tally, holds};
use gpumem_tests::pool::program::{Op, Program};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

fn setup(lib: &Path) -> Setup {
    Setup {
        exe: env!("CARGO_BIN_EXE_pooler").into(),
        lib: lib.to_owned(),
        libraries: Some(artifacts().stage.clone().into()),
        both: Vec::new(),
        preloaded: Vec::new(),
        limit: Duration::from_secs(60),
    }
}

fn hunt(setup: Setup, seeds: Range<u64>, time: Duration, without: &[&str]) -> Tally {
    let without = without.iter().map(|text| (*text).to_owned()).collect();
    let hunt = Hunt { setup, seeds, time, length: 120, most: 1, without };
    hunt.run(&mut |line| println!("{line}")).expect("processes")
}

#[track_caller]
fn the_same(tally: &Tally) {
    for found in &tally.found {
        println!("{}", found.file());
    }
    assert_eq!(tally.found.len(), 0, "programs that differ are printed above; `pooler pair` runs them");
    assert_eq!(tally.fleeting, []);
    assert_eq!(tally.ill, [], "programs that the simulator itself does not like");
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn fixed_programs_answer_the_same() {
    let tally = hunt(setup(&artifacts().shim), 0..60, LONG, &[]);
    the_same(&tally);
    assert!(tally.programs == 60 && tally.operations > 6000, "{} operations", tally.operations);
}

/// Frees that never wait: what differs is when, not what.
#[test]
fn fixed_programs_answer_the_same_with_deferred_frees() {
    let mut setup = setup(&artifacts().shim);
    setup.preloaded = vec![("GPUMEM_FREE".into(), "deferred".into())];
    the_same(&hunt(setup, 1000..1040, LONG, &[]));
}

/// A cache that holds next to nothing and gives back at once.
#[test]
fn fixed_programs_answer_the_same_in_small_bounds() {
    let mut setup = setup(&artifacts().shim);
    let pairs = [("GPUMEM_POOL_MAX", "4MiB"), ("GPUMEM_POOL_DECAY", "1ms")];
    setup.preloaded = pairs.map(|(name, value)| (name.into(), value.into())).into();
    the_same(&hunt(setup, 2000..2040, LONG, &[]));
}

/// Larger blocks, filled and read: the program is told the same. Memory with a zone in front is not shown to others.
#[test]
fn fixed_programs_answer_the_same_with_a_guard() {
    for (guard, without) in [("1", &[][..]), ("front", &["export"]), ("sync", &[])] {
        let mut setup = setup(&artifacts().shim);
        setup.preloaded = vec![("GPUMEM_GUARD".into(), guard.into())];
        the_same(&hunt(setup, 3000..3010, LONG, without));
    }
}

/// GPUMEM_POOLER_SECONDS of them, 10 if it is not set.
#[test]
fn fresh_programs_answer_the_same() {
    let seconds = std::env::var("GPUMEM_POOLER_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    let first = (now.as_micros() as u64 % 1_000_000_000) << 16;
    println!("seeds {first}..");
    the_same(&hunt(setup(&artifacts().shim), first..u64::MAX, Duration::from_secs(seconds), &[]));
}

/// Checks that `pooler` finds a cache with the fault `what` among `seeds` programs, and names it with these words.
#[track_caller]
fn finds(what: &str, seeds: u64, without: &[&str], words: &[&str]) {
    let dir = Scratch::new();
    let (source, lib) = (repository().join("tests/src/pool/broken.c"), dir.path().join("libbroken.so"));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let status = cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&lib).arg(source).args(["-ldl", "-pthread"]).status();
    assert!(status.expect("a C compiler").success());
    let mut setup = setup(&lib);
    setup.preloaded.push(("BROKEN".into(), what.into()));
    // The cache does not tell contexts apart, and has no ledger.
    let without: Vec<&str> = without.iter().chain(&["renew", "current", "stress"]).copied().collect();
    let tally = hunt(setup, 0..seeds, LONG, &without);
    let found = tally.found.first().unwrap_or_else(|| panic!("{what}: nothing found in {seeds} programs"));
    let text = found.file();
    assert!(words.iter().any(|word| text.contains(word)), "{what} was found by something else:\n{text}");
    assert!(found.program.0.len() <= 8, "{what}: not small:\n{text}");
    assert_eq!(text.parse::<Program>().as_ref(), Ok(&found.program), "what is printed can be read again");
}

#[test]
fn a_free_without_its_barrier_is_found() {
    finds("barrier", 60, &["begin", "number"], &["free_without_barrier", "reuse_under_work"]);
}

#[test]
fn a_double_free_that_succeeds_is_found() {
    finds("double", 60, &["begin", "number", "fault"], &["(Driver) = 1", "(Runtime) = 1"]);
}

#[test]
fn a_range_larger_than_asked_for_is_found() {
    finds("range", 60, &["begin", "number", "fault"], &["bytes"]);
}

#[test]
fn a_freed_block_that_is_still_known_is_found() {
    finds("query", 60, &["begin", "number", "fault"], &["range of", "attributes"]);
}

#[test]
fn memory_that_never_comes_back_is_found() {
    finds("info", 60, &["begin", "number", "fault"], &["all came back: false"]);
}

#[test]
fn a_disturbed_capture_is_found() {
    finds("capture", 60, &["number", "fault"], &["capture"]);
}

/// A card that other programs have filled: one error says so, and no program is counted.
#[test]
fn a_card_without_room_is_one_error() {
    let mut setup = setup(&artifacts().shim);
    setup.both = vec![("SIM_DEVICE_MEM".into(), "2M".into()), ("SIM_CONTEXT_MEM".into(), "4M".into())];
    let hunt = Hunt { setup, seeds: 0..60, time: LONG, length: 120, most: 1, without: Vec::new() };
    let mut said = Vec::new();
    let error = hunt.run(&mut |line| said.push(line)).err().expect("no card");
    assert!(error.starts_with("the card has no memory left for a context"), "{error}");
    assert_eq!(said, [""; 0]);
}

/// The same seed is the same program on every machine, and every operation is made now and then.
#[test]
fn programs_are_read_as_they_are_printed() {
    let all: Vec<Program> = (0..200).map(|seed| generate::program(seed, 120)).collect();
    for program in &all {
        assert_eq!(program.to_string().parse::<Program>().as_ref(), Ok(program));
    }
    let made = |of: fn(&Op) -> bool| all.iter().filter(|program| holds(program, of)).count();
    assert!(made(|op| matches!(op, Op::Fault)) > 20);
    assert!(made(|op| matches!(op, Op::Renew { .. })) > 50);
    assert!(made(|op| matches!(op, Op::Export { .. })) > 20);
    assert!(made(|op| matches!(op, Op::Launch { .. })) > 100);
    assert!(made(|op| matches!(op, Op::Stress { .. })) > 50);
}
