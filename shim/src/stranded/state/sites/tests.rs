//! Bookkeeping of requests, frees and refusals.

use super::*;

const MIB: u64 = 1 << 20;
const OURS: bool = true;
const DRIVERS: bool = false;

fn asker(stack: StackRef, tid: u32) -> Asker {
    Asker { stack, pc: 0x5000, context: 1, tid }
}

/// Makes a block after work was given.
fn add(sites: &mut StrandedSites, asker: &Asker, addr: u64, bytes: u64, now_ns: u64) -> Option<Report> {
    sites.work_given();
    sites.made(asker, addr, bytes, true, now_ns).1
}

fn key(stack: StackRef) -> Key {
    (u64::from(stack), 1)
}

/// Returns a site that strands: blocks of 100 to 119 MiB at these addresses.
fn stranding(stack: StackRef) -> (StrandedSites, Vec<u64>) {
    let mut sites = StrandedSites::default();
    let addresses: Vec<u64> = (0..20).map(|n| (n + 1) << 30).collect();
    for (n, &addr) in addresses.iter().enumerate() {
        add(&mut sites, &asker(stack, 1), addr, (100 + n as u64) * MIB, n as u64);
    }
    (sites, addresses)
}

#[test]
fn what_is_stranded_is_counted_reported_by_doublings_and_gone_with_its_frees() {
    let mut sites = StrandedSites::default();
    let mut reports = Vec::new();
    for n in 0..40 {
        reports.extend(add(&mut sites, &asker(1, 1), (n + 1) << 30, (100 + n) * MIB, n));
    }
    assert_eq!(sites.stranded, (100..139).sum::<u64>() * MIB);
    assert!(reports.windows(2).all(|pair| pair[1].bytes >= 2 * pair[0].bytes) && reports.len() == 4, "{reports:?}");
    for n in 0..40 {
        assert!(sites.freed((n + 1) << 30) && !sites.freed((n + 1) << 30));
    }
    assert_eq!((sites.stranded, sites.blocks.len()), (0, 0));
    assert_eq!(sites.asked(&asker(1, 1), 150 * MIB), Asking::Plain);
}

#[test]
fn a_refusal_that_is_followed_by_frees_and_the_same_request_may_come_again() {
    let (mut sites, made) = stranding(7);
    assert!(matches!(sites.asked(&asker(7, 1), 120 * MIB), Asking::Growth(..)));
    sites.refused(&asker(7, 1), 120 * MIB, OURS, true);
    assert!(sites.pressed(1) && !sites.pressed(2) && sites.waits(key(7)));
    // Another thread's request says nothing about this thread's.
    assert_eq!(sites.asked(&asker(9, 2), 120 * MIB), Asking::Plain);
    assert!(made.iter().all(|&addr| sites.freed(addr)));
    // The second try comes from another line. Its block counts for the first line's site.
    assert_eq!(sites.asked(&asker(8, 1), 120 * MIB), Asking::Retry { inside: true });
    add(&mut sites, &asker(8, 1), 99 << 30, 120 * MIB, 50);
    assert!(!sites.pressed(1));
    let known = sites.get(key(7)).unwrap();
    assert!(known.retries && !known.barred && known.blocks.len() == 1);
    // Once it strands more than it requests again, it may be refused again.
    assert_eq!(sites.asked(&asker(7, 1), 126 * MIB), Asking::Plain);
    add(&mut sites, &asker(7, 1), 98 << 30, 126 * MIB, 51);
    assert_eq!(sites.asked(&asker(7, 1), 132 * MIB), Asking::Plain, "nothing could use the last block yet");
    sites.work_given();
    assert!(matches!(sites.asked(&asker(7, 1), 132 * MIB), Asking::Growth(..)));
}

#[test]
fn a_refusal_in_vain_is_the_last() {
    for (frees, again) in [(false, 120), (true, 77)] {
        let (mut sites, made) = stranding(7);
        sites.refused(&asker(7, 1), 120 * MIB, OURS, true);
        if frees {
            sites.freed(made[0]);
        }
        assert_eq!(sites.asked(&asker(7, 1), again * MIB), Asking::InVain(key(7)));
        let known = sites.get(key(7)).unwrap();
        assert!(known.barred && !known.retries);
        assert!(sites.worst().is_none(), "nobody may press it any more");
    }
}

/// A refused thread may never ask for as much again, or may end.
#[test]
fn a_refusal_waits_for_a_while() {
    let (mut sites, _) = stranding(7);
    for (ours, waits_from) in [(DRIVERS, 5), (OURS, 5 + LONGEST_WAIT_NS)] {
        sites.refused(&asker(7, 1), 120 * MIB, ours, true);
        assert_eq!(sites.expired(waits_from), []);
        assert_eq!(sites.expired(waits_from + LONGEST_WAIT_NS - 1), []);
        assert_eq!((sites.refusals(), sites.get(key(7)).unwrap().barred), (1, false));
        let in_vain = sites.expired(waits_from + LONGEST_WAIT_NS);
        assert_eq!((in_vain, sites.refusals()), (vec![key(7); usize::from(ours)], 0));
        assert_eq!(sites.get(key(7)).unwrap().barred, ours);
    }
}

#[test]
fn what_a_program_does_when_the_driver_runs_out_is_remembered_and_held_against_nobody() {
    let (mut sites, made) = stranding(7);
    sites.refused(&asker(7, 1), 120 * MIB, DRIVERS, true);
    assert!(matches!(sites.asked(&asker(7, 1), 120 * MIB), Asking::Growth(..)), "nothing was freed");
    assert!(!sites.get(key(7)).unwrap().barred);
    sites.refused(&asker(7, 1), 120 * MIB, DRIVERS, true);
    sites.freed(made[3]);
    assert_eq!(sites.asked(&asker(7, 1), 120 * MIB), Asking::Retry { inside: true });
    assert!(sites.get(key(7)).unwrap().retries);
}

#[test]
fn scratch_is_what_is_asked_for_inside_computations() {
    let mut sites = StrandedSites::default();
    for n in 0..10 {
        sites.made(&asker(1, 1), (n + 1) << 30, MIB, true, n);
        sites.made(&asker(2, 1), (n + 101) << 30, MIB, n.is_multiple_of(2), n);
    }
    assert!(sites.of(&asker(1, 1)).unwrap().is_scratch() && !sites.of(&asker(2, 1)).unwrap().is_scratch());
    assert_eq!(sites.kept(), FxHashSet::from_iter([2]));
}

#[test]
fn a_site_of_many_blocks_is_bounded() {
    let mut sites = StrandedSites::default();
    for n in 0..2 * BLOCKS_OF_SITE as u64 {
        sites.made(&asker(1, 1), (n + 1) << 30, MIB, true, n);
    }
    assert_eq!((sites.blocks.len(), sites.of(&asker(1, 1)).unwrap().blocks.len()), (BLOCKS_OF_SITE, BLOCKS_OF_SITE));
    assert!(sites.freed(1 << 30) && !sites.freed((2 * (BLOCKS_OF_SITE as u64)) << 30));
}

#[test]
fn everything_is_bounded_and_ends_with_its_context() {
    let mut sites = StrandedSites::default();
    for n in 0..3 * BLOCKS as u64 {
        sites.made(&asker(n as u32 + 1, 1), (n + 1) << 21, MIB, true, n);
        sites.refused(&asker(n as u32 + 1, n as u32), MIB, OURS, true);
    }
    assert!(sites.known.len() <= SITES && sites.blocks.len() <= BLOCKS && sites.refusals() <= REFUSALS);
    assert_eq!(sites.end_context(1).len(), SITES);
    assert_eq!((sites.known.len(), sites.blocks.len(), sites.refusals(), sites.stranded), (0, 0, 0, 0));
}

#[test]
fn what_is_used_is_not_stranded() {
    let (mut sites, made) = stranding(7);
    let before = sites.stranded;
    let uses: Vec<(u64, u64)> = made[..10].iter().map(|&addr| (addr, 1000)).collect();
    sites.used(&uses);
    sites.used(&[(made[0] + 500 * MIB, 2000)]);
    sites.freed(made[19]);
    assert!(sites.stranded < before - 1000 * MIB, "ten blocks are in use");
}

#[test]
fn uses_matter_once_a_site_may_strand() {
    let mut sites = StrandedSites::default();
    let block = |n: u64| n << 30..(n << 30) + (100 + 6 * n) * MIB;
    for n in 0..6 {
        let told = match n {
            ..3 => None,
            3 => Some(Watched::All([2, 1, 0].map(block).into())),
            _ => Some(Watched::Came(block(n - 1))),
        };
        assert_eq!((sites.newly_watched(), sites.newly_watched()), (told, None), "{n}");
        add(&mut sites, &asker(1, 1), n << 30, (100 + 6 * n) * MIB, n);
        sites.made(&asker(2, 1), (n + 100) << 30, 64 * MIB, true, n);
    }
    assert_eq!(sites.newly_watched(), Some(Watched::Came(block(5))));
    sites.freed(2 << 30);
    sites.freed(100 << 30);
    assert_eq!(sites.newly_watched(), Some(Watched::Went(2 << 30)));
    sites.freed(5 << 30);
    sites.freed(1 << 30);
    assert_eq!(sites.newly_watched(), Some(Watched::All([4, 3, 0].map(block).into())), "two at once");
    sites.end_context(1);
    assert_eq!(sites.newly_watched(), Some(Watched::All(Vec::new())));
}
