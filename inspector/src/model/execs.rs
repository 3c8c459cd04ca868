//! Facts of one exec or graph: state, class, bytes.

use gpumem_wire::kinds::{ExecState, Pinned};
use gpumem_wire::layout::ExecSlot;

/// Returns the location of an exec's real exec; `None` for a number that this version does not know.
pub(crate) fn state(exec: &ExecSlot) -> Option<ExecState> {
    exec.exec_state()
}

/// Returns the name of [`state`].
pub(crate) fn state_name(exec: &ExecSlot) -> &'static str {
    state(exec).map_or("unknown", ExecState::name)
}

/// Returns a class as sixteen hexadecimal digits.
pub(crate) fn hex(class: u64) -> String {
    format!("{class:016x}")
}

/// Returns the class of an exec as [`hex`]; empty without one.
pub(crate) fn class_name(exec: &ExecSlot) -> String {
    if exec.class == 0 { String::new() } else { hex(exec.class) }
}

/// Returns the reason why an exec is not under the graph cache; `None` if it is, or if the cache did not look.
pub(crate) fn why_pinned(exec: &ExecSlot) -> Option<Pinned> {
    exec.pinned().filter(|&pinned| pinned != Pinned::None)
}

/// Bytes that an exec takes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExecBytes {
    /// Host bytes of its real exec, if it has one; estimated.
    pub host: u64,
    /// Device bytes of its real exec, if it has one; estimated.
    pub device: u64,
    /// Host bytes of its source.
    pub source: u64,
}

impl ExecBytes {
    /// Returns all host bytes.
    pub(crate) fn host_all(self) -> u64 {
        self.host.saturating_add(self.source)
    }

    /// Returns the host and device bytes of the real exec.
    pub(crate) fn real(self) -> u64 {
        self.host.saturating_add(self.device)
    }

    /// Returns all bytes.
    pub(crate) fn all(self) -> u64 {
        self.real().saturating_add(self.source)
    }
}

/// Returns the bytes that an exec takes now; a folded one has only its source.
pub(crate) fn held(exec: &ExecSlot) -> ExecBytes {
    let (host, device) = match state(exec) {
        Some(ExecState::Folded | ExecState::Gone) => (0, 0),
        Some(ExecState::Native | ExecState::Resident) | None => (exec.host_bytes, exec.device_bytes),
    };
    ExecBytes { host, device, source: exec.source_bytes }
}

/// Returns the launches of an exec under the graph cache that found its real exec ready; `None` for the others.
pub(crate) fn hits(exec: &ExecSlot) -> Option<u64> {
    let under = matches!(state(exec), Some(ExecState::Resident | ExecState::Folded | ExecState::Gone));
    under.then(|| exec.launches.saturating_sub(exec.retargets).saturating_sub(exec.instantiations))
}
