//! Puts the built interface where it is embedded from, or a notice page where it was not built.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let target = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("ui");
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let built = manifest.join("../../ui/dist");
    println!("cargo::rerun-if-changed={}", manifest.join("notice.html").display());
    println!("cargo::rerun-if-changed={}", built.display());
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    if built.join("index.html").exists() {
        copy(&built, &target)
    } else {
        fs::create_dir_all(&target)?;
        fs::copy(manifest.join("notice.html"), target.join("index.html"))?;
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
