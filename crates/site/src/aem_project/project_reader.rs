//! Reads a project: its files, then each package with those that are embedded in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tympan_content_package::{ContentPackage, PackageLimits};

use super::package_contents::PackageContents;
use super::package_order::{SortedPackage, sort_by_dependencies};
use super::project::AemProject;
use super::project_files::{ProjectFiles, unreadable};
use super::project_options::AemProjectOptions;
use super::project_report::AemProjectReport;
use super::setting_list::{RepoinitScript, choose_settings};
use crate::error::{Error, Result};

/// Reads the project in files and folders: content packages and bundles, folders of Maven projects with built packages
/// (`target/*.zip`) or sources (`jcr_root`), and files with repository initialization.
///
/// # Errors
/// [`Error::Refused`] if a path holds nothing of a project; [`Error::Package`] if a package is malformed;
/// [`Error::File`] if a file cannot be read or written.
pub fn read_aem_project(paths: &[PathBuf], options: &AemProjectOptions<'_>) -> Result<AemProject> {
    let folder = tempfile::tempdir().map_err(|source| Error::File {
        action: "cannot create a temporary folder".to_owned(),
        source,
    })?;
    let files = ProjectFiles::find(paths, folder.path())?;
    let mut reading = ProjectReading {
        options,
        folder: folder.path(),
        contents: PackageContents::default(),
        packages: Vec::new(),
        known_ids: BTreeSet::new(),
    };
    for (file, origin) in files.packages {
        reading.read_package(file, &origin)?;
    }
    let ProjectReading { mut contents, packages, .. } = reading;
    for (file, origin) in files.bundles {
        let bytes = std::fs::read(&file).map_err(|source| unreadable(&file, source))?;
        contents.add_bundle(&origin, bytes);
    }
    contents.left_out.extend(files.left_out);
    let packages = sort_by_dependencies(packages);
    let settings = choose_settings(&mut contents, options);
    let mut repoinit_scripts = settings.repoinit_scripts;
    for (file, origin) in files.repoinit_texts {
        let text = std::fs::read_to_string(&file).map_err(|source| unreadable(&file, source))?;
        repoinit_scripts.push(RepoinitScript { origin, text });
    }
    let report = AemProjectReport::new(contents, settings.list);
    Ok(AemProject {
        packages: packages.into_iter().map(|package| package.package).collect(),
        repoinit_scripts,
        report,
        _folder: folder,
    })
}

/// The project while its packages are read.
struct ProjectReading<'a> {
    options: &'a AemProjectOptions<'a>,
    /// The folder for the files of embedded packages.
    folder: &'a Path,
    contents: PackageContents,
    packages: Vec<SortedPackage>,
    known_ids: BTreeSet<String>,
}

/// The maximum depth of packages that are embedded in packages.
const MAX_EMBEDDING_DEPTH: usize = 4;

impl ProjectReading<'_> {
    /// Reads a package and those that are embedded in it.
    fn read_package(&mut self, file: PathBuf, origin: &str) -> Result<()> {
        let mut waiting = vec![(file, origin.to_owned(), 0)];
        while let Some((file, origin, depth)) = waiting.pop() {
            let mut package = ContentPackage::open(&file, &PackageLimits::default())?;
            // A module that was built lies in the package of the whole project, too.
            if !self.known_ids.insert(package.id().to_string()) {
                continue;
            }
            let modes = self.options.run_modes;
            let found = self.contents.read_package(&mut package, &origin, modes)?;
            for (position, (path, bytes)) in found.embedded.into_iter().enumerate().rev() {
                let embedded = self.folder.join(format!("{}-{position}.zip", self.known_ids.len()));
                std::fs::write(&embedded, bytes).map_err(|source| Error::File {
                    action: format!("cannot write `{}`", embedded.display()),
                    source,
                })?;
                if depth == MAX_EMBEDDING_DEPTH {
                    let message = "packages are embedded deeper than the limit".to_owned();
                    return Err(Error::Refused(format!("{origin}: {message}")));
                }
                waiting.push((embedded, format!("{origin}!{path}"), depth + 1));
            }
            if found.is_container {
                let reason = "it only contains other packages and bundles";
                self.contents.leave_out(&origin, reason);
                continue;
            }
            self.packages.push(SortedPackage::new(&package, file, origin));
        }
        Ok(())
    }
}
