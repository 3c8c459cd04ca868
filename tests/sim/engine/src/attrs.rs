//! Attributes of kernel nodes: which can be read and set, and their values
//! if nobody set them (H200, driver 580, CUDA 13.0).

use crate::config::config;
use crate::error::{Error, Result};
use crate::node::{Attrs, Kernel, NEWER_SINCE, attr};

/// Bytes of an attribute's value; `None` if it cannot be read.
fn size(id: u32) -> Option<usize> {
    Some(match id {
        1 => 32,             // access policy window
        2 | 5 | 8 | 10 => 4, // cooperative, cluster scheduling, priority, memory domain
        4 => 12,             // cluster dimension
        9 => 2,              // map of memory domains
        13 => 16,            // updatable from the device
        14 => 4,             // shared memory carveout
        _ if attr::NEWER.contains(&id) && config().driver_version >= NEWER_SINCE => 4,
        _ => return None,
    })
}

/// The value of an attribute; 1 if there is none that can be read.
pub fn get(k: &Kernel, id: u32) -> Result<Vec<u8>> {
    let n = size(id).ok_or(Error::INVALID_VALUE)?;
    let default = || {
        let mut v = [0; 64];
        // The remote domain is the second.
        v[1] = (id == 9) as u8;
        v
    };
    Ok(k.attrs.get(&id).copied().unwrap_or_else(default)[..n].to_vec())
}

/// Sets an attribute of a node. A cluster that does not divide the grid: 912.
pub fn set(k: &mut Kernel, id: u32, value: [u8; 64]) -> Result {
    if size(id).is_none() && id != attr::NVLINK_CENTRIC {
        return Err(Error::INVALID_VALUE);
    }
    let mut attrs = k.attrs.clone();
    attrs.insert(id, value);
    divides(k.grid, &attrs)?;
    takes_block(k.packed, &attrs)?;
    k.attrs = attrs;
    Ok(())
}

/// Checks that the cluster divides the grid; 912 if not. A cluster of zeroes is no cluster. A preferred size (11) needs
/// a cluster that it can fall back to.
pub fn divides(grid: [u32; 3], attrs: &Attrs) -> Result {
    let Some(v) = attrs.get(&attr::CLUSTER) else {
        return if attrs.contains_key(&11) { Err(Error::INVALID_CLUSTER_SIZE) } else { Ok(()) };
    };
    let size = |i: usize| u32::from_le_bytes([v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]]);
    let fits = |i: usize| size(i) == 0 || grid[i].is_multiple_of(size(i));
    if (0..3).all(fits) { Ok(()) } else { Err(Error::INVALID_CLUSTER_SIZE) }
}

/// A node of a cooperative kernel cannot have its parameters in one block: error 1 from all
/// calls that would give it such parameters, or make a node with such parameters cooperative.
pub fn takes_block(packed: bool, attrs: &Attrs) -> Result {
    let cooperative = attrs.get(&attr::COOPERATIVE).is_some_and(|v| v[..4] != [0; 4]);
    if packed && cooperative { Err(Error::INVALID_VALUE) } else { Ok(()) }
}

/// The attributes of a node that captures a launch: the launch's own, its stream's
/// priority, and clusters spread over the device unless the launch says otherwise.
/// Attributes that only order the launch are left out.
pub fn captured(mut attrs: Attrs, priority: i32) -> Attrs {
    let word = |n: u32| {
        let mut v = [0; 64];
        v[..4].copy_from_slice(&n.to_le_bytes());
        v
    };
    attrs.entry(5).or_insert(word(1));
    if priority != 0 {
        attrs.entry(attr::PRIORITY).or_insert(word(priority as u32));
    }
    let more = [attr::PROGRAMMATIC_SERIALIZATION, 11, attr::NVLINK_CENTRIC];
    attrs.retain(|id, _| size(*id).is_some() || more.contains(id));
    attrs
}
