//! Globs of dispatcher rules: pattern, line break, text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::DispatcherGlob;

fuzz_target!(|input: &str| {
    let (pattern, text) = input.split_once('\n').unwrap_or((input, ""));
    let glob = DispatcherGlob::new(pattern);
    assert_eq!(glob.source(), pattern);
    let is_match = glob.matches(text);
    if !pattern.contains(['*', '?', '[', ']', '\\']) {
        assert_eq!(is_match, pattern == text);
    }
    assert!(is_match || pattern != "*");
});
