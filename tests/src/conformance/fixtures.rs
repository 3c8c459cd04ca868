//! Memory, streams, events and graphs for checks. Each is given back when it is dropped. Dropping ignores errors: a
//! check that cares calls the driver itself.

use super::{Done, Stop, cu, ok};
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use gpumem_kernels::{Kernels, Stream, Words};
use std::{cell::RefCell, ptr::null_mut, time::Duration};

/// How long, in ms, work lasts that has to be going on still when a call returns, try by try: on a loaded machine our
/// thread may be kept waiting for longer than the work lasts, which says nothing of the call. The first is short, since
/// a quiet machine needs no more. The last is the longest that there is ([`gpumem_kernels::MAX_SPIN`]).
const SPINS_MS: [u64; 4] = [40, 250, 1000, 2000];

/// The first device, its primary context made current, and the kernels in it.
#[derive(Clone, Copy)]
pub struct Gpu {
    pub device: sys::CUdevice,
    pub primary: sys::CUcontext,
    pub kernels: Kernels,
}

thread_local! {
    // The primary context stays retained and the kernels loaded from one check
    // to the next: loading is the slowest part of a check.
    static OPENED: RefCell<Option<Gpu>> = const { RefCell::new(None) };
}

impl Gpu {
    pub fn open() -> Result<Gpu, String> {
        super::available()?;
        if let Some(gpu) = OPENED.with_borrow(|g| *g) {
            make_current(gpu.primary).map_err(text)?;
            return Ok(gpu);
        }
        let (device, mut primary) = (0, null_mut());
        let retained = cu!(cuDevicePrimaryCtxRetain(&mut primary, device));
        ok("cuDevicePrimaryCtxRetain", retained).map_err(text)?;
        make_current(primary).map_err(text)?;
        let kernels = Kernels::load().map_err(|e| format!("loading the kernels: {:?}", e.0))?;
        let gpu = Gpu { device, primary, kernels };
        gpu.warm_up().map_err(text)?;
        OPENED.with_borrow_mut(|g| *g = Some(gpu));
        Ok(gpu)
    }

    /// Launches each kernel once: one that is loaded lazily must not be loaded by
    /// its first launch inside a capture.
    fn warm_up(&self) -> Done {
        let mem = self.words(4)?;
        let (all, two) = (mem.words(), mem.words().slice(0..2)?);
        self.kernels.fill(Stream::NULL, all, 0)?;
        self.kernels.scale(Stream::NULL, all, all, 1)?;
        self.kernels.verify(Stream::NULL, two, 0, two)?;
        self.kernels.spin(Stream::NULL, Duration::from_micros(1), None)?;
        ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))
    }

    /// `n` words of device memory from cuMemAlloc, not initialised.
    pub fn words(&self, n: u64) -> Result<Mem, Stop> {
        Mem::new(n as usize * 4)
    }

    pub fn spin(&self, stream: &Strm, ms: u64) -> Done {
        Ok(self.kernels.spin(stream.k(), Duration::from_millis(ms), None)?)
    }

    /// How many words of `words` are not `value`, counted on `stream`.
    pub fn wrong_words(&self, stream: &Strm, words: Words, value: u32) -> Result<u64, Stop> {
        let counter = self.words(2)?;
        ok("cuMemsetD32Async", cu!(cuMemsetD32Async(counter.p, 0, 2, stream.s)))?;
        self.kernels.verify(stream.k(), words, value, counter.words())?;
        ok("cuStreamSynchronize", cu!(cuStreamSynchronize(stream.s)))?;
        let mut wrong = u64::MAX;
        ok("cuMemcpyDtoH", cu!(cuMemcpyDtoH_v2((&raw mut wrong).cast(), counter.p, 8)))?;
        Ok(wrong)
    }
}

/// Runs `ask` with longer and longer work until the work is still running at the end of the try, as the event's
/// [`Ev::query`] that `ask` returns says. Returns whether there was such a try.
pub fn outlasted(mut ask: impl FnMut(u64) -> Result<u32, Stop>) -> Result<bool, Stop> {
    for ms in SPINS_MS {
        if ask(ms)? == RUNNING {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The answer of [`Ev::query`] while the work is running.
pub const RUNNING: u32 = 600;

fn text(stop: Stop) -> String {
    match stop {
        Stop::Skip(s) | Stop::Fail(s) => s,
    }
}

/// Device memory.
pub struct Mem {
    pub p: sys::CUdeviceptr,
    pub bytes: usize,
}

impl Mem {
    pub fn new(bytes: usize) -> Result<Mem, Stop> {
        let mut p = 0;
        ok("cuMemAlloc", cu!(cuMemAlloc_v2(&mut p, bytes)))?;
        Ok(Mem { p, bytes })
    }

    pub fn words(&self) -> Words {
        // SAFETY: Words need memory that is allocated while kernels use it. `self` frees it by
        // cuMemFree, which waits for all kernels first.
        unsafe { Words::from_raw(self.p, self.bytes as u64 / 4) }.expect("aligned by the driver")
    }

    /// Frees it, and gives the status of doing so.
    pub fn free(self) -> u32 {
        let p = self.p;
        std::mem::forget(self);
        cu!(cuMemFree_v2(p))
    }

    /// Reads the first `n` words by a copy on the null stream.
    pub fn read(&self, n: usize) -> Result<Vec<u32>, Stop> {
        let mut host = vec![0u32; n];
        ok("cuMemcpyDtoH", cu!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), self.p, n * 4)))?;
        Ok(host)
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        cu!(cuMemFree_v2(self.p));
    }
}

/// A stream; `NULL` is the legacy one.
pub struct Strm {
    pub s: sys::CUstream,
}

impl Strm {
    pub const NULL: Strm = Strm { s: null_mut() };

    /// A stream that the null stream waits for, and that waits for the null stream.
    pub fn blocking() -> Result<Strm, Stop> {
        Strm::with_flags(0)
    }

    pub fn non_blocking() -> Result<Strm, Stop> {
        Strm::with_flags(sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32)
    }

    fn with_flags(flags: u32) -> Result<Strm, Stop> {
        let mut s = null_mut();
        ok("cuStreamCreate", cu!(cuStreamCreate(&mut s, flags)))?;
        Ok(Strm { s })
    }

    /// As the kernel launcher takes it.
    pub fn k(&self) -> Stream {
        // SAFETY: `self` owns the stream and destroys it when dropped, after the last use of the
        // copy that this gives.
        unsafe { Stream::from_raw(self.s) }
    }

    pub fn sync(&self) -> Done {
        ok("cuStreamSynchronize", cu!(cuStreamSynchronize(self.s)))
    }
}

impl Drop for Strm {
    fn drop(&mut self) {
        if !self.s.is_null() {
            cu!(cuStreamDestroy_v2(self.s));
        }
    }
}

/// An event without timing.
pub struct Ev {
    pub e: sys::CUevent,
}

impl Ev {
    pub fn new() -> Result<Ev, Stop> {
        Ev::with_flags(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    pub fn timed() -> Result<Ev, Stop> {
        Ev::with_flags(0)
    }

    fn with_flags(flags: u32) -> Result<Ev, Stop> {
        let mut e = null_mut();
        ok("cuEventCreate", cu!(cuEventCreate(&mut e, flags)))?;
        Ok(Ev { e })
    }

    pub fn record(&self, stream: &Strm) -> Done {
        ok("cuEventRecord", cu!(cuEventRecord(self.e, stream.s)))
    }

    /// 0 when complete, 600 when not yet.
    pub fn query(&self) -> u32 {
        cu!(cuEventQuery(self.e))
    }
}

impl Drop for Ev {
    fn drop(&mut self) {
        cu!(cuEventDestroy_v2(self.e));
    }
}

/// A graph.
pub struct Graph {
    pub g: sys::CUgraph,
}

impl Graph {
    pub fn new() -> Result<Graph, Stop> {
        let mut g = null_mut();
        ok("cuGraphCreate", cu!(cuGraphCreate(&mut g, 0)))?;
        Ok(Graph { g })
    }

    pub fn copy(&self) -> Result<Graph, Stop> {
        let mut g = null_mut();
        ok("cuGraphClone", cu!(cuGraphClone(&mut g, self.g)))?;
        Ok(Graph { g })
    }

    /// Captures the work that `work` puts on `stream`, in relaxed mode.
    pub fn capture(stream: &Strm, work: impl FnOnce() -> Done) -> Result<Graph, Stop> {
        begin(stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let done = work();
        let mut g = null_mut();
        let ended = cu!(cuStreamEndCapture(stream.s, &mut g));
        done?;
        ok("cuStreamEndCapture", ended)?;
        Ok(Graph { g })
    }

    pub fn nodes(&self) -> Result<Vec<sys::CUgraphNode>, Stop> {
        let mut n = 0;
        ok("cuGraphGetNodes", cu!(cuGraphGetNodes(self.g, null_mut(), &mut n)))?;
        // The driver refuses an array of length 0.
        if n == 0 {
            return Ok(Vec::new());
        }
        let mut nodes = vec![null_mut(); n];
        ok("cuGraphGetNodes", cu!(cuGraphGetNodes(self.g, nodes.as_mut_ptr(), &mut n)))?;
        Ok(nodes)
    }

    pub fn instantiate(&self) -> Result<Exec, Stop> {
        let mut e = null_mut();
        let status = cu!(cuGraphInstantiateWithFlags(&mut e, self.g, 0));
        ok("cuGraphInstantiateWithFlags", status)?;
        Ok(Exec { e })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        cu!(cuGraphDestroy(self.g));
    }
}

/// An executable graph.
pub struct Exec {
    pub e: sys::CUgraphExec,
}

impl Exec {
    pub fn launch(&self, stream: &Strm) -> Done {
        ok("cuGraphLaunch", cu!(cuGraphLaunch(self.e, stream.s)))
    }

    /// The status, and the reason when it is refused.
    pub fn update(&self, graph: &Graph) -> (u32, sys::CUgraphExecUpdateResultInfo) {
        let mut info = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        (cu!(cuGraphExecUpdate_v2(self.e, graph.g, &mut info)), info)
    }

    /// Updates by the four-argument cuGraphExecUpdate, as programs before 12.0 do. Returns the status, the node that
    /// was refused, and why.
    pub fn update_before_12(&self, graph: &Graph) -> Result<(u32, sys::CUgraphExecUpdateResultInfo), Stop> {
        type Update = unsafe extern "C" fn(
            sys::CUgraphExec,
            sys::CUgraph,
            *mut sys::CUgraphNode,
            *mut sys::CUgraphExecUpdateResult,
        ) -> u32;
        // SAFETY: cuda.h gives cuGraphExecUpdate this type from 10.2 to 11.8, and version 10020 was
        // asked for.
        let update: Update = unsafe { std::mem::transmute(older(c"cuGraphExecUpdate", 10020)?) };
        let mut info = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: std::ptr::dangling_mut(),
            errorFromNode: null_mut(),
        };
        // SAFETY: `update` has the type that the driver gives it. Exec and graph are alive, and
        // both pointers are to locals.
        let status = unsafe { update(self.e, graph.g, &mut info.errorNode, &mut info.result) };
        Ok((status, info))
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        cu!(cuGraphExecDestroy(self.e));
    }
}

pub fn begin(stream: &Strm, mode: Mode) -> Done {
    ok("cuStreamBeginCapture", cu!(cuStreamBeginCapture_v2(stream.s, mode)))
}

/// A function that the headers of CUDA 13 no longer declare, from the driver that
/// still has it.
fn older(name: &std::ffi::CStr, version: i32) -> Result<*mut std::ffi::c_void, Stop> {
    let (mut f, none) = (null_mut(), null_mut());
    let status = cu!(cuGetProcAddress_v2(name.as_ptr(), &mut f, version, 0, none));
    ok(&format!("cuGetProcAddress({name:?}, {version})"), status)?;
    Ok(f)
}

/// A launch of blocks in a row, with these attributes for as long as they live.
pub fn launch_config(
    stream: &Strm,
    blocks: u32,
    threads: u32,
    attributes: &mut [sys::CUlaunchAttribute],
) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.s,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}

pub fn make_current(context: sys::CUcontext) -> Done {
    ok("cuCtxSetCurrent", cu!(cuCtxSetCurrent(context)))
}

/// A new context, made current, from the three-argument cuCtxCreate.
pub fn create_context(device: sys::CUdevice) -> Result<sys::CUcontext, Stop> {
    type Create = unsafe extern "C" fn(*mut sys::CUcontext, u32, sys::CUdevice) -> u32;
    // SAFETY: cuda.h gives cuCtxCreate this type from 3.2 to 11.3, and version 3020 was asked for.
    let create: Create = unsafe { std::mem::transmute(older(c"cuCtxCreate", 3020)?) };
    let mut context = null_mut();
    // SAFETY: `create` has the type that the driver gives it. The caller names a device that
    // exists, and `context` is a local.
    ok("cuCtxCreate", unsafe { create(&mut context, 0, device) })?;
    Ok(context)
}

impl Graph {
    /// Instantiates by the five-argument cuGraphInstantiate, as programs before 12.0 do.
    pub fn instantiate_with_log(&self) -> Result<Exec, Stop> {
        type Instantiate = unsafe extern "C" fn(
            *mut sys::CUgraphExec,
            sys::CUgraph,
            *mut sys::CUgraphNode,
            *mut std::ffi::c_char,
            usize,
        ) -> u32;
        let f = older(c"cuGraphInstantiate", 11000)?;
        // SAFETY: cuda.h gives cuGraphInstantiate this type from 10.0 to 11.8, and version 11000
        // was asked for.
        let instantiate: Instantiate = unsafe { std::mem::transmute(f) };
        let (mut e, mut node, mut log) = (null_mut(), null_mut(), [0; 64]);
        // SAFETY: `instantiate` has the type that the driver gives it. The graph is alive, all
        // pointers are to locals, and the log has the 64 bytes that are named.
        let made = unsafe { instantiate(&mut e, self.g, &mut node, log.as_mut_ptr(), 64) };
        ok("cuGraphInstantiate of five arguments", made)?;
        Ok(Exec { e })
    }
}
