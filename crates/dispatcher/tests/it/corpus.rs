//! Real configuration files: each one is read, none panics, and only broken ones have errors.

use std::path::{Path, PathBuf};

use tympan_dispatcher::any::{Severity, Sources, parse_file};
use tympan_dispatcher::config::Config;

/// Returns the folder of public configuration files, if this machine has it.
pub(crate) fn fixtures() -> Option<PathBuf> {
    let folder = match std::env::var_os("TYMPAN_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures"),
    };
    let folder = folder.join("dispatcher");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no configuration files at `{}`; set TYMPAN_FIXTURES", folder.display());
    None
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Faults of the text itself, not of files that are missing from the collection.
fn is_broken(file: &Path) -> bool {
    parse_file(file, &Sources::default())
        .diagnostics
        .iter()
        .filter(|found| found.severity == Severity::Error)
        .any(|found| !found.message.starts_with("cannot read"))
}

#[test]
fn cf20_every_public_file_is_read() {
    let Some(folder) = fixtures() else { return };
    let mut files = Vec::new();
    files_below(&folder, &mut files);
    files.sort();
    assert!(files.len() > 200, "only {} files", files.len());
    let mut broken = Vec::new();
    for file in &files {
        let is_config = file.extension().is_some_and(|kind| kind == "any" || kind == "farm");
        // Every file is read, so that foreign text is tried too, but only configurations are judged.
        let is_broken = is_broken(file);
        let loaded = Config::load(file, &Sources::default());
        if is_config && is_broken {
            broken.push(file.strip_prefix(&folder).unwrap().to_owned());
        }
        for d in &loaded.diagnostics {
            eprintln!("D {}", d.to_string().replace(folder.to_str().unwrap(), ""));
        }
    }
    for file in &broken {
        eprintln!("broken: {}", file.display());
    }
}
