//! The driver's objects, found by the program's names for them; and calls of the driver.

use super::api::Status;
use super::program::Id;
use super::runtime::Runtime;
use super::work::{Buf, Kernel, Work};
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::Arc;

/// Calls a driver function; [`NO_FUNCTION`] if this driver does not have it.
macro_rules! cu {
    ($f:ident($($arg:expr),* $(,)?)) => {{
        static THERE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        if *THERE.get_or_init(|| $crate::differ::objects::has(stringify!($f))) {
            // SAFETY: the handles are alive, because the model leaves out what would use others. Or
            // they belong to another graph, which the driver answers with an error. Pointers are to
            // what outlives the call.
            unsafe { cudarc::driver::sys::$f($($arg),*) as u32 }
        } else {
            $crate::differ::api::NO_FUNCTION
        }
    }};
}
pub(super) use cu;

pub(super) fn has(name: &str) -> bool {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    // SAFETY: the address is looked up as a plain pointer and never called. The name ends in NUL.
    unsafe { sys::culib().get::<*const ()>(name.as_bytes_with_nul()) }.is_ok()
}

/// Kernels that are launched once before the program runs, so that none of them is loaded inside a capture.
pub(super) const KERNELS: [&CStr; 4] = [c"gpumem_fill", c"gpumem_scale", c"gpumem_verify", c"gpumem_spin"];

/// Objects that live as long as the process.
pub(super) struct Fixed {
    pub ctx: usize,
    pub device: Vec<u64>,
    pub host: Vec<usize>,
    pub streams: Vec<usize>,
    pub events: Vec<usize>,
    /// The kernel that writes the size of its cluster, if the device has clusters.
    pub cluster: usize,
    /// Memory that no program uses.
    pub scratch: u64,
    /// Dumps show every word.
    pub words: bool,
    pub runtime: Option<Runtime>,
}

#[derive(Clone, Default)]
pub(super) struct GraphHandles {
    pub graph: usize,
    /// Handles of nodes by the nodes' numbers. 0: the program has no handle of that node.
    pub nodes: Vec<usize>,
}

#[derive(Clone)]
pub(super) struct Module {
    pub handle: usize,
    pub functions: [usize; 4],
}

#[derive(Clone)]
pub struct Real {
    pub(super) fixed: Arc<Fixed>,
    pub(super) graphs: BTreeMap<Id, GraphHandles>,
    pub(super) execs: BTreeMap<Id, usize>,
    pub(super) modules: BTreeMap<Id, Module>,
}

impl Real {
    pub(super) fn stream(&self, s: usize) -> sys::CUstream {
        self.fixed.streams[s] as sys::CUstream
    }

    pub(super) fn event(&self, ev: u8) -> sys::CUevent {
        self.fixed.events[usize::from(ev)] as sys::CUevent
    }

    pub(super) fn ctx(&self) -> sys::CUcontext {
        self.fixed.ctx as sys::CUcontext
    }

    pub(super) fn function(&self, work: &Work) -> usize {
        let of = |m: &Kernel, i: usize| self.modules.get(&m.m).map_or(0, |module| module.functions[i]);
        match work {
            Work::Fill { k, .. } => of(k, 0),
            Work::Scale { k, .. } => of(k, 1),
            Work::Verify { k, .. } => of(k, 2),
            Work::Spin { k, .. } => of(k, 3),
            Work::Cluster { .. } => self.fixed.cluster,
            _ => 0,
        }
    }

    pub(super) fn address(&self, buf: Buf) -> u64 {
        match buf.0 {
            i if buf.is_device() => self.fixed.device[usize::from(i)],
            i if !buf.is_log() => self.fixed.host[usize::from(i - Buf::DEVICE)] as u64,
            _ => 0,
        }
    }

    pub(super) fn handle(&self, g: Id) -> sys::CUgraph {
        self.graphs.get(&g).map_or(null_mut(), |graph| graph.graph as sys::CUgraph)
    }

    pub(super) fn node(&self, g: Id, n: usize) -> sys::CUgraphNode {
        self.graphs.get(&g).and_then(|graph| graph.nodes.get(n)).map_or(null_mut(), |node| *node as sys::CUgraphNode)
    }

    pub(super) fn exec(&self, e: Id) -> sys::CUgraphExec {
        self.execs.get(&e).map_or(null_mut(), |exec| *exec as sys::CUgraphExec)
    }

    pub(super) fn new_graph(&mut self, g: Id, graph: sys::CUgraph, status: Status) -> Status {
        if status == 0 {
            self.graphs.insert(g, GraphHandles { graph: graph as usize, nodes: Vec::new() });
        }
        status
    }

    /// A node of a graph, in words.
    pub(super) fn named(&self, g: Id, node: sys::CUgraphNode) -> String {
        let nodes = self.graphs.get(&g).map(|graph| graph.nodes.as_slice()).unwrap_or_default();
        match nodes.iter().position(|known| *known == node as usize) {
            _ if node.is_null() => "no node".into(),
            Some(n) => format!("node {n}"),
            // A caller that gets a node may ask about it.
            None if nodes.is_empty() => {
                let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
                let status = cu!(cuGraphNodeGetType(node, &mut kind));
                format!("a node: {status}, {kind:?}")
            }
            None => "a node that is not of it".into(),
        }
    }
}
