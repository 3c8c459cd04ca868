//! Finds out which parts may be on with a driver: of the ways to run gpumem, the first one in which every check answers
//! as natively. A rule that is broken natively turns off everything that relies on it, without a test.

use super::suite::{Check, Outcome};

/// Families of checks by the parts that rely on those rules: the prefixes of their names.
const FAMILIES: [(On, &[&str]); 4] = [
    (BOTH, &["capture", "context", "procaddr", "sticky"]),
    (POOL, &["async", "barrier", "give_back", "memory", "pointers", "vmm"]),
    (
        GRAPH_CACHE,
        &["attributes", "copies", "gates", "graph", "handles", "nodes", "pairing", "serial", "setters", "update"],
    ),
    (NOTHING, &["checkpoint"]),
];

/// The parts that are on, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct On(u8);

pub(super) const NOTHING: On = On(0);
pub(super) const POOL: On = On(1);
pub(super) const GRAPH_CACHE: On = On(2);
pub(super) const BOTH: On = On(3);

impl On {
    /// Returns the parts that stay on without this rule.
    fn without(self, check: &str) -> Self {
        let family = check.split('.').next().unwrap_or_default();
        // An unknown rule concerns everything.
        let of = FAMILIES.iter().find(|(_, names)| names.contains(&family)).map_or(BOTH, |(of, _)| *of);
        Self(self.0 & !of.0)
    }

    pub(super) fn has(self, part: Self) -> bool {
        self.0 & part.0 == part.0
    }
}

/// A variable and its value.
pub(super) type Variable = (&'static str, &'static str);

pub(super) const ACTIVE: Variable = ("GPUMEM_RECORD_ONLY", "0");
pub(super) const CACHE_OFF: Variable = ("GPUMEM_GRAPH_CACHE", "0");

/// A way to run gpumem: the parts that are on, its name, its variables, and the part that the last of these turns off.
pub(super) type Way = (On, &'static str, &'static [Variable], &'static str);

pub(super) const WAYS: [Way; 3] = [
    (BOTH, "preloaded", &[ACTIVE], ""),
    (POOL, "cache-off", &[ACTIVE, CACHE_OFF], "the graph cache"),
    (GRAPH_CACHE, "pool-off", &[ACTIVE, ("GPUMEM_POOL", "0")], "the pool"),
];

/// Returns the parts that may be on: as many as possible of those that no broken rule concerns, and only those that
/// pass `holds`.
pub(super) fn decided(native: &[Check], mut holds: impl FnMut(Way) -> Result<bool, String>) -> Result<On, String> {
    let broken = native.iter().filter(|check| check.result == Outcome::Fail);
    let most = broken.fold(BOTH, |on, check| on.without(&check.name));
    for way in WAYS.into_iter().filter(|way| most.has(way.0)) {
        if holds(way)? {
            return Ok(way.0);
        }
    }
    Ok(NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    fn checks(failed: &[&str]) -> Vec<Check> {
        let check = |name: &str, result| Check { name: name.to_owned(), result, detail: Vec::new() };
        let ok = ["memory.zero", "graph.held"].map(|name| check(name, Outcome::Ok));
        failed.iter().map(|name| check(name, Outcome::Fail)).chain(ok).collect()
    }

    /// Returns the decision if these checks fail natively and those ways to run it hold, and the ways that were tried.
    fn on(native: &[&str], held: &[On]) -> (On, Vec<On>) {
        let mut tried = Vec::new();
        let on = decided(&checks(native), |(on, ..)| {
            tried.push(on);
            Ok(held.contains(&on))
        });
        (on.unwrap(), tried)
    }

    #[test]
    fn as_much_is_on_as_holds() {
        assert_eq!(on(&[], &[BOTH, POOL]), (BOTH, vec![BOTH]));
        assert_eq!(on(&[], &[POOL, GRAPH_CACHE]), (POOL, vec![BOTH, POOL]));
        assert_eq!(on(&[], &[GRAPH_CACHE]), (GRAPH_CACHE, vec![BOTH, POOL, GRAPH_CACHE]));
        assert_eq!(on(&[], &[]), (NOTHING, vec![BOTH, POOL, GRAPH_CACHE]));
    }

    #[test]
    fn what_a_broken_rule_concerns_is_not_even_tried() {
        assert_eq!(on(&["graph.x"], &[BOTH, POOL]), (POOL, vec![POOL]));
        assert_eq!(on(&["give_back.x"], &[BOTH, GRAPH_CACHE]), (GRAPH_CACHE, vec![GRAPH_CACHE]));
        assert_eq!(on(&["gates.x"], &[BOTH, POOL]), (POOL, vec![POOL]));
        assert_eq!(on(&["barrier.x"], &[BOTH, GRAPH_CACHE]), (GRAPH_CACHE, vec![GRAPH_CACHE]));
        assert_eq!(on(&["capture.x"], &[BOTH, POOL]), (NOTHING, vec![]));
        assert_eq!(on(&["graph.x", "memory.y"], &[BOTH, POOL]), (NOTHING, vec![]));
        assert_eq!(on(&["somethingnew.x"], &[BOTH, POOL]), (NOTHING, vec![]));
    }

    /// Returns the families of the suite, from the names of checks in its source.
    fn families_of_the_suite() -> BTreeSet<String> {
        let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/src/conformance");
        let files = fs::read_dir(suite).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file());
        let family = |made: &str| made.split_once('"')?.1.split_once('.').map(|(family, _)| family.to_owned());
        let of_file = |path| {
            let text = fs::read_to_string(path).unwrap();
            let made = ["Check::measured(", "Check::documented("].map(|call| text.split(call).skip(1));
            made.into_iter().flatten().filter_map(family).collect::<Vec<_>>()
        };
        files.flat_map(of_file).collect()
    }

    #[test]
    fn every_family_of_the_suite_has_a_row() {
        let all: Vec<String> = FAMILIES.iter().flat_map(|(_, names)| *names).map(|name| (*name).to_owned()).collect();
        let rows: BTreeSet<String> = all.iter().cloned().collect();
        assert_eq!(rows.len(), all.len(), "a family has two rows");
        assert_eq!(families_of_the_suite(), rows);
    }
}
