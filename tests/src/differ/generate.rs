//! Generates programs. The kind of a program says which part of the API it uses most. Each operation is first tried on
//! the driver that does nothing, so that most operations are well defined.

use super::api::Dry;
use super::program::{BLOCKING, How, Id, LEGACY, Line, Mode, NewNode, Op, Program, STREAMS, Step, THREADS};
use super::random::Random;
use super::work::{Kernel, Work};
use super::world::World;

/// Which part of the API a program uses most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Graphs of few shapes, many execs, launched by turns.
    Churn,
    /// Captures, updates, and new execs where an update is refused.
    Updates,
    /// Nodes set and disabled.
    Setters,
    /// Modules that come and go.
    Modules,
    /// Two threads at once, and streams that are held up.
    Races,
    /// Few execs, launched on all streams while these are slow.
    Order,
    Mixed,
}

const KINDS: [Kind; 7] =
    [Kind::Churn, Kind::Updates, Kind::Setters, Kind::Modules, Kind::Races, Kind::Order, Kind::Mixed];

/// A shape: nodes in the order in which they are made. Buffers are filled in later.
pub(super) type Shape = Vec<NewNode>;

pub(super) struct Maker {
    pub(super) random: Random,
    pub(super) kind: Kind,
    pub(super) world: World<Dry>,
    pub(super) shapes: Vec<Shape>,
    program: Program,
    threads: usize,
    /// Captured steps, to be captured again with other values.
    bodies: Vec<Vec<Step>>,
}

/// The program of a seed, of about so many operations.
pub fn program(seed: u64, length: usize) -> Program {
    let mut random = Random::new(seed);
    let kind = *random.pick(&KINDS);
    let threads = if random.chance(30) { THREADS } else { 1 };
    let (world, shapes, bodies) = (World::new(Dry), Vec::new(), Vec::new());
    let mut maker = Maker { random, kind, world, shapes, program: Program::default(), threads, bodies };
    let shapes = 1 + maker.random.below(3);
    for _ in 0..shapes {
        let shape = maker.shape();
        maker.shapes.push(shape);
    }
    let length = length / 2 + maker.random.below(length.max(2));
    while maker.program.0.len() < length {
        maker.next();
    }
    maker.push(Op::Dump);
    maker.program
}

impl Maker {
    /// Adds an operation if it can be done.
    fn push(&mut self, op: Op) -> bool {
        let done = self.world.run(&op);
        if done {
            let t = if self.threads > 1 && self.random.chance(25) { self.random.below(self.threads) } else { 0 };
            self.program.0.push(Line { t, op });
        }
        done
    }

    fn free_graph(&self) -> Id {
        (0..).find(|g| !self.world.model.graphs.contains_key(g)).unwrap_or(0)
    }

    fn free_exec(&self) -> Id {
        (0..).find(|e| !self.world.model.execs.contains_key(e)).unwrap_or(0)
    }

    fn graph(&mut self) -> Option<Id> {
        let all: Vec<Id> = self.world.model.graphs.keys().copied().collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    fn exec(&mut self) -> Option<Id> {
        let all: Vec<Id> = self.world.model.execs.keys().copied().collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    fn stream(&mut self) -> usize {
        if self.kind == Kind::Order {
            return self.random.below(STREAMS);
        }
        match self.random.below(12) {
            0 => LEGACY,
            1 => BLOCKING,
            2..7 => 0,
            _ => self.random.below(BLOCKING),
        }
    }

    fn new_graph(&mut self) -> Op {
        let g = self.free_graph();
        let captured = if self.kind == Kind::Updates { 75 } else { 45 };
        if !self.random.chance(captured) {
            return Op::Graph { g, nodes: self.dressed() };
        }
        let s = if self.random.chance(85) { self.random.below(BLOCKING) } else { BLOCKING };
        let mode = *self.random.pick(&[Mode::Relaxed, Mode::Relaxed, Mode::ThreadLocal, Mode::Global]);
        let body = if !self.bodies.is_empty() && self.random.chance(40) { self.body_again() } else { self.body(s) };
        Op::Capture { g, s, mode, body }
    }

    fn body(&mut self, s: usize) -> Vec<Step> {
        let forks = self.random.chance(40);
        let mut body = Vec::new();
        for node in self.dressed() {
            let on = if forks && self.random.chance(50) { self.random.below(LEGACY) } else { s };
            body.push(Step::Do { on, work: node.work });
            if self.random.chance(10) {
                body.push(Step::Join { join: self.random.below(LEGACY), from: self.random.below(LEGACY) });
            }
            if self.random.chance(6) {
                let k = Kernel { early: true, ..Kernel::default() };
                body.push(Step::Do { on, work: Work::Spin { us: 10, b: None, k: Kernel::default() } });
                body.push(Step::Do { on, work: Work::Fill { b: self.device(), v: self.value(), n: 8, at: 0, k } });
            }
        }
        if self.random.chance(50) {
            self.bodies.push(body.clone());
        }
        if self.random.chance(3) {
            let (b, v) = (self.device(), self.value());
            body.push(Step::Do { on: s, work: Work::Temporary { b, v, n: 16 } });
        }
        if self.random.chance(1)
            && let Some(launch) = self.exec()
        {
            body.push(Step::Launch { on: s, launch });
        }
        if self.random.chance(20) {
            let meanwhile = self.beside();
            let at = self.random.below(body.len() + 1);
            body.splice(at..at, meanwhile.map(|meanwhile| Step::Other { meanwhile }));
        }
        body
    }

    fn body_again(&mut self) -> Vec<Step> {
        let mut body = {
            let bodies = &self.bodies;
            self.random.pick(bodies).clone()
        };
        for step in &mut body {
            if let Step::Do { work, .. } = step
                && self.random.chance(60)
            {
                self.other_values(work);
            }
        }
        body
    }

    /// An operation that is allowed while a stream captures.
    fn beside(&mut self) -> Option<Op> {
        match self.random.below(8) {
            0..5 => Some(Op::Launch { e: self.exec()?, s: self.random.below(BLOCKING) }),
            5 => Some(Op::Update { e: self.exec()?, g: self.graph()?, v: 2 }),
            6 => Some(Op::DropExec { e: self.exec()? }),
            _ => Some(Op::Instantiate { e: self.free_exec(), g: self.graph()?, how: How::Flags, flags: 0, s: 0 }),
        }
    }

    fn instantiate(&mut self, g: Id) -> Op {
        let how = *self.random.pick(&[How::Flags, How::Flags, How::Params, How::Log]);
        let flags = match (how, self.random.below(10)) {
            (How::Log, _) => 0,
            (_, 0) => 1,
            (_, 1) => 8,
            (_, 2) => 9,
            (How::Params, 3 | 4) => 2,
            (_, 5) if self.random.chance(10) => 4,
            _ => 0,
        };
        Op::Instantiate { e: self.free_exec(), g, how, flags, s: self.random.below(BLOCKING) }
    }

    /// A change of one node of an exec. Mostly the node keeps its kind and gets other values.
    fn set_exec(&mut self) -> Option<Op> {
        let e = self.exec()?;
        let nodes = self.world.model.execs.get(&e)?.nodes.clone().unwrap_or_default();
        let n = self.random.below(nodes.len().max(1));
        let to = match nodes.get(n) {
            Some(node) if self.random.chance(85) => self.varied(&node.work),
            _ => self.work(),
        };
        let of = if self.random.chance(5) { self.graph() } else { None };
        Some(Op::SetExec { e, n, to, any: self.random.chance(25), of })
    }

    fn varied(&mut self, work: &Work) -> Work {
        let mut work = work.clone();
        self.other_values(&mut work);
        if self.random.chance(40) {
            let new = self.device();
            if let Some(buf) = work.bufs_mut().into_iter().find(|buf| buf.is_device()) {
                *buf = new;
            }
        }
        if let Work::Child { g } = &mut work
            && let Some(other) = self.graph()
        {
            *g = other;
        }
        work
    }

    fn next(&mut self) {
        if let Some(op) = self.choose() {
            let launched = match &op {
                Op::Instantiate { e, .. } => Some(*e),
                _ => None,
            };
            let done = self.push(op);
            if let (true, Some(e)) = (done, launched) {
                if self.random.chance(25) {
                    // ggml updates an exec right after it was instantiated.
                    let g = self.world.model.execs.get(&e).map_or(0, |exec| exec.graph);
                    self.push(Op::Update { e, g, v: 2 });
                }
                if self.random.chance(15) {
                    // PyTorch destroys the graph at once.
                    let g = self.world.model.execs.get(&e).map_or(0, |exec| exec.graph);
                    self.push(Op::DropGraph { g });
                }
                if self.random.chance(60) {
                    let s = self.stream();
                    self.push(Op::Launch { e, s });
                }
            }
        }
    }

    /// Chooses the next operation. The weights: graphs, execs, launches, updates, setters, modules, races, rest.
    fn choose(&mut self) -> Option<Op> {
        let weights: [usize; 8] = match self.kind {
            Kind::Churn => [15, 25, 40, 4, 3, 0, 1, 12],
            Kind::Updates => [25, 10, 25, 25, 2, 0, 1, 12],
            Kind::Setters => [10, 12, 25, 8, 33, 0, 0, 12],
            Kind::Modules => [18, 18, 25, 8, 5, 14, 0, 12],
            Kind::Races => [14, 16, 20, 5, 3, 0, 30, 12],
            Kind::Order => [12, 16, 50, 5, 5, 0, 4, 12],
            Kind::Mixed => [18, 16, 25, 10, 12, 3, 4, 12],
        };
        match self.random.weighted(&weights) {
            0 => Some(match self.random.below(12) {
                0 => Op::Clone { g: self.free_graph(), from: self.graph()? },
                1 => self.change()?,
                2 => Op::Query { g: self.graph()? },
                3 | 4 => Op::DropGraph { g: self.graph()? },
                _ => self.new_graph(),
            }),
            1 => {
                if self.random.chance(30) {
                    return Some(Op::DropExec { e: self.exec()? });
                }
                let g = self.graph()?;
                Some(self.instantiate(g))
            }
            2 => {
                // The work before it is slow, so a stream that does not wait for it is noticed.
                if self.random.chance(if self.kind == Kind::Order { 25 } else { 4 }) {
                    let us = 1000 + self.random.below(6000) as u32;
                    let s = self.stream();
                    self.push(Op::Do { s, work: Work::Spin { us, b: None, k: Kernel::default() } });
                }
                Some(Op::Launch { e: self.exec()?, s: self.stream() })
            }
            3 => Some(Op::Update { e: self.exec()?, g: self.graph()?, v: 1 + u8::from(self.random.chance(70)) }),
            4 => match self.random.below(10) {
                0..5 => self.set_exec(),
                5..7 => Some(Op::Enable { e: self.exec()?, n: self.random.below(6), on: self.random.chance(35) }),
                7 => Some(Op::Enabled { e: self.exec()?, n: self.random.below(6) }),
                8 => Some(Op::Query { g: self.graph()? }),
                _ => self.change(),
            },
            5 => {
                let m = 1 + self.random.below(3) as Id;
                Some(if self.world.model.modules.contains_key(&m) { Op::Unload { m } } else { Op::Load { m } })
            }
            6 => match self.random.below(3) {
                0 => Some(Op::Gate { s: self.random.below(BLOCKING) }),
                1 => Some(Op::Open),
                _ => Some(self.race()),
            },
            _ => Some(match self.random.below(12) {
                0 => Op::Dump,
                1 => Op::SyncAll,
                2..5 => Op::Sync { s: self.random.below(STREAMS) },
                5 => Op::Flags { e: self.exec()? },
                6 => Op::Upload { e: self.exec()?, s: self.stream() },
                _ => Op::Do { s: self.stream(), work: self.work() },
            }),
        }
    }

    fn change(&mut self) -> Option<Op> {
        let g = self.graph()?;
        let nodes = self.world.model.graphs.get(&g)?.nodes.clone();
        let n = self.random.below(nodes.len().max(1));
        let other = self.random.below(nodes.len().max(1));
        Some(match self.random.below(10) {
            0 => Op::Add { g, node: NewNode { after: vec![n], work: self.work() } },
            1 => Op::Remove { g, n },
            2 | 3 => Op::Edge { g, from: n, to: other, on: self.random.chance(60) },
            4 => Op::Attributes { g, n, k: self.kernel() },
            5 => Op::CopyAttributes { g, n, from: other },
            _ => Op::Set { g, n, to: self.varied(&nodes.get(n)?.work) },
        })
    }

    /// Two threads: each makes, changes and launches its own; some execs are launched by both.
    fn race(&mut self) -> Op {
        let all: Vec<Id> = self.world.model.execs.keys().copied().collect();
        let shared = if self.random.chance(50) { self.exec() } else { None };
        let (mut sides, mut next) = ([Vec::new(), Vec::new()], (self.free_exec().max(40), self.free_graph().max(40)));
        for (side, ops) in sides.iter_mut().enumerate() {
            let mine: Vec<Id> =
                all.iter().copied().filter(|e| usize::from(*e) % 2 == side && Some(*e) != shared).collect();
            let streams = [[0, 1], [2, 3]][side];
            for _ in 0..2 + self.random.below(6) {
                let s = *self.random.pick(&streams);
                let e = if mine.is_empty() { None } else { Some(*self.random.pick(&mine)) };
                let op = match (self.random.below(10), shared, e) {
                    (0..3, Some(e), _) | (0..7, _, Some(e)) => Op::Launch { e, s },
                    (7, _, Some(e)) => Op::DropExec { e },
                    (8, ..) => Op::Sync { s },
                    (_, _, e) => {
                        let g = next.1 + side as Id;
                        next.1 += 2;
                        ops.push(if self.random.chance(35) {
                            let mode = *self.random.pick(&[Mode::Relaxed, Mode::ThreadLocal]);
                            let body = self.dressed().into_iter().map(|node| Step::Do { on: s, work: node.work });
                            Op::Capture { g, s, mode, body: body.collect() }
                        } else {
                            Op::Graph { g, nodes: self.dressed() }
                        });
                        match e {
                            Some(e) if self.random.chance(30) => Op::Update { e, g, v: 2 },
                            _ => {
                                let e = next.0 + side as Id;
                                next.0 += 2;
                                ops.push(Op::Instantiate { e, g, how: How::Flags, flags: 0, s: 0 });
                                ops.push(Op::Launch { e, s });
                                if self.random.chance(50) { Op::DropExec { e } } else { Op::DropGraph { g } }
                            }
                        }
                    }
                };
                ops.push(op);
            }
        }
        let [a, b] = sides;
        Op::Race { a, b }
    }
}
