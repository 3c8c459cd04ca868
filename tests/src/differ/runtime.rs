//! The functions of execs by their runtime names, for programs that come through the runtime. The handles are the same.

use std::ffi::{CStr, c_void};

type OfExec = unsafe extern "C" fn(*mut c_void) -> u32;
type OfTwo = unsafe extern "C" fn(*mut c_void, *mut c_void) -> u32;
type Instantiate = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u64) -> u32;
type Update = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> u32;
type EndCapture = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> u32;

/// Set by [`VARIABLE`]: execs are made, launched, updated and destroyed through libcudart.
#[derive(Clone, Copy)]
pub struct Runtime {
    pub instantiate: Instantiate,
    pub update: Update,
    pub launch: OfTwo,
    pub upload: OfTwo,
    pub destroy_exec: OfExec,
    pub destroy_graph: OfExec,
    pub end_capture: EndCapture,
}

/// The environment variable that asks for the runtime.
pub const VARIABLE: &str = "DIFFER_RUNTIME";

const LIBRARIES: [&CStr; 3] = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so"];

impl Runtime {
    /// The runtime, if it is asked for and there is one.
    pub fn open() -> Option<Self> {
        std::env::var_os(VARIABLE)?;
        // SAFETY: `name` is a C string. Loading runs the initialisers of NVIDIA's runtime, which
        // NVIDIA makes fit for any program.
        let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        let library = LIBRARIES.into_iter().map(open).find(|library| !library.is_null())?;
        // SAFETY: `library` is open and is never closed, and `name` is a C string.
        let find = |name: &CStr| Some(unsafe { libc::dlsym(library, name.as_ptr()) }).filter(|found| !found.is_null());
        macro_rules! function {
            ($name:literal as $type:ty) => {
                // SAFETY: the runtime's headers since 12.0 give the name this type, with handles as
                // pointers and enumerations as numbers of their size.
                unsafe { std::mem::transmute::<*mut c_void, $type>(find($name)?) }
            };
        }
        Some(Self {
            instantiate: function!(c"cudaGraphInstantiateWithFlags" as Instantiate),
            update: function!(c"cudaGraphExecUpdate" as Update),
            launch: function!(c"cudaGraphLaunch" as OfTwo),
            upload: function!(c"cudaGraphUpload" as OfTwo),
            destroy_exec: function!(c"cudaGraphExecDestroy" as OfExec),
            destroy_graph: function!(c"cudaGraphDestroy" as OfExec),
            end_capture: function!(c"cudaStreamEndCapture" as EndCapture),
        })
    }
}
