//! The source keeps its layers: who may use whom is one table a crate, and every file is read against it. No circle of
//! files; no long function and no long file where a crate has come so far. Whose methods a file of
//! the shim or of the inspector calls is read, too.

mod circles;
mod inspector;
mod methods;
mod parts;
mod planted;
mod reader;
mod rules;
mod shim;
mod source;
mod wire;

use rules::House;
use source::Crate;
use std::path::{Path, PathBuf};

/// Lines of a function, from its signature to the closing brace, and of a file.
const LONGEST_FUNCTION: usize = 60;
const LONGEST_FILE: usize = 400;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests have a folder").to_owned()
}

fn lines(said: impl IntoIterator<Item = String>) -> String {
    said.into_iter().collect::<Vec<_>>().join("\n")
}

/// No use upwards, and no circle of files.
fn stands(house: &House, all: &Crate) {
    let broken = house.broken(all).unwrap_or_else(|why| panic!("{why}"));
    assert!(broken.is_empty(), "uses against the layers:\n{}", lines(broken.iter().map(ToString::to_string)));
    let circles = circles::by_room(house, all);
    assert!(circles.is_empty(), "{}", lines(circles.iter().map(ToString::to_string)));
}

fn stands_with_calls(house: &House) {
    let all = house.read_with_calls(&top()).unwrap_or_else(|why| panic!("{why}"));
    assert!(all.untold.is_empty(), "methods of types that the test cannot tell:\n{}", circles::untold(&all));
    stands(house, &all);
}

/// By paths and by the methods that are called.
#[test]
fn the_inspector_keeps_its_layers_and_has_no_circle() {
    stands_with_calls(&inspector::HOUSE);
}

#[test]
fn the_wire_has_no_circle() {
    stands(&wire::HOUSE, &wire::HOUSE.read(&top()));
}

/// By paths and by the methods that are called.
#[test]
fn the_shim_keeps_its_layers_and_has_no_circle() {
    stands_with_calls(&shim::HOUSE);
}

#[test]
fn the_inspector_has_no_long_function_and_no_long_file() {
    let all = inspector::HOUSE.read(&top());
    let functions = all.functions.iter().filter(|function| function.lines > LONGEST_FUNCTION);
    let functions =
        functions.map(|long| format!("{}:{}: fn {}: {}", long.file.display(), long.line, long.name, long.lines));
    let files = all.lines.iter().filter(|(_, lines)| **lines > LONGEST_FILE);
    let files = files.map(|(file, lines)| format!("{}: {lines}", file.display()));
    let long = lines(functions.chain(files));
    assert!(long.is_empty(), "lines beyond {LONGEST_FUNCTION} a function and {LONGEST_FILE} a file:\n{long}");
}
