//! Packs the sample site into the package that the program embeds.

use std::path::PathBuf;
use std::{env, fs, io};

#[path = "src/archive.rs"]
mod archive;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=../../site");
    println!("cargo::rerun-if-changed=src/archive.rs");
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let target = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("site.zip");
    fs::write(
        target,
        archive::build_site_package(&manifest.join("../../site"), &archive::CONTENT_ROOTS, None)?,
    )
}
