//! Checking a file that holds only a part of a configuration: a farm, a filter, a list of rules.
//!
//! People check the file that they edit, which others include. What it is a part of is guessed from its keys; a file
//! that tells nothing, such as a list of header names, is checked for its text only.

use std::sync::Arc;

use super::cache::{CACHE_KEYS, read_cache};
use super::farm::{FARM_KEYS, Farm, read_auth_checker, read_sections};
use super::filter::{FilterRule, read_filter};
use super::read::Reader;
use super::render::{RENDER_KEYS, read_renders};
use super::{Config, access};
use crate::any::{Block, Item, Key, Value};

/// What `/auth_checker` holds.
const AUTH_CHECKER_KEYS: [&str; 3] = ["url", "filter", "headers"];

/// What a part is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Farms,
    Farm,
    Cache,
    Filter,
    List,
    Renders,
    AuthChecker,
    Defines,
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
            Kind::AuthChecker => "an auth checker",
            Kind::Defines => {
                "`Define` lines of httpd, which `tympan dispatcher convert` reads together with the vhost file"
            }
            Kind::Unknown => "plain values",
        };
        reader.warn(
            &block.at,
            format!(
                "no `/farms` section, so the file is checked as a part of a configuration: {what}"
            ),
        );
    }
    let key = Key { name: "fragment".to_owned(), at: block.at.clone() };
    match kind {
        Kind::Farms => super::read_farms(reader, block, &mut config.farms),
        Kind::Farm => {
            let farm = read_sections(reader, &key, block);
            config.farms.extend(farm.filter.map(|rules| farm_of_rules(&key, rules)));
        }
        Kind::Cache => drop(read_cache(reader, block)),
        Kind::Filter => {
            let rules = read_filter(reader, block);
            config.farms.push(farm_of_rules(&key, rules));
        }
        Kind::AuthChecker => drop(read_auth_checker(reader, &block.at, block)),
        Kind::List => drop(access::read_list(reader, block, access::Verdict::Deny)),
        Kind::Renders => drop(read_renders(reader, block)),
        Kind::Defines | Kind::Unknown => {}
    }
    config
}

/// Returns a farm that holds nothing but a filter, so that its rules are tried.
fn farm_of_rules(key: &Key, rules: Vec<FilterRule>) -> Arc<Farm> {
    Arc::new(Farm { filter: Some(rules), ..Farm::new(key) })
}

fn guess(block: &Block) -> Kind {
    let has = |keys: &[&str]| names(block).any(|name| keys.contains(&name));
    let inner_has =
        |keys: &[&str]| inner(block).any(|block| names(block).any(|name| keys.contains(&name)));
    // `/name` and `/headers` mean something in several places, so the surest signs go first.
    if has(&["url"])
        && has(&["filter", "headers"])
        && names(block).all(|name| AUTH_CHECKER_KEYS.contains(&name))
    {
        Kind::AuthChecker
    } else if has(&FARM_KEYS) {
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
    } else if block.items.first().is_some_and(|item| is_word(item, "Define")) {
        Kind::Defines
    } else {
        Kind::Unknown
    }
}

fn is_word(item: &Item, word: &str) -> bool {
    item.key.is_none() && matches!(&item.value, Value::Text(text) if text.text == word)
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
