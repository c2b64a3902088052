//! Static export: the pages of a site as files that any web server serves.
//!
//! Input: content, a renderer, [`ExportOptions`]. Output: a folder whose `current` is a tree of files, and a
//! [`ExportReport`].
//!
//! * [`StaticExporter::export_all`] renders everything into a new tree beside the one that is served, then serves the
//!   new one.
//! * [`StaticExporter::export_pending_changes`] renders the files that a change of content affects according to the
//!   tree's manifest, and new ones, and removes deleted ones.
//! * [`StaticExporter::export_on_demand`] renders a file that a web server did not find.
//!
//! Invariants
//! * A file is rendered with the rights of the export's user, never with those of the requesting user.
//! * A page that failed in whole or in part replaces no file; the next run renders it again.
//! * Requests of visitors create files only for resources and for names that an exported page links to: invented
//!   addresses cannot fill the disk.
//! * A file never stays after a change that affects it: a file rendered before the change and stored after it is
//!   rendered again.
//!
//! On failure: a full disk ends the run, and the served tree stays; the next run resumes.
//!
//! Not here: the schedule of runs and access control (`server`), the dispatcher's cache, which covers the on-demand
//! case by itself.

mod address_resolver;
mod folder;
mod manifest;
mod markup_rewrite;
mod on_demand;
mod rendering;
mod report;
mod rule;
mod run;
mod run_state;
mod seed_address;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tympan_content::{Repository, Snapshot};

use self::address_resolver::ExportRuleSet;
use self::folder::{ExportFolder, to_hex};
use self::manifest::ExportManifest;
use crate::Renderer;
use crate::image_address::ImageAddress;

pub use self::address_resolver::{ExportAddress, NotExportedReason};
pub use self::on_demand::OnDemandResponse;
pub use self::report::{ExportFinding, ExportListEntry, ExportReport};
pub use self::rule::ExportRule;
pub use self::run::{ExportProgressFn, ExportWriteMode, FullExportStart};

/// The extensions that OpenCms exports by default, and more recent ones.
pub const DEFAULT_SUFFIXES: [&str; 29] = [
    ".jpg", ".jpeg", ".gif", ".png", ".svg", ".webp", ".avif", ".ico", ".doc", ".docx", ".xls",
    ".xlsx", ".ppt", ".pptx", ".pdf", ".txt", ".css", ".js", ".mjs", ".map", ".zip", ".swf",
    ".mp3", ".mp4", ".webm", ".woff", ".woff2", ".ttf", ".otf",
];

/// The user with whose rights everything is rendered. If the user does not exist, anonymous rights apply.
pub const EXPORT_USER: &str = "Export";

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
    fn fingerprint(&self) -> String {
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
        to_hex(Sha256::digest(text).get(..8).unwrap_or_default())
    }

    fn rule_set(&self) -> ExportRuleSet {
        let (suffixes, by_source) = (self.suffixes.clone(), self.rules.clone());
        ExportRuleSet {
            is_exported_by_default: self.is_exported_by_default,
            suffixes,
            source_rules: by_source,
        }
    }

    /// Returns the scheme and host that links are written for.
    fn scheme_and_host(&self) -> (&str, &str) {
        let scheme = if self.server_url.starts_with("https:") { "https" } else { "http" };
        (scheme, &self.host)
    }
}

/// Renders sized images of assets.
pub trait ExportImageSource: std::fmt::Debug + Send + Sync {
    /// Returns the bytes; `None` if there is no such asset or the address is not permitted.
    ///
    /// # Errors
    /// A message, if the image cannot be rendered.
    fn render_image(
        &self,
        snapshot: &Snapshot,
        address: &ImageAddress,
    ) -> ExportResult<Option<bytes::Bytes>, String>;
}

/// The services that an export uses.
#[derive(Debug, Clone, Copy)]
pub struct ExportEnvironment<'a> {
    /// The content.
    pub repository: &'a Repository,
    /// Renders pages.
    pub renderer: &'a Renderer,
    /// Renders images.
    pub images: &'a dyn ExportImageSource,
}

/// The result of everything here that can fail.
pub type ExportResult<T, E = ExportError> = std::result::Result<T, E>;

/// An error of the export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Another process exports to the folder.
    #[error("another process exports to `{}`", dir.display())]
    Busy {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder cannot be used.
    #[error("cannot export to `{}`", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Content could not be read.
    #[error("cannot read the content to export")]
    Content(#[from] tympan_content::Error),
    /// Two states of content could not be compared.
    #[error("cannot compare the content with what is exported")]
    Comparison(#[source] Box<crate::Error>),
    /// The site's scripts could not be read.
    #[error("cannot read the scripts of the site to export")]
    Scripts(#[source] Box<crate::Error>),
    /// There is no unfinished run to resume.
    #[error("nothing has been exported to `{}` with these settings; do a full export first", dir.display())]
    NoUnfinishedRun {
        /// The folder.
        dir: PathBuf,
    },
}

impl ExportError {
    /// Returns true if a retry can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Folder { .. } => true,
            Self::Content(error) => error.is_transient(),
            Self::Comparison(_) | Self::Scripts(_) | Self::NoUnfinishedRun { .. } => false,
        }
    }
}

/// A tree and its manifest.
#[derive(Debug)]
struct ExportTree {
    number: u64,
    manifest: ExportManifest,
}

/// Exports to one folder.
#[derive(Debug)]
pub struct StaticExporter {
    options: ExportOptions,
    folder: ExportFolder,
    tree: Mutex<Option<ExportTree>>,
    /// Held while a run changes the tree; requests change it too, one file at a time.
    run_lock: Mutex<()>,
    /// Number of content changes that were processed.
    followed_changes: AtomicU64,
    folder_names: Mutex<on_demand::FolderNameCache>,
}

impl StaticExporter {
    /// Opens the folder of an export, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ExportError::Busy`], or [`ExportError::Folder`] if it cannot be used or holds something else.
    pub fn open(options: ExportOptions) -> ExportResult<Self> {
        let folder = ExportFolder::open(&options.dir).map_err(|source| match source.kind() {
            std::io::ErrorKind::WouldBlock => ExportError::Busy { dir: options.dir.clone() },
            _ => ExportError::Folder { dir: options.dir.clone(), source },
        })?;
        let exporter = Self {
            options,
            folder,
            tree: Mutex::new(None),
            run_lock: Mutex::new(()),
            followed_changes: AtomicU64::new(0),
            folder_names: Mutex::default(),
        };
        *exporter.tree.lock() = exporter.open_served_tree()?;
        Ok(exporter)
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &ExportOptions {
        &self.options
    }

    /// Returns the folder that a web server serves.
    #[must_use]
    pub fn served_dir(&self) -> PathBuf {
        self.options.dir.join("current")
    }

    /// Returns the number of files.
    #[must_use]
    pub fn file_count(&self) -> usize {
        let tree = self.tree.lock();
        tree.as_ref().map_or(0, |tree| {
            tree.manifest.iter().filter(|(_, entry)| entry.hash.is_some()).count()
        })
    }

    /// Opens the tree that is served; `None` if there is none with these settings.
    fn open_served_tree(&self) -> ExportResult<Option<ExportTree>> {
        self.folder.current_tree().map_or(Ok(None), |number| self.open_tree(number))
    }

    fn open_tree(&self, number: u64) -> ExportResult<Option<ExportTree>> {
        let manifest =
            ExportManifest::open(&self.folder.manifest_path(number), &self.options.fingerprint());
        match manifest {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            manifest => Ok(manifest
                .map_err(|error| self.folder_error(error))?
                .map(|manifest| ExportTree { number, manifest })),
        }
    }

    fn folder_error(&self, source: std::io::Error) -> ExportError {
        ExportError::Folder { dir: self.options.dir.clone(), source }
    }
}

/// Returns true if a content path is at or below another one.
fn is_at_or_below(path: &str, outer: &str) -> bool {
    outer == "/"
        || path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns true if the disk is full.
fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Returns the folder part of a file's name.
fn parent_folder(file: &str) -> &Path {
    Path::new(file).parent().unwrap_or_else(|| Path::new(""))
}
