//! The ledger, byte for byte. Little-endian, fixed slots, 64-byte aligned tables.
//!
//! ```text
//! 0       Header (4096 bytes, with the table directory)
//! 4096    room for [`MAX_PIECES`] entries of [`PieceDesc`]; none in a dump
//! …       pieces of tables, in the order in which the tables grew; in a dump, whole tables
//! ```
//!
//! The file of a process has no holes: it grows at its end, by a piece for the table that needs one, and only
//! [`TableDesc::used`] slots of a table are backed by storage. The writer takes storage (fallocate) before it raises
//! `used`, so that a full disk is an error for the writer and never a SIGBUS. A hole inside the file's length could
//! become a SIGBUS: the kernel may take a page for one slot together with holes beside it. A table consists of its
//! pieces in order; a slot may begin in one piece and end in the next. In a dump `pieces_len` is 0, and a table lies at
//! the offset in its directory entry.
//!
//! A slot is valid if its `check` equals [`seal`] of its fixed part; 0 means free. The writer zeroes `check` first and
//! sets it last, so that a half-written slot (by a copy, or by a SIGKILL) is recognised. Fields behind the fixed part
//! are counters that change on their own.

use crate::kinds::{ExecState, Pinned, PoolState, Space, Taken};
use crate::location::Location;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First eight bytes of every ledger.
pub const MAGIC: [u8; 8] = *b"GPUMEM\x1aL";
/// Changes whenever anything in this file changes its meaning or place.
pub const VERSION: u32 = 14;
/// Bytes of [`Header`].
pub const HEADER_BYTES: usize = 4096;
/// Most tables a directory holds.
pub const MAX_TABLES: usize = 24;
/// Most pieces that a file may have: with the header they fill 32 KiB.
pub const MAX_PIECES: usize = 1792;

/// Kind of a table. Readers skip unknown numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum TableKind {
    /// [`AllocSlot`]: live allocations.
    Allocs = 1,
    /// [`StackSlot`]: interned call stacks.
    Stacks = 2,
    /// `u64` return addresses, and frames of Python ([`PythonFrame`]); stacks point into it.
    Frames = 3,
    /// Text: `u32` length, then UTF-8; a [`StrRef`] is the offset of the length.
    Strings = 4,
    /// [`ModuleSlot`]: files mapped with code in the process.
    Modules = 5,
    /// [`GraphSlot`]: live graphs.
    Graphs = 6,
    /// [`ExecSlot`]: live executable graphs.
    Execs = 7,
    /// [`ContextSlot`], kept after the context is gone.
    Contexts = 8,
    /// [`StreamSlot`]: live streams.
    Streams = 9,
    /// [`EventSlot`]: a ring.
    Events = 10,
    /// `u64` counters: [`crate::counters::SHARDS`] times [`crate::counters::PER_SHARD`].
    Counters = 11,
    /// [`SampleSlot`]: a ring.
    Samples = 12,
    /// [`ThreadSlot`]: threads that made a recorded call.
    Threads = 13,
    /// [`SymbolSlot`]: only in dump files, sorted by address.
    Symbols = 14,
    /// [`GrowthSlot`]: the call stacks, tags and classes whose live bytes are kept over time.
    Growth = 15,
    /// `u64` words in blocks: the times of samples, then for each row of Growth its live bytes and counts at those times.
    GrowthPoints = 16,
    /// [`CodeSlot`]: Python code that frames in stacks refer to.
    Codes = 17,
    /// [`SharedSlot`]: memory that was shown to other processes, and memory of others that is open here.
    Shared = 18,
}

impl TableKind {
    /// Every kind with the bytes of one slot.
    pub const ALL: &'static [(TableKind, usize)] = &[
        (TableKind::Allocs, size_of::<AllocSlot>()),
        (TableKind::Stacks, size_of::<StackSlot>()),
        (TableKind::Frames, 8),
        (TableKind::Strings, 1),
        (TableKind::Modules, size_of::<ModuleSlot>()),
        (TableKind::Graphs, size_of::<GraphSlot>()),
        (TableKind::Execs, size_of::<ExecSlot>()),
        (TableKind::Contexts, size_of::<ContextSlot>()),
        (TableKind::Streams, size_of::<StreamSlot>()),
        (TableKind::Events, size_of::<EventSlot>()),
        (TableKind::Counters, 8),
        (TableKind::Samples, size_of::<SampleSlot>()),
        (TableKind::Threads, size_of::<ThreadSlot>()),
        (TableKind::Symbols, size_of::<SymbolSlot>()),
        (TableKind::Growth, size_of::<GrowthSlot>()),
        (TableKind::GrowthPoints, 8),
        (TableKind::Codes, size_of::<CodeSlot>()),
        (TableKind::Shared, size_of::<SharedSlot>()),
    ];

    /// Returns the kind of this number, with the bytes of one slot.
    pub fn from_u32(number: u32) -> Option<(TableKind, usize)> {
        Self::ALL.iter().copied().find(|(kind, _)| *kind as u32 == number)
    }
}

/// Offset of a text in the Strings table; 0 is "no text".
pub type StrRef = u32;
/// Index of a stack plus one; 0 is "no stack was taken".
pub type StackRef = u32;
/// Index of a context plus one; 0 is "no context known".
pub type ContextRef = u16;
/// Index of a stream plus one; 0 is "no stream, or a default one".
pub type StreamRef = u16;

macro_rules! slot {
    ($(#[$meta:meta])* $name:ident, $bytes:literal { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C, align(8))]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

slot! {
    /// One entry of the table directory.
    TableDesc, 40 {
        /// A [`TableKind`] number; 0 ends the directory.
        kind: u32,
        slot_bytes: u32,
        /// From the start of the file; 0 where the table lies in pieces.
        offset: u64,
        /// Slots that the table may reach.
        capacity: u64,
        /// Slots backed by storage: what a reader reads. Raised by the writer only.
        used: u64,
        /// Rings: how many entries were ever written. Others: 0.
        written: u64,
    }
}

slot! {
    /// A part of a table, in the list of pieces. Each piece lies in the file behind the one before it.
    PieceDesc, 16 {
        /// From the start of the file.
        offset: u64,
        bytes: u32,
        /// The table's place in the directory, from 0.
        table: u32,
    }
}

/// The first page of a ledger.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    /// 0x01020304 as the writer's machine stores it.
    pub byte_order: u32,
    pub pid: u32,
    pub uid: u32,
    /// Field 22 of /proc/PID/stat: with the pid it names a process for as long as the machine is up.
    pub start_ticks: u64,
    /// /proc/sys/kernel/random/boot_id as 16 bytes.
    pub boot_id: [u8; 16],
    /// CLOCK_MONOTONIC when the ledger was made, nanoseconds; every time in it is on this clock.
    pub created_ns: u64,
    /// CLOCK_REALTIME at the same moment, nanoseconds.
    pub created_real_ns: u64,
    /// When the control thread was last active (0: it does not run).
    pub heartbeat_ns: u64,
    /// When the process ran `exit` (0: it did not).
    pub exited_ns: u64,
    /// A [`crate::kinds::State`].
    pub state: u32,
    /// A [`crate::kinds::Mode`].
    pub mode: u32,
    pub mode_reason: StrRef,
    /// A [`crate::kinds::Interception`].
    pub interception: u32,
    pub interception_reason: StrRef,
    /// `cuDriverGetVersion`, e.g. 13000; 0 while unknown.
    pub driver_version: u32,
    /// Which doors calls came through: a bit per [`Door`].
    pub doors: u32,
    pub exe: StrRef,
    pub cmdline: StrRef,
    /// Version of the shim, e.g. "0.1.0".
    pub shim_version: StrRef,
    /// The variables that were set, one `NAME=value` a line. Every other variable has its default.
    pub settings: StrRef,
    /// Settings that were refused or are unknown, one line each.
    pub complaints: StrRef,
    /// Tables in the directory.
    pub tables_len: u32,
    /// The deepest stack that is recorded (0: none).
    pub stack_depth: u32,
    /// Dump files only: when the copy was made (0: this is the ledger itself), CLOCK_MONOTONIC.
    pub dumped_ns: u64,
    /// Dump files only: VmRSS of the process at that moment, bytes; 0 if unknown.
    pub dumped_rss: u64,
    /// Dump files only: device bytes that the driver says the process held; 0 if unknown.
    pub dumped_device_used: u64,
    /// Inode of /proc/self/ns/pid: `pid` is valid only in this namespace; 0 if unknown.
    pub pid_ns: u64,
    /// Variables that `gpumem set` changed, in the form of `settings`. Nothing behind the `=` means the default.
    pub changes: StrRef,
    /// Pieces that the list behind the header has (0: every table lies in one part). Raised by the writer only.
    pub pieces_len: u32,
    /// A sentence that says what decided [`Header::mode`]; then a line for each verdict that was not believed.
    pub decided: StrRef,
    /// Functions, kinds of nodes, attributes and flags that the process met and this release does not know, one a line.
    pub unknown: StrRef,
    /// The Python interpreter in the process, "CPython 3.11.7". A second line, if there is one, says why its frames are
    /// not read. 0: none was found.
    pub python: StrRef,
    /// The group of `GPUMEM_LIMIT_GROUP`: its name, its file, and the bytes of each device that it may take, a line each. 0: none.
    pub group: StrRef,
    /// A [`crate::kinds::Parking`].
    pub parking: u64,
    /// When the shim was told that the process is to be parked, or that it has resumed, CLOCK_MONOTONIC (0: never).
    pub parking_ns: u64,
    /// Device bytes that are on the host; 0 unless the process is parked.
    pub parked_bytes: u64,
    /// Nanoseconds that the process was parked before, each time counted from `parking_ns` on.
    pub parked_total_ns: u64,
    /// Since when a process with `GPUMEM_SHARE` has no work: nothing was submitted and its contexts were seen idle,
    /// CLOCK_MONOTONIC (0: it has work). It stays as it was while the process is parked.
    pub idle_since_ns: u64,
    /// The name in `GPUMEM_SHARE`. A second line, if there is one, says why the process cannot be parked. 0: the process
    /// shares no card.
    pub share: StrRef,
    pub _reserved_share: u32,
    pub _reserved: [u64; 19],
    pub tables: [TableDesc; MAX_TABLES],
    pub _pad: [u8; HEADER_BYTES - 392 - MAX_TABLES * 40],
}
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// Ways in, for [`Header::doors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Door {
    /// An exported `cu*` name was called (a program linked to libcuda).
    DriverExport = 1,
    /// `dlsym` answered with one of ours.
    Dlsym = 2,
    /// `cuGetProcAddress` answered with one of ours.
    ProcAddress = 4,
    /// An exported `cuda*` name was called.
    RuntimeExport = 8,
    /// An exported `hip*` name was called.
    HipExport = 16,
}

impl Door {
    /// Every door with its name.
    pub const ALL: &'static [(Door, &'static str)] = &[
        (Door::DriverExport, "driver-export"),
        (Door::Dlsym, "dlsym"),
        (Door::ProcAddress, "proc-address"),
        (Door::RuntimeExport, "runtime-export"),
        (Door::HipExport, "hip-export"),
    ];
}

slot! {
    /// A live allocation. All of it is sealed.
    AllocSlot, 64 {
        check: u32,
        stack: StackRef,
        /// The pointer, or the handle for kinds that have no address.
        addr: u64,
        /// Bytes asked for (pitched memory and arrays: pitch or width × height × depth × element).
        bytes: u64,
        /// When it was made.
        time_ns: u64,
        /// Order among all records of the process.
        serial: u64,
        /// A further value that depends on the kind: pool, physical handle, array pitch, handle of the graph; for code 1 if its
        /// bytes were measured, 0 if the image says them.
        extra: u64,
        tid: u32,
        tag: StrRef,
        /// Index of the stream plus one for stream-ordered memory, else 0.
        stream: StreamRef,
        /// Its location: the word of a [`Location`].
        location: u16,
        context: ContextRef,
        /// A [`crate::kinds::AllocKind`].
        kind: u8,
        flags: u8,
    }
}

impl AllocSlot {
    /// Returns the location of its bytes.
    pub const fn location(&self) -> Location {
        Location::of(self.location)
    }

    /// Returns the sum that its bytes belong to.
    pub const fn space(&self) -> Space {
        self.location().space()
    }

    /// True if its bytes count: it is not an address, a mapping, an import or a part of another allocation.
    pub fn takes_memory(&self) -> bool {
        self.space() != Space::None
    }

    /// Returns the name of the pool of a part that the program reported; 0 for every other kind.
    pub fn pool_name(&self) -> StrRef {
        match self.kind == crate::kinds::AllocKind::Reported as u8 {
            true => StrRef::try_from(self.extra).unwrap_or(0),
            false => 0,
        }
    }
}

/// [`AllocSlot::flags`]: exported to another process.
pub const ALLOC_EXPORTED: u8 = 1;
/// [`AllocSlot::flags`]: the allocation was made while a stream of the context captured.
pub const ALLOC_IN_CAPTURE: u8 = 2;
/// [`AllocSlot::flags`]: it was asked for as device memory and lies outside of the device's memory.
pub const ALLOC_SPILLED: u8 = 4;
/// [`AllocSlot::flags`]: a block of the pool.
pub const ALLOC_POOLED: u8 = 8;

slot! {
    /// An allocation that other processes may have open, or one of another process that is open here. All of it is sealed.
    /// If an allocation is freed, its row stays while its context lives and there is room. So if no record has the
    /// serial of an exported allocation, it was freed. If no record has the serial of an import, it was closed, and the
    /// row means nothing.
    SharedSlot, 64 {
        check: u32,
        /// Call site that allocated it here; of an import, the call site that opened it.
        stack: StackRef,
        /// Names the allocation in every process that has the handle: the first half of SHA-256 of the handle's 64 bytes.
        hash: [u8; 16],
        /// Its address in this process.
        addr: u64,
        /// As the driver has them.
        bytes: u64,
        /// When it was exported first, or opened.
        time_ns: u64,
        /// [`AllocSlot::serial`] of its record.
        serial: u64,
        context: ContextRef,
        /// A [`crate::kinds::SharedKind`].
        kind: u8,
        _pad0: u8,
        _pad1: u32,
    }
}
/// Most rows of it: they take 256 KiB.
pub const SHARED_ROWS: u64 = 4096;

slot! {
    /// An interned call stack. The totals are not sealed; a part of them may still be among the counters.
    StackSlot, 64 {
        check: u32,
        /// Number of frames: native return addresses, innermost first, then frames of Python, innermost first.
        frames: u32,
        /// Index of the first one in the Frames table.
        first_frame: u64,
        hash: u64,
        first_ns: u64,
        allocs: u64,
        alloc_bytes: u64,
        graphs: u64,
        execs: u64,
    }
}
/// Bytes of [`StackSlot`] that are sealed.
pub const STACK_SEALED: usize = 32;

slot! {
    /// Code of Python: a function, a class body, a module, a comprehension. All of it is sealed.
    CodeSlot, 16 {
        check: u32,
        /// Qualified ("Model.forward") where the version of Python has that.
        name: StrRef,
        file: StrRef,
        first_line: u32,
    }
}

/// A frame of Python among the frames of a stack: a word that is no address of a program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFrame {
    /// Index in the Codes table.
    pub code: u32,
    /// In the code's file; 0 if unknown.
    pub line: u32,
    /// Native code called it: the frame further out is a native one.
    pub entry: bool,
}

impl PythonFrame {
    /// Set in every such word: no address of a program's has it.
    const MARK: u64 = 1 << 63;
    /// [`PythonFrame::entry`].
    pub const ENTRY: u64 = 1 << 62;
    const LINE_BITS: u32 = 24;

    /// Returns the word for it. Lines beyond 16 777 215 are unknown.
    pub const fn word(self) -> u64 {
        let line = if self.line >> Self::LINE_BITS == 0 { self.line } else { 0 };
        let entry = if self.entry { Self::ENTRY } else { 0 };
        Self::MARK | entry | (self.code as u64) << Self::LINE_BITS | line as u64
    }

    /// Returns the frame that a word stands for; `None` for an address.
    pub const fn of(word: u64) -> Option<Self> {
        if word & Self::MARK == 0 {
            return None;
        }
        let line = (word & ((1 << Self::LINE_BITS) - 1)) as u32;
        Some(Self { code: (word >> Self::LINE_BITS) as u32, line, entry: word & Self::ENTRY != 0 })
    }
}

slot! {
    /// A file with code, as mapped.
    ModuleSlot, 96 {
        check: u32,
        path: StrRef,
        /// Address in the process minus virtual address in the ELF file.
        bias: u64,
        start: u64,
        end: u64,
        first_ns: u64,
        build_id: [u8; 32],
        build_id_len: u32,
        _pad: u32,
        /// When the file was found unmapped (0: it is still mapped); not sealed.
        gone_ns: u64,
        _reserved: u64,
    }
}
/// Bytes of [`ModuleSlot`] that are sealed.
pub const MODULE_SEALED: usize = 80;

slot! {
    /// A live graph. The totals are not sealed.
    GraphSlot, 96 {
        check: u32,
        stack: StackRef,
        handle: u64,
        time_ns: u64,
        serial: u64,
        /// Nodes when it came to be (captured, cloned) or was last instantiated.
        nodes: u64,
        /// Estimated host bytes of the graph while the driver holds it.
        host_bytes: u64,
        tid: u32,
        tag: StrRef,
        context: ContextRef,
        /// A [`crate::kinds::GraphOrigin`].
        origin: u8,
        _pad0: u8,
        _pad1: u32,
        instantiates: u64,
        last_used_ns: u64,
        /// 0: the driver holds it. Otherwise it is folded, and its source takes
        /// this many host bytes.
        folded_bytes: u64,
        _reserved: u64,
    }
}
/// Bytes of [`GraphSlot`] that are sealed.
pub const GRAPH_SEALED: usize = 64;

slot! {
    /// A live executable graph, as the program holds it: a handle. The totals are not sealed.
    ExecSlot, 256 {
        check: u32,
        stack: StackRef,
        handle: u64,
        time_ns: u64,
        serial: u64,
        /// Serial of the graph it was instantiated from, 0 if that was not recorded.
        graph_serial: u64,
        instantiate_ns: u64,
        /// Estimated host bytes of a real exec for it, held while it is native or resident.
        host_bytes: u64,
        /// Estimated device bytes of a real exec for it, held while it is native or resident.
        device_bytes: u64,
        /// Flags given to instantiate.
        flags: u64,
        tid: u32,
        tag: StrRef,
        context: ContextRef,
        _pad0: u16,
        nodes_total: u32,
        /// Nodes by [`crate::kinds::NodeKind`], those of child graphs included.
        nodes: [u32; 16],
        /// Fingerprint of its class: handles of one class can take over one another's real exec.
        /// 0: it was never part of one.
        class: u64,
        launches: u64,
        last_launch_ns: u64,
        updates: u64,
        failed_updates: u64,
        last_update_ns: u64,
        node_sets: u64,
        /// Bits 0 to 7: a [`crate::kinds::ExecState`]. Bits 8 to 15: a [`crate::kinds::Pinned`]. See
        /// [`exec_state`].
        state: u64,
        /// Host bytes of the handle's source; 0: it has none. A folded handle holds nothing else.
        source_bytes: u64,
        /// Launches for which another handle's real exec was turned into this handle's first.
        retargets: u64,
        /// Real instantiates done for it.
        instantiations: u64,
        /// Times its real exec was given to another handle or destroyed.
        evictions: u64,
        /// Nanoseconds of instantiates that the graph cache avoided for it, estimated.
        saved_ns: u64,
    }
}
/// Bytes of [`ExecSlot`] that are sealed.
pub const EXEC_SEALED: usize = 160;

/// Returns the word for [`ExecSlot::state`].
pub const fn exec_state(state: ExecState, pinned: Pinned) -> u64 {
    state as u64 | (pinned as u64) << 8
}

impl ExecSlot {
    /// Returns the state of its real exec; `None` for a number that this version does not know.
    pub fn exec_state(&self) -> Option<ExecState> {
        ExecState::from_u8(self.state as u8)
    }

    /// Returns the host and device bytes that it takes now, with its source. A folded one has only its source.
    pub fn held_bytes(&self) -> u64 {
        let real = match self.exec_state() {
            Some(ExecState::Folded | ExecState::Gone) => 0,
            Some(ExecState::Native | ExecState::Resident) | None => self.host_bytes.saturating_add(self.device_bytes),
        };
        real.saturating_add(self.source_bytes)
    }

    /// Returns why the handle is the driver's own or keeps its real exec to itself.
    pub fn pinned(&self) -> Option<Pinned> {
        Pinned::from_u8((self.state >> 8) as u8)
    }
}

impl GraphSlot {
    /// Returns the host bytes that it takes now: those of its source if it is folded.
    pub fn held_bytes(&self) -> u64 {
        if self.folded_bytes != 0 { self.folded_bytes } else { self.host_bytes }
    }
}

impl ContextSlot {
    /// Returns the bytes that the driver took for itself, for one reason.
    pub fn taken_for(&self, what: Taken) -> u64 {
        self.taken[what.place()]
    }

    /// Returns the offset of that number in the slot.
    pub const fn taken_at(what: Taken) -> usize {
        offset_of!(Self, taken) + what.place() * size_of::<u64>()
    }

    /// Returns the bytes that the driver took for itself, for all reasons.
    pub fn taken_bytes(&self) -> u64 {
        self.taken.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns what the process is known to hold of the device: live and idle memory, and what the driver was seen to
    /// take. The driver's pool of stream-ordered memory is not in it.
    pub fn held_bytes(&self) -> u64 {
        self.live_bytes.wrapping_add(self.idle_bytes).wrapping_add(self.taken_bytes())
    }

    /// Returns the device-wide used bytes: those of the last look, with what this process, which now holds `held` bytes
    /// on the device, took and gave back since. False if the changes since then are not known.
    pub fn used_now(&self, held: u64) -> (u64, bool) {
        // What the driver's pool keeps of freed memory is known as of the look alone.
        match self.not_ours.checked_sub(1).filter(|_| self.pool_bytes == 0) {
            Some(others) => (others.saturating_add(held), true),
            None => (self.used_bytes, false),
        }
    }

    /// Returns the pool's state there; `None` for a number that this version does not know.
    pub fn pool_state(&self) -> Option<PoolState> {
        PoolState::from_u8(self.pool_state as u8)
    }
}

slot! {
    /// A context. Kept after it is gone, since records refer to it.
    ContextSlot, 264 {
        check: u32,
        name: StrRef,
        handle: u64,
        time_ns: u64,
        total_bytes: u64,
        /// Device-wide used bytes right after the context came to be; 0 if unknown.
        baseline_used: u64,
        uuid: [u8; 16],
        device: u32,
        /// A [`crate::kinds::Vendor`].
        vendor: u8,
        /// 1: the device's primary context.
        primary: u8,
        /// 1: the device says that its memory is the machine's (`CU_DEVICE_ATTRIBUTE_INTEGRATED`).
        integrated: u8,
        _pad: u8,
        /// When it was destroyed (0: it is alive); not sealed from here on.
        gone_ns: u64,
        /// Device-wide used bytes when last looked at, and when.
        used_bytes: u64,
        used_ns: u64,
        /// Live device bytes of recorded allocations of this context, and their highest value.
        live_bytes: u64,
        peak_bytes: u64,
        /// Bytes, live and idle, that the driver holds for the device's default pool, at the last look.
        pool_bytes: u64,
        /// Bytes that the driver holds for the memory nodes of graphs, at the last look.
        graph_bytes: u64,
        /// Estimated device bytes of the real execs that the graph cache holds in this context, parked ones
        /// included; changes together with the counters of real bytes.
        exec_bytes: u64,
        /// Idle bytes that the pool keeps in this context, and their highest value.
        idle_bytes: u64,
        idle_peak_bytes: u64,
        /// Blocks of those.
        idle_blocks: u64,
        /// Bytes of the device that this process may take (0: as much as there is).
        limit_bytes: u64,
        /// Live bytes that were asked for as device memory of this context and lie outside of it.
        spilled_bytes: u64,
        /// A [`crate::kinds::PoolState`].
        pool_state: u64,
        /// Bytes of the device that the driver took for itself, by [`Taken`] less one: how much free memory fell during
        /// calls of this context that ask for none. What other processes took meanwhile is in it.
        taken: [u64; 7],
        /// Of the kernels for whose local memory the driver took memory: the most bytes per thread. The next field has
        /// that kernel's name as a [`StrRef`].
        local_per_thread: u64,
        local_kernel: u64,
        /// Call site that made it; 0: it is a device's primary context, or was there before gpumem.
        stack: StackRef,
        _pad2: u32,
        /// Of the bytes used at that look those that this process did not hold, plus one. 0: the control thread has not
        /// worked them out yet.
        not_ours: u64,
    }
}
const _: () = assert!(Taken::COUNT == 7);
/// Bytes of [`ContextSlot`] that are sealed.
pub const CONTEXT_SEALED: usize = 64;

slot! {
    /// A live stream. The state of its capture is not sealed.
    StreamSlot, 64 {
        check: u32,
        stack: StackRef,
        handle: u64,
        time_ns: u64,
        flags: u32,
        priority: i32,
        tid: u32,
        context: ContextRef,
        _pad: u16,
        /// CLOCK_MONOTONIC when the capture in progress began; 0: none.
        capturing_ns: u64,
        captures: u64,
        /// Mode of the capture in progress: 0 global, 1 thread-local, 2 relaxed.
        capture_mode: u32,
        _pad2: u32,
    }
}
/// Bytes of [`StreamSlot`] that are sealed.
pub const STREAM_SEALED: usize = 40;

slot! {
    /// Something that happened. All of it is sealed; the ring's slot is `seq % capacity`.
    EventSlot, 64 {
        check: u32,
        /// A [`crate::kinds::EventKind`].
        kind: u8,
        _pad: u8,
        context: ContextRef,
        seq: u64,
        time_ns: u64,
        a: u64,
        b: u64,
        tid: u32,
        code: i32,
        stack: StackRef,
        text: StrRef,
        _reserved: u64,
    }
}

slot! {
    /// Totals at a moment. All of it is sealed; the ring's slot is `seq % capacity`.
    SampleSlot, 128 {
        check: u32,
        _pad: u32,
        seq: u64,
        time_ns: u64,
        device_live: u64,
        host_live: u64,
        managed_live: u64,
        allocs_live: u64,
        graphs_live: u64,
        execs_live: u64,
        graph_host_bytes: u64,
        /// VmRSS of the process, bytes.
        rss: u64,
        /// Device-wide used bytes summed over contexts when last looked at.
        device_used: u64,
        /// Idle bytes that the pool kept in all contexts.
        device_idle: u64,
        /// RssAnon of the process: its own heap and stacks, bytes, and gpumem's.
        rss_anon: u64,
        /// Resident bytes of gpumem's own memory in the process: its heap, with the sources of graphs, and what a search
        /// took.
        own: u64,
        /// Live bytes in places that are not known.
        unknown_live: u64,
    }
}

slot! {
    /// A thread that made a recorded call.
    ThreadSlot, 32 {
        check: u32,
        tid: u32,
        name: StrRef,
        _pad: u32,
        time_ns: u64,
        _reserved: u64,
    }
}

slot! {
    /// Meaning of an address; only in dump files.
    SymbolSlot, 40 {
        check: u32,
        function: StrRef,
        address: u64,
        file: StrRef,
        line: u32,
        /// Number of this frame in the inline chain at the address, outermost function last.
        inlined: u32,
        module: StrRef,
        _reserved: u64,
    }
}

slot! {
    /// A call stack, tag, class or the heap, whose live bytes are kept over time. The present values and the peak are
    /// not sealed. Row `n` has block `n + 1` of GrowthPoints.
    GrowthSlot, 64 {
        check: u32,
        /// A [`crate::kinds::GrowthKind`].
        kind: u8,
        _pad0: u8,
        _pad1: u16,
        /// The stack, tag or class; 0 for the heap, and for allocations without a stack.
        key: u64,
        /// Time of the first sample of this row. Older points belong to the row that had the block before.
        since_ns: u64,
        /// At the last sample.
        bytes: u64,
        count: u64,
        /// The most bytes of all samples, and when.
        peak_bytes: u64,
        peak_ns: u64,
        /// For a call site: the last sample at which the site had made something since the sample before. Until there is
        /// such a sample: when the newest of the allocations that were live at the first sample was made. 0: the ledger is
        /// of an earlier release.
        made_ns: u64,
    }
}
/// Bytes of [`GrowthSlot`] that are sealed.
pub const GROWTH_SEALED: usize = 24;

/// One resolution at which points are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthLevel {
    /// Samples for each point: the point has the least of them, and the time of the first.
    pub every: u64,
    /// Points that are kept: a ring, in which the place of a point follows from how many there were before.
    pub points: usize,
}

/// The resolutions, the finest first: with a sample a second a minute, 15 minutes and 5 hours.
pub const GROWTH_LEVELS: [GrowthLevel; 3] = [
    GrowthLevel { every: 1, points: 60 },
    GrowthLevel { every: 15, points: 60 },
    GrowthLevel { every: 300, points: 60 },
];
/// Points of all levels together, one level behind the other.
pub const GROWTH_POINTS: usize = 180;
const _: () = assert!(GROWTH_LEVELS[0].points + GROWTH_LEVELS[1].points + GROWTH_LEVELS[2].points == GROWTH_POINTS);
/// Words of a block in GrowthPoints. Block 0 has in its first half the times of the points, 0 for one that is being
/// written or was never; every other block has in its first half bytes, in its second half counts.
pub const GROWTH_BLOCK: usize = 2 * GROWTH_POINTS;
/// Most rows that are kept: 512 take 1.5 MiB.
pub const GROWTH_ROWS: u64 = 512;

/// Returns the check of a slot's fixed part: `bytes` without its first four, never 0.
///
/// It uses multiply-xor folds. They detect mixed halves of two records, but do not defend against forgery: the reader
/// bounds-checks every value. Four folds run side by side, since a processor waits for each product before the next one
/// of the same fold, and every record is sealed before its call returns.
#[inline(always)]
pub fn seal(bytes: &[u8]) -> u32 {
    const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;
    let mut lanes = [0x9e37_79b9_7f4a_7c15_u64, 0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0];
    for (at, word) in bytes.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        // The check itself is in the first word's lower half.
        let word = if at == 0 { word >> 32 } else { word };
        let lane = &mut lanes[at % 4];
        *lane = (lane.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    }
    let [a, b, c, d] = lanes;
    let all = (a ^ b.rotate_left(17)).wrapping_add(c.rotate_left(31) ^ d.rotate_left(47)).wrapping_mul(FACTOR);
    ((all >> 32) as u32) | 1
}

/// A slot with a check.
pub trait Sealed: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// The table that holds such slots.
    const TABLE: TableKind;
    /// Number of its first bytes that are sealed.
    const SEALED: usize;

    /// Computes the check of the slot's present contents.
    #[inline(always)]
    fn seal(&self) -> u32 {
        seal(&self.as_bytes()[..Self::SEALED])
    }
}

macro_rules! sealed {
    ($($slot:ident: $table:ident, $sealed:expr;)*) => { $(
        impl Sealed for $slot {
            const TABLE: TableKind = TableKind::$table;
            const SEALED: usize = $sealed;
        }
        const _: () = assert!($sealed % 8 == 0 && $sealed <= size_of::<$slot>());
    )* };
}

sealed! {
    AllocSlot: Allocs, size_of::<AllocSlot>();
    SharedSlot: Shared, size_of::<SharedSlot>();
    StackSlot: Stacks, STACK_SEALED;
    CodeSlot: Codes, size_of::<CodeSlot>();
    ModuleSlot: Modules, MODULE_SEALED;
    GraphSlot: Graphs, GRAPH_SEALED;
    ExecSlot: Execs, EXEC_SEALED;
    ContextSlot: Contexts, CONTEXT_SEALED;
    StreamSlot: Streams, STREAM_SEALED;
    EventSlot: Events, size_of::<EventSlot>();
    SampleSlot: Samples, size_of::<SampleSlot>();
    ThreadSlot: Threads, size_of::<ThreadSlot>();
    SymbolSlot: Symbols, size_of::<SymbolSlot>();
    GrowthSlot: Growth, GROWTH_SEALED;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn sealed_parts_end_where_the_totals_begin() {
        assert_eq!(offset_of!(StackSlot, allocs), STACK_SEALED);
        assert_eq!(offset_of!(ModuleSlot, gone_ns), MODULE_SEALED);
        assert_eq!(offset_of!(GraphSlot, instantiates), GRAPH_SEALED);
        assert_eq!(offset_of!(ExecSlot, launches), EXEC_SEALED);
        assert_eq!(offset_of!(ContextSlot, gone_ns), CONTEXT_SEALED);
        assert_eq!(offset_of!(StreamSlot, capturing_ns), STREAM_SEALED);
        assert_eq!(offset_of!(GrowthSlot, bytes), GROWTH_SEALED);
    }

    #[test]
    fn the_state_of_an_exec_is_two_names_in_a_word() {
        let slot = |state| ExecSlot { state, ..Default::default() };
        assert_eq!((slot(0).exec_state(), slot(0).pinned()), (Some(ExecState::Native), Some(Pinned::None)));
        let pinned = slot(exec_state(ExecState::Native, Pinned::EventNodes));
        assert_eq!((pinned.exec_state(), pinned.pinned()), (Some(ExecState::Native), Some(Pinned::EventNodes)));
        let folded = slot(exec_state(ExecState::Folded, Pinned::None) | 1 << 40);
        assert_eq!((folded.exec_state(), folded.pinned()), (Some(ExecState::Folded), Some(Pinned::None)));
        assert_eq!((slot(0xffff).exec_state(), slot(0xffff).pinned()), (None, None));
    }

    #[test]
    fn a_frame_of_python_is_a_word_that_is_no_address() {
        for (code, line, entry) in [(0, 0, false), (7, 42, true), (u32::MAX, 0xff_ffff, true), (1 << 31, 1, false)] {
            let frame = PythonFrame { code, line, entry };
            assert_eq!(PythonFrame::of(frame.word()), Some(frame));
        }
        assert_eq!(
            PythonFrame::of(PythonFrame { code: 1, line: 1 << 24, entry: false }.word()).map(|it| it.line),
            Some(0)
        );
        assert_eq!((PythonFrame::of(0), PythonFrame::of(0x7fff_ffff_ffff)), (None, None));
    }

    #[test]
    fn a_changed_byte_changes_the_check() {
        let mut slot = AllocSlot { addr: 0x7f00_0000_0000, bytes: 4096, serial: 7, ..Default::default() };
        let check = slot.seal();
        assert_ne!(check, 0);
        slot.serial = 8;
        assert_ne!(slot.seal(), check);
        slot.serial = 7;
        slot.check = 99;
        assert_eq!(slot.seal(), check, "the check itself is not part of what is checked");
    }
}
