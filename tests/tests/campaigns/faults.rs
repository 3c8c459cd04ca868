//! A short share of the campaign of random faults, and proof that the campaign finds what it looks for.

use gpumem_tests::faults::campaign::Campaign;
use gpumem_tests::faults::judge::{PATIENCE, Wrong, judge};
use gpumem_tests::faults::plan::Plan;
use gpumem_tests::faults::programs;
use gpumem_tests::faults::run::{End, Manner, run};
use gpumem_tests::faults::trouble::{Limit, Trouble};
use std::process::Command;
use std::time::Duration;

/// With any fault, the preloaded program dies, hangs, answers and leaves files only as the native one does.
#[test]
fn random_faults_do_no_harm_that_they_do_not_do_natively() {
    let campaign =
        Campaign { seeds: 0..60, jobs: 2, shrink: true, without: Vec::new(), leave: Vec::new(), time: Duration::MAX };
    let tally = campaign.run(|_, _| {});
    assert!(tally.broken.is_empty(), "{:?}", tally.broken);
    let failed: Vec<String> = tally
        .failed
        .iter()
        .filter(|failed| failed.again)
        .map(|failed| format!("{}{:?}\n{}\n", failed.plan, failed.findings, failed.command()))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(tally.ledgers > 20 && tally.struck > 5 && tally.compared > 5, "{}", tally.json());
}

/// Without troubles each program of the lists is the same natively and preloaded.
#[test]
fn the_programs_are_the_same_without_troubles() {
    let mut wrong = String::new();
    for program in programs::all() {
        let plan = Plan { seed: 0, program, troubles: Vec::new() };
        let verdict = judge(&plan, PATIENCE).expect("it runs");
        if let Some(why) = verdict.ill {
            wrong += &format!("{}: {why}\n", plan.program.name);
        }
        for finding in verdict.findings {
            wrong += &format!("{}: {finding}\n", plan.program.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The same one each time.
#[test]
fn every_seed_has_a_plan() {
    for seed in 0..1_000 {
        let plan = Plan::new(seed);
        assert!(!plan.to_string().is_empty() && plan == Plan::new(seed));
    }
}

/// A trace whose name is that of the run's folder gets another name beside it, and goes with the run all the same. In a
/// process of its own: beside other tests of this one there are other folders with its number.
#[test]
fn a_run_leaves_nothing_behind() {
    const CHILD: &str = "TEST_IN_A_PROCESS_OF_ITS_OWN";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        let done =
            child.args(["--exact", "faults::a_run_leaves_nothing_behind"]).env(CHILD, "1").output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
        return;
    }
    let program = programs::all().into_iter().find(|program| program.name == "basic").expect("in the lists");
    let traced = Trouble::Setting("GPUMEM_ALLOC_TRACE".into(), "@".into());
    judge(&Plan { seed: 0, program, troubles: vec![traced] }, PATIENCE).expect("it runs");
    let own = format!("gm-suite-{}-", std::process::id());
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("a folder").flatten();
    let left: Vec<_> =
        entries.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with(&own)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A death, a hang, another answer and a ledger that nobody can read are found, each as what it is.
#[test]
fn what_is_planted_is_found() {
    let program = programs::all().into_iter().find(|program| program.name == "basic").expect("in the lists");
    for (what, wrong) in
        [("death", Wrong::Death), ("hang", Wrong::Hang), ("answer", Wrong::Answer), ("ledger", Wrong::Ledger)]
    {
        let plan = Plan { seed: 0, program: program.clone(), troubles: vec![Trouble::Planted(what)] };
        let verdict = judge(&plan, Duration::from_secs(2)).expect("it runs");
        let found: Vec<Wrong> = verdict.findings.iter().map(|finding| finding.wrong).collect();
        assert!(!found.is_empty() && found.iter().all(|other| *other == wrong), "{what}: {:?}", verdict.findings);
    }
}

/// A loader that finds no room for the libraries ends before any code of the shim runs, and may end by a signal.
#[test]
fn what_the_loader_cannot_load_is_told_apart() {
    let program = programs::all().into_iter().find(|program| program.name == "bystander").expect("in the lists");
    let end = |space: u64| {
        let plan = Plan { seed: 0, program: program.clone(), troubles: vec![Trouble::Limit(Limit::Space, space)] };
        let manner = Manner { load_only: true, ..Manner::preloaded(Duration::from_secs(60)) };
        run(&plan, manner).expect("it starts").end
    };
    // Not even the C library fits. (A library that is to be preloaded and does not fit is left out.)
    assert_ne!(end(2 << 20), End::Exit(0));
    assert_eq!(end(64 << 30), End::Exit(0));
}
