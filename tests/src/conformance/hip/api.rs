//! The few HIP runtime functions that the checks call, with ROCm's own declarations (5 to 7), and ROCm's compiler for
//! device code, if that is installed.

use gpumem_inspector::functions;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Streams, graphs, nodes, execs, events, modules, functions: HIP's pointers.
pub(super) type Handle = *mut c_void;
pub(super) type HipStatus = c_int;

/// `hipMemsetParams`: fields in HIP's order, which is not CUDA's.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemsetParams {
    pub(super) dst: *mut c_void,
    pub(super) element_size: c_uint,
    pub height: usize,
    pub(super) pitch: usize,
    pub value: c_uint,
    pub width: usize,
}

pub(super) const HOST_TO_DEVICE: c_int = 1;
pub(super) const DEVICE_TO_HOST: c_int = 2;
pub(super) const DEVICE_TO_DEVICE: c_int = 3;
/// `hipStreamNonBlocking`.
pub(super) const NON_BLOCKING: c_uint = 1;
/// `hipStreamCaptureModeRelaxed`.
pub(super) const RELAXED: c_int = 2;
/// `hipEventDisableTiming`.
pub(super) const NO_TIMING: c_uint = 2;

functions! {
    /// The open runtime.
    struct Hip {
        hipGetDeviceCount(*mut c_int);
        hipRuntimeGetVersion(*mut c_int);
        hipDeviceGetName(*mut c_char, c_int, c_int);
        hipGetLastError();
        hipDeviceSynchronize();
        hipMalloc(*mut *mut c_void, usize);
        hipFree(*mut c_void);
        hipMemcpy(*mut c_void, *const c_void, usize, c_int);
        hipMemset(*mut c_void, c_int, usize);
        hipMemcpyAsync(*mut c_void, *const c_void, usize, c_int, Handle);
        hipMemsetAsync(*mut c_void, c_int, usize, Handle);
        hipStreamCreateWithFlags(*mut Handle, c_uint);
        hipStreamSynchronize(Handle);
        hipStreamBeginCapture(Handle, c_int);
        hipStreamEndCapture(Handle, *mut Handle);
        hipStreamWaitEvent(Handle, Handle, c_uint);
        hipEventCreateWithFlags(*mut Handle, c_uint);
        hipEventRecord(Handle, Handle);
        hipEventDestroy(Handle);
        hipGraphCreate(*mut Handle, c_uint);
        hipGraphDestroy(Handle);
        hipGraphAddMemsetNode(*mut Handle, Handle, *const Handle, usize, *const MemsetParams);
        hipGraphAddMemcpyNode1D(*mut Handle, Handle, *const Handle, usize, *mut c_void, *const c_void, usize, c_int);
        hipGraphAddEmptyNode(*mut Handle, Handle, *const Handle, usize);
        hipGraphAddChildGraphNode(*mut Handle, Handle, *const Handle, usize, Handle);
        hipGraphMemsetNodeSetParams(Handle, *const MemsetParams);
        hipGraphInstantiate(*mut Handle, Handle, *mut Handle, *mut c_char, usize);
        hipGraphExecUpdate(Handle, Handle, *mut Handle, *mut c_int);
        hipGraphExecMemsetNodeSetParams(Handle, Handle, *const MemsetParams);
        hipGraphLaunch(Handle, Handle);
        hipGraphExecDestroy(Handle);
        hipModuleLoadData(*mut Handle, *const c_void);
        hipModuleGetFunction(*mut Handle, Handle, *const c_char);
        hipModuleLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        );
    }
}

functions! {
    /// ROCm's compiler for device code. Source: hiprtc.h.
    struct Compiler {
        hiprtcCreateProgram(
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        );
        hiprtcCompileProgram(Handle, c_int, *const *const c_char);
        hiprtcGetCodeSize(Handle, *mut usize);
        hiprtcGetCode(Handle, *mut c_char);
    }
}

/// Returns what a status of a function means.
pub(super) fn done(function: &str, status: HipStatus) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{function} gives {status}")) }
}

const RUNTIME: &str = "libamdhip64.so";

/// Returns the first of these libraries that loads. Programs are linked to one version; the probe works with any.
fn open(name: &str) -> Option<Library> {
    let places = ["", "/opt/rocm/lib/"];
    let versions = ["", ".7", ".6", ".5"];
    // SAFETY: loading runs the initialisers of the vendor's library, which the vendor makes fit for
    // any program.
    places
        .iter()
        .flat_map(|place| versions.map(|version| format!("{place}{name}{version}")))
        .find_map(|path| unsafe { Library::new(path).ok() })
}

impl Hip {
    /// Opens the runtime.
    ///
    /// # Errors
    /// Says why there is none, or no device.
    pub(super) fn open() -> Result<Self, String> {
        let library = open(RUNTIME).ok_or("libamdhip64.so is not installed")?;
        let hip = Self::of(library).map_err(|name| format!("the HIP runtime has no {name}"))?;
        let mut count = 0;
        // SAFETY: the type is hip_runtime_api.h's (rows above), and `count` is a local that takes
        // the number.
        match (unsafe { (hip.hipGetDeviceCount)(&mut count) }, count) {
            (0, 1..) => Ok(hip),
            (code, n) => Err(format!("hipGetDeviceCount gives {code} and {n} devices ({})", hip.library_line())),
        }
    }

    /// Returns the runtime's version and file.
    fn library_line(&self) -> String {
        let mut version = 0;
        // SAFETY: `version` is a local that takes the number. Zeroes are a valid Dl_info, which dladdr fills if it
        // succeeds, with strings that stay for as long as the library does; `self` keeps that open.
        let file = unsafe {
            (self.hipRuntimeGetVersion)(&mut version);
            let mut at: libc::Dl_info = std::mem::zeroed();
            let found = libc::dladdr(self.hipGetDeviceCount as *const c_void, &mut at) != 0 && !at.dli_fname.is_null();
            found.then(|| CStr::from_ptr(at.dli_fname).to_string_lossy().into_owned())
        };
        let path = file.map(|file| std::fs::canonicalize(&file).map_or(file, |path| path.display().to_string()));
        format!("HIP runtime {version}, {}", path.as_deref().unwrap_or("of an unknown file"))
    }

    /// Returns the first device, and the runtime.
    pub(super) fn device_line(&self) -> String {
        let mut name = [0; 256];
        // SAFETY: `name` has 256 zero bytes and the call writes at most 255, so a NUL remains.
        let name = unsafe {
            (self.hipDeviceGetName)(name.as_mut_ptr(), 255, 0);
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        format!("{name}, {}", self.library_line())
    }
}

/// A kernel that sets words. HIP has no device code that runs on every device, so it is compiled here.
const KERNEL: &CStr =
    c"extern \"C\" __global__ void gpumem_fill(unsigned *to, unsigned long long words, unsigned value) {
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words;
         i += (unsigned long long)gridDim.x * blockDim.x)
        to[i] = value;
}";

/// Returns the kernel's code for this device. It is never freed, because modules may need it.
///
/// # Errors
/// Says why it cannot be made here.
fn code() -> Result<&'static [u8], String> {
    // A separate library since ROCm 5.2, part of the runtime before.
    let library = open("libhiprtc.so").or_else(|| open(RUNTIME));
    let compiler = library.and_then(|library| Compiler::of(library).ok());
    let compiler = compiler.ok_or("no kernel can be compiled here: libhiprtc.so is not installed")?;
    let (mut program, mut bytes, none) = (std::ptr::null_mut(), 0, std::ptr::null());
    // SAFETY: all strings are literals that end in NUL, and the buffer has the size that hiprtcGetCodeSize gave.
    unsafe {
        let (text, name) = (KERNEL.as_ptr(), c"selftest.hip".as_ptr());
        done("hiprtcCreateProgram", (compiler.hiprtcCreateProgram)(&mut program, text, name, 0, none, none))?;
        done("hiprtcCompileProgram", (compiler.hiprtcCompileProgram)(program, 0, none))?;
        done("hiprtcGetCodeSize", (compiler.hiprtcGetCodeSize)(program, &mut bytes))?;
        // A NUL is harmless behind an ELF file, and needed behind text.
        let mut code = vec![0_u8; bytes + 1];
        done("hiprtcGetCode", (compiler.hiprtcGetCode)(program, code.as_mut_ptr().cast()))?;
        std::mem::forget(compiler);
        Ok(code.leak())
    }
}

/// Returns the kernel as a function.
///
/// # Errors
/// Says why there is none here.
pub(super) fn kernel(hip: &Hip) -> Result<Handle, String> {
    let image = code()?;
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: `code` gives an image that lives as long as the process, and the name is a literal that ends in NUL. The
    // locals take the handles.
    let made = unsafe {
        let loaded = (hip.hipModuleLoadData)(&mut module, image.as_ptr().cast());
        done("hipModuleLoadData", loaded).and_then(|()| {
            let name = c"gpumem_fill".as_ptr();
            done("hipModuleGetFunction", (hip.hipModuleGetFunction)(&mut function, module, name))
        })
    };
    made.map(|()| function).map_err(|why| format!("{why} for a kernel that hiprtc compiled"))
}
