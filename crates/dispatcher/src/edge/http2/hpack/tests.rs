use super::{
    FieldList, HpackDecoder, HpackError, MalformedBlock, OVERSIZE_FACTOR, push_field, push_integer,
    push_literal, push_raw_field,
};
use super::{encode_hpack_response_head, push_status, read_integer};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;

/// Decodes hexadecimal digits.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn read(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
    let mut fields = FieldList::default();
    decoder.decode_block(block, &mut fields, 64 * 1024)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(fields.iter().map(|(name, value)| (text(name), text(value))).collect())
}

/// A block in hexadecimal, its fields, and the size of the table after it.
type HpackTestBlock<'a> = (&'a str, &'a [(&'a str, &'a str)], usize);

/// Decodes the blocks of one connection and checks the results.
#[track_caller]
fn check(blocks: &[HpackTestBlock<'_>]) {
    let mut decoder = HpackDecoder::default();
    for (block, expected, size) in blocks {
        let fields = read(&mut decoder, &hex(block)).unwrap();
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!((fields, decoder.table_size), (expected, *size), "{block}");
    }
}

#[test]
fn single_fields_of_the_specification() {
    let custom = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    check(&[(custom, &[("custom-key", "custom-header")], 55)]);
    check(&[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")], 0)]);
    check(&[("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")], 0)]);
    check(&[("82", &[(":method", "GET")], 0)]);
}

const FIRST: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
const SECOND: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
    ("cache-control", "no-cache"),
];
const THIRD: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
];

#[test]
fn requests_of_the_specification() {
    check(&[
        ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", FIRST, 57),
        ("8286 84be 5808 6e6f 2d63 6163 6865", SECOND, 110),
        ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", THIRD, 164),
    ]);
    check(&[
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST, 57),
        ("8286 84be 5886 a8eb 1064 9cbf", SECOND, 110),
        ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", THIRD, 164),
    ]);
}

#[test]
fn answers_of_the_specification_evict_fields() {
    let date = "Mon, 21 Oct 2013 20:13:21 GMT";
    let later = "Mon, 21 Oct 2013 20:13:22 GMT";
    let location = "https://www.example.com";
    let cookie = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    let responses: [&[(&str, &str)]; 3] = [
        &[(":status", "302"), ("cache-control", "private"), ("date", date), ("location", location)],
        &[(":status", "307"), ("cache-control", "private"), ("date", date), ("location", location)],
        &[
            (":status", "200"),
            ("cache-control", "private"),
            ("date", later),
            ("location", location),
            ("content-encoding", "gzip"),
            ("set-cookie", cookie),
        ],
    ];
    // The examples use a table of 256 bytes.
    let mut decoder = HpackDecoder { max_table_size: 256, ..HpackDecoder::default() };
    let blocks = [
        (
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e
             919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            222,
        ),
        ("4883 640e ffc1 c0bf", 222),
        (
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7
             821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed
             4ee5 b106 3d50 07",
            215,
        ),
    ];
    for ((block, size), expected) in blocks.iter().zip(responses) {
        let fields = read(&mut decoder, &hex(block)).unwrap();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!((fields.as_slice(), decoder.table_size), (expected, *size), "{block}");
    }
}

#[test]
fn integers_of_the_specification() {
    for (number, first, bits, bytes) in [
        (10, 0, 5, &[0x0a][..]),
        (1337, 0, 5, &[0x1f, 0x9a, 0x0a]),
        (42, 0, 8, &[0x2a]),
        (31, 0, 5, &[0x1f, 0x00]),
    ] {
        let mut out = Vec::new();
        push_integer(&mut out, first, bits, number);
        assert_eq!(out, bytes);
        let mut rest = &out[..];
        assert_eq!(read_integer(&mut rest, bits), Ok(number));
        assert!(rest.is_empty());
    }
    for malformed in [&[0x1f][..], &[0x1f, 0x80], &[0x1f, 0xff, 0xff, 0xff, 0xff, 0x01], &[]] {
        assert_eq!(read_integer(&mut &malformed[..], 5), Err(MalformedBlock), "{malformed:?}");
    }
}

#[test]
fn malformed_blocks_are_refused() {
    for block in [
        // There is no field number 0, and none beyond the end of the table.
        "80",
        "be",
        "7e01 61",
        "ff80 8080 8001",
        // A string longer than the block, or an invalid Huffman code.
        "0005 6162",
        "0001 61",
        "0001 6181 06",
        // A table larger than negotiated, or a size update after a field.
        "3fe2 1f",
        "8220",
        "3f",
    ] {
        assert_eq!(
            read(&mut HpackDecoder::default(), &hex(block)),
            Err(HpackError::Malformed),
            "{block}"
        );
    }
}

#[test]
fn the_table_can_be_emptied() {
    let mut decoder = HpackDecoder::default();
    read(&mut decoder, &hex("4001 6101 62")).unwrap();
    assert_eq!(read(&mut decoder, &hex("be")).unwrap(), [("a".to_owned(), "b".to_owned())]);
    read(&mut decoder, &hex("20 3f e1 1f")).unwrap();
    assert_eq!((decoder.table_size, decoder.entries.len(), decoder.max_table_size), (0, 0, 4096));
    assert_eq!(read(&mut decoder, &hex("be")), Err(HpackError::Malformed));
    // A field larger than the table empties it.
    read(&mut decoder, &hex("4001 6101 62")).unwrap();
    let mut large = hex("4001 61");
    push_integer(&mut large, 0, 7, 5000);
    large.resize(large.len() + 5000, b'x');
    assert_eq!(read(&mut decoder, &large).unwrap().len(), 1);
    assert_eq!((decoder.table_size, decoder.entries.len()), (0, 0));
}

#[test]
fn a_block_that_grows_when_read_is_cut() {
    let mut decoder = HpackDecoder::default();
    // A field of 4,000 bytes, and ten references to it.
    let mut block = hex("4001 61");
    push_integer(&mut block, 0, 7, 4000);
    block.resize(block.len() + 4000, b'x');
    block.resize(block.len() + 10, 0xbe);
    let mut fields = FieldList::default();
    decoder.decode_block(&block, &mut fields, 16 * 1024).unwrap();
    assert!(fields.is_too_long());
    assert!(fields.bytes.len() <= 16 * 1024);
    // Later blocks on the connection can be decoded.
    assert_eq!(read(&mut decoder, &hex("be")).unwrap()[0].0, "a");
}

fn decoded_block((before, after): (&[u8], &[u8]), age: &str) -> Vec<(String, String)> {
    let mut block = before.to_vec();
    if !age.is_empty() {
        super::push_plain_string(&mut block, age.as_bytes());
    }
    block.extend(after);
    read(&mut HpackDecoder::default(), &block).unwrap()
}

#[test]
fn a_head_is_written_around_its_age() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("age", "7"),
        ("connection", "close"),
        ("x-own", "\u{7f}"),
        ("set-cookie", "a=b"),
    ] {
        let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) else { continue };
        headers.insert(HeaderName::from_static(name), value);
    }
    let (head, age_offset) = encode_hpack_response_head(StatusCode::OK, &headers);
    let fields = decoded_block(head.split_at(age_offset), "1234");
    assert_eq!(fields[0], (":status".to_owned(), "200".to_owned()));
    assert!(fields.contains(&("age".to_owned(), "1234".to_owned())), "{fields:?}");
    assert!(fields.contains(&("set-cookie".to_owned(), "a=b".to_owned())));
    assert!(!fields.iter().any(|(name, _)| name == "connection"), "{fields:?}");
    headers.remove("age");
    let (head, age_offset) = encode_hpack_response_head(StatusCode::IM_A_TEAPOT, &headers);
    assert_eq!(age_offset, head.len());
    assert_eq!(decoded_block((&head, &[]), "")[0].1, "418");
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        status in 100_u16..1000,
        fields in proptest::collection::vec(("[a-z-]{1,12}", "[ -~]{0,200}"), 0..12),
    ) {
        let mut block = Vec::new();
        push_status(&mut block, StatusCode::from_u16(status).unwrap());
        let mut expected = vec![(":status".to_owned(), status.to_string())];
        for (index, (name, value)) in fields.into_iter().enumerate() {
            let header = HeaderName::from_bytes(name.as_bytes()).unwrap();
            if super::is_connection_header(&header) {
                continue;
            }
            match index % 3 {
                0 => push_field(&mut block, &header, value.as_bytes()),
                1 => push_literal(&mut block, name.as_bytes(), value.as_bytes()),
                _ => push_raw_field(&mut block, name.as_bytes(), value.as_bytes()),
            }
            expected.push((name, value));
        }
        prop_assert_eq!(read(&mut HpackDecoder::default(), &block), Ok(expected));
    }

    #[test]
    fn any_block_is_read_or_refused(
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..8),
    ) {
        let mut decoder = HpackDecoder::default();
        for block in &blocks {
            let mut fields = FieldList::default();
            if decoder.decode_block(block, &mut fields, 512).is_err() {
                break;
            }
            prop_assert!(fields.bytes.len() <= 512);
            let counted: usize =
                decoder.entries.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
            prop_assert_eq!(counted, decoder.table_size);
            prop_assert!(decoder.table_size <= decoder.max_table_size && decoder.max_table_size <= 4096);
        }
    }
}

/// Each two bytes can refer to the longest field of the table, and copy it if its name is reused.
#[test]
fn a_block_that_means_far_more_than_it_may_is_not_read_to_its_end() {
    for again in [&[0xbe][..], &[0x0f, 0x2f, 0x00], &[0x7e, 0x00]] {
        let mut decoder = HpackDecoder::default();
        let mut first = hex("40");
        push_integer(&mut first, 0, 7, 3000);
        first.resize(first.len() + 3000, b'x');
        first.push(0);
        let mut fields = FieldList::default();
        let limit = 16 * 1024;
        decoder.decode_block(&first, &mut fields, limit).unwrap();
        // A block that is slightly too long is read, as the table must stay in sync.
        let allowed_block = again.repeat(limit * 2 / 3032);
        decoder.decode_block(&allowed_block, &mut fields, limit).unwrap();
        assert!(fields.is_too_long(), "{again:x?}");
        let many = again.repeat(10_000);
        assert_eq!(
            decoder.decode_block(&many, &mut fields, limit),
            Err(HpackError::TooLarge),
            "{again:x?}"
        );
        assert!(fields.size <= limit * OVERSIZE_FACTOR + 3032, "{} by {again:x?}", fields.size);
        assert!(fields.bytes.len() <= limit, "{again:x?}");
    }
}
