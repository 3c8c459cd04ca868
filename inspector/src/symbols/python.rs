//! Python frames: their names, and the owner of their code.

use super::Frame;
use super::words::Shared;
use gpumem_wire::layout::PythonFrame;
use gpumem_wire::read::Snapshot;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Names and files of the code that Python frames run.
pub(super) struct Codes(FxHashMap<u32, (Rc<str>, Rc<str>)>);

impl Codes {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut shared = Shared::of(snapshot);
        let mut code = |name, file| (shared.text(name), shared.text(file));
        Self(snapshot.codes.iter().map(|(&index, slot)| (index, code(slot.name, slot.file))).collect())
    }

    pub(super) fn frame(&self, frame: PythonFrame) -> Frame {
        let (function, file) = self.0.get(&frame.code).cloned().unzip();
        Frame {
            function: Some(function.unwrap_or_else(|| "?".into())),
            file: file.filter(|file| !file.is_empty()),
            line: Some(frame.line).filter(|&line| line != 0),
            python: true,
            ..Frame::default()
        }
    }
}

/// Owner of a Python file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The user: the file belongs to no installed package.
    Own,
    /// A package.
    Package,
    /// Python's standard library, or a package whose lines do not tell who asked for memory.
    Framework,
}

/// Packages through which programs allocate. A line in them is never the call site if there is another frame.
const FRAMEWORKS: &[&str] = &[
    "cuda",
    "cudf",
    "cupy",
    "cupy_backends",
    "cupyx",
    "functorch",
    "jax",
    "jaxlib",
    "keras",
    "numba",
    "numba_cuda",
    "pycuda",
    "rmm",
    "tensorflow",
    "torch",
    "triton",
];

/// Returns the owner of a file, by its path.
pub(crate) fn whose(file: &str) -> Whose {
    let installed = |folder: &str| file.split_once(folder).map(|(_, package)| package);
    if let Some(package) = installed("/site-packages/").or_else(|| installed("/dist-packages/")) {
        let name = package.split(['/', '.']).next().unwrap_or_default();
        return if FRAMEWORKS.contains(&name) { Whose::Framework } else { Whose::Package };
    }
    // `.../lib/python3.11/threading.py`, and modules built into the interpreter.
    let library = installed("/lib/python3").is_some_and(|rest| rest.starts_with(['.', '/']));
    if library || file.starts_with("<frozen ") { Whose::Framework } else { Whose::Own }
}

/// True if a native function runs Python frames.
pub(crate) fn runs_frames(function: &str) -> bool {
    // A compiler with tail calls makes a function `_TAIL_CALL_…` for each instruction.
    function.starts_with("_PyEval_EvalFrameDefault") || function.starts_with("_TAIL_CALL_")
}

/// True if a file is a Python interpreter or its library.
pub(crate) fn is_interpreter(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("libpython3") || name.starts_with("python3")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_by_their_paths() {
        for own in
            ["train.py", "/home/me/lib/model.py", "<string>", "<stdin>", "/app/torch/x.py", "/x/lib/python3x/a.py"]
        {
            assert_eq!(whose(own), Whose::Own, "{own}");
        }
        for package in ["/v/lib/python3.11/site-packages/vllm/engine.py", "/usr/lib/python3/dist-packages/six.py"] {
            assert_eq!(whose(package), Whose::Package, "{package}");
        }
        for framework in [
            "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py",
            "/usr/lib/python3/dist-packages/cupy/_core/core.py",
            "/usr/lib/python3.11/threading.py",
            "<frozen importlib._bootstrap>",
        ] {
            assert_eq!(whose(framework), Whose::Framework, "{framework}");
        }
    }
}
