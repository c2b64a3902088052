//! The flush message on the wire.

use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tympan_web::flush_message::{
    FlushAction, FlushMessage, FlushMessageError, FlushNumbering, FlushScope,
};

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        })
        .collect()
}

fn message(action: FlushAction, handle: &str) -> FlushMessage {
    FlushMessage {
        action,
        handle: handle.to_owned(),
        scope: None,
        refetch: Vec::new(),
        sequence: None,
        numbering: None,
    }
}

#[test]
fn an_old_agent_is_understood() {
    let sent = headers(&[
        ("CQ-Action", "activate"),
        ("CQ-Handle", "/content/en"),
        ("CQ-Path", "/content/en"),
        ("Content-Length", "0"),
        ("Content-Type", "application/octet-stream"),
    ]);
    assert!(FlushMessage::is_flush(&sent));
    assert_eq!(FlushMessage::parse(&sent, b""), Ok(message(FlushAction::Activate, "/content/en")));
}

#[test]
fn a_body_counts_only_as_plain_text() {
    let body = b"/content/en.html\r\n/content/de.html?x=1\n\nnonsense\n";
    let check = |content_type: &str, expected: &[&str]| {
        let sent = headers(&[
            ("cq-action", "Activate"),
            ("cq-handle", "/content"),
            ("content-type", content_type),
        ]);
        assert_eq!(FlushMessage::parse(&sent, body).unwrap().refetch, expected, "{content_type}");
    };
    check("text/plain", &["/content/en.html", "/content/de.html?x=1"]);
    check("Text/Plain; charset=utf-8", &["/content/en.html", "/content/de.html?x=1"]);
    check("application/octet-stream", &[]);
    check("application/x-www-form-urlencoded", &[]);
}

#[test]
fn broken_messages_are_refused() {
    let check = |pairs: &[(&str, &str)], expected: FlushMessageError| {
        assert_eq!(FlushMessage::parse(&headers(pairs), b""), Err(expected), "{pairs:?}");
    };
    check(
        &[("CQ-Action", "Explode"), ("CQ-Handle", "/a")],
        FlushMessageError::Action("Explode".into()),
    );
    check(&[("CQ-Action", "Activate")], FlushMessageError::Handle);
    check(&[("CQ-Action", "Activate"), ("CQ-Handle", "")], FlushMessageError::Handle);
    check(&[("CQ-Action", "Delete"), ("CQ-Handle", "content")], FlushMessageError::Handle);
    check(&[("CQ-Action", "Delete"), ("CQ-Handle", "/a/../b")], FlushMessageError::Handle);
}

#[test]
fn ordinary_headers_make_no_flush() {
    assert!(!FlushMessage::is_flush(&headers(&[("Action", "x")])));
    assert!(!FlushMessage::is_flush(&headers(&[("Handle", "/x")])));
    assert!(FlushMessage::is_flush(&headers(&[("Action", "Delete"), ("Handle", "/x")])));
}

#[test]
fn a_line_break_cannot_be_smuggled_out() {
    let mut sent = message(FlushAction::Activate, "/a\nb");
    assert_eq!(sent.to_request("h:1").unwrap_err(), FlushMessageError::Handle);
    sent.handle = "/a".into();
    sent.refetch = vec!["/a\n/etc".into()];
    assert_eq!(sent.to_request("h:1").unwrap_err(), FlushMessageError::Refetch("/a\n/etc".into()));
}

#[test]
fn an_order_that_makes_no_sense_is_none() {
    let long = "x".repeat(201);
    for (text, expected) in [
        ("a/b run 7", Some(7)),
        ("  a/b   run 7 ", Some(7)),
        ("a/b run 0", None),
        ("a/b run -1", None),
        ("a/b run", None),
        ("a/b run 7 8", None),
        ("", None),
        (&*format!("{long} run 7"), None),
    ] {
        let sent =
            headers(&[("CQ-Action", "Activate"), ("CQ-Handle", "/a"), ("X-Tympan-Order", text)]);
        let numbering = FlushMessage::parse(&sent, b"").unwrap().numbering;
        assert_eq!(numbering.map(|numbering| numbering.count), expected, "{text}");
    }
}

fn any_message() -> impl Strategy<Value = FlushMessage> {
    (
        prop::sample::select(FlushAction::ALL_ACTIONS.to_vec()),
        "(/[a-z\u{e4} %]{1,8}[a-z]){1,4}",
        prop::option::of(Just(FlushScope::ResourceOnly)),
        prop::collection::vec("/[a-z.?=&/]{0,20}", 0..5),
        prop::option::of(any::<u64>()),
        prop::option::of(("[!-~]{1,20}", "[!-~]{1,20}", 1..=u64::MAX)),
    )
        .prop_map(|(action, handle, scope, refetch, sequence, numbering)| FlushMessage {
            action,
            handle,
            scope,
            refetch,
            sequence,
            numbering: numbering.map(|(source, run, count)| FlushNumbering { source, run, count }),
        })
}

proptest! {
    #[test]
    fn what_is_sent_is_received(sent in any_message()) {
        let (head, body) = sent.to_request("127.0.0.1:80").unwrap().into_parts();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(body.collect()).unwrap().to_bytes();
        prop_assert!(FlushMessage::is_flush(&head.headers));
        prop_assert_eq!(FlushMessage::parse(&head.headers, &body), Ok(sent));
    }
}
