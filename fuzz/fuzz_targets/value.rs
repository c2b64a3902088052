//! Typed values, docview literals and dates: what is read and written again is the same.
//!
//! Input: a byte that chooses the type, then the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_content::{JcrDate, NodePath, Value, ValueType};
use tympan_content_package::docview::{DocviewLiteral, parse_literal, write_literal};

const TYPES: [ValueType; 8] = [
    ValueType::String,
    ValueType::Long,
    ValueType::Double,
    ValueType::Date,
    ValueType::Boolean,
    ValueType::Name,
    ValueType::Path,
    ValueType::Decimal,
];

fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let kind = TYPES[usize::from(*first) % TYPES.len()];
    if let Ok(value) = Value::parse(kind, text) {
        assert_eq!(value.value_type(), kind);
        let again = Value::parse(kind, &value.to_text()).expect("it was written by us");
        assert_eq!(again.to_text(), value.to_text());
    }
    if let Ok(DocviewLiteral::Property(property)) = parse_literal(text, ValueType::String) {
        let written = write_literal(&property, ValueType::String);
        match parse_literal(&written, ValueType::String) {
            Ok(DocviewLiteral::Property(again)) => {
                assert_eq!(write_literal(&again, ValueType::String), written);
            }
            other => panic!("`{written}` is read as {other:?}"),
        }
    }
    if let Ok(date) = JcrDate::parse_lenient(text) {
        std::hint::black_box((date.to_ecma(), date.to_system_time()));
    }
    if let Ok(path) = NodePath::new(text) {
        assert_eq!(NodePath::new(path.as_str()).expect("it was written by us"), path);
        drop(path.resolve("../a"));
    }
});
