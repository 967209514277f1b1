//! Header compression: the examples of RFC 7541 Appendix C, what each encoder may do, and blocks
//! that break a rule.

use onrush_proto::http2::hpack::{Decoder, Encoder, Indexing, Malformed, TABLE_BYTES};

type Fields = Vec<(String, String)>;

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, Malformed> {
    let text = |bytes: &[u8]| bytes.iter().map(|&byte| char::from(byte)).collect();
    let mut fields = Fields::new();
    decoder.decode(block, |name, value| fields.push((text(name), text(value))))?;
    Ok(fields)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    let pairs = (0..digits.len()).step_by(2);
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits");
    pairs.map(byte).collect()
}

fn fields(lines: &[&str]) -> Fields {
    let field = |line: &&str| {
        let (name, value) = line.split_once(": ").expect("a colon");
        (name.to_owned(), value.to_owned())
    };
    lines.iter().map(field).collect()
}

/// The blocks of one connection, and their fields.
fn check(blocks: &[(&str, &[&str])]) {
    let mut decoder = Decoder::new();
    for (block, lines) in blocks {
        let block = bytes(block);
        assert_eq!(decoded(&mut decoder, &block).as_ref(), Ok(&fields(lines)));
    }
}

#[test]
fn literals_and_indices() {
    let custom = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    check(&[(custom, &["custom-key: custom-header"])]);
    let path = "040c 2f73 616d 706c 652f 7061 7468";
    check(&[(path, &[":path: /sample/path"])]);
    let never = "1008 7061 7373 776f 7264 0673 6563 7265 74";
    check(&[(never, &["password: secret"]), ("82", &[":method: GET"])]);
}

const REQUESTS: [&[&str]; 3] = [
    &[
        ":method: GET",
        ":scheme: http",
        ":path: /",
        ":authority: www.example.com",
    ],
    &[
        ":method: GET",
        ":scheme: http",
        ":path: /",
        ":authority: www.example.com",
        "cache-control: no-cache",
    ],
    &[
        ":method: GET",
        ":scheme: https",
        ":path: /index.html",
        ":authority: www.example.com",
        "custom-key: custom-value",
    ],
];

#[test]
fn requests_share_a_table() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, coded] {
        let pairs: Vec<_> = blocks.into_iter().zip(REQUESTS).collect();
        check(&pairs);
    }
    // The encoder chooses what the examples with a code choose.
    let mut encoder = Encoder::new();
    for (lines, expected) in REQUESTS.into_iter().zip(coded) {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        for (name, value) in fields(lines) {
            encoder.field(
                name.as_bytes(),
                value.as_bytes(),
                Indexing::Added,
                &mut block,
            );
        }
        assert_eq!(block, bytes(expected));
    }
}

#[test]
fn responses_evict_from_a_small_table() {
    let date = "Mon, 21 Oct 2013 20:13:21 GMT";
    let first = [
        ":status: 302",
        "cache-control: private",
        &format!("date: {date}"),
        "location: https://www.example.com",
    ];
    let mut second = first;
    second[0] = ":status: 307";
    let third = [
        ":status: 200",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:22 GMT",
        "location: https://www.example.com",
        "content-encoding: gzip",
        "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    ];
    check(&[
        (
            // Behind an update of the size to 256.
            "3fe1 01 4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 \
             3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 \
             6c65 2e63 6f6d",
            &first,
        ),
        ("4803 3330 37c1 c0bf", &second),
        (
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 \
             5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 \
             5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
            &third,
        ),
    ]);
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let wrong = [
        ("80", "an index without a field"),
        ("be", "an index without a field"),
        ("7e 01 61", "an index without a field"),
        ("82 20", "a table size inside a block"),
        ("3fe2 1f", "a table size above the setting"),
        ("04 85 ff", "a string is longer than its block"),
        ("04 7f ff ff ff ff ff 7f", "an integer is too large"),
        ("04", "the block ends early"),
        ("04 82 ff ff", "a string has a wrong end"),
    ];
    for (block, reason) in wrong {
        let result = decoded(&mut Decoder::new(), &bytes(block));
        assert_eq!(result, Err(Malformed(reason)), "{block}");
    }
    // The largest size that is allowed, and two in a row.
    assert_eq!(
        decoded(&mut Decoder::new(), &bytes("20 3fe1 1f")),
        Ok(fields(&[]))
    );
}

#[test]
fn the_peer_hears_of_each_size_once() {
    let mut encoder = Encoder::new();
    let mut begun = |sizes: &[usize]| {
        for &size in sizes {
            encoder.set_table_bytes_max(size);
        }
        let mut block = Vec::new();
        encoder.begin(&mut block);
        block
    };
    assert_eq!(begun(&[]), bytes(""));
    assert_eq!(begun(&[TABLE_BYTES, 1 << 20]), bytes(""));
    assert_eq!(begun(&[100]), bytes("3f45"));
    assert_eq!(begun(&[]), bytes(""));
    // The least of several, and the last: entries may have been removed in between.
    assert_eq!(begun(&[0, 4096]), bytes("20 3fe1 1f"));
    assert_eq!(begun(&[50, 0]), bytes("20"));
}

/// Numbers that look random and are the same in each run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

#[test]
fn each_block_is_read_as_written_and_no_part_of_one_panics() {
    let names = [
        "date",
        ":status",
        "x-a",
        "x-b",
        "set-cookie",
        "content-length",
        "accept",
        "z",
    ];
    let mut numbers = Numbers(1);
    for size in [0, 33, 64, 200, 4096] {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        encoder.set_table_bytes_max(size);
        for round in 0..200 {
            if round % 50 == 49 {
                encoder.set_table_bytes_max(numbers.below(size + 1));
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            let mut sent = Fields::new();
            for _ in 0..numbers.below(12) {
                let name = names[numbers.below(names.len())];
                let (is_random, length) = (numbers.below(2) == 0, numbers.below(40));
                let value: String = match is_random {
                    true => (0..length)
                        .map(|_| char::from(numbers.below(256) as u8))
                        .collect(),
                    false => "value".repeat(length % 3),
                };
                let latin: Vec<u8> = value.chars().map(|letter| letter as u8).collect();
                let indexing = [Indexing::Added, Indexing::Once, Indexing::Never];
                let indexing = indexing[numbers.below(3)];
                encoder.field(name.as_bytes(), &latin, indexing, &mut block);
                sent.push((name.to_owned(), value));
            }
            for end in 0..block.len() {
                let _ = decoded(&mut Decoder::new(), &block[..end]);
            }
            assert_eq!(decoded(&mut decoder, &block), Ok(sent));
        }
    }
}
