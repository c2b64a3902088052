//! Heads of requests: any head is settled on one host and read, or refused, and what was read stays the same.
//! Input: method, target and version (`1` or `2`) in a line, then a header in each line.
#![no_main]

use std::net::{Ipv4Addr, SocketAddr};

use http::{HeaderName, HeaderValue, Request, Version, header};
use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::RequestView;
use tympan_web::listen::ConnectionPeer;
use tympan_web::request_head::normalize_authority;

fuzz_target!(|input: &[u8]| {
    let mut lines = input.split(|byte| *byte == b'\n');
    let mut words = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
    let mut word = || words.next().unwrap_or_default();
    let (method, target) = (word(), word());
    let version = if word() == b"2" { Version::HTTP_2 } else { Version::HTTP_11 };
    let Ok(request) = Request::builder().method(method).uri(target).version(version).body(())
    else {
        return;
    };
    let mut head = request.into_parts().0;
    for line in lines {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..at]);
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            head.headers.append(name, value);
        }
    }
    if normalize_authority(&mut head).is_err() {
        return;
    }
    assert!(head.headers.get_all(header::HOST).iter().count() <= 1);
    assert!(head.uri.authority().is_none());
    let peer = ConnectionPeer::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), false);
    let Ok(view) = RequestView::from_head(&head, peer) else { return };
    // What a render gets is read by it as this was.
    let mut again = head.clone();
    again.uri = view.wire_target().parse().expect("a target that was read can be sent");
    let second = RequestView::from_head(&again, peer).expect("what was resolved can be read");
    assert_eq!(second.path.as_str(), view.path.as_str());
    assert_eq!((second.host, second.query), (view.host, view.query));
});
