//! Numbers with units. JSON has the exact values.

pub(crate) use gpumem_wire::units::bytes;

/// Formats bytes with their sign; `+0 B` for 0.
pub(crate) fn signed_bytes(n: i64) -> String {
    format!("{}{}", if n < 0 { '-' } else { '+' }, bytes(n.unsigned_abs()))
}

/// Formats a number with its sign.
pub(crate) fn signed(n: i64) -> String {
    format!("{}{}", if n < 0 { '-' } else { '+' }, number(n.unsigned_abs()))
}

/// Formats a number with separated thousands: `1,234,567`.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a time span: `850 ns`, `3.2 ms`, `12.5 s`, `4 min 10 s`, `3 h 5 min`, `2 d 4 h`.
pub(crate) fn span(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ if s < 60 => format!("{:.1} s", ns as f64 / 1e9),
        _ if s < 3600 => format!("{} min {} s", s / 60, s % 60),
        _ if s < 86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// As [`span`], in the largest unit alone: `4 min`.
pub(crate) fn about(ns: u64) -> String {
    let whole = span(ns);
    let mut words = whole.split(' ');
    match (words.next(), words.next()) {
        (Some(number), Some(unit)) => format!("{} {unit}", number.split('.').next().unwrap_or(number)),
        _ => whole,
    }
}

/// Formats a time in nanoseconds since 1970 on this machine's clock: `17:05:09`, with the date if it is not today.
/// Empty for 0, which means unknown.
pub(crate) fn clock(unix_ns: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let (Some(then), Some(now)) = (local(unix_ns / 1_000_000_000).filter(|_| unix_ns != 0), local(now)) else {
        return String::new();
    };
    let time = time_of_day(unix_ns / 1_000_000_000);
    match (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday) {
        true => time,
        false => format!("{}-{:02}-{:02} {time}", then.tm_year + 1900, then.tm_mon + 1, then.tm_mday),
    }
}

/// Formats a time in seconds since 1970 on this machine's clock: `17:05:09`.
pub(crate) fn time_of_day(unix_seconds: u64) -> String {
    local(unix_seconds).map_or(String::new(), |tm| format!("{:02}:{:02}:{:02}", tm.tm_hour, tm.tm_min, tm.tm_sec))
}

fn local(unix_seconds: u64) -> Option<libc::tm> {
    // The inferred type is right for musl and glibc alike, and libc deprecates its name for musl.
    let seconds = unix_seconds.try_into().ok()?;
    // SAFETY: zeroes are a valid tm.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are locals; localtime_r reads the one and writes the other.
    let answer = unsafe { libc::localtime_r(&seconds, &mut tm) };
    (!answer.is_null()).then_some(tm)
}

/// A share of 1 as percent. Less than all is not called all, and more than nothing not nothing.
pub(crate) fn share(share: f64) -> String {
    match share * 100.0 {
        little if little > 0.0 && little < 0.5 => "<1 %".into(),
        most if (99.5..100.0).contains(&most) => ">99 %".into(),
        percent => format!("{percent:.0} %"),
    }
}

/// Hundredths as percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match part as f64 * 100.0 / whole as f64 {
        _ if whole == 0 => String::new(),
        little if part > 0 && little < 1.0 => "<1 %".into(),
        most if part < whole && most >= 99.5 => ">99 %".into(),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_signs() {
        assert_eq!((signed_bytes(-2048), signed_bytes(0)), ("-2.0 KiB".into(), "+0 B".into()));
        assert_eq!(signed_bytes(i64::MIN), "-8.0 EiB");
    }

    #[test]
    fn a_little_is_not_nothing() {
        let parts = [(0, 0), (0, 9), (1, 1000), (1, 100), (1, 2), (1999, 2000), (9, 9)];
        let shown = parts.map(|(part, whole)| percent(part, whole));
        assert_eq!(shown, ["", "0 %", "<1 %", "1 %", "50 %", ">99 %", "100 %"]);
        let shown = [0.0, 0.001, 0.01, 0.5, 0.994, 0.9995, 1.0].map(share);
        assert_eq!(shown, ["0 %", "<1 %", "1 %", "50 %", "99 %", ">99 %", "100 %"]);
    }

    #[test]
    fn numbers_and_spans() {
        assert_eq!(number(1_234_567), "1,234,567");
        assert_eq!(number(12), "12");
        for (ns, text) in [
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (59_900_000_000, "59.9 s"),
            (250_000_000_000, "4 min 10 s"),
            (11_100_000_000_000, "3 h 5 min"),
        ] {
            assert_eq!(span(ns), text);
        }
        let shown = [999, 59_900_000_000, 250_000_000_000, 11_100_000_000_000, 260_000_000_000_000].map(about);
        assert_eq!(shown, ["999 ns", "59 s", "4 min", "3 h", "3 d"]);
    }
}
