//! `/renders`: the hosts behind a farm.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::reader::{ConfigEntry, ConfigReader};
use crate::config::any_syntax::{ConfigBlock, ConfigItem};

/// The configuration of one render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderConfig {
    /// Its label, which sticky cookies contain; numbered from 0 where there is none.
    pub name: String,
    /// Its name or address; an IPv6 address is in brackets.
    pub hostname: String,
    /// The port.
    pub port: u16,
    /// The timeout for connecting; `None` waits as long as the kernel does.
    pub connect_timeout: Option<Duration>,
    /// The timeout for the head of the response, and for each piece of its body.
    pub receive_timeout: Option<Duration>,
    /// True if the connection uses TLS.
    pub is_secure: bool,
    /// True if the name is resolved for every request; otherwise for every new connection.
    pub is_always_resolved: bool,
    /// True if one of its IPv4 addresses is picked at random; otherwise its addresses are tried in order.
    pub picks_random_ipv4: bool,
    /// The maximum number of concurrent requests; `None` if unlimited (`/x-maxConcurrent`).
    pub max_concurrent_requests: Option<usize>,
    /// The maximum number of additional requests in the queue (`/x-maxQueue`).
    pub max_queued_requests: usize,
    /// The maximum time in the queue (`/x-queueWait`).
    pub queue_timeout: Duration,
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

/// The default length of the queue of a busy render.
const DEFAULT_MAX_QUEUE: u32 = 256;

/// The documented default timeout of a response.
const DEFAULT_RECEIVE_TIMEOUT: Duration = Duration::from_millis(600_000);

pub(super) fn read_renders(reader: &mut ConfigReader, block: &ConfigBlock) -> Vec<RenderConfig> {
    let is_bare =
        block.items.iter().any(|item| item.name().is_some_and(|name| RENDER_KEYS.contains(&name)));
    if is_bare {
        return read_render(reader, None, block, 0).into_iter().collect();
    }
    let mut renders: Vec<RenderConfig> = Vec::new();
    for (item, inner) in reader.rule_blocks(block) {
        renders.extend(read_render(reader, Some(item), inner, renders.len()));
    }
    renders
}

fn read_hostname(reader: &mut ConfigReader, entry: &ConfigEntry<'_>) -> Option<String> {
    let text = reader.read_text(entry)?;
    let text = text.trim();
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{text}]"));
    }
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let is_address = in_brackets.is_some_and(|text| text.parse::<Ipv6Addr>().is_ok());
    // An undefined variable was reported already.
    if !is_name && !is_address && !text.contains("${") {
        reader.add_warning(
            entry.position(),
            format!(
                "`/hostname` must be only a name or an address, not `{text}`; set the port in `/port`"
            ),
        );
    }
    Some(text.to_owned())
}

fn read_render(
    reader: &mut ConfigReader,
    item: Option<&ConfigItem>,
    block: &ConfigBlock,
    index: usize,
) -> Option<RenderConfig> {
    let (mut hostname, mut port, mut is_secure) = (None, None, false);
    let (mut is_always_resolved, mut takes_any_ipv4) = (false, false);
    let (mut timeout, mut receive_timeout) = (Duration::ZERO, DEFAULT_RECEIVE_TIMEOUT);
    let (mut max_concurrent, mut max_queue, mut queue_wait) =
        (None, DEFAULT_MAX_QUEUE, Duration::from_secs(10));
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "hostname" => hostname = read_hostname(reader, &entry),
            "port" => port = reader.read_port(&entry),
            "timeout" => timeout = reader.read_milliseconds(&entry).unwrap_or(timeout),
            "receiveTimeout" => {
                receive_timeout = reader.read_milliseconds(&entry).unwrap_or(receive_timeout);
            }
            "secure" => is_secure = reader.read_boolean(&entry).unwrap_or(false),
            "x-maxConcurrent" => {
                max_concurrent = reader.read_number(&entry).filter(|max| *max > 0);
            }
            "x-maxQueue" => max_queue = reader.read_number(&entry).unwrap_or(max_queue),
            "x-queueWait" => queue_wait = reader.read_seconds(&entry).unwrap_or(queue_wait),
            "ipv4" => takes_any_ipv4 = reader.read_boolean(&entry).unwrap_or(false),
            "always-resolve" => is_always_resolved = reader.read_boolean(&entry).unwrap_or(false),
            _ => reader.warn_of_unknown_key(&entry, &RENDER_KEYS),
        }
    }
    let at = item.and_then(ConfigItem::position).unwrap_or(&block.position);
    let Some(hostname) = hostname.filter(|hostname| !hostname.is_empty()) else {
        reader.add_warning(at, "this render has no `/hostname` and is skipped");
        return None;
    };
    let name = item.and_then(ConfigItem::name).map(str::to_owned);
    Some(RenderConfig {
        name: name.unwrap_or_else(|| index.to_string()),
        hostname,
        port: port.unwrap_or(if is_secure { 443 } else { 80 }),
        connect_timeout: (!timeout.is_zero()).then_some(timeout),
        receive_timeout: (!receive_timeout.is_zero()).then_some(receive_timeout),
        is_secure,
        is_always_resolved,
        picks_random_ipv4: takes_any_ipv4,
        max_concurrent_requests: max_concurrent.map(|max| max as usize),
        max_queued_requests: max_queue as usize,
        queue_timeout: queue_wait,
    })
}
