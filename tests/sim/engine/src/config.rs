//! Every variable of the simulator. Read once, at the first call.

use std::path::PathBuf;
use std::sync::OnceLock;

const MIB: u64 = 1 << 20;

pub struct Config {
    /// `SIM_DEVICES`: how many devices there are. Default 1.
    pub devices: u32,
    /// `SIM_DEVICE_MEM`: bytes of each device; suffixes K, M, G. Default 16G.
    pub device_mem: u64,
    /// `SIM_CONTEXT_MEM`: device bytes that each context costs. Default 32M on
    /// devices of at least 1 GiB, else 0.
    pub context_mem: u64,
    /// `SIM_CODE_MEM`: device bytes that the code of a module costs. Default 0.
    pub code_mem: u64,
    /// `SIM_STREAM_MEM`: device bytes that each stream costs. Default 0. Four streams of an H100 cost 2 MiB.
    pub stream_mem: u64,
    /// `SIM_STACK_MEM`: device bytes for each KiB by which a context's limit of a thread's stack is raised. Default 0.
    pub stack_mem: u64,
    /// `SIM_LAG_US`: work starts no earlier than this many microseconds after
    /// it was submitted, so that missing synchronisation shows. Default 0.
    pub lag_us: u64,
    /// `SIM_REUSE_HANDLES=1`: destroyed handles come back at once, as heap
    /// addresses do; then a dead handle may look alive. Default 0.
    pub reuse_handles: bool,
    /// `SIM_DESTROY_WAITS=1`: destroying an exec whose graph is not a chain waits for all of the device's work. The
    /// driver was seen to do so with some execs. The rule is not known. Default 0.
    pub destroy_waits: bool,
    /// `SIM_HOST_HEAP=real`: the host memory that graphs cost is really
    /// touched, so that the process's RSS grows too. Default: counted only.
    pub real_host_heap: bool,
    /// `SIM_REPORT`: file that violations are appended to, one JSON per line.
    pub report: Option<String>,
    /// `SIM_STATS`: file that gets all numbers at exit, one JSON line per process.
    pub stats: Option<String>,
    /// `SIM_THREADS=strict`: two threads in calls with one exec or one graph are a violation.
    pub strict_threads: bool,
    /// `SIM_SLOW_US`: how long a call with an exec or a graph takes at least, microseconds. Default 0.
    pub slow_us: u64,
    /// `SIM_END_US`: how long the end of a context takes at least, microseconds. Default 0.
    pub end_us: u64,
    /// `SIM_LEAKS=1`: live allocations at exit are reported too. Default 0.
    pub leaks: bool,
    /// `SIM_FAULT`: `name:n=code,...`; the n-th call of `name` gives `code`. `name:n+us`: it takes that many
    /// microseconds longer. `*:n=code` and `*:n+us`: the n-th call of any function.
    pub faults: Vec<Fault>,
    /// `SIM_FAULT_LOG`: file that gets a line for each fault that happened.
    pub fault_log: Option<String>,
    /// `SIM_MANAGED`: what managed memory the devices have. Default `concurrent`.
    pub managed: Managed,
    /// `SIM_INTEGRATED=1`: the devices use the machine's memory, and their attributes say so. Default 0.
    pub integrated: bool,
    /// `SIM_PAGEABLE`: `1`: the devices read any memory of the process; `host`: by the host's page tables. Their attributes
    /// say so, and no more is simulated. Default: they do not.
    pub pageable: Pageable,
    /// `SIM_BARE_RECORDS=1`: for some allocations the driver also keeps the address in a piece of the heap with nothing else
    /// in it. Default 0.
    pub bare_records: bool,
    /// `SIM_FREE_WAITS=0`: a free of device memory waits for nothing, as a free of virtual memory does. Default 1.
    pub free_waits: bool,
    /// `SIM_MEMORY_POOLS=0`: the devices have no memory pools, so there are no stream-ordered frees.
    /// Default 1.
    pub memory_pools: bool,
    /// `SIM_SHARED`: `FILE:INDEX`, the word of a file to which this process writes its bytes in use. Default: none.
    pub shared: Option<String>,
    /// `SIM_CARD`: the file of a card that processes share as their first device. Default: each has its own.
    pub card: Option<String>,
    /// `SIM_CHECKPOINT`: which checkpoints of processes there are. Default: none.
    pub checkpoints: Checkpoints,
    /// `SIM_CHECKPOINT_US`: how long a checkpoint and a restore take, microseconds. Default 0.
    pub checkpoint_us: u64,
    /// `SIM_DRIVER_VERSION`: what cuDriverGetVersion answers. Default 13000.
    /// The number of a location that no driver has yet; 0: there is none.
    pub later_place: u32,
    pub driver_version: u32,
}

/// Which checkpoints of processes there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checkpoints {
    /// Asking for one gives 801.
    Unsupported,
    /// `none`: cuGetProcAddress knows no such function, as in a driver before 12.8.
    Absent,
    /// A directory: of the processes that have a socket there.
    Between(PathBuf),
}

/// Page tables by which the devices read memory that no call of the driver made; none if they cannot read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pageable {
    None,
    OwnPageTables,
    HostPageTables,
}

/// Kind of managed memory that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Managed {
    /// Host and device use it at the same time, and it may be larger than the device.
    Concurrent,
    /// `exclusive`: the host must not touch it while a kernel runs, and all of it fits on the device.
    Exclusive,
    /// `none`: asking for it gives 801.
    None,
}

pub struct Fault {
    pub name: String,
    pub call: u64,
    pub what: What,
}

/// Effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It answers this code and does nothing.
    Answers(u32),
    /// It begins this many microseconds later.
    Takes(u64),
}

/// The configuration, from the environment.
pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config::from(|name| std::env::var(name).ok()))
}

impl Config {
    fn from(var: impl Fn(&str) -> Option<String>) -> Config {
        let number = |name: &str, default: u64| match var(name) {
            None => default,
            Some(text) => parse_size(&text).unwrap_or_else(|| {
                eprintln!("sim: {name}={text} is not a number; {default} is used");
                default
            }),
        };
        let device_mem = number("SIM_DEVICE_MEM", 16 << 30).next_multiple_of(2 * MIB);
        Config {
            devices: number("SIM_DEVICES", 1) as u32,
            device_mem,
            context_mem: number("SIM_CONTEXT_MEM", if device_mem >= 1 << 30 { 32 * MIB } else { 0 }),
            code_mem: number("SIM_CODE_MEM", 0),
            stream_mem: number("SIM_STREAM_MEM", 0),
            stack_mem: number("SIM_STACK_MEM", 0),
            lag_us: number("SIM_LAG_US", 0),
            reuse_handles: number("SIM_REUSE_HANDLES", 0) != 0,
            destroy_waits: number("SIM_DESTROY_WAITS", 0) != 0,
            real_host_heap: var("SIM_HOST_HEAP").is_some_and(|v| v == "real"),
            report: var("SIM_REPORT").filter(|v| !v.is_empty()),
            stats: var("SIM_STATS").filter(|v| !v.is_empty()),
            strict_threads: var("SIM_THREADS").is_some_and(|v| v == "strict"),
            slow_us: number("SIM_SLOW_US", 0),
            end_us: number("SIM_END_US", 0),
            leaks: number("SIM_LEAKS", 0) != 0,
            faults: parse_faults(&var("SIM_FAULT").unwrap_or_default()),
            fault_log: var("SIM_FAULT_LOG").filter(|v| !v.is_empty()),
            managed: match var("SIM_MANAGED").as_deref() {
                Some("exclusive") => Managed::Exclusive,
                Some("none") => Managed::None,
                _ => Managed::Concurrent,
            },
            integrated: number("SIM_INTEGRATED", 0) != 0,
            pageable: match var("SIM_PAGEABLE").as_deref() {
                Some("host") => Pageable::HostPageTables,
                Some("1") => Pageable::OwnPageTables,
                _ => Pageable::None,
            },
            bare_records: number("SIM_BARE_RECORDS", 0) != 0,
            free_waits: number("SIM_FREE_WAITS", 1) != 0,
            memory_pools: number("SIM_MEMORY_POOLS", 1) != 0,
            shared: var("SIM_SHARED").filter(|v| !v.is_empty()),
            card: var("SIM_CARD").filter(|v| !v.is_empty()),
            checkpoints: match var("SIM_CHECKPOINT").filter(|v| !v.is_empty()).as_deref() {
                None => Checkpoints::Unsupported,
                Some("none") => Checkpoints::Absent,
                Some(directory) => Checkpoints::Between(directory.into()),
            },
            checkpoint_us: number("SIM_CHECKPOINT_US", 0),
            later_place: number("SIM_LATER_PLACE", 0) as u32,
            driver_version: number("SIM_DRIVER_VERSION", 13000) as u32,
        }
    }
}

/// `512M` and the like, in bytes.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], MIB),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn parse_faults(text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for item in text.split(',').filter(|s| !s.is_empty()) {
        let parsed = (|| {
            let (name, rest) = item.split_once(':')?;
            let (call, what) = match rest.split_once('=') {
                Some((call, code)) => (call, What::Answers(code.trim().parse().ok()?)),
                None => {
                    let (call, us) = rest.split_once('+')?;
                    (call, What::Takes(us.trim().parse().ok()?))
                }
            };
            Some(Fault { name: name.trim().to_owned(), call: call.trim().parse().ok()?, what })
        })();
        match parsed {
            Some(fault) => faults.push(fault),
            None => eprintln!("sim: SIM_FAULT item {item:?} is not name:n=code or name:n+us; ignored"),
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(parse_size("4k"), Some(4096));
        assert_eq!(parse_size("2G"), Some(2 << 30));
        assert_eq!(parse_size("17"), Some(17));
        assert_eq!(parse_size("x"), None);
    }

    #[test]
    fn faults_name_call_and_code() {
        let f = parse_faults("cuMemAlloc_v2:3=2,bad,cuGraphInstantiateWithFlags:1=2,*:40+1500");
        let f: Vec<_> = f.iter().map(|fault| (fault.name.as_str(), fault.call, fault.what)).collect();
        let instantiate = ("cuGraphInstantiateWithFlags", 1, What::Answers(2));
        assert_eq!(f, [("cuMemAlloc_v2", 3, What::Answers(2)), instantiate, ("*", 40, What::Takes(1500))]);
    }
}
