//! `[export]`: pages as files, and the rules for parts of a site.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::options::{ExportOptions, StaticExportHandler};
use crate::rule::ExportRule;

/// Export of pages as files for a web server: by `tympan export`, and with `dir` by a running publisher.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExportSection {
    /// The folder that a running publisher exports to; default none, and it does not export. The web server serves
    /// `current` in it.
    pub dir: Option<PathBuf>,
    /// The trigger of an export: `"on-demand"` when `/handle404` requests a file, `"on-demand-subtree"` the same, but a
    /// change removes all pages in its folder, `"after-publish"` when a change affects pages. Default `"on-demand"`.
    pub handler: Option<ExportTrigger>,
    /// The roots of the site in content; default `["/content"]`.
    pub roots: Option<Vec<String>>,
    /// True if resources without a property `export` are exported; default false, as in OpenCms. Set it to true for a
    /// site that is exported as a whole.
    pub default: Option<bool>,
    /// Extensions that are exported even without a property `export`, such as `.jpg`; default those of OpenCms and newer
    /// formats.
    pub suffixes: Option<Vec<String>>,
    /// The URL prefix of exported pages, such as `"/export"`; default empty.
    pub prefix: Option<String>,
    /// The URL prefix of pages that are not exported; default empty.
    pub dynamic_prefix: Option<String>,
    /// True if links between exported pages are relative; default false. Set it if the files are opened from a disk.
    pub relative_links: Option<bool>,
    /// The site's address without TLS, for links from pages with `secure` to those without.
    pub server: Option<String>,
    /// The site's address with TLS, for links to pages with `secure`.
    pub secure_server: Option<String>,
    /// The host that pages are rendered for, so that `/etc/map` shortens links; default none.
    pub host: Option<String>,
    /// Parts of the site with a folder and a prefix of their own (`[[export.rule]]`), for several sites in one export;
    /// the first rule that matches a resource applies.
    pub rule: Vec<ParsedExportRule>,
    /// The number of previous full exports to keep; default 0.
    pub backups: Option<usize>,
}

/// A part of a site with a folder and a prefix of its own. The names of OpenCms's `rfs-rule` are accepted as well.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportRuleText {
    /// A regular expression that matches the whole path of a resource, such as `"/content/de(/.*)?"`.
    source: String,
    /// The URL prefix of the files: a path, or a server such as `"http://de.example.org"`; default empty.
    #[serde(default, alias = "rfs-prefix")]
    prefix: String,
    /// The target folder in the exported tree, which a web server serves as a separate site; default the top.
    #[serde(default, alias = "exportpath")]
    folder: String,
    /// True if links between these pages are relative; default the setting of `[export]`.
    #[serde(default, alias = "userelativelinks")]
    relative_links: Option<bool>,
}

/// A rule with a valid expression and folder.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(try_from = "ExportRuleText")]
#[schemars(with = "ExportRuleText")]
pub struct ParsedExportRule(ExportRule);

impl TryFrom<ExportRuleText> for ParsedExportRule {
    type Error = String;

    fn try_from(text: ExportRuleText) -> Result<Self, String> {
        let mut rule = ExportRule::new(&text.source, &text.prefix, &text.folder)?;
        rule.has_relative_links = text.relative_links;
        Ok(Self(rule))
    }
}

/// The trigger of an export.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExportTrigger {
    /// A request for a file that does not exist.
    OnDemand,
    /// The same, but a change removes all pages in its folder.
    OnDemandSubtree,
    /// A change that affects pages.
    AfterPublish,
}

impl ExportSection {
    /// Returns the options for a folder.
    pub fn export_options(&self, dir: &Path) -> ExportOptions {
        let usual = ExportOptions::new(dir);
        let prefix = |text: &Option<String>| {
            text.as_deref().unwrap_or_default().trim_end_matches('/').to_owned()
        };
        ExportOptions {
            handler: match self.handler {
                None | Some(ExportTrigger::OnDemand) => StaticExportHandler::OnDemand,
                Some(ExportTrigger::OnDemandSubtree) => StaticExportHandler::OnDemandSubtree,
                Some(ExportTrigger::AfterPublish) => StaticExportHandler::AfterPublish,
            },
            content_roots: self.roots.clone().unwrap_or(usual.content_roots),
            is_exported_by_default: self.default.unwrap_or(usual.is_exported_by_default),
            suffixes: match &self.suffixes {
                Some(suffixes) => {
                    suffixes.iter().map(|suffix| suffix.to_ascii_lowercase()).collect()
                }
                None => usual.suffixes,
            },
            prefix: prefix(&self.prefix),
            dynamic_prefix: prefix(&self.dynamic_prefix),
            has_relative_links: self.relative_links.unwrap_or(usual.has_relative_links),
            server_url: prefix(&self.server),
            secure_server_url: prefix(&self.secure_server),
            host: self.host.clone().unwrap_or_default(),
            rules: self.rule.iter().map(|rule| rule.0.clone()).collect(),
            max_backup_trees: self.backups.unwrap_or(usual.max_backup_trees),
            dir: usual.dir,
        }
    }
}
