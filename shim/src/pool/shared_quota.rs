//! What the group of this process may take of a device (`GPUMEM_LIMIT_GROUP`): room is reserved there before the driver is
//! asked, members that ended are taken out, and members that keep idle blocks give them back for one that is short.

use super::context_pool::ContextPool;
use super::in_transit::{FLUSHES, InTransit, are_still_at};
use super::{Pool, all};
use crate::gate;
use crate::group::{Answer, Group, Place};
use crate::process::cancel::sleep;
use crate::process::clock;
use crate::progress::queries;
use crate::records;
use crate::shim::Shim;
use std::time::Duration;

/// The control thread of a member looks so often whether another member is short of memory.
pub(crate) const LISTENS_EVERY: Duration = Duration::from_millis(100);

/// A request that meets others on their way waits so long for them: one of theirs may wait for the driver, or for a
/// processor.
const OTHERS_TAKE: Duration = Duration::from_secs(2);
/// The others are asked so often for one request.
const CALLS: usize = 3;
/// An answer of theirs is waited for so long.
const ANSWERS_TAKE: Duration = Duration::from_secs(2);

/// Bytes that the group has room for, until they are counted as taken.
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

/// The group, and the device of a context's blocks there, which a context without a record has not; `None` where there is
/// no group.
fn place_of(owner: &ContextPool) -> Option<(&'static Group, Option<Place>)> {
    let shim = gate::shim()?;
    let group = shim.group.as_ref()?;
    Some((group, records::grouped::place(shim, owner.record())))
}

impl Pool {
    /// Room that the group has for so many bytes more, after all that can be given back was, if need be. Outside: whether
    /// there is room. Inside: nothing where there is no group.
    pub(super) fn admits_in_group(&'static self, owner: &'static ContextPool, bytes: u64) -> Option<Option<GroupRoom>> {
        let Some((group, place)) = place_of(owner) else { return Some(None) };
        // What could not be counted is not taken.
        let place = place?;
        let start = clock::precise_ns();
        let (mut pause, mut looks, mut flushes, mut calls) = (Duration::from_micros(20), 0, 0, 0);
        loop {
            let InTransit { blocks, requests } = owner.in_transit;
            let before = [(blocks, blocks.ended()), (requests, requests.ended())];
            match group.ask(&place, bytes) {
                Answer::Granted => return Some(Some(GroupRoom { group, place, bytes })),
                Answer::Busy if clock::precise_ns() - start < OTHERS_TAKE.as_nanos() as u64 => {
                    // One of them may have been killed on its way.
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
            // Another member may just be at it, to take out one that ended.
            if looks == 0 {
                looks = 1;
                sleep(Duration::from_millis(1));
                continue;
            }
            if flushes < FLUSHES && self.may_flush(owner) {
                flushes += 1;
                if self.flush(owner.device) > 0 || !are_still_at(&before, self.longest_transit(owner)) {
                    continue;
                }
            }
            if calls == CALLS || queries::capturing() || !others_give(group, &place, bytes) {
                return None;
            }
            calls += 1;
        }
    }
}

/// Has the other members give back what they keep and do not use; whether anybody was asked, and has answered in time.
fn others_give(group: &Group, place: &Place, bytes: u64) -> bool {
    const LOOK_EVERY: Duration = Duration::from_millis(2);
    let start = clock::precise_ns();
    let Some(call) = group.call_for(place, bytes, start) else { return false };
    let waits = || clock::precise_ns() - start < ANSWERS_TAKE.as_nanos() as u64;
    while !group.have_answered(place, call) && waits() {
        sleep(LOOK_EVERY);
    }
    let answered = group.have_answered(place, call);
    group.call_is_over(place);
    answered
}

/// Gives back what this process keeps and does not use, if another member of its group is short of memory.
pub(crate) fn give_to_group(shim: &'static Shim) {
    let Some(group) = &shim.group else { return };
    let Some((call, places)) = group.called() else { return };
    for place in places {
        for pool in all().filter(|pool| pool.vendor == place.vendor) {
            pool.give_back(shim, Some(place.device), true);
            group.keeps(&place, pool.idle_on(place.device));
        }
    }
    group.answer(call);
}

/// What is done once a second: the seat is looked after, and the group is told what is idle.
pub(crate) fn housekeeping(shim: &'static Shim) {
    let Some(group) = &shim.group else { return };
    records::grouped::look_after(shim);
    for pool in all() {
        for owner in pool.owners() {
            if let Some(place) = records::grouped::place(shim, owner.record()) {
                group.keeps(&place, pool.idle_on(owner.device));
            }
        }
    }
}
