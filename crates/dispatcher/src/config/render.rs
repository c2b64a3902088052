//! `/renders`: the hosts behind a farm.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::read::{Entry, Reader};
use crate::any::{Block, Item};

/// One host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Render {
    /// Its label, which sticky cookies name; numbered from 0 where there is none.
    pub name: String,
    /// Name or address; one of IPv6 in brackets.
    pub hostname: String,
    /// The port.
    pub port: u16,
    /// Bound of connecting; `None` waits as long as the kernel does.
    pub timeout: Option<Duration>,
    /// Bound of waiting for the answer's head, and for each piece of its body.
    pub receive_timeout: Option<Duration>,
    /// Whether to speak TLS.
    pub is_secure: bool,
    /// Whether the name is resolved for every request; otherwise for every new connection.
    pub is_always_resolved: bool,
    /// Whether one of its IPv4 addresses is taken by chance; otherwise its addresses are tried in order.
    pub takes_any_ipv4: bool,
    /// How many requests it works on at once, if that is bounded (`/x-maxConcurrent`).
    pub max_concurrent: Option<usize>,
    /// How many more wait for their turn (`/x-maxQueue`).
    pub max_queue: usize,
    /// How long one waits (`/x-queueWait`).
    pub queue_wait: Duration,
}

pub(super) const RENDER_KEYS: [&str; 10] = [
    "hostname",
    "port",
    "timeout",
    "receiveTimeout",
    "ipv4",
    "secure",
    "always-resolve",
    "x-maxConcurrent",
    "x-maxQueue",
    "x-queueWait",
];

/// Requests that wait for a busy render unless configured.
const MAX_QUEUE: u32 = 256;

/// What the documentation gives as the bound of an answer.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(600_000);

pub(super) fn read_renders(reader: &mut Reader, block: &Block) -> Vec<Render> {
    let is_bare =
        block.items.iter().any(|item| item.name().is_some_and(|name| RENDER_KEYS.contains(&name)));
    if is_bare {
        return read_render(reader, None, block, 0).into_iter().collect();
    }
    let mut renders: Vec<Render> = Vec::new();
    for (item, inner) in reader.rules(block) {
        renders.extend(read_render(reader, Some(item), inner, renders.len()));
    }
    renders
}

fn read_hostname(reader: &mut Reader, entry: &Entry<'_>) -> Option<String> {
    let text = reader.text(entry)?;
    let text = text.trim();
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{text}]"));
    }
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let is_address = in_brackets.is_some_and(|text| text.parse::<Ipv6Addr>().is_ok());
    // A variable that is not set was told already.
    if !is_name && !is_address && !text.contains("${") {
        reader.warn(
            entry.at(),
            format!(
                "`/hostname` is a name or an address alone, not `{text}`; its port stands in `/port`"
            ),
        );
    }
    Some(text.to_owned())
}

fn read_render(
    reader: &mut Reader,
    item: Option<&Item>,
    block: &Block,
    index: usize,
) -> Option<Render> {
    let (mut hostname, mut port, mut is_secure) = (None, None, false);
    let (mut is_always_resolved, mut takes_any_ipv4) = (false, false);
    let (mut timeout, mut receive_timeout) = (Duration::ZERO, RECEIVE_TIMEOUT);
    let (mut max_concurrent, mut max_queue, mut queue_wait) =
        (None, MAX_QUEUE, Duration::from_secs(10));
    for entry in reader.entries(block) {
        match entry.name() {
            "hostname" => hostname = read_hostname(reader, &entry),
            "port" => port = reader.port(&entry),
            "timeout" => timeout = reader.milliseconds(&entry).unwrap_or(timeout),
            "receiveTimeout" => {
                receive_timeout = reader.milliseconds(&entry).unwrap_or(receive_timeout);
            }
            "secure" => is_secure = reader.boolean(&entry).unwrap_or(false),
            "x-maxConcurrent" => {
                max_concurrent = reader.number(&entry).filter(|max| *max > 0);
            }
            "x-maxQueue" => max_queue = reader.number(&entry).unwrap_or(max_queue),
            "x-queueWait" => queue_wait = reader.seconds(&entry).unwrap_or(queue_wait),
            "ipv4" => takes_any_ipv4 = reader.boolean(&entry).unwrap_or(false),
            "always-resolve" => is_always_resolved = reader.boolean(&entry).unwrap_or(false),
            _ => reader.unknown(&entry, &RENDER_KEYS),
        }
    }
    let at = item.and_then(Item::at).unwrap_or(&block.at);
    let Some(hostname) = hostname.filter(|hostname| !hostname.is_empty()) else {
        reader.warn(at, "this render has no `/hostname` and is skipped");
        return None;
    };
    let name = item.and_then(Item::name).map(str::to_owned);
    Some(Render {
        name: name.unwrap_or_else(|| index.to_string()),
        hostname,
        port: port.unwrap_or(if is_secure { 443 } else { 80 }),
        timeout: (!timeout.is_zero()).then_some(timeout),
        receive_timeout: (!receive_timeout.is_zero()).then_some(receive_timeout),
        is_secure,
        is_always_resolved,
        takes_any_ipv4,
        max_concurrent: max_concurrent.map(|max| max as usize),
        max_queue: max_queue as usize,
        queue_wait,
    })
}
