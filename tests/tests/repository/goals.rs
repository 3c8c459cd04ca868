//! The goals of `tests/gpu/goals.json`, which the benchmarks print, are those of docs/performance.md.

use gpumem_tests::harness::artifacts::repository;
use serde_json::Value;
use std::fs::read_to_string;

#[test]
fn the_document_has_the_goals_that_benchmarks_print() {
    let document = read_to_string(repository().join("docs/performance.md")).expect("the document");
    let goals = read_to_string(repository().join("tests/gpu/goals.json")).expect("the goals");
    let goals: Value = serde_json::from_str(&goals).expect("JSON");
    for (key, goal) in goals.as_object().expect("a goal for each key") {
        let array = |name: &str| goal[name].as_array().unwrap_or_else(|| panic!("{key} has no {name}"));
        let texts = |name: &str| array(name).iter().map(|text| text.as_str().expect("text")).collect::<Vec<_>>();
        let (whats, targets) = (texts("what"), texts("goal"));
        for (what, target) in whats.iter().zip(&targets) {
            let row = document.lines().find(|line| line.starts_with(&format!("| {what} |")));
            let row = row.unwrap_or_else(|| panic!("no row of docs/performance.md begins with: | {what} |"));
            assert!(row.split('|').any(|cell| cell.trim() == *target), "{key}: the goal is {target}, not in: {row}");
        }
        let most = array("most");
        assert!(most.iter().all(Value::is_number), "{key} has no numbers");
        assert!([whats.len(), targets.len()] == [most.len(); 2], "{key}: a row and a goal for each number");
    }
}
