//! What dispatchers tell each other, as it goes over the wire; `docs/formats/passed-flushes.md` describes the bytes.

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::{Deserialize, Serialize};
use tympan_web::flush_message::{self, FlushMessage, FlushScope};

use crate::request_view::RequestView;

/// Marks a message: the version, and the farm's name in percent-encoding.
pub(crate) const FLUSH_EVENTS_HEADER: HeaderName = HeaderName::from_static("x-tympan-passed");
/// The version of messages.
pub(super) const MESSAGE_VERSION: &str = "1";
/// A longer message is refused. An event is a flush, whose body has at most 1 MiB, and some bytes take more in JSON.
pub(super) const MAX_MESSAGE_BYTES: u64 = 8 * 1024 * 1024;
/// More events are not sent at once, and refused.
pub(super) const MAX_MESSAGE_EVENTS: usize = 256;
/// No log grows so long, and every program that reads JSON knows the number.
const MAX_EVENT_NUMBER: u64 = 1 << 53;
/// A longer name of a log or run is none.
const MAX_ID_BYTES: usize = 200;

/// How far a log goes, or how far it was heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogPosition {
    /// The run of the process that wrote the event there: a log that was restored from a backup goes on by another one.
    pub(crate) run: String,
    /// The number of the event, from 1 on.
    pub(crate) count: u64,
}

impl LogPosition {
    pub(super) fn is_valid(&self) -> bool {
        is_valid_id(&self.run) && self.count <= MAX_EVENT_NUMBER
    }
}

/// Tells whether a name can stand in a line with others.
pub(super) fn is_valid_id(text: &str) -> bool {
    let is_short = (1..=MAX_ID_BYTES).contains(&text.len());
    is_short && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Something that was flushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FlushEvent {
    /// A flush message.
    Flush(ForwardedFlush),
    /// `PURGE` of one page: path and query.
    Page(String),
    /// All pages that carry one of these words.
    Keys(Vec<String>),
    /// Everything that obeys `.stat` files, as flushes of a publisher were lost.
    Stats,
    /// Every file.
    All,
}

/// A flush message without what is between its sender and the first dispatcher alone (`X-Tympan-Order`).
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
    /// Returns what is told of a flush.
    pub(crate) fn from_flush(message: &FlushMessage) -> Self {
        Self::Flush(ForwardedFlush {
            action: message.action.as_str().to_owned(),
            handle: message.handle.clone(),
            resource_only: message.scope == Some(FlushScope::ResourceOnly),
            refetch: message.refetch.clone(),
            sequence: message.sequence,
        })
    }

    /// Tells whether the event could have come by itself as well.
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
    /// Returns the message, read by the rules for those of agents; nothing if they refuse it.
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

/// Returns the request for a page that is to be forgotten.
pub(super) fn page_request(target: &str) -> Option<RequestView> {
    let is_target = target.starts_with('/');
    let view = RequestView::from_url(Method::GET, target, HeaderMap::new());
    view.ok().filter(|_| is_target)
}

/// Either kind of message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum SiblingMessage {
    /// These events came.
    Pass(EventMessage),
    /// What came since?
    Ask(EventQuery),
}

/// Events of one log, from one position to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventMessage {
    /// The log.
    pub(crate) origin: String,
    /// The process that sends.
    pub(crate) instance: String,
    /// How far who gets it must have heard; `None` if nothing.
    pub(crate) prev: Option<LogPosition>,
    /// How far it has heard then.
    pub(crate) next: LogPosition,
    /// What came between.
    pub(crate) events: Vec<FlushEvent>,
}

/// A question for what came since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// The process that asks.
    pub(crate) instance: String,
    /// How far it has heard of which log.
    pub(crate) heard: Vec<(String, LogPosition)>,
}

/// The answer to a message whose events do not begin where its receiver is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PositionMismatch {
    /// How far it has heard.
    pub(crate) position: Option<LogPosition>,
}

impl SiblingMessage {
    /// Reads a message; nothing if it is anything else, or too much.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let told: Self = serde_json::from_slice(bytes).ok()?;
        let is_sound = match &told {
            Self::Pass(message) => message.is_valid(),
            Self::Ask(ask) => {
                let is_known =
                    |(origin, at): &(String, LogPosition)| is_valid_id(origin) && at.is_valid();
                is_valid_id(&ask.instance) && ask.heard.iter().all(is_known)
            }
        };
        is_sound.then_some(told)
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

    /// The bytes of version 1, which every later version must read.
    const SAMPLE: &str = r#"{"pass":{"origin":"5f","instance":"a1","prev":{"run":"r1","count":2},"next":{"run":"r2","count":7},"events":[{"flush":{"action":"Activate","handle":"/content/übersicht","resource_only":true,"refetch":["/content/a.html?x=1"],"sequence":12}},{"flush":{"action":"Delete","handle":"/content/b"}},{"page":"/content/a%20b.html?x=1"},{"keys":["teaser","nav"]},"stats","all"]}}"#;

    #[test]
    fn the_first_version_is_read_and_written() {
        let told = SiblingMessage::parse(SAMPLE.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&told).unwrap(), SAMPLE);
        let SiblingMessage::Pass(message) = told else { panic!("it is a message") };
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
