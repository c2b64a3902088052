//! Docviews inside a package: what reads can be written, and reads again.
#![no_main]

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use libfuzzer_sys::fuzz_target;
use tympan_content_package::{ContentPackage, PackageLimits};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const FILTER: &str =
    "<workspaceFilter version=\"1.0\"><filter root=\"/content/a\"/></workspaceFilter>";

fuzz_target!(|docview: &[u8]| {
    let Some(package) = package(docview) else { return };
    let limits = PackageLimits { max_depth: 64, ..PackageLimits::default() };
    if let Ok(package) = ContentPackage::read(Cursor::new(package), "fuzz.zip", &limits) {
        assert!(package.root().count_nodes() >= 1);
        let prefixes: &BTreeMap<String, String> = package.namespaces();
        assert!(prefixes.keys().all(|prefix| !prefix.contains(':')));
    }
});

/// Puts a docview where a page of the filter stands.
fn package(docview: &[u8]) -> Option<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let files = [
        ("META-INF/vault/filter.xml", FILTER.as_bytes()),
        ("jcr_root/content/a/.content.xml", docview),
    ];
    for (name, bytes) in files {
        zip.start_file(name, options).ok()?;
        zip.write_all(bytes).ok()?;
    }
    Some(zip.finish().ok()?.into_inner())
}
