//! The check itself: what is planted in a small crate is found, and nothing else is.

use super::circles;
use super::rules::{self, House};
use super::source::Crate;
use std::path::Path;

const HOUSE: House = House {
    root: "src/lib.rs",
    layers: &[
        &[("top", &["", "high"])],
        &[("left", &["left"]), ("right", &["right"])],
        &[("bottom", &["low", "low_too"])],
    ],
    narrow: &[("top", &["left", "bottom"])],
};

const LIB: &str = "mod high;\nmod left;\nmod low;\nmod low_too;\nmod right;\n";

/// A crate that keeps its layers, but for the files given.
fn crate_with(files: &[(&str, &str)]) -> (tempfile::TempDir, Crate) {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join("src").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", LIB);
    write(
        "high.rs",
        "use crate::left::go;\nuse crate::low::{Low, deep::Deep};\npub fn high(_: Low, _: Deep) { go() }\n",
    );
    write("left.rs", "use crate::low;\npub fn go() { low::go() }\n");
    write("right.rs", "pub struct Right;\n");
    write("low/mod.rs", "pub mod deep;\npub struct Low;\npub fn go() {}\n");
    write("low/deep.rs", "use super::Low;\npub struct Deep(pub Low);\n");
    write("low_too.rs", "pub fn low_too() {}\n");
    files.iter().for_each(|(name, text)| write(name, text));
    let all = HOUSE.read(dir.path());
    (dir, all)
}

/// Returns the complaints about a crate with one file changed.
fn said(name: &str, text: &str) -> Vec<String> {
    let (_dir, all) = crate_with(&[(name, text)]);
    HOUSE.broken(&all).unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn a_crate_that_keeps_its_layers_passes() {
    let (_dir, all) = crate_with(&[]);
    assert!(HOUSE.broken(&all).unwrap().is_empty());
    assert!(all.circles().is_empty(), "{:?}", all.circles());
    assert!(all.uses.len() >= 5, "what is used is seen: {:?}", all.uses);
}

#[test]
fn a_narrow_room_may_not_use_all_that_is_below() {
    let told = said("high.rs", "use crate::left::go;\nuse crate::right::Right;\npub fn high(_: Right) { go() }\n");
    assert_eq!(told, ["src/high.rs:2: top may not use right: crate::right::Right"]);
}

#[test]
fn a_planted_use_upwards_is_found_with_its_place() {
    let up = "may not use top: crate::high::high";
    for (text, line, path) in [
        ("use crate::high::high;\n", 1, "crate::high::high"),
        ("\nuse crate::{low_too, high::{self}};\n", 2, "crate::high::self"),
        ("use super::high as other;\n", 1, "super::high"),
        ("pub(crate) use super::super::low_too;\nfn f() {\n    crate::high::high()\n}\n", 3, "crate::high::high"),
        ("fn f() -> Vec<crate::high::T> { Vec::new() }\n", 1, "crate::high::T"),
        ("fn f() { println!(\"{}\", crate::high::T) }\n", 1, "crate::high::T"),
        ("macro_rules! m { () => {{ use $crate::{low, high::T}; }} }\n", 1, "crate::high::T"),
        ("#[serde(with = \"crate::high::with\")]\nstruct S;\n", 1, "crate::high::with"),
        ("mod inner {\n    use super::super::high;\n}\n", 2, "super::super::high"),
        ("use crate::high::*;\n", 1, "crate::high"),
    ] {
        let found = said("low_too.rs", text);
        let wanted = format!("src/low_too.rs:{line}: bottom may not use top: {path}");
        assert!(found.contains(&wanted), "{text}: {found:?}");
        assert_eq!(found.len(), 1, "{text}: {found:?}");
    }
    assert_eq!(said("low/deep.rs", "fn f() { crate::high::high() }\n"), [format!("src/low/deep.rs:1: bottom {up}")]);
}

#[test]
fn rooms_of_one_layer_do_not_know_each_other() {
    let found = said("left.rs", "use crate::right::Right;\npub fn go(_: Right) {}\n");
    assert_eq!(found, ["src/left.rs:1: left may not use right: crate::right::Right"]);
}

/// The methods of such a block can be called from below, without a path that leads up.
#[test]
fn a_method_that_a_higher_layer_adds_is_found() {
    let text = "use crate::low::Low;\nimpl Low {\n    fn more(&self) {}\n}\nimpl Clone for Low {\n    fn clone(&self) -> Self { Low }\n}\n";
    assert_eq!(said("left.rs", text), ["src/left.rs:2: bottom may not use left: impl Low"]);
}

#[test]
fn a_macro_is_used_by_its_name_alone() {
    let files = [("high.rs", "macro_rules! shout { () => {} }\n"), ("low_too.rs", "fn f() { shout!() }\n")];
    let (_dir, all) = crate_with(&files);
    let broken = HOUSE.broken(&all).unwrap();
    assert_eq!(broken.iter().map(|broken| broken.used.path.as_str()).collect::<Vec<_>>(), ["shout!"]);
}

#[test]
fn a_circle_is_found_and_a_part_of_its_parent_is_none() {
    let files = [
        ("low_too.rs", "use crate::low::go;\npub fn low_too() { go() }\n"),
        ("low/deep.rs", "use super::Low;\nuse crate::low_too::low_too;\npub struct Deep(pub Low);\n"),
    ];
    let (_dir, all) = crate_with(&files);
    assert!(all.circles().is_empty(), "the parent does not use its part: {:?}", all.circles());
    let files =
        [files[0], files[1], ("low/mod.rs", "pub mod deep;\nuse deep::Deep;\npub struct Low;\npub fn go() {}\n")];
    let (_dir, all) = crate_with(&files);
    let names = |circle: &Vec<Vec<String>>| circle.iter().map(super::rules::name).collect::<Vec<_>>();
    assert_eq!(all.circles().iter().map(names).collect::<Vec<_>>(), [["low", "low::deep", "low_too"]]);
}

/// A room of three files, none of which imports from another more than the type that `low` has.
const METHODS: [(&str, &str); 3] = [
    (
        "low/mod.rs",
        "pub mod deep;\npub mod flat;\npub struct Low { rows: Vec<Row>, any: Row }\npub struct Row;\npub fn go() {}\n\
         impl Row {\n    pub fn shown(&self) {}\n}\n",
    ),
    (
        "low/deep.rs",
        "use super::Low;\npub struct Deep(pub Low);\nimpl Low {\n    pub fn sink(&self) {\n        \
         self.rows.iter().for_each(|row| row.shown());\n    }\n    pub fn take(&self) {}\n}\n",
    ),
    ("low/flat.rs", "use super::Low;\nimpl Low {\n    pub fn rise(&self) {\n        self.sink();\n    }\n}\n"),
];

/// The crate with these files, and its methods, with `low/deep.rs` as it is given.
fn with_methods(deep: &str) -> Crate {
    let files = [METHODS[0], ("low/deep.rs", deep), METHODS[2]];
    let (dir, _) = crate_with(&files);
    HOUSE.read_with_calls(dir.path()).unwrap()
}

#[test]
fn a_planted_circle_of_methods_is_found() {
    let all = with_methods(METHODS[1].1);
    assert!(circles::by_room(&HOUSE, &all).is_empty(), "flat uses deep, deep does not use flat: {:?}", all.calls);
    let calls: Vec<_> =
        all.calls.iter().map(|call| format!("{}:{} {}", rules::name(&call.from), call.line, call.path)).collect();
    assert_eq!(calls, ["low::deep:5 Row::shown", "low::flat:4 Low::sink"]);

    let all = with_methods(
        &METHODS[1].1.replace("pub fn take(&self) {}", "pub fn take(&self) {\n        self.rise();\n    }"),
    );
    let found = circles::by_room(&HOUSE, &all);
    let said: Vec<_> = found.iter().map(ToString::to_string).collect();
    let wanted = "bottom: 2 files with 16 lines use each other in a circle\n  \
                  low::deep -> low::flat by src/low/deep.rs:8 Low::rise\n  \
                  low::flat -> low::deep by src/low/flat.rs:4 Low::sink\n";
    assert_eq!(said, [wanted]);
    assert!(all.untold.is_empty(), "{:?}", all.untold);
}

/// Each way in which a receiver's type is known, and calls that only look like one of `take` or `rise`.
#[test]
fn receivers_are_told_by_their_types() {
    let takes = |body: &str| {
        let types = "use super::{Low, flat};\npub struct Deep(pub Low);\npub struct Other;\nimpl Other { fn rise(&self) {} fn low(&self) \
                     -> Option<Low> { None } }\nfn made() -> Vec<Low> { Vec::new() }\n";
        let all = with_methods(&format!(
            "{types}impl Deep {{\n    fn f(&self, low: &Low, other: &Other) {{ {body} }}\n}}\n\
                                         impl Low {{ pub fn sink(&self) {{}} }}\n"
        ));
        let called = all.calls.iter().filter(|call| call.from == ["low", "deep"]).count();
        (called, all.untold.len())
    };
    for body in [
        "self.0.rise()",
        "low.rise()",
        "Low::rise(low)",
        "other.low().iter().for_each(Low::rise)",
        "other.low().filter(|low| true).map(|low| low.rise());",
        "let Some(kept) = other.low() else { return }; kept.rise()",
        "for one in &made() { one.rise() }",
        "made().first().unwrap().rise()",
        "let kept = std::sync::Mutex::new(made()); kept.lock().unwrap().pop().unwrap().rise()",
        "if made().iter().any(|one| matches!(one.rise(), ())) {}",
        "match made().pop() { Some(one) => one.rise(), None => {} }",
        "println!(\"{:?}\", low.rise())",
        "unknown!(a => it.shown())",
    ] {
        assert_eq!(takes(body), (1, 0), "{body}");
    }
    for body in
        ["other.rise()", "String::new().rise()", "made().iter().rise()", "flat!(low)", "std::thread::current().rise()"]
    {
        assert_eq!(takes(body), (0, 0), "{body}");
    }
    assert_eq!(takes("unknown!(a => low.sink())"), (0, 0), "its own file has it");
    assert_eq!(takes("unknown!(a => low.rise())"), (0, 1), "two files have it");
}

/// A name that two files have, on a receiver that does not tell.
#[test]
fn a_method_that_two_files_have_is_listed_if_the_receiver_does_not_tell() {
    let deep = "use super::Low;\npub struct Deep(pub Low);\nimpl Deep { fn rise(&self) {} }\n\
                impl Low { pub fn sink(&self) { let it = Default::default(); it.rise(); } }\n";
    let all = with_methods(deep);
    let said = circles::untold(&all);
    assert_eq!(said, "src/low/deep.rs:4: rise, which low::deep and low::flat have: write the receiver's type down");
}

#[test]
fn to_be_seen_from_above_is_no_use() {
    let (_dir, all) = crate_with(&[("low/deep.rs", "pub(in crate::low) struct Deep;\n")]);
    assert!(!all.uses.iter().any(|used| used.from == ["low", "deep"]), "{:?}", all.uses);
}

#[test]
fn the_table_names_every_module_and_no_other() {
    let (_dir, all) = crate_with(&[
        ("lib.rs", "mod high;\nmod left;\nmod low;\nmod low_too;\nmod right;\nmod new;\n"),
        ("new.rs", ""),
    ]);
    assert_eq!(HOUSE.broken(&all).unwrap_err(), "the table of layers says nothing of: new");
    let (_dir, all) = crate_with(&[("lib.rs", "mod high;\nmod left;\nmod low;\nmod right;\n")]);
    assert_eq!(HOUSE.broken(&all).unwrap_err(), "the table of layers names modules that are not there: {\"low_too\"}");
}

#[test]
fn functions_are_measured_from_signature_to_brace() {
    let (_dir, all) = crate_with(&[(
        "low_too.rs",
        "/// Said.\n#[inline]\npub fn f(\n    a: u32,\n) -> u32 {\n    a\n}\nimpl X {\n    fn g() {}\n}\n",
    )]);
    let found = all.functions.iter().filter(|function| function.file.ends_with(Path::new("low_too.rs")));
    let found: Vec<_> = found.map(|function| (function.name.as_str(), function.line, function.lines)).collect();
    assert_eq!(found, [("f", 3, 5), ("g", 9, 1)]);
}
