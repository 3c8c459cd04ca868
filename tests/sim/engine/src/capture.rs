//! Stream capture: which calls it allows, and which destroy it.
//!
//! The table in the tests is the one measured on an H200 (driver 580).

use crate::error::{Error, Result};
use crate::graph;
use crate::handle::H;
use crate::lifecycle::thread_id;
use crate::machine::{Machine, lock};
use crate::node::{Kind, attr};
use crate::report;
use crate::stream::Member;

pub const GLOBAL: u32 = 0;
pub const THREAD_LOCAL: u32 = 1;
pub const RELAXED: u32 = 2;

type Deps = Vec<(H, [u8; 8])>;

pub struct Capture {
    pub graph: H,
    pub origin: H,
    pub mode: u32,
    pub thread: u64,
    pub invalid: bool,
    /// Captured into a graph that the program made itself.
    pub into: bool,
}

/// Starts capturing; into `into` if given, after `deps`.
pub fn begin(stream: H, mode: u32, into: Option<(H, Deps)>) -> Result {
    if mode > RELAXED {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    let s = m.stream(stream)?;
    if s.capture.is_some() {
        return Err(Error::ILLEGAL_STATE);
    }
    let ctx = s.ctx;
    if m.context(ctx)?.legacy == stream {
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    let (graph, deps, owned) = match into {
        Some((g, deps)) => {
            m.graph(g)?;
            (g, deps, true)
        }
        None => (graph::create(&mut m), Vec::new(), false),
    };
    let id = m.id();
    let thread = thread_id();
    m.captures.insert(id, Capture { graph, origin: stream, mode, thread, invalid: false, into: owned });
    m.stream(stream)?.capture = Some(Member { capture: id, deps });
    Ok(())
}

/// Ends the capture that began on `stream`. An invalidated one gives 901.
pub fn end(stream: H) -> Result<H> {
    let mut m = lock();
    let Some(id) = m.stream(stream)?.capture.as_ref().map(|c| c.capture) else {
        return Err(Error::ILLEGAL_STATE);
    };
    let Some(c) = m.captures.get(&id) else {
        m.stream(stream)?.capture = None;
        return Err(Error::CAPTURE_INVALIDATED);
    };
    if c.origin != stream {
        invalidate(&mut m, id);
        return Err(Error::CAPTURE_UNMATCHED);
    }
    // A call from another thread ends the capture as well, but gets no graph.
    let foreign = c.mode != RELAXED && c.thread != thread_id();
    let unjoined = !c.invalid && has_unjoined(&mut m, id, stream);
    for s in m.streams.values_mut() {
        if s.capture.as_ref().is_some_and(|c| c.capture == id) {
            s.capture = None;
        }
    }
    let c = m.captures.remove(&id).ok_or(Error::CAPTURE_INVALIDATED)?;
    if c.invalid || unjoined || foreign {
        if !c.into {
            graph::drop_graph(&mut m, c.graph);
        }
        let e = match (c.invalid, foreign) {
            (true, _) => Error::CAPTURE_INVALIDATED,
            (_, true) => Error::CAPTURE_WRONG_THREAD,
            _ => Error::CAPTURE_UNJOINED,
        };
        return Err(e);
    }
    Ok(c.graph)
}

/// True if some forked stream did work that never came back to the origin.
fn has_unjoined(m: &mut Machine, id: u64, origin: H) -> bool {
    let ends = |h: &H| m.streams[h].capture.iter().flat_map(|c| c.deps.iter().map(|d| d.0)).collect::<Vec<_>>();
    let members = m.streams.iter().filter(|(_, s)| s.capture.as_ref().is_some_and(|c| c.capture == id));
    let others: Vec<H> = members.map(|(h, _)| *h).filter(|h| *h != origin).collect();
    let mut reach = std::collections::HashSet::new();
    let mut todo = ends(&origin);
    while let Some(n) = todo.pop() {
        if reach.insert(n)
            && let Some(node) = m.nodes.get(&n)
        {
            todo.extend(node.deps.iter().map(|d| d.0));
        }
    }
    others.iter().any(|h| ends(h).iter().any(|n| !reach.contains(n)))
}

/// Returns true if the stream captures. An invalidated capture gives 901.
pub fn active(m: &mut Machine, stream: H) -> Result<bool> {
    let Some(id) = m.stream(stream)?.capture.as_ref().map(|c| c.capture) else {
        return Ok(false);
    };
    match m.captures.get(&id) {
        Some(c) if c.invalid => Err(Error::CAPTURE_INVALIDATED),
        Some(_) => Ok(true),
        None => {
            m.stream(stream)?.capture = None;
            Ok(false)
        }
    }
}

/// Data of an edge over which the second kernel may start before the first is
/// over: an edge from the programmatic port, of the programmatic type.
const PROGRAMMATIC: [u8; 8] = [1, 0, 1, 0, 0, 0, 0, 0];

/// Adds a node after the stream's last captured nodes.
pub fn add(m: &mut Machine, stream: H, mut kind: Kind) -> Result<H> {
    let s = m.stream(stream)?;
    let member = s.capture.as_ref().ok_or(Error::ILLEGAL_STATE)?;
    let (id, mut deps) = (member.capture, member.deps.clone());
    let g = m.captures.get(&id).ok_or(Error::CAPTURE_INVALIDATED)?.graph;
    if let Kind::Kernel(k) = &kind
        && k.attrs.get(&attr::PROGRAMMATIC_SERIALIZATION).is_some_and(|v| v[0] != 0)
    {
        for (from, data) in &mut deps {
            if matches!(graph::node(m, *from)?.kind, Kind::Kernel(_)) {
                *data = PROGRAMMATIC;
            }
        }
    }
    if let Kind::Kernel(k) = &mut kind {
        k.attrs.remove(&attr::PROGRAMMATIC_SERIALIZATION);
    }
    let node = graph::add_node(m, g, &deps, kind)?;
    if let Some(c) = m.stream(stream)?.capture.as_mut() {
        c.deps = vec![(node, [0; 8])];
    }
    Ok(node)
}

/// Makes `stream` a member of capture `id`, or joins a fork back.
pub fn join(m: &mut Machine, stream: H, id: u64, deps: Deps) -> Result {
    if !m.captures.contains_key(&id) {
        return Err(Error::INVALID_VALUE);
    }
    let s = m.stream(stream)?;
    match s.capture.as_mut() {
        Some(c) if c.capture == id => {
            let new = deps.into_iter().filter(|d| !c.deps.contains(d)).collect::<Vec<_>>();
            c.deps.extend(new);
            Ok(())
        }
        Some(other) => {
            let other = other.capture;
            invalidate(m, id);
            invalidate(m, other);
            Err(Error::CAPTURE_MERGE)
        }
        None => {
            let ctx = s.ctx;
            if m.context(ctx)?.legacy == stream {
                invalidate(m, id);
                return Err(Error::CAPTURE_IMPLICIT);
            }
            m.stream(stream)?.capture = Some(Member { capture: id, deps });
            Ok(())
        }
    }
}

pub fn invalidate(m: &mut Machine, id: u64) {
    if let Some(c) = m.captures.get_mut(&id)
        && !std::mem::replace(&mut c.invalid, true)
    {
        report::violation("capture_disturbed", &format!("capture {id} was invalidated by a call"));
    }
}

pub fn invalidate_of(m: &mut Machine, stream: H) {
    if let Some(id) = m.streams.get(&stream).and_then(|s| s.capture.as_ref()).map(|c| c.capture) {
        invalidate(m, id);
    }
}

/// A stream is destroyed while it captures. The capture ends with it.
pub fn leave(m: &mut Machine, stream: H) {
    let Some(id) = m.streams.get(&stream).and_then(|s| s.capture.as_ref()).map(|c| c.capture) else {
        return;
    };
    invalidate(m, id);
    if m.captures.get(&id).is_some_and(|c| c.origin == stream)
        && let Some(c) = m.captures.remove(&id)
        && !c.into
    {
        graph::drop_graph(m, c.graph);
    }
}

/// Calls that may wait without the capture seeing it: cudaMalloc, cudaFree,
/// synchronising another stream, ... What is forbidden depends on the mode of
/// the captures and on the calling thread's own mode.
pub fn forbid_unsafe(m: &mut Machine) -> Result {
    let me = thread_id();
    let mode = m.thread().capture_mode;
    if mode == RELAXED || m.captures.is_empty() {
        return Ok(());
    }
    let hit = |c: &Capture| {
        let mine = c.thread == me && c.mode != RELAXED;
        let anyone = mode == GLOBAL && c.mode == GLOBAL;
        !c.invalid && (mine || anyone)
    };
    // Not measured: a capture that is already invalidated forbids as well.
    let hits: Vec<u64> = m.captures.iter().filter(|(_, c)| hit(c)).map(|(id, _)| *id).collect();
    if hits.is_empty() {
        return Ok(());
    }
    hits.into_iter().for_each(|id| invalidate(m, id));
    Err(Error::CAPTURE_UNSUPPORTED)
}

/// cuCtxSynchronize and cuCtxRecordEvent: any capture in the context, in any
/// mode, gives 900 and is invalidated.
pub fn forbid_in_context(m: &mut Machine, ctx: H) -> Result {
    let inside = |c: &Capture| m.streams.get(&c.origin).is_some_and(|s| s.ctx == ctx);
    let hits: Vec<u64> = m.captures.iter().filter(|(_, c)| inside(c)).map(|(id, _)| *id).collect();
    if hits.is_empty() {
        return Ok(());
    }
    hits.into_iter().for_each(|id| invalidate(m, id));
    Err(Error::CAPTURE_UNSUPPORTED)
}

/// HIP's calls that wait for the device: any capture of the process, in any mode and on any device, makes them fail
/// and is invalidated (ROCm/clr 6.4.3, hipamd/src/hip_internal.hpp: `CHECK_SUPPORTED_DURING_CAPTURE` gives 900,
/// `CHECK_STREAM_CAPTURING` 906).
pub fn forbid_any(m: &mut Machine, error: Error) -> Result {
    let hits: Vec<u64> = m.captures.keys().copied().collect();
    if hits.is_empty() {
        return Ok(());
    }
    hits.into_iter().for_each(|id| invalidate(m, id));
    Err(error)
}

/// Work in the legacy default stream would be ordered after the work of blocking
/// streams. If one of them captures, the answer is 906.
pub fn forbid_implicit(m: &mut Machine, stream: H) -> Result {
    if m.captures.is_empty() {
        return Ok(());
    }
    let ctx = m.stream(stream)?.ctx;
    if m.context(ctx)?.legacy != stream {
        return Ok(());
    }
    let members = m.streams.values().filter(|s| s.ctx == ctx && s.blocking());
    let hits: Vec<u64> = members.filter_map(|s| s.capture.as_ref().map(|c| c.capture)).collect();
    let hits: Vec<u64> = hits.into_iter().filter(|id| m.captures.get(id).is_some_and(|c| !c.invalid)).collect();
    if hits.is_empty() {
        return Ok(());
    }
    hits.into_iter().for_each(|id| invalidate(m, id));
    Err(Error::CAPTURE_IMPLICIT)
}

/// Sets the calling thread's mode and gives the one before.
pub fn exchange_mode(mode: u32) -> Result<u32> {
    if mode > RELAXED {
        return Err(Error::INVALID_VALUE);
    }
    Ok(std::mem::replace(&mut lock().thread().capture_mode, mode))
}

/// Facts about a capture that a program can ask for.
pub struct Info {
    /// 0 none, 1 active, 2 invalidated.
    pub status: u32,
    pub id: u64,
    pub graph: H,
    pub deps: Deps,
}

pub fn info(stream: H) -> Result<Info> {
    let mut m = lock();
    let none = Info { status: 0, id: 0, graph: 0, deps: Vec::new() };
    let Some(member) = m.stream(stream)?.capture.as_ref() else {
        forbid_implicit_query(&mut m, stream)?;
        return Ok(none);
    };
    let (id, deps) = (member.capture, member.deps.clone());
    Ok(match m.captures.get(&id) {
        Some(c) if c.invalid => Info { status: 2, id, graph: 0, deps: Vec::new() },
        Some(c) => Info { status: 1, id, graph: c.graph, deps },
        None => none,
    })
}

/// A question about the legacy stream while a blocking stream captures gives 906 as well,
/// but invalidates nothing.
fn forbid_implicit_query(m: &mut Machine, stream: H) -> Result {
    let ctx = m.stream(stream)?.ctx;
    let legacy = m.context(ctx)?.legacy == stream;
    let hit = |s: &crate::stream::Stream| s.ctx == ctx && s.blocking() && s.capture.is_some();
    if legacy && m.streams.values().any(hit) {
        return Err(Error::CAPTURE_IMPLICIT);
    }
    Ok(())
}

/// Replaces (`set`) or extends what the stream's next node depends on.
pub fn update_deps(stream: H, deps: Deps, set: bool) -> Result {
    let mut m = lock();
    if !active(&mut m, stream)? {
        return Err(Error::ILLEGAL_STATE);
    }
    if let Some(c) = m.stream(stream)?.capture.as_mut() {
        if set {
            c.deps = deps;
        } else {
            c.deps.extend(deps);
        }
    }
    Ok(())
}
