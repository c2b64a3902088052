//! Flushes: header lines, an empty line, a body.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tympan_web::flush_message::{FlushAction, FlushMessage};

fuzz_target!(|data: &[u8]| {
    let mut headers = HeaderMap::new();
    let mut rest = data;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { break };
        let name = HeaderName::from_bytes(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.trim_ascii())) {
            headers.append(name, value);
        }
    }
    let is_flush = FlushMessage::is_flush(&headers);
    if let Ok(message) = FlushMessage::parse(&headers, rest) {
        // A test names no path that anything happens to.
        assert!(message.action == FlushAction::Test || message.handle.starts_with('/'));
        assert!(message.refetch.iter().all(|uri| uri.starts_with('/')));
        if is_flush && let Ok(request) = message.to_request("localhost:80") {
            let again = FlushMessage::parse(request.headers(), b"").expect("it was written by us");
            assert_eq!(
                (again.action, again.handle, again.scope),
                (message.action, message.handle, message.scope)
            );
        }
    }
});
