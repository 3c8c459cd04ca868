//! Streams and their captures; host functions; waits and writes of values.

use crate::abi::{Call, H, In, Out};
use crate::structs::MemOpParams;
use gpumem_sim_engine::capture::{self, Info};
use gpumem_sim_engine::node::{HostFn, Kind, MemOp};
use gpumem_sim_engine::params::{mem_op, mem_ops};
use gpumem_sim_engine::{Error, Result, lock, stream, work};

type Edge = [u8; 8];

fn host_fn(c: &Call, h: H, f: usize, data: usize, callback: bool) -> Result {
    if f == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let s = c.stream(h)?;
    let mut m = lock();
    let stream = callback.then_some(h);
    stream::submit(&mut m, s, Kind::Host(HostFn { f, data, stream })).map(drop)
}

fn submit_ops(c: &Call, h: H, ops: Vec<MemOp>) -> Result {
    let s = c.stream(h)?;
    let mut m = lock();
    let kind = Kind::MemOps(ops);
    work::check(&m, &kind)?;
    stream::submit(&mut m, s, kind).map(drop)
}

fn one(c: &Call, h: H, op: u32, address: u64, value: u64, flags: u32) -> Result {
    let p = MemOpParams { op, address, value, flags, alias: 0, rest: 0 };
    submit_ops(c, h, mem_op(&p, Error::INVALID_VALUE)?.into_iter().collect())
}

/// The dependency list must outlive the call: it is the stream's, until its
/// next capture call.
fn deps_view(c: &Call, h: H, info: &Info) -> Result<usize> {
    let s = c.stream(h)?;
    let nodes: Vec<H> = info.deps.iter().map(|d| d.0).collect();
    let edges: Vec<Edge> = info.deps.iter().map(|d| d.1).collect();
    Ok(lock().stream(s)?.keep_view(nodes, edges).0)
}

fn plain(nodes: Vec<H>) -> Vec<(H, Edge)> {
    nodes.into_iter().map(|h| (h, [0; 8])).collect()
}

hip! {
    Ctx hipStreamCreate [] (c, out: Out<H>) {
        out.need()?;
        out.set(stream::create(c.ctx, 0, 0)?)
    }
    Ctx hipStreamCreateWithFlags [] (c, out: Out<H>, flags: u32) {
        out.need()?;
        out.set(stream::create(c.ctx, flags, 0)?)
    }
    /// Compute units are not simulated: the mask restricts nothing.
    Ctx hipExtStreamCreateWithCUMask [] (c, out: Out<H>, words: u32, mask: In<u32>) {
        out.need()?;
        if words == 0 {
            return Err(Error::INVALID_VALUE);
        }
        mask.list(words as usize)?;
        out.set(stream::create(c.ctx, 0, 0)?)
    }
    Ctx hipStreamCreateWithPriority [] (c, out: Out<H>, flags: u32, priority: i32) {
        out.need()?;
        out.set(stream::create(c.ctx, flags, priority)?)
    }
    Init hipStreamDestroy [] (c, h: H) {
        if h <= stream::PER_THREAD {
            return Err(Error::INVALID_HANDLE);
        }
        stream::destroy(c.stream(h)?)
    }
    Init hipStreamSynchronize [hipStreamSynchronize_spt] (c, h: H) { stream::synchronize(c.stream(h)?) }
    Init hipStreamQuery [hipStreamQuery_spt] (c, h: H) { stream::query(c.stream(h)?) }
    Init hipStreamGetFlags [hipStreamGetFlags_spt] (c, h: H, out: Out<u32>) {
        let s = c.stream(h)?;
        out.set(lock().stream(s)?.flags)
    }
    Init hipStreamGetPriority [hipStreamGetPriority_spt] (c, h: H, out: Out<i32>) {
        let s = c.stream(h)?;
        out.set(lock().stream(s)?.priority)
    }
    Init hipStreamGetDevice [] (c, h: H, out: Out<i32>) {
        let s = c.stream(h)?;
        let mut m = lock();
        let ctx = m.stream(s)?.ctx;
        out.set(m.context(ctx)?.device as i32)
    }
    Init hipStreamBeginCapture [hipStreamBeginCapture_spt] (c, h: H, mode: u32) {
        capture::begin(c.stream(h)?, mode, None)
    }
    Init hipStreamBeginCaptureToGraph []
    (c, h: H, graph: H, deps: In<H>, edges: In<Edge>, n: usize, mode: u32) {
        let nodes = deps.list(n)?;
        let deps = if edges.is_null() { plain(nodes) } else { nodes.into_iter().zip(edges.list(n)?).collect() };
        capture::begin(c.stream(h)?, mode, Some((graph, deps)))
    }
    Init hipStreamEndCapture [hipStreamEndCapture_spt] (c, h: H, out: Out<H>) {
        out.set(0)?;
        out.set(capture::end(c.stream(h)?)?)
    }
    Init hipStreamIsCapturing [hipStreamIsCapturing_spt] (c, h: H, out: Out<u32>) {
        out.set(capture::info(c.stream(h)?)?.status)
    }
    Init hipStreamGetCaptureInfo [hipStreamGetCaptureInfo_spt] (c, h: H, status: Out<u32>, id: Out<u64>) {
        let info = capture::info(c.stream(h)?)?;
        status.set(info.status)?;
        if info.status == 1 {
            id.put(info.id);
        }
        Ok(())
    }
    Init hipStreamGetCaptureInfo_v2 [hipStreamGetCaptureInfo_v2_spt]
    (c, h: H, status: Out<u32>, id: Out<u64>, graph: Out<H>, deps: Out<usize>, n: Out<usize>) {
        let info = capture::info(c.stream(h)?)?;
        status.set(info.status)?;
        if info.status == 1 {
            id.put(info.id);
            graph.put(info.graph);
            deps.put(deps_view(c, h, &info)?);
            n.put(info.deps.len());
        }
        Ok(())
    }
    Init hipStreamUpdateCaptureDependencies [] (c, h: H, deps: In<H>, n: usize, flags: u32) {
        capture::update_deps(c.stream(h)?, plain(deps.list(n)?), flags == 1)
    }
    Init hipThreadExchangeStreamCaptureMode [] (c, mode: Out<u32>) {
        let new = mode.get()?;
        mode.set(capture::exchange_mode(new)?)
    }
    Init hipLaunchHostFunc [hipLaunchHostFunc_spt] (c, h: H, f: usize, data: usize) { host_fn(c, h, f, data, false) }
    Init hipStreamAddCallback [hipStreamAddCallback_spt] (c, h: H, f: usize, data: usize, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        host_fn(c, h, f, data, true)
    }
    /// Only whole values are compared. Any other mask is refused.
    Init hipStreamWaitValue32 [] (c, h: H, addr: u64, value: u32, flags: u32, mask: u32) {
        if mask != u32::MAX {
            return Err(Error::NOT_SUPPORTED);
        }
        one(c, h, 1, addr, value as u64, flags)
    }
    Init hipStreamWaitValue64 [] (c, h: H, addr: u64, value: u64, flags: u32, mask: u64) {
        if mask != u64::MAX {
            return Err(Error::NOT_SUPPORTED);
        }
        one(c, h, 4, addr, value, flags)
    }
    Init hipStreamWriteValue32 [] (c, h: H, addr: u64, value: u32, flags: u32) { one(c, h, 2, addr, value as u64, flags) }
    Init hipStreamWriteValue64 [] (c, h: H, addr: u64, value: u64, flags: u32) { one(c, h, 5, addr, value, flags) }
    Init hipStreamBatchMemOp [] (c, h: H, n: u32, list: In<MemOpParams>, flags: u32) {
        if flags != 0 || n > 256 {
            return Err(Error::INVALID_VALUE);
        }
        submit_ops(c, h, mem_ops(list, n, Error::INVALID_VALUE)?)
    }
}
