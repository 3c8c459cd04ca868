//! `gpumem share`: members take turns on a card that cannot hold them all, whoever is killed meanwhile.

use super::park::Machine;
use gpumem_tests::group::tell;
use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{client, command};
use gpumem_tests::skipped::skipped;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const NAME: &str = "t";
/// The card, and what each member takes of it, MiB. Two fit.
const CARD: u64 = 64;
const EACH: u64 = 22;

/// A card, its service, and its members.
struct Shared {
    machine: Machine,
    service: Child,
    members: Vec<Running>,
}

impl Shared {
    fn new(members: usize) -> Self {
        let machine = Machine::new();
        let service = Self::serve(&machine);
        let mut shared = Self { machine, service, members: Vec::new() };
        for _ in 0..members {
            let member = shared.join();
            shared.members.push(member);
        }
        shared
    }

    fn serve(machine: &Machine) -> Child {
        let words = ["share", NAME, "--quantum", "1s", "--margin", "4MiB", "--lock-time", "20s"];
        let mut command = machine.command(&words);
        let service = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("gpumem starts");
        wait_for("its socket", || machine.ledgers().join(format!("{NAME}.share")).exists());
        service
    }

    /// Starts a member and lets it take its part, which may need the part of another.
    fn join(&self) -> Running {
        let program = self.machine.on(client("checkpoint")).env("SIM_DEVICE_MEM", format!("{CARD}M"));
        let mut member = program
            .env("SIM_CONTEXT_MEM", "0")
            .env("GPUMEM_SHARE", NAME)
            .env("GPUMEM_SHARE_IDLE", "500ms")
            .env("GPUMEM_POOL", "0")
            .start(true);
        member.says("ready");
        assert_eq!(tell(&mut member, &format!("alloc {EACH}")), "0");
        member
    }

    /// The most that was ever in use, bytes: the second word of the card's file.
    fn highest(&self) -> u64 {
        let words = std::fs::read(self.machine.dir().join("card")).expect("the card");
        u64::from_ne_bytes(words[8..16].try_into().expect("a word"))
    }

    fn end_service(&mut self) {
        self.service.kill().expect("it runs");
        let _ = self.service.wait();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

#[test]
fn members_take_turns_on_a_card_that_cannot_hold_them() {
    let mut shared = Shared::new(4);
    for _ in 0..2 {
        for at in 0..4 {
            assert_eq!(tell(&mut shared.members[at], "check"), "0", "member {at}");
        }
    }
    assert!(shared.highest() <= CARD << 20, "{}", shared.highest());
    let counts = std::fs::read(shared.machine.ledgers().join(format!("{NAME}.share.json"))).expect("its counts");
    let counts: serde_json::Value = serde_json::from_slice(&counts).expect("JSON");
    assert!(counts["parks"].as_u64() > Some(4) && counts["failed"] == 0, "{counts:#}");
    // A second service of the name is refused, and the first goes on.
    let second = shared.machine.gpumem(&["share", NAME]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("another service shares as t already"), "{second:?}");
    // A member asks for more than the card has: it gets the driver's own answer.
    assert_eq!(tell(&mut shared.members[0], &format!("alloc {}", CARD + 1)), "2");
}

/// The service is in a container, and a process outside of it asks: the kernel does not tell the service who asks.
#[test]
fn a_process_that_the_service_cannot_see_is_told_so() {
    const APART: [&str; 6] = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--"];
    if command("unshare").args(APART).arg("true").native().code != 0 {
        skipped("a pid namespace of its own cannot be made", "user namespaces, or root");
        return;
    }
    let machine = Machine::new();
    let inner = machine.command(&["share", NAME]);
    let mut outer = Command::new("unshare");
    outer.args(APART).arg(inner.get_program()).args(inner.get_args());
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut service = outer.stdout(Stdio::null()).spawn().expect("unshare starts");
    let socket = machine.ledgers().join(format!("{NAME}.share"));
    let mut answer = String::new();
    wait_for("its socket", || {
        UnixStream::connect(&socket).is_ok_and(|mut stream| {
            stream.write_all(b"wake 1\n").and_then(|()| BufReader::new(stream).read_line(&mut answer)).is_ok()
        })
    });
    service.kill().and_then(|()| service.wait()).expect("it runs");
    assert!(answer.starts_with("no ") && answer.contains("another container"), "{answer:?}");
}

/// A number from 0 to `below`, from a seed.
fn random(seed: &mut u64, below: usize) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed % below as u64) as usize
}

/// Members are asked, one to three at a time, and meanwhile the service or a member is killed.
fn schedule(number: u64, steps: usize, members: usize) {
    let mut seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut shared = Shared::new(members);
    for step in 0..steps {
        let (first, count) = (random(&mut seed, members), 1 + random(&mut seed, 3));
        let chosen: Vec<usize> = (0..count).map(|more| (first + more) % members).collect();
        let before: Vec<_> = shared.members.iter().map(|member| member.stdout().lines().count()).collect();
        chosen.iter().for_each(|&at| shared.members[at].tell("check"));
        std::thread::sleep(Duration::from_millis(random(&mut seed, 1500) as u64));
        let (what, killed) = (random(&mut seed, 3), random(&mut seed, members));
        match what {
            0 => {
                shared.end_service();
                std::thread::sleep(Duration::from_millis(random(&mut seed, 1500) as u64));
                shared.service = Shared::serve(&shared.machine);
            }
            1 => {
                shared.members[killed].signal(libc::SIGKILL);
                wait_for("its end", || shared.members[killed].reap());
            }
            _ => {}
        }
        for &at in chosen.iter().filter(|&&at| what != 1 || at != killed) {
            let member = &shared.members[at];
            wait_for("an answer", || member.stdout().lines().count() > before[at]);
            assert_eq!(member.stdout().lines().last(), Some("check: 0"), "schedule {number}, step {step}, member {at}");
        }
        if what == 1 {
            shared.members[killed] = shared.join();
        }
        assert!(shared.highest() <= CARD << 20, "schedule {number}, step {step}: {}", shared.highest());
    }
    for at in 0..members {
        assert_eq!(tell(&mut shared.members[at], "check"), "0", "schedule {number}, member {at} at the end");
    }
}

/// `SHARE_SCHEDULES`, `SHARE_STEPS` and `SHARE_MEMBERS` choose more, `SHARE_SEED` others.
#[test]
fn whoever_is_killed_no_member_is_stuck_and_no_byte_is_lost() {
    let of = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let first = of("SHARE_SEED", 7);
    for number in first..first + of("SHARE_SCHEDULES", 1) {
        schedule(number, of("SHARE_STEPS", 8) as usize, of("SHARE_MEMBERS", 4) as usize);
        println!("schedule {number}: nobody was stuck, and no byte was lost");
    }
}
