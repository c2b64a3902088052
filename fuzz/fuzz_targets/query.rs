//! Queries of all three languages: what is read is written as JCR-SQL2 that reads back as the same text. The first byte
//! chooses the language.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use tympan_content::JcrDate;
use tympan_content_query::{BuilderQuery, FullTextExpression, parse_sql2, parse_xpath};

fuzz_target!(|bytes: &[u8]| {
    let Some((language, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let now = JcrDate { millis: 0, offset_minutes: 0 };
    let query = match language % 4 {
        0 => parse_sql2(text),
        1 => parse_xpath(text),
        2 => {
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            let map: BTreeMap<String, String> =
                pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            BuilderQuery::parse(&map, now).map(|built| built.query)
        }
        _ => {
            if let Ok(expression) = FullTextExpression::parse(text) {
                let written = expression.to_string();
                assert_eq!(FullTextExpression::parse(&written), Ok(expression), "{written}");
            }
            return;
        }
    };
    let Ok(query) = query else { return };
    let written = query.to_string();
    // What is written may be longer than what may be read.
    if written.len() < 60_000 {
        let again = parse_sql2(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
        assert_eq!(again.to_string(), written);
    }
});
