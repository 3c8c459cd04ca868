//! Contexts: current, created, synchronised; limits and flags.

use crate::abi::{H, In, Out};
use gpumem_sim_engine::config::config;
use gpumem_sim_engine::{Error, Result, capture, context, event, green, lock};

fn current() -> Result<H> {
    context::current().ok_or(Error::INVALID_CONTEXT)
}

fn device_of(h: H) -> Result<i32> {
    let h = if h == 0 { current()? } else { h };
    Ok(lock().context(h)?.device as i32)
}

fn limit_default(id: u32) -> usize {
    match id {
        0 => 1024,
        1 | 2 => 8 << 20,
        _ => 0,
    }
}

cu! {
    Init cuCtxCreate [cuCtxCreate_v2 3020] [] (c, out: Out<H>, flags: u32, dev: i32) {
        out.need()?;
        out.set(context::create(dev, flags)?)
    }
    Init cuCtxCreate [cuCtxCreate_v3 11040] [] (c, out: Out<H>, affinity: usize, count: i32, flags: u32, dev: i32) {
        let _ = (affinity, count);
        out.need()?;
        out.set(context::create(dev, flags)?)
    }
    Init cuCtxCreate [cuCtxCreate_v4 12050] [] (c, out: Out<H>, params: usize, flags: u32, dev: i32) {
        let _ = params;
        out.need()?;
        out.set(context::create(dev, flags)?)
    }
    Init cuCtxDestroy [cuCtxDestroy_v2 4000, cuCtxDestroy 2000] [] (c, h: H) { context::destroy(h) }
    Init cuCtxAttach [cuCtxAttach 2000] [] (c, out: Out<H>, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(context::attach()?)
    }
    Init cuCtxDetach [cuCtxDetach 2000] [] (c, h: H) { context::detach(h) }
    Init cuCtxGetCurrent [cuCtxGetCurrent 4000] [] (c, out: Out<H>) { out.set(context::current().unwrap_or(0)) }
    Init cuCtxSetCurrent [cuCtxSetCurrent 4000] [] (c, h: H) { context::set_current(h) }
    Init cuCtxPushCurrent [cuCtxPushCurrent_v2 4000, cuCtxPushCurrent 2000] [] (c, h: H) { context::push(h) }
    Init cuCtxPopCurrent [cuCtxPopCurrent_v2 4000, cuCtxPopCurrent 2000] [] (c, out: Out<H>) {
        out.put(context::pop()?);
        Ok(())
    }
    Init cuCtxGetDevice [cuCtxGetDevice 2000] [] (c, out: Out<i32>) { out.set(device_of(0)?) }
    Init cuCtxGetDevice [cuCtxGetDevice_v2 13000] [] (c, out: Out<i32>, h: H) { out.set(device_of(h)?) }
    Init cuCtxSynchronize [cuCtxSynchronize 2000] [] (c) { let h = context::require(&mut lock())?;
        context::synchronize(h) }
    Init cuCtxSynchronize [cuCtxSynchronize_v2 13000] [] (c, h: H) {
        let h = if h == 0 { context::require(&mut lock())? } else { h };
        context::synchronize(h)
    }
    Init cuCtxGetFlags [cuCtxGetFlags 7000] [] (c, out: Out<u32>) {
        let h = current()?;
        out.set(lock().context(h)?.flags)
    }
    Init cuCtxSetFlags [cuCtxSetFlags 12010] [] (c, flags: u32) {
        let h = current()?;
        lock().context(h)?.flags = flags;
        Ok(())
    }
    Init cuCtxGetId [cuCtxGetId 12000] [] (c, h: H, out: Out<u64>) {
        let h = if h == 0 { current()? } else { h };
        out.set(lock().context(h)?.id)
    }
    Init cuCtxGetApiVersion [cuCtxGetApiVersion 3020] [] (c, h: H, out: Out<u32>) {
        let _ = h;
        out.set(3020)
    }
    Ctx cuCtxGetLimit [cuCtxGetLimit 3010] [] (c, out: Out<usize>, id: u32) {
        if id > 6 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(lock().context(c.ctx)?.limits.get(&id).copied().unwrap_or(limit_default(id)))
    }
    Ctx cuCtxSetLimit [cuCtxSetLimit 3010] [] (c, id: u32, value: usize) {
        if id > 6 {
            return Err(Error::INVALID_VALUE);
        }
        let mut m = lock();
        capture::forbid_unsafe(&mut m)?;
        let old = m.context(c.ctx)?.limits.insert(id, value).unwrap_or(limit_default(id));
        // Room for the stacks of all threads at once, which is not given back.
        let more = (value.saturating_sub(old) as u64 >> 10) * config().stack_mem;
        if id == 0 && more > 0 {
            let device = m.context(c.ctx)?.device;
            m.charge(device, more)?;
            m.context(c.ctx)?.stacks += more;
        }
        Ok(())
    }
    Ctx cuCtxGetCacheConfig [cuCtxGetCacheConfig 3020] [] (c, out: Out<u32>) { out.set(0) }
    Ctx cuCtxSetCacheConfig [cuCtxSetCacheConfig 3020] [] (c, value: u32) {
        if value > 3 { Err(Error::INVALID_VALUE) } else { Ok(()) }
    }
    Ctx cuCtxGetSharedMemConfig [cuCtxGetSharedMemConfig 4020] [] (c, out: Out<u32>) { out.set(1) }
    Ctx cuCtxSetSharedMemConfig [cuCtxSetSharedMemConfig 4020] [] (c, value: u32) {
        if value > 2 { Err(Error::INVALID_VALUE) } else { Ok(()) }
    }
    Ctx cuCtxGetStreamPriorityRange [cuCtxGetStreamPriorityRange 5050] [] (c, least: Out<i32>, greatest: Out<i32>) {
        least.put(0);
        greatest.put(-5);
        Ok(())
    }
    Ctx cuCtxResetPersistingL2Cache [cuCtxResetPersistingL2Cache 11000] [] (c) { Ok(()) }
    Init cuCtxRecordEvent [cuCtxRecordEvent 12050] [] (c, h: H, event: H) {
        let h = if h == 0 { current()? } else { h };
        event::record_context(event, h)
    }
    Init cuCtxWaitEvent [cuCtxWaitEvent 12050] [] (c, h: H, event: H) {
        let h = if h == 0 { current()? } else { h };
        event::wait_context(event, h)
    }
    Ctx cuCtxEnablePeerAccess [cuCtxEnablePeerAccess 4000] [] (c, peer: H, flags: u32) {
        let mut m = lock();
        m.context(peer)?;
        if flags != 0 || peer == c.ctx {
            return Err(Error::INVALID_VALUE);
        }
        let own = m.context(c.ctx)?;
        if own.peers.contains(&peer) {
            return Err(Error::PEER_ACCESS_ALREADY_ENABLED);
        }
        own.peers.push(peer);
        Ok(())
    }
    Init cuGreenCtxCreate [cuGreenCtxCreate 12040] [] (c, out: Out<H>, desc: usize, dev: i32, flags: u32) {
        out.need()?;
        out.set(green::create(desc, dev, flags)?)
    }
    Init cuGreenCtxDestroy [cuGreenCtxDestroy 12040] [] (c, h: H) { green::destroy(h) }
    Init cuCtxFromGreenCtx [cuCtxFromGreenCtx 12040] [] (c, out: Out<H>, h: H) { out.set(green::context(h)?) }
    Init cuGreenCtxStreamCreate [cuGreenCtxStreamCreate 12050] [] (c, out: Out<H>, h: H, flags: u32, priority: i32) {
        out.need()?;
        out.set(green::create_stream(h, flags, priority)?)
    }
    Ctx cuCtxDisablePeerAccess [cuCtxDisablePeerAccess 4000] [] (c, peer: H) {
        let mut m = lock();
        let own = m.context(c.ctx)?;
        let at = own.peers.iter().position(|p| *p == peer).ok_or(Error::PEER_ACCESS_NOT_ENABLED)?;
        own.peers.remove(at);
        Ok(())
    }
    Init cuThreadExchangeStreamCaptureMode [cuThreadExchangeStreamCaptureMode 10010] [] (c, mode: Out<u32>) {
        let new = mode.get()?;
        mode.set(capture::exchange_mode(new)?)
    }
    /// Asynchronous notifications never come.
    Init cuFlushGPUDirectRDMAWrites [cuFlushGPUDirectRDMAWrites 11030] [] (c, target: u32, scope: u32) {
        let _ = (target, scope, In::<u8>::at(0));
        Ok(())
    }
}
