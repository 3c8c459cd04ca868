//! The location of an allocation's bytes. It decides which sum they belong to, and if a limit of the device applies to
//! them. A kind alone tells only the usual location of such memory.

use crate::counters::KINDS;
use crate::kinds::{AllocKind, Space};

/// Location of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Location {
    /// On the device of the record's context.
    #[default]
    OwnDevice,
    /// On a device that does not follow from the context, by the driver's number.
    Device(u16),
    /// In the host's memory.
    Host,
    /// In the host's memory, on this NUMA node.
    HostNode(u16),
    /// Moved by the driver between host and device.
    Managed,
    /// Unknown.
    Unknown,
    /// It takes no memory of its own: addresses, mappings, imports, nodes of graphs, parts of other allocations.
    Nowhere,
}

impl Location {
    /// Bits of the number in a word; the bits above tell what is numbered.
    const NUMBER_BITS: u32 = 12;
    const HIGHEST: u16 = (1 << Self::NUMBER_BITS) - 1;

    /// Returns the word for it in a record. A node with a number beyond 4095 becomes the host, a device becomes
    /// unknown.
    pub const fn word(self) -> u16 {
        let (what, number) = match self {
            Self::OwnDevice => (0, 0),
            Self::Device(number) if number <= Self::HIGHEST => (1, number),
            Self::HostNode(number) if number <= Self::HIGHEST => (3, number),
            Self::Host | Self::HostNode(_) => (2, 0),
            Self::Managed => (4, 0),
            Self::Unknown | Self::Device(_) => (5, 0),
            Self::Nowhere => (6, 0),
        };
        what << Self::NUMBER_BITS | number
    }

    /// Returns the location of a word; unknown if this version does not know the word.
    pub const fn of(word: u16) -> Self {
        let number = word & Self::HIGHEST;
        match word >> Self::NUMBER_BITS {
            0 => Self::OwnDevice,
            1 => Self::Device(number),
            2 => Self::Host,
            3 => Self::HostNode(number),
            4 => Self::Managed,
            6 => Self::Nowhere,
            _ => Self::Unknown,
        }
    }

    /// Returns the sum that its bytes belong to.
    pub const fn space(self) -> Space {
        match self {
            Self::OwnDevice | Self::Device(_) => Space::Device,
            Self::Host | Self::HostNode(_) => Space::Host,
            Self::Managed => Space::Managed,
            Self::Unknown => Space::Unknown,
            Self::Nowhere => Space::None,
        }
    }

    /// True if a limit of the device applies.
    pub const fn is_device(self) -> bool {
        matches!(self.space(), Space::Device)
    }

    /// Returns the usual location of memory of this kind, unless the program asks for another.
    pub const fn usual(kind: AllocKind) -> Self {
        use AllocKind::*;
        match kind {
            Device | Pitch | Async | VmmPhysical | Array | MipmappedArray | GraphLeft => Self::OwnDevice,
            HostPinned | HostRegistered => Self::Host,
            AllocKind::Managed => Self::Managed,
            VmmMapping | VmmReservation | IpcImport | ExternalMemory | ExternalMapping | VmmImport | Multicast
            | Reported | GraphNode | Code | Event => Self::Nowhere,
        }
    }
}

/// Allocations counted together: of one kind and in one space. Each row has its own counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub kind: AllocKind,
    pub space: Space,
    index: u8,
}

/// Rows of the kinds that may lie elsewhere than usual. Their numbers follow those of the kinds.
const ELSEWHERE: [(AllocKind, Space, u8); 5] = [
    (AllocKind::Async, Space::Host, 18),
    (AllocKind::Async, Space::Managed, 19),
    (AllocKind::Async, Space::Unknown, 20),
    (AllocKind::VmmPhysical, Space::Host, 21),
    (AllocKind::VmmPhysical, Space::Unknown, 22),
];

impl Tally {
    /// Returns the row of a kind in a space. Memory of a kind that cannot lie there counts at the kind's usual
    /// location.
    #[inline(always)]
    pub const fn of(kind: AllocKind, space: Space) -> Self {
        let mut at = 0;
        while at < ELSEWHERE.len() {
            let (of, there, index) = ELSEWHERE[at];
            if of as u8 == kind as u8 && there as u8 == space as u8 {
                return Self { kind, space, index };
            }
            at += 1;
        }
        Self { kind, space: Location::usual(kind).space(), index: kind as u8 }
    }

    /// Returns every row.
    pub fn all() -> impl Iterator<Item = Self> {
        let usual = AllocKind::ALL.iter().map(|&kind| Self::of(kind, Location::usual(kind).space()));
        usual.chain(ELSEWHERE.iter().map(|&(kind, space, _)| Self::of(kind, space)))
    }

    /// Returns every row of a space.
    pub fn all_in(space: Space) -> impl Iterator<Item = Self> {
        Self::all().filter(move |row| row.space == space)
    }

    /// Returns every row of memory: all but those of addresses, mappings, imports and parts.
    pub fn all_of_memory() -> impl Iterator<Item = Self> {
        Self::all().filter(|row| row.space != Space::None)
    }

    /// Returns the index of its allocations in a shard of [`crate::counters`].
    pub const fn allocs(self) -> usize {
        self.index as usize
    }

    /// Returns the index of its frees.
    pub const fn frees(self) -> usize {
        KINDS + self.index as usize
    }

    /// Returns the index of its bytes ever allocated.
    pub const fn alloc_bytes(self) -> usize {
        2 * KINDS + self.index as usize
    }

    /// Returns the index of its bytes ever freed.
    pub const fn free_bytes(self) -> usize {
        3 * KINDS + self.index as usize
    }

    /// Returns the index of its failed allocations.
    pub const fn alloc_failures(self) -> usize {
        4 * KINDS + self.index as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_word_and_turns_back() {
        use Location::*;
        for location in [OwnDevice, Device(0), Device(7), Host, HostNode(0), HostNode(4095), Managed, Unknown, Nowhere]
        {
            assert_eq!(Location::of(location.word()), location);
        }
        assert_eq!((Location::of(HostNode(4096).word()), Location::of(Device(4096).word())), (Host, Unknown));
        assert_eq!((Location::of(7 << 12), Location::of(u16::MAX)), (Unknown, Unknown));
        assert_eq!(OwnDevice.word(), 0, "the usual record of the pool has nothing to write there");
    }

    #[test]
    fn each_row_has_a_place_and_a_space_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for row in &Tally::all().collect::<Vec<Tally>>() {
            for index in [row.allocs(), row.frees(), row.alloc_bytes(), row.free_bytes(), row.alloc_failures()] {
                assert!(seen.insert(index) && index < 5 * KINDS, "{row:?} shares counter {index}");
            }
            assert_eq!(Tally::of(row.kind, row.space), *row);
        }
        assert_eq!(Tally::of(AllocKind::Array, Space::Host).space, Space::Device, "an array lies on its device");
    }
}
