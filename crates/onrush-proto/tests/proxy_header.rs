//! The header of the PROXY protocol: whole, split at each byte, and malformed.

use onrush_proto::proxy_header::{BYTES_MAX, ProxyHeader, UNKNOWN, parse};
use std::net::SocketAddr;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2.
fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = (rest.len() as u16).to_be_bytes();
    [&SIGNATURE[..], &[command, family], &length, rest].concat()
}

/// Addresses 192.0.2.1 and 198.51.100.1, ports 50000 and 443.
const BLOCK_4: &[u8] = &[192, 0, 2, 1, 198, 51, 100, 1, 0xc3, 0x50, 0x01, 0xbb];

fn block_6() -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let (source, destination) = (address("2001:db8::1"), address("2001:db8::2"));
    [&source[..], &destination, &[0xc3, 0x50, 0x01, 0xbb]].concat()
}

fn client(text: &str) -> Option<SocketAddr> {
    Some(text.parse().unwrap())
}

/// Headers that are accepted, and their clients.
fn accepted() -> Vec<(Vec<u8>, Option<SocketAddr>)> {
    let four = client("192.0.2.1:50000");
    let six = client("[2001:db8::1]:50000");
    let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(91));
    assert_eq!(longest.len(), 107);
    vec![
        (
            b"PROXY TCP4 192.0.2.1 198.51.100.1 50000 443\r\n".to_vec(),
            four,
        ),
        (
            b"PROXY TCP6 2001:db8::1 2001:DB8::2 50000 443\r\n".to_vec(),
            six,
        ),
        (
            b"PROXY TCP4 255.255.255.255 0.0.0.0 65535 0\r\n".to_vec(),
            client("255.255.255.255:65535"),
        ),
        (b"PROXY UNKNOWN\r\n".to_vec(), Some(UNKNOWN)),
        (longest.into_bytes(), Some(UNKNOWN)),
        (binary(0x21, 0x11, BLOCK_4), four),
        // With extensions (TLVs), which are skipped.
        (
            binary(
                0x21,
                0x11,
                &[BLOCK_4, b"\x01\x00\x02h2", &[4, 0, 0]].concat(),
            ),
            four,
        ),
        (binary(0x21, 0x11, &[BLOCK_4, &[0; 4084]].concat()), four),
        (binary(0x21, 0x21, &block_6()), six),
        (binary(0x21, 0x31, &[b'/'; 216]), Some(UNKNOWN)),
        (binary(0x21, 0x00, &[]), Some(UNKNOWN)),
        (binary(0x21, 0x00, b"ignored"), Some(UNKNOWN)),
        (binary(0x21, 0x10, BLOCK_4), Some(UNKNOWN)),
        (binary(0x20, 0x00, &[]), None),
        (binary(0x20, 0x11, BLOCK_4), None),
        (binary(0x20, 0xff, b"ignored"), None),
    ]
}

#[test]
fn a_header_is_complete_with_its_last_byte() {
    for (header, client) in accepted() {
        let shown = String::from_utf8_lossy(&header).into_owned();
        for bytes in 0..header.len() {
            assert_eq!(parse(&header[..bytes]), Ok(None), "{bytes} of {shown:?}");
        }
        let bytes = header.len();
        for behind in ["", "GET / HTTP/1.1\r\n\r\n", "\r\n", "PROXY UNKNOWN\r\n"] {
            let data = [&header, behind.as_bytes()].concat();
            assert_eq!(
                parse(&data),
                Ok(Some(ProxyHeader { bytes, client })),
                "{shown:?}"
            );
        }
    }
}

#[test]
fn other_bytes_are_malformed() {
    let text = [
        "GET / HTTP/1.1\r\n",
        "X",
        "PROXY\r\n",
        "PROXY \r\n",
        "proxy TCP4 192.0.2.1 198.51.100.1 50000 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 50000 443\n",
        "PROXY  TCP4 192.0.2.1 198.51.100.1 50000 443\r\n",
        "PROXY TCP4 192.0.2.1  198.51.100.1 50000 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 50000 443 \r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 50000\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 50000 443 1\r\n",
        "PROXY TCP4 192.0.2.01 198.51.100.1 50000 443\r\n",
        "PROXY TCP4 192.0.2.256 198.51.100.1 50000 443\r\n",
        "PROXY TCP4 192.0.2.1 host 50000 443\r\n",
        "PROXY TCP4 2001:db8::1 2001:db8::2 50000 443\r\n",
        "PROXY TCP6 192.0.2.1 198.51.100.1 50000 443\r\n",
        "PROXY TCP6 fe80::1%eth0 2001:db8::2 50000 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 65536 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 +500 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 0500 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 -1 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.1 50000 66666\r\n",
        "PROXY TCP4 192.0.2.1\r 198.51.100.1 50000 443\r\n",
        "PROXY UDP4 192.0.2.1 198.51.100.1 50000 443\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY TCP4 \u{661}92.0.2.1 198.51.100.1 50000 443\r\n",
    ];
    let mut rows: Vec<Vec<u8>> = text.iter().map(|row| row.as_bytes().to_vec()).collect();
    rows.push(format!("PROXY UNKNOWN {}\r\n", "f".repeat(92)).into_bytes());
    rows.push([b"PROXY TCP4 \xff", &[b'x'; 20][..], b"\r\n"].concat());
    rows.extend([
        binary(0x11, 0x11, BLOCK_4),
        binary(0x22, 0x11, BLOCK_4),
        binary(0x21, 0x11, &BLOCK_4[1..]),
        binary(0x21, 0x21, BLOCK_4),
        binary(0x21, 0x31, &[b'/'; 215]),
        binary(0x21, 0x12, BLOCK_4),
        binary(0x21, 0x13, BLOCK_4),
        binary(0x21, 0x41, BLOCK_4),
        binary(0x21, 0x11, &[BLOCK_4, &[0; 4085]].concat()),
        binary(0x20, 0x00, &[0; 4097]),
        b"\r\n\r\n\0\r\nQUIT\r".to_vec(),
        b"\r\n\r\nGET / HTTP/1.1\r\n".to_vec(),
    ]);
    for row in rows {
        let shown = String::from_utf8_lossy(&row[..row.len().min(120)]).into_owned();
        assert!(parse(&row).is_err(), "{shown:?}");
        // What is malformed stays malformed, and what precedes it is incomplete or malformed.
        let from = (0..=row.len())
            .find(|&bytes| parse(&row[..bytes]).is_err())
            .unwrap();
        (from..=row.len()).for_each(|bytes| assert!(parse(&row[..bytes]).is_err(), "{shown:?}"));
        (0..from).for_each(|bytes| assert_eq!(parse(&row[..bytes]), Ok(None), "{shown:?}"));
    }
}

#[test]
fn an_incomplete_header_is_bounded() {
    for start in [
        &b"PROXY "[..],
        SIGNATURE,
        &binary(0x21, 0x11, &[0; 4096])[..16],
    ] {
        let mut data = start.to_vec();
        while parse(&data) == Ok(None) {
            data.push(b'!');
            assert!(data.len() <= BYTES_MAX, "{start:?}");
        }
    }
    assert!(parse(b"G").is_err(), "HTTP is detected by its first byte");
}
