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
        let text = |name: &str| goal[name].as_str().unwrap_or_else(|| panic!("{key} has no {name}"));
        let row = document.lines().find(|line| line.starts_with(&format!("| {} |", text("what"))));
        let row = row.unwrap_or_else(|| panic!("no row of docs/performance.md begins with: | {} |", text("what")));
        assert!(
            row.split('|').any(|cell| cell.trim() == text("goal")),
            "{key}: the goal is {}, not in: {row}",
            text("goal")
        );
        assert!(goal["most"].as_array().is_some_and(|most| most.iter().all(Value::is_number)), "{key} has no numbers");
    }
}
