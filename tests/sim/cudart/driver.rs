//! The driver as the runtime finds it: by name, version and flag.

use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

/// Addresses and handles pass through untouched.
pub type P = usize;
/// A CUDA error code, the same number in driver and runtime.
pub type Result<T = ()> = std::result::Result<T, u32>;

const SHARED_OBJECT_INIT_FAILED: u32 = 303;
const INSUFFICIENT_DRIVER: u32 = 35;
const NOT_SUPPORTED: u32 = 801;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

/// The form of 11.3, which runtime 11 knows, and that of 12.
#[cfg(runtime11)]
type GetProcAddress = unsafe extern "C" fn(*const i8, *mut usize, i32, u64) -> u32;
#[cfg(not(runtime11))]
type GetProcAddress = unsafe extern "C" fn(*const i8, *mut usize, i32, u64, *mut u32) -> u32;
#[cfg(runtime11)]
const GET_PROC_ADDRESS: &CStr = c"cuGetProcAddress";
#[cfg(not(runtime11))]
const GET_PROC_ADDRESS: &CStr = c"cuGetProcAddress_v2";

/// Returns true if the driver has a function, whose address it then writes to `out`.
///
/// # Safety
/// `get` is the driver's own function of that name.
#[cfg(runtime11)]
unsafe fn ask(get: GetProcAddress, name: &CStr, out: &mut usize, version: i32, flags: u64) -> bool {
    // SAFETY: our caller vouches for `get`. The name ends in NUL, and `out` takes an address.
    unsafe { get(name.as_ptr().cast(), out, version, flags) == 0 }
}

/// As above, by the form of 12.
///
/// # Safety
/// `get` is the driver's own function of that name.
#[cfg(not(runtime11))]
unsafe fn ask(get: GetProcAddress, name: &CStr, out: &mut usize, version: i32, flags: u64) -> bool {
    let mut status = 0;
    // SAFETY: our caller vouches for `get`. The name ends in NUL, and both out-parameters are locals of theirs.
    unsafe { get(name.as_ptr().cast(), out, version, flags, &mut status) == 0 && status == 0 }
}

struct Loader {
    get: GetProcAddress,
}

impl Loader {
    fn open() -> Result<Loader> {
        // SAFETY: both names are constants that end in NUL. GetProcAddress is the type of the
        // function with that name, and the library is never closed.
        unsafe {
            let lib = libc_dlopen(c"libcuda.so.1".as_ptr(), 1);
            if lib.is_null() {
                return Err(INSUFFICIENT_DRIVER);
            }
            let get = libc_dlsym(lib, GET_PROC_ADDRESS.as_ptr());
            if get.is_null() {
                return Err(SHARED_OBJECT_INIT_FAILED);
            }
            Ok(Loader { get: std::mem::transmute::<*mut c_void, GetProcAddress>(get) })
        }
    }

    /// 0 if the driver has no such function.
    fn find(&self, name: &str, version: i32, flags: u64) -> usize {
        let Ok(name) = CString::new(name) else {
            return 0;
        };
        // A runtime does not know functions that are newer than itself.
        if version / 1000 > crate::VERSION / 1000 {
            return 0;
        }
        let mut out = 0;
        // SAFETY: `open` found the driver's own function, of the type that `ask` is given. `name` is a
        // CString, and `out` is a local.
        if unsafe { ask(self.get, &name, &mut out, version, flags) } { out } else { 0 }
    }
}

unsafe extern "C" {
    #[link_name = "dlopen"]
    fn libc_dlopen(name: *const std::ffi::c_char, flags: i32) -> *mut c_void;
    #[link_name = "dlsym"]
    fn libc_dlsym(lib: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void;
}

/// One call into the driver, in the caller's default-stream mode.
#[derive(Clone, Copy)]
pub struct Rt {
    pub driver: &'static Driver,
    pub per_thread: bool,
}

/// The driver's name of a row: several versions of a function have rows.
fn named(row: &str) -> &str {
    row.trim_start_matches("v1_").trim_start_matches("v2_")
}

macro_rules! driver {
    ($($name:ident $version:literal $(/ $twin:literal)? ($($a:ident: $t:ty),*);)*) => {
        /// Legacy and per-thread address of each function; 0 where there is none.
        #[allow(non_snake_case)]
        pub struct Driver {
            $($name: [usize; 2],)*
        }

        impl Driver {
            fn load() -> Result<Driver> {
                let l = Loader::open()?;
                Ok(Driver {
                    $($name: [
                        l.find(named(stringify!($name)), $version, 0),
                        0 $(+ l.find(named(stringify!($name)), $twin, 2))?,
                    ],)*
                })
            }
        }

        #[allow(non_snake_case, clippy::too_many_arguments, dead_code)]
        impl Rt {
            $(pub fn $name(self, $($a: $t),*) -> Result {
                let [legacy, twin] = self.driver.$name;
                let f = if self.per_thread && twin != 0 { twin } else { legacy };
                if f == 0 {
                    return Err(NOT_SUPPORTED);
                }
                // SAFETY: `load` asked for the function by this name and version, and the row gives
                // it the type that cuda.h has for them. The pointers come from our caller, who
                // keeps the API's contract.
                let r = unsafe {
                    std::mem::transmute::<usize, unsafe extern "C" fn($($t),*) -> u32>(f)($($a),*)
                };
                if r == 0 { Ok(()) } else { Err(r) }
            })*
        }
    };
}

/// The driver, looked up once; the lookup is repeated if there was none.
pub fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    if let Some(d) = DRIVER.get() {
        return Ok(d);
    }
    let d = Driver::load()?;
    let _ = DRIVER.set(d);
    DRIVER.get().ok_or(SHARED_OBJECT_INIT_FAILED)
}

driver! {
    cuInit 2000 (flags: u32);
    cuDriverGetVersion 2020 (out: P);
    cuGetProcAddress 12000 (name: P, out: P, version: i32, flags: u64, status: P);
    cuGetErrorName 6000 (code: u32, out: P);
    cuGetErrorString 6000 (code: u32, out: P);
    cuDeviceGet 2000 (out: P, n: i32);
    cuDeviceGetCount 2000 (out: P);
    cuDeviceGetName 2000 (out: P, n: i32, dev: i32);
    cuDeviceGetUuid 11040 (out: P, dev: i32);
    cuDeviceTotalMem 3020 (out: P, dev: i32);
    cuDeviceGetAttribute 2000 (out: P, id: u32, dev: i32);
    cuDeviceGetP2PAttribute 8000 (out: P, id: u32, a: i32, b: i32);
    cuDeviceGetByPCIBusId 4010 (out: P, text: P);
    cuDeviceGetPCIBusId 4010 (out: P, n: i32, dev: i32);
    cuDeviceCanAccessPeer 4000 (out: P, a: i32, b: i32);
    cuDeviceGetDefaultMemPool 11020 (out: P, dev: i32);
    cuDeviceGetMemPool 11020 (out: P, dev: i32);
    cuDeviceSetMemPool 11020 (dev: i32, pool: P);
    cuMemGetDefaultMemPool 13000 (out: P, at: P, kind: u32);
    cuMemGetMemPool 13000 (out: P, at: P, kind: u32);
    cuMemSetMemPool 13000 (at: P, kind: u32, pool: P);
    cuDeviceGetGraphMemAttribute 11040 (dev: i32, id: u32, out: P);
    cuDeviceSetGraphMemAttribute 11040 (dev: i32, id: u32, value: P);
    cuDeviceGraphMemTrim 11040 (dev: i32);
    cuDevicePrimaryCtxRetain 7000 (out: P, dev: i32);
    cuDevicePrimaryCtxReset 7000 (dev: i32);
    cuDevicePrimaryCtxGetState 7000 (dev: i32, flags: P, active: P);
    cuDevicePrimaryCtxSetFlags 11000 (dev: i32, flags: u32);
    cuCtxGetCurrent 4000 (out: P);
    cuCtxSetCurrent 4000 (ctx: P);
    cuCtxGetDevice 2000 (out: P);
    cuCtxGetLimit 3010 (out: P, id: u32);
    cuCtxSetLimit 3010 (id: u32, value: usize);
    cuCtxGetStreamPriorityRange 5050 (least: P, greatest: P);
    cuCtxSynchronize 2000 ();
    cuCtxEnablePeerAccess 4000 (ctx: P, flags: u32);
    cuCtxDisablePeerAccess 4000 (ctx: P);
    cuMemAlloc 3020 (out: P, n: usize);
    cuMemAllocPitch 3020 (out: P, pitch: P, width: usize, height: usize, elem: u32);
    cuMemAllocManaged 6000 (out: P, n: usize, flags: u32);
    cuMemFree 3020 (p: P);
    cuMemHostAlloc 2020 (out: P, n: usize, flags: u32);
    cuMemFreeHost 2000 (p: P);
    cuMemHostRegister 6050 (p: P, n: usize, flags: u32);
    cuMemHostUnregister 4000 (p: P);
    cuMemHostGetDevicePointer 3020 (out: P, p: P, flags: u32);
    cuMemHostGetFlags 2030 (out: P, p: P);
    cuMemGetInfo 3020 (free: P, total: P);
    cuMemGetAddressRange 3020 (base: P, size: P, p: P);
    cuPointerGetAttributes 7000 (n: u32, ids: P, out: P, p: P);
    cuMemAdvise 12020 (p: P, n: usize, advice: u32, at: Location);
    cuMemPrefetchAsync 12020 / 12020 (p: P, n: usize, at: Location, flags: u32, s: P);
    cuMemRangeGetAttribute 8000 (out: P, size: usize, id: u32, p: P, n: usize);
    cuStreamAttachMemAsync 6000 / 7000 (s: P, p: P, n: usize, flags: u32);
    cuMemAllocAsync 11020 / 11020 (out: P, n: usize, s: P);
    cuMemAllocFromPoolAsync 11020 / 11020 (out: P, n: usize, pool: P, s: P);
    cuMemFreeAsync 11020 / 11020 (p: P, s: P);
    cuMemPoolCreate 11020 (out: P, props: P);
    cuMemPoolDestroy 11020 (pool: P);
    cuMemPoolTrimTo 11020 (pool: P, keep: usize);
    cuMemPoolGetAttribute 11020 (pool: P, id: u32, out: P);
    cuMemPoolSetAttribute 11020 (pool: P, id: u32, value: P);
    cuMemPoolSetAccess 11020 (pool: P, list: P, n: usize);
    cuMemPoolGetAccess 11020 (out: P, pool: P, at: P);
    cuArrayCreate 3020 (out: P, desc: P);
    cuArray3DCreate 3020 (out: P, desc: P);
    cuArray3DGetDescriptor 3020 (out: P, array: P);
    cuArrayDestroy 2000 (array: P);
    cuIpcGetMemHandle 4010 (out: P, p: P);
    cuIpcOpenMemHandle 11000 (out: P, key: IpcHandle, flags: u32);
    cuIpcCloseMemHandle 4010 (p: P);
    cuIpcGetEventHandle 4010 (out: P, event: P);
    cuMemcpy 4000 / 7000 (d: P, s: P, n: usize);
    cuMemcpyAsync 4000 / 7000 (d: P, s: P, n: usize, st: P);
    cuMemcpyHtoD 3020 / 7000 (d: P, s: P, n: usize);
    cuMemcpyDtoH 3020 / 7000 (d: P, s: P, n: usize);
    cuMemcpyDtoD 3020 / 7000 (d: P, s: P, n: usize);
    cuMemcpyHtoDAsync 3020 / 7000 (d: P, s: P, n: usize, st: P);
    cuMemcpyDtoHAsync 3020 / 7000 (d: P, s: P, n: usize, st: P);
    cuMemcpyDtoDAsync 3020 / 7000 (d: P, s: P, n: usize, st: P);
    cuMemcpyPeer 4000 / 7000 (d: P, dc: P, s: P, sc: P, n: usize);
    cuMemcpyPeerAsync 4000 / 7000 (d: P, dc: P, s: P, sc: P, n: usize, st: P);
    cuMemcpy3D 3020 / 7000 (p: P);
    cuMemcpy3DAsync 3020 / 7000 (p: P, st: P);
    cuMemsetD8 3020 / 7000 (d: P, v: u8, n: usize);
    cuMemsetD8Async 3020 / 7000 (d: P, v: u8, n: usize, st: P);
    cuMemsetD2D8 3020 / 7000 (d: P, pitch: usize, v: u8, w: usize, h: usize);
    cuMemsetD2D8Async 3020 / 7000 (d: P, pitch: usize, v: u8, w: usize, h: usize, st: P);
    cuStreamCreate 2000 (out: P, flags: u32);
    cuStreamCreateWithPriority 5050 (out: P, flags: u32, priority: i32);
    cuStreamDestroy 4000 (s: P);
    cuStreamSynchronize 2000 / 7000 (s: P);
    cuStreamQuery 2000 / 7000 (s: P);
    cuStreamGetFlags 5050 / 7000 (s: P, out: P);
    cuStreamGetPriority 5050 / 7000 (s: P, out: P);
    cuStreamGetId 12000 / 12000 (s: P, out: P);
    cuStreamGetDevice 12080 / 12080 (s: P, out: P);
    cuStreamGetAttribute 11000 / 11000 (s: P, id: u32, out: P);
    cuStreamSetAttribute 11000 / 11000 (s: P, id: u32, value: P);
    cuStreamCopyAttributes 11000 / 11000 (d: P, s: P);
    cuStreamWaitEvent 3020 / 7000 (s: P, event: P, flags: u32);
    cuStreamAddCallback 5000 / 7000 (s: P, f: P, data: P, flags: u32);
    cuStreamBeginCapture 10010 / 10010 (s: P, mode: u32);
    cuStreamBeginCaptureToGraph 12030 / 12030 (s: P, g: P, deps: P, edges: P, n: usize, mode: u32);
    cuStreamEndCapture 10000 / 10000 (s: P, out: P);
    cuStreamIsCapturing 10000 / 10000 (s: P, out: P);
    cuStreamGetCaptureInfo 11030 / 11030 (s: P, status: P, id: P, g: P, deps: P, n: P);
    v2_cuStreamGetCaptureInfo 12030 / 12030 (s: P, status: P, id: P, g: P, deps: P, edges: P, n: P);
    cuStreamUpdateCaptureDependencies 11030 / 11030 (s: P, deps: P, n: usize, flags: u32);
    v2_cuStreamUpdateCaptureDependencies 12030 / 12030 (s: P, deps: P, edges: P, n: usize, flags: u32);
    cuThreadExchangeStreamCaptureMode 10010 (mode: P);
    cuLaunchHostFunc 10000 / 10000 (s: P, f: P, data: P);
    cuEventCreate 2000 (out: P, flags: u32);
    cuEventDestroy 4000 (e: P);
    cuEventRecord 2000 / 7000 (e: P, s: P);
    cuEventRecordWithFlags 11010 / 11010 (e: P, s: P, flags: u32);
    cuEventQuery 2000 (e: P);
    cuEventSynchronize 2000 (e: P);
    cuEventElapsedTime 12080 (out: P, a: P, b: P);
    cuLibraryLoadData 12000 (out: P, code: P, jo: P, jv: P, jn: u32, lo: P, lv: P, ln: u32);
    cuLibraryLoadFromFile 12000 (out: P, path: P, jo: P, jv: P, jn: u32, lo: P, lv: P, ln: u32);
    cuLibraryUnload 12000 (lib: P);
    cuLibraryGetKernel 12000 (out: P, lib: P, name: P);
    cuLibraryGetKernelCount 12040 (out: P, lib: P);
    cuLibraryEnumerateKernels 12040 (out: P, n: u32, lib: P);
    cuLibraryGetGlobal 12000 (p: P, size: P, lib: P, name: P);
    cuKernelGetAttribute 12000 (out: P, id: u32, k: P, dev: i32);
    cuKernelSetAttribute 12000 (id: u32, value: i32, k: P, dev: i32);
    cuKernelGetName 12030 (out: P, k: P);
    cuKernelGetParamInfo 12040 (k: P, i: usize, off: P, size: P);
    cuKernelGetFunction 12000 (out: P, k: P);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000 (out: P, f: P, block: i32, shared: usize, flags: u32);
    cuLaunchKernel 4000 / 7000 (f: P, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, s: P, params: P, extra: P);
    cuLaunchKernelEx 11060 / 11060 (config: P, f: P, params: P, extra: P);
    cuLaunchCooperativeKernel 9000 / 9000 (f: P, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, s: P, params: P);
    cuGraphCreate 10000 (out: P, flags: u32);
    cuGraphDestroy 10000 (g: P);
    cuGraphClone 10000 (out: P, g: P);
    cuGraphNodeFindInClone 10000 (out: P, node: P, g: P);
    cuGraphNodeGetType 10000 (node: P, out: P);
    cuGraphGetNodes 10000 (g: P, out: P, n: P);
    cuGraphGetRootNodes 10000 (g: P, out: P, n: P);
    cuGraphGetEdges 10000 (g: P, from: P, to: P, n: P);
    v2_cuGraphGetEdges 12030 (g: P, from: P, to: P, data: P, n: P);
    cuGraphNodeGetDependencies 10000 (node: P, out: P, n: P);
    v2_cuGraphNodeGetDependencies 12030 (node: P, out: P, data: P, n: P);
    cuGraphNodeGetDependentNodes 10000 (node: P, out: P, n: P);
    v2_cuGraphNodeGetDependentNodes 12030 (node: P, out: P, data: P, n: P);
    cuGraphAddDependencies 10000 (g: P, from: P, to: P, n: usize);
    v2_cuGraphAddDependencies 12030 (g: P, from: P, to: P, data: P, n: usize);
    cuGraphRemoveDependencies 10000 (g: P, from: P, to: P, n: usize);
    v2_cuGraphRemoveDependencies 12030 (g: P, from: P, to: P, data: P, n: usize);
    cuGraphDestroyNode 10000 (node: P);
    cuGraphDebugDotPrint 11030 (g: P, path: P, flags: u32);
    cuGraphAddKernelNode 12000 (out: P, g: P, deps: P, n: usize, p: P);
    cuGraphKernelNodeGetParams 12000 (node: P, p: P);
    cuGraphKernelNodeSetParams 12000 (node: P, p: P);
    cuGraphKernelNodeGetAttribute 11000 (node: P, id: u32, out: P);
    cuGraphKernelNodeSetAttribute 11000 (node: P, id: u32, value: P);
    cuGraphKernelNodeCopyAttributes 11000 (d: P, s: P);
    cuGraphAddMemcpyNode 10000 (out: P, g: P, deps: P, n: usize, p: P, ctx: P);
    cuGraphMemcpyNodeGetParams 10000 (node: P, p: P);
    cuGraphMemcpyNodeSetParams 10000 (node: P, p: P);
    cuGraphAddMemsetNode 10000 (out: P, g: P, deps: P, n: usize, p: P, ctx: P);
    cuGraphMemsetNodeGetParams 10000 (node: P, p: P);
    cuGraphMemsetNodeSetParams 10000 (node: P, p: P);
    cuGraphAddHostNode 10000 (out: P, g: P, deps: P, n: usize, p: P);
    cuGraphHostNodeGetParams 10000 (node: P, p: P);
    cuGraphHostNodeSetParams 10000 (node: P, p: P);
    cuGraphAddChildGraphNode 10000 (out: P, g: P, deps: P, n: usize, child: P);
    cuGraphChildGraphNodeGetGraph 10000 (node: P, out: P);
    cuGraphAddEmptyNode 10000 (out: P, g: P, deps: P, n: usize);
    cuGraphAddEventRecordNode 11010 (out: P, g: P, deps: P, n: usize, e: P);
    cuGraphAddEventWaitNode 11010 (out: P, g: P, deps: P, n: usize, e: P);
    cuGraphEventRecordNodeGetEvent 11010 (node: P, out: P);
    cuGraphEventRecordNodeSetEvent 11010 (node: P, e: P);
    cuGraphEventWaitNodeGetEvent 11010 (node: P, out: P);
    cuGraphEventWaitNodeSetEvent 11010 (node: P, e: P);
    cuGraphAddMemAllocNode 11040 (out: P, g: P, deps: P, n: usize, p: P);
    cuGraphMemAllocNodeGetParams 11040 (node: P, p: P);
    cuGraphAddMemFreeNode 11040 (out: P, g: P, deps: P, n: usize, ptr: P);
    cuGraphMemFreeNodeGetParams 11040 (node: P, p: P);
    cuGraphAddNode 12020 (out: P, g: P, deps: P, n: usize, p: P);
    v2_cuGraphAddNode 12030 (out: P, g: P, deps: P, data: P, n: usize, p: P);
    cuGraphNodeSetParams 12020 (node: P, p: P);
    cuGraphInstantiate 11000 (out: P, g: P, node: P, log: P, size: usize);
    cuGraphInstantiateWithFlags 11040 (out: P, g: P, flags: u64);
    cuGraphInstantiateWithParams 12000 / 12000 (out: P, g: P, p: P);
    cuGraphLaunch 10000 / 10000 (h: P, s: P);
    cuGraphUpload 11010 / 11010 (h: P, s: P);
    cuGraphExecDestroy 10000 (h: P);
    cuGraphExecGetFlags 12000 (h: P, out: P);
    cuGraphExecUpdate 12000 (h: P, g: P, out: P);
    v1_cuGraphExecUpdate 10020 (h: P, g: P, node: P, why: P);
    cuGraphExecKernelNodeSetParams 12000 (h: P, node: P, p: P);
    cuGraphExecMemcpyNodeSetParams 10020 (h: P, node: P, p: P, ctx: P);
    cuGraphExecMemsetNodeSetParams 10020 (h: P, node: P, p: P, ctx: P);
    cuGraphExecHostNodeSetParams 10020 (h: P, node: P, p: P);
    cuGraphExecChildGraphNodeSetParams 11010 (h: P, node: P, g: P);
    cuGraphExecEventRecordNodeSetEvent 11010 (h: P, node: P, e: P);
    cuGraphExecEventWaitNodeSetEvent 11010 (h: P, node: P, e: P);
    cuGraphExecNodeSetParams 12020 (h: P, node: P, p: P);
    cuGraphNodeSetEnabled 11060 (h: P, node: P, on: u32);
    cuGraphNodeGetEnabled 11060 (h: P, node: P, out: P);
    cuUserObjectCreate 11030 (out: P, data: P, f: P, refs: u32, flags: u32);
    cuUserObjectRetain 11030 (h: P, n: u32);
    cuUserObjectRelease 11030 (h: P, n: u32);
    cuGraphRetainUserObject 11030 (g: P, h: P, n: u32, flags: u32);
    cuGraphReleaseUserObject 11030 (g: P, h: P, n: u32);
}
