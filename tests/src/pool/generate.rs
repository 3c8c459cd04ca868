//! Makes random programs. It knows roughly what is live, so that most operations can be done.

use super::program::{By, CONTEXTS, How, Id, Line, OWN, Op, Program, SECOND, STREAMS, THREADS};
use crate::differ::random::Random;
use crate::tester;

struct Maker {
    random: Random,
    lines: Vec<Line>,
    live: Vec<(Id, How, usize)>,
    freed: Vec<Id>,
    graphs: Vec<Id>,
    next: Id,
    current: [usize; THREADS],
    capturing: Option<(usize, usize)>,
    /// Sizes that are used again and again.
    favourites: Vec<u64>,
}

/// The program of a seed, with about so many operations.
pub fn program(seed: u64, length: usize) -> Program {
    let mut random = Random::new(seed ^ 0x9001);
    let favourites = (0..4).map(|_| size(&mut random)).collect();
    let mut maker = Maker {
        random,
        lines: Vec::new(),
        live: Vec::new(),
        freed: Vec::new(),
        graphs: Vec::new(),
        next: 0,
        current: [0; THREADS],
        capturing: None,
        favourites,
    };
    while maker.lines.len() < length {
        maker.one();
    }
    if seed.is_multiple_of(5) {
        maker.ruin();
    }
    tester::Program(maker.lines)
}

fn size(random: &mut Random) -> u64 {
    let near = |random: &mut Random, n: u64| (n + random.below(3) as u64).saturating_sub(1);
    match random.below(10) {
        0 => 1 + random.below(1024) as u64,
        1 | 2 => 1024 + random.below(60_000) as u64,
        3 => {
            let n = 1 << (9 + random.below(15));
            near(random, n)
        }
        4 => near(random, 1 << 20),
        5 => near(random, 2 << 20),
        6 | 7 => (1 << 20) + random.below(9 << 20) as u64,
        8 => (512 << random.below(8)) * (8 + random.below(8) as u64) / 8,
        _ => 16 << 20,
    }
}

impl Maker {
    fn put(&mut self, t: usize, op: Op) {
        self.lines.push(Line { t, op });
    }

    fn thread(&mut self) -> usize {
        if self.random.chance(70) { 0 } else { self.random.below(THREADS) }
    }

    fn stream(&mut self, c: usize) -> usize {
        c * STREAMS + self.random.below(STREAMS)
    }

    fn value(&mut self) -> u32 {
        self.random.next() as u32
    }

    fn alloc(&mut self) {
        let (t, p) = (self.thread(), self.next);
        self.next += 1;
        let how = match self.random.below(24) {
            0..=11 => How::Driver,
            12..=17 => How::Runtime,
            18 => How::Pitch,
            19..=21 => How::Async,
            22 => How::Managed,
            _ => How::Host,
        };
        let bytes = match self.random.below(20) {
            0 => 0,
            1 => 1 << 50,
            2..=10 => *self.random.pick(&self.favourites.clone()),
            _ => size(&mut self.random),
        };
        let c = self.current[t];
        let s = if c < CONTEXTS { self.stream(c) } else { 0 };
        self.put(t, Op::Alloc { p, bytes, how, s });
        if bytes > 0 && bytes < 1 << 40 && c < CONTEXTS {
            self.live.push((p, how, c));
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let t = self.thread();
        // Often the newest, as scopes do.
        let i = if self.random.chance(40) { self.live.len() - 1 } else { self.random.below(self.live.len()) };
        let (p, how, c) = self.live[i];
        let by = match (how, self.random.below(12)) {
            (How::Host, 0) => By::Driver,
            (How::Host, _) => By::Host,
            (_, 0) => By::Host,
            (How::Async, 1..=7) => By::Async,
            (How::Managed, _) => By::Driver,
            (_, 1) => By::Async,
            (_, 2..=5) => By::Runtime,
            _ => By::Driver,
        };
        let at = if self.random.chance(6) { [1, 256, 512, 4096][self.random.below(4)] } else { 0 };
        let s = self.stream(c);
        self.put(t, Op::Free { p, by, at, s });
        if at == 0 && (how == How::Host) == (by == By::Host) {
            self.live.remove(i);
            self.freed.push(p);
            // Nothing was allocated since the free, so the freed address is still nobody's and the answer to a query is
            // well defined.
            if self.random.chance(25) {
                let t = self.thread();
                self.put(t, Op::Query { p, at: 0 });
            }
            if self.random.chance(20) {
                let (t, by) = (self.thread(), if self.random.chance(50) { By::Driver } else { By::Runtime });
                self.put(t, Op::Free { p, by, at: 0, s: 0 });
            }
        }
    }

    fn buffer(&mut self) -> Option<(Id, usize)> {
        let n = self.live.len();
        if n == 0 { None } else { Some(self.live[self.random.below(n)]).map(|(p, _, c)| (p, c)) }
    }

    fn use_one(&mut self) {
        let Some((p, c)) = self.buffer() else { return self.alloc() };
        let (t, s, v) = (self.thread(), self.stream(c), self.value());
        let op = match self.random.below(10) {
            0..=3 => Op::Fill { p, s, v, end: self.random.chance(40) },
            4 => Op::Set { p, s, v },
            5 => match self.buffer() {
                Some((from, _)) => Op::Copy { p, from, s },
                None => return,
            },
            6 => Op::Spin { s, us: 200 + self.random.below(3000) as u32 },
            _ => Op::Check { p, s },
        };
        self.put(t, op);
    }

    /// The case that the pool must get right: work is pending on a buffer, the buffer is freed, another stream writes
    /// an allocation of the same size, and the contents are checked.
    fn reuse(&mut self) {
        let t = self.thread();
        let c = self.current[t];
        if c >= CONTEXTS || self.capturing.is_some() {
            return;
        }
        let (bytes, how) = (
            *self.random.pick(&self.favourites.clone()),
            if self.random.chance(30) { How::Runtime } else { How::Driver },
        );
        let (p, q, s, other, v) = (self.next, self.next + 1, self.stream(c), self.stream(c), self.value());
        self.next += 2;
        self.put(t, Op::Alloc { p, bytes, how, s: 0 });
        let us = 500 + self.random.below(4000) as u32;
        self.put(t, Op::Spin { s, us });
        self.put(t, Op::Fill { p, s, v, end: false });
        let (freer, by) = (self.thread(), if self.random.chance(50) { By::Driver } else { By::Runtime });
        self.put(freer, Op::Free { p, by, at: 0, s: 0 });
        let t = if self.random.chance(30) { self.thread() } else { t };
        self.put(t, Op::Alloc { p: q, bytes, how, s: 0 });
        let c = self.current[t];
        if c < CONTEXTS {
            let other = c * STREAMS + other % STREAMS;
            self.put(t, Op::Fill { p: q, s: other, v: v ^ 1, end: false });
            self.put(t, Op::Check { p: q, s: other });
            self.live.push((q, how, c));
        }
    }

    fn capture(&mut self) {
        match self.capturing.take() {
            None => {
                let t = self.thread();
                let c = self.random.below(2);
                let s = c * STREAMS + 1 + self.random.below(STREAMS - 1);
                let mode = self.random.weighted(&[25, 25, 50]) as u32;
                self.put(t, Op::Begin { s, mode });
                for _ in 0..self.random.below(3) {
                    if let Some((p, _)) = self.buffer() {
                        let v = self.value();
                        self.put(t, Op::Fill { p, s, v, end: false });
                    }
                }
                self.capturing = Some((t, s));
            }
            Some((t, s)) => {
                let t = if self.random.chance(92) { t } else { self.thread() };
                let g = self.next;
                self.next += 1;
                self.put(t, Op::End { s, g });
                self.put(t, Op::Launch { g, s });
                self.graphs.push(g);
            }
        }
    }

    fn one(&mut self) {
        if self.capturing.is_some() && self.random.chance(30) {
            return self.capture();
        }
        match self.random.below(100) {
            0..=21 => self.alloc(),
            22..=39 => self.free(),
            40..=61 => self.use_one(),
            62..=71 => self.reuse(),
            72..=76 => self.capture(),
            77..=79 => {
                let n = self.graphs.len();
                if n > 0 {
                    let (g, c) = (self.graphs[self.random.below(n)], self.random.below(2));
                    let (t, s) = (self.thread(), self.stream(c));
                    let op = if self.random.chance(80) { Op::Launch { g, s } } else { Op::DropGraph { g } };
                    self.put(t, op);
                }
            }
            80..=84 => {
                let freed = self.freed.last().copied().filter(|_| self.random.chance(30));
                let Some(p) = freed.or_else(|| self.buffer().map(|b| b.0)) else { return };
                let (t, at) = (self.thread(), if self.random.chance(50) { 0 } else { self.random.below(2048) as u64 });
                let op = match self.random.below(14) {
                    0 => Op::Number { p },
                    1 => Op::Mark { p },
                    2 => Op::Export { p },
                    _ => Op::Query { p, at },
                };
                self.put(t, op);
            }
            85..=87 => {
                let (t, what) = (self.thread(), self.random.below(4) as u8);
                let by = *self.random.pick(&[By::Driver, By::Runtime, By::Host]);
                self.put(t, Op::WildFree { what, by });
            }
            88 | 89 => {
                let t = self.thread();
                self.put(t, Op::Info);
            }
            90..=92 => {
                let (t, s) = (self.thread(), self.random.below(CONTEXTS * STREAMS));
                let op = if self.random.chance(60) { Op::Sync { s } } else { Op::SyncAll };
                self.put(t, op);
            }
            93 | 94 => {
                let (t, c) = (self.random.below(THREADS), self.random.weighted(&[40, 30, 20, 10]));
                self.current[t] = c;
                self.put(t, Op::Current { c });
            }
            95 => {
                let (t, mode) = (self.thread(), self.random.below(3) as u32);
                self.put(t, Op::Exchange { mode });
            }
            96 => {
                let c = *self.random.pick(&[OWN, OWN, SECOND]);
                let t = self.thread();
                self.put(t, Op::Renew { c });
                self.live.retain(|(_, _, of)| *of != c);
                self.current.iter_mut().filter(|of| **of == c).for_each(|of| *of = 0);
            }
            97 => {
                let (c, threads, rounds) = (self.random.below(2), 2 + self.random.below(3), 4 + self.random.below(12));
                let seed = self.random.next() >> 16;
                self.put(0, Op::Stress { c, threads, rounds, seed });
            }
            _ => {
                let t = self.thread();
                self.put(t, Op::Quiet);
            }
        }
    }

    /// A sticky error, and then calls that show what they answer afterwards.
    fn ruin(&mut self) {
        if let Some((t, s)) = self.capturing.take() {
            self.put(t, Op::End { s, g: self.next });
        }
        self.put(0, Op::Current { c: 0 });
        self.put(0, Op::Quiet);
        self.put(0, Op::Fault);
        for _ in 0..12 {
            match self.random.below(5) {
                0 | 1 => self.alloc(),
                2 => self.free(),
                3 => self.put(0, Op::Info),
                _ => {
                    if let Some((p, _)) = self.buffer() {
                        self.put(0, Op::Query { p, at: 0 });
                    }
                }
            }
        }
    }
}
