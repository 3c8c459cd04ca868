//! Bytes for people: the same in the shim's messages and in the inspector's views.

const UNITS: &[&str] = &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Formats bytes with a binary unit: `0 B`, `1.5 KiB`, `32.0 MiB`.
pub fn bytes(n: u64) -> String {
    let mut unit = 0;
    let mut value = n as f64;
    while value >= 1023.95 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Returns major and minor version of a driver from its number: 13020 is CUDA 13.2; 60304220, an answer of
/// `hipRuntimeGetVersion`, is ROCm 6.3.
pub fn version(number: u32) -> (u32, u32) {
    match number {
        0..1_000_000 => (number / 1000, number % 1000 / 10),
        _ => (number / 10_000_000, number / 100_000 % 100),
    }
}

/// The newest ROCm whose library and headers were compared with the tables of HIP.
pub const NEWEST_ROCM: (u32, u32) = (7, 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn numbers_of_versions_are_told_apart() {
        assert_eq!([50_221_153, 60_304_220, 71_200_000, 90_000_000].map(version), [(5, 2), (6, 3), (7, 12), (9, 0)]);
        assert_eq!([12_040, 13_000, 13_020].map(version), [(12, 4), (13, 0), (13, 2)]);
    }
}
