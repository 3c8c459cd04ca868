//! The rules of the CUDA driver that gpumem is built on, as named checks.
//!
//! Each check calls `libcuda.so.1` as the dynamic loader finds it: a GPU's
//! driver, or the simulator's; bare, or under the preload. The same answers are
//! expected from all of them. Where a rule comes from is part of the check:
//! [`Source::Measured`] ones were seen on an H200 (driver 580, CUDA 13.0),
//! [`Source::Documented`] ones are what the driver API's reference says.
//!
//! No check judges a time. What concerns time is told by order (was the event
//! complete when the call returned?) or by a ratio to how long a kernel was told
//! to spin. A machine that others load changes no answer: what it can delay is
//! tried again with longer work ([`fixtures::outlasted`]), and what another
//! process allocates meanwhile is told by one clean reading of several.
//!
//! [`hip`] is another suite: what gpumem expects of the HIP runtime.

mod attributes;
mod barrier;
mod capture;
mod capture_rules;
pub mod checkpoint;
mod context;
mod copies;
mod fixtures;
mod gates;
mod give_back;
mod graph;
mod graph_holds;
mod handles;
pub mod hip;
mod memory;
mod nodes;
mod pairing;
mod pointers;
mod procaddr;
mod serial;
mod setters;
mod sticky;
mod stream_ordered;
mod update;
mod update_kernel;
mod vmm;

use cudarc::driver::sys::CUdevice_attribute;
use fixtures::Gpu;
use std::fmt::Debug;
pub(crate) use update_kernel::CLUSTER_PTX;

/// Calls a driver function and gives its status as a number.
macro_rules! cu {
    ($f:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: users of this macro pass handles that are alive, or wrong in a way for which the
        // driver answers with an error: that answer is what the suite is about. All pointers are to
        // locals that outlive the call.
        let status = unsafe { cudarc::driver::sys::$f($($arg),*) };
        status as u32
    }};
}
pub(crate) use cu;

/// Source of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Seen on an H200 with driver 580 and CUDA 13.0.
    Measured,
    /// Stated by the driver API's reference.
    Documented,
    /// Expected of HIP, and measured on no card yet.
    Expected,
}

/// One rule.
#[derive(Clone, Copy)]
pub struct Check {
    /// `area.rule`, unique.
    pub name: &'static str,
    /// Source of the rule.
    pub source: Source,
    /// True if it needs a process of its own: it ruins the context, or needs a process in which nothing was
    /// initialised.
    pub alone: bool,
    run: Run,
}

#[derive(Clone, Copy)]
enum Run {
    Cuda(fn(&mut Checker) -> Done),
    Hip(fn(&hip::Probe) -> Done),
}

impl Check {
    const fn measured(name: &'static str, run: fn(&mut Checker) -> Done) -> Check {
        Check { name, source: Source::Measured, alone: false, run: Run::Cuda(run) }
    }

    const fn documented(name: &'static str, run: fn(&mut Checker) -> Done) -> Check {
        Check { name, source: Source::Documented, alone: false, run: Run::Cuda(run) }
    }

    const fn hip(name: &'static str, run: fn(&hip::Probe) -> Done) -> Check {
        Check { name, source: Source::Expected, alone: false, run: Run::Hip(run) }
    }

    const fn alone(self) -> Check {
        Check { alone: true, ..self }
    }
}

/// Every check of the CUDA driver, in the order in which they run.
pub fn all() -> Vec<Check> {
    [
        memory::CHECKS,
        pointers::CHECKS,
        barrier::CHECKS,
        capture::CHECKS,
        capture_rules::CHECKS,
        graph::CHECKS,
        graph_holds::CHECKS,
        nodes::CHECKS,
        attributes::CHECKS,
        handles::CHECKS,
        serial::CHECKS,
        gates::CHECKS,
        update::CHECKS,
        update_kernel::CHECKS,
        pairing::CHECKS,
        copies::CHECKS,
        setters::CHECKS,
        procaddr::CHECKS,
        stream_ordered::CHECKS,
        give_back::CHECKS,
        vmm::CHECKS,
        context::CHECKS,
        checkpoint::CHECKS,
        sticky::CHECKS,
    ]
    .concat()
}

/// How a check ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every answer was as expected.
    Ok,
    /// Expected and actual results, one line each.
    Fail(Vec<String>),
    /// Why the check was skipped.
    Skip(String),
}

/// Why a check did not run to its end.
#[derive(Debug)]
enum Stop {
    Skip(String),
    Fail(String),
}

type Done = Result<(), Stop>;

/// The tools of a check: the GPU, and the list of what was wrong.
struct Checker {
    gpu: Gpu,
    wrong: Vec<String>,
}

impl Checker {
    /// Notes a mismatch between two values and goes on.
    fn eq<V: PartialEq + Debug>(&mut self, what: &str, got: V, want: V) {
        if got != want {
            self.wrong.push(format!("{what}: expected {want:?}, got {got:?}"));
        }
    }

    /// Notes when `got` is none of `want` and goes on.
    fn one_of(&mut self, what: &str, got: u32, want: &[u32]) {
        if !want.contains(&got) {
            self.wrong.push(format!("{what}: expected one of {want:?}, got {got}"));
        }
    }

    /// Notes that `what` does not hold and goes on.
    fn yes(&mut self, what: &str, holds: bool) {
        if !holds {
            self.wrong.push(format!("{what}: expected to hold, got the contrary"));
        }
    }
}

/// Ends the check unless the call succeeded: what follows needs it.
fn ok(what: &str, status: u32) -> Done {
    match status {
        0 => Ok(()),
        code => Err(Stop::Fail(format!("{what}: expected 0, got {code}"))),
    }
}

fn skip<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Skip(why.into()))
}

impl From<gpumem_kernels::LaunchError> for Stop {
    fn from(e: gpumem_kernels::LaunchError) -> Stop {
        Stop::Fail(format!("launching a kernel: {e}"))
    }
}

/// Checks that there is a driver to ask; `Err` says why not.
///
/// # Errors
/// The library is not found, `cuInit` fails, or there is no device.
pub fn available() -> Result<(), String> {
    // SAFETY: the call opens and closes libcuda. NVIDIA makes its initialisers fit for any program.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("libcuda.so.1 is not found by the dynamic loader".into());
    }
    match cu!(cuInit(0)) {
        0 => {}
        code => return Err(format!("cuInit gives {code}")),
    }
    let mut count = 0;
    match (cu!(cuDeviceGetCount(&mut count)), count) {
        (0, 1..) => Ok(()),
        (code, n) => Err(format!("cuDeviceGetCount gives {code} and {n} devices")),
    }
}

/// The first device's name and the driver's version, for the head of a report.
///
/// # Errors
/// Says why there is no driver to ask.
pub fn device_line() -> Result<String, String> {
    available().map_err(|why| format!("no driver to ask: {why}"))?;
    Ok(format!("{}, driver API {}", name(0), version()))
}

/// The driver's version, and each device's name and compute capability.
///
/// # Errors
/// Says why there is no driver to ask.
pub fn driver() -> Result<serde_json::Value, String> {
    available().map_err(|why| format!("no driver to ask: {why}"))?;
    let mut count = 0;
    cu!(cuDeviceGetCount(&mut count));
    let gpu = |device| {
        let capability = [
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ]
        .map(|attribute| {
            let mut value = 0;
            cu!(cuDeviceGetAttribute(&mut value, attribute, device));
            value
        });
        serde_json::json!({ "name": name(device), "capability": capability })
    };
    Ok(serde_json::json!({ "version": version(), "gpus": (0..count).map(gpu).collect::<Vec<_>>() }))
}

fn version() -> i32 {
    let mut version = 0;
    cu!(cuDriverGetVersion(&mut version));
    version
}

fn name(device: i32) -> String {
    let mut name = [0 as std::ffi::c_char; 256];
    cu!(cuDeviceGetName(name.as_mut_ptr(), 255, device));
    // SAFETY: the buffer was all zeroes and the driver wrote at most 255 of its 256 bytes, so a NUL
    // remains.
    unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}

/// Runs one check in this process, on the first device: on CUDA in its primary context.
pub fn run(check: &Check) -> Outcome {
    let result = std::panic::catch_unwind(|| {
        let (done, mut wrong) = match check.run {
            Run::Cuda(run) => {
                let gpu = match Gpu::open() {
                    Ok(gpu) => gpu,
                    Err(why) => return Outcome::Fail(vec![format!("opening the device: {why}")]),
                };
                let mut checker = Checker { gpu, wrong: Vec::new() };
                (run(&mut checker), checker.wrong)
            }
            Run::Hip(run) => (hip::run(run), Vec::new()),
        };
        match done {
            Err(Stop::Skip(why)) if wrong.is_empty() => return Outcome::Skip(why),
            Err(Stop::Skip(_)) | Ok(()) => {}
            Err(Stop::Fail(why)) => wrong.push(why),
        }
        if wrong.is_empty() { Outcome::Ok } else { Outcome::Fail(wrong) }
    });
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panicked");
        Outcome::Fail(vec![text.replace('\n', " ")])
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique_and_have_an_area() {
        for checks in [super::all(), super::hip::CHECKS.to_vec()] {
            let mut names: Vec<_> = checks.iter().map(|c| c.name).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(names.iter().all(|n| n.split('.').count() == 2), "{names:?}");
        }
    }
}
