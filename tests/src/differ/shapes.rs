//! Random work, and the shapes of graphs.

use super::generate::{Kind, Maker, Shape};
use super::program::{EVENTS, Id, NewNode};
use super::work::{Buf, Kernel, Work};

impl Maker {
    pub(super) fn device(&mut self) -> Buf {
        Buf(self.random.below(Buf::DEVICE.into()) as u8)
    }

    pub(super) fn value(&mut self) -> u32 {
        match self.random.below(4) {
            0 => self.random.below(4) as u32,
            _ => self.random.below(100_000) as u32 | 1,
        }
    }

    pub(super) fn kernel(&mut self) -> Kernel {
        let mut k = Kernel::default();
        let r = &mut self.random;
        if r.chance(25) {
            k.grid = 1 + r.below(6) as u32;
        }
        if r.chance(25) {
            k.block = *r.pick(&[32, 64, 128, 256]);
        }
        if r.chance(8) {
            k.shared = *r.pick(&[256, 1024, 4096]);
        }
        if r.chance(6) {
            k.cooperative = true;
        }
        if r.chance(5) {
            k.packed = true;
        }
        if r.chance(6) {
            k.priority = -(r.below(3) as i32);
        }
        if r.chance(5) {
            k.cluster = *r.pick(&[2, 4]);
        }
        let odds = if self.kind == Kind::Modules { 50 } else { 5 };
        if self.random.chance(odds) {
            let live: Vec<Id> = self.world.model.modules.keys().copied().collect();
            k.m = *self.random.pick(&live);
        }
        k
    }

    /// Random work. About half the time the values that it writes depend on what the buffer held before.
    pub(super) fn work(&mut self) -> Work {
        let (d, s) = (self.device(), self.device());
        let (n, v, size) = (1 + self.random.below(64) as u32, self.value(), *self.random.pick(&[1, 2, 4]));
        let other = Buf((d.0 + 1 + self.random.below(usize::from(Buf::DEVICE) - 1) as u8) % Buf::DEVICE);
        let host = Buf(Buf::DEVICE + self.random.below(Buf::HOST.into()) as u8);
        let log = Buf::log(self.random.below(Buf::LOGS.into()) as u8);
        let at = if self.random.chance(30) { self.random.below(100) as u32 } else { 0 };
        let ev = self.random.below(EVENTS) as u8;
        match self.random.below(100) {
            0..18 => Work::Fill { b: d, v, n, at, k: self.kernel() },
            18..48 => Work::Scale { d, s, f: v | 1, n: 64, k: self.kernel() },
            48..54 => Work::Verify { b: d, v, n, m: other, k: self.kernel() },
            54..58 => Work::Spin {
                us: 20 + self.random.below(200) as u32,
                b: self.random.chance(50).then_some(d),
                k: self.kernel(),
            },
            58..60 => Work::Cluster { b: d, k: Kernel { cluster: *self.random.pick(&[0, 2, 4]), ..Kernel::default() } },
            60..72 => match self.random.below(4) {
                0 => Work::Copy { d, s: host, n, d_at: at, s_at: 0 },
                1 => Work::Copy { d: host, s, n, d_at: 0, s_at: at },
                _ => Work::Copy { d, s: other, n, d_at: at, s_at: 0 },
            },
            72..76 => Work::Copy2 {
                d,
                s: other,
                w: 16,
                h: 1 + self.random.below(4) as u32,
                d_pitch: 64,
                s_pitch: *self.random.pick(&[16, 32, 64]),
            },
            76..84 => Work::Set { b: d, v, n, size, at },
            84..87 => Work::Set2 { b: d, v, size, w: 4, h: 1 + self.random.below(4) as u32, pitch: 64 },
            87..94 => Work::Host { log, v },
            94..97 => Work::Empty,
            _ if self.kind != Kind::Mixed => Work::Fill { b: d, v, n, at, k: self.kernel() },
            97 => Work::Record { ev },
            98 => Work::Wait { ev },
            _ => {
                let graphs: Vec<Id> = self.world.model.graphs.keys().copied().collect();
                if graphs.is_empty() { Work::Empty } else { Work::Child { g: *self.random.pick(&graphs) } }
            }
        }
    }

    pub(super) fn shape(&mut self) -> Shape {
        let count = 1 + self.random.below(6);
        let mut shape = Shape::new();
        for i in 0..count {
            let after = match self.random.below(3) {
                0 => Vec::new(),
                1 if i > 0 => vec![i - 1],
                _ => (0..i).filter(|_| self.random.chance(40)).collect(),
            };
            let mut work = self.work();
            if let Some(k) = work.kernel_mut() {
                k.m = 0;
            }
            shape.push(NewNode { after, work });
        }
        // It reads, waits and writes, so overlapping launches would lose an update.
        if self.random.chance(35) {
            let (acc, tmp, k) = (self.device(), self.device(), Kernel::default());
            let after = |n: usize, on: bool| if on { vec![n - 1] } else { Vec::new() };
            let n = shape.len();
            shape.push(NewNode {
                after: after(n, n > 0),
                work: Work::Scale { d: tmp, s: acc, f: 3, n: 64, k: k.clone() },
            });
            let us = 50 + self.random.below(200) as u32;
            shape.push(NewNode { after: after(n + 1, true), work: Work::Spin { us, b: None, k: k.clone() } });
            shape.push(NewNode { after: after(n + 2, true), work: Work::Scale { d: acc, s: tmp, f: 1, n: 64, k } });
        }
        shape
    }

    /// The shape with other buffers and other values. It has the same conflicts, so it needs the same edges.
    pub(super) fn dressed(&mut self) -> Shape {
        let mut shape = {
            let shapes = &self.shapes;
            self.random.pick(shapes).clone()
        };
        let mut device: Vec<u8> = (0..Buf::DEVICE).collect();
        if self.random.chance(70) {
            self.random.shuffle(&mut device);
        }
        let module = self.kernel().m;
        for node in &mut shape {
            if self.random.chance(70) {
                self.other_values(&mut node.work);
            }
            for buf in node.work.bufs_mut().into_iter().filter(|buf| buf.is_device()) {
                *buf = Buf(device[usize::from(buf.0)]);
            }
            if let Some(k) = node.work.kernel_mut() {
                k.m = module;
            }
        }
        if self.random.chance(12) {
            self.mutate(&mut shape);
        }
        shape
    }

    pub(super) fn other_values(&mut self, work: &mut Work) {
        let value = self.value();
        let spin = matches!(work, Work::Spin { .. });
        if let Some(v) = work.value_mut() {
            *v = if spin { value % 200 } else { value };
        }
        match work {
            Work::Fill { n, .. } | Work::Verify { n, .. } | Work::Copy { n, .. } | Work::Set { n, .. } => {
                *n = 1 + self.random.below(64) as u32;
            }
            _ => {}
        }
        let grid = self.random.chance(20).then(|| 1 + self.random.below(5) as u32);
        if let (Some(k), Some(grid)) = (work.kernel_mut(), grid) {
            k.grid = grid;
        }
    }

    pub(super) fn mutate(&mut self, shape: &mut Shape) {
        let n = self.random.below(shape.len());
        match self.random.below(5) {
            0 => shape[n].work = self.work(),
            1 => {
                let work = self.work();
                shape.push(NewNode { after: vec![n], work });
            }
            2 if shape.len() > 1 => drop(shape.pop()),
            3 => shape[n].after = (0..n).filter(|_| self.random.chance(50)).collect(),
            _ => {
                let new = self.kernel();
                if let Some(k) = shape[n].work.kernel_mut() {
                    (k.cluster, k.cooperative, k.priority, k.shared) =
                        (new.cluster, new.cooperative, new.priority, new.shared);
                }
            }
        }
    }
}
