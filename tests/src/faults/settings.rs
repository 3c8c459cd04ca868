//! Values for the shim's variables, valid and not.

use super::trouble::Trouble;
use crate::differ::random::Random;
use gpumem_wire::settings::{ALL, Kind, Setting};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// A variable and a value for it.
pub fn choose(random: &mut Random) -> Trouble {
    if random.chance(4) {
        return Trouble::Setting("GPUMEM_NO_SUCH".into(), "1".into());
    }
    let setting: &Setting = random.pick(ALL);
    let value = if random.chance(12) { nonsense(random) } else { sensible(setting, random) };
    Trouble::Setting(setting.name.into(), value)
}

fn sensible(setting: &Setting, random: &mut Random) -> OsString {
    let text = |text: &str| OsString::from(text);
    match &setting.kind {
        Kind::Bool => text(random.pick::<&str>(&["0", "1", "on", "off"])),
        Kind::Count { min, max } => text(&spread(random, *min, (*max).min(1 << 16)).to_string()),
        Kind::Size { min, max } => text(&spread(random, *min, (*max).min(1 << 34)).to_string()),
        Kind::Time => text(random.pick::<&str>(&["0", "1ms", "20ms", "300ms", "2s", "1h"])),
        Kind::Choice(words) => text(random.pick::<&str>(words)),
        Kind::Group => {
            text(random.pick::<&str>(&["@/g:64MiB", "@/g:8GiB", "@/none/g:1GiB", "/dev/null:1GiB", "@:1GiB"]))
        }
        Kind::Name => text(random.pick::<&str>(&["team", "a.b-c_d", "7"])),
        Kind::Text => text(random.pick::<&str>(&["kv", "a b", "\u{3b1}"])),
        Kind::Path if setting.name == "GPUMEM_DIR" => text(random.pick::<&str>(&[
            "@/a/b",
            "@/file/b",
            "relative",
            "/proc/nothing",
            "/dev/null",
            "@/a-name-so-long-that-no-socket-can-have-it-0123456789-0123456789-0123456789-0123456789-0123456789",
        ])),
        Kind::Path => text(random.pick::<&str>(&["@/trace", "@/trace", "@/none/trace", "/dev/full", "@", "@/fifo"])),
    }
}

/// A random number whose magnitude is random: small numbers are as likely as large ones.
fn spread(random: &mut Random, min: u64, max: u64) -> u64 {
    let bits = 64 - max.leading_zeros() as usize;
    let value = random.next() & ((1_u64 << random.below(bits + 1)) - 1);
    value.clamp(min, max)
}

fn nonsense(random: &mut Random) -> OsString {
    match random.below(6) {
        0 => "many".into(),
        1 => "-1".into(),
        2 => "99999999999999999999999".into(),
        3 => OsString::from_vec(vec![0xff, 0xfe, b'1']),
        4 => "1 KiB MiB".into(),
        _ => "x".repeat(5000).into(),
    }
}
