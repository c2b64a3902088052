//! The options of a site's export.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::address_resolver::ExportRuleSet;
use crate::rule::ExportRule;

/// The extensions that OpenCms exports by default, and more recent ones.
pub const DEFAULT_SUFFIXES: [&str; 29] = [
    ".jpg", ".jpeg", ".gif", ".png", ".svg", ".webp", ".avif", ".ico", ".doc", ".docx", ".xls",
    ".xlsx", ".ppt", ".pptx", ".pdf", ".txt", ".css", ".js", ".mjs", ".map", ".zip", ".swf",
    ".mp3", ".mp4", ".webm", ".woff", ".woff2", ".ttf", ".otf",
];

/// When files are created and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StaticExportHandler {
    /// Files are created when a visitor requests them, and removed when a change affects them.
    #[default]
    OnDemand,
    /// As above, but a change removes all pages in the folder of the changed resource.
    OnDemandSubtree,
    /// A change re-creates the files that it affects.
    AfterPublish,
}

/// Options of a site's export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// The folder.
    pub dir: PathBuf,
    /// When files are created.
    pub handler: StaticExportHandler,
    /// The paths of the site's content roots.
    pub content_roots: Vec<String>,
    /// The export decision for resources without a setting in content.
    pub is_exported_by_default: bool,
    /// Extensions that are exported without a setting in content, with their dot and in lower case.
    pub suffixes: Vec<String>,
    /// URL prefix of exported files, such as `/export`.
    pub prefix: String,
    /// URL prefix of resources that are not exported.
    pub dynamic_prefix: String,
    /// True if links between exported pages are relative.
    pub has_relative_links: bool,
    /// The site's unencrypted server URL, such as `http://www.example.org`.
    pub server_url: String,
    /// The site's encrypted server URL.
    pub secure_server_url: String,
    /// The host for which pages are rendered; if set, `/etc/map` maps the links.
    pub host: String,
    /// Parts of the site with their own folder and prefix; the first matching rule applies.
    pub rules: Vec<ExportRule>,
    /// Number of previous trees to retain.
    pub max_backup_trees: usize,
}

impl ExportOptions {
    /// Returns the default options for a folder.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            handler: StaticExportHandler::default(),
            content_roots: vec!["/content".to_owned()],
            is_exported_by_default: false,
            suffixes: DEFAULT_SUFFIXES.iter().map(|suffix| (*suffix).to_owned()).collect(),
            prefix: String::new(),
            dynamic_prefix: String::new(),
            has_relative_links: false,
            server_url: String::new(),
            secure_server_url: String::new(),
            host: String::new(),
            rules: Vec::new(),
            max_backup_trees: 0,
        }
    }

    /// Returns a fingerprint of the settings that affect file contents: with other settings everything is rendered
    /// again.
    pub(crate) fn fingerprint(&self) -> String {
        let Self {
            content_roots: roots,
            is_exported_by_default: default,
            suffixes,
            prefix,
            dynamic_prefix,
            has_relative_links: is_relative,
            ..
        } = self;
        let Self { server_url: server, secure_server_url: secure_server, host, .. } = self;
        let mut text = format!(
            "{roots:?} {default} {suffixes:?} {prefix:?} {dynamic_prefix:?} {is_relative} {server:?} {secure_server:?} {host:?}"
        );
        // Without rules, the fingerprint is the same as before rules existed.
        self.rules
            .iter()
            .for_each(|rule| text.push_str(&format!(" {:?}", rule.fingerprint_parts())));
        format!("{:.16}", hex::encode(Sha256::digest(text)))
    }

    pub(crate) fn rule_set(&self) -> ExportRuleSet {
        let (suffixes, by_source) = (self.suffixes.clone(), self.rules.clone());
        ExportRuleSet {
            is_exported_by_default: self.is_exported_by_default,
            suffixes,
            source_rules: by_source,
        }
    }

    /// Returns the scheme and host that links are written for.
    pub(crate) fn scheme_and_host(&self) -> (&str, &str) {
        let scheme = if self.server_url.starts_with("https:") { "https" } else { "http" };
        (scheme, &self.host)
    }
}
