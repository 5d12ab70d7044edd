//! Flag values in Go's spelling: existing manifests contain durations and booleans in the form of Go's flag packages.

use std::net::IpAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Parses a Go duration (`15s`, `1h30m`, `1.5s`, `100ms`, `0`). Negative values are refused: no flag has a use for
/// them. The parser of the Kubernetes client panics on a value that is out of range.
pub fn go_duration(text: &str) -> Result<Duration, String> {
    const ACCEPTED: &str = "accepted: a number with a unit of ns, us, ms, s, m or h, such as 15s or 1h30m";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(format!("empty duration; {ACCEPTED}"));
    }
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| format!("not a duration; {ACCEPTED}"))?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => return Err(format!("the unit is missing; {ACCEPTED}")),
            other => return Err(format!("unknown unit {other:?}; {ACCEPTED}")),
        };
        total += number * seconds;
        rest = &rest[letters..];
    }
    Duration::try_from_secs_f64(total).map_err(|_| format!("out of range; {ACCEPTED}"))
}

/// Parses a Go duration for an interval, which must not be zero.
pub fn go_period(text: &str) -> Result<Duration, String> {
    match go_duration(text)? {
        Duration::ZERO => Err("zero is no period; accepted: a duration above 0, such as 15s or 1h30m".to_owned()),
        period => Ok(period),
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not a boolean; accepted: 1, t, T, true, TRUE, True, 0, f, F, false, FALSE, False".to_owned()),
    }
}

/// Parses a non-negative number.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "not a count; accepted: a whole number, 0 or more".to_owned())
}

/// Parses a TCP port.
pub fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "not a port; accepted: a whole number from 0 to 65535".to_owned())
}

/// Parses an address without a port.
pub fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "not an address; accepted: an IPv4 or IPv6 address, such as 0.0.0.0 or ::".to_owned())
}

/// Parses klog's verbosity. klog also accepts negative numbers, which mean 0.
pub fn log_level(text: &str) -> Result<i32, String> {
    text.parse()
        .map_err(|_| "not a log level; accepted: a whole number, such as 0 (info), 3 (debug) or 5 (trace)".to_owned())
}

/// Accepts the words of the table, which help and completion list, and gives the values beside them.
pub fn one_of<T>(table: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(table.iter().map(|(word, _)| *word)).map(move |given| {
        let found = table.iter().find(|(word, _)| *word == given);
        found.map(|(_, value)| *value).expect("the parser before it accepts only words of the table")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, milliseconds) in [
            ("15s", 15_000),
            ("1h30m", 5_400_000),
            ("5m0s", 300_000),
            ("1.5s", 1_500),
            ("100ms", 100),
            ("0", 0),
            ("0s", 0),
            ("+2s", 2_000),
        ] {
            assert_eq!(go_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "15", "s", "-1s", "1 s", "1d", "1..5s", "1e3s", "9999999999999999999999h"] {
            assert!(go_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_period_is_never_zero_in_whatever_spelling() {
        assert_eq!(go_period("5s"), Ok(Duration::from_secs(5)));
        for text in ["0", "0s", "0h0m", "0.1ns"] {
            assert!(go_period(text).unwrap_err().contains("accepted: a duration above 0"), "{text}");
        }
        assert!(go_period("5").unwrap_err().contains("the unit is missing"));
    }

    #[test]
    fn booleans_are_read_as_go_reads_them() {
        assert_eq!(go_bool("T"), Ok(true));
        assert_eq!(go_bool("0"), Ok(false));
        assert!(go_bool("yes").is_err());
        assert!(go_bool("").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,40}") {
            let _ = go_duration(&text);
            let _ = go_bool(&text);
        }

        #[test]
        fn whole_seconds_survive(seconds in 0_u64..1_000_000) {
            prop_assert_eq!(go_duration(&format!("{seconds}s")), Ok(Duration::from_secs(seconds)));
        }
    }
}
