//! A seed's program and troubles.

use super::programs::{self, Chosen};
use super::settings;
use super::trouble::{CallTrouble, Files, Limit, Trouble};
use crate::differ::random::Random;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub program: Chosen,
    pub troubles: Vec<Trouble>,
}

/// Functions whose calls fail by name. A call of any other function fails by its number among all calls.
const CALLS: &[&str] = &[
    "cuInit",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSynchronize",
    "cuGetProcAddress_v2",
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemGetInfo_v2",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuStreamCreate",
    "cuStreamCreateWithFlags",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuThreadExchangeStreamCaptureMode",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuGraphCreate",
    "cuGraphClone",
    "cuGraphDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuGraphExecUpdate_v2",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphGetNodes",
    "cuGraphGetEdges",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphNodeGetType",
    "cuLaunchKernel",
    "hipMalloc",
    "hipFree",
    "hipGraphInstantiate",
    "hipGraphLaunch",
    "hipGraphExecUpdate",
    "hipGraphExecDestroy",
    "hipStreamCreate",
    "hipEventRecord",
];

/// Error codes. Out of memory (2) comes more often than the others. The last code is one that no driver has.
const CODES: &[u32] = &[2, 2, 2, 2, 1, 3, 100, 201, 304, 400, 700, 719, 801, 900, 901, 910, 999, 4242];

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let program = programs::choose(&mut random);
        let mut troubles = Vec::new();
        for _ in 0..random.weighted(&[45, 40, 15]) {
            troubles.push(call(&mut random));
        }
        for _ in 0..random.weighted(&[30, 30, 20, 12, 8]) {
            let setting = settings::choose(&mut random);
            let name = |trouble: &Trouble| match trouble {
                Trouble::Setting(name, _) => Some(name.clone()),
                _ => None,
            };
            if !troubles.iter().any(|other| name(other) == name(&setting)) {
                troubles.push(setting);
            }
        }
        // The testers abort when they run out of memory, and nobody could tell that from an abort of the shim.
        let limits = if program.generated.is_some() { [50, 0, 0, 10, 18, 10, 12] } else { [40, 12, 6, 8, 14, 8, 12] };
        match random.weighted(&limits) {
            0 => {}
            1 => troubles.push(Trouble::Tight(Limit::Space, spread(&mut random, 4 << 10, 256 << 20))),
            2 => troubles.push(Trouble::Tight(Limit::Data, spread(&mut random, 4 << 10, 64 << 20))),
            3 => troubles.push(Trouble::Limit(Limit::File, spread(&mut random, 4 << 10, 8 << 20))),
            4 => {
                let full = random.chance(40).then(|| ms(random.below(120)));
                let files = if random.chance(30) { Files::Ext4 } else { Files::Tmpfs };
                troubles.push(Trouble::Disk { files, kib: spread(&mut random, 1, 8 << 10), full });
            }
            5 => troubles.push(Trouble::Tight(Limit::Descriptors, random.below(12) as u64)),
            _ => troubles.push(Trouble::Tight(Limit::Stack, spread(&mut random, STACK, 1 << 20) & !4095)),
        }
        if random.chance(20) {
            let function = *random.pick(DENIED);
            troubles.push(Trouble::Denied { function, nth: spread(&mut random, 1, 300), on: random.chance(40) });
        }
        match random.weighted(&[55, 25, 10, 10]) {
            0 => {}
            1 => troubles.push(Trouble::Storm {
                // The differ has a handler of its own for SIGUSR1.
                signal: *random.pick(&[libc::SIGUSR2, libc::SIGPROF, libc::SIGALRM]),
                first: Duration::from_micros(spread(&mut random, 100, 100_000)),
                every: Duration::from_micros(spread(&mut random, 200, 20_000)),
                // A program that waits for its children by pipes does not expect to be interrupted.
                restart: random.chance(60) || program.has_children(),
            }),
            2 => troubles.push(Trouble::Stop { at: ms(random.below(100)), length: ms(5 + random.below(100)) }),
            _ => troubles.push(Trouble::Kill {
                signal: *random.pick(&[libc::SIGKILL, libc::SIGKILL, libc::SIGTERM, libc::SIGINT, libc::SIGHUP]),
                at: ms(random.below(150)),
            }),
        }
        if random.chance(12) {
            for _ in 0..1 + random.below(3) {
                let args = *random.pick(COMMANDS);
                troubles.push(Trouble::Command { at: ms(random.below(120)), args });
            }
        }
        if random.chance(25) {
            let lag = *random.pick(&["50", "300", "1000"]);
            troubles.push(Trouble::Driver("SIM_LAG_US", lag.into()));
        }
        if random.chance(10) {
            troubles.push(Trouble::Driver("SIM_REUSE_HANDLES", "1".into()));
        }
        if random.chance(8) {
            troubles.push(Trouble::Driver("SIM_DEVICE_MEM", "1G".into()));
        }
        Self { seed, program, troubles }
    }

    /// The plan without the troubles of these numbers.
    pub fn without(&self, numbers: &[usize]) -> Self {
        let kept = self.troubles.iter().enumerate().filter(|(i, _)| !numbers.contains(i));
        Self { troubles: kept.map(|(_, trouble)| trouble.clone()).collect(), ..self.clone() }
    }

    /// True if the preloaded run must end as the native run does, and must print the same if the program's output is
    /// stable.
    pub fn tells(&self) -> bool {
        // A generated program says what its ledger lacks and what is kept. A shim that gets nothing any more from the system
        // says that it records no more, and gives back within a second what it kept until then.
        let looks = self.program.generated.is_some();
        let changes = |trouble: &Trouble| match trouble {
            Trouble::Denied { on: true, .. } => looks,
            other => other.changes_answers(),
        };
        !self.troubles.iter().any(changes)
    }
}

/// The least stack that is left for the shim. A debug build needs far more.
const STACK: u64 = if cfg!(debug_assertions) { 192 << 10 } else { 16 << 10 };

/// Commands of `gpumem` to the running process.
const COMMANDS: &[&[&str]] = &[
    &["trim", "@"],
    &["off", "@"],
    &["mark", "moment", "@"],
    &["allocs", "@"],
    &["events", "@"],
    &["set", "@", "POOL=0"],
    &["set", "@", "GRAPH_CACHE=0"],
    &["set", "@", "GRAPH_CACHE=1"],
    &["set", "@", "POOL_MAX=0"],
];

/// Functions of the system that may fail for the shim. `*` stands for any of them.
const DENIED: &[&str] = &[
    "*",
    "*",
    "*",
    "malloc",
    "malloc",
    "mmap",
    "mmap",
    "mmap",
    "munmap",
    "mprotect",
    "madvise",
    "ftruncate",
    "fallocate",
    "open",
    "mkdir",
    "socket",
    "bind",
    "listen",
    "poll",
    "write",
    "read",
    "process_vm_readv",
    "getrandom",
    "pthread_create",
    "pthread_key_create",
];

fn ms(ms: usize) -> Duration {
    Duration::from_millis(ms as u64)
}

fn call(random: &mut Random) -> Trouble {
    let (name, call) = match random.chance(45) {
        true => ("*", spread(random, 1, 1500)),
        false => (*random.pick(CALLS), spread(random, 1, 60)),
    };
    let what = match random.chance(80) {
        true => CallTrouble::Answers(*random.pick(CODES)),
        false => CallTrouble::Takes(Duration::from_micros(spread(random, 100, 40_000))),
    };
    Trouble::Call { name, call, what }
}

/// A random number from a range, with each power of two equally likely.
fn spread(random: &mut Random, from: u64, to: u64) -> u64 {
    let share = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
    ((from as f64) * (to as f64 / from as f64).powf(share)) as u64
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.program.name)?;
        for (i, trouble) in self.troubles.iter().enumerate() {
            let text = trouble.to_string();
            writeln!(f, "  {i}: {}", text.chars().take(200).collect::<String>())?;
        }
        Ok(())
    }
}
