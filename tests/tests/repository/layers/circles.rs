//! Circles of files, by paths and by methods, against the numbers that are written down.

use super::rules::{self, House};
use super::source::{Crate, Module};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Files of one room that use each other in a circle.
pub struct Circle {
    pub room: &'static str,
    pub files: Vec<Module>,
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

/// What is wrong with the numbers of files in circles that are written down for rooms.
pub fn against(circles: &[Circle], written: &[(&str, usize)]) -> Vec<String> {
    let rooms: BTreeSet<&str> =
        circles.iter().map(|circle| circle.room).chain(written.iter().map(|row| row.0)).collect();
    let wrong = rooms.into_iter().filter_map(|room| {
        let found: usize = circles.iter().filter(|circle| circle.room == room).map(|circle| circle.files.len()).sum();
        let most = written.iter().find(|row| row.0 == room).map_or(0, |row| row.1);
        match found.cmp(&most) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => {
                Some(format!("{room}: {found} files are in circles, no more than {most} may be"))
            }
            std::cmp::Ordering::Less => {
                Some(format!("{room}: {found} files are in circles, not {most}: write the new number down"))
            }
        }
    });
    wrong.collect()
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
