//! A short share of the storm, storms of one kind that found something once, and proof that the storm finds what it looks for.

use gpumem_tests::harness::scratch::Scratch;
use gpumem_tests::storm::campaign::{Campaign, Tally};
use gpumem_tests::storm::plan::{CHECKS, Plan};
use gpumem_tests::storm::run::{Place, Wrong, run};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn campaign(place: Place, runs: u64) -> Tally {
    let campaign =
        Campaign { place, seeds: 0..runs, jobs: 2, length: None, guard: None, time: Duration::from_secs(60) };
    campaign.run(|_, _| {})
}

/// Under any commands and any guard the program does what it does natively.
#[test]
fn a_storm_of_commands_does_no_harm() {
    let tally = campaign(Place::simulated(), 16);
    let failed: Vec<String> =
        tally.failed.iter().map(|failed| format!("{}{:?}\n", failed.plan, failed.findings)).collect();
    assert!(failed.is_empty() && tally.broken.is_empty(), "{}{:?}", failed.join("\n"), tally.broken);
    assert!(tally.runs == 16 && tally.operations > 1000 && tally.commands > 200 && tally.guards.len() == 4);
}

type Variables = [(&'static str, &'static str)];

/// A storm of its own: these variables of gpumem and of the simulator, threads with memory and with graphs, these
/// terminals and commands.
#[track_caller]
fn storm(
    settings: &Variables,
    simulator: &Variables,
    threads: (usize, usize),
    terminals: &[u64],
    commands: &'static [&'static str],
) {
    let plan = Plan {
        threads,
        settings: settings.to_vec(),
        simulator: simulator.to_vec(),
        terminals: terminals.iter().map(|&us| Duration::from_micros(us)).collect(),
        commands,
        ..Plan::new(1, Some(Duration::from_millis(2500)), None)
    };
    let ran = run(&plan, &Place::simulated(), true).expect("it runs");
    assert!(ran.findings.is_empty(), "{plan}{:?}", ran.findings);
    assert!(ran.operations > 100 && (terminals.is_empty() || ran.commands > 30), "{} {}", ran.operations, ran.commands);
}

/// Checks that are refused because one goes on leave that one as it is: no second one begins beside it. What a check reads
/// stays until it is read, also what it could not read in its time.
#[test]
fn what_a_check_may_read_does_not_go_back() {
    for guard in ["1", "sync"] {
        storm(&[("GPUMEM_GUARD", guard)], &[("SIM_LAG_US", "200")], (4, 0), &[0, 0], CHECKS);
    }
}

/// Threads whose waits are checks hold freed memory for a moment. A request waits for it, and does not run out.
#[test]
fn a_request_waits_for_what_a_check_holds() {
    for lag in ["0", "200"] {
        let simulator = [("SIM_DEVICE_MEM", "200M"), ("SIM_LAG_US", lag)];
        storm(&[("GPUMEM_GUARD", "sync")], &simulator, (4, 0), &[], &[]);
    }
    let simulator = [("SIM_DEVICE_MEM", "200M"), ("SIM_LAG_US", "50")];
    storm(&[("GPUMEM_GUARD", "1")], &simulator, (4, 0), &[500, 500], CHECKS);
}

/// A capture that begins between a fill of gpumem's and the wait for it does not let the block go before it is filled.
#[test]
fn a_fill_beside_captures_is_over_before_its_block_goes_on() {
    const COMMANDS: &[&str] = &["trim", "trim", "set POOL_MAX 0", "set POOL_MAX default"];
    for fill in ["poison", "zero"] {
        storm(&[("GPUMEM_POOL_FILL", fill)], &[("SIM_LAG_US", "1000")], (4, 4), &[0], COMMANDS);
    }
}

/// Each thing that may go wrong is found as what it is, unless it is so natively, too.
#[test]
fn what_is_planted_is_found() {
    let own = Scratch::new();
    let program = own.path().join("planted");
    let said = |counts: &str| format!("echo '{{\"operations\":1,{counts}}}'; exit 1");
    for (what, wrong) in [
        ("kill -SEGV $$".to_owned(), Wrong::Death),
        ("exit 3".to_owned(), Wrong::Death),
        ("sleep 100".to_owned(), Wrong::Hang),
        (said("\"errors\":2,\"wrong\":0"), Wrong::Error),
        (said("\"errors\":0,\"wrong\":1"), Wrong::Byte),
        ("echo '{\"violation\":\"freed_memory\"}' > $SIM_REPORT".to_owned(), Wrong::Rule),
        ("echo 'gpumem: 4 bytes written behind a block of 1.0 MiB' >&2".to_owned(), Wrong::Report),
    ] {
        for natively in [false, true] {
            let only = if natively { "" } else { "[ -n \"$LD_PRELOAD\" ] || exit 0\n" };
            std::fs::write(&program, format!("#!/bin/sh\n{only}{what}\n")).expect("a script");
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its mode");
            let place = Place { program: program.clone(), longest: Duration::from_secs(1), ..Place::simulated() };
            let tally = campaign(place, 1);
            let found: Vec<Wrong> =
                tally.failed.iter().flat_map(|failed| &failed.findings).map(|finding| finding.wrong).collect();
            assert_eq!((found, tally.excused), if natively { (vec![], 1) } else { (vec![wrong], 0) }, "{what}");
        }
    }
}
