//! Content packages: whole ZIP files.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use tympan_content::Repository;
use tympan_content::package::{Limits, Package};

fuzz_target!(|data: &[u8]| {
    let limits = Limits {
        entries: 1_000,
        total_bytes: 16 << 20,
        document_bytes: 1 << 20,
        value_bytes: 1 << 20,
        depth: 64,
        nesting: 3,
        nested_bytes: 1 << 20,
        ..Limits::default()
    };
    let Ok(mut package) = Package::read(Cursor::new(data), "fuzz.zip", &limits) else { return };
    let repository = Repository::memory().expect("memory does not fail");
    let mut session = repository.session("fuzz").expect("memory does not fail");
    if package.install(&mut session, &mut |_| {}).is_ok() {
        drop(session.commit("install", std::time::SystemTime::UNIX_EPOCH));
    }
});
