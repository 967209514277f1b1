//! Formatting and parsing of HTTP dates (RFC 9110 §5.6.7), and of times for people and programs.
//! This module reads no clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a date in the preferred format.
pub const LEN: usize = 29;

/// The last second of the year 9999; the formats have no room for later ones.
const LAST: u64 = 253_402_300_799;

/// Renders `unix_s`, seconds since 1970-01-01T00:00:00Z, as `Sun, 06 Nov 1994 08:49:37 GMT`.
/// Times after the year 9999 become its last second. Never fails, never allocates.
///
/// ```
/// assert_eq!(&onrush_proto::date::format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
/// ```
pub fn format(unix_s: u64) -> [u8; LEN] {
    let unix_s = unix_s.min(LAST);
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let mut out = *b"ddd, 00 mmm 0000 00:00:00 GMT";
    // 1970 began on a Thursday.
    let weekday = ((days + 4) % 7) as usize;
    out[..3].copy_from_slice(&b"SunMonTueWedThuFriSat"[weekday * 3..][..3]);
    two_digits(&mut out[5..7], day);
    let month = (month - 1) as usize;
    out[8..11].copy_from_slice(&b"JanFebMarAprMayJunJulAugSepOctNovDec"[month * 3..][..3]);
    two_digits(&mut out[12..14], year / 100);
    two_digits(&mut out[14..16], year % 100);
    two_digits(&mut out[17..19], second / 3600);
    two_digits(&mut out[20..22], second / 60 % 60);
    two_digits(&mut out[23..25], second % 60);
    out
}

/// The time as `1994-11-06T08:49:37Z` (RFC 3339), of `unix_s` seconds since 1970-01-01T00:00:00Z.
/// Times after the year 9999 become its last second.
///
/// ```
/// assert_eq!(onrush_proto::date::rfc3339(784_111_777), "1994-11-06T08:49:37Z");
/// ```
pub fn rfc3339(unix_s: u64) -> String {
    numbers(unix_s, "T", "Z")
}

/// The time as `1994-11-06 08:49:37 UTC`, for people. Times before 1970 become its first second,
/// and those after the year 9999 its last one.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
///
/// let time = UNIX_EPOCH + Duration::from_secs(784_111_777);
/// assert_eq!(onrush_proto::date::utc(time), "1994-11-06 08:49:37 UTC");
/// ```
pub fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    numbers(since.as_secs(), " ", " UTC")
}

fn numbers(unix_s: u64, separator: &str, zone: &str) -> String {
    let unix_s = unix_s.min(LAST);
    let (year, month, day) = civil(unix_s / 86_400);
    let (hour, minute, second) = (unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60);
    let mut out = String::with_capacity(24);
    let mut push = |before: &str, number: u64| {
        let mut digits = [0; 2];
        two_digits(&mut digits, number);
        out.push_str(before);
        out.extend(digits.map(char::from));
    };
    push("", year / 100);
    push("", year % 100);
    push("-", month);
    push("-", day);
    push(separator, hour);
    push(":", minute);
    push(":", second);
    out.push_str(zone);
    out
}

fn two_digits(out: &mut [u8], number: u64) {
    out[0] = b'0' + (number / 10) as u8;
    out[1] = b'0' + (number % 10) as u8;
}

/// Year, month and day of the month for a number of days since 1970-01-01.
///
/// Counts in 400-year eras that begin on 1 March, so the leap day is the last day of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// Parses a date in any of the three formats a recipient must accept: the preferred one, RFC 850's
/// and asctime's. Returns seconds since 1970; `None` if the date is malformed or before 1970.
///
/// ```
/// use onrush_proto::date;
/// assert_eq!(date::parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
/// assert_eq!(date::parse(b"yesterday"), None);
/// ```
pub fn parse(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let time = httpdate::parse_http_date(text).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}
