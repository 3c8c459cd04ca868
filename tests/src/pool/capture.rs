//! Captures, and launches of what was captured.

use super::program::{Id, Op, STREAMS};
use super::world::{Buffer, World};
use crate::conformance::cu;
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use std::ptr::null_mut;

/// A kernel of a graph that fills a buffer's first words, or its last.
#[derive(Clone, Debug)]
pub struct Fill {
    p: Id,
    /// Which of the buffers that had this number.
    made: u64,
    v: u32,
    end: bool,
}

pub struct Capture {
    fills: Vec<Fill>,
}

pub struct Graph {
    pub c: usize,
    exec: usize,
    fills: Vec<Fill>,
}

fn mode(of: u32) -> Mode {
    match of {
        0 => Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        1 => Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        _ => Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
    }
}

impl World {
    pub(super) fn captured(&mut self, t: usize, op: &Op) -> Option<()> {
        match *op {
            Op::Begin { s, mode: of } => {
                let context = self.of_stream(s)?.clone();
                // The legacy stream cannot capture; that has no part here.
                (!s.is_multiple_of(STREAMS) && !self.captures.contains_key(&s)).then_some(())?;
                if !self.capturing() {
                    self.sync_all();
                }
                let status = cu!(cuStreamBeginCapture_v2(context.stream(s), mode(of)));
                if self.say(format!("begin a capture of stream {s}, mode {of}"), status) {
                    self.captures.insert(s, Capture { fills: Vec::new() });
                }
            }
            Op::End { s, g } => {
                self.captures.contains_key(&s).then_some(())?;
                self.end(s, Some(g).filter(|g| !self.graphs.contains_key(g)));
            }
            Op::Launch { g, s } => self.launch(g, s)?,
            Op::DropGraph { g } => {
                self.graphs.contains_key(&g).then_some(())?;
                self.drop_graph(g);
            }
            Op::Exchange { mode: to } => {
                let mut old = mode(to);
                let status = cu!(cuThreadExchangeStreamCaptureMode(&mut old));
                self.say(format!("thread {t}: mode {to}, before {}", old as u32), status);
            }
            _ => return None,
        }
        Some(())
    }

    pub(super) fn fill_captured(&mut self, p: Id, of: &Buffer, s: usize, at: u64, v: u32, end: bool) -> Option<()> {
        let context = self.of_stream(s)?.clone();
        let status = context.within(|| context.fill(s, at, of.words(), v));
        if self.say(format!("capture a fill of {p} with {v} on stream {s}"), status) {
            self.captures.get_mut(&s)?.fills.push(Fill { p, made: of.made, v, end });
        }
        Some(())
    }

    /// All that a graph writes is still what it was.
    fn alive(&self, fills: &[Fill]) -> bool {
        fills.iter().all(|f| self.buffers.get(&f.p).is_some_and(|b| b.live && b.made == f.made))
    }

    pub(super) fn end(&mut self, s: usize, g: Option<Id>) {
        let (Some(capture), Some(context)) = (self.captures.remove(&s), self.of_stream(s).cloned()) else { return };
        let mut graph: sys::CUgraph = null_mut();
        let status = cu!(cuStreamEndCapture(context.stream(s), &mut graph));
        if !self.say(format!("end the capture of stream {s}"), status) {
            return;
        }
        let kept = g.filter(|_| self.alive(&capture.fills));
        if let Some(g) = kept {
            let mut exec = null_mut();
            let status = context.within(|| cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)));
            if self.say(format!("instantiate as {g}"), status) {
                self.graphs.insert(g, Graph { c: s / STREAMS, exec: exec as usize, fills: capture.fills });
            }
        }
        let status = cu!(cuGraphDestroy(graph));
        self.say("destroy its graph", status);
    }

    fn launch(&mut self, g: Id, s: usize) -> Option<()> {
        let graph = self.graphs.get(&g)?;
        let (exec, fills) = (graph.exec as sys::CUgraphExec, graph.fills.clone());
        (graph.c == s / STREAMS && self.alive(&fills) && !self.captures.contains_key(&s)).then_some(())?;
        for fill in &fills {
            let last = self.buffers.get(&fill.p)?.last;
            self.follow(last, s).then_some(())?;
        }
        let context = self.of_stream(s)?.clone();
        let status = context.within(|| cu!(cuGraphLaunch(exec, context.stream(s))));
        if self.say(format!("launch {g} on stream {s}"), status) {
            for fill in fills {
                self.wrote(fill.p, s, |b| if fill.end { b.end = Some(fill.v) } else { b.head = Some(fill.v) });
            }
        }
        Some(())
    }

    pub(super) fn drop_graph(&mut self, g: Id) {
        if let Some(graph) = self.graphs.remove(&g) {
            let status = cu!(cuGraphExecDestroy(graph.exec as sys::CUgraphExec));
            self.say(format!("destroy {g}"), status);
        }
    }
}
