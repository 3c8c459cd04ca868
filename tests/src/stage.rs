//! Finds the built libraries and programs and the device that programs run on here, and runs programs natively and
//! under the preload.
//!
//! A *kit* is the directory with `libgpumem.so`, `gpumem` and the simulated libraries. It is `target/debug` or
//! `target/release`, or any directory that they were copied to together with the running binary.

pub mod gpu;

use crate::patience::patience;
use gpu::Gpu;
use serde_json::Value;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The device that programs run on.
#[derive(Clone, Debug)]
pub enum Device {
    Gpu(Gpu),
    Simulator,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu(gpu) => f.write_str(&gpu.name),
            Self::Simulator => f.write_str("simulator"),
        }
    }
}

/// Built programs, and everything that is needed to run them.
pub struct Stage {
    pub device: Device,
    /// Top of the source tree.
    pub root: PathBuf,
    /// Directory with libgpumem.so and gpumem.
    pub kit: PathBuf,
    programs: PathBuf,
    /// LD_LIBRARY_PATH of programs.
    libraries: OsString,
    /// The messages of make about programs that it could not build.
    not_built: String,
}

/// A finished run.
#[derive(Debug)]
pub struct Run {
    /// Exit status, or 128 + signal.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    /// The process's own ledger, if the process was preloaded and made a GPU call.
    pub ledger: Option<PathBuf>,
}

/// The longest time that a program may take.
const PATIENCE: Duration = Duration::from_secs(240);

impl Stage {
    /// The GPU if there is one that the programs can use, else the simulator; and why.
    ///
    /// # Errors
    /// Says what could not be staged.
    pub fn here() -> Result<(Self, String), String> {
        match Gpu::find() {
            Ok(gpu) => {
                let why = format!("driver {}.{}, {}", gpu.driver / 1000, gpu.driver % 1000 / 10, gpu.cudart.display());
                Ok((Self::on_gpu(gpu)?, why))
            }
            Err(why) => Ok((Self::simulator()?, why)),
        }
    }

    /// The simulated driver, always.
    ///
    /// # Errors
    /// Says what could not be staged.
    pub fn simulator() -> Result<Self, String> {
        let (root, kit) = (root()?, kit()?);
        let (libs, programs) = (kit.join("stage"), kit.join("programs"));
        let _one_at_a_time = Lock::take(&kit.join(".stage.lock"))?;
        if !kit.join("libcudart13.so").is_file() || !kit.join("libcuda.so").is_file() {
            return Err(format!("{} has no simulated libraries: cargo build --workspace", kit.display()));
        }
        if outdated(&kit, &libs) {
            checked(Command::new(root.join("tests/sim/stage.sh")).arg(&kit).arg(&libs))?;
        }
        let dir = |name: &str| format!("{name}={}", libs.display());
        let not_built = make(&root, &programs, &[&dir("CUDART_LIBDIR"), &dir("CUDA_LIBDIR"), &dir("HIP_LIBDIR")])?;
        Ok(Self { device: Device::Simulator, root, kit, programs, libraries: libs.into(), not_built })
    }

    fn on_gpu(gpu: Gpu) -> Result<Self, String> {
        let (root, kit) = (root()?, kit()?);
        let programs = kit.join("programs-gpu");
        let _one_at_a_time = Lock::take(&kit.join(".stage.lock"))?;
        let dir = gpu.cudart.parent().unwrap_or(Path::new("/")).to_owned();
        let file = gpu.cudart.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let not_built = make(
            &root,
            &programs,
            &[
                &format!("CUDART_LIBDIR={}", dir.display()),
                &format!("CUDART={file}"),
                &format!("CUDART_A={file}"),
                &format!("CUDART_B={file}"),
                &format!("CUDA_LIBDIR={}", gpu.libcuda.parent().unwrap_or(Path::new("/")).display()),
            ],
        )?;
        let mut libraries: OsString = dir.into();
        if let Some(theirs) = std::env::var_os("LD_LIBRARY_PATH").filter(|theirs| !theirs.is_empty()) {
            libraries.push(":");
            libraries.push(theirs);
        }
        Ok(Self { device: Device::Gpu(gpu), root, kit, programs, libraries, not_built })
    }

    pub fn shim(&self) -> PathBuf {
        self.kit.join("libgpumem.so")
    }

    pub fn gpumem(&self) -> PathBuf {
        self.kit.join("gpumem")
    }

    /// A program of tests/programs.
    ///
    /// # Errors
    /// The output of make, if the program was not built.
    pub fn program(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.programs.join(name);
        path.is_file().then_some(path).ok_or_else(|| format!("{name} was not built: {}", self.not_built.trim()))
    }

    /// A command in the environment of a run: native, or with `ledgers` preloaded and recording there.
    ///
    /// # Errors
    /// When `ledgers` cannot be made.
    pub fn command(&self, program: &Path, ledgers: Option<&Path>) -> Result<Command, String> {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
            command.env_remove(name);
        }
        command.env("LD_LIBRARY_PATH", &self.libraries).env_remove("LD_PRELOAD").stdin(Stdio::null());
        if let Some(ledgers) = ledgers {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(ledgers);
            made.and_then(|()| std::fs::set_permissions(ledgers, std::fs::Permissions::from_mode(0o700)))
                .map_err(|error| format!("{}: {error}", ledgers.display()))?;
            command.env("LD_PRELOAD", self.shim()).env("GPUMEM_DIR", ledgers);
        }
        Ok(command)
    }

    /// Runs a program of tests/programs to its end.
    ///
    /// # Errors
    /// When it was not built, cannot be started, or does not end.
    pub fn run(&self, name: &str, args: &[&str], ledgers: Option<&Path>) -> Result<Run, String> {
        let mut command = self.command(&self.program(name)?, ledgers)?;
        let child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.map_err(|error| format!("{name}: {error}"))?;
        finish(child, ledgers).map_err(|why| format!("{name}: {why}"))
    }

    /// A view of a ledger by gpumem, as JSON.
    ///
    /// # Errors
    /// Says what gpumem said.
    pub fn inspect(&self, view: &str, ledger: &Path) -> Result<Value, String> {
        let mut command = self.command(&self.gpumem(), None)?;
        let text = checked(command.args([view, "--json", "--file"]).arg(ledger))?;
        serde_json::from_str(&text).map_err(|error| format!("gpumem {view} --json: {error}"))
    }
}

/// Waits for a process whose output is piped.
///
/// # Errors
/// When it does not end; it is killed then.
pub fn finish(mut child: Child, ledgers: Option<&Path>) -> Result<Run, String> {
    fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let (begin, limit) = (Instant::now(), patience(PATIENCE));
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if begin.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("has not ended after {} s", limit.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    Ok(Run {
        status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
        ledger: ledgers.and_then(|dir| ledger_of(dir, child.id())),
    })
}

/// The ledger of a process in a directory.
pub fn ledger_of(dir: &Path, pid: u32) -> Option<PathBuf> {
    let begin = format!("{pid}-");
    let entries = std::fs::read_dir(dir).ok()?;
    entries.filter_map(Result::ok).map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begin))
            && path.extension().is_some_and(|extension| extension == "ledger")
    })
}

/// Stdout of a command that has to succeed.
///
/// # Errors
/// The command and what it said.
pub fn checked(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| format!("{name}: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        return Err(format!("{name}: {}: {}", done.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The top of the source tree: above the current directory, else where this was compiled.
fn root() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("current directory: {error}"))?;
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let mut places = here.ancestors().chain(compiled);
    let found = places.find(|dir| dir.join("tests/programs/Makefile").is_file());
    found.map(Path::to_owned).ok_or_else(|| "the source tree was not found: start this inside it".into())
}

/// The directory of the running binary. A test's binary is one directory deeper.
fn kit() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let dir = exe.parent().ok_or("own path has no directory")?;
    let dir = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir };
    match ["libgpumem.so", "gpumem"].iter().find(|file| !dir.join(file).is_file()) {
        None => Ok(dir.to_owned()),
        Some(file) => Err(format!("{} has no {file}: cargo build --workspace", dir.display())),
    }
}

/// True if a simulated library is newer than its staged copy.
fn outdated(kit: &Path, libs: &Path) -> bool {
    let time = |path: PathBuf| path.metadata().and_then(|meta| meta.modified());
    let pairs = [
        ("libcuda.so", "libcuda.so.1"),
        ("libcudart12.so", "libcudart.so.12"),
        ("libcudart13.so", "libcudart.so.13"),
        ("libamdhip64.a", "libamdhip64.so.6"),
    ];
    pairs.iter().any(|(built, staged)| match (time(kit.join(built)), time(libs.join(staged))) {
        (Ok(built), Ok(staged)) => built > staged,
        (Ok(_), Err(_)) => true,
        (Err(_), _) => false,
    })
}

/// Builds the programs that can be built; returns what make said of the others.
fn make(root: &Path, out: &Path, variables: &[&str]) -> Result<String, String> {
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let mut command = Command::new("make");
    // If make started this process, its flags must not reach the make below, above all its jobserver.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
        command.env_remove(name);
    }
    command.args(["-k", "-s", &format!("-j{jobs}"), "-C"]).arg(root.join("tests/programs"));
    let done = command.arg(format!("OUT={}", out.display())).args(variables).output();
    let done = done.map_err(|error| format!("make: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    let errors =
        said.lines().filter(|line| line.contains("error") || line.contains("undefined") || line.contains("***"));
    Ok(if done.status.success() { String::new() } else { errors.take(12).collect::<Vec<_>>().join("\n") })
}

/// An advisory lock between processes; given back when dropped.
struct Lock(#[allow(dead_code)] std::fs::File);

impl Lock {
    fn take(path: &Path) -> Result<Self, String> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        // SAFETY: flock takes two numbers, and `file` keeps the descriptor open.
        match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
            0 => Ok(Self(file)),
            _ => Err(format!("{}: {}", path.display(), std::io::Error::last_os_error())),
        }
    }
}
