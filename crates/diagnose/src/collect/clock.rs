//! Compares an API server's clock with that of this machine, by the header `Date` of an answer.

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use kube::Client;
use kube::client::Body;

/// Seconds that the server's clock is ahead; `None` without the header. An answer with an error has the header, too.
pub async fn ahead(client: &Client) -> Option<i64> {
    let request = http::Request::get("/version").body(Body::empty()).ok()?;
    let sent = Timestamp::now();
    let answer = client.send(request).await.ok()?;
    let answered = Timestamp::now();
    let date = DateTimeParser::new().parse_timestamp(answer.headers().get(http::header::DATE)?.to_str().ok()?).ok()?;
    Some(between(sent, date, answered))
}

/// The difference of the clocks. The header has whole seconds, and it is unknown when the server read its clock between
/// request and answer. Only a difference beyond both uncertainties is reported.
fn between(sent: Timestamp, date: Timestamp, answered: Timestamp) -> i64 {
    let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs();
    let (least, most) = (seconds(answered, date), seconds(sent, date) + 1);
    if least > 0 { least } else { most.min(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_way_and_the_missing_parts_of_a_second_explain_is_no_difference() {
        let at = |millis: i64| Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap();
        for (name, sent, date, answered, expected) in [
            ("the same second", 100, 0, 200, 0),
            ("the second has just changed", -10, 0, 5, 0),
            ("the date is cut off", 900, 0, 950, 0),
            ("a slow answer", 0, 3_000, 8_000, 0),
            ("ahead", 100, 60_000, 200, 59),
            ("behind", 60_100, 0, 60_200, -59),
        ] {
            assert_eq!(between(at(sent), at(date), at(answered)), expected, "{name}");
        }
    }
}
