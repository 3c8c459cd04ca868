//! Kinds of work in a stream or a graph.

use crate::handle::H;
use crate::work::Ref;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One piece of work, in a stream or as a node of a graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Kernel(Kernel),
    Memcpy(Copy3D),
    Memset(Memset),
    Host(HostFn),
    /// A child graph, owned by the node.
    Child(H),
    Empty,
    EventRecord(H),
    EventWait(H),
    MemAlloc(MemAlloc),
    MemFree(u64),
    /// Waits for and writes of values in memory.
    MemOps(Vec<MemOp>),
    /// Runs one of its body graphs, or none.
    Conditional(Conditional),
    /// A kind that no driver has yet: adds this much to the counter `newer_nodes`.
    Newer(u64),
    /// Copies bytes taken from pageable memory when the call was made.
    Staged {
        dst: u64,
        bytes: Arc<[u8]>,
    },
    /// Frees stream-ordered memory when the stream gets there.
    FreeAsync(u64),
}

impl Kind {
    /// The number that `cuGraphNodeGetType` answers.
    pub fn number(&self) -> u32 {
        match self {
            Kind::Kernel(_) => 0,
            Kind::Memcpy(_) | Kind::Staged { .. } => 1,
            Kind::Memset(_) => 2,
            Kind::Host(_) => 3,
            Kind::Child(_) => 4,
            Kind::Empty => 5,
            Kind::EventWait(_) => 6,
            Kind::EventRecord(_) => 7,
            Kind::MemAlloc(_) => 10,
            Kind::MemFree(_) | Kind::FreeAsync(_) => 11,
            Kind::MemOps(_) => 12,
            Kind::Conditional(_) => 13,
            Kind::Newer(_) => NEWER,
        }
    }
}

/// The number of a kind of nodes that no real driver has yet. The simulated driver has it from [`NEWER_SINCE`] on.
pub const NEWER: u32 = 30;
/// The version from which the simulated driver has functions, attributes and a kind of nodes that no real driver has.
pub const NEWER_SINCE: u32 = 13090;

/// Launch attributes: id and the 64 bytes of its value.
pub type Attrs = BTreeMap<u32, [u8; 64]>;

pub mod attr {
    pub const COOPERATIVE: u32 = 2;
    pub const CLUSTER: u32 = 4;
    pub const PROGRAMMATIC_SERIALIZATION: u32 = 6;
    pub const PRIORITY: u32 = 8;
    /// NVLink-centric scheduling; can be set and not read.
    pub const NVLINK_CENTRIC: u32 = 16;
    /// Two attributes that no driver has yet. A kernel that runs with one is counted (`newer_attributes`).
    pub const NEWER: [u32; 2] = [40, 41];
}

#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub func: H,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    /// The parameters, packed as the kernel lays them out.
    pub params: Arc<[u8]>,
    /// Offset and size of each parameter.
    pub layout: Arc<[(u32, u32)]>,
    /// The parameters were given as one packed block (`extra`), and are read back as one.
    pub packed: bool,
    pub attrs: Attrs,
    /// The load of the module that `func` named: its address comes back after
    /// an unload, for another function.
    pub load: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostFn {
    pub f: usize,
    pub data: usize,
    /// cuStreamAddCallback's function takes the stream and a status as well.
    pub stream: Option<H>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memset {
    pub dst: u64,
    pub pitch: u64,
    pub value: u32,
    pub elem: u32,
    pub width: u64,
    pub height: u64,
}

/// Nothing here sets a condition while the graph runs: it keeps the value that a
/// launch begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditional {
    pub handle: u64,
    /// 0 if, 1 while, 2 switch.
    pub form: u32,
    /// Owned by the node; the program is shown this list.
    pub bodies: Arc<[H]>,
    pub value: u32,
}

impl Conditional {
    /// The body that runs: of an "if" the second is its "else", and of a loop that
    /// nothing would end one round.
    pub fn chosen(&self) -> Option<H> {
        let body = match (self.form, self.value) {
            (0, 0) => 1,
            (1, 0) => return None,
            (2, value) => value as usize,
            _ => 0,
        };
        self.bodies.get(body).copied()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemAlloc {
    pub addr: u64,
    pub size: u64,
    pub device: u32,
    pub pool: H,
}

/// Memory types of copies, as the driver numbers them.
pub mod space {
    pub const HOST: u32 = 1;
    pub const DEVICE: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const UNIFIED: u32 = 4;
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Side {
    pub space: u32,
    /// Address, or array handle where `space` is ARRAY.
    pub at: u64,
    pub x: u64,
    pub y: u64,
    pub z: u64,
    pub pitch: u64,
    pub height: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Copy3D {
    pub src: Side,
    pub dst: Side,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Copy3D {
    /// `n` bytes from `src` to `dst`, wherever those are.
    pub fn linear(dst: u64, src: u64, n: u64) -> Copy3D {
        let side = |at| Side { space: space::UNIFIED, at, ..Side::default() };
        Copy3D { src: side(src), dst: side(dst), width: n, height: 1, depth: 1 }
    }

    /// Made by [`Copy3D::linear`]. HIP has nodes of another class for these.
    pub fn is_row(&self) -> bool {
        *self == Copy3D::linear(self.dst.at, self.src.at, self.width)
    }

    /// One row of plain memory to another.
    pub fn is_linear(&self) -> bool {
        let plain = |s: &Side| s.space != space::ARRAY;
        self.height <= 1 && self.depth <= 1 && plain(&self.src) && plain(&self.dst)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemOp {
    Wait { addr: u64, wide: bool, value: u64, flags: u32 },
    Write { addr: u64, wide: bool, value: u64 },
}

/// An edge: the other node, and its data (ports and type).
pub type Edge = (H, [u8; 8]);

pub struct Node {
    /// Never given before: a handle's address may come back for another node.
    pub id: u64,
    pub graph: H,
    /// Its place among all nodes that its graph ever had: a clone keeps it.
    pub place: usize,
    pub kind: Kind,
    pub deps: Vec<Edge>,
    pub outs: Vec<Edge>,
    /// The node that this one was cloned from.
    pub origin: H,
    /// Memory that it touches, as it was when the parameters were set.
    pub refs: Vec<Ref>,
    pub views: Views,
}

/// A kernel node's parameters in the form in which they are given out: lists that the driver owns, into its own copy of
/// the values.
#[derive(Default)]
pub struct Views {
    list: Box<[usize]>,
    /// Bytes of the packed block; the list points at it.
    size: Box<usize>,
    packed: bool,
}

impl Views {
    pub fn new(kind: &Kind) -> Views {
        let Kind::Kernel(k) = kind else { return Views::default() };
        let (at, size, packed) = (k.params.as_ptr() as usize, Box::new(k.params.len()), k.packed);
        let list = match packed {
            // In this order (H200, driver 580): CU_LAUNCH_PARAM_BUFFER_SIZE, _POINTER, _END.
            true => vec![2, &raw const *size as usize, 1, at, 0],
            false => k.layout.iter().map(|(off, _)| at + *off as usize).collect(),
        };
        Views { list: list.into(), size, packed }
    }

    /// `kernelParams`: NULL without parameters, and where they were packed.
    pub fn params(&self) -> usize {
        if self.packed || self.list.is_empty() { 0 } else { self.list.as_ptr() as usize }
    }

    /// `extra`: NULL unless they were packed.
    pub fn extra(&self) -> usize {
        debug_assert!(!self.packed || self.list[1] == &raw const *self.size as usize);
        if self.packed { self.list.as_ptr() as usize } else { 0 }
    }
}
