//! Room: host memory for the device memory of a process that is parked, and device memory for its way back.

use crate::source::nvml::Card;
use crate::source::process::Process;
use crate::source::world::World;
use std::path::Path;

/// Device memory that must be free beside what a process had when it was parked. A restore that finds no room is final,
/// and contexts of programs that start meanwhile take half a GiB each.
pub(crate) const MARGIN: u64 = 1 << 30;

/// Host memory that is left, and what bounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRoom {
    pub bytes: u64,
    pub of: String,
}

/// Returns the host memory that a process may still take: the least of what the machine has available, what its
/// control groups allow, and what its limit of addresses leaves. `None` if nothing is known.
pub(crate) fn on_host(world: &World, process: &Process) -> Option<HostRoom> {
    let dir = world.proc.join(process.pid.to_string());
    let machine = field(&world.proc.join("meminfo"), "MemAvailable:");
    let machine = machine.map(|bytes| HostRoom { bytes, of: "the machine's available memory".into() });
    let cgroups = of_cgroups(&dir, Path::new("/sys/fs/cgroup"));
    machine.into_iter().chain(cgroups).chain(of_addresses(&dir)).min_by_key(|room| room.bytes)
}

/// Returns a field of a file of /proc in bytes; the file has KiB.
fn field(path: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
}

/// Returns what each control group with a limit leaves, from the process's own up to the root. `dir`: of the process in
/// /proc.
fn of_cgroups(dir: &Path, root: &Path) -> Vec<HostRoom> {
    let text = std::fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
    let mut rooms = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, most, now) = match controllers {
            "" => (root.to_owned(), "memory.max", "memory.current"),
            of if of.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let number = |at: &Path, name: &str| std::fs::read_to_string(at.join(name)).ok()?.trim().parse::<u64>().ok();
        let own = root.join(path.trim_start_matches('/'));
        for group in own.ancestors().take_while(|group| group.starts_with(&root)) {
            if let (Some(most), Some(now)) = (number(group, most), number(group, now)) {
                let name = group.strip_prefix(&root).unwrap_or(group).display().to_string();
                let of = format!("control group /{name}");
                rooms.push(HostRoom { bytes: most.saturating_sub(now), of });
            }
        }
    }
    rooms
}

/// Returns what the limit of addresses (`ulimit -v`) leaves.
fn of_addresses(dir: &Path) -> Option<HostRoom> {
    let limits = std::fs::read_to_string(dir.join("limits")).ok()?;
    let most = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let most: u64 = most.split_ascii_whitespace().next()?.parse().ok()?;
    let now = field(&dir.join("status"), "VmSize:")?;
    Some(HostRoom { bytes: most.saturating_sub(now), of: "its limit of addresses (ulimit -v)".into() })
}

/// Says why `bytes` do not fit back onto a card; `None` if they do. `before`: an earlier look at the same card.
pub(crate) fn lacking(uuid: &str, bytes: u64, before: &Card, now: &Card) -> Option<String> {
    lacks(uuid, bytes, before.used, now.used, now.total)
}

/// As [`lacking`], for used bytes before and now, of all that the card has.
fn lacks(uuid: &str, bytes: u64, before: u64, now: u64, total: u64) -> Option<String> {
    use gpumem_wire::units::bytes as text;
    let free = total.saturating_sub(now);
    if free < bytes.saturating_add(MARGIN) {
        Some(format!("{uuid} has {} free, and {} and a margin of {} are needed", text(free), text(bytes), text(MARGIN)))
    } else if now > before {
        Some(format!("other programs on {uuid} are growing now ({} more): try again", text(now - before)))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_narrowest_control_group_counts() {
        let fake = tempfile::tempdir().unwrap();
        let (proc, root) = (fake.path().join("7"), fake.path().join("cgroup"));
        write(&proc, "cgroup", "0::/a/b\n");
        write(&root, "a/memory.max", "1000\n");
        write(&root, "a/memory.current", "700\n");
        write(&root, "a/b/memory.max", "max\n");
        write(&root, "a/b/memory.current", "600\n");
        assert_eq!(of_cgroups(&proc, &root), [HostRoom { bytes: 300, of: "control group /a".into() }]);
        write(&proc, "cgroup", "5:cpu:/\n4:hugetlb,memory:/c\n");
        write(&root, "memory/c/memory.limit_in_bytes", "50");
        write(&root, "memory/c/memory.usage_in_bytes", "60");
        assert_eq!(of_cgroups(&proc, &root), [HostRoom { bytes: 0, of: "control group /c".into() }]);
    }

    #[test]
    fn the_least_room_counts() {
        let fake = tempfile::tempdir().unwrap();
        let mut world = World::here(None);
        world.proc = fake.path().into();
        write(fake.path(), "7/stat", "7 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20");
        write(fake.path(), "7/status", "Uid:\t5\t5\t5\t5\nVmSize:\t   100 kB\n");
        let process = Process::of(&world, 7).unwrap();
        assert_eq!(on_host(&world, &process), None);
        write(fake.path(), "meminfo", "MemTotal: 9 kB\nMemAvailable:      4 kB\n");
        assert_eq!(on_host(&world, &process).unwrap().bytes, 4096);
        write(
            fake.path(),
            "7/limits",
            "Max cpu time  unlimited unlimited seconds\nMax address space  103424 unlimited bytes\n",
        );
        assert_eq!(on_host(&world, &process).unwrap().bytes, 1024);
    }

    #[test]
    fn a_card_must_have_the_bytes_and_a_margin() {
        let lacks = |bytes, before, now| lacks("GPU-1", bytes, before, now, 80 << 30);
        assert_eq!(lacks(40 << 30, 39 << 30, 39 << 30), None);
        assert!(lacks(40 << 30, 40 << 30, 40 << 30).unwrap().contains("40.0 GiB and a margin of 1.0 GiB"));
        assert!(lacks(1 << 30, 0, 2 << 20).unwrap().contains("growing"));
        assert_eq!(lacks(1 << 30, 2 << 20, 0), None, "others gave memory back");
    }
}
