//! PROXY headers: the reader of a connection and the parser of whole bytes agree, and nothing behind a header is read.
#![no_main]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use tympan_web::proxy_protocol::{parse_proxy_header, read_proxy_header};

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    // Bytes in memory are there at once.
    let Poll::Ready(outcome) =
        pin!(read_proxy_header(&mut rest)).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("nothing to wait for");
    };
    if let Ok(proxied) = outcome {
        let used = &input[..input.len() - rest.len()];
        assert_eq!(parse_proxy_header(used), Some(proxied));
    }
    let _parsed = parse_proxy_header(input);
});
