//! A group: processes that share one limit (`GPUMEM_LIMIT_GROUP`). Its file, byte for byte.
//!
//! ```text
//! 0       Head (4096 bytes)
//! 4096    SLOTS times Slot: one for each member
//! ```
//!
//! While it runs, a member holds a kernel lock on the first byte of its slot, through the mapping of the file. The
//! kernel releases the lock when the process ends, however it ends, in every container. So a slot whose byte is
//! unlocked has no member, and its contents do not count. A slot has one writer: the holder of its lock.

use crate::read::Source;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First eight bytes of every group's file.
pub const MAGIC: [u8; 8] = *b"GPUMEM\x1aG";
/// Changes whenever anything in this file changes its meaning or place.
pub const VERSION: u32 = 1;
/// Maximum number of members.
pub const SLOTS: usize = 256;
/// Maximum number of devices counted per member.
pub const DEVICES: usize = 16;
/// Bytes in front of the slots.
pub const HEAD_BYTES: usize = 4096;
/// Bytes of the whole file.
pub const FILE_BYTES: usize = HEAD_BYTES + SLOTS * size_of::<Slot>();

/// Beginning of the file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    pub magic: [u8; 8],
    pub version: u32,
    /// 0x01020304 as the writer's machine stores it.
    pub byte_order: u32,
    /// Raised by each member that is short of memory: the others free what they keep and do not use.
    pub wanted: u64,
}

/// One member.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// In the member's own namespace.
    pub pid: u64,
    pub start_ticks: u64,
    /// Inode of /proc/self/ns/pid.
    pub pid_ns: u64,
    /// Bytes of each device that the group may take, as set for this member; 0: the slot was never used.
    pub limit: u64,
    /// [`Head::wanted`] when the member last freed what it did not use.
    pub answered: u64,
    /// 1 while the member checks [`Head::wanted`].
    pub hears: u64,
    /// Number of `devices` in use.
    pub devices_len: u64,
    pub _reserved: u64,
    /// Name of its program, zeroes behind it.
    pub name: [u8; 64],
    pub devices: [Device; DEVICES],
    pub _pad: [u8; 128],
}

/// A member's use of one device.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Device {
    pub uuid: [u8; 16],
    /// Bytes that the driver has given, including idle ones.
    pub taken: u64,
    /// Bytes granted to pending requests.
    pub reserved: u64,
    /// Idle bytes of `taken` at the member's last look.
    pub idle: u64,
    /// Bytes that the member waits for.
    pub short: u64,
}

const _: () = assert!(size_of::<Slot>() == 1024 && size_of::<Device>() == 48);

/// Returns the offset of a slot: its first byte is what its member locks.
pub const fn slot_at(index: usize) -> usize {
    HEAD_BYTES + index * size_of::<Slot>()
}

/// Returns why a file is not read as a group's; `None` if it is one.
pub fn fault(head: &[u8], file_bytes: u64) -> Option<&'static str> {
    let Ok((head, _)) = Head::read_from_prefix(head) else { return Some("it is too short") };
    if head.magic != MAGIC || head.byte_order != 0x0102_0304 {
        Some("it is not the file of a group")
    } else if head.version != VERSION {
        Some("another version of gpumem made it")
    } else if file_bytes != FILE_BYTES as u64 {
        Some("it has another length than the file of a group")
    } else {
        None
    }
}

/// Returns the beginning of a new file.
pub fn new_head() -> Head {
    Head { magic: MAGIC, version: VERSION, byte_order: 0x0102_0304, wanted: 0 }
}

/// Returns the slots of a file that were ever used, each with its index. The slot's lock tells if it is still in use.
///
/// # Errors
/// A sentence that says what is wrong with the file.
pub fn slots(source: &(impl Source + ?Sized), file_bytes: u64) -> Result<Vec<(usize, Slot)>, String> {
    let mut head = [0; size_of::<Head>()];
    let got = source.read_at(0, &mut head).map_err(|error| error.to_string())?;
    if let Some(fault) = fault(&head[..got], file_bytes) {
        return Err(fault.to_owned());
    }
    let mut used = Vec::new();
    let mut bytes = [0; size_of::<Slot>()];
    for index in 0..SLOTS {
        let got = source.read_at(slot_at(index) as u64, &mut bytes).map_err(|error| error.to_string())?;
        if let Ok(slot) = Slot::read_from_bytes(&bytes[..got])
            && slot.limit != 0
        {
            used.push((index, slot));
        }
    }
    Ok(used)
}

impl Slot {
    /// Returns the devices in use.
    pub fn devices(&self) -> &[Device] {
        &self.devices[..(self.devices_len as usize).min(DEVICES)]
    }

    /// Returns the name of the member's program.
    pub fn program(&self) -> String {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_file_is_a_groups_or_it_is_said_why_not() {
        let (head, all) = (new_head(), FILE_BYTES as u64);
        assert_eq!(fault(head.as_bytes(), all), None);
        assert!(fault(&head.as_bytes()[..10], all).is_some() && fault(head.as_bytes(), all - 1).is_some());
        assert!(fault(Head { magic: *b"GPUMEM\x1aL", ..head }.as_bytes(), all).is_some());
        assert!(fault(Head { version: 2, ..head }.as_bytes(), all).is_some());
        let mut file = vec![0; FILE_BYTES];
        file[..size_of::<Head>()].copy_from_slice(head.as_bytes());
        assert_eq!(slots(&file[..], all).unwrap().len(), 0);
        let mut slot = Slot::new_zeroed();
        (slot.limit, slot.devices_len, slot.name[0]) = (1, u64::MAX, b'x');
        file[slot_at(3)..slot_at(4)].copy_from_slice(slot.as_bytes());
        let used = slots(&file[..], all).unwrap();
        assert_eq!((used.len(), used[0].0, used[0].1.devices().len()), (1, 3, DEVICES));
        assert_eq!(used[0].1.program(), "x");
    }
}
