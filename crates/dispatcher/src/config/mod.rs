//! What a `dispatcher.any` means: typed farms with every default filled in.
//!
//! In: the items of `any`. Out: [`Config`] and findings; an unknown key is a finding with the nearest known key, and
//! the whole element below it is skipped, since people disable a block by renaming it.
//!
//! Invariants
//! * A rule that cannot be read never opens what it was meant to close: broken patterns match in rules that deny and
//!   miss in rules that allow.
//!
//! Not here: applying the rules (`farm`, `filter`, `decision`).

mod access;
mod bounds;
mod cache;
mod farm;
mod filter;
mod fragment;
mod health;
mod read;
mod render;
mod variant_limit;
mod virtual_host;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use access::{AccessList, AccessRule, Verdict};
pub use bounds::DiskBounds;
pub use cache::{Cache, FlushMode, Revalidate, StatFiles};
pub use farm::{AuthChecker, Category, ClientHeaders, Farm, Sessions, Share, Sticky, VanityUrls};
pub use filter::{ELEMENTS, Element, FilterRule, Matcher};
pub use health::HealthRules;
pub use render::Render;
pub use variant_limit::{OverLimit, VariantLimit};
pub use virtual_host::VirtualHost;
pub(crate) use virtual_host::{is_plain, read_host, split_port};

use crate::any::{Block, Diagnostic, Parsed, Severity, Sources, parse_file, parse_text};
use read::Reader;

/// A whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The instance's name, for logs only.
    pub name: Option<String>,
    /// The farms in textual order; selection goes from the last to the first.
    pub farms: Vec<Arc<Farm>>,
}

/// A configuration and what is wrong with it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What could be read; not to be served with while there are errors.
    pub config: Config,
    /// All findings, those of the text first.
    pub diagnostics: Vec<Diagnostic>,
    /// The files that were read, and the folders in which include patterns look.
    pub files: Vec<PathBuf>,
}

impl Loaded {
    /// Tells whether a finding forbids to serve with this configuration.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

impl Config {
    /// Reads `file` and all that it includes.
    #[must_use]
    pub fn load(file: &Path, sources: &Sources) -> Loaded {
        Self::read(parse_file(file, sources))
    }

    /// Reads `file` to check it: one without `/farms` is taken for a part that others include.
    #[must_use]
    pub fn load_to_check(file: &Path, sources: &Sources) -> Loaded {
        let parsed = parse_file(file, sources);
        if parsed.block.items.iter().any(|item| item.name() == Some("farms")) {
            return Self::read(parsed);
        }
        let mut reader = Reader::new(parsed.diagnostics);
        let config = fragment::read_fragment(&mut reader, &parsed.block);
        Loaded { config, diagnostics: reader.finish(), files: parsed.files }
    }

    /// Reads `text` as if it stood in `file`.
    #[must_use]
    pub fn parse(text: &[u8], file: &Path, sources: &Sources) -> Loaded {
        Self::read(parse_text(text, file, sources))
    }

    fn read(parsed: Parsed) -> Loaded {
        let mut reader = Reader::new(parsed.diagnostics);
        let config = read_config(&mut reader, &parsed.block);
        Loaded { config, diagnostics: reader.finish(), files: parsed.files }
    }
}

const TOP_KEYS: [&str; 3] = ["name", "farms", "ignoreEINTR"];

fn read_config(reader: &mut Reader, block: &Block) -> Config {
    let mut config = Config { name: None, farms: Vec::new() };
    let mut has_farms = false;
    for entry in reader.entries(block) {
        match entry.name() {
            "name" => config.name = reader.text(&entry),
            "farms" => {
                has_farms = true;
                if let Some(farms) = reader.block(&entry) {
                    read_farms(reader, farms, &mut config.farms);
                }
            }
            "ignoreEINTR" => {
                reader.boolean(&entry);
            }
            _ => reader.unknown(&entry, &TOP_KEYS),
        }
    }
    if !has_farms {
        reader.error(&block.at, "no `/farms` section; add one with at least one farm");
    } else if config.farms.is_empty() {
        reader.error(&block.at, "`/farms` holds no farm; add one");
    }
    config
}

fn read_farms(reader: &mut Reader, block: &Block, farms: &mut Vec<Arc<Farm>>) {
    for entry in reader.entries(block) {
        let Some(inner) = reader.block(&entry) else {
            continue;
        };
        if farms.iter().any(|farm| farm.name == entry.name()) {
            reader.error(
                entry.at(),
                format!("a farm `/{}` exists already; rename one", entry.name()),
            );
        }
        let farm = farm::read_farm(reader, entry.key, inner);
        farms.push(Arc::new(farm));
    }
}
