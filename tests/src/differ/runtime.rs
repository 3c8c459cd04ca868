//! The functions of execs by their runtime names, for programs that come by that door: the same handles.

use std::ffi::{CStr, c_void};

/// Set by [`VARIABLE`]: execs are made, launched, updated and destroyed through libcudart.
#[derive(Clone, Copy)]
pub struct Runtime {
    pub instantiate: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u64) -> u32,
    pub update: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> u32,
    pub launch: unsafe extern "C" fn(*mut c_void, *mut c_void) -> u32,
    pub upload: unsafe extern "C" fn(*mut c_void, *mut c_void) -> u32,
    pub destroy_exec: unsafe extern "C" fn(*mut c_void) -> u32,
    pub destroy_graph: unsafe extern "C" fn(*mut c_void) -> u32,
    pub end_capture: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> u32,
}

/// Names it.
pub const VARIABLE: &str = "DIFFER_RUNTIME";

const LIBRARIES: [&CStr; 3] = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so"];

impl Runtime {
    /// The runtime, if it is asked for and there is one.
    pub fn open() -> Option<Self> {
        std::env::var_os(VARIABLE)?;
        // SAFETY: opens a library; its initialisers are the vendor's own.
        let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        let library = LIBRARIES.into_iter().map(open).find(|library| !library.is_null())?;
        // SAFETY: the library is open; names end in a zero.
        let find = |name: &CStr| Some(unsafe { libc::dlsym(library, name.as_ptr()) }).filter(|found| !found.is_null());
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the signature that the runtime's headers since 12.0 give for the name; handles and
                // enumerations as pointers and numbers of their size.
                unsafe { std::mem::transmute::<*mut c_void, _>(find($name)?) }
            };
        }
        Some(Self {
            instantiate: function!(c"cudaGraphInstantiateWithFlags"),
            update: function!(c"cudaGraphExecUpdate"),
            launch: function!(c"cudaGraphLaunch"),
            upload: function!(c"cudaGraphUpload"),
            destroy_exec: function!(c"cudaGraphExecDestroy"),
            destroy_graph: function!(c"cudaGraphDestroy"),
            end_capture: function!(c"cudaStreamEndCapture"),
        })
    }
}
