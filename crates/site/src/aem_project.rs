//! An AEM project: its content packages, bundles, configurations and repository initialization, and a report that says
//! what runs here and what does not.
//!
//! In: packages, bundles, folders of Maven projects and unpacked packages, and the run modes of the instance. Out: the
//! packages in the order of their installation, scripts of repository initialization, and an [`AemProjectReport`].
//!
//! Invariants
//! * Every package is read and checked completely before anything is installed.
//! * Each package is one commit, and so is each script; the first failure ends an import, and a second one goes on.
//! * Each file that is not taken over is named in the report.
//!
//! Not here: the installation of a package and of repository initialization (`content-package`), byte code of Java.

mod bundle;
mod left_out_file;
mod package_contents;
mod package_order;
mod project;
mod project_files;
mod project_import;
mod project_options;
mod project_reader;
mod project_report;
mod rewrite_list;
mod setting_list;

pub use bundle::{Bundle, BundleComponent};
pub use left_out_file::LeftOutFile;
pub use project::{AemProject, AemProjectPackage};
pub use project_import::{
    AemImportProgress, AemImportTarget, ImportState, PackageImport, RepoinitImport,
    RepositoryImportTarget, import_aem_project,
};
pub use project_options::AemProjectOptions;
pub use project_reader::read_aem_project;
pub use project_report::AemProjectReport;
pub use rewrite_list::{RewriteClass, RewriteList, RewriteUse};
pub use setting_list::{RepoinitScript, SettingFile, SettingList};
