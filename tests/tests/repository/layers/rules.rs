//! The layers of a crate, and the uses that break them.

use super::source::{Crate, Module, Use};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// A room: its name, and the modules that belong to it with everything below them. The longest path that fits a module
/// decides. The root of the crate is written `""`.
pub type Room = (&'static str, &'static [&'static str]);

/// The layers of a crate, the top one first. A layer has one room, or several that do not know each other. A module may
/// use its own room and the layers below.
pub struct House {
    /// The crate's root file, from the top folder of the repository.
    pub root: &'static str,
    pub layers: &'static [&'static [Room]],
    /// Rooms that may use only these rooms of the layers below.
    pub narrow: &'static [(&'static str, &'static [&'static str])],
}

/// A use that the layers forbid.
#[derive(Clone, Debug)]
pub struct Broken {
    pub used: Use,
    room: &'static str,
    other: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Use { file, line, path, .. } = &self.used;
        write!(f, "{}:{line}: {} may not use {}: {path}", file.display(), self.room, self.other)
    }
}

/// A module as people write it.
pub fn name(module: &Module) -> String {
    if module.is_empty() { "the root".into() } else { module.join("::") }
}

impl House {
    /// Reads the crate. `top` is the top folder of the repository.
    pub fn read(&self, top: &Path) -> Crate {
        Crate::read(top, &top.join(self.root))
    }

    /// Reads the crate, and whose methods its files call.
    ///
    /// # Errors
    /// As [`House::broken`].
    pub fn read_with_calls(&self, top: &Path) -> Result<Crate, String> {
        let mut all = self.read(top);
        let rooms = self.rooms(&all)?;
        all.find_calls(|module| rooms[module]);
        Ok(all)
    }

    /// The room of each module.
    ///
    /// # Errors
    /// As [`House::broken`].
    pub fn rooms(&self, all: &Crate) -> Result<BTreeMap<Module, &'static str>, String> {
        Ok(self.places(all)?.into_iter().map(|(module, (_, room))| (module.clone(), room)).collect())
    }

    /// Every use that goes upwards, sideways into another room, or from a narrow room to one that it may not know.
    ///
    /// # Errors
    /// Modules that belong to no room, and rooms without a module.
    pub fn broken(&self, all: &Crate) -> Result<Vec<Broken>, String> {
        let places = self.places(all)?;
        let broken = all.uses.iter().chain(&all.calls).filter_map(|used| {
            let ((from, room), (to, other)) = (places[&used.from], places[&used.to]);
            let narrow = self.narrow.iter().find(|(narrow, _)| *narrow == room);
            let fine = room == other || to > from && narrow.is_none_or(|(_, few)| few.contains(&other));
            (!fine).then(|| Broken { used: used.clone(), room, other })
        });
        Ok(broken.collect())
    }

    /// For each module the number of its layer, from the top, and its room.
    fn places<'a>(&self, all: &'a Crate) -> Result<BTreeMap<&'a Module, (usize, &'static str)>, String> {
        let mut empty: BTreeSet<&str> = BTreeSet::new();
        let mut rows: Vec<(Module, usize, &'static str, &'static str)> = Vec::new();
        for (layer, rooms) in self.layers.iter().enumerate() {
            for (room, modules) in *rooms {
                for module in *modules {
                    let path = module.split("::").filter(|word| !word.is_empty()).map(str::to_owned).collect();
                    rows.push((path, layer, room, module));
                    empty.insert(module);
                }
            }
        }
        let mut places = BTreeMap::new();
        let mut homeless = Vec::new();
        for module in all.modules.keys() {
            // The root is no part of itself: with `""` as a prefix nothing would be without a room.
            let fits = |path: &Module| module == path || !path.is_empty() && module.starts_with(path);
            match rows.iter().filter(|(path, ..)| fits(path)).max_by_key(|(path, ..)| path.len()) {
                Some(&(_, layer, room, row)) => {
                    empty.remove(row);
                    places.insert(module, (layer, room));
                }
                None => homeless.push(name(module)),
            }
        }
        match (homeless.as_slice(), empty.is_empty()) {
            ([], true) => Ok(places),
            ([], false) => Err(format!("the table of layers names modules that are not there: {empty:?}")),
            _ => Err(format!("the table of layers says nothing of: {}", homeless.join(", "))),
        }
    }
}
