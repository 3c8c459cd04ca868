//! Circles of files, by paths and by methods, as people read them.

use super::rules::{self, House};
use super::source::{Crate, Module};
use std::collections::BTreeMap;
use std::fmt;

/// Files of one room that use each other in a circle.
pub struct Circle {
    room: &'static str,
    files: Vec<Module>,
    lines: usize,
    /// For each file that uses another of them one use.
    uses: Vec<String>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { room, files, lines, uses } = self;
        writeln!(f, "{room}: {} files with {lines} lines use each other in a circle", files.len())?;
        uses.iter().try_for_each(|used| writeln!(f, "  {used}"))
    }
}

/// The circles of each room.
pub fn by_room(house: &House, all: &Crate) -> Vec<Circle> {
    let rooms = house.rooms(all).unwrap_or_else(|why| panic!("{why}"));
    let circle = |files: Vec<Module>| {
        let mut first = BTreeMap::new();
        for used in all.within(&files) {
            let shown = format!(
                "{} -> {} by {}:{} {}",
                rules::name(&used.from),
                rules::name(&used.to),
                used.file.display(),
                used.line,
                used.path
            );
            first.entry((&used.from, &used.to)).or_insert(shown);
        }
        let uses = first.into_values().collect();
        let lines = files.iter().map(|file| all.lines[&all.modules[file]]).sum();
        Circle { room: rooms[&files[0]], files, lines, uses }
    };
    all.circles().into_iter().map(circle).collect()
}

/// The calls of methods that are not resolved.
pub fn untold(all: &Crate) -> String {
    let said = all.untold.iter().map(|untold| {
        let to: Vec<String> = untold.to.iter().map(rules::name).collect();
        let file = all.modules[&untold.from].display();
        format!(
            "{file}:{}: {}, which {} have: write the receiver's type down",
            untold.line,
            untold.name,
            to.join(" and ")
        )
    });
    super::lines(said)
}
