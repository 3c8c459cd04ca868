//! Tests with loom every order in which members of a group can ask for room. The sum of granted bytes is never above
//! the limit. Returned bytes can be granted again. If two ask for the last bytes, one gets them once the other stops
//! asking.

mod atomic {
    pub use gpumem_models::atomic::*;
}

#[path = "../../src/group/sum.rs"]
mod sum;

use atomic::{AtomicU64, Ordering::*};
use gpumem_models::{Arc, model, thread};
use sum::{Answer, MemberBytes, ask, tell};

const LIMIT: u64 = 10;

struct Group {
    members: Vec<MemberBytes>,
    /// Bytes that the driver has given to all.
    real: AtomicU64,
}

fn group(members: usize) -> Arc<Group> {
    let told = |_| MemberBytes { taken: AtomicU64::new(0), reserved: AtomicU64::new(0) };
    Arc::new(Group { members: (0..members).map(told).collect(), real: AtomicU64::new(0) })
}

fn ask_as(group: &Group, own: usize, bytes: u64) -> Answer {
    let others = || group.members.iter().enumerate().filter(|(at, _)| *at != own).map(|(_, told)| (LIMIT, Some(told)));
    ask(&group.members[own], 0, bytes, LIMIT, others)
}

/// Makes a member ask for bytes, and return them if `gives_back`; returns the answer.
fn takes(group: &Group, own: usize, bytes: u64, gives_back: bool) -> Answer {
    let answer = ask_as(group, own, bytes);
    if answer == Answer::Granted {
        assert!(group.real.fetch_add(bytes, SeqCst) + bytes <= LIMIT, "above the limit");
        // As the shim does: counted as taken first, then no longer reserved.
        tell(&group.members[own], bytes, bytes);
        tell(&group.members[own], bytes, 0);
        if gives_back {
            group.real.fetch_sub(bytes, SeqCst);
            tell(&group.members[own], 0, 0);
        }
    }
    answer
}

#[test]
fn two_that_ask_at_once_never_get_more_than_there_is() {
    model(3, || {
        let group = group(2);
        let other = {
            let group = group.clone();
            thread::spawn(move || takes(&group, 1, 6, false))
        };
        let here = takes(&group, 0, 6, false);
        let there = other.join().unwrap();
        assert!([here, there].iter().filter(|answer| **answer == Answer::Granted).count() <= 1);
        // No other member asks any more, so a member that found the group busy gets the remaining bytes.
        if here != Answer::Granted && there != Answer::Granted {
            assert_eq!(takes(&group, 0, 6, false), Answer::Granted);
        }
        assert_eq!(group.real.load(SeqCst), 6);
    });
}

/// A reader finds bytes while they move from reserved to taken.
#[test]
fn bytes_on_their_way_are_found() {
    model(3, || {
        let group = group(2);
        let other = {
            let group = group.clone();
            thread::spawn(move || takes(&group, 1, 6, true))
        };
        takes(&group, 0, 6, true);
        takes(&group, 0, 5, true);
        other.join().unwrap();
        assert_eq!(group.real.load(SeqCst), 0);
        assert_eq!(takes(&group, 0, LIMIT, true), Answer::Granted, "no byte is lost");
    });
}

/// With three preemptions it takes minutes, and holds, too.
#[test]
fn three_that_ask_at_once() {
    model(1, || {
        let group = group(3);
        let others = [1, 2].map(|own| {
            let group = group.clone();
            thread::spawn(move || takes(&group, own, 4, own == 1))
        });
        takes(&group, 0, 4, false);
        for other in others {
            other.join().unwrap();
        }
        assert!(group.real.load(SeqCst) <= LIMIT);
    });
}

/// A smaller limit of one member counts for all.
#[test]
fn the_smallest_limit_counts() {
    model(3, || {
        let group = group(2);
        let told = |limit| {
            let others = || std::iter::once((limit, Some(&group.members[1])));
            ask(&group.members[0], 0, 6, LIMIT, others)
        };
        assert_eq!((told(5), told(0)), (Answer::Full, Answer::Granted));
    });
}
