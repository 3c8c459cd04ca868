//! Memory of a process on one device, in parts that add up to the driver's count for it.
//!
//! No part is computed from the driver's count. Recorded parts are exact. Parts that are estimated, or measured by the
//! fall of free memory, are upper limits: other processes may have taken some of the memory. If such parts exceed the
//! count, they are cut or left out, and the account says so. If there is no count, measured parts are left out if all
//! parts exceed the memory that all processes use.

use crate::source::nvml::Count;
use serde::Serialize;

/// Measured parts that exceed the count by at most this much are still this process's. The driver takes pages of 2 MiB,
/// and a recorded size that is rounded up may share a page with a measured part.
const SLACK: u64 = 2 << 20;

/// How the bytes of a part are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum How {
    /// Recorded from calls of the program and the pool.
    Recorded,
    /// Reported by the driver some time ago, or computed from sizes measured before.
    Estimated,
    /// Free memory of the device fell by this much around a call, including memory that other processes took meanwhile.
    Measured,
}

/// One part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    pub name: &'static str,
    pub bytes: u64,
    pub how: How,
    /// Its origin, or the event that frees it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remark: String,
}

impl Share {
    pub(super) fn new(name: &'static str, bytes: u64, how: How, remark: &str) -> Self {
        Self { name, bytes, how, remark: remark.to_owned() }
    }
}

/// All parts, and the rest that belongs to none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Account {
    /// The driver's count for this process on this device.
    pub counted_bytes: Option<u64>,
    /// The reason why the count is unknown, or why the parts are not compared with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    pub parts: Vec<Share>,
    /// Bytes in the count that belong to no part.
    pub rest_bytes: Option<u64>,
    /// Bytes measured by the fall of free memory and left out: they exceed the count, or what all processes use. So other
    /// processes took some of them.
    pub left_out_bytes: u64,
}

impl Account {
    /// Fits the parts into the count. Within each [`How`] the parts are ordered by how well they are known. `used`: what
    /// all processes use on the device; `None` if that is unknown, or was before some of the parts.
    pub(super) fn of(count: Count, parts: Vec<Share>, used: Option<u64>) -> Self {
        let mut account = Self { parts, ..Self::default() };
        account.parts.retain(|part| part.bytes > 0);
        let counted = match count {
            Count::Bytes(counted) => counted,
            Count::Unknown(why) => {
                account.why = why.into();
                if used.is_some_and(|used| account.explained_bytes() > used.saturating_add(SLACK)) {
                    account.leave_measured_out();
                }
                return account;
            }
        };
        account.counted_bytes = Some(counted);
        let Some(mut room) = counted.checked_sub(account.sum(How::Recorded)) else {
            account.why = "more is recorded than the driver counts: the two were read at different moments".into();
            account.parts.retain(|part| part.how == How::Recorded);
            return account;
        };
        for part in account.parts.iter_mut().filter(|part| part.how == How::Estimated) {
            if part.bytes > room {
                part.bytes = room;
                part.remark = "at most: no more fits into what the driver counts".into();
            }
            room -= part.bytes;
        }
        let measured = account.sum(How::Measured);
        let over = measured.saturating_sub(room);
        if over > SLACK {
            account.leave_measured_out();
        } else {
            account.cut_measured(over);
            room -= measured - over;
        }
        account.parts.retain(|part| part.bytes > 0);
        account.rest_bytes = Some(room);
        account
    }

    /// Leaves out all measured parts, since it is unknown which of them is too large.
    fn leave_measured_out(&mut self) {
        self.left_out_bytes = self.sum(How::Measured);
        self.parts.retain(|part| part.how != How::Measured);
    }

    /// Takes this much off the measured parts, the least certain first.
    fn cut_measured(&mut self, mut bytes: u64) {
        for part in self.parts.iter_mut().rev().filter(|part| part.how == How::Measured) {
            let cut = part.bytes.min(bytes);
            part.bytes -= cut;
            bytes -= cut;
        }
    }

    fn sum(&self, how: How) -> u64 {
        self.parts.iter().filter(|part| part.how == how).fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Returns the bytes of all parts together.
    pub(crate) fn explained_bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOWS: [How; 3] = [How::Recorded, How::Estimated, How::Measured];

    fn account(count: u64, bytes: [u64; 3]) -> Account {
        let parts = HOWS.into_iter().zip(bytes).map(|(how, bytes)| Share::new("part", bytes, how, ""));
        Account::of(Count::Bytes(count), parts.collect(), None)
    }

    fn is(account: &Account) -> Vec<u64> {
        HOWS.into_iter().map(|how| account.sum(how)).collect()
    }

    #[test]
    fn what_fits_is_shown_and_the_rest_is_what_is_left() {
        let all = account(1000, [500, 200, 250]);
        assert_eq!((is(&all), all.rest_bytes, all.left_out_bytes), (vec![500, 200, 250], Some(50), 0));
    }

    /// Rounded sizes are estimates, so measured parts may be one page too large.
    #[test]
    fn what_was_measured_is_cut_if_it_nearly_fits() {
        let nearly = account(SLACK + 600, [500, 0, SLACK + 500]);
        assert_eq!((is(&nearly), nearly.rest_bytes, nearly.left_out_bytes), (vec![500, 0, SLACK + 100], Some(0), 0));
        let mut several = Account {
            parts: [(30, How::Measured), (20, How::Measured)]
                .map(|(bytes, how)| Share::new("part", bytes, how, ""))
                .into(),
            ..Account::default()
        };
        several.cut_measured(25);
        assert_eq!(several.parts.iter().map(|part| part.bytes).collect::<Vec<_>>(), [25, 0]);
    }

    /// Other processes allocated while the driver's own memory was measured.
    #[test]
    fn what_was_measured_is_left_out_where_it_does_not_fit() {
        let more = SLACK + 301;
        let beside = account(1000, [500, 200, more]);
        assert_eq!((is(&beside), beside.rest_bytes, beside.left_out_bytes), (vec![500, 200, 0], Some(300), more));
        let cut = account(600, [500, 200, more]);
        assert_eq!((is(&cut), cut.rest_bytes, cut.left_out_bytes), (vec![500, 100, 0], Some(0), more));
        assert!(cut.parts[1].remark.starts_with("at most"), "{cut:?}");
    }

    /// Without a count, what all processes use is the most that the parts can be.
    #[test]
    fn what_was_measured_is_left_out_if_all_processes_use_less() {
        let account = |used, measured| {
            let parts =
                HOWS.into_iter().zip([500, 200, measured]).map(|(how, bytes)| Share::new("part", bytes, how, ""));
            Account::of(Count::Unknown("not counted"), parts.collect(), used)
        };
        let more = account(Some(1000), SLACK + 301);
        assert_eq!((is(&more), more.left_out_bytes), (vec![500, 200, 0], SLACK + 301));
        for fits in [account(Some(1000), SLACK + 300), account(None, SLACK + 301)] {
            assert_eq!((fits.sum(How::Measured) > 0, fits.left_out_bytes), (true, 0), "{fits:?}");
        }
        // Too much is recorded or estimated, so nothing is left out.
        assert_eq!(is(&account(Some(10), 0)), [500, 200, 0]);
    }

    #[test]
    fn records_of_another_moment_are_not_compared() {
        let later = account(400, [500, 200, 50]);
        assert_eq!((is(&later), later.rest_bytes, later.counted_bytes), (vec![500, 0, 0], None, Some(400)));
        assert!(later.why.contains("different moments"), "{later:?}");
        let parts = vec![Share::new("part", 5, How::Estimated, "")];
        let unknown = Account::of(Count::Unknown("not counted"), parts, None);
        assert_eq!((unknown.explained_bytes(), unknown.rest_bytes, &*unknown.why), (5, None, "not counted"));
    }

    /// For any parts: with the rest they add up to the count, to the byte.
    #[test]
    fn the_parts_add_up() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut fitted, mut left_out) = (0, 0);
        for _ in 0..10_000 {
            let count = next(10_000) << 11;
            let parts =
                (0..next(12)).map(|_| Share::new("part", next(4000) << 11, HOWS[next(3) as usize], "")).collect();
            let account = Account::of(Count::Bytes(count), parts, None);
            left_out += u64::from(account.left_out_bytes > 0);
            match account.rest_bytes {
                Some(rest) => {
                    fitted += 1;
                    assert_eq!(account.explained_bytes() + rest, count, "{account:?}");
                }
                None => assert!(account.sum(How::Recorded) > count, "{account:?}"),
            }
        }
        assert!(fitted > 2000 && left_out > 500, "{fitted} fitted, {left_out} with parts left out");
    }
}
