//! Call sites as text for lines on stderr: files, and offsets in them. Functions and lines would need the loader's lock
//! and reading of files; the inspector finds those.

use crate::shim::Shim;
use crate::stacks::modules::{self, Modules};
use gpumem_wire::layout::StackRef;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

/// Number of frames that name a call site, from the program's innermost one outwards.
const FRAMES: usize = 3;

/// Number of frames searched for the program's own.
const INNERMOST: usize = 8;

/// The modules loaded now.
pub(crate) struct Places<'a> {
    shim: &'a Shim,
    modules: Modules,
}

impl<'a> Places<'a> {
    pub(crate) fn now(shim: &'a Shim) -> Self {
        Self { shim, modules: modules::refresh() }
    }

    /// Returns a call site as files and offsets, the program's innermost first.
    pub(crate) fn of(&self, stack: StackRef) -> String {
        let frames = frames_of(self.shim, stack);
        let is_program = |pc: u64| self.modules.find(pc).is_some_and(|m| !is_runtime(m.path()));
        let first = frames.iter().position(|&pc| is_program(pc));
        let mut text = String::new();
        for &pc in frames.iter().skip(first.unwrap_or(0)).take(FRAMES) {
            let between = if text.is_empty() { "" } else { " < " };
            let _ = match self.modules.find(pc) {
                Some(module) => {
                    let name = module.path().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                    let name = if name.is_empty() { "[vdso]".into() } else { String::from_utf8_lossy(name) };
                    write!(text, "{between}{name}+{:#x}", pc.wrapping_sub(module.bias))
                }
                None => write!(text, "{between}{pc:#x}"),
            };
        }
        if text.is_empty() { "a call site without a stack".into() } else { text }
    }
}

/// Returns the innermost return addresses of a stack.
pub(crate) fn frames_of(shim: &Shim, stack: StackRef) -> Vec<u64> {
    let slot = stack.checked_sub(1).and_then(|slot| shim.ledger.stacks.read(slot));
    let frame = |index| shim.ledger.frames.at(index).load(Relaxed);
    slot.map_or_else(Vec::new, |slot| {
        let first = slot.first_frame as usize;
        (first..first + (slot.frames as usize).min(INNERMOST)).map(frame).collect()
    })
}

/// True for a runtime or the driver: the program's own frame is the one that calls them.
pub(crate) fn is_runtime(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    [&b"libcudart.so"[..], b"libcuda.so", b"libamdhip64.so", b"libgpumem.so"]
        .iter()
        .any(|known| name.starts_with(known))
}
