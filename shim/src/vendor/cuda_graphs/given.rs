//! Attributes of kernels that this process has ever given to a launch or a node, whatever their value.
//!
//! An attribute that nobody has given is, for all nodes of one function, what it is for one of them: it
//! need not be asked of each, which is most of what reading a graph costs (0.05 µs each, measured on an
//! H200, driver 580). Handles are ours only where all ways to the driver are known.

use super::layout::LaunchConfig;
use super::shape::attribute;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A bit for each attribute; those above have the last.
static GIVEN: AtomicU32 = AtomicU32::new(0);

const fn bit(id: u32) -> u32 {
    1 << if id < 31 { id } else { 31 }
}

/// A node or a launch gets an attribute.
#[inline]
pub fn attribute(id: u32) {
    if GIVEN.load(Relaxed) & bit(id) == 0 {
        GIVEN.fetch_or(bit(id), Relaxed);
    }
}

/// A launch says that all of its blocks run at once.
#[inline]
pub fn cooperative() {
    attribute(attribute::COOPERATIVE);
}

/// A launch that comes with attributes.
///
/// # Safety
/// `config` is NULL or a `CUlaunchConfig` of the program's.
#[inline]
pub unsafe fn launch(config: *const LaunchConfig) {
    // SAFETY: as the caller promises; the driver reads the same.
    unsafe {
        let Some(config) = config.as_ref() else { return };
        if !config.attributes.is_null() {
            (0..config.len as usize).for_each(|at| attribute((*config.attributes.add(at)).id));
        }
    }
}

/// Whether nodes of one function may differ in an attribute. Priorities come from streams, too.
pub fn may_differ(id: u32) -> bool {
    id == attribute::PRIORITY || GIVEN.load(Relaxed) & bit(id) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_abi::types::LaunchAttribute;
    use std::ptr::{null, null_mut};

    #[test]
    fn what_was_given_once_may_differ_from_then_on() {
        let of = |id| LaunchAttribute { id, pad: 0, value: [0; 8] };
        let two = [of(attribute::CLUSTER_DIMENSION), of(40)];
        let mut config = LaunchConfig {
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            stream: null_mut(),
            attributes: two.as_ptr(),
            len: 0,
        };
        let told = || attribute::OF_NODES.map(may_differ);
        // SAFETY: NULL, then a config of ours.
        unsafe {
            launch(null());
            launch(&config);
            assert_eq!(told(), [false, false, true, false], "a launch without attributes");
            config.len = 2;
            launch(&config);
        }
        assert_eq!(told(), [false, true, true, false]);
        assert!(may_differ(40) && may_differ(31) && !may_differ(30), "high numbers are taken together");
        cooperative();
        assert_eq!(told(), [true, true, true, false]);
    }
}
