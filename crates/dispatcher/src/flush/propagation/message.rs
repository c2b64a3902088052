//! The wire format of messages between dispatchers; `docs/formats/passed-flushes.md` describes the bytes.

use std::hash::{BuildHasher, Hasher, RandomState};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::{Deserialize, Serialize};
use tympan_web::flush_message::{self, FlushMessage, FlushScope};

use crate::request::view::RequestView;

/// The header that marks a message: the version, and the farm's name in percent-encoding.
pub(crate) const FLUSH_EVENTS_HEADER: HeaderName = HeaderName::from_static("x-tympan-passed");
/// The message format version.
pub(super) const MESSAGE_VERSION: &str = "1";
/// The maximum size of a message in bytes. An event is a flush, whose body has at most 1 MiB, and some bytes need more
/// in JSON.
pub(super) const MAX_MESSAGE_BYTES: u64 = 8 * 1024 * 1024;
/// The maximum number of events in a message; more are refused.
pub(super) const MAX_MESSAGE_EVENTS: usize = 256;
/// The maximum event number: no log grows so long, and every JSON implementation can represent it.
const MAX_EVENT_NUMBER: u64 = 1 << 53;
/// The maximum length in bytes of the name of a log or run.
const MAX_ID_BYTES: usize = 200;

/// A position in a log: its end, or the point up to which it was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogPosition {
    /// The run of the process that wrote the event at this position: a log restored from a backup continues with
    /// another run.
    pub(crate) run: String,
    /// The number of the event, starting at 1.
    pub(crate) count: u64,
}

impl LogPosition {
    pub(super) fn is_valid(&self) -> bool {
        is_valid_id(&self.run) && self.count <= MAX_EVENT_NUMBER
    }
}

/// Returns a new unique ID.
pub(crate) fn new_random_id() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}

/// Returns true if a name can be written in a line with others.
pub(super) fn is_valid_id(text: &str) -> bool {
    let is_short = (1..=MAX_ID_BYTES).contains(&text.len());
    is_short && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A flush event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FlushEvent {
    /// A flush message.
    Flush(ForwardedFlush),
    /// `PURGE` of one page: path and query.
    Page(String),
    /// All pages that carry one of these surrogate keys.
    Keys(Vec<String>),
    /// Everything that obeys `.stat` files, because flushes of a publisher were lost.
    Stats,
    /// Every file.
    All,
}

/// A flush message without the parts between its sender and the first dispatcher only (`X-Tympan-Order`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForwardedFlush {
    action: String,
    handle: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    resource_only: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    refetch: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
}

impl FlushEvent {
    /// Returns the parts of a flush that are forwarded.
    pub(crate) fn from_flush(message: &FlushMessage) -> Self {
        Self::Flush(ForwardedFlush {
            action: message.action.as_str().to_owned(),
            handle: message.handle.clone(),
            resource_only: message.scope == Some(FlushScope::ResourceOnly),
            refetch: message.refetch.clone(),
            sequence: message.sequence,
        })
    }

    /// Returns true if the event could also have arrived directly.
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Flush(flush) => flush.to_flush_message().is_some(),
            Self::Page(target) => page_request(target).is_some(),
            Self::Keys(keys) => keys.iter().all(|key| {
                !key.is_empty() && !key.contains(|char: char| char.is_ascii_whitespace())
            }),
            Self::Stats | Self::All => true,
        }
    }
}

impl ForwardedFlush {
    /// Returns the message, parsed by the rules for messages of agents; `None` if they reject it.
    pub(super) fn to_flush_message(&self) -> Option<FlushMessage> {
        let mut headers = HeaderMap::new();
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).ok();
        headers.insert(flush_message::ACTION_HEADER, value(&self.action)?);
        headers.insert(flush_message::HANDLE_HEADER, value(&self.handle)?);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        let message = FlushMessage::parse(&headers, self.refetch.join("\n").as_bytes()).ok()?;
        let scope = self.resource_only.then_some(FlushScope::ResourceOnly);
        Some(FlushMessage { scope, sequence: self.sequence, ..message })
    }
}

/// Returns the request for a page to be purged.
pub(super) fn page_request(target: &str) -> Option<RequestView> {
    let is_target = target.starts_with('/');
    let view = RequestView::from_url(Method::GET, target, HeaderMap::new());
    view.ok().filter(|_| is_target)
}

/// A message between siblings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum SiblingMessage {
    /// Events to apply.
    Pass(EventMessage),
    /// A query for events.
    Ask(EventQuery),
}

/// Events of one log, between two positions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventMessage {
    /// The log.
    pub(crate) origin: String,
    /// The sending process.
    pub(crate) instance: String,
    /// The position that the receiver must have reached; `None` for the beginning.
    pub(crate) prev: Option<LogPosition>,
    /// The position of the receiver after the message.
    pub(crate) next: LogPosition,
    /// The events in between.
    pub(crate) events: Vec<FlushEvent>,
}

/// A query for later events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// The querying process.
    pub(crate) instance: String,
    /// The position received so far in each log.
    pub(crate) heard: Vec<(String, LogPosition)>,
}

/// The response to a message whose events do not begin at the receiver's position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PositionMismatch {
    /// The receiver's position.
    pub(crate) position: Option<LogPosition>,
}

impl SiblingMessage {
    /// Parses a message; `None` if it is malformed or too large.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let sibling_message: Self = serde_json::from_slice(bytes).ok()?;
        let is_sound = match &sibling_message {
            Self::Pass(message) => message.is_valid(),
            Self::Ask(ask) => {
                let is_known =
                    |(origin, at): &(String, LogPosition)| is_valid_id(origin) && at.is_valid();
                is_valid_id(&ask.instance) && ask.heard.iter().all(is_known)
            }
        };
        is_sound.then_some(sibling_message)
    }
}

impl EventMessage {
    pub(super) fn is_valid(&self) -> bool {
        is_valid_id(&self.origin)
            && is_valid_id(&self.instance)
            && self.prev.as_ref().is_none_or(LogPosition::is_valid)
            && self.next.is_valid()
            && self.events.len() <= MAX_MESSAGE_EVENTS
            && self.events.iter().all(FlushEvent::is_valid)
    }
}

#[cfg(test)]
mod tests {
    use super::{FlushEvent, SiblingMessage};
    use tympan_web::flush_message::{FlushAction, FlushMessage, FlushScope};

    /// A message of version 1, which every later version must be able to read.
    const SAMPLE: &str = r#"{"pass":{"origin":"5f","instance":"a1","prev":{"run":"r1","count":2},"next":{"run":"r2","count":7},"events":[{"flush":{"action":"Activate","handle":"/content/übersicht","resource_only":true,"refetch":["/content/a.html?x=1"],"sequence":12}},{"flush":{"action":"Delete","handle":"/content/b"}},{"page":"/content/a%20b.html?x=1"},{"keys":["teaser","nav"]},"stats","all"]}}"#;

    #[test]
    fn the_first_version_is_read_and_written() {
        let sibling_message = SiblingMessage::parse(SAMPLE.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&sibling_message).unwrap(), SAMPLE);
        let SiblingMessage::Pass(message) = sibling_message else { panic!("it is a message") };
        let FlushEvent::Flush(flush) = &message.events[0] else { panic!("it is a flush") };
        let flush = flush.to_flush_message().unwrap();
        let expected = FlushMessage {
            action: FlushAction::Activate,
            handle: "/content/übersicht".to_owned(),
            scope: Some(FlushScope::ResourceOnly),
            refetch: vec!["/content/a.html?x=1".to_owned()],
            sequence: Some(12),
            numbering: None,
        };
        assert_eq!(flush, expected);
        assert_eq!(FlushEvent::from_flush(&flush), message.events[0]);
        let ask = r#"{"ask":{"instance":"a1","heard":[["5f",{"run":"r1","count":2}]]}}"#;
        assert_eq!(
            serde_json::to_string(&SiblingMessage::parse(ask.as_bytes()).unwrap()).unwrap(),
            ask
        );
    }

    #[test]
    fn what_no_agent_could_send_no_sibling_can() {
        let check = |event: &str| {
            let text = format!(
                r#"{{"pass":{{"origin":"o","instance":"i","prev":null,"next":{{"run":"r","count":1}},"events":[{event}]}}}}"#
            );
            SiblingMessage::parse(text.as_bytes()).is_some()
        };
        assert!(check(r#""all""#) && check(r#"{"page":"/a.html"}"#));
        for event in [
            r#"{"flush":{"action":"Burn","handle":"/a"}}"#,
            r#"{"flush":{"action":"Activate","handle":"/a/../b"}}"#,
            r#"{"flush":{"action":"Activate","handle":"a"}}"#,
            r#"{"flush":{"action":"Activate","handle":"/a\r\nX: y"}}"#,
            r#"{"flush":{"action":"Activate","handle":"/a","more":1}}"#,
            r#"{"page":"a.html"}"#,
            r#"{"page":"http://example.com/a.html"}"#,
            r#"{"page":"/../../a.html"}"#,
            r#"{"keys":["a b"]}"#,
            r#""everything""#,
        ] {
            assert!(!check(event), "{event}");
        }
        let many = format!("{}\"all\"", "\"all\",".repeat(super::MAX_MESSAGE_EVENTS));
        assert!(!check(&many));
        for text in [
            r#"{"ask":{"instance":"a b","heard":[]}}"#,
            r#"{"pass":{"origin":"","instance":"i","prev":null,"next":{"run":"r","count":1},"events":[]}}"#,
            "{}",
            "",
            "[[[[",
        ] {
            assert_eq!(SiblingMessage::parse(text.as_bytes()), None, "{text}");
        }
    }
}
