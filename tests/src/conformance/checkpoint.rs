//! Checkpoints of another process: a child of this program, which does what lines on its stdin say.

use super::fixtures::{Gpu, Strm};
use super::{Check, Checker, Done, Stop, cu, ok, skip};
use crate::say_line;
use std::ffi::{CStr, c_void};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("checkpoint.contents_survive", contents_survive),
    Check::measured("checkpoint.each_state_allows_one_step", each_state_allows_one_step),
    Check::measured("checkpoint.questions_are_answered", questions_are_answered),
    Check::measured("checkpoint.lock_gives_up_beside_work", lock_gives_up_beside_work),
    Check::measured("checkpoint.managed_memory_is_refused", managed_memory_is_refused),
    Check::measured("checkpoint.without_a_driver", without_a_driver),
];

/// The argument that makes this program such a child. The one that follows says what it begins with.
pub const CHILD: &str = "--checkpoint-child";
const BARE: &str = "bare";
const FILLED: &str = "filled";

const WORDS: u64 = 4 << 20;
const VALUE: u32 = 0x0c4e_c4e7;
const WRONG_STATE: u32 = 401;
const RUNNING: i32 = 0;
const LOCKED: i32 = 1;
const CHECKPOINTED: i32 = 2;

/// Does what the parent says, and prints a number for each line.
pub fn serve(how: Option<&str>) -> ExitCode {
    let served = match how {
        Some(BARE) => answer(|_| Ok(0)),
        _ => serve_with_memory(),
    };
    served.map_or_else(
        |stop| {
            eprintln!("{stop:?}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn serve_with_memory() -> Done {
    let gpu = Gpu::open().map_err(Stop::Fail)?;
    let (mem, stream) = (gpu.words(WORDS)?, Strm::non_blocking()?);
    gpu.kernels.fill(stream.k(), mem.words(), VALUE)?;
    ok("cuStreamSynchronize", cu!(cuStreamSynchronize(stream.s)))?;
    let mut managed = 0;
    answer(|line| match line {
        "wrong" => gpu.wrong_words(&stream, mem.words(), VALUE),
        "spin" => gpu.spin(&stream, 1500).map(|()| 0),
        "info" => {
            let (mut free, mut total) = (0, 0);
            Ok(cu!(cuMemGetInfo_v2(&mut free, &mut total)).into())
        }
        "managed" => Ok(cu!(cuMemAllocManaged(&mut managed, 4 << 20, 1)).into()),
        _ => Ok(0),
    })
}

fn answer(mut does: impl FnMut(&str) -> Result<u64, Stop>) -> Done {
    say_line!("0");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        say_line!("{}", does(&line)?);
    }
    Ok(())
}

/// The functions, as a program of CUDA 12.8 finds them.
struct Driver {
    lock: Step,
    checkpoint: Step,
    restore: Step,
    unlock: Step,
    state: State,
}

type Step = unsafe extern "C" fn(i32, *mut c_void) -> u32;
type State = unsafe extern "C" fn(i32, *mut i32) -> u32;

impl Driver {
    fn find() -> Result<Driver, Stop> {
        let find = |name: &CStr| {
            let mut f = std::ptr::null_mut();
            match (cu!(cuGetProcAddress_v2(name.as_ptr(), &mut f, 12080, 0, std::ptr::null_mut())), f.is_null()) {
                (0, false) => Ok(f),
                _ => skip(format!("the driver has no {}", name.to_string_lossy())),
            }
        };
        // SAFETY: cuda.h gives these functions a number and a pointer to optional arguments.
        let step = |name| find(name).map(|f| unsafe { std::mem::transmute::<*mut c_void, Step>(f) });
        // SAFETY: cuda.h gives this function a number and a pointer to a number.
        let state =
            find(c"cuCheckpointProcessGetState").map(|f| unsafe { std::mem::transmute::<*mut c_void, State>(f) });
        Ok(Driver {
            lock: step(c"cuCheckpointProcessLock")?,
            checkpoint: step(c"cuCheckpointProcessCheckpoint")?,
            restore: step(c"cuCheckpointProcessRestore")?,
            unlock: step(c"cuCheckpointProcessUnlock")?,
            state: state?,
        })
    }
}

/// The child.
struct Target {
    driver: Driver,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Target {
    /// Starts it, and skips the check where the driver has no checkpoints.
    fn start(how: &str) -> Result<Target, Stop> {
        let driver = Driver::find()?;
        let failed = |e: std::io::Error| Stop::Fail(format!("starting a process: {e}"));
        let exe = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(exe);
        let mut child =
            command.args([CHILD, how]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Stop::Fail("a process without pipes".into()));
        };
        let mut target = Target { driver, child, input, output: BufReader::new(output) };
        target.hear()?;
        match target.state() {
            (801, _) => skip("the driver has no checkpoints"),
            _ => Ok(target),
        }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn tell(&mut self, line: &str) -> Done {
        writeln!(self.input, "{line}").map_err(|e| Stop::Fail(format!("telling {line}: {e}")))
    }

    fn hear(&mut self) -> Result<u64, Stop> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        let said = read.ok().and_then(|_| line.trim().parse().ok());
        said.ok_or_else(|| Stop::Fail(format!("the other process said {line:?}")))
    }

    fn ask(&mut self, line: &str) -> Result<u64, Stop> {
        self.tell(line)?;
        self.hear()
    }

    /// Asks for a lock with a limit in milliseconds.
    fn lock(&self, limit: u32) -> u32 {
        let mut args = [0u64; 8];
        args[0] = limit.into();
        // SAFETY: `args` has the size of CUcheckpointLockArgs, whose first number is the limit; the rest is 0.
        unsafe { (self.driver.lock)(self.pid(), args.as_mut_ptr().cast()) }
    }

    fn step(&self, step: Step) -> u32 {
        // SAFETY: the arguments of these functions are optional.
        unsafe { step(self.pid(), std::ptr::null_mut()) }
    }

    /// The answer and the state.
    fn state(&self) -> (u32, i32) {
        let mut state = -1;
        // SAFETY: the driver writes one number, to a local that outlives the call.
        let status = unsafe { (self.driver.state)(self.pid(), &mut state) };
        (status, state)
    }

    /// Locks it, and takes its memory away; skips the check where the driver cannot.
    fn park(&self) -> Done {
        ok("cuCheckpointProcessLock", self.lock(5000))?;
        match self.step(self.driver.checkpoint) {
            801 => skip("the driver has no checkpoints of this process"),
            code => ok("cuCheckpointProcessCheckpoint", code),
        }
    }

    fn resume(&self) -> Done {
        ok("cuCheckpointProcessRestore", self.step(self.driver.restore))?;
        ok("cuCheckpointProcessUnlock", self.step(self.driver.unlock))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn contents_survive(t: &mut Checker) -> Done {
    let mut target = Target::start(FILLED)?;
    for _ in 0..2 {
        target.park()?;
        // It begins with an allocation, which waits.
        target.tell("wrong")?;
        target.resume()?;
        t.eq("words that are wrong", target.hear()?, 0);
    }
    Ok(())
}

fn each_state_allows_one_step(t: &mut Checker) -> Done {
    let target = Target::start(FILLED)?;
    let d = &target.driver;
    t.eq("state", target.state(), (0, RUNNING));
    for (what, step) in [("checkpoint", d.checkpoint), ("restore", d.restore), ("unlock", d.unlock)] {
        t.eq(&format!("{what} of a running process"), target.step(step), WRONG_STATE);
    }
    ok("cuCheckpointProcessLock", target.lock(5000))?;
    t.eq("state", target.state(), (0, LOCKED));
    t.eq("lock of a locked process", target.lock(5000), WRONG_STATE);
    t.eq("restore of a locked process", target.step(d.restore), WRONG_STATE);
    t.eq("unlock", target.step(d.unlock), 0);
    target.park()?;
    t.eq("state", target.state(), (0, CHECKPOINTED));
    target.resume()?;
    t.eq("state", target.state(), (0, RUNNING));
    Ok(())
}

fn questions_are_answered(t: &mut Checker) -> Done {
    let mut target = Target::start(FILLED)?;
    ok("cuCheckpointProcessLock", target.lock(5000))?;
    t.eq("cuMemGetInfo in a locked process", target.ask("info")?, 0);
    ok("cuCheckpointProcessUnlock", target.step(target.driver.unlock))?;
    target.park()?;
    t.eq("cuMemGetInfo in a checkpointed process", target.ask("info")?, 304);
    target.resume()?;
    t.eq("cuMemGetInfo later", target.ask("info")?, 0);
    Ok(())
}

fn lock_gives_up_beside_work(t: &mut Checker) -> Done {
    let mut target = Target::start(FILLED)?;
    target.ask("spin")?;
    t.eq("lock", target.lock(100), 600);
    t.eq("state", target.state(), (0, RUNNING));
    t.eq("words that are wrong", target.ask("wrong")?, 0);
    Ok(())
}

fn managed_memory_is_refused(t: &mut Checker) -> Done {
    let mut target = Target::start(FILLED)?;
    if target.ask("managed")? != 0 {
        return skip("the device has no managed memory");
    }
    ok("cuCheckpointProcessLock", target.lock(5000))?;
    t.eq("checkpoint", target.step(target.driver.checkpoint), 801);
    t.eq("state", target.state(), (0, LOCKED));
    t.eq("unlock", target.step(target.driver.unlock), 0);
    t.eq("words that are wrong", target.ask("wrong")?, 0);
    Ok(())
}

fn without_a_driver(t: &mut Checker) -> Done {
    let mut target = Target::start(BARE)?;
    t.eq("state", target.state().0, 3);
    t.eq("lock", target.lock(5000), 3);
    let _ = target.child.kill();
    let _ = target.child.wait();
    t.eq("state of no process", target.state().0, 304);
    Ok(())
}
