//! `tympan dispatcher export`: exports the servable content of the cache as an archive or a folder.

use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use tympan_dispatcher::config::DispatcherConfig;
use tympan_dispatcher::{
    CacheExport, Error, ExportSink, ExportSummary, export_cache_to_file, export_cache_to_folder,
    find_cache_farm,
};
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
    tar: Option<&Path>,
    folder: Option<&Path>,
    json: bool,
) -> CommandOutcome {
    let export = CacheExport {
        farm: find_cache_farm(config, options.farm).map_err(|error| export_fault(&error))?,
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
        (Some(file), _) => {
            export_cache_to_file(&export, file).map_err(|error| export_fault(&error))?
        }
        (None, Some(folder)) => {
            export_cache_to_folder(&export, folder).map_err(|error| export_fault(&error))?
        }
        (None, None) => {
            return Err(CommandFault::usage("no destination: give --tar FILE or --folder DIR"));
        }
    };
    print_export(&exported, json, is_piped);
    Ok(ExitCode::SUCCESS)
}

fn export_fault(error: &Error) -> CommandFault {
    match error {
        Error::NoDocroot(_) | Error::CacheFarm(_) | Error::ExportTarget(_) => {
            CommandFault::usage(error_chain_text(error))
        }
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
