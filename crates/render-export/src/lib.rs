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
mod config;
mod environment;
mod error;
mod exporter;
mod folder;
mod manifest;
mod markup_rewrite;
mod options;
mod rendering;
mod report;
mod rule;

pub use address_resolver::{ExportAddress, NotExportedReason};
pub use config::{ExportSection, ExportTrigger, ParsedExportRule};
pub use environment::{EXPORT_USER, ExportEnvironment, ExportImageSource};
pub use error::{ExportError, ExportResult};
pub use exporter::{
    ExportProgressFn, ExportWriteMode, FullExportStart, OnDemandResponse, StaticExporter,
};
pub use options::{DEFAULT_SUFFIXES, ExportOptions, StaticExportHandler};
pub use report::{ExportFinding, ExportListEntry, ExportReport};
pub use rule::ExportRule;
