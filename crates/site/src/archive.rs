//! A site folder as a content package. Used by the build for the sample site and by the program for any other.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};

use zip::write::SimpleFileOptions;

/// Folders of a site that have content, by the name of the top-level node that they become.
pub(crate) const CONTENT_ROOTS: [&str; 4] = ["apps", "content", "conf", "etc.clientlibs"];
/// Folders whose children are filter roots themselves, because other sites have their own children there.
const SHARED_FOLDERS: [&str; 3] = ["content/dam", "content/_cq_tags", "apps"];

/// Packs top-level folders of a site, [`CONTENT_ROOTS`] or some of them, into a package with one filter root for each folder
/// that belongs to the site. `properties` is the file `properties.xml`, without which the package has no name.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn build_site_package(
    site: &Path,
    folders: &[&str],
    properties: Option<&str>,
) -> io::Result<Vec<u8>> {
    let mut files = Vec::new();
    let mut roots = BTreeSet::new();
    for root in folders {
        let folder = site.join(root);
        if folder.is_dir() {
            list_files(&folder, &mut files)?;
            find_filter_roots(site, &folder, &mut roots)?;
        }
    }
    files.sort();
    let mut filter = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<workspaceFilter version=\"1.0\">\n",
    );
    for root in &roots {
        // Writing to a string cannot fail.
        writeln!(filter, "  <filter root=\"{}\"/>", root.replace("_cq_tags", "cq:tags")).ok();
    }
    filter.push_str("</workspaceFilter>\n");
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().last_modified_time(zip::DateTime::default());
    let mut add = |name: &str, bytes: &[u8]| -> io::Result<()> {
        zip.start_file(name, options).map_err(io::Error::other)?;
        zip.write_all(bytes)
    };
    add("META-INF/vault/filter.xml", filter.as_bytes())?;
    if let Some(properties) = properties {
        add("META-INF/vault/properties.xml", properties.as_bytes())?;
    }
    for file in &files {
        let name = file.strip_prefix(site).unwrap_or(file).to_string_lossy().into_owned();
        add(&format!("jcr_root/{name}"), &fs::read(file)?)?;
    }
    Ok(zip.finish().map_err(io::Error::other)?.into_inner())
}

/// Lists the files below a folder.
fn list_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Finds the filter roots: the children of the top-level folders, and of the folders that sites share.
fn find_filter_roots(site: &Path, folder: &Path, roots: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let name = path.strip_prefix(site).unwrap_or(&path).to_string_lossy().into_owned();
        if SHARED_FOLDERS.contains(&name.as_str()) {
            find_filter_roots(site, &path, roots)?;
        } else {
            roots.insert(format!("/{name}"));
        }
    }
    Ok(())
}
