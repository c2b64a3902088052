//! `tympan dispatcher export`: exports the servable content of the cache as an archive or a folder.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use tympan_dispatcher::config::{DispatcherConfig, FarmConfig};
use tympan_dispatcher::{CacheExport, Error, ExportSink, ExportSummary};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

/// The options of an export.
pub(super) struct CacheExportOptions<'a> {
    pub(super) farm: Option<&'a str>,
    pub(super) includes_stale: bool,
    pub(super) is_bodies_only: bool,
    pub(super) time: u64,
}

/// Runs the command; either an archive or a folder is given.
pub(super) fn run_cache_export(
    config: &DispatcherConfig,
    options: &CacheExportOptions<'_>,
    (tar, folder): (Option<&Path>, Option<&Path>),
    json: bool,
) -> CommandOutcome {
    let export = CacheExport {
        farm: find_farm(config, options.farm)?,
        now: SystemTime::now(),
        includes_stale: options.includes_stale,
        excludes_metadata: options.is_bodies_only,
        file_time: options.time,
    };
    let is_piped = tar == Some(Path::new("-"));
    let exported = match (tar, folder) {
        (Some(_), _) if is_piped => {
            let to = BufWriter::new(std::io::stdout().lock());
            tympan_dispatcher::export_cache(&export, ExportSink::Tar(to))
                .map_err(|error| export_fault(&error))?
        }
        (Some(file), _) => export_to_file(&export, file)?,
        (None, Some(folder)) => export_to_folder(&export, folder)?,
        (None, None) => {
            return Err(CommandFault::usage("no destination: give --tar FILE or --folder DIR"));
        }
    };
    print_export(&exported, json, is_piped);
    Ok(ExitCode::SUCCESS)
}

fn find_farm<'a>(
    config: &'a DispatcherConfig,
    name: Option<&str>,
) -> Result<&'a FarmConfig, CommandFault> {
    let keeps =
        |farm: &&FarmConfig| farm.cache.as_ref().is_some_and(|cache| cache.docroot.is_some());
    let mut farms = config.farms.iter().map(|farm| &**farm);
    if let Some(name) = name {
        let matching_farm = farms.find(|farm| farm.name == name);
        return matching_farm
            .ok_or_else(|| CommandFault::usage(format!("there is no farm `{name}`")));
    }
    let farms: Vec<&FarmConfig> = farms.filter(keeps).collect();
    match farms.as_slice() {
        [farm] => Ok(farm),
        [] => Err(CommandFault::usage("no farm has a `/cache` with a `/docroot`")),
        several => {
            let names: Vec<&str> = several.iter().map(|farm| farm.name.as_str()).collect();
            let names = names.join(", ");
            Err(CommandFault::usage(format!(
                "several farms have a cache; name one with --farm: {names}"
            )))
        }
    }
}

/// Writes to a temporary file first, so that an incomplete archive is never visible under the final name.
fn export_to_file(export: &CacheExport<'_>, file: &Path) -> Result<ExportSummary, CommandFault> {
    let part = partial_path(file);
    // Another export may write there, and a symbolic link would redirect the output.
    let to = File::create_new(&part).map_err(|error| create_fault(&part, &error))?;
    let written = tympan_dispatcher::export_cache(export, ExportSink::Tar(BufWriter::new(&to)))
        .map_err(|error| export_fault(&error));
    let placed = written.and_then(|exported| {
        to.sync_all().map_err(|error| write_fault(&part, &error))?;
        publish_partial_file(&part, file)?;
        Ok(exported)
    });
    if placed.is_err() {
        std::fs::remove_file(&part).ok();
    }
    placed
}

fn export_to_folder(
    export: &CacheExport<'_>,
    folder: &Path,
) -> Result<ExportSummary, CommandFault> {
    let is_free = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_free {
        let folder = folder.display();
        return Err(CommandFault::usage(format!(
            "`{folder}` is not empty; name an empty folder or a new one"
        )));
    }
    let part = partial_path(folder);
    if let Some(parent) = part.parent() {
        std::fs::create_dir_all(parent).map_err(|error| write_fault(parent, &error))?;
    }
    std::fs::create_dir(&part).map_err(|error| create_fault(&part, &error))?;
    let sink = ExportSink::<Vec<u8>>::Folder(part.clone());
    let placed =
        tympan_dispatcher::export_cache(export, sink).map_err(|error| export_fault(&error));
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
fn publish_partial_file(part: &Path, path: &Path) -> Result<(), CommandFault> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::rename(part, path)
        .and_then(|()| File::open(parent)?.sync_all())
        .map_err(|error| write_fault(path, &error))
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.components().as_path());
    name.push(".part");
    PathBuf::from(name)
}

/// Returns the fault for a temporary file that cannot be created.
fn create_fault(part: &Path, error: &std::io::Error) -> CommandFault {
    if error.kind() != std::io::ErrorKind::AlreadyExists {
        return write_fault(part, error);
    }
    let part = part.display();
    CommandFault::usage(format!(
        "`{part}` already exists: another export is writing it, or an interrupted export left it; in that \
         case, remove it"
    ))
}

fn write_fault(path: &Path, error: &std::io::Error) -> CommandFault {
    CommandFault::cannot_run(format!("cannot write `{}`: {error}", path.display()))
}

fn export_fault(error: &Error) -> CommandFault {
    match error {
        Error::NoDocroot(_) => CommandFault::usage(error_chain_text(error)),
        _ => CommandFault::cannot_run(error_chain_text(error)),
    }
}

#[expect(clippy::print_stderr, reason = "standard output may hold the archive")]
fn print_export(exported: &ExportSummary, json: bool, is_piped: bool) {
    let ExportSummary { files, bytes, stale, unserved, unsteady } = exported;
    let text = if json {
        serde_json::to_value(exported).unwrap_or_default().to_string()
    } else {
        let changing =
            if *unsteady > 0 { format!(", {unsteady} that kept changing") } else { String::new() };
        format!(
            "{files} pages with {bytes} bytes; left out: {stale} that are stale, {unserved} that are not \
             served to visitors from the cache{changing}"
        )
    };
    if is_piped {
        eprintln!("{text}");
    } else {
        say!("{text}");
    }
}
