//! Every variable that libgpumem.so reads: one table, used by the shim to read them, by the inspector to set, check and
//! explain them, and by the docs.
//!
//! * `value`: allowed values of a variable, and their parsing. `parse`: texts written by people, such as sizes.
//! * `group_limit`: a group's name and limit.
//! * `alias`: names of other projects that stand for ours.
//! * `change`: changing a variable while the process runs.
//! * `uncached`: variables of other projects that turn their own allocators off.
//!
//! An empty value counts as unset. A refused value leaves the default in force; the refusal is one line that names the
//! variable, the value, what is allowed and what happens now.

mod alias;
mod change;
mod group_limit;
mod parse;
mod uncached;
mod value;

pub use alias::{ALIASES, Alias, aliases_in_force};
pub use change::{change, find, live};
pub use group_limit::GroupLimit;
pub use parse::{parse_bool, parse_size, parse_time};
use std::ffi::{OsStr, OsString};
pub use uncached::{UNCACHED, Uncached, uncached};
pub use value::{Complaint, Kind, Setting, Value, When};

/// Prefix of every variable of ours.
pub const PREFIX: &str = "GPUMEM_";

/// A Rust type that a [`Value`] turns into.
trait Field: Sized {
    fn from_value(value: Value) -> Option<Self>;
}

macro_rules! field {
    ($($ty:ty = $pattern:pat => $value:expr;)*) => { $(
        impl Field for $ty {
            fn from_value(value: Value) -> Option<Self> {
                match value { $pattern => $value, _ => None }
            }
        }
    )* };
}
field! {
    bool = Value::Bool(value) => Some(value);
    u64 = Value::Number(value) => Some(value);
    u32 = Value::Number(value) => u32::try_from(value).ok();
    Option<u64> = Value::Number(value) => Some(Some(value));
    Option<String> = Value::Text(value) => Some(Some(value));
    Option<OsString> = Value::Path(value) => Some(Some(value));
}

macro_rules! choices {
    ($($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)* })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vmeta])* $variant,)* }
        impl Default for $name {
            fn default() -> Self { Self::VALUES[0] }
        }
        impl $name {
            const WORDS: &'static [&'static str] = &[$($word,)*];
            /// In the order of their words.
            pub const VALUES: &'static [Self] = &[$(Self::$variant,)*];
        }
        impl Field for $name {
            fn from_value(value: Value) -> Option<Self> {
                match value { Value::Choice(index) => Self::VALUES.get(index).copied(), _ => None }
            }
        }
    )* };
}

choices! {
    /// Switch between recording only and all that the shim does.
    RecordOnly {
        /// Only under tools and on drivers that were never tested.
        Auto = "auto",
        Never = "0",
        Always = "1",
    }
    /// Amount of messages that the shim writes to stderr.
    Log {
        /// Nothing.
        Quiet = "quiet",
        /// Refused settings, and recording that had to stop.
        Warn = "warn",
        /// Also what was bound and where the ledger lies.
        Info = "info",
    }
    /// Work that a free of the program waits for before its block may be used again.
    FreeMode {
        /// As the real free: for the work of the whole context, unless none was submitted.
        Strict = "strict",
        /// Nothing; the block waits for an event that covers all work of the context.
        Deferred = "deferred",
    }
    /// Place of an allocation that finds no device memory.
    OomFallback {
        /// The program gets the error.
        None = "none",
        /// Memory that the driver moves between host and device.
        Managed = "managed",
        /// Pinned host memory that the device reads over the bus.
        Host = "host",
    }
    /// Measure against a call site whose requests creep upwards while older buffers stay unused.
    Stranded {
        /// It is named.
        Report = "report",
        Off = "off",
        /// Its growth is refused once, so that the program gives its older buffers back.
        Press = "press",
        /// Its further growth is placed in managed memory.
        Spill = "spill",
    }
    /// Places in which gpumem looks for writes outside of allocations and to freed memory.
    Guard {
        /// Nowhere.
        Off = "0",
        /// Behind each allocation, and in freed memory, at frees and when somebody asks.
        Behind = "1",
        /// In front of each allocation, too.
        Front = "front",
        /// As [`Guard::Behind`], and at each wait of the program for the device.
        Sync = "sync",
    }
    /// Content of a block when it is used again.
    Fill {
        /// The bytes that were left in it.
        None = "none",
        Zero = "zero",
        /// A pattern that no program means.
        Poison = "poison",
    }
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $id:ident $field:ident: $ty:ty = $name:literal, $kind:expr, $default:literal, $when:ident;)*) => {
        /// A variable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Id { $($(#[doc = $doc])+ $id,)* }

        /// Every variable, in the order in which help shows them.
        pub const ALL: &[Setting] = &[$(Setting {
            id: Id::$id, name: $name, kind: $kind, default: $default, when: When::$when, doc: concat!($($doc),+),
        },)*];

        impl Id {
            /// Returns the variable's row.
            pub fn setting(self) -> &'static Setting {
                &ALL[self as usize]
            }
        }

        /// The value of every variable, read once.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings { $($(#[doc = $doc])+ pub $field: $ty,)* }

        impl Settings {
            fn by_name(mut value: impl FnMut(&'static Setting) -> Option<Value>) -> Self {
                let mut rows = ALL.iter();
                $(
                    let $field = rows.next()
                        .and_then(&mut value)
                        .and_then(<$ty as Field>::from_value)
                        .unwrap_or_default();
                )*
                Self { $($field,)* }
            }

            /// Gives a variable another value; `None` unsets it.
            pub fn put(&mut self, setting: &Setting, value: Option<Value>) {
                match setting.id {
                    $(Id::$id => self.$field = value.and_then(<$ty as Field>::from_value).unwrap_or_default(),)*
                }
            }
        }
    };
}

settings! {
    /// gpumem does nothing: every call goes straight to the real function, and nothing is recorded.
    Disable disable: bool = "GPUMEM_DISABLE", Kind::Bool, "0", Start;
    /// Directory of the ledgers, instead of $XDG_RUNTIME_DIR/gpumem, /dev/shm/gpumem-UID or /tmp/gpumem-UID.
    Dir dir: Option<OsString> = "GPUMEM_DIR", Kind::Path, "", Start;
    /// Maximum number of frames that are recorded of a call stack; 0 records no stacks.
    Stacks stacks: u32 = "GPUMEM_STACKS", Kind::Count { min: 0, max: 128 }, "32", Live;
    /// Record the call stack only of allocations of at least this size.
    StackEvery stack_every: u64 = "GPUMEM_STACK_EVERY", Kind::Size { min: 0, max: u64::MAX }, "0", Live;
    /// Maximum size of the ledger; records that do not fit are dropped and counted.
    LedgerMax ledger_max: u64 = "GPUMEM_LEDGER_MAX", Kind::Size { min: 1 << 20, max: 4 << 30 }, "256MiB", Start;
    /// Only record, change nothing. auto does so beside profilers and checkers, and on a driver of a new major version until gpumem selftest --rules has approved the driver.
    RecordOnly record_only: RecordOnly = "GPUMEM_RECORD_ONLY", Kind::Choice(RecordOnly::WORDS), "auto", Start;
    /// How much gpumem writes to stderr.
    Log log: Log = "GPUMEM_LOG", Kind::Choice(Log::WORDS), "warn", Live;
    /// One line of totals on stderr when the program exits.
    Summary summary: bool = "GPUMEM_SUMMARY", Kind::Bool, "0", Live;
    /// How many events the ledger keeps: the newest ones.
    Events events: u64 = "GPUMEM_EVENTS", Kind::Count { min: 64, max: 1 << 20 }, "4096", Start;
    /// Tag of every allocation and graph that the program itself does not tag.
    Tag tag: Option<String> = "GPUMEM_TAG", Kind::Text, "", Live;
    /// Run the control thread: heartbeat, samples over time, commands from gpumem.
    Control control: bool = "GPUMEM_CONTROL", Kind::Bool, "1", Start;
    /// Time between two samples of how much each call site holds; gpumem leaks reads these samples. With 0, samples are taken only at a gpumem mark.
    GrowthInterval growth_interval: u64 = "GPUMEM_GROWTH_INTERVAL", Kind::Time, "1s", Live;
    /// Maximum number of real graph execs that the graph cache keeps; 0 turns the graph cache off.
    GraphCache graph_cache: u64 = "GPUMEM_GRAPH_CACHE", Kind::Count { min: 0, max: 65536 }, "512", Live;
    /// Maximum host and device bytes that the graph cache's real execs may take, estimated; 0 sets no bound.
    GraphCacheBytes graph_cache_bytes: u64 = "GPUMEM_GRAPH_CACHE_BYTES", Kind::Size { min: 0, max: u64::MAX }, "2GiB", Live;
    /// An exec that was not launched for this time may be given to another graph of its class. With 0, an exec is given away only when a bound is reached. A parked exec (the program has destroyed its handle) is destroyed after ten times this time; with 0, after 10 s.
    GraphIdle graph_idle: u64 = "GPUMEM_GRAPH_IDLE", Kind::Time, "1s", Live;
    /// Keep only the packed source of each graph that the program captured and instantiated (folded graphs); 0 leaves these
    /// graphs with the driver.
    GraphFold graph_fold: bool = "GPUMEM_GRAPH_FOLD", Kind::Bool, "1", Live;
    /// Also retarget execs on HIP, by hipGraphExecUpdate; 0 instantiates a new exec instead.
    HipRetarget hip_retarget: bool = "GPUMEM_HIP_RETARGET", Kind::Bool, "0", Start;
    /// Keep freed device memory for the next allocation of its size; 0 leaves every call to the driver.
    Pool pool: bool = "GPUMEM_POOL", Kind::Bool, "1", Live;
    /// strict: a free waits as it does without gpumem; deferred: on CUDA 12.5 or later a free of memory from cudaMalloc usually does not wait, and the memory is reused later.
    Free free: FreeMode = "GPUMEM_FREE", Kind::Choice(FreeMode::WORDS), "strict", Live;
    /// Maximum idle bytes that the pool keeps on each device; unset: a quarter of the device's memory.
    PoolMax pool_max: Option<u64> = "GPUMEM_POOL_MAX", Kind::Size { min: 0, max: u64::MAX }, "", Live;
    /// Time within which idle memory goes back to the driver; 0 keeps idle memory, up to GPUMEM_POOL_MAX. Unset: 10s, or 500ms in a program whose own allocator keeps freed memory (PyTorch's).
    PoolDecay pool_decay: Option<u64> = "GPUMEM_POOL_DECAY", Kind::Time, "", Live;
    /// Maximum memory that this process may take on each device; a request beyond it fails as out of memory.
    Limit limit: Option<u64> = "GPUMEM_LIMIT", Kind::Size { min: 1 << 20, max: u64::MAX }, "", Live;
    /// One limit for all processes of a group: together they may take SIZE of each device. A request beyond it fails as out of memory, even if GPUMEM_LIMIT has room.
    LimitGroup limit_group: Option<String> = "GPUMEM_LIMIT_GROUP", Kind::Group, "", Start;
    /// Share the cards with the other processes of `gpumem share NAME`. If one process is short of memory, gpumem share parks an idle one, which may be this process. The next GPU call of a parked process waits until the process is resumed.
    Share share: Option<String> = "GPUMEM_SHARE", Kind::Name, "", Start;
    /// Time without work after which a process with GPUMEM_SHARE may be parked.
    ShareIdle share_idle: u64 = "GPUMEM_SHARE_IDLE", Kind::Time, "5s", Start;
    /// An allocation that is short of memory waits for the service (gpumem share). If the service sends no message for this time, the allocation fails as out of memory.
    ShareWait share_wait: u64 = "GPUMEM_SHARE_WAIT", Kind::Time, "60s", Start;
    /// If the program's own pool grows, place its new buffers in managed memory.
    PoolManaged pool_managed: bool = "GPUMEM_POOL_MANAGED", Kind::Bool, "0", Live;
    /// If device memory runs out, give the program an error, managed memory or pinned host memory.
    OomFallback oom_fallback: OomFallback = "GPUMEM_OOM_FALLBACK", Kind::Choice(OomFallback::WORDS), "none", Live;
    /// When device memory runs out, name on stderr the request and the call sites that hold most.
    OomReport oom_report: bool = "GPUMEM_OOM_REPORT", Kind::Bool, "1", Live;
    /// If a call site asks for larger and larger buffers while its older buffers lie unused: report it, press (refuse one request, so that the program frees them) or spill the site's growth to managed memory.
    Stranded stranded: Stranded = "GPUMEM_STRANDED", Kind::Choice(Stranded::WORDS), "report", Live;
    /// 1 tells gpumem that the program frees its own caches and retries when an allocation fails, so that GPUMEM_STRANDED=press is safe.
    StrandedRetries stranded_retries: bool = "GPUMEM_STRANDED_RETRIES", Kind::Bool, "0", Live;
    /// Fill reused memory, to find programs that read memory before they write it.
    PoolFill pool_fill: Fill = "GPUMEM_POOL_FILL", Kind::Choice(Fill::WORDS), "none", Start;
    /// Number of freed bytes that are kept from reuse, to find programs that use memory after its free.
    Quarantine quarantine: u64 = "GPUMEM_QUARANTINE", Kind::Size { min: 0, max: u64::MAX }, "0", Start;
    /// Find writes past the end of allocations, and writes to freed memory, at each free and by gpumem check; front: also writes in front of allocations; sync: also at each wait for the device.
    Guard guard: Guard = "GPUMEM_GUARD", Kind::Choice(Guard::WORDS), "0", Start;
    /// Maximum bytes that GPUMEM_GUARD holds on each device: zones behind allocations, and freed memory that is kept from use.
    GuardMax guard_max: u64 = "GPUMEM_GUARD_MAX", Kind::Size { min: 0, max: u64::MAX }, "1GiB", Start;
    /// Check at each free whether a live graph still refers to the memory; such frees are counted and shown in the events.
    FreedInGraph freed_in_graph: bool = "GPUMEM_FREED_IN_GRAPH", Kind::Bool, "0", Start;
    /// Write a trace of every allocation and free to this file.
    AllocTrace alloc_trace: Option<OsString> = "GPUMEM_ALLOC_TRACE", Kind::Path, "", Start;
}

/// Variables that the inspector alone reads: name and meaning.
pub const INSPECTOR: &[(&str, &str)] = &[
    ("GPUMEM_LIB", "the libgpumem.so that gpumem run preloads, instead of the one beside the gpumem binary"),
    (
        "GPUMEM_INSPECTOR_LOG",
        "which log messages gpumem prints on stderr: a level such as debug, or a module and its level such as gpumem_inspector=trace",
    ),
];

impl Settings {
    /// Returns the time within which idle memory goes back, ns; 0: never by time. jemalloc's default if the user set
    /// none.
    pub fn pool_decay_ns(&self) -> u64 {
        self.pool_decay.unwrap_or(10_000_000_000)
    }

    /// Reads the settings of an environment; returns them and a line for each variable of ours that is refused or
    /// unknown.
    pub fn read(environment: impl Iterator<Item = (OsString, OsString)>) -> (Self, Vec<Complaint>) {
        let ours: Vec<_> = environment.filter(|(name, _)| is_read(name)).collect();
        let mut complaints = Vec::new();
        let settings = Self::by_name(|setting| {
            let given = ours.iter().find(|(name, value)| name == setting.name && !value.is_empty());
            let value = match given.map(|(_, value)| setting.parse(value)) {
                Some(Ok(value)) => return Some(value),
                Some(Err(complaint)) => {
                    complaints.push(complaint);
                    setting.default
                }
                None => alias::aliased(setting, &ours).map_or(setting.default, |alias| alias.value),
            };
            setting.parse(OsStr::new(value)).ok()
        });
        complaints.extend(ours.iter().filter_map(|(name, _)| unknown(&name.to_string_lossy())));
        (settings.cleaned(), complaints)
    }

    /// Treats empty texts and paths as unset.
    fn cleaned(mut self) -> Self {
        self.dir = self.dir.filter(|dir| !dir.is_empty());
        self.tag = self.tag.filter(|tag| !tag.is_empty());
        self.alloc_trace = self.alloc_trace.filter(|path| !path.is_empty());
        self
    }
}

/// True if a variable concerns gpumem: it begins like ours, or stands for one of ours.
pub fn is_read(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) || ALIASES.iter().any(|alias| name == alias.name)
}

/// Returns a complaint if this begins like our variables and is none of them.
pub fn unknown(name: &str) -> Option<Complaint> {
    let known = || ALL.iter().map(|setting| setting.name).chain(INSPECTOR.iter().map(|&(name, _)| name));
    if !name.starts_with(PREFIX) || known().any(|known| known == name) {
        return None;
    }
    let meant = known().map(|known| (distance(name, known), known)).min().filter(|&(distance, _)| distance <= 3);
    // Its former name, which `gpumem record` has.
    let renamed = (name == "GPUMEM_RECORD").then_some("GPUMEM_ALLOC_TRACE");
    Some(Complaint::Unknown { name: name.to_owned(), meant: renamed.or(meant.map(|(_, known)| known)) })
}

/// Returns the number of letters to add, drop or change to turn one name into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let (settings, complaints) = Settings::read(pairs.iter().map(|&(name, value)| (name.into(), value.into())));
        (settings, complaints.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_default_parses_and_names_are_unique() {
        for (index, setting) in ALL.iter().enumerate() {
            assert!(setting.name.starts_with(PREFIX) && !setting.doc.is_empty());
            if !setting.default.is_empty() {
                setting.parse(OsStr::new(setting.default)).unwrap();
            } else {
                let may = matches!(
                    setting.kind,
                    Kind::Text | Kind::Name | Kind::Path | Kind::Group | Kind::Size { .. } | Kind::Time
                );
                assert!(may, "{} needs a default", setting.name);
            }
            assert!(ALL[..index].iter().all(|other| other.name != setting.name));
        }
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        let (settings, complaints) = read(&[("PATH", "/bin"), ("GPUMEM_DIR", ""), ("GPUMEM_STACKS", "")]);
        assert_eq!(complaints, [""; 0]);
        assert_eq!((settings.stacks, settings.ledger_max, settings.control), (32, 256 << 20, true));
        assert_eq!((settings.dir, settings.tag), (None, None));
        assert_eq!((settings.record_only, settings.log), (RecordOnly::Auto, Log::Warn));
    }

    #[test]
    fn values_are_read() {
        let (settings, complaints) = read(&[
            ("GPUMEM_STACKS", "0"),
            ("GPUMEM_LEDGER_MAX", "64 MiB"),
            ("GPUMEM_DIR", "/run/x"),
            ("GPUMEM_RECORD_ONLY", "1"),
            ("GPUMEM_LOG", "INFO"),
            ("GPUMEM_CONTROL", "off"),
            ("GPUMEM_TAG", "kv"),
        ]);
        assert_eq!(complaints, [""; 0]);
        assert_eq!((settings.stacks, settings.ledger_max, settings.control), (0, 64 << 20, false));
        assert_eq!((settings.dir.as_deref(), settings.tag.as_deref()), (Some(OsStr::new("/run/x")), Some("kv")));
        assert_eq!((settings.record_only, settings.log), (RecordOnly::Always, Log::Info));
    }

    #[test]
    fn refusals_say_what_is_allowed_and_what_happens() {
        let (settings, complaints) = read(&[
            ("GPUMEM_STACKS", "129"),
            ("GPUMEM_LEDGER_MAX", "1KB"),
            ("GPUMEM_DIR", "here"),
            ("GPUMEM_STAKS", "3"),
            ("GPUMEM_WHATEVER_THIS_IS", "3"),
        ]);
        assert_eq!((settings.stacks, settings.ledger_max), (32, 256 << 20));
        assert_eq!(
            complaints,
            [
                "GPUMEM_DIR=\"here\" is refused: allowed is an absolute path; the variable counts as unset",
                "GPUMEM_STACKS=\"129\" is refused: allowed is a number from 0 to 128; 32 is used",
                "GPUMEM_LEDGER_MAX=\"1KB\" is refused: allowed is 1MiB to 4GiB: bytes with a unit, such as 256MiB or 1.5G; 256MiB is used",
                "unknown variable GPUMEM_STAKS ignored; did you mean GPUMEM_STACKS?",
                "unknown variable GPUMEM_WHATEVER_THIS_IS ignored",
            ]
        );
    }

    #[test]
    fn a_time_without_a_unit_is_in_seconds() {
        let ms = 1_000_000;
        let (settings, complaints) = read(&[("GPUMEM_GRAPH_IDLE", "5"), ("GPUMEM_POOL_MAX", "1.5G")]);
        assert_eq!((settings.graph_idle, settings.pool_max, complaints.len()), (5000 * ms, Some(3 << 29), 0));
        let (settings, complaints) = read(&[("GPUMEM_GRAPH_IDLE", "soon")]);
        assert_eq!(settings.graph_idle, 1000 * ms);
        let line = "GPUMEM_GRAPH_IDLE=\"soon\" is refused: allowed is seconds, or a time such as 500ms, 1.5s or 2m; 1s is used";
        assert_eq!(complaints, [line]);
    }

    #[test]
    fn the_graph_cache_has_bounds_by_default() {
        let (settings, _) = read(&[]);
        assert_eq!((settings.graph_cache, settings.graph_cache_bytes), (512, 2 << 30));
        assert_eq!((settings.graph_idle, settings.graph_fold, settings.hip_retarget), (1_000_000_000, true, false));
    }

    #[test]
    fn the_pool_is_strict_and_spills_nothing_by_default() {
        let (settings, _) = read(&[]);
        assert_eq!((settings.pool, settings.free, settings.pool_max), (true, FreeMode::Strict, None));
        assert_eq!((settings.pool_decay_ns(), settings.limit), (10_000_000_000, None));
        assert_eq!((settings.pool_managed, settings.oom_fallback), (false, OomFallback::None));
        assert_eq!((settings.stranded, settings.stranded_retries), (Stranded::Report, false));
        assert_eq!((settings.pool_fill, settings.quarantine, settings.alloc_trace), (Fill::None, 0, None));
        let (settings, complaints) = read(&[("GPUMEM_POOL_MAX", "0"), ("GPUMEM_LIMIT", "4GiB")]);
        assert_eq!((settings.pool_max, settings.limit, complaints.len()), (Some(0), Some(4 << 30), 0));
        let (settings, complaints) = read(&[("GPUMEM_LIMIT", "0")]);
        let line = "GPUMEM_LIMIT=\"0\" is refused: allowed is 1MiB or more: bytes with a unit, such as 256MiB or 1.5G; the variable counts as unset";
        assert_eq!((settings.limit, &complaints[..]), (None, &[line.to_owned()][..]));
    }
}
