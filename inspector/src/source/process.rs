//! One process as /proc shows it.

use super::seen::{LastLink, Seen};
use super::status::{self, Stat, Status};
use super::world::{World, directories};
use super::{budget, maps};
use gpumem_wire::place;
use gpumem_wire::tools::is_tool;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: u32,
    /// Its pid in its own namespace: the shim sees this pid and puts it in the ledger's name.
    pub(super) ns_pid: u32,
    pub start_ticks: u64,
    /// Effective user: the owner of its ledger.
    pub uid: u32,
    /// Its real, effective and saved users.
    pub users: Users,
    /// Name of the command, at most 15 bytes.
    pub name: String,
    /// Stopped by a signal or by its tracer.
    pub(super) is_stopped: bool,
}

/// Users of a process, any of which may own files that it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Users {
    /// Real, effective and saved.
    ids: [u32; 3],
}

impl Users {
    pub(crate) fn one(uid: u32) -> Self {
        Self { ids: [uid; 3] }
    }

    /// True if a file of this owner may be the process's: the owner is one of its users, or root.
    pub(crate) fn believe(&self, owner: u32) -> bool {
        owner == 0 || self.ids.contains(&owner)
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [real, effective, saved] = self.ids;
        write!(f, "{effective}")?;
        [real, saved].iter().filter(|&&id| id != effective).try_for_each(|id| write!(f, " or {id}"))
    }
}

/// GPU-related files that a process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub shim: bool,
    /// The driver's library or HIP's.
    pub driver: bool,
    /// The library of a tool that watches the GPU itself, such as compute-sanitizer.
    pub tool: Option<String>,
    /// The device file that AMD's runtimes open.
    pub kfd: bool,
}

/// Bytes of an environment that are read: more than the kernel's limit for starting a program.
const MOST_ENVIRONMENT: u64 = 8 << 20;

impl Process {
    /// Returns the process with this pid; `None` if there is none, or only a zombie.
    pub(crate) fn of(world: &World, pid: u32) -> Option<Self> {
        Self::with(world, pid, Stat::of(world, pid)?)
    }

    /// As [`of`](Self::of), for a process whose line was read.
    pub(super) fn with(world: &World, pid: u32, stat: Stat) -> Option<Self> {
        if stat.is_zombie {
            return None;
        }
        let status = Status::of(world, pid)?;
        let ns_pid = status.field("NSpid:").and_then(|pids| pids.split_ascii_whitespace().last()?.parse().ok());
        let mut ids = status.field("Uid:")?.split_ascii_whitespace().map_while(|id| id.parse().ok());
        let users = Users { ids: [ids.next()?, ids.next()?, ids.next()?] };
        let (ns_pid, start_ticks) = (ns_pid.unwrap_or(pid), stat.mark.start_ticks);
        Some(Self { pid, ns_pid, start_ticks, uid: users.ids[1], users, name: stat.name, is_stopped: stat.is_stopped })
    }

    /// Returns the parent of a process.
    pub(crate) fn parent(world: &World, pid: u32) -> Option<u32> {
        Some(Stat::of(world, pid)?.parent)
    }

    /// Returns every process, by pid.
    pub(crate) fn all(world: &World) -> Vec<Self> {
        pids(world).into_iter().filter_map(|pid| Self::of(world, pid)).collect()
    }

    /// Finds the GPU-related files that are mapped.
    ///
    /// # Errors
    /// Permission denied for processes of other users.
    pub(crate) fn mapped(&self, world: &World) -> io::Result<Mapped> {
        Ok(self.mapped_within(world, maps::MOST, budget::TIME)?.0)
    }

    /// True if another program replaced the one that wrote the process's ledger (`exec`): pid and start time stay, and the
    /// ledger is no longer mapped. False if the mappings cannot be read, and if there are none: the process is ending, or
    /// its first thread has ended.
    pub(super) fn is_another_program(&self, world: &World) -> bool {
        let ledger = self.id().ledger_name();
        let (mut any, mut is_mapped) = (false, false);
        let whole = maps::each_line(&world.proc.join(self.pid.to_string()), maps::MOST, budget::TIME, |line| {
            any = true;
            let name = line.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            is_mapped = name.starts_with(ledger.as_bytes());
            if is_mapped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        any && !is_mapped && whole.is_ok_and(|whole| whole)
    }

    /// As [`mapped`](Self::mapped), within `most` bytes and `time`. False if there is more.
    ///
    /// # Errors
    /// As [`mapped`](Self::mapped).
    pub(super) fn mapped_within(&self, world: &World, most: u64, time: Duration) -> io::Result<(Mapped, bool)> {
        let mut mapped = Mapped::default();
        let whole = maps::each_line(&world.proc.join(self.pid.to_string()), most, time, |line| {
            let Some(slash) = line.iter().position(|&byte| byte == b'/') else { return ControlFlow::Continue(()) };
            let name = line[slash..].rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            mapped.shim |= name.starts_with(b"libgpumem.so");
            mapped.driver |= name.starts_with(b"libcuda.so") || name.starts_with(b"libamdhip64.so");
            mapped.kfd |= line[slash..] == *b"/dev/kfd";
            if is_tool(name) {
                mapped.tool = Some(String::from_utf8_lossy(name).into_owned());
            }
            ControlFlow::Continue(())
        })?;
        Ok((mapped, whole))
    }

    /// Returns a variable of the environment that the process was started with.
    ///
    /// # Errors
    /// Permission denied for processes of other users.
    pub(crate) fn environment(&self, world: &World) -> io::Result<BTreeMap<OsString, OsString>> {
        let path = world.proc.join(self.pid.to_string()).join("environ");
        let bytes = status::read(&path, MOST_ENVIRONMENT)?;
        let pairs = bytes.split(|&byte| byte == 0).filter_map(|pair| {
            let equals = pair.iter().position(|&byte| byte == b'=')?;
            let (name, value) = (OsStr::from_bytes(&pair[..equals]), OsStr::from_bytes(&pair[equals + 1..]));
            Some((name.to_owned(), value.to_owned()))
        });
        Ok(pairs.collect())
    }

    /// Returns the root of its file system, in which its paths hold.
    pub(crate) fn root(&self, world: &World) -> PathBuf {
        world.proc.join(self.pid.to_string()).join("root")
    }

    /// Returns the path of its ledger as seen from here, or the path that it would have, and the file there.
    ///
    /// # Errors
    /// Permission denied for processes of other users.
    pub(super) fn ledger(&self, world: &World) -> io::Result<(PathBuf, io::Result<Seen>)> {
        let environment = self.environment(world)?;
        let get = |name: &str| environment.get(OsStr::new(name)).map(OsString::as_os_str);
        let dirs = directories(get(place::DIR_VARIABLE), get("XDG_RUNTIME_DIR"), self.uid_inside(world));
        let (root, name) = (self.root(world), self.id().ledger_name());
        let looked = dirs.iter().map(|dir| {
            let path = inside(&root, dir).join(&name);
            let seen = Seen::named(&path, LastLink::Keep);
            (path, seen)
        });
        // The shim took the first directory that could hold a ledger.
        let mut first = None;
        for (path, seen) in looked {
            match seen {
                Ok(seen) => return Ok((path, Ok(seen))),
                Err(error) => drop(first.get_or_insert((path, Err(error)))),
            }
        }
        first.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns the user id that the process itself sees, which differs in a user namespace.
    fn uid_inside(&self, world: &World) -> u32 {
        let map = status::read(&world.proc.join(self.pid.to_string()).join("uid_map"), u64::MAX);
        let translated = map.ok().and_then(|map| {
            String::from_utf8_lossy(&map).lines().find_map(|line| {
                let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
                let (inside, outside, len) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
                let offset = self.uid.checked_sub(outside).filter(|&offset| offset < len)?;
                inside.checked_add(offset)
            })
        });
        translated.unwrap_or(self.uid)
    }

    /// Returns the identity that names its ledger.
    pub(crate) fn id(&self) -> place::ProcessId {
        place::ProcessId { pid: self.ns_pid, start_ticks: self.start_ticks }
    }

    /// Returns the id of its container, from its control group: 64 hexadecimal digits, as docker, containerd and CRI-O
    /// write them.
    pub(crate) fn container(&self, world: &World) -> Option<String> {
        let text = status::read(&world.proc.join(self.pid.to_string()).join("cgroup"), u64::MAX).ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut words = text.split(|letter: char| !letter.is_ascii_hexdigit());
        words.rfind(|word| word.len() == 64).map(str::to_owned)
    }

    /// Returns the resident bytes: all, and the part that is backed by files.
    pub(crate) fn resident(&self, world: &World) -> Option<Resident> {
        let status = Status::of(world, self.pid)?;
        let kib =
            |name: &str| status.field(name)?.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024);
        Some(Resident {
            rss: kib("VmRSS:")?,
            anonymous: kib("RssAnon:").unwrap_or(0),
            file: kib("RssFile:").unwrap_or(0),
            shared: kib("RssShmem:").unwrap_or(0),
        })
    }
}

/// Returns all pids, in order.
pub(super) fn pids(world: &World) -> Vec<u32> {
    let entries = std::fs::read_dir(&world.proc).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Resident memory of a process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Resident {
    pub rss: u64,
    pub anonymous: u64,
    pub file: u64,
    pub shared: u64,
}

/// Returns an absolute path, moved below another root.
pub(crate) fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_finds_itself() {
        let world = World::here(None);
        let me = Process::of(&world, std::process::id()).unwrap();
        assert_eq!((me.pid, me.uid), (std::process::id(), world.uid));
        assert!(me.start_ticks > 0);
        assert!(me.resident(&world).unwrap().rss > 0);
        assert_eq!(me.mapped(&world).unwrap(), Mapped::default());
        assert!(Process::all(&world).contains(&me));
        assert_eq!(Process::of(&world, u32::MAX), None);
    }

    /// Returns a world without processes, and the folder of its process 77.
    fn fake_world(fake: &tempfile::TempDir) -> (World, PathBuf) {
        let dir = fake.path().join("77");
        std::fs::create_dir_all(&dir).unwrap();
        (World { proc: fake.path().into(), ..World::here(None) }, dir)
    }

    #[test]
    fn a_program_is_replaced_only_if_its_ledger_is_seen_to_be_unmapped() {
        let fake = tempfile::tempdir().unwrap();
        let (world, dir) = fake_world(&fake);
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        write("stat", "77 (srv) D 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20");
        write("status", "Name:\tsrv\nUid:\t7\t7\t7\t7\nNSpid:\t77\t5\n");
        let process = Process::of(&world, 77).unwrap();
        assert!(!process.is_another_program(&world), "its mappings cannot be read");
        write("maps", "");
        assert!(!process.is_another_program(&world), "it is ending");
        let cat = "7f00-7f01 r-xp 0 00:00 1 /bin/cat\n";
        for ledger in ["/run/gm/5-4242.ledger", "/run/gm/5-4242.ledger (deleted)"] {
            write("maps", &format!("{cat}7f02-7f03 rw-s 0 0:5 2 {ledger}\n"));
            assert!(!process.is_another_program(&world), "{ledger}");
        }
        for other in ["/run/gm/5-424.ledger", "/run/gm/77-4242.ledger", "[heap]"] {
            write("maps", &format!("{cat}7f02-7f03 rw-s 0 0:5 2 {other}\n"));
            assert!(process.is_another_program(&world), "{other}");
        }
        write("maps", &cat.repeat(maps::MOST as usize / cat.len() + 1));
        assert!(!process.is_another_program(&world), "there are more mappings than are read");
    }

    #[test]
    fn a_container_is_seen_from_outside() {
        let fake = tempfile::tempdir().unwrap();
        let (world, dir) = fake_world(&fake);
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        write("stat", "77 (srv (x)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20");
        write("status", "Name:\tsrv\nUid:\t100007\t100007\t100007\t100007\nNSpid:\t77\t12\t5\n");
        write("environ", "A=b\0GPUMEM_DIR=/run/gm\0junk\0");
        write("uid_map", "0 100000 65536\n");
        write(
            "maps",
            "7f00-7f01 r-xp 0 00:00 1  /opt/a b/libgpumem.so\n7f02-7f03 r-xp 0 0:0 2 /usr/lib/libcuda.so.1 (deleted)\n",
        );
        let process = Process::of(&world, 77).unwrap();
        assert_eq!((process.ns_pid, process.start_ticks, process.name.as_str()), (5, 4242, "srv (x)"));
        assert_eq!(process.ledger(&world).unwrap().0, dir.join("root/run/gm/5-4242.ledger"));
        assert_eq!(process.mapped(&world).unwrap(), Mapped { shim: true, driver: true, ..Mapped::default() });
        write("maps", "7f00-7f01 r-xp 0 00:00 1  /opt/libgpumem.so\n7f02-7f03 rw-s 0 0:5 2 /dev/kfd\n");
        assert_eq!(process.mapped(&world).unwrap(), Mapped { shim: true, kfd: true, ..Mapped::default() });
        write("environ", "GPUMEM_DIR=here\0");
        assert_eq!(process.ledger(&world).unwrap().0, dir.join("root/dev/shm/gpumem-7/5-4242.ledger"), "refused");
        write("environ", "A=b\0");
        assert_eq!(process.ledger(&world).unwrap().0, dir.join("root/dev/shm/gpumem-7/5-4242.ledger"));
        let second = dir.join("root/tmp/gpumem-7/5-4242.ledger");
        std::fs::create_dir_all(second.parent().unwrap()).unwrap();
        std::fs::write(&second, "").unwrap();
        assert_eq!(process.ledger(&world).unwrap().0, second, "the one that is there");
        assert_eq!(process.container(&world), None);
        let id = "0123456789abcdef".repeat(4);
        write("cgroup", &format!("0::/kubepods.slice/kubepods-pod7.slice/cri-containerd-{id}.scope\n"));
        assert_eq!(process.container(&world), Some(id));
        write("stat", "77 (srv) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4242 20");
        assert_eq!(Process::of(&world, 77), None, "a zombie no longer runs");
    }
}
