//! How long the tests wait for a program. Their limits are for machines that run its code themselves. Under an emulator
//! a program takes ten to fifty times as long.

use std::ffi::OsStr;
use std::sync::LazyLock;
use std::time::Duration;

/// How many times as long a program may take, in whole numbers.
const VARIABLE: &str = "TEST_PATIENCE";

/// A limit of time as it is here: the usual one, or that many times as much as `TEST_PATIENCE` says.
///
/// # Panics
/// When the variable is not a whole number above 0.
pub fn patience(usual: Duration) -> Duration {
    static TIMES: LazyLock<u32> = LazyLock::new(|| times(std::env::var_os(VARIABLE).as_deref()));
    usual * *TIMES
}

fn times(said: Option<&OsStr>) -> u32 {
    let Some(said) = said else { return 1 };
    let number = said.to_str().and_then(|text| text.parse().ok()).filter(|&number| number > 0);
    number.unwrap_or_else(|| panic!("{VARIABLE}={}: it takes a whole number above 0", said.display()))
}

#[cfg(test)]
mod tests {
    use super::times;
    use std::ffi::OsStr;

    #[test]
    fn limits_are_the_usual_ones_where_the_variable_does_not_say_more() {
        assert_eq!([times(None), times(Some(OsStr::new("10")))], [1, 10]);
    }

    #[test]
    #[should_panic(expected = "TEST_PATIENCE=0: it takes a whole number above 0")]
    fn no_patience_at_all_is_refused() {
        times(Some(OsStr::new("0")));
    }
}
