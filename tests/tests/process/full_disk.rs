//! The disk that the ledger or the trace lies on fills up while the program runs: no touch of a mapped page ends
//! the program, on any file system, also after the pages were read by others and pushed out.
//!
//! These need root, loop devices and the tools that make the file systems; they say so where one is missing.

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Ledger, Program, Ran, artifacts, client, command};
use gpumem_tests::skipped::{ROOT, skipped};
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use std::path::Path;

/// A disk: how it is made and mounted at $DISK, from a file at $IMAGE.
struct Disk {
    name: &'static str,
    /// Bytes of the image.
    bytes: &'static str,
    /// Live allocations of the program.
    live: u64,
    make: &'static str,
    mount: &'static str,
}

const TMPFS: &str = "true";
const LOOP: &str = "mount -o loop \"$IMAGE\" \"$DISK\"";
/// Mounts an overlay whose upper directory lies on the disk; what is given is done to that one first.
macro_rules! over {
    ($change:literal) => {
        concat!(
            "mkdir \"$IMAGE.below\" && mount -o loop \"$IMAGE\" \"$IMAGE.below\" && cd \"$IMAGE.below\" && ",
            "mkdir low up work && ",
            $change,
            " && mount -t overlay -o lowerdir=low,upperdir=up,workdir=work over \"$DISK\" && cd /"
        )
    };
}
const OVER: &str = over!("true");
/// Compressed data is never overwritten in place.
const OVER_COMPRESSED: &str = over!("chattr +c up");

const DISKS: &[Disk] = &[
    Disk { name: "ext4, 1 KiB blocks", bytes: "16M", live: 9000, make: "mkfs.ext4 -q -F -m 0 -b 1024", mount: LOOP },
    Disk { name: "ext4, 4 KiB blocks", bytes: "16M", live: 9000, make: "mkfs.ext4 -q -F -m 0 -b 4096", mount: LOOP },
    Disk { name: "ext2", bytes: "16M", live: 9000, make: "mkfs.ext2 -q -F -m 0", mount: LOOP },
    Disk { name: "xfs", bytes: "300M", live: 9000, make: "mkfs.xfs -q -f", mount: LOOP },
    // On a full one each page that was written back takes the kernel a second or more.
    Disk { name: "btrfs", bytes: "128M", live: 20, make: "mkfs.btrfs -q -f", mount: LOOP },
    Disk { name: "tmpfs", bytes: "16M", live: 9000, make: TMPFS, mount: "mount -t tmpfs -o size=16M tmpfs \"$DISK\"" },
];

const OVERLAYS: &[Disk] = &[
    Disk { name: "overlay on ext4", bytes: "16M", live: 9000, make: "mkfs.ext4 -q -F -m 0", mount: OVER },
    Disk {
        name: "overlay on compressed btrfs",
        bytes: "128M",
        live: 20,
        make: "mkfs.btrfs -q -f",
        mount: OVER_COMPRESSED,
    },
];

const OVER_BTRFS: Disk =
    Disk { name: "overlay on btrfs", bytes: "128M", live: 20, make: "mkfs.btrfs -q -f", mount: OVER };

/// Fills the disk to its last block, and fails where it is not full then.
const FILL: &str = "for size in 256k 4k 1k; do cat /dev/zero | dd of=\"$DISK/fill.$size\" bs=$size 2>/dev/null; sync -f \"$DISK\"; done
                    ! dd if=/dev/zero of=\"$DISK/more\" bs=64k count=1 conv=fsync 2>/dev/null";
/// Reads our files as anybody may who comes by.
const LOOK: &str = "cat \"$DISK\"/*.ledger \"$DISK\"/*.trace >/dev/null 2>&1; true";

/// True if a shell command succeeds.
fn succeeds(script: &str) -> bool {
    command("sh").args(["-c", script]).native().code == 0
}

fn is_root() -> bool {
    succeeds("unshare -m true 2>/dev/null")
}

fn has_loop_devices() -> bool {
    succeeds("test -b \"$(losetup -f 2>/dev/null)\"")
}

/// Requirement for a file system that the kernel lacks.
const KERNEL: &str = "a kernel that has it";

/// The package with the command that makes a file system.
fn package(tool: &str) -> &str {
    match tool {
        "mkfs.btrfs" => "btrfs-progs",
        "mkfs.xfs" => "xfsprogs",
        _ => "e2fsprogs",
    }
}

impl Disk {
    /// Returns the reason why the machine cannot try it, and the package or right that changes that.
    fn lacks(&self) -> Option<(String, String)> {
        let tool = self.make.split(' ').next().unwrap_or_default();
        let lack = |why: &str, brings: &str| Some((format!("{}: {why}", self.name), brings.to_owned()));
        match () {
            () if !is_root() => lack("not root", ROOT),
            () if self.make != TMPFS && !has_loop_devices() => lack("no loop device", ROOT),
            () if !succeeds(&format!("command -v {tool}")) => {
                lack(&format!("no {tool}"), &format!("package {}", package(tool)))
            }
            () => None,
        }
    }

    /// True if the running kernel knows the file systems. Asked after a mount, which makes the kernel load what it can.
    fn is_known(&self) -> bool {
        let known = std::fs::read_to_string("/proc/filesystems").expect("what the kernel knows");
        let knows = |name: &str| known.lines().any(|line| line.split_whitespace().last() == Some(name));
        let made = self.make.split(['.', ' ']).nth(1).unwrap_or("tmpfs");
        knows(made) && (!self.name.starts_with("overlay") || knows("overlay"))
    }

    /// A program with its disk, whose files are saved to `scratch`.
    fn shell(&self, program: Program, scratch: &Scratch) -> Program {
        let disk = scratch.path().join("disk");
        std::fs::create_dir(&disk).expect("a folder");
        let make =
            if self.make == TMPFS { TMPFS.to_owned() } else { format!("{} \"$IMAGE\" >/dev/null 2>&1", self.make) };
        let script = format!(
            "rm -rf \"$IMAGE\" \"$IMAGE.below\"; truncate -s {} \"$IMAGE\" && {make} && {{ {}; }} 2>/dev/null || exit 99
             \"$@\"; code=$?; cp \"$DISK\"/*.ledger \"$DISK\"/*.trace \"$SAVED\" 2>/dev/null; exit $code",
            self.bytes, self.mount
        );
        let program = program.env("SIM_DEVICE_MEM", "1G").env("FILL", FILL).env("LOOK", LOOK);
        let program =
            program.env("IMAGE", scratch.path().join("image")).env("DISK", &disk).env("SAVED", scratch.path());
        program.shell(&format!("exec unshare -m sh -c '{script}' sh \"$@\""))
    }

    /// Runs the program natively and preloaded with its files there. `None`, and why on stderr, where it cannot be.
    fn run(&self, trace: bool) -> Option<(Ran, Ran, Scratch)> {
        if let Some((lacks, brings)) = self.lacks() {
            skipped(lacks, &brings);
            return None;
        }
        let scratch = Scratch::new();
        let disk = scratch.path().join("disk");
        let mut program = client("full_disk").arg(self.live.to_string()).dir(&disk);
        if trace {
            program = program.env("GPUMEM_ALLOC_TRACE", disk.join("all.trace"));
        }
        let program = self.shell(program, &scratch);
        let native = program.native();
        if native.code == 99 && !self.is_known() {
            skipped(format_args!("{}: the kernel does not know it", self.name), KERNEL);
            return None;
        }
        assert_eq!(native.code, 0, "{}: {}", self.name, native.err);
        Some((native, program.preloaded(), scratch))
    }
}

fn ledger_in(dir: &Path) -> Option<Ledger> {
    Ledger::all(dir).pop()
}

#[test]
fn a_disk_that_fills_up_ends_recording_and_not_the_program() {
    fill_up(DISKS, &[false, true]);
}

/// An overlay is looked through once, when a file is made: with both files there is enough.
#[test]
fn an_overlay_whose_disk_fills_up_ends_recording_and_not_the_program() {
    fill_up(OVERLAYS, &[true]);
}

/// The disks wait for the kernel most of the time, so all are filled at once.
fn fill_up(disks: &[Disk], traces: &[bool]) {
    let one = &|disk: &Disk| traces.iter().filter(|&&trace| fill(disk, trace)).count();
    let tried: usize = std::thread::scope(|scope| {
        let all: Vec<_> = disks.iter().map(|disk| scope.spawn(move || (disk.make, one(disk)))).collect();
        let tried = all.into_iter().map(|tries| tries.join().unwrap_or_else(|why| std::panic::resume_unwind(why)));
        tried.filter(|(make, _)| *make != TMPFS).map(|(_, tried)| tried).sum()
    });
    assert!(tried > 0 || !is_root() || !has_loop_devices(), "nothing was tried, and it could have been");
}

/// Fills a disk under a program. Returns true if it could be tried.
fn fill(disk: &Disk, trace: bool) -> bool {
    let Some((native, ran, saved)) = disk.run(trace) else { return false };
    assert_eq!((ran.code, &ran.out), (0, &native.out), "{}, trace {trace}: {}", disk.name, ran.err);
    let Some(ledger) = ledger_in(saved.path()) else {
        // Where changes cannot be written in place, nothing is recorded, and that is told.
        assert!(ran.err.contains("nothing is recorded"), "{}: {}", disk.name, ran.err);
        eprintln!("{}: {}", disk.name, ran.err.trim());
        return true;
    };
    // Counts go on when there is no more room for records.
    assert_eq!(ledger.counter(counters::allocs(AllocKind::Device)), 4 * disk.live, "{}", disk.name);
    assert_eq!(ledger.counter(counters::frees(AllocKind::Device)), 4 * disk.live, "{}", disk.name);
    let dropped = ledger.counter(counters::DROPPED_RECORDS);
    // So few need no more room; that the disk was full is what $FILL tells.
    assert!(dropped > 0 || disk.live < 1000, "{}: the disk was not full", disk.name);
    assert_eq!(ledger.snapshot.torn, 0, "{}", disk.name);
    eprintln!("{}, trace {trace}: {dropped} dropped", disk.name);
    true
}

/// Whoever named no directory gets none on btrfs, where a full disk would hold the program up; nor on an overlay
/// whose files lie there.
#[test]
fn where_a_full_disk_holds_up_nothing_is_put_unasked() {
    for disk in DISKS.iter().chain([&OVER_BTRFS]).filter(|disk| disk.name.contains("btrfs")) {
        if let Some((lacks, brings)) = disk.lacks() {
            skipped(lacks, &brings);
            continue;
        }
        let scratch = Scratch::new();
        let found = "mount -t tmpfs tmpfs /dev/shm && \"$@\" && find \"$DISK\" /dev/shm -name \"*.ledger\" >&2";
        let many = client("many").arg("50").without("GPUMEM_DIR");
        let many = many.env("XDG_RUNTIME_DIR", scratch.path().join("disk")).shell(found);
        let ran = disk.shell(many, &scratch).preloaded();
        if ran.code == 99 && !disk.is_known() {
            skipped(format_args!("{}: the kernel does not know it", disk.name), KERNEL);
            continue;
        }
        let in_memory = ran.err.starts_with("/dev/shm/") && ran.err.lines().count() == 1;
        assert!(ran.code == 0 && in_memory, "{}: {} {}", disk.name, ran.code, ran.err);
    }
}

/// The file of a ledger has no holes, wherever it lies, and is about as long as what it holds.
#[test]
fn a_ledger_has_no_holes() {
    use std::os::unix::fs::MetadataExt;
    let ran = client("many").arg("5000").preloaded().ok();
    let what = std::fs::metadata(&ran.ledger().path).expect("the ledger");
    assert!(what.blocks() * 512 >= what.len(), "{} of {} bytes are there", what.blocks() * 512, what.len());
    assert!(what.len() < 4 << 20, "{} bytes", what.len());
    ran.ledger().agrees_with(&ran.json());
}

/// Whoever named no directory gets one in memory, before one on a disk.
#[test]
fn memory_is_preferred() {
    let found = command("unshare").args(["-m", "true"]).native().code == 0;
    if !found {
        skipped("/dev/shm can be taken away by root alone", ROOT);
        return;
    }
    if artifacts::repository().starts_with("/tmp") {
        skipped("the programs lie in /tmp, which is to be another", "a checkout elsewhere");
        return;
    }
    // A /dev/shm and a /tmp of its own; XDG_RUNTIME_DIR is not set.
    let scratch = Scratch::new();
    let fresh = "mount -t tmpfs -o size=64M tmpfs /dev/shm";
    let cases = [
        ("true", "/dev/shm"),
        // Too small for a ledger and for what the program may want there.
        ("mount -o remount,size=2M /dev/shm", "$SAVED/tmp"),
        ("mkdir /dev/shm/gpumem-$(id -u) && chmod 777 /dev/shm/gpumem-$(id -u)", "$SAVED/tmp"),
        ("mount -o remount,ro /dev/shm", "$SAVED/tmp"),
    ];
    for (change, place) in cases {
        let script = format!(
            "{fresh} && {{ {change}; }} && mkdir -p $SAVED/tmp && mount --bind $SAVED/tmp /tmp || exit 99
             \"$@\" || exit 1; ls {place}/gpumem-$(id -u)/*.ledger >&2"
        );
        let place = place.replace("$SAVED/tmp", "/tmp");
        let script = script.replace("ls $SAVED/tmp/", "ls /tmp/");
        let many = client("many").arg("50").without("GPUMEM_DIR").env("SAVED", scratch.path());
        let ran = many.shell(&format!("exec unshare -m sh -c '{script}' sh \"$@\"")).preloaded().ok();
        assert!(ran.err.contains(&place) && ran.err.contains(".ledger"), "{change}: {}", ran.err);
        assert_eq!(ran.ours(), [""; 0], "{change}");
    }
}
