//! The disk that the ledger or the trace lies on fills up while the program runs: no touch of a mapped page ends
//! the program, on any file system, also after the pages were read by others and pushed out.
//!
//! These need root, loop devices and the tools that make the file systems; they say so where one is missing.

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Ledger, Ran, artifacts, client, command};
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

const LOOP: &str = "mount -o loop \"$IMAGE\" \"$DISK\"";

const DISKS: &[Disk] = &[
    Disk { name: "ext4, 1 KiB blocks", bytes: "16M", live: 9000, make: "mkfs.ext4 -q -F -m 0 -b 1024", mount: LOOP },
    Disk { name: "ext4, 4 KiB blocks", bytes: "16M", live: 9000, make: "mkfs.ext4 -q -F -m 0 -b 4096", mount: LOOP },
    Disk { name: "ext2", bytes: "16M", live: 9000, make: "mkfs.ext2 -q -F -m 0", mount: LOOP },
    Disk { name: "xfs", bytes: "300M", live: 9000, make: "mkfs.xfs -q -f", mount: LOOP },
    // On a full one each page that was written back takes the kernel a second or more.
    Disk { name: "btrfs", bytes: "128M", live: 20, make: "mkfs.btrfs -q -f", mount: LOOP },
    Disk { name: "tmpfs", bytes: "16M", live: 9000, make: "true", mount: "mount -t tmpfs -o size=16M tmpfs \"$DISK\"" },
    Disk {
        name: "overlayfs on ext4",
        bytes: "16M",
        live: 9000,
        make: "mkfs.ext4 -q -F -m 0",
        mount: "mkdir \"$IMAGE.below\" && mount -o loop \"$IMAGE\" \"$IMAGE.below\" && cd \"$IMAGE.below\" && \
                mkdir low up work && mount -t overlay -o lowerdir=low,upperdir=up,workdir=work over \"$DISK\" && cd /",
    },
];

/// Fills the disk to its last block.
const FILL: &str = "for size in 256k 4k 1k; do cat /dev/zero | dd of=\"$DISK/fill.$size\" bs=$size 2>/dev/null; sync -f \"$DISK\"; done; true";
/// Reads our files as anybody may who comes by.
const LOOK: &str = "cat \"$DISK\"/*.ledger \"$DISK\"/*.trace >/dev/null 2>&1; true";

impl Disk {
    /// Runs the program natively and preloaded with its files there. `None`, and why on stderr, where it cannot be.
    fn run(&self, trace: bool) -> Option<(Ran, Ran, Scratch)> {
        let scratch = Scratch::new();
        let disk = scratch.path().join("disk");
        std::fs::create_dir(&disk).expect("a folder");
        let script = format!(
            "truncate -s {} \"$IMAGE\" && {} \"$IMAGE\" >/dev/null 2>&1 && {{ {}; }} 2>/dev/null || exit 99
             \"$@\"; code=$?; cp \"$DISK\"/*.ledger \"$DISK\"/*.trace \"$SAVED\" 2>/dev/null; exit $code",
            self.bytes,
            if self.make == "true" { "true #" } else { self.make },
            self.mount
        );
        let script = script.replace("true # \"$IMAGE\" >/dev/null 2>&1", "true");
        let mut program = client("full_disk").arg(self.live.to_string()).env("SIM_DEVICE_MEM", "1G");
        program = program.env("IMAGE", scratch.path().join("image")).env("DISK", &disk).env("SAVED", scratch.path());
        program = program.env("FILL", FILL).env("LOOK", LOOK).dir(&disk);
        if trace {
            program = program.env("GPUMEM_RECORD", disk.join("all.trace"));
        }
        let program = program.shell(&format!("exec unshare -m sh -c '{script}' sh \"$@\""));
        let native = program.native();
        let _ = std::fs::remove_file(scratch.path().join("image"));
        let _ = std::fs::remove_dir(scratch.path().join("image.below"));
        if native.code == 99 || native.code == 1 {
            eprintln!("{}: not root, no loop device, or no tool to make it with: skipped", self.name);
            return None;
        }
        Some((native.ok(), program.preloaded(), scratch))
    }
}

fn ledger_in(dir: &Path) -> Option<Ledger> {
    Ledger::all(dir).pop()
}

#[test]
fn a_disk_that_fills_up_ends_recording_and_not_the_program() {
    for disk in DISKS {
        for trace in [false, true] {
            let Some((native, ran, saved)) = disk.run(trace) else { continue };
            assert_eq!((ran.code, &ran.out), (0, &native.out), "{}, trace {trace}: {}", disk.name, ran.err);
            let Some(ledger) = ledger_in(saved.path()) else {
                // Where changes cannot be written in place, nothing is recorded, and that is told.
                assert!(ran.err.contains("nothing is recorded"), "{}: {}", disk.name, ran.err);
                eprintln!("{}: {}", disk.name, ran.err.trim());
                continue;
            };
            // Counts go on when there is no more room for records.
            assert_eq!(ledger.counter(counters::allocs(AllocKind::Device)), 4 * disk.live, "{}", disk.name);
            assert_eq!(ledger.counter(counters::frees(AllocKind::Device)), 4 * disk.live, "{}", disk.name);
            let dropped = ledger.counter(counters::DROPPED_RECORDS);
            assert!(dropped > 0 || disk.live < 1000, "{}: the disk was not full", disk.name);
            assert_eq!(ledger.snapshot.torn, 0, "{}", disk.name);
            eprintln!("{}, trace {trace}: {dropped} dropped", disk.name);
        }
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
        eprintln!("not root: /dev/shm cannot be taken away");
        return;
    }
    if artifacts::repository().starts_with("/tmp") {
        eprintln!("the programs lie in /tmp, which is to be another");
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
