//! Content packages in the format of Apache Jackrabbit FileVault: reading, installing, building.
//!
//! In: a ZIP file. Out: the nodes that it describes ([`ContentPackage`]), the same nodes in a target
//! ([`ContentPackage::install`]), or a ZIP file again ([`build`]).
//!
//! Invariants
//! * A package is read and checked completely before anything is installed: a malformed one changes nothing.
//! * Bytes of files are not held in memory, except those of nested packages; they stream into the target.
//! * Memory, depth and unpacked size are bounded by [`PackageLimits`].
//! * Each element of a docview is either stored or listed in the report with the reason.
//!
//! On failure: [`Error::InvalidPackage`] with the file and the line, or several at once ([`Error::PackageFaults`]).
//!
//! Not here: commits of [`ContentPackage::install`]. The caller commits once, after an installation succeeded; the
//! packages that are stored in content are installed and committed by [`PackageSession::install`].
//!
//! Deliberately absent: hooks, which are Java programs.

mod account;
mod archive;
pub mod build;
mod content_difference;
mod content_package;
mod definition;
mod dependency;
pub mod docview;
mod entry_role;
mod error;
mod filter;
mod identifier;
mod import_node;
mod install_options;
mod install_report;
mod install_target;
mod installer;
mod keyword;
mod loader;
mod memory_usage;
mod nested_package;
mod package_counts;
mod package_id;
mod package_properties;
mod package_session;
mod permissive_type;
mod policy;
mod repoinit;
mod session_target;
mod stored_package;
mod uninstall_report;
mod version;
mod xml_reader;

pub use account::ACCOUNT_NODE_TYPES;
pub use archive::PackageLimits;
pub use content_difference::{ChangedNode, ChangedProperty, ContentDifference, NodeChangeKind};
pub use content_package::ContentPackage;
pub use dependency::PackageDependency;
pub use error::{Error, Result};
pub use filter::{FilterCoverage, FilterRoot, ImportMode, PackageFilter};
pub use import_node::{ImportNode, ImportNodeKind, ImportProperty, PackageLocation};
pub use install_options::{
    AuditStamp, DependencyRule, IdentifierRule, InstallOptions, NestedPackageRule,
};
pub use install_report::{InstallReport, SkipReason, SkippedPackageItem};
pub use install_target::{ExistingNode, InstallProgress, InstallTarget};
pub use package_id::PackageId;
pub use package_properties::{AccessControlHandling, PackageProperties};
pub use package_session::{IfPackageExists, PackageInstallation, PackageSession};
pub use repoinit::{RepoinitOutcome, RepoinitResult, run_repoinit};
pub use stored_package::{ReadSeek, StoredPackage, StoredPackages};
pub use uninstall_report::UninstallReport;
pub use version::{PackageVersion, VersionRange};
