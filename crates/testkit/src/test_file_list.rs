//! A check for forgotten test files.
//!
//! Each crate compiles its integration tests as one binary, so a file in `tests/it` that `main.rs` does not declare
//! would silently never run.

use std::collections::BTreeSet;
use std::path::Path;

/// Expands to a test that fails if a file beside `tests/it/main.rs` is not declared there.
#[macro_export]
macro_rules! every_test_file_is_listed {
    () => {
        #[test]
        fn every_test_file_is_listed() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
            assert_eq!(
                $crate::test_file_list::undeclared_test_modules(folder.as_ref()),
                Vec::<String>::new()
            );
        }
    };
}

/// Returns the modules in `folder` that its `main.rs` does not declare, sorted.
///
/// # Panics
/// If the folder or its `main.rs` cannot be read.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn undeclared_test_modules(folder: &Path) -> Vec<String> {
    let main =
        std::fs::read_to_string(folder.join("main.rs")).expect("tests/it/main.rs is readable");
    let listed: BTreeSet<&str> = main
        .lines()
        .filter_map(|line| line.trim().strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let mut missing: Vec<String> = std::fs::read_dir(folder)
        .expect("tests/it is readable")
        .filter_map(|entry| {
            let path = entry.expect("tests/it is readable").path();
            let name = path.file_stem()?.to_str()?.to_owned();
            let is_module =
                path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
            (is_module && name != "main" && !listed.contains(name.as_str())).then_some(name)
        })
        .collect();
    missing.sort();
    missing
}
