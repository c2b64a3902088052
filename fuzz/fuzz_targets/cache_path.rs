//! Paths of URLs: a canonical path is its own canonical path, stays below the root, and agrees with what is sent on.
#![no_main]

use std::path::Component;

use libfuzzer_sys::fuzz_target;
use tympan_web::cache_path::{CanonicalPath, resolve_encoded_path};

fuzz_target!(|raw: &str| {
    let Ok(path) = CanonicalPath::parse(raw) else { return };
    assert!(path.as_str().starts_with('/'));
    let file = path.relative_file_path();
    assert!(
        file.components().all(|part| matches!(part, Component::Normal(_))),
        "{}",
        file.display()
    );
    assert!(path.segments().all(|segment| !matches!(segment, "" | "." | "..")));
    let wire = resolve_encoded_path(raw).expect("fails exactly where parsing does");
    assert_eq!(CanonicalPath::parse(&wire), Ok(path));
});
