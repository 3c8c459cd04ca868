//! Compares what is known of the headers with other sources: cudarc's `sys`, and the functions that the shim calls.

use crate::check::source_of_sys;
use crate::known::*;
use std::collections::BTreeSet;

/// Names, numbers, and the release in which each appeared.
type List = &'static [(&'static str, u32, u32)];

/// Lists by their enumeration, and the prefix left out of its names.
const LISTS: [(List, &str, &str); 5] = [
    (NODE_KINDS, "CUgraphNodeType_enum", "CU_GRAPH_NODE_TYPE_"),
    (LAUNCH_ATTRIBUTES, "CUlaunchAttributeID_enum", "CU_LAUNCH_ATTRIBUTE_"),
    (FUNCTION_ATTRIBUTES, "CUfunction_attribute_enum", "CU_FUNC_ATTRIBUTE_"),
    (POINTER_ATTRIBUTES, "CUpointer_attribute_enum", "CU_POINTER_ATTRIBUTE_"),
    (EDGE_TYPES, "CUgraphDependencyType_enum", "CU_GRAPH_DEPENDENCY_TYPE_"),
];

/// Returns the releases that sys distinguishes and whose headers were read, under sys's names.
fn releases_of_sys(sys: &str) -> Vec<(u32, String)> {
    let names = RELEASES.iter().map(|release| (*release, format!("feature = \"cuda-{release}\"")));
    names.filter(|(_, name)| sys.contains(name.as_str())).collect()
}

/// Returns an enumeration of sys in a release: names without their prefix, and numbers.
fn of_sys(sys: &str, release: &str, name: &str, prefix: &str) -> BTreeSet<(String, u32)> {
    let head = format!("pub enum {name} {{\n");
    let mut found = BTreeSet::new();
    for (at, _) in sys.match_indices(&head) {
        // Each form follows the line with its releases; without such a line it belongs to all.
        let mut before = sys[..at].lines().rev().take_while(|line| line.starts_with("#["));
        let of = before.find(|line| line.starts_with("#[cfg("));
        if of.is_some_and(|of| !of.contains(release)) {
            continue;
        }
        let body = sys[at + head.len()..].split("\n}").next().unwrap_or_default();
        let rows = body.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "));
        let rows = rows.filter_map(|(row, number)| Some((row.strip_prefix(prefix)?.to_owned(), number.parse().ok()?)));
        // The end of an enumeration, which has no number of its own in the headers.
        found.extend(rows.filter(|(row, _)| row != "MAX"));
    }
    found
}

/// In each release that both cover, the known names and numbers are those of sys.
#[test]
fn numbers_are_those_of_sys() {
    let sys = source_of_sys();
    let releases = releases_of_sys(&sys);
    assert!(releases.len() >= 8, "{releases:?}");
    for (list, name, prefix) in LISTS {
        for (release, feature) in &releases {
            let has = of_sys(&sys, feature, name, prefix);
            assert!(!has.is_empty(), "sys has no {name} in {release}");
            let known: BTreeSet<(String, u32)> = list.iter().map(|row| (row.0.to_owned(), row.1)).collect();
            let missing: Vec<_> = has.difference(&known).collect();
            assert!(missing.is_empty(), "{name} in {release}: {missing:?} is not known");
            let by_then = list.iter().filter(|row| row.2 == *release && !has.contains(&(row.0.to_owned(), row.1)));
            let more: Vec<_> = by_then.collect();
            assert!(more.is_empty(), "{name} in {release}: sys has no {more:?}");
        }
    }
}

/// Flags can be combined: in sys they are constants of a number.
#[test]
fn flags_are_those_of_sys() {
    let sys = source_of_sys();
    let mut found = BTreeSet::new();
    for constant in sys.split("pub const CUDA_GRAPH_INSTANTIATE_FLAG_").skip(1) {
        let (name, number) = constant.split_once(": ").expect("a type");
        let number = number.split_once("_enum(").and_then(|(_, rest)| rest.split(')').next()).expect("a number");
        found.insert((name, number.parse::<u32>().expect("a number")));
    }
    assert_eq!(found, INSTANTIATE_FLAGS.iter().map(|row| (row.0, row.1)).collect());
}

/// Rows are in order, unique, and of releases whose headers were read, so that lookups find them.
#[test]
fn rows_are_in_order_and_of_known_releases() {
    assert!(RELEASES.is_sorted_by(|one, next| one < next));
    assert!(FUNCTIONS.is_sorted_by(|one, next| one.0 < next.0));
    for (base, versions, forms) in FUNCTIONS {
        assert!(!versions.is_empty() && versions.is_sorted_by(|one, next| one < next), "{base}: {versions:?}");
        assert!((1..100).contains(forms) && versions.iter().all(|version| RELEASES.last() >= Some(version)), "{base}");
    }
    for list in LISTS.map(|(list, ..)| list).into_iter().chain([INSTANTIATE_FLAGS, EDGE_PORTS]) {
        assert!(!list.is_empty() && list.is_sorted_by(|one, next| (one.1, one.0) < (next.1, next.0)), "{list:?}");
        assert!(list.iter().all(|row| RELEASES.contains(&row.2)), "{list:?}");
    }
}

/// The headers also have every function that the shim itself calls, in that form.
#[test]
fn what_the_shim_calls_is_known() {
    let mut called = 0;
    macro_rules! calls {
        ($($name:ident = $sys:ident ($($arg:ident: $ty:ty),*);)*) => {
            $({
                let name = stringify!($name);
                let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
                assert!(crate::knows_symbol(plain.as_bytes()), "{name} is in no header");
                called += 1;
            })*
        };
    }
    driver_calls!(calls);
    assert!(called > 20, "{called}");
}
