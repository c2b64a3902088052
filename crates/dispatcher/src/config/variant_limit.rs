//! `/x-variantLimit`: the number of variants of one page that clients may make renders produce. Without it a high limit
//! applies.

use std::time::Duration;

use super::reader::{ConfigEntry, ConfigReader};
use crate::config::any_syntax::{ConfigBlock, SourcePosition};

/// The action for a request over the variant limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimitAction {
    /// Respond with 429.
    Refuse,
    /// Serve the page without its query, if that is cached and only the query makes the variant; otherwise respond with
    /// 429 (`/over "plain"`).
    ServeWithoutQuery,
}

/// The maximum number of variants of one page that may be rendered in a time window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VariantLimit {
    /// The limit per client (`/perClient`).
    pub max_per_client: Option<u32>,
    /// The limit for all clients together (`/total`).
    pub max_total: Option<u32>,
    /// The time window (`/window`, default 60 s).
    pub window: Duration,
    /// The action beyond the limit (`/over`, default 429).
    pub over_limit_action: OverLimitAction,
    /// True if queries count as variants even where they create no cache file.
    pub counts_queries: bool,
}

impl Default for VariantLimit {
    /// The limit of farms that set none: more variants than any visitor of a site requests of one page, and far too few
    /// to fill a disk with made-up URLs. Requests with queries to scripts remain unlimited, because they create no
    /// files.
    fn default() -> Self {
        Self {
            max_per_client: Some(100),
            max_total: None,
            window: Duration::from_secs(60),
            over_limit_action: OverLimitAction::Refuse,
            counts_queries: false,
        }
    }
}

/// A longer window blocks clients that have long stopped misbehaving.
const MAX_WINDOW_SECONDS: u32 = 24 * 60 * 60;

pub(super) fn read_variant_limit(
    reader: &mut ConfigReader,
    at: &SourcePosition,
    block: &ConfigBlock,
) -> Option<VariantLimit> {
    let mut limit =
        VariantLimit { max_per_client: None, counts_queries: true, ..VariantLimit::default() };
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "perClient" => limit.max_per_client = read_at_least_one(reader, &entry),
            "total" => limit.max_total = read_at_least_one(reader, &entry),
            "window" => match reader.read_number(&entry) {
                Some(seconds @ 1..=MAX_WINDOW_SECONDS) => {
                    limit.window = Duration::from_secs(seconds.into());
                }
                Some(_) => reader.add_error(
                    entry.position(),
                    format!("`/window` must be a number of seconds from 1 to {MAX_WINDOW_SECONDS}"),
                ),
                None => {}
            },
            "over" => match reader.read_text(&entry).as_deref() {
                Some("429") => limit.over_limit_action = OverLimitAction::Refuse,
                Some("plain") => limit.over_limit_action = OverLimitAction::ServeWithoutQuery,
                Some(other) => {
                    reader.add_warning(
                        entry.position(),
                        format!("`/over` must be `429` or `plain`, not `{other}`"),
                    );
                }
                None => {}
            },
            _ => reader.warn_of_unknown_key(&entry, &["perClient", "total", "window", "over"]),
        }
    }
    let limits = limit.max_per_client.or(limit.max_total);
    if limits.is_none() {
        let message = "`/x-variantLimit` has neither `/perClient` nor `/total`, so nothing is limited; write \
            `/x-variantLimit \"0\"` if that is intended";
        reader.add_warning(at, message);
    } else if limit
        .max_per_client
        .zip(limit.max_total)
        .is_some_and(|(per_client, all)| per_client > all)
    {
        reader.add_warning(at, "`/perClient` is above `/total`, which limits all clients together");
    }
    limits.map(|_| limit)
}

fn read_at_least_one(reader: &mut ConfigReader, entry: &ConfigEntry<'_>) -> Option<u32> {
    let number = reader.read_number(entry)?;
    if number == 0 {
        // The value is ambiguous, and either interpretation would surprise some users.
        let message = format!(
            "`/{}` must be at least 1; omit it for no limit, and refuse variants by `/filter`",
            entry.name()
        );
        reader.add_error(entry.position(), message);
        return None;
    }
    Some(number)
}
