//! Methods that CUDA and HIP have alike: the same functions with the same arguments, by two names.

/// The answers of a library, as methods of [`Backend`](super::Backend). `$calls` has its functions.
macro_rules! answers {
    (
        $calls:ident: $current:ident, $name:ident, $uuid:ident, $total:ident, $attribute:ident($integrated:literal),
        $range:ident, $capture:ident, $version:ident, $nodes:ident, $kind:ident, $child:ident; $kind_of:path
    ) => {
        fn current_device(&self) -> Option<Device> {
            let _uncancelled = Uncancelled::new();
            // SAFETY: rule of answers: `device` takes the ordinal.
            told(|device| unsafe { $calls::$current(device) }).ok()
        }

        fn device_info(&self, device: Device) -> DeviceInfo {
            let _uncancelled = Uncancelled::new();
            let mut info = DeviceInfo::default();
            let mut name = [0_u8; 256];
            let (mut total, mut integrated) = (0, 0);
            // SAFETY: rule of answers: the name's length is passed with it, and the other locals have the types of
            // their answers. The library checks the device.
            unsafe {
                if $calls::$name(name.as_mut_ptr().cast(), name.len() as i32, device) == Some(SUCCESS) {
                    info.name = name.iter().copied().take_while(|&byte| byte != 0).collect();
                }
                let _ = $calls::$uuid(&mut info.uuid, device);
                let _ = $calls::$total(&mut total, device);
                let _ = $calls::$attribute(&mut integrated, $integrated, device);
            }
            info.total_bytes = total as u64;
            info.integrated = integrated != 0;
            info
        }

        fn allocation_around(&self, ptr: DevicePtr) -> Option<(u64, u64)> {
            let (mut base, mut bytes) = (0, 0);
            // SAFETY: rule of answers: `base` and `bytes` take the numbers. The library answers for addresses that it
            // does not know.
            let status = unsafe { $calls::$range(&mut base, &mut bytes, ptr) };
            done(status).ok().map(|()| (base, bytes as u64))
        }

        fn captures_into(&self, stream: Stream) -> Option<Graph> {
            let stream = if stream.is_null() { PER_THREAD as Stream } else { stream };
            let (mut status, mut id, mut graph, mut deps, mut len) = (0, 0, null_mut(), null(), 0);
            // SAFETY: rule of answers: each local has the type of its answer. Rule of the program's handles: the stream
            // is alive.
            let asked = unsafe { $calls::$capture(stream, &mut status, &mut id, &mut graph, &mut deps, &mut len) };
            (done(asked).is_ok() && status == ACTIVE && !graph.is_null()).then_some(graph)
        }

        fn version(&self) -> Option<u32> {
            // SAFETY: rule of answers: `version` takes the number.
            told(|version| unsafe { $calls::$version(version) }).ok().map(|version| version as u32)
        }

        fn node_count(&self, graph: Graph) -> Option<usize> {
            // SAFETY: rule of answers: with a null array only `len` is written. Rule of the program's handles: the
            // graph is alive.
            told(|len| unsafe { $calls::$nodes(graph, null_mut(), len) }).ok()
        }

        fn nodes(&self, graph: Graph) -> Option<Vec<GraphNode>> {
            let mut len = self.node_count(graph)?;
            let mut nodes = buffer(len).ok()?;
            if len > 0 {
                // SAFETY: rule of answers: `len` is the length of `nodes`, and no more handles than that are written.
                // Rule of the program's handles: the graph is alive.
                done(unsafe { $calls::$nodes(graph, nodes.as_mut_ptr(), &mut len) }).ok()?;
            }
            nodes.truncate(len);
            Some(nodes)
        }

        fn node_kind(&self, node: GraphNode) -> Option<(NodeKind, Option<Graph>)> {
            // SAFETY: rule of answers: `kind` takes the number. The node is one of a graph that is alive, as the caller
            // has just listed it.
            let kind = $kind_of(told(|kind| unsafe { $calls::$kind(node, kind) }).ok()?);
            // SAFETY: rule of answers: `child` takes the handle. The library has just said that the node is a child
            // graph node.
            let inside = || told(|child| unsafe { $calls::$child(node, child) }).ok();
            Some((kind, if kind == NodeKind::Child { inside() } else { None }))
        }
    };
}

/// The calls of a library for memory that it gives and takes back at once, as methods of
/// [`MemoryCalls`](super::memory::MemoryCalls). `$calls` has its functions. `$concurrent`: the attribute of a device
/// that can use managed memory while the host does. `$moves`: true if managed memory is moved there.
macro_rules! blocks {
    (
        $calls:ident: $free:ident, $attribute:ident($concurrent:literal), $managed:ident if $moves:expr, $host:ident,
        $address:ident, $free_host:ident, $fill:ident, $synchronize:ident
    ) => {
        fn free(&self, addr: u64) -> Status {
            // SAFETY: rule of the pool's memory: the block goes back once, and no one else has it.
            answer(unsafe { $calls::$free(addr) })
        }

        fn managed(&self, device: Device, bytes: usize) -> Result<u64, Status> {
            // SAFETY: rule of answers: each call writes a local of the type that its row declares. The library checks
            // the device.
            unsafe {
                match told(|concurrent| $calls::$attribute(concurrent, $concurrent, device)) {
                    Ok(1..) if $moves => told(|addr| $calls::$managed(addr, bytes, GLOBAL)),
                    _ => Err(NOT_SUPPORTED),
                }
            }
        }

        fn host(&self, bytes: usize) -> Result<u64, Status> {
            // SAFETY: rule of answers: each call writes a local of the type that its row declares. `host` is what the
            // first call gave, and goes back once if the second fails.
            unsafe {
                let host = told(|host| $calls::$host(host, bytes, MAPPED))?;
                let addr = told(|addr| $calls::$address(addr, host, 0)).inspect_err(|_| {
                    let _ = $calls::$free_host(host);
                })?;
                // One address for both, as on every 64-bit system; otherwise it could not be freed by it.
                if addr == host { Ok(addr) } else { Err(NOT_SUPPORTED) }
            }
        }

        fn free_host(&self, addr: u64) -> Status {
            // SAFETY: rule of the pool's memory: `host` gave this memory, and it goes back once.
            answer(unsafe { $calls::$free_host(addr) })
        }

        fn fill(&self, addr: u64, byte: u8, bytes: usize) -> Status {
            // SAFETY: rule of the pool's memory: the block has at least `bytes` bytes, and no one else has it.
            answer(unsafe { $calls::$fill(addr, byte.into(), bytes) })
        }

        fn synchronize(&self) -> Status {
            // SAFETY: the call takes no arguments, so it needs nothing of its caller.
            answer(unsafe { $calls::$synchronize() })
        }
    };
}

/// A thread's states, as functions of a library.
macro_rules! exchange {
    ($exchange:path) => {
        /// Lets this thread make calls that a capture of it forbids. Returns the previous mode.
        pub(super) fn relax() -> i32 {
            /// `…StreamCaptureModeRelaxed`.
            const RELAXED: i32 = 2;
            exchange(RELAXED)
        }

        /// Sets the thread's mode. Returns the previous mode.
        pub(super) fn exchange(mut mode: i32) -> i32 {
            // SAFETY: rule of answers: `mode` is read and written. The call changes this thread's mode alone.
            let _ = unsafe { $exchange(&mut mode) };
            mode
        }
    };
}

/// A thread's states, as methods of a vendor's calls for memory and for graphs. `$library` has the functions.
macro_rules! thread_states {
    ($library:ident) => {
        fn relax(&self) -> i32 {
            $library::relax()
        }

        fn unrelax(&self, before: i32) {
            $library::exchange(before);
        }

        fn enter(&self, context: u64) -> bool {
            $library::enter(context)
        }

        fn leave(&self) {
            $library::leave();
        }
    };
}

pub(super) use {answers, blocks, exchange, thread_states};
