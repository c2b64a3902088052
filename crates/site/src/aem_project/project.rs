//! A project that was read: packages, scripts and the report.

use std::path::PathBuf;

use tempfile::TempDir;
use tympan_content_package::PackageId;

use super::project_report::AemProjectReport;
use super::setting_list::RepoinitScript;

/// A project that was read.
#[derive(Debug)]
pub struct AemProject {
    /// The packages, in the order of their installation.
    pub packages: Vec<AemProjectPackage>,
    /// The scripts of repository initialization, in order.
    pub repoinit_scripts: Vec<RepoinitScript>,
    /// What runs here and what does not.
    pub report: AemProjectReport,
    /// Holds the files of embedded and packed packages.
    pub(super) _folder: TempDir,
}

/// A content package of a project.
#[derive(Debug)]
pub struct AemProjectPackage {
    /// The identifier.
    pub id: PackageId,
    /// The file.
    pub file: PathBuf,
    /// Where it was found: a file, or a file within another one.
    pub origin: String,
}
