//! The numbers stored in slots, and their names.
//!
//! Each list is one table: the number is stored in the ledger, the name is shown to users and in JSON. Numbers are
//! never reused; new rows go to the end.

/// Declares a `u8`-sized list of names, with conversion both ways.
macro_rules! names {
    ($(#[$meta:meta])* $ty:ident { $($(#[$vmeta:meta])* $variant:ident = $num:literal, $name:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $ty { $($(#[$vmeta])* $variant = $num,)* }

        impl $ty {
            /// Every value, in the order of its number.
            pub const ALL: &'static [$ty] = &[$($ty::$variant,)*];

            /// Returns the value of a number read from a ledger; `None` if this version does not know it.
            pub const fn from_u8(number: u8) -> Option<Self> {
                match number { $($num => Some($ty::$variant),)* _ => None }
            }

            /// Returns the name shown to users and in JSON.
            pub const fn name(self) -> &'static str {
                match self { $($ty::$variant => $name,)* }
            }

            /// Returns the name of a number read from a ledger, or `unknown`.
            pub fn name_of(number: impl TryInto<u8>) -> &'static str {
                number.try_into().ok().and_then(Self::from_u8).map_or("unknown", Self::name)
            }

            /// Returns the value with this [`name`](Self::name).
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.name() == name)
            }
        }

        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.pad(self.name()) }
        }
    };
}

names! {
    /// How memory came to be.
    AllocKind {
        /// `cuMemAlloc`, `cudaMalloc`, `hipMalloc`.
        Device = 1, "device";
        /// `cuMemAllocPitch` and the 3D forms.
        Pitch = 2, "pitch";
        /// `cuMemAllocManaged`.
        Managed = 3, "managed";
        /// `cuMemAllocHost`, `cuMemHostAlloc`: pinned host memory the driver allocated.
        HostPinned = 4, "host-pinned";
        /// `cuMemHostRegister`: host memory of the program, pinned.
        HostRegistered = 5, "host-registered";
        /// `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`.
        Async = 6, "async";
        /// `cuMemCreate`: physical memory without an address.
        VmmPhysical = 7, "vmm-physical";
        /// `cuMemMap`: an address for physical memory counted elsewhere.
        VmmMapping = 8, "vmm-mapping";
        /// `cuMemAddressReserve`: addresses only.
        VmmReservation = 9, "vmm-reservation";
        /// `cuArrayCreate`, `cuArray3DCreate`.
        Array = 10, "array";
        /// `cuMipmappedArrayCreate`.
        MipmappedArray = 11, "mipmapped-array";
        /// `cuIpcOpenMemHandle`, `cuMemPoolImportPointer`: memory that another process owns.
        IpcImport = 12, "ipc-import";
        /// `cuImportExternalMemory`: memory of another API (Vulkan, NvSci, …).
        ExternalMemory = 13, "external-memory";
        /// `cuExternalMemoryGetMappedBuffer`: an address for external memory.
        ExternalMapping = 14, "external-mapping";
        /// `cuMemImportFromShareableHandle`: physical memory that another process owns.
        VmmImport = 15, "vmm-import";
        /// `cuMulticastCreate`.
        Multicast = 16, "multicast";
        /// Memory that the program itself reported through `gpumem.h`: a part of memory counted elsewhere.
        Reported = 17, "reported";
        /// `cuGraphAddMemAllocNode`, and `cuMemAllocAsync` on a stream that captures: a node of a graph that allocates.
        /// The driver takes the memory at a launch, and counts it with the memory nodes of graphs. 18 to 22 are rows of
        /// [`Tally`](crate::location::Tally).
        GraphNode = 23, "graph-node";
        /// A module or a library: `cuModuleLoad*`, `cuLibraryLoad*`. Its bytes are those of the image's sections, or what
        /// free memory fell by. The driver's own count of code has them, too.
        Code = 24, "code";
        /// `cuEventCreate`, once a process has many at a time.
        Event = 25, "event";
        /// Memory that a launch took for a node of a graph, once graph and exec are gone. Nothing but a free of its
        /// address, or the end of the context, gives it back.
        GraphLeft = 26, "graph-left";
    }
}

names! {
    /// Which memory an allocation takes. It follows from its [`Location`](crate::location::Location).
    Space {
        /// The card's own memory.
        Device = 1, "device";
        /// The host's memory, pinned.
        Host = 2, "host";
        /// Memory that the driver moves between host and card.
        Managed = 3, "managed";
        /// Takes no memory of its own: addresses, mappings, imports, nodes of graphs, code, parts of other allocations.
        None = 4, "none";
        /// Not known: the driver described a place that this version does not know, or did not describe it.
        Unknown = 5, "unknown";
    }
}

names! {
    /// Direction in which a row of shared memory is shared.
    SharedKind {
        /// An allocation of this process that was shown to others.
        Exported = 1, "exported";
        /// Memory of another process that is open here.
        Imported = 2, "imported";
    }
}

names! {
    /// Kinds of graph nodes, numbered as `CUgraphNodeType` is.
    NodeKind {
        Kernel = 0, "kernel";
        Memcpy = 1, "memcpy";
        Memset = 2, "memset";
        Host = 3, "host";
        Child = 4, "child";
        Empty = 5, "empty";
        EventWait = 6, "event-wait";
        EventRecord = 7, "event-record";
        SemaphoreSignal = 8, "semaphore-signal";
        SemaphoreWait = 9, "semaphore-wait";
        MemAlloc = 10, "mem-alloc";
        MemFree = 11, "mem-free";
        BatchMemOp = 12, "batch-mem-op";
        Conditional = 13, "conditional";
        /// A kind that this version has no name for.
        Other = 15, "other";
    }
}

names! {
    /// How a graph came to be.
    GraphOrigin {
        Created = 1, "created";
        Captured = 2, "captured";
        Cloned = 3, "cloned";
    }
}

names! {
    /// State of an exec's handle: the real exec that it has, if any.
    ExecState {
        /// The handle is the driver's, or keeps one real exec for good; a [`Pinned`] says why.
        Native = 0, "native";
        /// The handle has a real exec, which is set to what the handle means.
        Resident = 1, "resident";
        /// The handle has only its source. The next launch gives it a real exec.
        Folded = 2, "folded";
        /// Its context or module is gone: no launch can succeed.
        Gone = 3, "gone";
    }
}

names! {
    /// Why a handle is not under the graph cache.
    Pinned {
        /// The handle is under the graph cache, or was never looked at (a ledger that only records).
        None = 0, "none";
        Off = 1, "off";
        RecordOnly = 2, "record-only";
        Interception = 3, "interception";
        DeviceLaunch = 4, "device-launch";
        MemoryNodes = 5, "memory-nodes";
        EventNodes = 6, "event-nodes";
        Conditional = 7, "conditional";
        ExternalNodes = 8, "external-nodes";
        UserObjects = 9, "user-objects";
        DeviceUpdatable = 10, "device-updatable";
        Contexts = 11, "contexts";
        Parameters = 12, "parameters";
        UnknownNode = 13, "unknown-node";
        DriverUpdate = 14, "driver-update";
        NodeSet = 15, "node-set";
        UnknownCall = 16, "unknown-call";
        IdAsked = 17, "id-asked";
        Room = 18, "room";
        Lookup = 19, "lookup";
        CodeGone = 20, "code-gone";
        UnknownAttribute = 21, "unknown-attribute";
        UnknownFlag = 22, "unknown-flag";
        UnknownEdge = 23, "unknown-edge";
        Verdict = 24, "verdict";
    }
}

impl Pinned {
    /// Returns the reason in words, to follow "pinned:".
    pub const fn why(self) -> &'static str {
        match self {
            Self::None => "nothing pins it",
            Self::Off => "the graph cache is off (GPUMEM_GRAPH_CACHE=0)",
            Self::RecordOnly => "gpumem only records in this process",
            Self::Interception => "not every call of this process reaches gpumem",
            Self::DeviceLaunch => "instantiated to be launched from the device",
            Self::MemoryNodes => "it has nodes that allocate or free memory",
            Self::EventNodes => "it has nodes that record or wait for events",
            Self::Conditional => "it has conditional nodes",
            Self::ExternalNodes => "it has semaphore nodes or batches of memory operations",
            Self::UserObjects => "its graph retains user objects",
            Self::DeviceUpdatable => "it has kernel nodes that the device may update",
            Self::Contexts => "its nodes are of several contexts, or of a green context",
            Self::Parameters => "the parameters of a node cannot be read",
            Self::UnknownNode => "it has a kind of node that gpumem does not know",
            Self::DriverUpdate => {
                "the program updated it to a graph that gpumem cannot read, or whose attributes an update may leave out"
            }
            Self::NodeSet => "the program set a node to what a source cannot hold",
            Self::UnknownCall => "its handle went to a function that gpumem does not know",
            Self::IdAsked => "the program asked for its id",
            Self::Room => "no handle was left",
            Self::Lookup => "the driver lacks a function that the graph cache needs",
            Self::CodeGone => "the program unloaded code that it runs",
            Self::UnknownAttribute => "it has an attribute that gpumem does not know",
            Self::UnknownFlag => "it was instantiated with a flag that gpumem does not know",
            Self::UnknownEdge => "it has a kind of edge that gpumem does not know",
            Self::Verdict => "the selftest found a broken rule on this driver: its verdict turns the graph cache off",
        }
    }
}

names! {
    /// State of the pool in a context: it serves the context, or the reason why it does not.
    PoolState {
        /// The pool was not asked for memory there, or the ledger was written without a pool.
        Unused = 0, "unused";
        On = 1, "on";
        Off = 2, "off";
        RecordOnly = 3, "record-only";
        Interception = 4, "interception";
        Peers = 5, "peer-access";
        Broken = 6, "broken";
        Verdict = 7, "verdict";
    }
}

impl PoolState {
    /// Returns the reason in words.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Unused => "no memory was asked for so far",
            Self::On => "it serves the context",
            Self::Off => "it is off (GPUMEM_POOL=0)",
            Self::RecordOnly => "gpumem only records in this process",
            Self::Interception => "not every call of this process reaches gpumem",
            Self::Peers => "another context may use the memory of this one",
            Self::Broken => "the context is broken: every call of it answers an error",
            Self::Verdict => "the selftest found a broken rule on this driver: its verdict turns the pool off",
        }
    }
}

names! {
    /// Vendor of the API that a context belongs to.
    Vendor {
        Cuda = 1, "cuda";
        Hip = 2, "hip";
    }
}

names! {
    /// The life of the process as the shim sees it.
    State {
        /// The shim records.
        Recording = 1, "recording";
        /// Recording stopped (the reason is a message event); the program runs on.
        Stopped = 2, "stopped";
        /// The process ran `exit`.
        Exited = 3, "exited";
    }
}

names! {
    /// Says if the process's device memory is on the device or on the host, for [`crate::layout::Header::parking`].
    Parking {
        /// On the device.
        Running = 0, "running";
        /// On its way to the host: the shim was told, and makes no driver call.
        Quiet = 1, "being parked";
        /// On the host: every driver call of the process waits.
        Parked = 2, "parked";
    }
}

names! {
    /// Mode of the shim: it only records, or does more than that.
    Mode {
        /// Everything that is switched on may run.
        Active = 1, "active";
        /// Record only: a tool or an untested driver is present, or a verdict or the user says so.
        RecordOnly = 2, "record-only";
    }
}

names! {
    /// Says how many of the process's calls reach the shim.
    Interception {
        /// No GPU call seen yet.
        None = 1, "none";
        /// Some calls went past the shim; the header's reason says which.
        Partial = 2, "partial";
        /// The shim was in place before the driver was initialised, and no call went past it since.
        Complete = 3, "complete";
    }
}

names! {
    /// Kind of an event in the ring of events. Only rare things are events. Calls that programs make thousands of times
    /// a second (captures, instantiates, refused updates) are counted instead, since as events they would push the rest
    /// out.
    EventKind {
        /// Text for people; `text` holds it, `code` its [`Severity`].
        Message = 1, "message";
        ContextCreated = 2, "context-created";
        ContextDestroyed = 3, "context-destroyed";
        /// An allocation failed: `a` bytes, `b` the [`AllocKind`], `code` the driver's error.
        AllocFailed = 4, "alloc-failed";
        /// An instantiate failed: `a` the graph, `code` the driver's error.
        InstantiateFailed = 5, "instantiate-failed";
        /// A capture ended without a graph: `a` the stream, `code` the driver's answer.
        CaptureFailed = 8, "capture-failed";
        /// `a` bytes now live on the device, the highest so far by at least an eighth.
        PeakGrew = 11, "peak-grew";
        /// A named moment, set by `gpumem mark`.
        Mark = 12, "mark";
        /// The driver or a runtime was bound; `text` is its file.
        LibraryBound = 13, "library-bound";
        /// A free failed: `a` the pointer, `code` the driver's error.
        FreeFailed = 14, "free-failed";
        /// The graph cache thrashes: `a` real execs of `b` bytes; `text` is the variable to raise.
        Thrash = 15, "thrash";
        /// A graph call ran out of memory and was tried again after `a` bytes were given back; `code`
        /// is what the driver answered then. Only the first of such calls within a second is an event.
        OomRetry = 16, "oom-retry";
        /// The pool gave `a` idle bytes back to the driver.
        PoolReleased = 17, "pool-released";
        /// An allocation of `a` bytes was placed outside of the device's memory.
        Spilled = 18, "spilled";
        /// An allocation of `a` bytes was refused at GPUMEM_LIMIT, or, if `b` is 1, at GPUMEM_LIMIT_GROUP.
        LimitRefused = 19, "limit-refused";
        /// An allocation of `a` bytes failed although everything that can be given back was given back; `b` bytes are live on the device.
        OutOfMemory = 20, "out-of-memory";
        /// A call site asks for more and more while `a` bytes in `b` of its older blocks lie unused.
        StrandedSite = 21, "stranded-site";
        /// An allocation of `a` bytes was refused once, so that the program frees `b` stranded bytes.
        Pressed = 22, "pressed";
        /// One of the call sites that hold most when memory runs out: `a` bytes in `b` blocks are live there.
        TopHolder = 23, "top-holder";
        /// Memory at `a`, of `b` bytes, was freed while a live graph refers to it; the stack is that of its
        /// allocation.
        FreedInGraph = 24, "freed-in-graph";
        /// `b` bytes were written outside of an allocation, the first of them at `a`; the stack is that of the
        /// allocation, and `text` has the details.
        WrittenOutside = 25, "written-outside";
        /// `b` bytes were written to freed memory, the first of them at `a`; the stack is that of the allocation,
        /// `text` has the details.
        WrittenAfterFree = 26, "written-after-free";
        /// The call site of the free of the memory in the event before.
        FreedHere = 27, "freed-here";
        /// A graph that refers to freed memory at `a`, of `b` bytes, is about to run, or ran; the stack is that of the
        /// allocation. 0 bytes: the allocation was gone before gpumem read the graph.
        FreedGraphLaunched = 28, "freed-graph-launched";
        /// A launch that may have made the write in the event before: `a` the stream, `b` 1 if it was given the
        /// block's address, and 2 more if it was the first after the block's free; `text` is the kernel's name.
        PossibleWriter = 29, "possible-writer";
        /// The driver took `a` bytes of the device for itself: free memory fell by so much around a call that asks for
        /// none. `b` is a [`Taken`]. Of local memory `code` is the bytes of a thread, and `text` the kernel's name.
        DriverTook = 30, "driver-took";
        /// The exec that ran in the event before: `a` its handle, `b` how often it had been launched before; the stack
        /// is that of its instantiate.
        LaunchedGraph = 31, "launched-graph";
        /// Memory at `a`, of `b` bytes, now lies where the freed memory of the events before lay; the stack is that of
        /// its allocation.
        NextOwner = 32, "next-owner";
        /// The process was parked: its device memory, `a` bytes, is on the host. It was asked `b` nanoseconds before.
        Parked = 33, "parked";
        /// The process has its device memory again, `a` bytes, `b` nanoseconds after it was asked to be parked.
        Resumed = 34, "resumed";
    }
}

names! {
    /// Purpose for which the driver took memory.
    Taken {
        /// A context, if the process already had one on the device.
        Context = 1, "context";
        /// Code that a call loaded: a module, a library, a function.
        Code = 2, "code";
        /// The first launch of a kernel: code that is loaded late, and the stacks of its threads.
        Launch = 3, "first launch";
        /// A limit of the context: stacks, printf's buffer, the heap of malloc in kernels.
        Limit = 4, "limit";
        /// gpumem's own kernels, streams and buffers, for the guard and for searches. No call of the program's took it.
        Gpumem = 5, "gpumem";
        /// Local memory: arrays and spilled registers of a kernel's threads, for as many threads as the device runs at
        /// once. The first launch takes it, and the context keeps it.
        Local = 6, "local memory";
        /// Streams: their queues.
        Stream = 7, "stream";
    }
}

impl Taken {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns its index among all, from 0.
    pub const fn place(self) -> usize {
        self as usize - 1
    }
}

names! {
    /// Kind of holder whose memory a row of growth has.
    GrowthKind {
        /// Live allocations of one call stack, of kinds that take memory of their own.
        Site = 1, "site";
        /// Live allocations of one tag.
        Tag = 2, "tag";
        /// Graphs and execs of one call stack: the bytes that they take, estimated.
        Graphs = 3, "graphs";
        /// Execs of one class: the bytes that they take, estimated.
        Class = 4, "class";
        /// RssAnon of the process without gpumem's own memory; no count.
        Heap = 5, "heap";
        /// Modules and libraries that one call stack loaded.
        Code = 6, "code";
        /// Streams of one call stack; no bytes.
        Streams = 7, "streams";
        /// Events of one call stack; no bytes.
        Events = 8, "events";
        /// Contexts of one call stack; no bytes.
        Contexts = 9, "contexts";
    }
}

names! {
    /// How bad a message is.
    Severity {
        Info = 1, "info";
        Warning = 2, "warning";
        Error = 3, "error";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique_and_turn_back() {
        for &kind in AllocKind::ALL {
            assert_eq!(AllocKind::from_u8(kind as u8), Some(kind));
            assert_eq!(AllocKind::from_name(kind.name()), Some(kind));
        }
        for &pinned in Pinned::ALL {
            assert_eq!(Pinned::from_u8(pinned as u8), Some(pinned));
            let same = |other: &&Pinned| other.name() == pinned.name() || other.why() == pinned.why();
            assert_eq!(Pinned::ALL.iter().filter(same).count(), 1, "{pinned} is told apart");
        }
        for &state in PoolState::ALL {
            let same = |other: &&PoolState| other.name() == state.name() || other.why() == state.why();
            assert_eq!(PoolState::ALL.iter().filter(same).count(), 1, "{state} is told apart");
        }
        assert_eq!(AllocKind::from_u8(0), None, "0 marks an empty field and must never be a kind");
        let numbers: Vec<u8> = EventKind::ALL.iter().map(|&kind| kind as u8).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
