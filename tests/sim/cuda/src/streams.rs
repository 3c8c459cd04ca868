//! Streams and their captures; host functions; waits and writes of values.

use crate::abi::{Call, H, In, Out};
use crate::structs::MemOpParams;
use gpumem_sim_engine::capture::{self, Info};
use gpumem_sim_engine::node::{HostFn, Kind, MemOp};
use gpumem_sim_engine::params::{mem_op, mem_ops};
use gpumem_sim_engine::{Error, Result, lock, stream};

type Edge = [u8; 8];

fn host_fn(c: &Call, h: H, f: usize, data: usize, callback: bool) -> Result {
    if f == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let s = c.stream(h)?;
    let mut m = lock();
    if callback && capture::active(&mut m, s)? {
        capture::invalidate_of(&mut m, s);
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    let stream = callback.then_some(h);
    stream::submit(&mut m, s, Kind::Host(HostFn { f, data, stream })).map(drop)
}

fn submit_ops(c: &Call, h: H, ops: Vec<MemOp>) -> Result {
    let s = c.stream(h)?;
    let mut m = lock();
    let kind = Kind::MemOps(ops);
    gpumem_sim_engine::work::check(&m, &kind)?;
    stream::submit(&mut m, s, kind).map(drop)
}

fn one(c: &Call, h: H, op: u32, address: u64, value: u64, flags: u32) -> Result {
    let p = MemOpParams { op, address, value, flags, alias: 0, rest: 0 };
    submit_ops(c, h, mem_op(&p, Error::NOT_SUPPORTED)?.into_iter().collect())
}

/// The dependency list must outlive the call: it is the stream's, until its
/// next capture call.
fn deps_view(c: &Call, h: H, info: &Info) -> Result<(usize, usize)> {
    let s = c.stream(h)?;
    let nodes: Vec<H> = info.deps.iter().map(|d| d.0).collect();
    let edges: Vec<Edge> = info.deps.iter().map(|d| d.1).collect();
    Ok(lock().stream(s)?.keep_view(nodes, edges))
}

fn begin_to_graph(c: &Call, h: H, graph: H, deps: In<H>, edges: In<Edge>, n: usize, mode: u32) -> Result {
    let nodes = deps.list(n)?;
    let data = if edges.is_null() { vec![[0; 8]; n] } else { edges.list(n)? };
    let deps = nodes.into_iter().zip(data).collect();
    capture::begin(c.stream(h)?, mode, Some((graph, deps)))
}

fn update_deps(c: &Call, h: H, deps: In<H>, edges: In<Edge>, n: usize, flags: u32) -> Result {
    let nodes = deps.list(n)?;
    let data = if edges.is_null() { vec![[0; 8]; n] } else { edges.list(n)? };
    capture::update_deps(c.stream(h)?, nodes.into_iter().zip(data).collect(), flags == 1)
}

fn attribute(c: &Call, h: H, id: u32) -> Result<[u8; 64]> {
    let s = c.stream(h)?;
    let mut m = lock();
    let s = m.stream(s)?;
    let mut value = s.attrs.get(&id).copied().unwrap_or([0; 64]);
    if id == 8 {
        value[..4].copy_from_slice(&s.priority.to_le_bytes());
    }
    Ok(value)
}

cu! {
    Ctx cuStreamCreate [cuStreamCreate 2000] [] (c, out: Out<H>, flags: u32) {
        out.need()?;
        out.set(stream::create(c.ctx, flags, 0)?)
    }
    Ctx cuStreamCreateWithPriority [cuStreamCreateWithPriority 5050] [] (c, out: Out<H>, flags: u32, priority: i32) {
        out.need()?;
        out.set(stream::create(c.ctx, flags, priority)?)
    }
    Init cuStreamDestroy [cuStreamDestroy_v2 4000, cuStreamDestroy 2000] [] (c, h: H) {
        if h <= stream::PER_THREAD {
            return Err(Error::INVALID_HANDLE);
        }
        if lock().detached.contains(&h) {
            return Err(Error::CONTEXT_IS_DESTROYED);
        }
        let s = c.stream(h)?;
        stream::destroy(s)
    }
    Init cuStreamSynchronize [cuStreamSynchronize 2000] [cuStreamSynchronize_ptsz 7000] (c, h: H) {
        stream::synchronize(c.stream(h)?)
    }
    Init cuStreamQuery [cuStreamQuery 2000] [cuStreamQuery_ptsz 7000] (c, h: H) { stream::query(c.stream(h)?) }
    Init cuStreamGetFlags [cuStreamGetFlags 5050] [cuStreamGetFlags_ptsz 7000] (c, h: H, out: Out<u32>) {
        out.set(stream::flags(c.stream(h)?)?)
    }
    Init cuStreamGetPriority [cuStreamGetPriority 5050] [cuStreamGetPriority_ptsz 7000] (c, h: H, out: Out<i32>) {
        let s = c.stream(h)?;
        out.set(lock().stream(s)?.priority)
    }
    Init cuStreamGetId [cuStreamGetId 12000] [cuStreamGetId_ptsz 12000] (c, h: H, out: Out<u64>) {
        let s = c.stream(h)?;
        out.set(lock().stream(s)?.id)
    }
    Init cuStreamGetCtx [cuStreamGetCtx 9020] [cuStreamGetCtx_ptsz 9020] (c, h: H, out: Out<H>) {
        let s = c.stream(h)?;
        out.set(lock().stream(s)?.ctx)
    }
    Init cuStreamGetCtx [cuStreamGetCtx_v2 12050] [cuStreamGetCtx_v2_ptsz 12050] (c, h: H, out: Out<H>, green: Out<H>) {
        let s = c.stream(h)?;
        green.put(0);
        out.set(lock().stream(s)?.ctx)
    }
    Init cuStreamGetDevice [cuStreamGetDevice 12080] [cuStreamGetDevice_ptsz 12080] (c, h: H, out: Out<i32>) {
        let s = c.stream(h)?;
        let mut m = lock();
        let ctx = m.stream(s)?.ctx;
        out.set(m.context(ctx)?.device as i32)
    }
    Init cuStreamGetAttribute [cuStreamGetAttribute 11000] [cuStreamGetAttribute_ptsz 11000] (c, h: H, id: u32, out: Out<[u8; 64]>) {
        out.set(attribute(c, h, id)?)
    }
    Init cuStreamSetAttribute [cuStreamSetAttribute 11000] [cuStreamSetAttribute_ptsz 11000] (c, h: H, id: u32, value: In<[u8; 64]>) {
        let (s, value) = (c.stream(h)?, value.get()?);
        lock().stream(s)?.attrs.insert(id, value);
        Ok(())
    }
    Init cuStreamCopyAttributes [cuStreamCopyAttributes 11000] [cuStreamCopyAttributes_ptsz 11000] (c, dst: H, src: H) {
        let (d, s) = (c.stream(dst)?, c.stream(src)?);
        let mut m = lock();
        let attrs = m.stream(s)?.attrs.clone();
        m.stream(d)?.attrs = attrs;
        Ok(())
    }
    Init cuStreamBeginCapture [cuStreamBeginCapture_v2 10010] [cuStreamBeginCapture_v2_ptsz 10010] (c, h: H, mode: u32) {
        capture::begin(c.stream(h)?, mode, None)
    }
    Init cuStreamBeginCapture [cuStreamBeginCapture 10000] [cuStreamBeginCapture_ptsz 10000] (c, h: H) {
        capture::begin(c.stream(h)?, capture::GLOBAL, None)
    }
    Init cuStreamBeginCaptureToGraph [cuStreamBeginCaptureToGraph 12030] [cuStreamBeginCaptureToGraph_ptsz 12030]
    (c, h: H, graph: H, deps: In<H>, edges: In<Edge>, n: usize, mode: u32) {
        begin_to_graph(c, h, graph, deps, edges, n, mode)
    }
    Init cuStreamEndCapture [cuStreamEndCapture 10000] [cuStreamEndCapture_ptsz 10000] (c, h: H, out: Out<H>) {
        out.need()?.set(0)?;
        out.set(capture::end(c.stream(h)?)?)
    }
    Init cuStreamIsCapturing [cuStreamIsCapturing 10000] [cuStreamIsCapturing_ptsz 10000] (c, h: H, out: Out<u32>) {
        out.set(capture::info(c.stream(h)?)?.status)
    }
    Init cuStreamGetCaptureInfo [cuStreamGetCaptureInfo_v2 11030] [cuStreamGetCaptureInfo_v2_ptsz 11030]
    (c, h: H, status: Out<u32>, id: Out<u64>, graph: Out<H>, deps: Out<usize>, n: Out<usize>) {
        let info = capture::info(c.stream(h)?)?;
        status.set(info.status)?;
        if info.status == 1 {
            id.put(info.id);
            graph.put(info.graph);
            deps.put(deps_view(c, h, &info)?.0);
            n.put(info.deps.len());
        }
        Ok(())
    }
    Init cuStreamGetCaptureInfo [cuStreamGetCaptureInfo_v3 12030] [cuStreamGetCaptureInfo_v3_ptsz 12030]
    (c, h: H, status: Out<u32>, id: Out<u64>, graph: Out<H>, deps: Out<usize>, edges: Out<usize>, n: Out<usize>) {
        let info = capture::info(c.stream(h)?)?;
        status.set(info.status)?;
        if info.status == 1 {
            let view = deps_view(c, h, &info)?;
            id.put(info.id);
            graph.put(info.graph);
            deps.put(view.0);
            edges.put(view.1);
            n.put(info.deps.len());
        }
        Ok(())
    }
    Init cuStreamGetCaptureInfo [cuStreamGetCaptureInfo 10010] [cuStreamGetCaptureInfo_ptsz 10010]
    (c, h: H, status: Out<u32>, id: Out<u64>) {
        let info = capture::info(c.stream(h)?)?;
        status.set(info.status)?;
        if info.status == 1 {
            id.put(info.id);
        }
        Ok(())
    }
    Init cuStreamUpdateCaptureDependencies [cuStreamUpdateCaptureDependencies_v2 12030] [cuStreamUpdateCaptureDependencies_v2_ptsz 12030]
    (c, h: H, deps: In<H>, edges: In<Edge>, n: usize, flags: u32) {
        update_deps(c, h, deps, edges, n, flags)
    }
    Init cuStreamUpdateCaptureDependencies [cuStreamUpdateCaptureDependencies 11030] [cuStreamUpdateCaptureDependencies_ptsz 11030]
    (c, h: H, deps: In<H>, n: usize, flags: u32) {
        update_deps(c, h, deps, In::at(0), n, flags)
    }
    Init cuLaunchHostFunc [cuLaunchHostFunc 10000] [cuLaunchHostFunc_ptsz 10000] (c, h: H, f: usize, data: usize) {
        host_fn(c, h, f, data, false)
    }
    Init cuStreamAddCallback [cuStreamAddCallback 5000] [cuStreamAddCallback_ptsz 7000]
    (c, h: H, f: usize, data: usize, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        host_fn(c, h, f, data, true)
    }
    Init cuStreamWaitValue32 [cuStreamWaitValue32_v2 11070, cuStreamWaitValue32 8000] [cuStreamWaitValue32_v2_ptsz 11070, cuStreamWaitValue32_ptsz 8000]
    (c, h: H, addr: u64, value: u32, flags: u32) {
        one(c, h, 1, addr, value as u64, flags)
    }
    Init cuStreamWaitValue64 [cuStreamWaitValue64_v2 11070, cuStreamWaitValue64 9000] [cuStreamWaitValue64_v2_ptsz 11070, cuStreamWaitValue64_ptsz 9000]
    (c, h: H, addr: u64, value: u64, flags: u32) {
        one(c, h, 4, addr, value, flags)
    }
    Init cuStreamWriteValue32 [cuStreamWriteValue32_v2 11070, cuStreamWriteValue32 8000] [cuStreamWriteValue32_v2_ptsz 11070, cuStreamWriteValue32_ptsz 8000]
    (c, h: H, addr: u64, value: u32, flags: u32) {
        one(c, h, 2, addr, value as u64, flags)
    }
    Init cuStreamWriteValue64 [cuStreamWriteValue64_v2 11070, cuStreamWriteValue64 9000] [cuStreamWriteValue64_v2_ptsz 11070, cuStreamWriteValue64_ptsz 9000]
    (c, h: H, addr: u64, value: u64, flags: u32) {
        one(c, h, 5, addr, value, flags)
    }
    Init cuStreamBatchMemOp [cuStreamBatchMemOp_v2 11070, cuStreamBatchMemOp 8000] [cuStreamBatchMemOp_v2_ptsz 11070, cuStreamBatchMemOp_ptsz 8000]
    (c, h: H, n: u32, list: In<MemOpParams>, flags: u32) {
        if flags != 0 || n > 256 {
            return Err(Error::INVALID_VALUE);
        }
        submit_ops(c, h, mem_ops(list, n, Error::NOT_SUPPORTED)?)
    }
}
