//! The driver that the dynamic loader finds: each operation of a program as its calls.

use super::api::{Answer, Api, Status};
use super::host::{gates, log, wait_at_gate};
use super::objects::{KERNELS, Module, Real, cu};
use super::program::{How, Id, Mode};
use super::work::{Buf, Kernel, Work};
use super::{older, params};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Calls a function by its runtime name if programs come by that door, else by its driver name.
macro_rules! by_door {
    ($real:ident, $name:ident($($arg:expr),*), $else:expr) => {
        match $real.fixed.runtime {
            // SAFETY: the runtime's function gets the same handles as the driver's does in `cu!`:
            // alive, or answered with an error. Pointers are to what outlives the call.
            Some(runtime) => unsafe { (runtime.$name)($($arg),*) },
            None => $else,
        }
    };
}

impl Api for Real {
    fn enter(&self) {
        cu!(cuCtxSetCurrent(self.ctx()));
    }

    fn fresh(&mut self) {
        for i in 0..Buf::COUNT {
            let buf = Buf(i);
            let words: Vec<u32> = (0..Buf::WORDS).map(|n| (n * 2 + 1) * (u32::from(i) * 2 + 3)).collect();
            if buf.is_log() {
                log(usize::from(i - Buf::DEVICE - Buf::HOST)).clear();
            } else {
                let bytes = words.len() * 4;
                cu!(cuMemcpy(self.address(buf), words.as_ptr() as u64, bytes));
            }
        }
        cu!(cuCtxSynchronize());
    }

    fn graph(&mut self, g: Id) -> Status {
        let mut graph = null_mut();
        let status = cu!(cuGraphCreate(&mut graph, 0));
        self.new_graph(g, graph, status)
    }

    fn begin_capture(&mut self, s: usize, mode: Mode) -> Status {
        use sys::CUstreamCaptureMode::*;
        let mode = match mode {
            Mode::Global => CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::ThreadLocal => CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::Relaxed => CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        cu!(cuStreamBeginCapture_v2(self.stream(s), mode))
    }

    fn end_capture(&mut self, g: Id, s: usize) -> Status {
        let mut graph: sys::CUgraph = null_mut();
        let stream = self.stream(s);
        let status = by_door!(
            self,
            end_capture(stream.cast(), (&raw mut graph).cast()),
            cu!(cuStreamEndCapture(stream, &mut graph))
        );
        self.new_graph(g, graph, status)
    }

    fn clone_graph(&mut self, g: Id, from: Id) -> Status {
        let mut graph = null_mut();
        let status = cu!(cuGraphClone(&mut graph, self.handle(from)));
        self.new_graph(g, graph, status)
    }

    fn drop_graph(&mut self, g: Id) -> Status {
        let graph = self.handle(g);
        let status = by_door!(self, destroy_graph(graph.cast()), cu!(cuGraphDestroy(graph)));
        if status == 0 {
            self.graphs.remove(&g);
        }
        status
    }

    fn add(&mut self, g: Id, after: &[usize], work: &Work) -> Status {
        let after: Vec<_> = after.iter().map(|n| self.node(g, *n)).collect();
        let (status, node) = params::add(self, self.handle(g), &after, work);
        if let Some(graph) = self.graphs.get_mut(&g)
            && status == 0
        {
            graph.nodes.push(node as usize);
        }
        status
    }

    fn remove(&mut self, g: Id, n: usize) -> Status {
        let status = cu!(cuGraphDestroyNode(self.node(g, n)));
        if let Some(node) = self.graphs.get_mut(&g).and_then(|graph| graph.nodes.get_mut(n))
            && status == 0
        {
            *node = 0;
        }
        status
    }

    fn edge(&mut self, g: Id, from: usize, to: usize, on: bool) -> Status {
        let (graph, from, to) = (self.handle(g), self.node(g, from), self.node(g, to));
        if on {
            cu!(cuGraphAddDependencies_v2(graph, &from, &to, null(), 1))
        } else {
            cu!(cuGraphRemoveDependencies_v2(graph, &from, &to, null(), 1))
        }
    }

    fn set(&mut self, g: Id, n: usize, to: &Work) -> Status {
        params::set(self, self.node(g, n), to)
    }

    fn attributes(&mut self, g: Id, n: usize, k: &Kernel) -> Status {
        params::attributes(self.node(g, n), k, true)
    }

    fn copy_attributes(&mut self, g: Id, n: usize, from: usize) -> Status {
        cu!(cuGraphKernelNodeCopyAttributes(self.node(g, n), self.node(g, from)))
    }

    fn query(&mut self, g: Id, nodes: &[usize]) -> Vec<String> {
        super::query::query(self, g, nodes)
    }

    fn has_node(&self, g: Id, n: usize) -> bool {
        !self.node(g, n).is_null()
    }

    fn instantiate(&mut self, e: Id, g: Id, how: How, flags: u64, s: usize) -> Answer {
        let (graph, mut told) = (self.handle(g), String::new());
        let mut exec: sys::CUgraphExec = null_mut();
        let status = match how {
            How::Flags => by_door!(
                self,
                instantiate((&raw mut exec).cast(), graph.cast(), flags),
                cu!(cuGraphInstantiateWithFlags(&mut exec, graph, flags))
            ),
            How::Log => {
                let (mut node, mut log) = (null_mut(), [0; 64]);
                older::instantiate(&mut exec, graph, &mut node, &mut log)
            }
            How::Params => {
                let mut params = sys::CUDA_GRAPH_INSTANTIATE_PARAMS {
                    flags,
                    hUploadStream: self.stream(s),
                    hErrNode_out: null_mut(),
                    result_out: sys::CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
                };
                let status = cu!(cuGraphInstantiateWithParams(&mut exec, graph, &mut params));
                told = format!("{:?}, {}", params.result_out, self.named(g, params.hErrNode_out));
                status
            }
        };
        if status == 0 {
            self.execs.insert(e, exec as usize);
        }
        (status, told)
    }

    fn update(&mut self, e: Id, g: Id, v: u8) -> Answer {
        let mut result = sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR;
        let (exec, graph) = (self.exec(e), self.handle(g));
        if v == 1 {
            let mut node = null_mut();
            let status = older::update(exec, graph, &mut node, &mut result);
            return (status, format!("{result:?}, {}", self.named(g, node)));
        }
        let mut info = sys::CUgraphExecUpdateResultInfo { result, errorNode: null_mut(), errorFromNode: null_mut() };
        let status = by_door!(
            self,
            update(exec.cast(), graph.cast(), (&raw mut info).cast()),
            cu!(cuGraphExecUpdate_v2(exec, graph, &mut info))
        );
        (status, format!("{:?}, {}, {}", info.result, self.named(g, info.errorNode), self.named(g, info.errorFromNode)))
    }

    fn set_exec(&mut self, e: Id, g: Id, n: usize, to: &Work, any: bool) -> Status {
        params::set_exec(self, self.exec(e), self.node(g, n), to, any)
    }

    fn enable(&mut self, e: Id, g: Id, n: usize, on: bool) -> Status {
        cu!(cuGraphNodeSetEnabled(self.exec(e), self.node(g, n), on.into()))
    }

    fn enabled(&mut self, e: Id, g: Id, n: usize) -> Answer {
        let mut on = 7;
        (cu!(cuGraphNodeGetEnabled(self.exec(e), self.node(g, n), &mut on)), on.to_string())
    }

    fn flags(&mut self, e: Id) -> Answer {
        let mut flags = 77;
        (cu!(cuGraphExecGetFlags(self.exec(e), &mut flags)), flags.to_string())
    }

    fn upload(&mut self, e: Id, s: usize) -> Status {
        let (exec, stream) = (self.exec(e), self.stream(s));
        by_door!(self, upload(exec.cast(), stream.cast()), cu!(cuGraphUpload(exec, stream)))
    }

    fn launch(&mut self, e: Id, s: usize) -> Status {
        let (exec, stream) = (self.exec(e), self.stream(s));
        by_door!(self, launch(exec.cast(), stream.cast()), cu!(cuGraphLaunch(exec, stream)))
    }

    fn drop_exec(&mut self, e: Id) -> Status {
        let exec = self.exec(e);
        let status = by_door!(self, destroy_exec(exec.cast()), cu!(cuGraphExecDestroy(exec)));
        if status == 0 {
            self.execs.remove(&e);
        }
        status
    }

    fn load(&mut self, m: Id) -> Status {
        let mut module = null_mut();
        let mut status = cu!(cuModuleLoadData(&mut module, gpumem_kernels::PTX.as_ptr().cast()));
        let mut functions = [0; 4];
        for (slot, name) in functions.iter_mut().zip(KERNELS) {
            let mut function = null_mut();
            if status == 0 {
                status = cu!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
            }
            *slot = function as usize;
        }
        if status == 0 {
            self.modules.insert(m, Module { handle: module as usize, functions });
            status = params::first_launches(self, m, self.fixed.scratch);
        }
        status
    }

    fn unload(&mut self, m: Id) -> Status {
        let module = self.modules.remove(&m).map_or(0, |module| module.handle);
        cu!(cuModuleUnload(module as sys::CUmodule))
    }

    fn put(&mut self, s: usize, work: &Work, captured: bool) -> Status {
        params::put(self, s, work, captured)
    }

    fn record(&mut self, ev: u8, s: usize) -> Status {
        cu!(cuEventRecord(self.event(ev), self.stream(s)))
    }

    fn wait(&mut self, ev: u8, s: usize) -> Status {
        cu!(cuStreamWaitEvent(self.stream(s), self.event(ev), 0))
    }

    fn link(&mut self, of: usize, s: usize) -> Status {
        let mut event = null_mut();
        let mut status = cu!(cuEventCreate(&mut event, 2));
        if status == 0 {
            status = cu!(cuEventRecord(event, self.stream(of)));
        }
        if status == 0 {
            status = cu!(cuStreamWaitEvent(self.stream(s), event, 0));
        }
        cu!(cuEventDestroy_v2(event));
        status
    }

    fn sync(&mut self, s: usize) -> Status {
        cu!(cuStreamSynchronize(self.stream(s)))
    }

    fn sync_all(&mut self) -> Status {
        cu!(cuCtxSynchronize())
    }

    fn dump(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for buf in (0..Buf::COUNT).map(Buf) {
            let words = if buf.is_log() {
                log(usize::from(buf.0 - Buf::DEVICE - Buf::HOST)).clone()
            } else {
                let mut words = vec![0u32; Buf::WORDS as usize];
                cu!(cuMemcpy(words.as_mut_ptr() as u64, self.address(buf), words.len() * 4));
                words
            };
            let hash = words
                .iter()
                .fold(0xcbf2_9ce4_8422_2325u64, |hash, word| (hash ^ u64::from(*word)).wrapping_mul(0x100_0000_01b3));
            let shown = if self.fixed.words || buf.is_log() { &words[..] } else { &words[..2] };
            lines.push(format!("{buf}: {hash:016x} {shown:?}"));
        }
        lines
    }

    fn gate(&mut self, s: usize) -> Status {
        gates().closed += 1;
        let number = gates().closed;
        cu!(cuLaunchHostFunc(self.stream(s), Some(wait_at_gate), number as *mut c_void))
    }

    fn open(&mut self) -> bool {
        let mut gates = gates();
        gates.open = gates.closed;
        super::host::GATES.1.notify_all();
        gates.gave_up == gates.closed
    }

    fn take(&mut self, from: &Self, graphs: &[Id], execs: &[Id]) {
        for g in graphs {
            match from.graphs.get(g) {
                Some(graph) => drop(self.graphs.insert(*g, graph.clone())),
                None => drop(self.graphs.remove(g)),
            }
        }
        for e in execs {
            match from.execs.get(e) {
                Some(exec) => drop(self.execs.insert(*e, *exec)),
                None => drop(self.execs.remove(e)),
            }
        }
    }
}
