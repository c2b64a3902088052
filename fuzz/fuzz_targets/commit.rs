//! Payloads of commit records and heads: what decodes is encoded and decoded again to the same.
//!
//! Input: the payload.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tympan_store::fuzzing::fuzz_commit(data));
