//! Checking of a file that holds only a part of a configuration: a farm, a filter, a list of rules.
//!
//! Users check the file that they edit, which others include. The kind of part is guessed from its keys. For a file
//! without recognizable keys, such as a list of header names, only the syntax is checked.

use std::sync::Arc;

use super::cache::{CACHE_KEYS, read_cache};
use super::farm::{FARM_KEYS, FarmConfig, read_auth_checker, read_farm_sections};
use super::filter::{FilterRule, read_filter};
use super::reader::ConfigReader;
use super::render::{RENDER_KEYS, read_renders};
use super::{DispatcherConfig, access_list};
use crate::config::any_syntax::{ConfigBlock, ConfigItem, ConfigKey, ConfigValue};

/// The keys of `/auth_checker`.
const AUTH_CHECKER_KEYS: [&str; 3] = ["url", "filter", "headers"];

/// The detected kind of a configuration fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConfigFragmentKind {
    Farms,
    Farm,
    Cache,
    Filter,
    AccessList,
    Renders,
    AuthChecker,
    Defines,
    Unknown,
}

/// Reads a fragment; the result holds the farms that could be built from it.
pub(super) fn read_fragment(reader: &mut ConfigReader, block: &ConfigBlock) -> DispatcherConfig {
    let kind = guess_fragment_kind(block);
    let mut config = DispatcherConfig { name: None, farms: Vec::new() };
    if !block.items.is_empty() {
        let section = match kind {
            ConfigFragmentKind::Farms => "farms",
            ConfigFragmentKind::Farm => "a farm's sections",
            ConfigFragmentKind::Cache => "a cache section",
            ConfigFragmentKind::Filter => "a filter's rules",
            ConfigFragmentKind::AccessList => "a list of rules",
            ConfigFragmentKind::Renders => "renders",
            ConfigFragmentKind::AuthChecker => "an auth checker",
            ConfigFragmentKind::Defines => {
                "`Define` lines of httpd, which `tympan dispatcher convert` reads together with the vhost file"
            }
            ConfigFragmentKind::Unknown => "plain values",
        };
        reader.add_warning(
            &block.position,
            format!(
                "no `/farms` section, so the file is checked as a part of a configuration: {section}"
            ),
        );
    }
    let key = ConfigKey { name: "fragment".to_owned(), position: block.position.clone() };
    match kind {
        ConfigFragmentKind::Farms => super::read_farms(reader, block, &mut config.farms),
        ConfigFragmentKind::Farm => {
            let farm = read_farm_sections(reader, &key, block);
            config.farms.extend(farm.filter.map(|rules| farm_with_filter(&key, rules)));
        }
        ConfigFragmentKind::Cache => drop(read_cache(reader, block)),
        ConfigFragmentKind::Filter => {
            let rules = read_filter(reader, block);
            config.farms.push(farm_with_filter(&key, rules));
        }
        ConfigFragmentKind::AuthChecker => drop(read_auth_checker(reader, &block.position, block)),
        ConfigFragmentKind::AccessList => {
            drop(access_list::read_access_list(reader, block, access_list::RuleVerdict::Deny))
        }
        ConfigFragmentKind::Renders => drop(read_renders(reader, block)),
        ConfigFragmentKind::Defines | ConfigFragmentKind::Unknown => {}
    }
    config
}

/// Returns a farm that holds only a filter, so that its rules are checked.
fn farm_with_filter(key: &ConfigKey, rules: Vec<FilterRule>) -> Arc<FarmConfig> {
    Arc::new(FarmConfig { filter: Some(rules), ..FarmConfig::new(key) })
}

fn guess_fragment_kind(block: &ConfigBlock) -> ConfigFragmentKind {
    let has = |keys: &[&str]| item_names(block).any(|name| keys.contains(&name));
    let inner_has = |keys: &[&str]| {
        inner_blocks(block).any(|block| item_names(block).any(|name| keys.contains(&name)))
    };
    // `/name` and `/headers` occur in several sections, so the most specific keys are tested first.
    if has(&["url"])
        && has(&["filter", "headers"])
        && item_names(block).all(|name| AUTH_CHECKER_KEYS.contains(&name))
    {
        ConfigFragmentKind::AuthChecker
    } else if has(&FARM_KEYS) {
        ConfigFragmentKind::Farm
    } else if has(&CACHE_KEYS) {
        ConfigFragmentKind::Cache
    } else if has(&RENDER_KEYS) || inner_has(&["hostname"]) {
        ConfigFragmentKind::Renders
    } else if inner_has(&["type"]) {
        let elements =
            ["method", "url", "path", "query", "selectors", "extension", "suffix", "protocol"];
        if inner_has(&elements) {
            ConfigFragmentKind::Filter
        } else {
            ConfigFragmentKind::AccessList
        }
    } else if inner_has(&FARM_KEYS) {
        ConfigFragmentKind::Farms
    } else if block.items.first().is_some_and(|item| has_text_value(item, "Define")) {
        ConfigFragmentKind::Defines
    } else {
        ConfigFragmentKind::Unknown
    }
}

fn has_text_value(item: &ConfigItem, expected_text: &str) -> bool {
    item.key.is_none()
        && matches!(&item.value, ConfigValue::Text(text) if text.text == expected_text)
}

fn item_names(block: &ConfigBlock) -> impl Iterator<Item = &str> {
    block.items.iter().filter_map(ConfigItem::name)
}

fn inner_blocks(block: &ConfigBlock) -> impl Iterator<Item = &ConfigBlock> {
    block.items.iter().filter_map(|item| match &item.value {
        ConfigValue::Block(block) => Some(block),
        ConfigValue::Text(_) | ConfigValue::Absent => None,
    })
}
