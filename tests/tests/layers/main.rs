//! The source keeps its layers: who may use whom is one table a crate, and every file is read against it. No circle of
//! files, no long function, no long file where a crate has come so far.

mod inspector;
mod planted;
mod rules;
mod source;

use rules::House;
use source::Crate;
use std::path::{Path, PathBuf};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests have a folder").to_owned()
}

fn lines(said: impl IntoIterator<Item = String>) -> String {
    said.into_iter().collect::<Vec<_>>().join("\n")
}

/// No use upwards and no circle.
fn keeps_its_layers(house: &House) -> Crate {
    let all = house.read(&top());
    let broken = house.broken(&all).unwrap_or_else(|why| panic!("{why}"));
    assert!(broken.is_empty(), "uses against the layers:\n{}", lines(broken.iter().map(ToString::to_string)));
    let circles = all.circles().into_iter().map(|circle| lines(circle.iter().map(rules::name)).replace('\n', ", "));
    let circles = lines(circles);
    assert!(circles.is_empty(), "files that use each other in a circle:\n{circles}");
    all
}

#[test]
fn the_inspector_keeps_its_layers() {
    keeps_its_layers(&inspector::HOUSE);
}
