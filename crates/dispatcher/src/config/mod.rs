//! The typed configuration of `dispatcher.any`: farms with every default filled in.
//!
//! Input: the items of `any`. Output: [`DispatcherConfig`] and diagnostics. An unknown key is a diagnostic with the
//! nearest known key, and the whole element below it is skipped, because people disable a block by renaming it.
//!
//! Invariants
//! * A rule that cannot be read never permits what it was meant to deny: broken patterns match in rules that deny and
//!   do not match in rules that allow.
//!
//! Not here: applying the rules (`farm`, `filter`, `decision`).

pub mod any_syntax;
pub(crate) mod check;
pub(crate) mod comparison;
pub(crate) mod compiled_settings;
pub(crate) mod explanation;
pub(crate) mod front_settings;
pub(crate) mod glob;
pub(crate) mod httpd_converter;
pub(crate) mod pattern;
pub(crate) mod setting_text;
pub(crate) mod settings;

mod access_list;
mod cache;
mod disk_quota;
mod farm;
mod filter;
mod fragment;
mod health;
mod reader;
mod render;
mod request_element;
mod variant_limit;
mod virtual_host;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use access_list::{AccessList, AccessRule, RuleVerdict};
pub use cache::{CacheConfig, FlushMode, RevalidateMode, StatFileLayout};
pub use disk_quota::DiskQuota;
pub use farm::{
    AuthCheckerConfig, ClientHeaderPolicy, FarmConfig, SessionManagementConfig, ShareConfig,
    StatisticsCategory, StickyConfig, VanityUrlsConfig,
};
pub use filter::{FilterMatcher, FilterRule};
pub use health::HealthRules;
pub use render::RenderConfig;
pub use request_element::{REQUEST_ELEMENT_KEYS, RequestElement};
pub use variant_limit::{OverLimitAction, VariantLimit};
pub use virtual_host::VirtualHostPattern;
pub(crate) use virtual_host::{is_literal_pattern, parse_host, split_port};

use crate::config::any_syntax::{
    ConfigBlock, ConfigDiagnostic, ConfigSources, DiagnosticSeverity, ParsedConfigFile, parse_file,
    parse_text,
};
use reader::ConfigReader;

/// A whole configuration.
#[derive(Debug, Clone)]
pub struct DispatcherConfig {
    /// The name of the instance, for logs only.
    pub name: Option<String>,
    /// The farms in textual order; selection tries the last one first.
    pub farms: Vec<Arc<FarmConfig>>,
}

/// A configuration and its diagnostics.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The part of the configuration that could be read; must not be served if there are errors.
    pub config: DispatcherConfig,
    /// All diagnostics, those of the syntax first.
    pub diagnostics: Vec<ConfigDiagnostic>,
    /// The files that were read, and the folders in which include patterns are expanded.
    pub files: Vec<PathBuf>,
}

impl LoadedConfig {
    /// Returns true if a diagnostic makes the configuration unusable.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error)
    }
}

impl DispatcherConfig {
    /// Returns true if a render, a sibling or a shadow render uses TLS.
    #[must_use]
    pub fn has_secure_render(&self) -> bool {
        let mut renders = self.farms.iter().flat_map(|farm| {
            let shadow = farm.shadow_renders.iter().flat_map(|(_, renders)| renders);
            farm.renders.iter().chain(&farm.siblings).chain(shadow)
        });
        renders.any(|render| render.is_secure)
    }

    /// Reads `file` and all its includes.
    #[must_use]
    pub fn load(file: &Path, sources: &ConfigSources) -> LoadedConfig {
        Self::from_parsed(parse_file(file, sources))
    }

    /// Reads `file` to check it; a file without `/farms` is treated as a fragment that others include.
    #[must_use]
    pub fn load_to_check(file: &Path, sources: &ConfigSources) -> LoadedConfig {
        let parsed = parse_file(file, sources);
        if parsed.block.items.iter().any(|item| item.name() == Some("farms")) {
            return Self::from_parsed(parsed);
        }
        let mut reader = ConfigReader::new(parsed.diagnostics);
        let config = fragment::read_fragment(&mut reader, &parsed.block);
        LoadedConfig { config, diagnostics: reader.finish(), files: parsed.files }
    }

    /// Parses `text` as the content of `file`.
    #[must_use]
    pub fn parse(text: &[u8], file: &Path, sources: &ConfigSources) -> LoadedConfig {
        Self::from_parsed(parse_text(text, file, sources))
    }

    fn from_parsed(parsed: ParsedConfigFile) -> LoadedConfig {
        let mut reader = ConfigReader::new(parsed.diagnostics);
        let config = read_config(&mut reader, &parsed.block);
        LoadedConfig { config, diagnostics: reader.finish(), files: parsed.files }
    }
}

const TOP_LEVEL_KEYS: [&str; 3] = ["name", "farms", "ignoreEINTR"];

fn read_config(reader: &mut ConfigReader, block: &ConfigBlock) -> DispatcherConfig {
    let mut config = DispatcherConfig { name: None, farms: Vec::new() };
    let mut has_farms = false;
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "name" => config.name = reader.read_text(&entry),
            "farms" => {
                has_farms = true;
                if let Some(farms) = reader.read_block(&entry) {
                    read_farms(reader, farms, &mut config.farms);
                }
            }
            "ignoreEINTR" => {
                reader.read_boolean(&entry);
            }
            _ => reader.warn_of_unknown_key(&entry, &TOP_LEVEL_KEYS),
        }
    }
    if !has_farms {
        reader.add_error(&block.position, "no `/farms` section; add one with at least one farm");
    } else if config.farms.is_empty() {
        reader.add_error(&block.position, "`/farms` has no farm; add one");
    }
    config
}

fn read_farms(reader: &mut ConfigReader, block: &ConfigBlock, farms: &mut Vec<Arc<FarmConfig>>) {
    for entry in reader.labelled_entries(block) {
        let Some(inner) = reader.read_block(&entry) else {
            continue;
        };
        if farms.iter().any(|farm| farm.name == entry.name()) {
            reader.add_error(
                entry.position(),
                format!("a farm `/{}` already exists; rename one", entry.name()),
            );
        }
        let farm = farm::read_farm(reader, entry.key, inner);
        farms.push(Arc::new(farm));
    }
}
