//! Tools that tests need and a machine may lack: each test says the same way that it is skipped, and
//! docs/reliability.md lists which tests need which tool, and what brings it.

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::scratch::Scratch;
use gpumem_tests::skipped::{TOOLS, installed, one_installed};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders of tests.
const FOLDERS: &[&str] =
    &["tests/src", "tests/tests", "inspector/tests", "shim/abi/tests", "shim/linked/tests", "shim/src"];

/// Files that may print "skipped" themselves: the one place for it, and this file.
const SAYS_IT: &[&str] = &["skipped", "repository::tools"];

fn sources() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| repository().join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.ends_with("tests/src/bin") {
                // Programs, which count what was skipped of their own.
            } else if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    files.retain(|file| !SAYS_IT.contains(&&*name(file)));
    files
}

/// A test as nextest names it, `binary::module`, or the name of a file of other code.
fn name(file: &Path) -> String {
    let stem = |path: &Path| path.file_stem().and_then(|stem| stem.to_str()).expect("a name in UTF-8").to_owned();
    match file.strip_prefix(repository().join("tests/tests")) {
        Ok(test) => test.with_extension("").to_string_lossy().replace('/', "::"),
        Err(_) => stem(file),
    }
}

/// The tools that a source asks for by name.
fn asked_for(source: &str) -> Vec<&str> {
    let calls = ["one_installed(&[\"", "installed(\""].into_iter().flat_map(|call| source.split(call).skip(1));
    calls.filter_map(|rest| rest.split('"').next()).collect()
}

/// The words in backquotes of a cell.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_tool_that_a_test_needs_is_in_the_list() {
    let docs = fs::read_to_string(repository().join("docs/reliability.md")).expect("the list");
    let list = docs.split("## What tests need of a machine").nth(1).expect("the section");
    let list = list.split("\n## ").next().unwrap_or_default();
    let mut listed = BTreeSet::new();
    for row in list.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').collect();
        for tool in quoted(cells[1]) {
            let brings = TOOLS.iter().find(|(name, _)| *name == tool).map(|(_, brings)| *brings);
            assert_eq!(brings, Some(cells[2].trim()), "what brings {tool}");
            listed.extend(quoted(cells[3]).into_iter().map(|file| (tool.to_owned(), file.to_owned())));
        }
    }
    let mut needed = BTreeSet::new();
    for file in sources() {
        let source = fs::read_to_string(&file).expect("a source");
        needed.extend(asked_for(&source).into_iter().map(|tool| (tool.to_owned(), name(&file))));
    }
    assert!(needed.contains(&("python3".into(), "repository::gpu_scripts".into())), "{needed:?}");
    let missing: Vec<_> = needed.difference(&listed).collect();
    let too_many: Vec<_> = listed.difference(&needed).collect();
    assert!(missing.is_empty() && too_many.is_empty(), "not in the list: {missing:?}; in no test: {too_many:?}");
}

/// A line of another form is overlooked by who counts what was skipped.
#[test]
fn no_test_says_in_words_of_its_own_that_it_is_skipped() {
    let mut found = Vec::new();
    for file in sources() {
        let source = fs::read_to_string(&file).expect("a source");
        for said in ["println!(\"", "say(\""].into_iter().flat_map(|print| source.split(print).skip(1)) {
            let said = said.split('"').next().unwrap_or_default();
            if ["skipped", "not tested", "not installed", "not root", "no python"].iter().any(|it| said.contains(it)) {
                found.push(format!("{}: {said}", file.display()));
            }
        }
    }
    assert_eq!(found, [""; 0]);
}

/// The test asks for a tool that is nowhere, in processes of its own, whose variables are others.
#[test]
fn what_is_not_there_is_skipped_and_what_is_there_is_found() {
    const CHILD: &str = "GPUMEM_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(installed("no-such-tool-anywhere"), None);
        return;
    }
    assert!(one_installed(&["no-such-tool-anywhere", "sh"]).is_some_and(|path| path.ends_with("sh")));
    let scratch = Scratch::new();
    let gathered = scratch.path().join("skipped");
    let test = "tools::what_is_not_there_is_skipped_and_what_is_there_is_found";
    let child = |require: &str| {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", test]).envs([(CHILD, "1"), ("REQUIRE", require)]).env("SKIPPED", &gathered);
        child.output().expect("it runs").status.success()
    };
    assert!(child("") && child("0"), "it passes");
    let why = "no-such-tool-anywhere is not installed (nothing known)";
    let lines = fs::read_to_string(&gathered).expect("what was skipped");
    assert_eq!(lines, format!("{why}\t{test}\n").repeat(2));
    assert!(!child("1"), "it is required");
}
