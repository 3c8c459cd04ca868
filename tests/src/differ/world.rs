//! Runs a program. It leaves out operations that are not well defined, waits where accesses would race, and writes down
//! the answer of each call.

use super::api::{Api, NO_FUNCTION, Status};
use super::model::{Facts, Graph, Model, Node};
use super::order::{Clock, Touched, later};
use super::program::{BLOCKING, Id, LEGACY, Op, STREAMS};
use super::work::Work;
use std::collections::{BTreeMap, BTreeSet};

/// The line for a gate that is opened.
pub const OPEN: &str = "open";
/// The line for a gate that nobody had opened in time.
pub const STOOD_STILL: &str = "open: something had stood still";
/// The most nodes of a graph. Small graphs make the search for races cheap.
pub const MOST_NODES: usize = 48;
/// Graphs and execs that there may be at once.
pub const MOST: usize = 96;

/// An access by one side of a race: the buffers, and the exec if an exec made the access.
pub type Seen = (Touched, Option<Id>);

#[derive(Clone)]
pub struct World<A: Api> {
    pub api: A,
    pub model: Model,
    /// The trace: a line for each call.
    pub trace: Vec<String>,
    /// Accesses that were put on streams. They are kept only during a race.
    pub seen: Vec<Seen>,
    /// How many operations were done and not left out.
    pub done: usize,
}

impl<A: Api> World<A> {
    pub fn new(api: A) -> Self {
        Self { api, model: Model::new(), trace: Vec::new(), seen: Vec::new(), done: 0 }
    }

    pub fn say(&mut self, what: String, status: Status) -> bool {
        let text = if status == NO_FUNCTION { "no such function".into() } else { status.to_string() };
        self.trace.push(format!("{what} = {text}"));
        status == 0
    }

    pub fn tell(&mut self, what: String, (status, told): (Status, String)) -> bool {
        let done = self.say(what, status);
        if let Some(line) = self.trace.last_mut()
            && !told.is_empty()
        {
            line.push_str(", ");
            line.push_str(&told);
        }
        done
    }

    /// Does one operation; false if it was left out.
    pub fn run(&mut self, op: &Op) -> bool {
        let done = self.run_op(op).is_some();
        self.done += usize::from(done);
        done
    }

    fn run_op(&mut self, op: &Op) -> Option<()> {
        match op {
            Op::Graph { g, nodes } => self.graph(*g, nodes),
            Op::Capture { g, s, mode, body } => self.capture(*g, *s, *mode, body),
            Op::Clone { g, from } => {
                self.room(*g)?;
                let nodes = self.model.graph(*from)?.nodes.clone();
                let status = self.api.clone_graph(*g, *from);
                if self.say(format!("clone g{from} as g{g}"), status) {
                    self.made(*g, nodes);
                }
                Some(())
            }
            Op::Add { g, node } => self.add(*g, node),
            Op::Remove { .. }
            | Op::Edge { .. }
            | Op::Set { .. }
            | Op::Attributes { .. }
            | Op::CopyAttributes { .. } => self.change(op),
            Op::Query { g } => {
                let nodes = &self.model.graph(*g)?.nodes;
                let live: Vec<usize> = (0..nodes.len()).filter(|n| !nodes[*n].gone).collect();
                let lines = self.api.query(*g, &live);
                self.trace.extend(lines.into_iter().map(|line| format!("query g{g}: {line}")));
                Some(())
            }
            Op::DropGraph { g } => {
                self.model.graphs.get(g)?;
                let status = self.api.drop_graph(*g);
                if self.say(format!("destroy g{g}"), status) {
                    self.model.graphs.remove(g);
                }
                Some(())
            }
            Op::Instantiate { e, g, how, flags, s } => {
                let new = !self.model.execs.contains_key(e) && self.model.execs.len() < MOST && *s < STREAMS;
                self.model.graph(*g).filter(|_| new)?;
                let told = self.api.instantiate(*e, *g, *how, *flags, *s);
                if self.tell(format!("instantiate g{g} as e{e} ({how:?}, flags {flags})"), told) {
                    self.model.instantiated(*e, *g);
                }
                Some(())
            }
            Op::Update { e, g, v } => {
                self.model.exec(*e)?;
                self.model.graph(*g)?;
                let told = self.api.update(*e, *g, *v);
                if self.tell(format!("update e{e} from g{g} (v{v})"), told) {
                    self.model.updated(*e, *g);
                }
                Some(())
            }
            Op::SetExec { .. } => self.set_exec(op),
            Op::Enable { e, n, on } => {
                let g = self.exec_node(*e, *n)?;
                let status = self.api.enable(*e, g, *n, *on);
                self.say(format!("e{e} node {n} enabled {on}"), status);
                Some(())
            }
            Op::Enabled { e, n } => {
                let g = self.exec_node(*e, *n)?;
                let told = self.api.enabled(*e, g, *n);
                self.tell(format!("e{e} node {n} enabled?"), told);
                Some(())
            }
            Op::Flags { e } => {
                self.model.exec(*e)?;
                let told = self.api.flags(*e);
                self.tell(format!("e{e} flags?"), told);
                Some(())
            }
            Op::Upload { e, s } => {
                self.model.exec(*e).filter(|_| self.free(*s))?;
                let status = self.api.upload(*e, *s);
                self.say(format!("upload e{e} on s{s}"), status);
                Some(())
            }
            Op::Launch { e, s } => self.launch(*e, *s),
            Op::DropExec { e } => {
                self.model.execs.get(e)?;
                let status = self.api.drop_exec(*e);
                if self.say(format!("destroy e{e}"), status) {
                    self.model.execs.remove(e);
                }
                Some(())
            }
            Op::Load { m } => {
                (!self.model.modules.contains_key(m) && *m < 8 && self.all_free()).then_some(())?;
                self.open();
                let status = self.api.load(*m);
                if self.say(format!("load m{m}"), status) {
                    self.model.load(*m);
                }
                Some(())
            }
            Op::Unload { m } => {
                (self.model.modules.contains_key(m) && *m > 0 && self.all_free()).then_some(())?;
                self.sync_all();
                let status = self.api.unload(*m);
                self.say(format!("unload m{m}"), status);
                self.model.modules.remove(m);
                Some(())
            }
            Op::Do { s, work } => {
                let facts = self.model.facts(work)?;
                (self.free(*s) && !matches!(work, Work::Child { .. } | Work::Empty)).then_some(())?;
                self.ready(*s, &Clock::default(), &facts)?;
                let status = self.api.put(*s, work, false);
                self.say(format!("{} on s{s}", text(work)), status);
                match work {
                    Work::Record { ev } => self.model.order.record((*ev).into(), *s),
                    Work::Wait { ev } => self.model.order.wait((*ev).into(), *s),
                    _ => drop(self.put(*s, &Clock::default(), &facts, None)),
                }
                Some(())
            }
            Op::Sync { s } => {
                (*s < STREAMS && !self.model.capturing.contains(s)).then_some(())?;
                self.all_free().then_some(()).or((*s < LEGACY).then_some(()))?;
                self.sync(*s);
                Some(())
            }
            Op::SyncAll => {
                self.all_free().then_some(())?;
                self.sync_all();
                Some(())
            }
            Op::Dump => {
                self.all_free().then_some(())?;
                self.sync_all();
                let lines = self.api.dump();
                self.trace.extend(lines);
                Some(())
            }
            Op::Gate { s } => {
                (*s < BLOCKING && self.all_free() && !self.model.order.gated()).then_some(())?;
                let status = self.api.gate(*s);
                if self.say(format!("gate s{s}"), status) {
                    self.model.order.close_gate(*s);
                }
                Some(())
            }
            Op::Open => self.open().then_some(()),
            Op::Race { a, b } => self.race(a, b),
            Op::Reset => {
                self.all_free().then_some(())?;
                self.reset();
                Some(())
            }
        }
    }

    /// Returns `None` if there may not be a graph of that number.
    pub fn room(&self, g: Id) -> Option<()> {
        (!self.model.graphs.contains_key(&g) && self.model.graphs.len() < MOST).then_some(())
    }

    pub fn made(&mut self, g: Id, nodes: Vec<Node>) {
        let serial = self.model.serial();
        self.model.graphs.insert(g, Graph { serial, nodes });
    }

    /// True if the program may put work on this stream now.
    pub fn free(&self, s: usize) -> bool {
        let implicit = !self.model.capturing.is_empty() && s >= BLOCKING;
        s < STREAMS && !self.model.capturing.contains(&s) && !implicit
    }

    pub fn all_free(&self) -> bool {
        self.model.capturing.is_empty()
    }

    /// Makes the stream wait for all work that this work must not run beside.
    fn ready(&mut self, s: usize, also: &Clock, facts: &Facts) -> Option<()> {
        if (facts.waits || facts.host) && self.model.order.gated() && !self.all_free() {
            return None;
        }
        if facts.waits {
            self.open();
        }
        let missing = self.model.order.missing(s, also, &facts.touched);
        (!missing.iter().any(|of| !self.free(*of))).then_some(())?;
        for of in missing {
            let status = self.api.link(of, s);
            self.say(format!("s{s} waits for s{of}"), status);
            self.model.order.link(of, s);
        }
        Some(())
    }

    fn put(&mut self, s: usize, also: &Clock, facts: &Facts, by: Option<Id>) -> Clock {
        let clock = self.model.order.put(s, also, &facts.touched);
        self.seen.push((facts.touched.clone(), by));
        facts.records.iter().for_each(|ev| self.model.order.forget_event((*ev).into()));
        if facts.host {
            self.model.order.put_host(s);
        }
        clock
    }

    fn launch(&mut self, e: Id, s: usize) -> Option<()> {
        let exec = self.model.exec(e).filter(|_| self.free(s))?;
        let (facts, last) = (exec.facts.clone(), exec.last);
        self.ready(s, &last, &facts)?;
        let status = self.api.launch(e, s);
        if self.say(format!("launch e{e} on s{s}"), status) {
            let also = if facts.runs { last } else { Clock::default() };
            let over = self.put(s, &also, &facts, Some(e));
            if facts.runs
                && let Some(exec) = self.model.execs.get_mut(&e)
            {
                later(&mut exec.last, &over);
            }
        }
        Some(())
    }

    fn sync(&mut self, s: usize) {
        if self.model.order.behind_gate(s) {
            self.open();
        }
        let status = self.api.sync(s);
        self.say(format!("synchronize s{s}"), status);
        if status == 0 {
            self.model.order.synced(s);
        }
    }

    pub fn sync_all(&mut self) {
        self.open();
        let status = self.api.sync_all();
        self.say("synchronize".into(), status);
        self.model.order.all_synced();
    }

    /// Opens the gate if it is closed.
    pub fn open(&mut self) -> bool {
        let closed = self.model.order.open_gate();
        if closed {
            let stuck = self.api.open();
            self.trace.push(if stuck { STOOD_STILL.into() } else { OPEN.into() });
        }
        closed
    }

    /// Destroys everything, so that the world is as at the beginning.
    pub fn reset(&mut self) {
        self.sync_all();
        let (execs, graphs) = (self.model.execs.keys().copied(), self.model.graphs.keys().copied());
        let (execs, graphs): (Vec<_>, Vec<_>) = (execs.collect(), graphs.collect());
        let modules: Vec<Id> = self.model.modules.keys().copied().filter(|m| *m > 0).collect();
        let all = execs.into_iter().map(|e| Op::DropExec { e });
        let all = all.chain(graphs.into_iter().map(|g| Op::DropGraph { g }));
        for op in all.chain(modules.into_iter().map(|m| Op::Unload { m })) {
            self.run_op(&op);
        }
        self.model = Model::new();
        self.api.fresh();
    }
}

/// Work as a program writes it.
pub fn text(work: &Work) -> String {
    serde_json::to_string(work).unwrap_or_default()
}

/// The last captured nodes of each stream of a capture.
pub type Ends = BTreeMap<usize, BTreeSet<usize>>;
