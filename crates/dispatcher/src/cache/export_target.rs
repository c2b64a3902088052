//! The file or folder that an export of the cache fills: visible under its name only when it is complete.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use crate::cache::export::{CacheExport, ExportSink, ExportSummary, export_cache};
use crate::config::{DispatcherConfig, FarmConfig};
use crate::error::Error;

/// Finds the farm whose cache is exported: by its name, or the only one with a document root.
///
/// # Errors
/// [`Error::CacheFarm`] if there is no such farm, or if several have a document root and none is named.
pub fn find_cache_farm<'a>(
    config: &'a DispatcherConfig,
    name: Option<&str>,
) -> Result<&'a FarmConfig, Error> {
    let mut farms = config.farms.iter().map(|farm| &**farm);
    if let Some(name) = name {
        let matching_farm = farms.find(|farm| farm.name == name);
        return matching_farm.ok_or_else(|| Error::CacheFarm(format!("there is no farm `{name}`")));
    }
    let keeps =
        |farm: &&FarmConfig| farm.cache.as_ref().is_some_and(|cache| cache.docroot.is_some());
    let farms: Vec<&FarmConfig> = farms.filter(keeps).collect();
    match farms.as_slice() {
        [farm] => Ok(farm),
        [] => Err(Error::CacheFarm("no farm has a `/cache` with a `/docroot`".to_owned())),
        several => {
            let names: Vec<&str> = several.iter().map(|farm| farm.name.as_str()).collect();
            let names = names.join(", ");
            Err(Error::CacheFarm(format!(
                "several farms have a cache; name one with --farm: {names}"
            )))
        }
    }
}

/// Exports to an archive.
///
/// # Errors
/// [`Error::ExportTarget`] if another export writes there; otherwise if the cache cannot be read, or the archive not
/// written. No incomplete archive remains.
pub fn export_cache_to_file(export: &CacheExport<'_>, file: &Path) -> Result<ExportSummary, Error> {
    let part = partial_path(file);
    // Another export may write there, and a symbolic link would redirect the output.
    let to = File::create_new(&part).map_err(|error| create_error(&part, error))?;
    let written = export_cache(export, ExportSink::Tar(BufWriter::new(&to)));
    let placed = written.and_then(|exported| {
        to.sync_all().map_err(|error| write_error(&part, error))?;
        publish_partial_file(&part, file)?;
        Ok(exported)
    });
    if placed.is_err() {
        std::fs::remove_file(&part).ok();
    }
    placed
}

/// Exports to a folder, which must be empty or missing.
///
/// # Errors
/// As [`export_cache_to_file`], and [`Error::ExportTarget`] if the folder is not empty.
pub fn export_cache_to_folder(
    export: &CacheExport<'_>,
    folder: &Path,
) -> Result<ExportSummary, Error> {
    let is_free = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_free {
        let folder = folder.display();
        return Err(Error::ExportTarget(format!(
            "`{folder}` is not empty; name an empty folder or a new one"
        )));
    }
    let part = partial_path(folder);
    if let Some(parent) = part.parent() {
        std::fs::create_dir_all(parent).map_err(|error| write_error(parent, error))?;
    }
    std::fs::create_dir(&part).map_err(|error| create_error(&part, error))?;
    let placed = export_cache(export, ExportSink::<Vec<u8>>::Folder(part.clone()));
    let placed = placed.and_then(|exported| {
        publish_partial_file(&part, folder)?;
        Ok(exported)
    });
    if placed.is_err() {
        std::fs::remove_dir_all(&part).ok();
    }
    placed
}

/// Renames a synced file to its final name, durably.
fn publish_partial_file(part: &Path, path: &Path) -> Result<(), Error> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::rename(part, path)
        .and_then(|()| File::open(parent)?.sync_all())
        .map_err(|error| write_error(path, error))
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.components().as_path());
    name.push(".part");
    PathBuf::from(name)
}

/// Returns the error of a temporary file that cannot be created.
fn create_error(part: &Path, error: std::io::Error) -> Error {
    if error.kind() != std::io::ErrorKind::AlreadyExists {
        return write_error(part, error);
    }
    let part = part.display();
    Error::ExportTarget(format!(
        "`{part}` already exists: another export is writing it, or an interrupted export left it; in that case, \
         remove it"
    ))
}

fn write_error(path: &Path, source: std::io::Error) -> Error {
    Error::Create { file: path.to_owned(), source }
}
