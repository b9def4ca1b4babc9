//! Time limits as people write them: seconds, whole or not.

use std::time::Duration;

/// Longer than anybody waits; keeps sums of limits and clocks from overflowing.
const MAX_SECONDS: f64 = 31_536_000.0;

/// Reads `30` or `1.5`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= MAX_SECONDS => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a time limit is a number of seconds greater than 0, such as 30 or 1.5".into()),
    }
}

/// The same, and `0`.
pub(crate) fn parse_or_none(text: &str) -> Result<Duration, String> {
    if text.parse() == Ok(0.0) { Ok(Duration::ZERO) } else { parse(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positive_seconds_pass() {
        assert_eq!(parse("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_or_none("0"), Ok(Duration::ZERO));
        parse_or_none("-1").unwrap_err();
        for text in ["0", "-1", "inf", "NaN", "1e300", "", "5s"] {
            assert!(parse(text).unwrap_err().contains("seconds"), "{text}");
        }
    }
}
