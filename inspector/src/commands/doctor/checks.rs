//! The table of checks, and the code that runs them.

use super::finding::{Finding, ok};
use super::subject::{ANSWERS, ENDED, EVERY, FILE, MAPPED, Machine, RUNNING, Subject, Whole, WithoutShim};
use super::{graphs, growth, memory, preload, process, system};

/// A check.
pub(super) struct Check {
    pub id: &'static str,
    /// True statement if it finds nothing.
    pub in_order: &'static str,
    look: CheckOf,
}

/// Subject of a check.
enum CheckOf {
    Machine(fn(&Machine) -> Vec<Finding>),
    WithoutShim(fn(&WithoutShim) -> Vec<Finding>),
    /// A process or its ledger, in one of these states.
    Process(fn(&Subject) -> Vec<Finding>, u8),
    /// The same, if its whole ledger was read.
    Whole(fn(&Whole) -> Vec<Finding>, u8),
}

/// A row: the statement that holds if the check finds nothing, its name, its subject, and the function.
macro_rules! checks {
    ($($(#[doc = $in_order:literal])+ $id:literal: $look:ident($check:path $(, $when:expr)?),)*) => {
        /// Every check, in the order of running and of docs/cli.md.
        pub(super) const CHECKS: &[Check] = &[$(
            Check {
                id: $id,
                in_order: concat!($($in_order),+).trim_ascii_start(),
                look: CheckOf::$look(|of| $check(of).into_iter().collect() $(, $when)?),
            },
        )*];
    };
}

checks! {
    /// libgpumem.so is found and loads into a program
    "library": Machine(preload::library),
    /// each libgpumem.so that LD_PRELOAD of this shell names can be loaded
    "preload": Machine(preload::named),
    /// every GPUMEM_ variable of this shell is known and has an allowed value, and no variable of llama.cpp
    /// (GGML_CUDA_...) is used in place of a GPUMEM_ variable
    "variables": Machine(system::variables),
    /// the directory of the ledgers can be written, has space, and is closed to other users (a directory that
    /// GPUMEM_DIR or --dir names may be open to them)
    "directory": Machine(system::directory),
    /// a GPU driver is installed; the finding names it
    "driver": Machine(system::driver),
    /// a CUDA or HIP runtime is found; the finding names those that programs here would load
    "runtimes": Machine(system::runtimes),
    /// the device files can be opened
    "devices": Machine(system::devices),
    /// NVML can be asked for the driver's own figures on memory
    "nvml": Machine(system::nvml),
    /// processes of this user can be inspected
    "proc": Machine(system::proc),
    /// no ledgers of ended processes lie around
    "stale-ledgers": Machine(system::stale),
    /// a preload reaches the program (doctor PID only, for a process without the shim)
    "reach": WithoutShim(preload::reach),
    /// the process is neither stopped nor traced by a debugger or strace (doctor PID only, for a process without the
    /// shim)
    "state": WithoutShim(preload::state),
    /// the process has written a readable ledger
    "ledger": Process(process::ledger, EVERY),
    /// every call of the process is recorded
    "interception": Process(process::interception, RUNNING | FILE),
    /// gpumem does more than record in the process; the finding names what decided that
    "mode": Process(process::mode, EVERY),
    /// gpumem believes every verdict of gpumem selftest --rules that it has found
    "verdict": Process(process::verdict, EVERY),
    /// gpumem's tables were compared with the process's version of ROCm, or with a newer one
    "rocm": Process(process::rocm, EVERY),
    /// this release knows every function, node kind, attribute and flag of the driver that the process has used
    "unknown": Process(process::unknown, EVERY),
    /// the process still records
    "recording": Process(process::recording, EVERY),
    /// the process freed all of its memory before it ended (doctor PID only, for an ended process)
    "left": Process(process::left, ENDED),
    /// every record fits into the ledger
    "dropped": Process(process::dropped, EVERY),
    /// every recorded call has a call stack
    "stacks": Whole(process::stacks, EVERY),
    /// if the process runs Python, call stacks have its frames
    "python": Whole(process::python, EVERY),
    /// freed memory is kept for the next allocation, in every context
    "pool": Whole(memory::pool, EVERY),
    /// no allocation ran out of memory
    "memory": Whole(memory::ran_out, EVERY),
    /// no call site asks for larger and larger buffers while its older ones lie unused
    "stranded": Whole(memory::stranded, EVERY),
    /// live memory leaves room under GPUMEM_LIMIT
    "limit": Whole(memory::near_the_limit, EVERY),
    /// if much memory is idle, it goes back to the driver with time
    "idle": Whole(memory::idle, EVERY),
    /// no kernel needs so much local memory (each thread's own memory, for its arrays and for registers that do not fit)
    /// that the driver takes much device memory for it
    "local-memory": Whole(memory::local, EVERY),
    /// graph execs are under the graph cache, and its bounds are wide enough
    "graph-cache": Whole(graphs::bounds, EVERY),
    /// parked execs (the program has destroyed their handles) take at most half of the real execs' memory
    "parked": Whole(graphs::parked, EVERY),
    /// no graph was launched after memory that it refers to was freed
    "freed-graph": Whole(graphs::freed, EVERY),
    /// no call site grows steadily, and memory without a known call site does not grow steadily either
    "growth": Whole(growth::check, EVERY),
    /// no call site holds much code in many modules
    "code": Whole(growth::code, EVERY),
    /// no memory that one process has freed is still open in another
    "shared": Whole(memory::shared, RUNNING),
    /// every setting with which the process was started is known and has an allowed value
    "complaints": Process(process::complaints, EVERY),
    /// no variable of another project decides what gpumem does
    "aliases": Whole(process::aliases, RUNNING),
    /// the control thread of the process is alive
    "heartbeat": Process(process::heartbeat, RUNNING),
    /// the device memory of the process is on the device: the process is not parked
    "parking": Process(process::parking, RUNNING),
    /// the process answers on its control socket
    "control": Process(process::control, ANSWERS),
    /// no other tool watches the GPU in the process
    "tools": Process(process::tools, MAPPED),
    /// shim and gpumem are of the same release
    "version": Process(process::version, RUNNING),
}

/// Returns the names of all checks, with the statements that hold if they find nothing.
pub fn check_list() -> impl Iterator<Item = (&'static str, &'static str)> {
    CHECKS.iter().map(|check| (check.id, check.in_order))
}

/// Checks this machine and this shell.
pub(super) fn of_machine(of: &Machine) -> Vec<Finding> {
    run(|look| if let CheckOf::Machine(check) = look { Some(check(of)) } else { None })
}

/// Checks a process without the shim.
pub(super) fn without_shim(of: &WithoutShim) -> Vec<Finding> {
    run(|look| if let CheckOf::WithoutShim(check) = look { Some(check(of)) } else { None })
}

/// Checks a process with the shim, or its ledger.
pub(super) fn of_subject(subject: &Subject) -> Vec<Finding> {
    run(|look| match look {
        CheckOf::Process(check, when) if when & subject.is != 0 => Some(check(subject)),
        CheckOf::Whole(check, when) if when & subject.is != 0 => subject.whole.as_ref().ok().map(check),
        _ => None,
    })
}

/// Runs the checks for which `look` returns an answer.
fn run(look: impl Fn(&CheckOf) -> Option<Vec<Finding>>) -> Vec<Finding> {
    let named = |check: &Check| {
        let mut found = look(&check.look)?;
        if found.is_empty() {
            found.push(ok(check.in_order));
        }
        found.iter_mut().for_each(|finding| finding.id = check.id);
        Some(found)
    };
    CHECKS.iter().filter_map(named).flatten().collect()
}
