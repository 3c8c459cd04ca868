//! Random graph programs on the simulator: natively and under the preload they answer the same. And: the
//! tester that says so finds what a broken interposer does wrong, and says it in a few operations.

use gpumem_tests::differ::child::Setup;
use gpumem_tests::differ::generate;
use gpumem_tests::differ::hunt::{Hunt, Tally};
use gpumem_tests::differ::pair::{Pair, Verdict};
use gpumem_tests::differ::program::{Line, Op, Program};
use gpumem_tests::harness::artifacts;
use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::Scratch;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

fn setup(lib: &Path) -> Setup {
    Setup {
        exe: env!("CARGO_BIN_EXE_differ").into(),
        lib: Some(lib.to_owned()),
        libraries: Some(artifacts().stage.clone().into()),
        both: Vec::new(),
        preloaded: Vec::new(),
        limit: Duration::from_secs(30),
        words: false,
    }
}

fn hunt(setup: Setup, seeds: Range<u64>, time: Duration, caps: &[&str], most: usize) -> Tally {
    let caps = caps.iter().map(|cap| (*cap).to_owned()).collect();
    let hunt = Hunt { setup, seeds, time, length: 60, caps, most, without: Vec::new() };
    hunt.run(&mut |line| println!("{line}")).expect("processes")
}

/// Nothing differs, and all programs were well defined.
#[track_caller]
fn the_same(tally: &Tally) {
    for found in &tally.found {
        println!("{}", found.file());
    }
    assert_eq!(tally.found.len(), 0, "programs that differ are printed above; `differ pair` runs them");
    assert_eq!(tally.fleeting, []);
    assert_eq!(tally.ill, [], "programs that the simulator itself does not like");
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn fixed_programs_answer_the_same() {
    let tally = hunt(setup(&artifacts().shim), 0..160, LONG, &["1", "2", "8"], 1);
    the_same(&tally);
    assert_eq!(tally.programs, 160);
    assert!(tally.operations > 5000, "{} operations", tally.operations);
}

#[test]
fn fixed_programs_answer_the_same_within_the_default_bounds() {
    let tally = hunt(setup(&artifacts().shim), 10_000..10_080, LONG, &[], 1);
    the_same(&tally);
    assert_eq!(tally.programs, 80);
}

/// GPUMEM_DIFFER_SECONDS of them, 10 if it is not set.
#[test]
fn fresh_programs_answer_the_same() {
    let seconds = std::env::var("GPUMEM_DIFFER_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    let first = (now.as_micros() as u64 % 1_000_000_000) << 16;
    println!("seeds {first}..");
    the_same(&hunt(setup(&artifacts().shim), first..u64::MAX, Duration::from_secs(seconds), &["1", "2", "8"], 1));
}

/// An update in the form from before CUDA 12 from a graph of which a node was removed: removed nodes count
/// (seed 20095 on an H200). And from a graph of the same places, by handles whose graphs lacked them.
#[test]
fn removed_nodes_count_in_updates_from_before_12() {
    let program: Program = r#"{"op":"graph","g":1,"nodes":[{"do":"scale","d":"d4","s":"d0","f":2,"n":64},{"after":[0],"do":"spin","us":2},{"after":[1],"do":"scale","d":"d0","s":"d4","f":1,"n":64}]}
{"op":"graph","g":2,"nodes":[{"do":"fill","b":"d3","v":2,"n":9,"at":85},{"after":[0],"do":"scale","d":"d4","s":"d1","f":2,"n":64},{"after":[1],"do":"spin","us":2},{"after":[2],"do":"scale","d":"d1","s":"d4","f":0,"n":64}]}
{"op":"graph","g":3,"nodes":[{"do":"fill","b":"d3","v":3,"n":9},{"after":[0],"do":"scale","d":"d4","s":"d1","f":2,"n":64},{"after":[1],"do":"spin","us":2},{"after":[2],"do":"scale","d":"d1","s":"d4","f":0,"n":64}]}
{"op":"instantiate","e":0,"g":1}
{"op":"remove","g":2,"n":3}
{"op":"update","e":0,"g":2,"v":1}
{"op":"instantiate","e":1,"g":2}
{"op":"update","e":1,"g":1,"v":1}
{"op":"update","e":1,"g":3,"v":1}
{"op":"remove","g":3,"n":3}
{"op":"update","e":1,"g":3,"v":1}
{"op":"launch","e":0,"s":1}
{"op":"launch","e":1,"s":1}"#
        .parse()
        .expect("a program");
    if let Ok(Verdict::Differs(found)) = Pair::new(&setup(&artifacts().shim)).run(&program) {
        panic!("{found}");
    }
}

/// An exec that only the driver can have (for launches by the device) knows the nodes of the very graph that it was
/// made of, which therefore stays as it is (seed 30098 on an H200).
#[test]
fn the_graph_of_an_exec_of_the_drivers_own_keeps_its_nodes() {
    let program: Program = r#"{"op":"capture","g":0,"s":1,"mode":"global","body":[{"on":1,"do":"fill","b":"d3","v":1,"n":1},{"on":1,"do":"fill","b":"d1","v":1,"n":1}]}
{"op":"instantiate","e":0,"g":0,"flags":4}
{"op":"instantiate","e":1,"g":0}
{"op":"update","e":1,"g":0,"v":2}
{"op":"query","g":0}
{"op":"set_exec","e":0,"n":0,"to":{"do":"fill","b":"d2","v":2,"n":41},"of":0}
{"op":"enable","e":0,"n":1,"on":false}
{"op":"launch","e":0,"s":1}"#
        .parse()
        .expect("a program");
    if let Ok(Verdict::Differs(found)) = Pair::new(&setup(&artifacts().shim)).run(&program) {
        panic!("{found}");
    }
}

/// An exec is destroyed while it runs and its stream captures. A capturing stream may not even be asked for its flags
/// (seed 880034 on an H100).
#[test]
fn destroying_an_exec_whose_stream_captures_disturbs_nothing() {
    let program: Program =
        r#"{"op":"capture","g":0,"s":1,"mode":"thread_local","body":[{"on":1,"do":"host","log":"l0","v":2}]}
{"op":"instantiate","e":0,"g":0}
{"op":"gate","s":0}
{"op":"launch","e":0,"s":0}
{"op":"capture","g":11,"s":0,"mode":"relaxed","body":[{"meanwhile":{"op":"drop_exec","e":0}}]}"#
            .parse()
            .expect("a program");
    if let Ok(Verdict::Differs(found)) = Pair::new(&setup(&artifacts().shim)).run(&program) {
        panic!("{found}");
    }
}

/// A node that came in the place of one that the program removed is none of an exec that was made before.
#[test]
fn a_node_in_place_of_another_is_no_node_of_the_exec() {
    let program: Program = r#"{"op":"graph","g":0,"nodes":[{"do":"fill","b":"d1","v":2,"n":16},{"after":[0],"do":"fill","b":"d0","v":1,"n":1},{"do":"host","log":"l1","v":1},{"after":[2],"do":"scale","d":"d1","s":"d2","f":2,"n":64},{"after":[3],"do":"fill","b":"d3","v":1,"n":1}]}
{"op":"instantiate","e":0,"g":0}
{"op":"remove","g":0,"n":1}
{"op":"add","g":0,"node":{"after":[0],"do":"fill","b":"d3","v":1,"n":1}}
{"op":"enabled","e":0,"n":5}
"#
    .parse()
    .expect("a program");
    if let Ok(Verdict::Differs(found)) = Pair::new(&setup(&artifacts().shim)).run(&program) {
        panic!("{found}");
    }
}

/// A call that takes for ever, in the preloaded run alone: the tester says which, by each thread's stack.
#[test]
fn a_run_that_stands_still_says_where() {
    let program: Program = r#"{"op":"graph","g":0,"nodes":[{"do":"empty"}]}
{"op":"instantiate","e":0,"g":0}
{"op":"launch","e":0,"s":0}
"#
    .parse()
    .expect("a program");
    let slow = [("SIM_THREADS", "strict"), ("SIM_SLOW_US", "20000000")];
    let mut setup = setup(&artifacts().shim);
    setup.limit = Duration::from_secs(3);
    setup.preloaded = slow.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let Ok(Verdict::Differs(found)) = Pair::new(&setup).run(&program) else { panic!("it stood still") };
    let told = found.to_string();
    assert!(told.starts_with("stuck: "), "{told}");
    for part in ["where the preloaded run stood still:", "thread ", "cuGraphInstantiate", "libcuda.so"] {
        assert!(told.contains(part), "no {part} in {told}");
    }
}

/// A call that natively waits for what the program would do next: that is told, no more of the program is run, and
/// nothing counts as a difference.
#[test]
fn a_program_that_natively_stands_still_is_passed_over() {
    let program: Program = r#"{"op":"graph","g":0,"nodes":[{"do":"empty"}]}
{"op":"gate","s":0}
{"op":"instantiate","e":0,"g":0}
{"op":"open"}
{"op":"gate","s":0}
{"op":"instantiate","e":1,"g":0}
{"op":"open"}
"#
    .parse()
    .expect("a program");
    let mut setup = setup(&artifacts().shim);
    // Each of the program's calls takes ten times as long as a gate waits.
    let slow = [("DIFFER_PATIENCE_MS", "100"), ("SIM_FAULT", "cuGraphInstantiateWithFlags:1+1000000")];
    setup.both = slow.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut pair = Pair::new(&setup);
    match pair.run(&program).expect("processes") {
        Verdict::StoodStill(why) => {
            assert!(why.ends_with("stood still after: 2 instantiate g0 as e0 (Flags, flags 0) = 0"), "{why}")
        }
        Verdict::Differs(difference) => panic!("{difference}"),
        Verdict::Same | Verdict::Ill(_) => panic!("it did not stand still"),
    }
    // The same processes go on with the next one.
    let next: Program = r#"{"op":"graph","g":0,"nodes":[{"do":"empty"}]}"#.parse().expect("a program");
    assert!(matches!(pair.run(&next), Ok(Verdict::Same)));
}

/// Builds the interposer that does one thing wrong.
fn broken(dir: &Path) -> PathBuf {
    let (source, lib) = (repository().join("tests/src/differ/broken.c"), dir.join("libbroken.so"));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let status = cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&lib).arg(source).arg("-ldl").status();
    assert!(status.expect("a C compiler").success());
    lib
}

/// Checks that `differ` finds the fault `what` among `seeds` programs, and that the program that it makes smaller has at
/// most `most` operations.
#[track_caller]
fn finds(what: &str, seeds: u64, most: usize) -> String {
    /// A difference that only shows when two streams meet may not show again while the program is made smaller on a
    /// busy machine. Other programs get a chance then.
    const TRIES: u64 = 3;
    let dir = Scratch::new();
    let lib = broken(dir.path());
    let mut large = String::new();
    for first in (0..TRIES).map(|attempt| attempt * seeds) {
        let mut setup = setup(&lib);
        setup.preloaded.push(("BROKEN".into(), what.into()));
        setup.limit = Duration::from_secs(5);
        let tally = hunt(setup, first..first + seeds, LONG, &[], 1);
        let found = tally.found.first().unwrap_or_else(|| panic!("{what}: nothing found in {seeds} programs"));
        if found.program.0.len() <= most {
            // What is printed can be read again.
            assert_eq!(found.file().parse::<Program>().as_ref(), Ok(&found.program));
            return found.file();
        }
        large = found.file();
    }
    panic!("{what}: not small in {TRIES} tries:\n{large}");
}

#[test]
fn an_update_that_does_nothing_is_found() {
    assert!(finds("update", 100, 6).contains("\"op\":\"update\""));
}

#[test]
fn a_setter_that_does_nothing_is_found() {
    assert!(finds("setter", 100, 6).contains("\"op\":\"set_exec\""));
}

#[test]
fn a_launch_on_another_stream_is_found() {
    assert!(finds("order", 100, 8).contains("\"op\":\"launch\""));
}

#[test]
fn another_exec_in_place_of_the_right_one_is_found() {
    assert!(finds("share", 100, 8).contains("\"op\":\"launch\""));
}

#[test]
fn another_error_code_is_found() {
    assert!(finds("destroy", 20, 3).contains("answers differ"));
}

#[test]
fn a_crash_is_found() {
    assert!(finds("crash", 60, 4).contains("died"));
}

#[test]
fn standing_still_is_found() {
    let dir = Scratch::new();
    let mut setup = setup(&broken(dir.path()));
    setup.preloaded.push(("BROKEN".into(), "hang".into()));
    setup.limit = Duration::from_secs(4);
    let update = |line: &Line| matches!(line.op, Op::Update { .. });
    let mut programs = (0..).map(|seed| generate::program(seed, 60));
    let program = programs.find(|program| program.0.iter().any(update)).expect("one that updates");
    match Pair::new(&setup).run(&program).expect("processes") {
        Verdict::Differs(difference) => assert!(difference.what.contains("stood still"), "{difference}"),
        Verdict::Same | Verdict::Ill(_) | Verdict::StoodStill(_) => panic!("not found"),
    }
}

/// The same seed is the same program on every machine: what is reported by its seed can be made again.
#[test]
fn programs_are_read_as_they_are_printed() {
    for seed in 0..200 {
        let program = generate::program(seed, 60);
        assert_eq!(program.to_string().parse::<Program>(), Ok(program));
    }
}
