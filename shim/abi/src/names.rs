//! Judges a driver function by its name, and tells if it is known.

use crate::known::{FUNCTIONS, RELEASES};

/// The newest release whose functions are known; later names and versions are not.
pub const NEWEST: u32 = RELEASES[RELEASES.len() - 1];

/// True if a driver's version belongs to a major release newer than those that were tested, which may change anything.
/// A newer minor release adds to its major release and removes nothing; older ones are known.
pub fn is_new_major(version: u32) -> bool {
    version / 1000 > NEWEST / 1000
}

/// The major versions of ROCm that the tables of HIP were checked against: `known_hip.txt` has releases of each.
pub const HIP_MAJORS: std::ops::RangeInclusive<u32> = 5..=7;

/// True if a name has the driver's form: `cudaMalloc`, `cublasCreate` and the like do not.
pub fn is_drivers(name: &[u8]) -> bool {
    name.strip_prefix(b"cu").and_then(<[u8]>::first).is_some_and(u8::is_ascii_uppercase)
}

/// Splits a name into its base, without the suffix for the thread's own default stream, and its form: 1 unless it ends
/// in `_v2` or so.
fn base_and_form(name: &str) -> (&str, u32) {
    let plain = name.strip_suffix("_ptsz").or(name.strip_suffix("_ptds")).unwrap_or(name);
    let form = plain.rsplit_once("_v").and_then(|(base, digits)| Some((base, digits.parse().ok()?)));
    form.unwrap_or((plain, 1))
}

fn known(base: &str) -> Option<&'static (&'static str, &'static [u32], u32)> {
    FUNCTIONS.binary_search_by(|row| row.0.cmp(base)).ok().map(|at| &FUNCTIONS[at])
}

/// True if a function is known by the name that `cuGetProcAddress` takes.
pub fn knows(base: &[u8]) -> bool {
    std::str::from_utf8(base).is_ok_and(|base| known(base).is_some())
}

/// True if a function is known by the name that the driver exports.
pub fn knows_symbol(symbol: &[u8]) -> bool {
    let Ok(symbol) = std::str::from_utf8(symbol) else { return false };
    let (base, form) = base_and_form(symbol);
    // A name may end like a form without being one.
    known(symbol).is_some() || known(base).is_some_and(|&(_, _, newest)| form <= newest)
}

/// True if a function of this name only queries something, as far as a name can tell: it gives the device no work and
/// changes nothing.
pub fn only_asks(name: &[u8]) -> bool {
    const WORDS: [&str; 4] = ["Get", "Query", "Is", "Enumerate"];
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let word = |word: &&str| {
        name.match_indices(*word).any(|(at, _)| {
            let rest = name[at + word.len()..].chars().next();
            rest.is_none_or(|next| !next.is_ascii_lowercase())
        })
    };
    WORDS.iter().any(word)
}

/// True if a driver function of this name gives the device work, as far as a name can tell. A driver that is newer than
/// the tables may have more of them than there are rows.
pub fn may_submit(name: &[u8]) -> bool {
    const BEGINNINGS: &[&str] = &[
        "cuLaunch",
        "cuMemcpy",
        "cuMemset",
        "cuMemPrefetch",
        "cuMemDiscard",
        "cuMemBatch",
        "cuMemMapArray",
        "cuStreamAddCallback",
        "cuStreamAttachMem",
        "cuStreamBatchMemOp",
        "cuStreamWait",
        "cuStreamWrite",
        "cuEventRecord",
        "cuCtxRecordEvent",
        "cuCtxWaitEvent",
        "cuGreenCtxRecordEvent",
        "cuGreenCtxWaitEvent",
        "cuSignalExternal",
        "cuWaitExternal",
        "cuGraphicsMap",
        "cuGraphicsUnmap",
        "cuGLMap",
        "cuGLUnmap",
        "cuEGLStreamConsumerAcquire",
        "cuEGLStreamConsumerRelease",
        "cuEGLStreamProducerPresent",
        "cuEGLStreamProducerReturn",
    ];
    let Ok(text) = std::str::from_utf8(name) else { return false };
    let (base, _) = base_and_form(text);
    is_drivers(name) && (BEGINNINGS.iter().any(|start| base.starts_with(start)) || base.ends_with("Async"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_headers_have_is_known_and_nothing_newer() {
        for name in ["cuInit", "cuGraphAddNode", "cuMemcpyHtoD", "cuGLMapBufferObject", "cuGetProcAddress"] {
            assert!(knows(name.as_bytes()), "{name}");
        }
        for name in ["cuGraphFutureThing", "cuGraphAddNode_v2", "cuda", "cu", "", "cuinit"] {
            assert!(!knows(name.as_bytes()), "{name}");
        }
        for symbol in ["cuInit", "cuGraphAddNode_v3", "cuMemcpyHtoD_v2_ptds", "cuGraphLaunch_ptsz", "cuCtxCreate_v4"] {
            assert!(knows_symbol(symbol.as_bytes()), "{symbol}");
        }
        for symbol in ["cuInit_v2", "cuGraphAddNode_v4", "cuMemAlloc_v9", "cuFuture", "cuFuture_v2", "cuMemAlloc_vx"] {
            assert!(!knows_symbol(symbol.as_bytes()), "{symbol}");
        }
    }

    #[test]
    fn only_later_majors_are_new() {
        assert!(![0, 11080, 12000, 12040, 13000, 13050, 13090].map(is_new_major).into_iter().any(|new| new));
        assert!([14000, 130_900, u32::MAX].map(is_new_major).into_iter().all(|new| new));
        assert!(NEWEST >= 13050 && RELEASES.is_sorted());
    }

    #[test]
    fn questions_are_known_by_a_word_of_their_names() {
        for name in ["cuGraphExecGetFutureId", "cuStreamIsFuture", "cuFutureQuery", "cuDeviceGet"] {
            assert!(only_asks(name.as_bytes()), "{name}");
        }
        for name in ["cuGraphFutureThing", "cuFutureTargets", "cuMemIssue", "cuFutureGetter"] {
            assert!(!only_asks(name.as_bytes()), "{name}");
        }
    }
}
