//! How ExecUpdate pairs the nodes of two graphs, and what it answers for a node that does not fit.

use super::graph::add_fill;
use super::update::memset;
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use cudarc::driver::sys::{self, CUgraphExecUpdateResult as Why};
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("pairing.roots_in_another_order", roots_in_another_order),
    Check::measured("pairing.dependencies_in_another_order", dependencies_in_another_order),
    Check::measured("pairing.sinks_in_another_order", sinks_in_another_order),
    Check::measured("pairing.sinks_by_the_time_they_became_so", sinks_by_the_time_they_became_so),
    Check::measured("pairing.crossed_edges", crossed_edges),
    Check::measured("pairing.counts", counts),
    Check::measured("pairing.sinks_come_first", sinks_come_first),
    Check::measured("pairing.inside_a_child", inside_a_child),
    Check::measured("pairing.disabled_goes_with_the_pair", disabled_goes_with_the_pair),
    Check::measured("pairing.no_result_asked_for", no_result_asked_for),
    Check::measured("pairing.empty_graphs", empty_graphs),
    Check::measured("pairing.the_form_before_12", the_form_before_12),
    Check::measured("pairing.before_12_destroyed_nodes_count", before_12_destroyed_nodes_count),
];

const N: u64 = 512;
const REFUSED: u32 = 910;
const TOPOLOGY: Why = Why::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
const KIND: Why = Why::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;

type Node = sys::CUgraphNode;

/// A graph that is built node by node, of fills and memsets of one memory.
struct Build<'a> {
    t: Checker,
    mem: &'a Mem,
    graph: Graph,
}

impl Build<'_> {
    fn of<'a>(t: &Checker, mem: &'a Mem) -> Result<Build<'a>, Stop> {
        let t = Checker { gpu: t.gpu, wrong: Vec::new() };
        Ok(Build { t, mem, graph: Graph::new()? })
    }

    fn fill(&self, after: &[Node]) -> Result<Node, Stop> {
        add_fill(&self.t, &self.graph, after, self.mem, 1)
    }

    fn set(&self, after: &[Node]) -> Result<Node, Stop> {
        let (mut node, params, ctx) = (null_mut(), memset(self.mem, 1, 8), self.t.gpu.primary);
        let added = cu!(cuGraphAddMemsetNode(&mut node, self.graph.g, after.as_ptr(), after.len(), &params, ctx));
        ok("cuGraphAddMemsetNode", added)?;
        Ok(node)
    }

    fn empty(&self, after: &[Node]) -> Result<Node, Stop> {
        let mut node = null_mut();
        ok("empty", cu!(cuGraphAddEmptyNode(&mut node, self.graph.g, after.as_ptr(), after.len())))?;
        Ok(node)
    }
}

/// Status, reason, and the two nodes as indices into the new graph (-1: NULL).
type Answer = (u32, Why, i64, i64);

const FINE: Answer = (0, Why::CU_GRAPH_EXEC_UPDATE_SUCCESS, -1, -1);

fn update(old: &Graph, new: &Graph) -> Result<Answer, Stop> {
    answer(old.instantiate()?.update(new), new)
}

fn update_before_12(old: &Graph, new: &Graph) -> Result<Answer, Stop> {
    answer(old.instantiate()?.update_before_12(new)?, new)
}

fn answer((status, info): (u32, sys::CUgraphExecUpdateResultInfo), new: &Graph) -> Result<Answer, Stop> {
    let nodes = new.nodes()?;
    let index = |node: Node| match nodes.iter().position(|n| *n == node) {
        Some(i) => i as i64,
        None if node.is_null() => -1,
        None => -2,
    };
    Ok((status, info.result, index(info.errorNode), index(info.errorFromNode)))
}

/// A kernel and a memset, then a kernel after both: which root was made first, and
/// which is the first dependency.
fn two_roots(t: &Checker, mem: &Mem, kernel_made_first: bool, kernel_named_first: bool) -> Result<Graph, Stop> {
    let b = Build::of(t, mem)?;
    let (kernel, set) = match kernel_made_first {
        true => (b.fill(&[])?, b.set(&[])?),
        false => {
            let set = b.set(&[])?;
            (b.fill(&[])?, set)
        }
    };
    b.fill(&if kernel_named_first { [kernel, set] } else { [set, kernel] })?;
    Ok(b.graph)
}

fn roots_in_another_order(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let got = update(&two_roots(t, &mem, true, true)?, &two_roots(t, &mem, false, true)?)?;
    t.eq("the same edges, nodes made in another order", got, FINE);
    Ok(())
}

fn dependencies_in_another_order(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let got = update(&two_roots(t, &mem, true, true)?, &two_roots(t, &mem, true, false)?)?;
    t.eq("the kernel against the memset", got, (REFUSED, KIND, 1, -1));
    Ok(())
}

fn sinks_in_another_order(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (one, two) = (Build::of(t, &mem)?, Build::of(t, &mem)?);
    let root = one.fill(&[])?;
    one.fill(&[root])?;
    one.set(&[root])?;
    let root = two.fill(&[])?;
    two.set(&[root])?;
    two.fill(&[root])?;
    t.eq("the latest of each is looked at first", update(&one.graph, &two.graph)?, (REFUSED, KIND, 2, -1));
    Ok(())
}

/// A node becomes a sink when it is added, or when its last edge out goes.
fn sinks_by_the_time_they_became_so(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let late = Build::of(t, &mem)?;
    let set = late.set(&[])?;
    let fill = late.fill(&[set])?;
    ok("remove", cu!(cuGraphRemoveDependencies_v2(late.graph.g, &set, &fill, null(), 1)))?;
    let (set_last, fill_last) = (Build::of(t, &mem)?, Build::of(t, &mem)?);
    set_last.fill(&[])?;
    set_last.set(&[])?;
    fill_last.set(&[])?;
    fill_last.fill(&[])?;
    t.eq("the memset is the later sink", update(&set_last.graph, &late.graph)?, FINE);
    t.eq("and not the kernel", update(&fill_last.graph, &late.graph)?, (REFUSED, KIND, 0, -1));
    // A: kernel, B: memset, C: memset, D after B. B is a sink no more, the others
    // stay as they were: A, C, D.
    let middle = Build::of(t, &mem)?;
    middle.fill(&[])?;
    let b = middle.set(&[])?;
    middle.set(&[])?;
    middle.empty(&[b])?;
    let plain = Build::of(t, &mem)?;
    let b = plain.set(&[])?;
    plain.fill(&[])?;
    plain.set(&[])?;
    plain.empty(&[b])?;
    t.eq("the rest keep their order", update(&middle.graph, &plain.graph)?, FINE);
    Ok(())
}

/// The search goes breadth first, along edges in their order. The second node finds that its dependency is already
/// paired with another node.
fn crossed_edges(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (one, two) = (Build::of(t, &mem)?, Build::of(t, &mem)?);
    let (a, x) = (one.fill(&[])?, one.fill(&[])?);
    let (b, c) = (one.fill(&[a])?, one.fill(&[a])?);
    one.fill(&[b, c, x])?;
    let (a, x) = (two.fill(&[])?, two.fill(&[])?);
    let (b, c) = (two.fill(&[a])?, two.fill(&[x])?);
    two.fill(&[b, c, a])?;
    t.eq("both nodes are told", update(&one.graph, &two.graph)?, (REFUSED, TOPOLOGY, 2, 0));
    t.eq("the other way round too", update(&two.graph, &one.graph)?, (REFUSED, TOPOLOGY, 2, 0));
    Ok(())
}

fn counts(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (one, chain, fan) = (Build::of(t, &mem)?, Build::of(t, &mem)?, Build::of(t, &mem)?);
    one.fill(&[])?;
    let first = chain.fill(&[])?;
    chain.fill(&[first])?;
    fan.fill(&[])?;
    fan.fill(&[])?;
    let none = (REFUSED, TOPOLOGY, -1, -1);
    t.eq("fewer nodes", update(&chain.graph, &one.graph)?, none);
    t.eq("more nodes", update(&one.graph, &chain.graph)?, none);
    t.eq("fewer sinks", update(&fan.graph, &chain.graph)?, none);
    t.eq("more sinks: the first is told", update(&chain.graph, &fan.graph)?, (REFUSED, TOPOLOGY, 0, -1));
    let (diamond, other) = (Build::of(t, &mem)?, Build::of(t, &mem)?);
    let a = diamond.fill(&[])?;
    let (b, c) = (diamond.fill(&[a])?, diamond.fill(&[a])?);
    diamond.fill(&[b, c])?;
    let a = other.fill(&[])?;
    let b = other.fill(&[a])?;
    let c = other.fill(&[b])?;
    other.fill(&[a, c])?;
    let got = update(&diamond.graph, &other.graph)?;
    t.eq("a node with fewer dependencies", got, (REFUSED, TOPOLOGY, 0, -1));
    let got = update(&other.graph, &diamond.graph)?;
    t.eq("a node with more dependencies", got, (REFUSED, TOPOLOGY, 1, -1));
    Ok(())
}

/// Parameters are compared during the search, so a difference in a sink is reported before one in a root.
fn sinks_come_first(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (one, two) = (Build::of(t, &mem)?, Build::of(t, &mem)?);
    let root = one.fill(&[])?;
    one.fill(&[root])?;
    let root = two.set(&[])?;
    let last = two.fill(&[root])?;
    // SAFETY: the union holds numbers only, so all zeroes is a valid value.
    let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
    value.cooperative = 1;
    let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    ok("setting COOPERATIVE", cu!(cuGraphKernelNodeSetAttribute(last, id, &value)))?;
    let why = Why::CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
    t.eq("a root of another kind, a cooperative sink", update(&one.graph, &two.graph)?, (REFUSED, why, 1, -1));
    Ok(())
}

/// A graph whose only node is a child graph.
fn around(inner: &Graph) -> Result<(Graph, Node), Stop> {
    let (outer, mut child) = (Graph::new()?, null_mut());
    ok("child", cu!(cuGraphAddChildGraphNode(&mut child, outer.g, null(), 0, inner.g)))?;
    Ok((outer, child))
}

fn inside_a_child(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (fill, set, two) = (Build::of(t, &mem)?, Build::of(t, &mem)?, Build::of(t, &mem)?);
    fill.fill(&[])?;
    set.set(&[])?;
    let first = two.fill(&[])?;
    two.fill(&[first])?;
    let ((old, child), (other, other_child)) = (around(&fill.graph)?, around(&set.graph)?);
    let exec = old.instantiate()?;
    let (status, info) = exec.update(&other);
    let mut g = null_mut();
    ok("cuGraphChildGraphNodeGetGraph", cu!(cuGraphChildGraphNodeGetGraph(other_child, &mut g)))?;
    let (mut inner, mut n) = (null_mut(), 1);
    ok("cuGraphGetNodes", cu!(cuGraphGetNodes(g, &mut inner, &mut n)))?;
    t.eq("another kind inside", (status, info.result, info.errorNode), (REFUSED, KIND, inner));
    t.eq("more nodes inside", update(&old, &around(&two.graph)?.0)?, (REFUSED, TOPOLOGY, -1, -1));
    let set_child = |g: &Graph| cu!(cuGraphExecChildGraphNodeSetParams(exec.e, child, g.g));
    let got = [set_child(&fill.graph), set_child(&set.graph), set_child(&two.graph)];
    t.eq("setting the child: same, another kind, more nodes", got, [0, REFUSED, REFUSED]);
    Ok(())
}

/// The disabled flag belongs to the pair, whatever the order in which the new graph's nodes were made.
fn disabled_goes_with_the_pair(t: &mut Checker) -> Done {
    let (stream, a, b) = (Strm::non_blocking()?, t.gpu.words(N)?, t.gpu.words(N)?);
    let build = |swapped: bool, va, vb| -> Result<(Graph, Node), Stop> {
        let graph = Graph::new()?;
        let (first, second) = match swapped {
            false => (add_fill(t, &graph, &[], &a, va)?, add_fill(t, &graph, &[], &b, vb)?),
            true => {
                let second = add_fill(t, &graph, &[], &b, vb)?;
                (add_fill(t, &graph, &[], &a, va)?, second)
            }
        };
        let mut end = null_mut();
        let deps = [first, second];
        ok("empty", cu!(cuGraphAddEmptyNode(&mut end, graph.g, deps.as_ptr(), 2)))?;
        Ok((graph, first))
    };
    let (old, first) = build(false, 1, 2)?;
    let (new, _) = build(true, 11, 22)?;
    let exec = old.instantiate()?;
    ok("disable", cu!(cuGraphNodeSetEnabled(exec.e, first, 0)))?;
    ok("update", exec.update(&new).0)?;
    for mem in [&a, &b] {
        ok("cuMemsetD32Async", cu!(cuMemsetD32Async(mem.p, 9, N as usize, stream.s)))?;
    }
    exec.launch(&stream)?;
    let (wa, wb) = (t.gpu.wrong_words(&stream, a.words(), 9)?, t.gpu.wrong_words(&stream, b.words(), 22)?);
    t.eq("words of the disabled node written, of the other not", (wa, wb), (0, 0));
    Ok(())
}

fn no_result_asked_for(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let one = Build::of(t, &mem)?;
    one.fill(&[])?;
    let exec = one.graph.instantiate()?;
    t.eq("NULL for the result", cu!(cuGraphExecUpdate_v2(exec.e, one.graph.g, null_mut())), 0);
    Ok(())
}

/// Chains of kernels and memsets, one letter each; `|` begins another.
fn chains(t: &Checker, mem: &Mem, kinds: &str) -> Result<Graph, Stop> {
    let (b, mut last) = (Build::of(t, mem)?, Vec::new());
    for kind in kinds.chars() {
        last = match kind {
            '|' => Vec::new(),
            'K' => vec![b.fill(&last)?],
            _ => vec![b.set(&last)?],
        };
    }
    Ok(b.graph)
}

fn empty_graphs(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let none = (REFUSED, TOPOLOGY, -1, -1);
    for kinds in ["K", "S", "KK", "SS", "K|K"] {
        let (some, empty) = (chains(t, &mem, kinds)?, Graph::new()?);
        t.eq(&format!("{kinds}, then nothing"), update(&some, &empty)?, none);
        t.eq(&format!("nothing, then {kinds}"), update(&empty, &some)?, none);
    }
    t.eq("nothing, then nothing", update(&Graph::new()?, &Graph::new()?)?, FINE);
    Ok(())
}

/// The form from before CUDA 12 answers "not supported" for another number of nodes. It compares nodes in the order in
/// which they were made, edges first.
fn the_form_before_12(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let none = (REFUSED, Why::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, -1, -1);
    let topology = |node| (REFUSED, TOPOLOGY, node, -1);
    let kind = |node| (REFUSED, KIND, node, -1);
    for (old, new, wanted) in [
        ("K", "", none),
        ("S", "", none),
        ("", "S", none),
        ("K", "KK", none),
        ("SS", "S", none),
        ("KKK", "K|K", none),
        ("", "", FINE),
        ("K", "K", FINE),
        ("SK", "SK", FINE),
        ("K", "S", kind(0)),
        ("KK", "SS", kind(0)),
        ("KK", "KS", kind(1)),
        ("SSS", "KKK", kind(0)),
        ("K|S", "K|K", kind(1)),
        ("KK", "K|K", topology(0)),
        ("K|K", "KK", topology(0)),
        ("KK", "S|S", topology(0)),
        ("SSS", "KK|K", kind(0)),
        ("KKK", "KK|K", topology(1)),
        ("KK|K", "KKK", topology(1)),
    ] {
        let answer = update_before_12(&chains(t, &mem, old)?, &chains(t, &mem, new)?)?;
        t.eq(&format!("{old:?}, then {new:?}"), answer, wanted);
    }
    Ok(())
}

/// A graph of `kinds` less the nodes of these places, and a kernel after them if wanted.
fn less(t: &Checker, mem: &Mem, (kinds, places, one_more): (&str, &[usize], bool)) -> Result<Graph, Stop> {
    let graph = chains(t, mem, kinds)?;
    let nodes = graph.nodes()?;
    for place in places {
        ok("cuGraphDestroyNode", cu!(cuGraphDestroyNode(nodes[*place])))?;
    }
    if one_more {
        add_fill(t, &graph, &[], mem, 1)?;
    }
    Ok(graph)
}

/// The form from before CUDA 12 compares the places of all nodes that the two graphs ever had, and clones keep
/// them; today's form compares those that are left.
fn before_12_destroyed_nodes_count(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let number = (REFUSED, Why::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, -1, -1);
    let place = |node| (REFUSED, TOPOLOGY, node, -1);
    let four = "K|K|K|K";
    let no: &[usize] = &[];
    for (old, new, before_12, since_12) in [
        (("K|K|K", no, false), (four, &[3][..], false), number, FINE),
        (("K|K|K", no, false), (four, &[0], false), number, FINE),
        (("K|K|K", no, false), ("K|K|K|K|K", &[1, 3], false), number, FINE),
        (("KKK", no, false), ("KKKK", &[0], false), number, FINE),
        ((four, &[3], false), ("K|K|K", no, false), number, FINE),
        (("S|K", no, false), ("K|S|K", &[0], false), number, FINE),
        ((four, &[3], false), (four, &[3], false), FINE, FINE),
        ((four, &[0], false), (four, &[3], false), place(0), FINE),
        ((four, &[3], false), (four, no, false), place(3), place(-1)),
        ((four, no, false), (four, &[3], false), place(-1), place(-1)),
        ((four, no, false), (four, &[0], true), number, FINE),
        ((four, &[0], true), (four, no, false), number, FINE),
        (("", no, false), ("K", &[0], false), number, FINE),
        (("K", &[0], false), ("", no, false), number, FINE),
        (("K", &[0], false), ("K", no, false), place(0), place(-1)),
    ] {
        let (a, b) = (less(t, &mem, old)?, less(t, &mem, new)?);
        let name = format!("{old:?}, then {new:?}");
        t.eq(&name, update_before_12(&a, &b)?, before_12);
        t.eq(&format!("{name}, today's form"), update(&a, &b)?, since_12);
        t.eq(&format!("{name}, copies"), update_before_12(&a.copy()?, &b.copy()?)?.1, before_12.1);
    }
    // A node that is destroyed after the instantiate is missing in the graph alone.
    let (graph, same) = (chains(t, &mem, four)?, chains(t, &mem, four)?);
    let exec = graph.instantiate()?;
    ok("cuGraphDestroyNode", cu!(cuGraphDestroyNode(graph.nodes()?[3])))?;
    t.eq("destroyed after instantiate", answer(exec.update_before_12(&same)?, &same)?, FINE);
    Ok(())
}
