//! Memory limit of this process's group (`GPUMEM_LIMIT_GROUP`). Room is reserved in the group before the driver is
//! asked. Ended members are removed. Members that keep idle blocks give them back for a member that is short of memory.

use super::context_pool::ContextPool;
use super::in_transit::{FLUSHES, InTransit};
use super::releaser::Releaser;
use crate::gate;
use crate::group::{Answer, Group, Place};
use crate::process::cancel::{poll, sleep};
use crate::process::clock;
use crate::progress::queries;
use crate::records;
use std::time::Duration;

/// Longest wait of a request for other members' requests in transit. Such a request may wait for the driver, or for a
/// processor.
const OTHERS_TAKE: Duration = Duration::from_secs(2);
/// The most times that the other members are asked for one request.
const CALLS: usize = 3;
/// Longest wait for the other members' answer.
const ANSWERS_TAKE: Duration = Duration::from_secs(2);

/// Bytes that are reserved in the group until they are counted as taken.
pub(crate) struct GroupRoom {
    group: &'static Group,
    place: Place,
    bytes: u64,
}

impl Drop for GroupRoom {
    fn drop(&mut self) {
        self.group.settle(&self.place, self.bytes);
    }
}

/// Returns the group, and the device of a context as the group knows it. The device is `None` for a context without a
/// record. The result is `None` if there is no group.
fn place_of(context_pool: &ContextPool) -> Option<(&'static Group, Option<Place>)> {
    let shim = gate::shim()?;
    let group = shim.group.as_ref()?;
    Some((group, records::grouped::place(shim, context_pool.record())))
}

/// Reserves room for `bytes` more in the group. Gives back all idle memory that can go back first, if needed. The outer
/// `Option` is `None` if there is no room. The inner one is `None` if there is no group.
pub(super) fn admits(
    releaser: &'static Releaser,
    context_pool: &'static ContextPool,
    bytes: u64,
) -> Option<Option<GroupRoom>> {
    let Some((group, place)) = place_of(context_pool) else { return Some(None) };
    // Bytes that could not be counted are refused.
    let place = place?;
    let start = clock::precise_ns();
    let (mut pause, mut looks, mut flushes, mut calls) = (Duration::from_micros(20), 0, 0, 0);
    loop {
        let InTransit { blocks, requests } = context_pool.in_transit;
        let before = [(blocks, blocks.ended()), (requests, requests.ended())];
        match group.ask(&place, bytes) {
            Answer::Granted => return Some(Some(GroupRoom { group, place, bytes })),
            Answer::Busy if clock::precise_ns() - start < OTHERS_TAKE.as_nanos() as u64 => {
                // A member may have been killed while its request was in transit.
                if !group.reap() {
                    sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(5)) + Duration::from_nanos(start % 20_000);
                }
                continue;
            }
            Answer::Busy | Answer::Full => {}
        }
        if group.reap() {
            continue;
        }
        // Another member may be removing an ended one now.
        if looks == 0 {
            looks = 1;
            sleep(Duration::from_millis(1));
            continue;
        }
        if flushes < FLUSHES {
            flushes += 1;
            if releaser.may_have_made_room(context_pool, &before) {
                continue;
            }
        }
        if calls == CALLS || queries::capturing() || !others_give(group, &place, bytes) {
            return None;
        }
        calls += 1;
    }
}

/// Asks the other members to give back unused memory. Returns true if some member was asked and answered before the
/// timeout.
fn others_give(group: &Group, place: &Place, bytes: u64) -> bool {
    const LOOK_EVERY: Duration = Duration::from_millis(2);
    let Some(call) = group.call_for(place, bytes, clock::precise_ns()) else { return false };
    let answered = poll(ANSWERS_TAKE, LOOK_EVERY, || group.have_answered(place, call));
    group.call_ended(place);
    answered
}
