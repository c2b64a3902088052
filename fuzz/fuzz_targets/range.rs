//! Conditional and range requests: a part that is promised lies inside of the binary.
//!
//! Input: one header value on each line, in the order of `Conditions`; an empty line is an absent header.
#![no_main]

use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use tympan_render::conditional_request::{BinaryResponsePlan, ConditionalHeaders, plan_response};

const ETAG: &str = "\"0123\"";

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n').map(|line| (!line.is_empty()).then_some(line));
    let mut next = || lines.next().flatten();
    let conditions = ConditionalHeaders {
        range: next(),
        if_range: next(),
        if_none_match: next(),
        if_modified_since: next(),
    };
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for length in [0, 1, 102_400, u64::MAX] {
        for modified in [None, Some(modified)] {
            if let BinaryResponsePlan::Partial { start, len } =
                plan_response(&conditions, length, ETAG, modified)
            {
                assert!(len > 0 && start.checked_add(len).is_some_and(|end| end <= length));
            }
        }
    }
});
