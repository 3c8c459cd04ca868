//! Two processes side by side: the host memory of each over time, and whether the second stays beside the first.
//!
//! Host memory is `RssAnon` of /proc/PID/status: the heap and whatever else has no file behind it. The ledger is a
//! mapped file and does not count.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How often the memory is read.
const EVERY: Duration = Duration::from_millis(100);
/// Two processes never do the same at the same moment: each is compared with what the other had this long before
/// and after.
const BESIDE: Duration = Duration::from_secs(2);

/// Bytes of a process over time, since both were started.
#[derive(Clone, Debug, Default)]
pub struct Series(pub Vec<(Duration, u64)>);

/// Results of two processes.
#[derive(Debug)]
pub struct Pair {
    pub native: Series,
    pub preloaded: Series,
    pub native_status: ExitStatus,
    pub preloaded_status: ExitStatus,
}

impl Series {
    /// The last value; 0 without any.
    pub fn last(&self) -> u64 {
        self.0.last().map_or(0, |point| point.1)
    }

    /// The highest value; 0 without any.
    pub fn highest(&self) -> u64 {
        self.0.iter().map(|point| point.1).max().unwrap_or(0)
    }

    /// The highest value near a moment; of a process that had ended by then, near its end.
    fn highest_beside(&self, at: Duration) -> u64 {
        let end = self.0.last().map_or(Duration::ZERO, |point| point.0);
        let from = at.min(end).saturating_sub(BESIDE);
        let near = self.0.iter().filter(|(time, _)| *time >= from && *time <= at + BESIDE);
        near.map(|point| point.1).max().unwrap_or(0)
    }

    /// Bytes a second by which the later half of the time rises: the slope of the straight line that lies nearest.
    pub fn later_half_slope(&self) -> f64 {
        let end = self.0.last().map_or(Duration::ZERO, |point| point.0);
        let later: Vec<(f64, f64)> = self
            .0
            .iter()
            .filter(|(time, _)| *time >= end / 2)
            .map(|(time, bytes)| (time.as_secs_f64(), *bytes as f64))
            .collect();
        let count = later.len() as f64;
        let middle = (later.iter().map(|p| p.0).sum::<f64>() / count, later.iter().map(|p| p.1).sum::<f64>() / count);
        let (mut rise, mut run) = (0.0, 0.0);
        for (time, bytes) in later {
            rise += (time - middle.0) * (bytes - middle.1);
            run += (time - middle.0) * (time - middle.0);
        }
        if run > 0.0 { rise / run } else { 0.0 }
    }
}

/// Holds a series against the native one: it may never be above by more than `slack_bytes` and `slack_share` of
/// the native one (0.02 is 2 %) together.
///
/// # Errors
/// The sample that is furthest above its bound.
pub fn never_above(native: &Series, preloaded: &Series, slack_bytes: u64, slack_share: f64) -> Result<(), String> {
    if native.0.is_empty() || preloaded.0.is_empty() {
        return Err("nothing to compare: a process ended before its memory could be read".into());
    }
    let above = preloaded.0.iter().map(|&(time, bytes)| {
        let beside = native.highest_beside(time);
        let allowed = beside + slack_bytes + (beside as f64 * slack_share) as u64;
        (bytes.saturating_sub(allowed), time, bytes, beside)
    });
    match above.max_by_key(|point| point.0) {
        Some((above @ 1.., time, bytes, beside)) => Err(format!(
            "after {:.1} s {} KiB where natively {} KiB: {} KiB more than allowed",
            time.as_secs_f64(),
            bytes >> 10,
            beside >> 10,
            above >> 10
        )),
        _ => Ok(()),
    }
}

/// Starts both and reads their memory until both have ended. Their output has to go somewhere that takes all of it:
/// nothing is read from pipes here.
///
/// # Errors
/// When one cannot be started, or has not ended by then; both are killed.
pub fn side_by_side(native: &mut Command, preloaded: &mut Command, limit: Duration) -> Result<Pair, String> {
    let start = |command: &mut Command| command.spawn().map(Killed).map_err(|error| format!("{command:?}: {error}"));
    let (mut first, mut second) = (start(native)?, start(preloaded)?);
    let begin = Instant::now();
    let (mut of_first, mut of_second) = (Series::default(), Series::default());
    loop {
        let now = begin.elapsed();
        let ended = |child: &mut Killed, series: &mut Series| -> Result<Option<ExitStatus>, String> {
            series.0.extend(rss_anon(child.0.id()).map(|bytes| (now, bytes)));
            child.0.try_wait().map_err(|error| error.to_string())
        };
        match (ended(&mut first, &mut of_first)?, ended(&mut second, &mut of_second)?) {
            (Some(native_status), Some(preloaded_status)) => {
                return Ok(Pair { native: of_first, preloaded: of_second, native_status, preloaded_status });
            }
            (one, other) if now > limit => {
                let which = |over: Option<ExitStatus>| if over.is_some() { "ended" } else { "runs" };
                return Err(format!("after {limit:?} native {}, preloaded {}", which(one), which(other)));
            }
            _ => std::thread::sleep(EVERY.saturating_sub(begin.elapsed() - now)),
        }
    }
}

/// Bytes of a process without a file behind them; none of one that has ended.
pub fn rss_anon(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
}

/// A process that does not outlive this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    const MIB: u64 = 1 << 20;

    /// One value a second.
    fn series(mib: &[u64]) -> Series {
        Series(mib.iter().enumerate().map(|(i, mib)| (Duration::from_secs(i as u64), mib * MIB)).collect())
    }

    #[test]
    fn what_rises_above_is_told_where_it_is_worst() {
        let native = series(&[10, 100, 100, 100, 100, 100, 100]);
        let slack = |bytes, share, other: &[u64]| never_above(&native, &series(other), bytes, share);
        assert_eq!(slack(4 * MIB, 0.02, &[10, 106, 106, 106, 106, 106, 106]), Ok(()));
        let why = slack(4 * MIB, 0.02, &[10, 100, 100, 107, 109, 107, 100]).unwrap_err();
        assert!(why.contains("after 4.0 s 111616 KiB where natively 102400 KiB: 3072 KiB more"), "{why}");
        assert!(slack(4 * MIB, 0.0, &[10, 100, 105]).is_err());
        assert!(slack(0, 0.0, &[]).is_err());
    }

    #[test]
    fn a_moment_is_compared_with_what_lies_near_it() {
        let native = series(&[10, 80, 80, 10, 10, 10, 10, 10]);
        assert_eq!(never_above(&native, &series(&[10, 10, 80, 80, 80, 10]), 0, 0.0), Ok(()), "a little later");
        assert!(never_above(&native, &series(&[10, 80, 80, 80, 80, 80]), 0, 0.0).is_err(), "it never went back");
        assert_eq!(never_above(&series(&[80]), &series(&[80; 60]), 0, 0.0), Ok(()), "the native run was faster");
    }

    #[test]
    fn the_slope_is_of_the_later_half() {
        assert_eq!(series(&[0, 50, 100, 100, 100, 100]).later_half_slope(), 0.0);
        let rising = series(&[10, 10, 10, 11, 12, 13, 14]).later_half_slope();
        assert!((rising - MIB as f64).abs() < 1.0, "{rising}");
        assert_eq!(series(&[]).later_half_slope(), 0.0);
    }

    #[test]
    fn two_processes_are_watched_side_by_side() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let flat = "i=0; while [ $i -lt 15 ]; do i=$((i+1)); sleep 0.1; done";
        let grows = "i=0; x=$(printf %4096s a); while [ $i -lt 15 ]; do i=$((i+1)); \
                     [ $i -gt 11 ] || x=$x$x; sleep 0.1; done; exit 3";
        let limit = Duration::from_secs(60);
        let pair = side_by_side(&mut shell(flat), &mut shell(grows), limit).expect("both end");
        assert_eq!((pair.native_status.code(), pair.preloaded_status.code()), (Some(0), Some(3)));
        assert!(pair.native.0.len() > 5 && pair.preloaded.0.len() > 5, "{pair:?}");
        assert!(pair.preloaded.highest() > pair.native.highest() + 7 * MIB, "{pair:?}");
        never_above(&pair.native, &pair.preloaded, 4 * MIB, 0.02).expect_err("it grows");
        never_above(&pair.preloaded, &pair.native, 4 * MIB, 0.02).expect("it does not");
        let hangs = side_by_side(&mut shell("exit 0"), &mut shell("exec sleep 600"), Duration::from_millis(300));
        assert_eq!(hangs.unwrap_err(), "after 300ms native ended, preloaded runs");
    }
}
