//! Content packages: whole ZIP files.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use tympan_content::Repository;
use tympan_content_package::{ContentPackage, PackageLimits};

fuzz_target!(|data: &[u8]| {
    let limits = PackageLimits {
        max_entries: 1_000,
        max_total_bytes: 16 << 20,
        max_document_bytes: 1 << 20,
        max_value_bytes: 1 << 20,
        max_depth: 64,
        max_nesting: 3,
        max_nested_bytes: 1 << 20,
        ..PackageLimits::default()
    };
    let Ok(mut package) = ContentPackage::read(Cursor::new(data), "fuzz.zip", &limits) else {
        return;
    };
    let repository = Repository::in_memory().expect("memory does not fail");
    let mut session = repository.session("fuzz").expect("memory does not fail");
    if package.install(&mut session, &mut |_| {}).is_ok() {
        drop(session.commit("install", std::time::SystemTime::UNIX_EPOCH));
    }
});
