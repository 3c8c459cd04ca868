//! Opens the device and creates what lives as long as the process.

use super::api::{Api, Status};
use super::objects::{Fixed, Real, cu};
use super::program::{BLOCKING, EVENTS, LEGACY, STREAMS};
use super::runtime::Runtime;
use super::work::{Buf, Kernel, Work};
use crate::conformance::CLUSTER_PTX;
use std::collections::BTreeMap;
use std::ptr::null_mut;

impl Real {
    /// Opens the first device. `words`: dumps show every word.
    ///
    /// # Errors
    /// Says which call failed, and with which status.
    pub fn open(words: bool) -> Result<Self, String> {
        crate::conformance::available()?;
        let need =
            |what: &str, status: Status| if status == 0 { Ok(()) } else { Err(format!("{what} gives {status}")) };
        let mut ctx = null_mut();
        need("cuDevicePrimaryCtxRetain", cu!(cuDevicePrimaryCtxRetain(&mut ctx, 0)))?;
        need("cuCtxSetCurrent", cu!(cuCtxSetCurrent(ctx)))?;
        let bytes = Buf::WORDS as usize * 4;
        let (mut device, mut host) = (Vec::new(), Vec::new());
        for _ in 0..=Buf::DEVICE {
            let mut address = 0;
            need("cuMemAlloc", cu!(cuMemAlloc_v2(&mut address, bytes)))?;
            device.push(address);
        }
        let scratch = device.pop().unwrap_or(0);
        for _ in 0..Buf::HOST {
            let mut address = null_mut();
            need("cuMemAllocHost", cu!(cuMemAllocHost_v2(&mut address, bytes)))?;
            host.push(address as usize);
        }
        let (mut least, mut greatest) = (0, 0);
        cu!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
        let mut streams = vec![0; STREAMS];
        for (s, slot) in streams.iter_mut().enumerate().take(LEGACY) {
            let mut stream = null_mut();
            let priority = if s == 1 { greatest } else { least };
            let made = cu!(cuStreamCreateWithPriority(&mut stream, u32::from(s != BLOCKING), priority));
            need("cuStreamCreateWithPriority", made)?;
            *slot = stream as usize;
        }
        let mut events = vec![0; EVENTS];
        for slot in &mut events {
            let mut event = null_mut();
            need("cuEventCreate", cu!(cuEventCreate(&mut event, 2)))?;
            *slot = event as usize;
        }
        let (mut module, mut cluster) = (null_mut(), null_mut());
        if cu!(cuModuleLoadData(&mut module, CLUSTER_PTX.as_ptr().cast())) == 0 {
            cu!(cuModuleGetFunction(&mut cluster, module, c"cluster_size".as_ptr()));
        }
        let fixed = Fixed {
            ctx: ctx as usize,
            device,
            host,
            streams,
            events,
            cluster: cluster as usize,
            scratch,
            words,
            runtime: Runtime::open(),
        };
        let mut real =
            Self { fixed: fixed.into(), graphs: BTreeMap::new(), execs: BTreeMap::new(), modules: BTreeMap::new() };
        need("loading the kernels", real.load(0))?;
        let k = Kernel { grid: 1, block: 32, ..Kernel::default() };
        if !cluster.is_null() {
            need("the first launch", real.put(0, &Work::Cluster { b: Buf(0), k }, false))?;
        }
        need("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
        real.fresh();
        Ok(real)
    }
}
