//! A short share of the campaign of damaged files, and proof that the campaign finds what it looks for.

use gpumem_tests::damage::campaign::Campaign;
use gpumem_tests::harness::run::Scratch;
use std::path::PathBuf;

fn campaign(program: impl Into<PathBuf>, dir: &Scratch) -> Campaign {
    Campaign { seeds: 0..150, jobs: 2, program: program.into(), dir: dir.path().to_owned() }
}

#[test]
fn damaged_files_have_answers() {
    let dir = Scratch::new();
    let found = campaign(env!("CARGO_BIN_EXE_damager"), &dir).run().expect("it runs");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_worker_that_dies_is_told() {
    let dir = Scratch::new();
    // A worker that begins two cases and ends in the second one.
    let worker = dir.path().join("worker");
    let script = "#!/bin/sh\n[ \"$4\" = 0 ] || { echo done; exit; }\necho 'case 0 a'; echo 'found 0 slow'; echo 'case 1 b'; kill -SEGV $$\n";
    std::fs::write(&worker, script).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&worker, mode).expect("its mode");
    let found = Campaign { jobs: 1, ..campaign(&worker, &dir) }.run().expect("it runs");
    let found: Vec<_> = found.iter().map(|found| (found.seed, found.case.as_str(), found.what.as_str())).collect();
    assert_eq!(found[0], (0, "a", "slow"));
    assert_eq!((found[1].0, found[1].1), (1, "b"));
    assert!(found[1].2.contains("signal: 11"), "{found:?}");
}
