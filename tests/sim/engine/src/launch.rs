//! Kernel launches: from the caller's pointers to packed parameters.

use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::node::{Attrs, Kernel};

/// The arguments of a launch, before its parameters are read.
pub struct Shape {
    pub func: H,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub attrs: Attrs,
}

/// Builds a kernel; `read` copies parameter `i` (of the given size) from where
/// the caller keeps it, or `packed` is the whole block.
pub fn kernel(shape: Shape, packed: Option<Vec<u8>>, read: Option<&dyn Fn(usize, usize) -> Vec<u8>>) -> Result<Kernel> {
    let Shape { func, grid, block, shared, attrs } = shape;
    if grid.contains(&0) || block.contains(&0) {
        return Err(Error::INVALID_VALUE);
    }
    let threads = block.iter().map(|n| *n as u64).product::<u64>();
    if threads > 1024 || grid[1] > 65535 || grid[2] > 65535 {
        return Err(Error::INVALID_VALUE);
    }
    let (layout, load, most) = {
        let mut m = lock();
        let most = m.function_attribute(func, MAX_DYNAMIC_SHARED)?;
        let f = m.function(func)?;
        (f.layout.clone(), f.load, most)
    };
    crate::attrs::divides(grid, &attrs)?;
    let is_packed = packed.is_some();
    if shared as i64 > most as i64 {
        return Err(Error::INVALID_VALUE);
    }
    let size = layout.last().map_or(0, |(off, len)| off + len) as usize;
    let mut bytes = vec![0u8; size];
    match (packed, read) {
        // More bytes than the kernel takes are refused. Fewer bytes are not checked (H200, driver 580).
        (Some(p), _) if p.len() > size => return Err(Error::LAUNCH_OUT_OF_RESOURCES),
        (Some(p), _) => bytes[..p.len()].copy_from_slice(&p),
        (None, Some(read)) => {
            for (i, (off, len)) in layout.iter().enumerate() {
                let (off, len) = (*off as usize, *len as usize);
                bytes[off..off + len].copy_from_slice(&read(i, len));
            }
        }
        (None, None) if size == 0 => {}
        (None, None) => return Err(Error::INVALID_VALUE),
    }
    Ok(Kernel { func, grid, block, shared, params: bytes.into(), layout, packed: is_packed, attrs, load })
}

const MAX_DYNAMIC_SHARED: u32 = 8;

/// A context has local memory for this many threads: 132 processors, 2048 threads each. It begins with 1 KiB a thread. On an
/// H100 (driver 580) the first launch of a kernel with 1, 4 and 16 KiB a thread took 0, 792 and 3960 MiB.
const LOCAL_THREADS: u64 = 132 * 2048;
pub const LOCAL_AT_FIRST: u32 = 1024;

impl Machine {
    /// Takes local memory for a kernel's threads, unless a kernel before it in that context had as much. The context keeps
    /// it.
    pub fn take_local(&mut self, ctx: H, kernel: &Kernel) -> Result {
        let (local, ctx) = (self.function(kernel.func)?.local, self.owner(ctx));
        let context = self.context(ctx)?;
        let more = u64::from(local.saturating_sub(context.local)) * LOCAL_THREADS;
        if more > 0 {
            let device = context.device;
            self.charge(device, more)?;
            let context = self.context(ctx)?;
            context.local = local;
            context.stacks += more;
        }
        Ok(())
    }

    /// An attribute of the function; a plain kernel has the default.
    pub fn function_attribute(&mut self, func: H, attribute: u32) -> Result<i32> {
        let f = self.function(func)?;
        Ok(match (f.attrs.get(&attribute), attribute) {
            (Some(v), _) => *v,
            (None, 0) => 1024, // threads per block
            (None, 3) => f.local as i32,
            (None, 4) => 32,       // registers
            (None, 5 | 6) => 90,   // PTX and binary version
            (None, 8) => 48 << 10, // dynamic shared memory
            (None, 9) => -1,       // shared memory carveout: the driver's choice
            (None, 0..=15) => 0,
            _ => return Err(Error::INVALID_VALUE),
        })
    }
}
