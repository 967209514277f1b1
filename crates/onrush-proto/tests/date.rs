//! RFC 9110 §5.6.7: HTTP dates.

use onrush_proto::date::{format, parse, rfc3339, utc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CASES: [(u64, &str); 12] = [
    (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
    (86_399, "Thu, 01 Jan 1970 23:59:59 GMT"),
    (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
    (68_169_599, "Mon, 28 Feb 1972 23:59:59 GMT"),
    (68_169_600, "Tue, 29 Feb 1972 00:00:00 GMT"),
    (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
    (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
    (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
    (2_147_483_648, "Tue, 19 Jan 2038 03:14:08 GMT"),
    (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
    (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
    (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
];

#[test]
fn formats_and_reads_back() {
    for (unix_s, text) in CASES {
        assert_eq!(str::from_utf8(&format(unix_s)), Ok(text));
        assert_eq!(parse(text.as_bytes()), Some(unix_s), "{text}");
    }
}

#[test]
fn agrees_with_httpdate_on_every_day() {
    for day in 0..80_000 {
        let unix_s = day * 86_400 + day % 86_400;
        let time = UNIX_EPOCH + Duration::from_secs(unix_s);
        assert_eq!(
            str::from_utf8(&format(unix_s)),
            Ok(&*httpdate::fmt_http_date(time))
        );
    }
}

#[test]
fn beyond_the_last_year_stays_in_it() {
    assert_eq!(format(u64::MAX), format(253_402_300_799));
    assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
}

#[test]
fn numbers_instead_of_names() {
    for (unix_s, text) in [
        (0, "1970-01-01 00:00:00"),
        (784_111_777, "1994-11-06 08:49:37"),
        (951_782_400, "2000-02-29 00:00:00"),
        (4_107_542_399, "2100-02-28 23:59:59"),
    ] {
        let time = UNIX_EPOCH + Duration::from_secs(unix_s);
        assert_eq!(utc(time), format!("{text} UTC"));
        assert_eq!(rfc3339(unix_s), format!("{}Z", text.replace(' ', "T")));
    }
    let before: SystemTime = UNIX_EPOCH - Duration::from_secs(1);
    assert_eq!(utc(before), "1970-01-01 00:00:00 UTC");
}

#[test]
fn all_three_formats_are_read() {
    for text in ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
        assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
    }
}

#[test]
fn what_is_no_date() {
    let rows: [&[u8]; 10] = [
        b"",
        b"0",
        b"784111777",
        b"Sun, 06 Nov 1994 08:49:37",
        b"Sun, 06 Nov 1994 08:49:37 CET",
        b"Sun, 32 Nov 1994 08:49:37 GMT",
        b"Sun, 06 Nox 1994 08:49:37 GMT",
        b"Sun, 06 Nov 1994 25:49:37 GMT",
        b"1994-11-06T08:49:37Z",
        b"Sun, 06 Nov 1994 08:49:37 GMT\xff",
    ];
    for text in rows {
        assert_eq!(parse(text), None, "{:?}", text.escape_ascii().to_string());
    }
}
