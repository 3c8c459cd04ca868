//! Operations that contain other operations: captures, and races of two threads.

use super::api::{Api, Dry, Status};
use super::model::{Facts, Model, Node, before};
use super::order::conflict;
use super::program::{BLOCKING, Id, LEGACY, Mode, Op, STREAMS, Step};
use super::work::Work;
use super::world::{Ends, MOST_NODES, Seen, World, text};
use std::collections::BTreeSet;

impl<A: Api> World<A> {
    pub(super) fn capture(&mut self, g: Id, s: usize, mode: Mode, body: &[Step]) -> Option<()> {
        self.room(g)?;
        (s < LEGACY && self.free(s)).then_some(())?;
        let status = self.api.begin_capture(s, mode);
        if !self.say(format!("begin {mode:?} capture on s{s}"), status) {
            return Some(());
        }
        self.model.capturing.insert(s);
        let (mut nodes, mut ends) = (Vec::new(), Ends::from([(s, BTreeSet::new())]));
        for step in body {
            match step {
                Step::Do { on, work } => {
                    if let Some(facts) = self.model.facts(work) {
                        self.captured(&mut nodes, &mut ends, (s, *on), work, facts, |api, work| {
                            api.put(*on, work, true)
                        });
                    }
                }
                Step::Launch { on, launch: e } => {
                    if let Some(exec) = self.model.exec(*e) {
                        let (work, facts) = (Work::Child { g: exec.graph }, exec.facts.clone());
                        let what = |api: &mut A, _: &Work| api.launch(*e, *on);
                        self.captured(&mut nodes, &mut ends, (s, *on), &work, facts, what);
                    }
                }
                Step::Join { join, from } if join != from && ends.contains_key(join) && ends.contains_key(from) => {
                    self.join(&mut ends, *from, *join);
                }
                Step::Join { .. } => {}
                Step::Other { meanwhile: op } => {
                    if !matches!(op, Op::Capture { .. } | Op::Race { .. } | Op::Open) {
                        self.run(op);
                    }
                }
            }
        }
        let others: Vec<usize> = ends.keys().copied().filter(|other| *other != s).collect();
        for other in others {
            if !ends[&other].is_subset(&before(&nodes, ends[&s].iter().copied())) {
                self.join(&mut ends, other, s);
            }
        }
        let status = self.api.end_capture(g, s);
        self.model.capturing.clear();
        if self.say(format!("end capture as g{g}"), status) {
            self.made(g, nodes);
        }
        Some(())
    }

    /// Puts work on a stream that captures, or that joins the capture with this work.
    fn captured(
        &mut self,
        nodes: &mut Vec<Node>,
        ends: &mut Ends,
        (origin, s): (usize, usize),
        work: &Work,
        facts: Facts,
        put: impl FnOnce(&mut A, &Work) -> Status,
    ) -> Option<()> {
        (s < LEGACY && nodes.len() < MOST_NODES && !matches!(work, Work::Empty)).then_some(())?;
        if !ends.contains_key(&s) {
            let status = self.api.link(origin, s);
            // If the fork fails, the capture has ended, and the work would run at once.
            self.say(format!("s{s} forks from s{origin}"), status).then_some(())?;
            self.model.capturing.insert(s);
            ends.insert(s, ends[&origin].clone());
        }
        loop {
            let mine = before(nodes, ends[&s].iter().copied());
            let beside = |n: &usize| !mine.contains(n) && conflict(&nodes[*n].facts.touched, &facts.touched);
            let Some(n) = (0..nodes.len()).find(beside) else { break };
            let (other, _) = ends.iter().find(|(_, end)| before(nodes, end.iter().copied()).contains(&n))?;
            self.join(ends, *other, s);
        }
        let mut work = work.clone();
        if let Some(k) = work.kernel_mut() {
            // The kernel may run beside the kernel before it, so only a kernel that touches no buffer is allowed.
            let alone = ends[&s].iter().all(|n| matches!(nodes[*n].work, Work::Spin { b: None, .. }));
            k.early &= alone && ends[&s].len() == 1;
        }
        let status = put(&mut self.api, &work);
        if self.say(format!("captured on s{s}: {}", text(&work)), status) {
            nodes.push(Node { work, after: ends[&s].clone(), facts, gone: false });
            ends.insert(s, BTreeSet::from([nodes.len() - 1]));
        }
        Some(())
    }

    fn join(&mut self, ends: &mut Ends, from: usize, join: usize) {
        let status = self.api.link(from, join);
        self.say(format!("s{join} joins s{from}"), status);
        let end = ends[&from].clone();
        ends.entry(join).or_default().extend(end);
    }

    pub(super) fn race(&mut self, a: &[Op], b: &[Op]) -> Option<()> {
        self.all_free().then_some(())?;
        self.open();
        let sides = [Side::of(self, a), Side::of(self, b)];
        if sides[0].disturbs(&sides[1]) || sides[1].disturbs(&sides[0]) {
            // The two sides are not well defined at the same time, so they run one after the other.
            for op in a.iter().chain(b).filter(|op| may_race(op)) {
                self.run(op);
            }
            return Some(());
        }
        // What either side touches must come after everything that was put on streams before.
        let used: BTreeSet<usize> = sides.iter().flat_map(|side| side.streams.iter().copied()).collect();
        for s in used {
            for of in (0..STREAMS).filter(|of| *of != s) {
                let status = self.api.link(of, s);
                if status != 0 {
                    self.say(format!("s{s} waits for s{of}"), status);
                }
                self.model.order.link(of, s);
            }
        }
        let barrier = std::sync::Barrier::new(2);
        let start = |ops: &'_ [Op]| {
            let mut world = World { trace: Vec::new(), seen: Vec::new(), done: 0, ..self.clone() };
            let ops: Vec<Op> = ops.iter().filter(|op| may_race(op)).cloned().collect();
            let barrier = &barrier;
            move || {
                world.api.enter();
                barrier.wait();
                for op in &ops {
                    world.run(op);
                }
                world
            }
        };
        let (first, second) = (start(a), start(b));
        let ended = std::thread::scope(|scope| {
            let second = scope.spawn(second);
            let first = scope.spawn(first);
            [first.join(), second.join()]
        });
        for (side, (name, world)) in sides.iter().zip(["a", "b"].into_iter().zip(ended)) {
            match world {
                Ok(world) => self.merge(side, name, world),
                Err(_) => self.trace.push(format!("{name}: panicked")),
            }
        }
        Some(())
    }

    /// Takes over the results of one side of a race.
    fn merge(&mut self, side: &Side, name: &str, world: World<A>) {
        let (graphs, execs): (Vec<Id>, Vec<Id>) =
            (side.graphs.iter().copied().collect(), side.changed.iter().copied().collect());
        self.api.take(&world.api, &graphs, &execs);
        for g in graphs {
            match world.model.graphs.get(&g) {
                Some(graph) => drop(self.model.graphs.insert(g, graph.clone())),
                None => drop(self.model.graphs.remove(&g)),
            }
        }
        for e in execs {
            match world.model.execs.get(&e) {
                Some(exec) => drop(self.model.execs.insert(e, exec.clone())),
                None => drop(self.model.execs.remove(&e)),
            }
        }
        for e in &side.launched {
            if let (Some(mine), Some(theirs)) = (self.model.execs.get_mut(e), world.model.execs.get(e)) {
                super::order::later(&mut mine.last, &theirs.last);
            }
        }
        self.model.order.merge(&world.model.order, |s| side.streams.contains(&s));
        self.model.skip_serials(&world.model);
        self.done += world.done;
        self.trace.extend(world.trace.into_iter().map(|line| format!("{name}: {line}")));
    }
}

/// Objects and memory that one side of a race uses.
struct Side {
    streams: BTreeSet<usize>,
    /// Graphs that this side uses or changes.
    graphs: BTreeSet<Id>,
    /// Execs that this side makes, changes or destroys.
    changed: BTreeSet<Id>,
    launched: BTreeSet<Id>,
    seen: Vec<Seen>,
}

impl Side {
    /// Finds what a side uses by running the side on the driver that does nothing.
    fn of<A: Api>(world: &World<A>, ops: &[Op]) -> Side {
        let mut dry = World::new(Dry);
        dry.model = world.model.clone();
        dry.model.doubt = true;
        let mut side = Side {
            streams: BTreeSet::new(),
            graphs: BTreeSet::new(),
            changed: BTreeSet::new(),
            launched: BTreeSet::new(),
            seen: Vec::new(),
        };
        for op in ops.iter().filter(|op| may_race(op)) {
            side.note(op, &dry.model);
            dry.run(op);
        }
        side.seen = dry.seen;
        side
    }

    fn note(&mut self, op: &Op, model: &Model) {
        let graph = |e: &Id| model.execs.get(e).map(|exec| exec.graph);
        match op {
            Op::Graph { g, nodes } => {
                self.graphs.insert(*g);
                self.graphs.extend(nodes.iter().filter_map(|node| child(&node.work)));
            }
            Op::Capture { g, s, body, .. } => {
                self.graphs.insert(*g);
                self.streams.insert(*s);
                for step in body {
                    match step {
                        Step::Do { on, .. } => drop(self.streams.insert(*on)),
                        Step::Other { meanwhile } => self.note(meanwhile, model),
                        Step::Launch { on, launch } => {
                            self.launched.insert(*launch);
                            self.streams.insert(*on);
                        }
                        Step::Join { .. } => {}
                    }
                }
            }
            Op::Clone { g, from } => self.graphs.extend([*g, *from]),
            Op::Query { g } | Op::DropGraph { g } => drop(self.graphs.insert(*g)),
            Op::Instantiate { e, g, .. } | Op::Update { e, g, .. } => {
                self.graphs.insert(*g);
                self.changed.insert(*e);
            }
            Op::SetExec { e, of, to, .. } => {
                self.changed.insert(*e);
                self.graphs.extend(of.iter().copied().chain(child(to)).chain(graph(e)));
            }
            Op::Enable { e, .. } | Op::Enabled { e, .. } => {
                self.changed.insert(*e);
                self.graphs.extend(graph(e));
            }
            Op::Flags { e } | Op::DropExec { e } => drop(self.changed.insert(*e)),
            Op::Upload { e, s } => {
                self.changed.insert(*e);
                self.streams.insert(*s);
            }
            Op::Launch { e, s } => {
                self.launched.insert(*e);
                self.streams.insert(*s);
            }
            Op::Do { s, .. } | Op::Sync { s } => drop(self.streams.insert(*s)),
            _ => {}
        }
    }

    /// True if this side must not run at the same time as the other.
    fn disturbs(&self, other: &Side) -> bool {
        let touch = |mine: &Seen| {
            other.seen.iter().any(|theirs| {
                let same_exec = mine.1.is_some() && mine.1 == theirs.1;
                !same_exec && conflict(&mine.0, &theirs.0)
            })
        };
        let legacy = |s: &usize| *s >= BLOCKING;
        !self.streams.is_disjoint(&other.streams)
            || (self.streams.iter().any(legacy) && other.streams.iter().any(legacy))
            || !self.graphs.is_disjoint(&other.graphs)
            || self.changed.iter().any(|e| other.changed.contains(e) || other.launched.contains(e))
            || self.seen.iter().any(touch)
    }
}

fn child(work: &Work) -> Option<Id> {
    match work {
        Work::Child { g } => Some(*g),
        _ => None,
    }
}

/// True if an operation may be part of a race at all.
fn may_race(op: &Op) -> bool {
    match op {
        Op::Capture { mode, body, .. } => {
            *mode != Mode::Global
                && body.iter().all(|step| !matches!(step, Step::Other { meanwhile } if !may_race(meanwhile)))
        }
        Op::Do { work, .. } => !matches!(work, Work::Record { .. } | Work::Wait { .. }),
        Op::Graph { .. }
        | Op::Clone { .. }
        | Op::Query { .. }
        | Op::DropGraph { .. }
        | Op::Instantiate { .. }
        | Op::Update { .. }
        | Op::SetExec { .. }
        | Op::Enable { .. }
        | Op::Enabled { .. }
        | Op::Flags { .. }
        | Op::DropExec { .. }
        | Op::Upload { .. }
        | Op::Launch { .. }
        | Op::Sync { .. } => true,
        _ => false,
    }
}
