//! Call sites, named so that they can be distinguished.
//!
//! A stack's site is its innermost frame outside of GPU runtimes. That is often a wrapper through which the whole
//! program allocates, and says little. So if several stacks share it, the name continues with the caller, `wrap rt.h:11
//! ← load app.c:80`, frame by frame, until the stacks differ or [`MAX_FRAMES`] are named. Stacks that are equal up to
//! there are one site.
//!
//! A header's line counts as such a wrapper even if it is used once: it was inlined into its caller, which is named
//! too.

use super::Ledger;
use crate::symbols::Room;
use crate::text::CALLED_BY;
use gpumem_wire::growth::WITHOUT_MEMORY;
use gpumem_wire::layout::StackRef;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most frames in a site's name.
pub(super) const MAX_FRAMES: usize = 4;

/// The sites of some stacks: the name of each stack.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    names: FxHashMap<StackRef, Rc<str>>,
}

impl Sites {
    /// Returns the sites of everything that ever allocated: an allocation's site has the same name in every view.
    pub(crate) fn of_allocs(ledger: &Ledger) -> Self {
        let listed = ledger.snapshot.allocs.iter().map(|alloc| alloc.stack);
        let ever = ledger.snapshot.stacks.iter().filter(|(_, stack)| stack.allocs > 0);
        Self::of(ledger, listed.chain(ever.map(|(&stack, _)| stack)))
    }

    /// Returns the sites of everything that ever made a graph or an exec.
    pub(crate) fn of_graphs(ledger: &Ledger) -> Self {
        let graphs = ledger.snapshot.graphs.iter().map(|graph| graph.stack);
        let execs = ledger.snapshot.execs.iter().map(|exec| exec.stack);
        let ever = ledger.snapshot.stacks.iter().filter(|(_, stack)| stack.graphs > 0 || stack.execs > 0);
        Self::of(ledger, graphs.chain(execs).chain(ever.map(|(&stack, _)| stack)))
    }

    /// Returns the sites of things without memory of their own: code, events, streams, contexts.
    pub(crate) fn of_others(ledger: &Ledger) -> Self {
        let allocs = ledger.snapshot.allocs.iter().filter(|alloc| !alloc.takes_memory()).map(|alloc| alloc.stack);
        let streams = ledger.snapshot.streams.values().map(|stream| stream.stack);
        let contexts = ledger.snapshot.contexts.values().map(|context| context.stack);
        let is_other = |kind: u8| WITHOUT_MEMORY.iter().any(|&other| other as u8 == kind);
        let sampled = ledger.snapshot.growth.rows().filter(|(_, row)| is_other(row.kind));
        let sampled = sampled.filter_map(|(_, row)| StackRef::try_from(row.key).ok());
        Self::of(ledger, allocs.chain(streams).chain(contexts).chain(sampled).filter(|&stack| stack != 0))
    }

    /// Returns the sites of everything in events, with the names from the allocations, else from the graphs. A stack
    /// that is in neither gets a name of its own.
    pub(crate) fn of_events(ledger: &Ledger) -> Self {
        let events = || ledger.snapshot.events.iter().map(|event| event.stack).filter(|&stack| stack != 0);
        if events().next().is_none() {
            return Self::default();
        }
        let (allocs, graphs) = (Self::of_allocs(ledger), Self::of_graphs(ledger));
        let known = |stack: &StackRef| allocs.names.contains_key(stack) || graphs.names.contains_key(stack);
        let all = allocs.names.keys().chain(graphs.names.keys()).copied().chain(events());
        let mut sites = if events().all(|stack| known(&stack)) { Self::default() } else { Self::of(ledger, all) };
        sites.names.extend(graphs.names);
        sites.names.extend(allocs.names);
        sites
    }

    /// Returns the sites of these stacks.
    pub(in crate::model) fn of(ledger: &Ledger, stacks: impl Iterator<Item = StackRef>) -> Self {
        // Neighbours are often alike, and there may be a million of them.
        let mut last = None;
        let stacks: FxHashSet<StackRef> = stacks.filter(|&stack| last.replace(stack) != Some(stack)).collect();
        let mut stacks: Vec<_> = stacks.into_iter().collect();
        stacks.sort_unstable();
        let names = name(stacks.len(), &|item, depth| ledger.step(stacks[item], depth));
        Self { names: stacks.into_iter().zip(names).collect() }
    }

    /// Returns the name of a stack's site.
    pub(crate) fn name(&self, stack: StackRef) -> Rc<str> {
        self.names.get(&stack).cloned().unwrap_or_else(|| NO_STACK.into())
    }
}

/// The name of everything without a stack.
pub(in crate::model) const NO_STACK: &str = "(no stack)";

/// Names `items` stacks. `step` returns each one's frames from its site outwards, then `None`.
pub(crate) fn name(items: usize, step: &dyn Fn(usize, usize) -> Option<Rc<str>>) -> Vec<Rc<str>> {
    let mut sites = Vec::new();
    split((0..items).collect(), 0, step, &mut sites);
    let (room, mut names) = (Room::default(), vec![Rc::<str>::from(NO_STACK); items]);
    for (members, frames) in sites {
        let Some(&first) = members.first() else { continue };
        let frames = beyond_headers(&members, frames, step);
        let chain: Vec<_> = (0..frames).filter_map(|depth| step(first, depth)).collect();
        if chain.is_empty() {
            continue;
        }
        let name = room.word(&chain.join(CALLED_BY));
        for member in members {
            names[member] = Rc::clone(&name);
        }
    }
    names
}

/// Returns the number of frames in a name that should not end in a header, if all stacks of the site share a caller.
fn beyond_headers(members: &[usize], mut frames: usize, step: &dyn Fn(usize, usize) -> Option<Rc<str>>) -> usize {
    let frame = |depth| members.first().and_then(|&first| step(first, depth));
    while (1..MAX_FRAMES).contains(&frames) && frame(frames - 1).is_some_and(|last| is_of_header(&last)) {
        let caller = frame(frames);
        if caller.is_none() || members.iter().any(|&member| step(member, frames) != caller) {
            break;
        }
        frames += 1;
    }
    frames
}

/// True if a frame, such as `wrap rt.h:11`, is a header's line.
fn is_of_header(frame: &str) -> bool {
    let file = frame.rsplit(' ').next().unwrap_or_default().split(':').next().unwrap_or_default();
    let ending = file.rsplit_once('.').map_or("", |(_, ending)| ending);
    ["h", "hh", "hpp", "hxx", "cuh", "inl", "inc", "ipp", "tcc"].contains(&ending)
}

/// Divides stacks that are equal in `depth` frames by the next one. A site is its members and the number of frames that
/// its name needs.
fn split(
    alike: Vec<usize>,
    depth: usize,
    step: &dyn Fn(usize, usize) -> Option<Rc<str>>,
    sites: &mut Vec<(Vec<usize>, usize)>,
) {
    let mut parts: BTreeMap<Option<Rc<str>>, Vec<usize>> = BTreeMap::new();
    for item in alike {
        parts.entry(step(item, depth)).or_default().push(item);
    }
    for (frame, part) in parts {
        let frames = depth + usize::from(frame.is_some());
        if frame.is_none() || part.len() == 1 || frames == MAX_FRAMES {
            sites.push((part, frames));
            continue;
        }
        let before = sites.len();
        split(part, frames, step, sites);
        // Further frames made no distinction.
        if let [only] = &mut sites[before..] {
            only.1 = frames;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names stacks that are given in words, innermost first.
    fn named(stacks: &[&str]) -> Vec<String> {
        let frames: Vec<Vec<&str>> = stacks.iter().map(|stack| stack.split_whitespace().collect()).collect();
        let names = name(stacks.len(), &|item, depth| frames[item].get(depth).map(|&frame| frame.into()));
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn a_site_of_its_own_needs_one_frame() {
        assert_eq!(named(&["a main", "b main"]), ["a", "b"]);
        assert_eq!(named(&[]), [""; 0]);
    }

    #[test]
    fn a_shared_wrapper_is_followed_by_who_called_it() {
        let stacks = ["wrap load main", "wrap kv slot main", "wrap kv grow main", "other main"];
        assert_eq!(named(&stacks), ["wrap ← load", "wrap ← kv ← slot", "wrap ← kv ← grow", "other"]);
        // In any order.
        let mut turned = stacks;
        turned.reverse();
        let mut names = named(&turned);
        names.reverse();
        assert_eq!(names, named(&stacks));
    }

    #[test]
    fn what_differs_too_far_out_is_one_site() {
        assert_eq!(named(&["a b c d x", "a b c d y"]), ["a", "a"]);
        assert_eq!(named(&["a b c d x", "a b c d y", "a b e"]), ["a ← b ← c", "a ← b ← c", "a ← b ← e"]);
        assert_eq!(named(&["a b c d", "a b c e"]), ["a ← b ← c ← d", "a ← b ← c ← e"]);
    }

    #[test]
    fn a_line_of_a_header_is_followed_by_who_called_it() {
        let named = |stacks: &[&[&'static str]]| -> Vec<String> {
            let names = name(stacks.len(), &|item, depth| stacks[item].get(depth).map(|&frame| frame.into()));
            names.iter().map(|name| name.to_string()).collect()
        };
        let (wrap, inner) = ("wrap rt.h:77", "std::make(int, int) make.hpp:5");
        assert_eq!(named(&[&[wrap, "load app.c:80", "main app.c:9"]]), ["wrap rt.h:77 ← load app.c:80"]);
        assert_eq!(named(&[&[inner, wrap, "load app.c:80"]]), [format!("{inner} ← {wrap} ← load app.c:80")]);
        assert_eq!(named(&[&[wrap], &["load app.c:80", "main app.c:9"]]), [wrap, "load app.c:80"]);
        // Callers that differ are sites of their own. Callers that differ too far out are not, and are not named.
        assert_eq!(
            named(&[&[wrap, "a a.c:1"], &[wrap, "b b.c:1"]]),
            ["wrap rt.h:77 ← a a.c:1", "wrap rt.h:77 ← b b.c:1"]
        );
        let far = |last| [wrap, wrap, wrap, wrap, last];
        assert_eq!(named(&[&far("a a.c:1"), &far("b b.c:1")]), [[wrap; 4].join(" ← "), [wrap; 4].join(" ← ")]);
    }

    #[test]
    fn a_stack_that_ends_early_keeps_what_it_has() {
        assert_eq!(named(&["a", "a b", "a b c"]), ["a", "a ← b", "a ← b ← c"]);
        assert_eq!(named(&["", "a"]), [NO_STACK, "a"]);
    }
}
