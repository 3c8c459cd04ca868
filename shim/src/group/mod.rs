//! This process as a member of a group: processes that share one limit (`GPUMEM_LIMIT_GROUP`).
//!
//! * [`sum`]: checks for room in the group, without a lock. [`words`]: what members tell each other. [`seat`]: this
//!   process's slot in the file, and cleanup after ended members.
//! * This file: tells the group what this process takes, and handles shortage of memory.
//!
//! The group is told of all bytes before the driver is asked for them, including bytes that later lie idle in the pool.
//! A request that the pool serves needs no check, since its bytes already count as taken.

mod seat;
mod sum;
mod words;

mod atomic {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

pub(crate) use sum::Answer;

use crate::ledger::file;
use crate::process::lock::lock;
use gpumem_abi::types::Device;
use gpumem_wire::group::{DEVICES, SLOTS};
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::{GroupLimit, Settings};
use gpumem_wire::units;
use seat::{Address, Seat, SeatError};
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};
use std::sync::{Mutex, MutexGuard};
use words::{DeviceWords, SlotWords, as_words};

/// A device, as known to this process and to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub vendor: Vendor,
    pub device: Device,
    pub uuid: [u8; 16],
}

/// This process in its group.
pub(crate) struct Group {
    pub spec: GroupLimit,
    at: Address,
    inner: Mutex<Inner>,
    /// Time at which the other members were last asked although no word said that they keep anything.
    asked_ns: AtomicU64,
}

struct Inner {
    seat: Option<Seat>,
    /// True if all seats are taken. This process may take nothing meanwhile.
    no_seat: bool,
    /// True if the seat was lost and that was not reported yet.
    lost: bool,
    /// True if the control thread checks for calls of the other members, or will do so once there is a context.
    hears: bool,
    devices: Vec<Own>,
}

/// This process's use of a device. The words that other members read are written from this and never read back.
struct Own {
    place: Place,
    taken: u64,
    reserved: u64,
    idle: u64,
    short: u64,
}

/// A member and its use of a device.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub pid: u64,
    pub program: String,
    pub taken: u64,
    pub idle: u64,
}

/// A group on a device.
#[derive(Clone, Debug)]
pub(crate) struct Used {
    /// The smallest limit of any member.
    pub limit: u64,
    /// Bytes that all members take, including pending requests.
    pub all: u64,
    /// Members with the largest first, including this process.
    pub holders: Vec<Member>,
}

impl Group {
    /// Joins the group that the variables name; `None` if they name no group. The text says what went wrong.
    pub(crate) fn join(settings: &Settings) -> Option<(Self, Option<String>)> {
        let spec = settings.limit_group.as_deref().and_then(GroupLimit::parse)?;
        // SAFETY: geteuid takes no arguments and cannot fail.
        let uid = unsafe { libc::geteuid() };
        let dir = settings.dir.as_deref();
        let (path, named) = spec.path(dir, uid);
        let make_directory = spec.path(Some(OsStr::new("/")), uid).0 != path;
        let inner = Inner { seat: None, no_seat: false, lost: false, hears: settings.control, devices: Vec::new() };
        let at = Address { path, named, make_directory, uid };
        let group = Self { spec, at, inner: Mutex::new(inner), asked_ns: AtomicU64::new(0) };
        let said = group.sit_down(&mut lock(&group.inner)).err();
        Some((group, said))
    }

    /// Describes the group for the ledger: its name, file and limit, a line each.
    pub(crate) fn described(&self) -> String {
        format!("{}\n{}\n{}", self.spec.name(), self.at.path.display(), self.spec.limit)
    }

    /// Takes a seat and tells the group what this process takes.
    ///
    /// # Errors
    /// Why there is no seat, and what happens now.
    fn sit_down(&self, inner: &mut Inner) -> Result<(), String> {
        let taken = Seat::take(&self.at);
        inner.no_seat = matches!(taken, Err(SeatError::NoSeat));
        let limit = units::bytes(self.spec.limit);
        let seat = taken.map_err(|why| match why {
            SeatError::NoSeat => format!(
                "GPUMEM_LIMIT_GROUP: {} has {SLOTS} members, and no room for more: this process gets no device memory \
                 until one of them ends",
                self.at.path.display()
            ),
            SeatError::NoFile(why) => format!(
                "GPUMEM_LIMIT_GROUP: what the group {} takes cannot be counted: {why}; the limit of {limit} holds for \
                 this process alone until that is put right",
                self.spec.name()
            ),
        })?;
        let own = seat.own();
        own.pid_ns.store(file::pid_namespace(), Relaxed);
        own.hears.store(inner.hears.into(), Relaxed);
        own.answered.store(seat.all().head.wanted.load(Relaxed), Relaxed);
        let program = std::fs::read_link("/proc/self/exe").ok();
        let program = program.as_deref().and_then(std::path::Path::file_name).unwrap_or_default().as_encoded_bytes();
        for (at, word) in own.name.iter().enumerate() {
            let byte = |index: usize| program.get(at * 8 + index).copied().unwrap_or(0);
            word.store(u64::from_ne_bytes(std::array::from_fn(byte)), Relaxed);
        }
        // The limit comes first, so a member that sees what this process takes also sees its limit.
        own.limit.store(self.spec.limit, Release);
        for at in 0..inner.devices.len() {
            list(&seat, &inner.devices, at);
        }
        inner.seat = Some(seat);
        Ok(())
    }

    /// Locks this process's state. A file that was cut short is not touched any more.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        let mut inner = lock(&self.inner);
        if inner.seat.as_ref().is_some_and(|seat| seat.is_cut(&self.at.path)) {
            inner.seat = None;
            inner.lost = true;
        }
        inner
    }

    /// Asks for `bytes` more of a device. If granted, they are reserved until [`Group::settle`].
    pub(crate) fn ask(&self, place: &Place, bytes: u64) -> Answer {
        let mut inner = self.inner();
        let Some(at) = inner.index(place).filter(|_| !inner.no_seat) else { return Answer::Full };
        let inner = &mut *inner;
        let own = &mut inner.devices[at];
        let answer = match &inner.seat {
            Some(seat) => {
                let uuid = as_words(&place.uuid);
                let told = &seat.own().devices[at].told;
                sum::ask(told, own.reserved, bytes, self.spec.limit, || {
                    seat.others().map(move |slot| {
                        // The device is read before the limit: a member writes its limit before it writes this device.
                        let told = slot.device(uuid).map(|device| &device.told);
                        (slot.limit.load(Acquire), told)
                    })
                })
            }
            None if own.taken.saturating_add(own.reserved).saturating_add(bytes) <= self.spec.limit => Answer::Granted,
            None if own.taken.saturating_add(bytes) <= self.spec.limit => Answer::Busy,
            None => Answer::Full,
        };
        if answer == Answer::Granted {
            own.reserved += bytes;
        }
        answer
    }

    /// Ends a reservation: its bytes are counted as taken by now, or were not needed.
    pub(crate) fn settle(&self, place: &Place, bytes: u64) {
        self.change(place, |own| own.reserved = own.reserved.saturating_sub(bytes));
    }

    /// Counts bytes that the driver has given.
    pub(crate) fn took(&self, place: &Place, bytes: u64) {
        self.change(place, |own| own.taken = own.taken.saturating_add(bytes));
    }

    /// Counts bytes that the driver has back.
    pub(crate) fn gave(&self, place: &Place, bytes: u64) {
        self.change(place, |own| own.taken = own.taken.saturating_sub(bytes));
    }

    /// Sets how many of the taken bytes are idle.
    pub(crate) fn keeps(&self, place: &Place, bytes: u64) {
        self.change(place, |own| own.idle = bytes);
    }

    fn change(&self, place: &Place, change: impl FnOnce(&mut Own)) {
        let mut inner = self.inner();
        let Some(at) = inner.index(place) else { return };
        change(&mut inner.devices[at]);
        inner.tell(at);
    }

    /// Returns what the group takes of a device, without members that have ended.
    pub(crate) fn used(&self, place: &Place) -> Used {
        self.reap();
        let inner = self.inner();
        let namespace = file::pid_namespace();
        let mut used = Used { limit: self.spec.limit, all: 0, holders: Vec::new() };
        let mut add = |(pid, program), (taken, idle, reserved): (u64, u64, u64)| {
            used.all = used.all.saturating_add(taken).saturating_add(reserved);
            used.holders.push(Member { pid, program, taken, idle });
        };
        if let Some(own) = inner.devices.iter().find(|own| own.place == *place) {
            let this = (u64::from(std::process::id()), "this process".to_owned());
            add(this, (own.taken, own.idle, own.reserved));
        }
        for slot in inner.seat.iter().flat_map(Seat::others) {
            let limit = slot.limit.load(Acquire);
            let Some(device) = slot.device(as_words(&place.uuid)).filter(|_| limit != 0) else { continue };
            let name: Vec<u8> = slot.name.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let told = [&device.told.reserved, &device.told.taken, &device.idle].map(|word| word.load(Acquire));
            // A process number of another pid namespace names no process here.
            let elsewhere = if slot.pid_ns.load(Relaxed) == namespace { "" } else { ", in another pid namespace" };
            let program = format!("{}{elsewhere}", String::from_utf8_lossy(name));
            add((slot.pid.load(Relaxed), program), (told[1], told[2], told[0]));
        }
        for slot in inner.seat.iter().flat_map(Seat::others) {
            let limit = slot.limit.load(Acquire);
            used.limit = if limit == 0 { used.limit } else { used.limit.min(limit) };
        }
        used.holders.sort_by_key(|holder| std::cmp::Reverse(holder.taken));
        used
    }

    /// Removes what ended members have told. Returns true if there were any.
    pub(crate) fn reap(&self) -> bool {
        self.inner().seat.as_ref().is_some_and(|seat| seat.reap(&self.at) > 0)
    }

    /// Asks the other members to free what they keep and do not use, since this process is short of `bytes` bytes.
    /// Returns the number of this call; `None` if there is no member to ask.
    pub(crate) fn call_for(&self, place: &Place, bytes: u64, now_ns: u64) -> Option<u64> {
        /// Minimum time between calls if no word says that other members keep anything.
        const BLINDLY_EVERY_NS: u64 = 1_000_000_000;
        let mut inner = self.inner();
        let at = inner.index(place)?;
        let seat = inner.seat.as_ref()?;
        let there: Vec<_> = listeners(seat, place).collect();
        let known = there.iter().any(|(_, device)| device.idle.load(Relaxed) != 0);
        let asked = self.asked_ns.load(Relaxed);
        if there.is_empty() || !known && asked != 0 && now_ns.saturating_sub(asked) < BLINDLY_EVERY_NS {
            return None;
        }
        self.asked_ns.store(now_ns, Relaxed);
        inner.devices[at].short = bytes;
        inner.tell(at);
        // A member that sees the number of the call also sees its purpose.
        inner.seat.as_ref().map(|seat| seat.all().head.wanted.fetch_add(1, SeqCst) + 1)
    }

    /// True if all other members that could free something have answered.
    pub(crate) fn have_answered(&self, place: &Place, call: u64) -> bool {
        let inner = self.inner();
        let answered = |seat| listeners(seat, place).all(|(slot, _)| slot.answered.load(Acquire) >= call);
        inner.seat.as_ref().is_none_or(answered)
    }

    /// Ends this process's shortage, also when it gives up.
    pub(crate) fn call_ended(&self, place: &Place) {
        self.change(place, |own| own.short = 0);
    }

    /// Returns an unanswered call of another member: its number and its devices.
    pub(crate) fn called(&self) -> Option<(u64, Vec<Place>)> {
        let inner = self.inner();
        let seat = inner.seat.as_ref()?;
        let call = seat.all().head.wanted.load(SeqCst);
        if call == seat.own().answered.load(Relaxed) {
            return None;
        }
        fence(SeqCst);
        let is_short = |place: &Place| {
            seat.others()
                .filter_map(|slot| slot.device(as_words(&place.uuid)))
                .any(|device| device.short.load(Relaxed) != 0)
        };
        Some((call, inner.devices.iter().map(|own| own.place).filter(is_short).collect()))
    }

    /// Notes that this process no longer checks for calls.
    pub(crate) fn listens_no_more(&self) {
        let mut inner = self.inner();
        inner.hears = false;
        if let Some(seat) = &inner.seat {
            seat.own().hears.store(0, Release);
        }
    }

    /// Answers a call: what can be freed has been freed.
    pub(crate) fn answer(&self, call: u64) {
        if let Some(seat) = &self.inner().seat {
            seat.own().answered.store(call, Release);
        }
    }

    /// Checks the seat. If it was lost, or there was none, takes another. Returns a line for the user.
    pub(crate) fn look_after(&self) -> Option<String> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        if let Some(seat) = &inner.seat {
            if seat.is_kept(&self.at.path) {
                // Another process may have written there.
                seat.own().limit.store(self.spec.limit, Release);
                (0..inner.devices.len()).for_each(|at| list(seat, &inner.devices, at));
                seat.own().devices_len.store(inner.devices.len() as u64, Release);
                return None;
            }
            inner.seat = None;
            inner.lost = true;
        }
        let before = match inner.lost {
            true => "its file was removed, replaced or damaged, or its place there was lost",
            false => "it could not be counted before",
        };
        let path = self.at.path.display();
        match self.sit_down(inner) {
            Ok(()) => {
                inner.lost = false;
                Some(format!("GPUMEM_LIMIT_GROUP: this process is counted in {path} from now on: {before}"))
            }
            // Reported once.
            Err(why) => std::mem::take(&mut inner.lost).then_some(why),
        }
    }
}

impl Inner {
    /// Returns the index of a device in the list. Lists it first if there is room.
    fn index(&mut self, place: &Place) -> Option<usize> {
        let known = self.devices.iter().position(|own| own.place == *place);
        if known.is_none() && self.devices.len() < DEVICES {
            self.devices.push(Own { place: *place, taken: 0, reserved: 0, idle: 0, short: 0 });
            if let Some(seat) = &self.seat {
                list(seat, &self.devices, self.devices.len() - 1);
            }
            return Some(self.devices.len() - 1);
        }
        known
    }

    fn tell(&self, at: usize) {
        if let Some(seat) = &self.seat {
            tell(seat, &self.devices, at);
        }
    }
}

/// Returns the other members that take something of a device and check for calls.
fn listeners<'a>(seat: &'a Seat, place: &Place) -> impl Iterator<Item = (&'a SlotWords, &'a DeviceWords)> {
    let uuid = as_words(&place.uuid);
    let listening = seat.others().filter(|slot| slot.limit.load(Acquire) != 0 && slot.hears.load(Relaxed) != 0);
    let of_device = listening.filter_map(move |slot| Some((slot, slot.device(uuid)?)));
    of_device.filter(|(_, device)| device.told.taken.load(Relaxed) != 0)
}

/// Publishes what is taken of a listed device.
fn tell(seat: &Seat, devices: &[Own], at: usize) {
    let (own, words) = (&devices[at], &seat.own().devices[at]);
    words.idle.store(own.idle, Relaxed);
    words.short.store(own.short, Relaxed);
    sum::tell(&words.told, own.taken, own.reserved);
}

/// Lists a device and all before it, with what is taken of it.
fn list(seat: &Seat, devices: &[Own], at: usize) {
    let words = &seat.own().devices[at];
    words.uuid.iter().zip(as_words(&devices[at].place.uuid)).for_each(|(word, its)| word.store(its, Relaxed));
    tell(seat, devices, at);
    seat.own().devices_len.fetch_max(at as u64 + 1, Release);
}
