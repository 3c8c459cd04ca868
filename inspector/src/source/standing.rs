//! State of a running process: stopped, traced, or more privileged than its user.

use super::process::Process;
use super::status::{self, Status};
use super::world::World;

/// State of a process as the kernel reports it. No call here waits for the process, whatever its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Stopped by a signal (SIGSTOP, Ctrl-Z) or by its tracer.
    pub stopped: bool,
    /// Pid of its tracer, such as a debugger or strace.
    pub tracer: Option<u32>,
    /// The program is setuid or setgid, or its file has capabilities. The loader then ignores most of LD_PRELOAD.
    pub privileged: bool,
}

impl Standing {
    pub(crate) fn of(world: &World, pid: u32) -> Self {
        let status = Status::of(world, pid);
        let field = |name: &str| status.as_ref()?.field(name);
        // The kernel's letters: T if stopped by a signal, t by a tracer.
        let stopped = field("State:").is_some_and(|state| state.starts_with(['T', 't']));
        // The tracer is a thread. Users know its process.
        let tracer = field("TracerPid:").and_then(|pid| pid.parse().ok()).filter(|&tracer| tracer != 0);
        let tracer = tracer.map(|tracer| process_of(world, tracer).unwrap_or(tracer));
        let others = |name: &str| {
            let mut ids = field(name).unwrap_or_default().split_ascii_whitespace();
            matches!((ids.next(), ids.next()), (Some(real), Some(effective)) if real != effective)
        };
        let privileged = is_secure(world, pid).unwrap_or_else(|| others("Uid:") || others("Gid:"));
        Self { stopped, tracer, privileged }
    }
}

/// Returns the process that a thread belongs to.
fn process_of(world: &World, tid: u32) -> Option<u32> {
    Status::of(world, tid)?.field("Tgid:")?.parse().ok()
}

/// Returns AT_SECURE, as the kernel gave it to the loader. `None` if this user may not read it, and for 32-bit
/// programs, whose list has another form.
fn is_secure(world: &World, pid: u32) -> Option<bool> {
    let list = std::fs::read(world.proc.join(pid.to_string()).join("auxv")).ok()?;
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
    let mut pairs = list.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.find(|&(key, _)| key == libc::AT_SECURE).map(|(_, value)| value != 0)
}

/// Bytes of a command line that are read: more than the kernel's limit for starting a program.
const MOST_WORDS: u64 = 8 << 20;

/// Returns the command line of a process, as /proc shows it. Empty for kernel threads.
pub(crate) fn command_line(world: &World, process: &Process) -> Vec<String> {
    let path = world.proc.join(process.pid.to_string()).join("cmdline");
    let line = status::read(&path, MOST_WORDS).unwrap_or_default();
    let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|&byte| byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).filter(|_| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_stands_as_it_is() {
        let world = World::here(None);
        let standing = Standing::of(&world, std::process::id());
        assert_eq!((standing.stopped, standing.privileged), (false, false));
        let me = Process::of(&world, std::process::id()).unwrap();
        assert_eq!(command_line(&world, &me), std::env::args().collect::<Vec<_>>());
        assert_eq!(Standing::of(&world, u32::MAX), Standing::default());
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let fake = tempfile::tempdir().unwrap();
        let world = World { proc: fake.path().into(), ..World::here(None) };
        let write = |name: &str, bytes: &[u8]| {
            let path = fake.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        write("7/status", b"Name:\tx\nState:\tt (tracing stop)\nTracerPid:\t9\nUid:\t5\t5\t5\t5\nGid:\t5\t6\t6\t6\n");
        write("9/status", b"Name:\tgdb\nTgid:\t8\n");
        assert_eq!(Standing::of(&world, 7), Standing { stopped: true, tracer: Some(8), privileged: true });
        // AT_SECURE counts for more than the current user: a daemon drops its privileges.
        write("7/auxv", &[3_u64, 1, libc::AT_SECURE, 0, 0, 0].map(u64::to_ne_bytes).concat());
        assert!(!Standing::of(&world, 7).privileged);
        write("7/auxv", &[libc::AT_SECURE, 1, 0, 0].map(u64::to_ne_bytes).concat());
        write("7/status", b"State:\tS (sleeping)\nTracerPid:\t0\nUid:\t5\t5\t5\t5\nGid:\t5\t5\t5\t5\n");
        assert_eq!(Standing::of(&world, 7), Standing { privileged: true, ..Standing::default() });
    }
}
