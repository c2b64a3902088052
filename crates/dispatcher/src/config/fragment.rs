//! Checking a file that holds only a part of a configuration: a farm, a filter, a list of rules.
//!
//! People check the file that they edit, which others include. What it is a part of is guessed from its keys; a file
//! that tells nothing, such as a list of header names, is checked for its text only.

use super::cache::{CACHE_KEYS, read_cache};
use super::farm::{FARM_KEYS, read_sections};
use super::filter::read_filter;
use super::read::Reader;
use super::render::{RENDER_KEYS, read_renders};
use super::{Config, access};
use crate::any::{Block, Item, Key, Value};

/// What a part is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Farms,
    Farm,
    Cache,
    Filter,
    List,
    Renders,
    Unknown,
}

/// Reads a part; the farms of the result are what could be made of it.
pub(super) fn read_fragment(reader: &mut Reader, block: &Block) -> Config {
    let kind = guess(block);
    let mut config = Config { name: None, farms: Vec::new() };
    if !block.items.is_empty() {
        let what = match kind {
            Kind::Farms => "farms",
            Kind::Farm => "a farm's sections",
            Kind::Cache => "a cache section",
            Kind::Filter => "a filter's rules",
            Kind::List => "a list of rules",
            Kind::Renders => "renders",
            Kind::Unknown => "plain values",
        };
        reader.warn(
            &block.at,
            format!(
                "no `/farms` section, so the file is checked as a part of a configuration: {what}"
            ),
        );
    }
    match kind {
        Kind::Farms => super::read_farms(reader, block, &mut config.farms),
        Kind::Farm => {
            let key = Key { name: "fragment".to_owned(), at: block.at.clone() };
            drop(read_sections(reader, &key, block));
        }
        Kind::Cache => drop(read_cache(reader, block)),
        Kind::Filter => drop(read_filter(reader, block)),
        Kind::List => drop(access::read_list(reader, block, access::Verdict::Deny)),
        Kind::Renders => drop(read_renders(reader, block)),
        Kind::Unknown => {}
    }
    config
}

fn guess(block: &Block) -> Kind {
    let has = |keys: &[&str]| names(block).any(|name| keys.contains(&name));
    let inner_has =
        |keys: &[&str]| inner(block).any(|block| names(block).any(|name| keys.contains(&name)));
    // `/name` and `/headers` mean something in several places, so the surest signs go first.
    if has(&FARM_KEYS) {
        Kind::Farm
    } else if has(&CACHE_KEYS) {
        Kind::Cache
    } else if has(&RENDER_KEYS) || inner_has(&["hostname"]) {
        Kind::Renders
    } else if inner_has(&["type"]) {
        let elements =
            ["method", "url", "path", "query", "selectors", "extension", "suffix", "protocol"];
        if inner_has(&elements) { Kind::Filter } else { Kind::List }
    } else if inner_has(&FARM_KEYS) {
        Kind::Farms
    } else {
        Kind::Unknown
    }
}

fn names(block: &Block) -> impl Iterator<Item = &str> {
    block.items.iter().filter_map(Item::name)
}

fn inner(block: &Block) -> impl Iterator<Item = &Block> {
    block.items.iter().filter_map(|item| match &item.value {
        Value::Block(block) => Some(block),
        Value::Text(_) | Value::Absent => None,
    })
}
