//! What packages say of themselves: `properties.xml`, and the versions, ranges and dependencies in it.
#![no_main]

use std::cmp::Ordering;
use std::io::{Cursor, Write};

use libfuzzer_sys::fuzz_target;
use tympan_content_package::{
    ContentPackage, PackageDependency, PackageId, PackageLimits, PackageVersion, VersionRange,
};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fuzz_target!(|data: &[u8]| {
    if let Some(package) = package(data)
        && let Ok(package) =
            ContentPackage::read(Cursor::new(package), "fuzz.zip", &PackageLimits::default())
    {
        // A package that has a path has a name, and is found by it.
        if package.id().path().is_ok() {
            assert!(package.id().file_name().ends_with(".zip"));
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (left, right) = text.split_at(text.floor_char_boundary(text.len() / 2));
    let (left, right) = (PackageVersion::new(left), PackageVersion::new(right));
    assert_eq!(left.compare(&right), right.compare(&left).reverse());
    assert_eq!(left.compare(&left), Ordering::Equal);
    if let Ok(range) = VersionRange::parse(text) {
        let again = VersionRange::parse(&range.to_string()).expect("it was written by us");
        assert_eq!(range.contains(&left), again.contains(&left), "{range}");
    }
    if let Ok(list) = PackageDependency::parse_list(text) {
        let id = PackageId::parse(text);
        for one in list {
            let again = PackageDependency::parse(&one.to_string()).expect("it was written by us");
            assert_eq!(one.is_met_by(&id), again.is_met_by(&id), "{one}");
        }
    }
});

/// Puts the text where a package's properties stand.
fn package(properties: &[u8]) -> Option<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    zip.start_file("META-INF/vault/properties.xml", options).ok()?;
    zip.write_all(properties).ok()?;
    Some(zip.finish().ok()?.into_inner())
}
