//! Reads when an X.509 certificate expires. Only its validity is parsed; the TLS library verifies issuer and subject
//! with each request.

use jiff::Timestamp;
use runtime::der::{self, Elements, SEQUENCE};

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// `notAfter` of a certificate in DER; `None` if these bytes are not a certificate.
pub fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let mut fields = der::fields(certificate)?;
    let _algorithm = fields.next_of(SEQUENCE)?;
    let _issuer = fields.next_of(SEQUENCE)?;
    let mut validity = Elements(fields.next_of(SEQUENCE)?);
    let _not_before = validity.next()?;
    let (tag, text) = validity.next()?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// Parses `YYMMDDHHMMSSZ`, for the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<Timestamp> {
    let digits = text.strip_suffix('Z').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let (year, rest) = digits.split_at(2);
            (format!("{}{year}", if year < "50" { "20" } else { "19" }), rest)
        }
        (GENERALIZED_TIME, 14) => (digits[..4].to_owned(), &digits[4..]),
        _ => return None,
    };
    let two = |at: usize| &rest[at..at + 2];
    format!("{year}-{}-{}T{}:{}:{}Z", two(0), two(2), two(4), two(6), two(8)).parse().ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(year: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(["api.example.org".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 3, 9);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn both_ways_to_write_the_time_are_read() {
        for year in [1999, 2026, 2049, 2050, 4096] {
            let expected: Timestamp = format!("{year}-03-09T00:00:00Z").parse().unwrap();
            assert_eq!(not_after(&certificate(year)), Some(expected), "{year}");
        }
    }

    #[test]
    fn what_is_no_certificate_says_nothing_and_breaks_nothing() {
        let whole = certificate(2030);
        for length in 0..whole.len() {
            assert_eq!(not_after(&whole[..length]), None, "{length}");
        }
        for at in 0..whole.len() {
            let mut spoilt = whole.clone();
            spoilt[at] = 0xff;
            let _ = not_after(&spoilt);
        }
        for text in ["", "Z", "261301000000Z", "26010100000Z", "2601010000000", "26-101000000Z"] {
            assert_eq!(time(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(time(GENERALIZED_TIME, "260101000000Z"), None);
    }
}
