//! Public configuration files, plans and packages that some tests read. They are not part of the project.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Returns a folder of fixtures, below the folder that `TYMPAN_FIXTURES` names. Without it the test reports that it was
/// skipped, bypassing the output capture of tests.
#[must_use]
pub fn fixture_folder(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TYMPAN_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    let message =
        format!("skipped: there are no fixtures at `{}`; set TYMPAN_FIXTURES\n", folder.display());
    std::io::stderr().write_all(message.as_bytes()).ok();
    None
}
