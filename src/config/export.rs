//! `[export]`: pages as files, and the rules for parts of a site.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use tympan_render::export::{ExportOptions, ExportRule, StaticExportHandler};

/// Pages as files for a web server: what `tympan export` does, and with `dir` a running publisher.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExportSection {
    /// The folder that a running publisher exports to; default none, and it does not. The web server serves `current` in it.
    pub(crate) dir: Option<PathBuf>,
    /// When it makes files: `"on-demand"` when `/handle404` asks for one, `"on-demand-subtree"` the same, and a change takes
    /// away all pages in its folder, `"after-publish"` when a change concerns them. Default `"on-demand"`.
    pub(crate) handler: Option<ExportTrigger>,
    /// Where the site begins in content; default `["/content"]`.
    pub(crate) roots: Option<Vec<String>>,
    /// Whether a resource is exported about which content says nothing by a property `export`; default false, as in OpenCms.
    /// Set it to true for a site that is exported as a whole.
    pub(crate) default: Option<bool>,
    /// Extensions that are exported although content says nothing, such as `.jpg`. The default has those of OpenCms and what
    /// the web has learnt since.
    pub(crate) suffixes: Option<Vec<String>>,
    /// What stands before the file in the URL of an exported page, such as `"/export"`; default nothing.
    pub(crate) prefix: Option<String>,
    /// What stands before the path in the URL of a page that is not exported; default nothing.
    pub(crate) dynamic_prefix: Option<String>,
    /// Whether links between exported pages are relative; default false. Set it where the files are read from a disk.
    pub(crate) relative_links: Option<bool>,
    /// The site's address without encryption, for links from pages with `secure` to those without.
    pub(crate) server: Option<String>,
    /// The site's address with encryption, for links to pages with `secure`.
    pub(crate) secure_server: Option<String>,
    /// The host for which pages are drawn, so that `/etc/map` shortens links; default none.
    pub(crate) host: Option<String>,
    /// Parts of the site with a folder and a prefix of their own (`[[export.rule]]`), for several sites in one export; of
    /// several that fit a resource the first counts.
    pub(crate) rule: Vec<ParsedExportRule>,
    /// Whole exports before the present one that are kept; default 0.
    pub(crate) backups: Option<usize>,
}

/// A part of a site with a folder and a prefix of its own. The names of OpenCms's `rfs-rule` are understood, too.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportRuleText {
    /// A regular expression that fits the whole path of a resource, such as `"/content/de(/.*)?"`.
    source: String,
    /// What stands before the file in its URL: a path, or a server such as `"http://de.example.org"`; default nothing.
    #[serde(default, alias = "rfs-prefix")]
    prefix: String,
    /// The folder of the tree that the files go to, which a web server serves as a site of its own; default the top.
    #[serde(default, alias = "exportpath")]
    folder: String,
    /// Whether links between these pages are relative; default as for all.
    #[serde(default, alias = "userelativelinks")]
    relative_links: Option<bool>,
}

/// A rule whose expression and folder are sound.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "ExportRuleText")]
pub(crate) struct ParsedExportRule(ExportRule);

impl TryFrom<ExportRuleText> for ParsedExportRule {
    type Error = String;

    fn try_from(text: ExportRuleText) -> Result<Self, String> {
        let mut rule = ExportRule::new(&text.source, &text.prefix, &text.folder)?;
        rule.has_relative_links = text.relative_links;
        Ok(Self(rule))
    }
}

/// When files are made.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ExportTrigger {
    OnDemand,
    OnDemandSubtree,
    AfterPublish,
}

impl ExportSection {
    /// Returns the options for a folder.
    pub(crate) fn export_options(&self, dir: &Path) -> ExportOptions {
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
                Some(suffixes) => suffixes.iter().map(|one| one.to_ascii_lowercase()).collect(),
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
