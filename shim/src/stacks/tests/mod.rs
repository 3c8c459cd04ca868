//! Walks compared with the `backtrace` crate's (libgcc's unwinder) on compiled call shapes.

mod loaded;
mod shapes;

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Walk, walk};
use crate::process::regs::Regs;

pub(super) type Callback = unsafe extern "C" fn(*mut c_void);

/// Results of both walkers below the callback.
pub(super) struct Probe {
    pub depth: usize,
    pub walk: Walk,
    pub ours: Vec<u64>,
    pub oracle: Vec<u64>,
}

impl Probe {
    pub(crate) fn new(depth: usize) -> Box<Probe> {
        Box::new(Probe { depth, walk: Walk::default(), ours: Vec::new(), oracle: Vec::new() })
    }

    /// Runs `shape` with the callback that fills a probe.
    pub(crate) fn of(shape: impl FnOnce(Callback, *mut c_void)) -> Box<Probe> {
        let mut probe = Probe::new(400);
        shape(take, (&raw mut *probe).cast());
        assert!(!probe.ours.is_empty(), "the shape did not call back, or nothing was found");
        probe
    }

    /// Returns the oracle's frames from our first one on.
    fn expected(&self) -> &[u64] {
        let first = self.oracle.iter().position(|frame| *frame == self.ours[0]);
        &self.oracle[first.unwrap_or_else(|| panic!("the oracle does not know {:#x}", self.ours[0]))..]
    }

    /// Asserts that both found the same frames, and that ours found the end of the stack. `interrupted` frames are not
    /// return addresses: ours are one higher.
    pub(crate) fn assert_same(&self, interrupted: usize) {
        self.assert_same_frames(interrupted);
        assert!(self.walk.complete, "{:?}", self.walk);
    }

    /// As [`assert_same`](Self::assert_same), for stacks whose end has no mark.
    pub(crate) fn assert_same_frames(&self, interrupted: usize) {
        let expected = self.expected();
        let same = |(ours, theirs): (&u64, &u64)| ours == theirs;
        let differ = self.ours.iter().zip(expected).filter(|pair| !same(*pair));
        let off_by_one = differ.clone().filter(|(ours, theirs)| **ours == **theirs + 1).count();
        let equal = differ.count() == interrupted && off_by_one == interrupted && self.ours.len() == expected.len();
        assert!(equal, "ours {:#x?}\nexpected {expected:#x?}", self.ours);
        assert!(!self.walk.cut, "{:?}", self.walk);
    }
}

/// # Safety
/// `with` leads to a [`Probe`] that no one else uses.
unsafe extern "C" fn take(with: *mut c_void) {
    // SAFETY: tests pass a Probe with this function, and borrow it no longer than that.
    let probe = unsafe { &mut *with.cast::<Probe>() };
    let mut frames = vec![0; probe.depth];
    // SAFETY: the C library gives the address of this thread's errno, which is valid while the
    // thread lives.
    unsafe { *libc::__errno_location() = 4711 };
    let found = walk(Regs::of_caller(), &mut frames);
    // SAFETY: the C library gives the address of this thread's errno, which is valid while the
    // thread lives.
    assert_eq!(unsafe { *libc::__errno_location() }, 4711, "errno was changed");
    frames.truncate(found.len);
    (probe.walk, probe.ours) = (found, frames);
    probe.oracle.clear();
    backtrace::trace(|frame| {
        // libgcc ends with a frame of address 0.
        probe.oracle.extend(std::num::NonZero::new(frame.ip() as u64).map(|ip| ip.get()));
        true
    });
}

/// A shared library built by the C or C++ compiler for one test.
pub(super) struct Library {
    handle: *mut c_void,
    path: PathBuf,
}

impl Library {
    /// Compiles a file of this folder and returns the library's path.
    pub(crate) fn build(source: &str, flags: &[&str]) -> PathBuf {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpumem-stacks-{}-{number}.so", std::process::id()));
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/stacks/tests").join(source);
        let (variable, default) =
            if source.extension().is_some_and(|ext| ext == "c") { ("CC", "cc") } else { ("CXX", "c++") };
        let compiler = std::env::var(variable).unwrap_or(default.into());
        let status =
            Command::new(&compiler).args(["-shared", "-fPIC", "-o"]).arg(&path).args(flags).arg(&source).status();
        assert!(status.unwrap_or_else(|error| panic!("{compiler}: {error}")).success());
        path
    }

    pub(crate) fn open(path: PathBuf) -> Library {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a CString. The library is the test's own, and its constructors expect
        // nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot open {}", path.display());
        Library { handle, path }
    }

    pub(crate) fn new(source: &str, flags: &[&str]) -> Library {
        Library::open(Library::build(source, flags))
    }

    /// Returns a function of the library.
    ///
    /// # Safety
    /// `F` is the function's type, and it is not called after the library is dropped.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let c_name = CString::new(name).unwrap();
        // SAFETY: `self` keeps the library open, and `c_name` is a CString.
        let found = unsafe { libc::dlsym(self.handle, c_name.as_ptr()) };
        assert!(!found.is_null() && size_of::<F>() == size_of_val(&found), "no {name} in {}", self.path.display());
        // SAFETY: our caller vouches that `F` is the function's type. It has the size of `found`,
        // as was checked above.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: `open` opened the library, and it is closed here once. `function` asks callers
        // not to call into it any more.
        unsafe { libc::dlclose(self.handle) };
        let _ = std::fs::remove_file(&self.path);
    }
}
