//! Lines of a request.log: a line that is read and written again is the same line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_web::request_log::parse_request_log_line;

fuzz_target!(|text: &str| {
    if let Ok(line) = parse_request_log_line(text) {
        assert_eq!(parse_request_log_line(&line.to_string()), Ok(line));
    }
});
