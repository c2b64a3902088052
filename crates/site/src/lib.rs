//! Sites: a folder with components, content and plans, which is checked, packed, and imported as content of an instance;
//! and projects of AEM, which are read for an import.
//!
//! The sample site is embedded as a content package that the build creates from the folder `site`.
//!
//! In: the folder of a site. Out: findings with file, line and column; a content package; content in a repository.
//!
//! Not here: rendering (`render`), packages of other systems (`content-package`), printing.

mod aem_project;
mod archive;
mod bench_page;
mod check;
mod description;
mod error;
mod new_site;
mod site_import;
mod site_push;

pub use aem_project::{
    AemImportProgress, AemImportTarget, AemProject, AemProjectOptions, AemProjectPackage,
    AemProjectReport, Bundle, BundleComponent, ImportState, LeftOutFile, PackageImport,
    RepoinitImport, RepoinitScript, RepositoryImportTarget, RewriteClass, RewriteList, RewriteUse,
    SettingFile, SettingList, import_aem_project, read_aem_project,
};
pub use check::{SiteFinding, check_site};
pub use description::{HeaderCheck, home_page_path, publisher_config};
pub use error::{Error, Result};
pub use new_site::create_site;
pub use site_import::{SiteNeighbors, import_site, put_indexes, read_site_package};
pub use site_push::{SitePushScope, build_push_package};
