//! A group's file, as words that members share.

use super::sum::MemberBytes;
use gpumem_wire::group::{DEVICES, Device, HEAD_BYTES, Head, SLOTS, Slot};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// A [`Head`], with room behind it.
#[repr(C)]
pub(super) struct HeadWords {
    _magic: AtomicU64,
    _version: AtomicU32,
    _byte_order: AtomicU32,
    pub wanted: AtomicU64,
    _room: [AtomicU64; HEAD_BYTES / 8 - 3],
}

/// A [`Slot`].
#[repr(C)]
pub(super) struct SlotWords {
    pub pid: AtomicU64,
    pub start_ticks: AtomicU64,
    pub pid_ns: AtomicU64,
    pub limit: AtomicU64,
    pub answered: AtomicU64,
    pub hears: AtomicU64,
    pub devices_len: AtomicU64,
    _reserved: AtomicU64,
    pub name: [AtomicU64; 8],
    pub devices: [DeviceWords; DEVICES],
    _pad: [AtomicU64; 16],
}

/// A [`Device`].
#[repr(C)]
pub(super) struct DeviceWords {
    pub uuid: [AtomicU64; 2],
    pub told: MemberBytes,
    pub idle: AtomicU64,
    pub short: AtomicU64,
}

/// The whole file.
#[repr(C)]
pub(super) struct FileWords {
    pub head: HeadWords,
    pub slots: [SlotWords; SLOTS],
}

const _: () = assert!(size_of::<HeadWords>() == HEAD_BYTES && size_of::<SlotWords>() == size_of::<Slot>());
const _: () = assert!(size_of::<DeviceWords>() == size_of::<Device>());
const _: () = assert!(offset_of!(HeadWords, wanted) == offset_of!(Head, wanted));
const _: () = assert!(offset_of!(SlotWords, devices) == offset_of!(Slot, devices));
const _: () = assert!(offset_of!(SlotWords, devices_len) == offset_of!(Slot, devices_len));
const _: () = assert!(offset_of!(DeviceWords, idle) == offset_of!(Device, idle));

/// Returns a device's name as words.
pub(super) fn as_words(uuid: &[u8; 16]) -> [u64; 2] {
    let word = |at: usize| uuid[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    [word(0), word(8)]
}

impl SlotWords {
    /// Returns what the member tells of a device.
    pub(super) fn device(&self, uuid: [u64; 2]) -> Option<&DeviceWords> {
        let used = (self.devices_len.load(Acquire) as usize).min(DEVICES);
        self.devices[..used]
            .iter()
            .find(|device| device.uuid.iter().zip(uuid).all(|(word, its)| word.load(Relaxed) == its))
    }

    /// True if the slot has data of a member, present or ended.
    pub(super) fn tells(&self) -> bool {
        self.limit.load(Acquire) != 0 || self.devices_len.load(Acquire) != 0
    }

    /// Clears the slot, because its member has ended or a new one comes. Only for a process that holds the slot's lock.
    ///
    /// The word that makes the slot count is cleared last. So if a process is killed on the way, the next one still
    /// finds the slot.
    pub(super) fn clear(&self) {
        self.hears.store(0, Relaxed);
        for device in &self.devices {
            for word in [&device.told.reserved, &device.told.taken, &device.idle, &device.short] {
                word.store(0, Relaxed);
            }
        }
        self.devices_len.store(0, Release);
        self.limit.store(0, Release);
    }
}
