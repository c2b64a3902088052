//! Typed values, docview literals and dates: what is read and written again is the same.
//!
//! Input: a byte that chooses the type, then the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_content::package::docview::{Literal, parse_value, write_value};
use tympan_content::{Date, NodePath, Value, ValueType};

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
    if let Ok(Literal::Property(property)) = parse_value(text, ValueType::String) {
        let written = write_value(&property, ValueType::String);
        match parse_value(&written, ValueType::String) {
            Ok(Literal::Property(again)) => {
                assert_eq!(write_value(&again, ValueType::String), written);
            }
            other => panic!("`{written}` is read as {other:?}"),
        }
    }
    if let Ok(date) = Date::parse_lenient(text) {
        std::hint::black_box((date.to_ecma(), date.to_system_time()));
    }
    if let Ok(path) = NodePath::new(text) {
        assert_eq!(NodePath::new(path.as_str()).expect("it was written by us"), path);
        drop(path.resolve("../a"));
    }
});
