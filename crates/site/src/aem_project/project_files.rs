//! The files of a project: packages, bundles and texts in folders, and unpacked packages, which are packed.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zip::write::SimpleFileOptions;

use super::left_out_file::LeftOutFile;
use crate::error::{Error, Result};

/// The maximum depth at which modules of a project are searched.
const MAX_SEARCH_DEPTH: usize = 8;
/// Folders that hold nothing of a package.
const IGNORED_FOLDERS: [&str; 4] = ["node_modules", "classes", "test-classes", "it.tests"];
/// The endings of jars that are no bundles.
const IGNORED_JAR_ENDINGS: [&str; 3] = ["-sources.jar", "-javadoc.jar", "-tests.jar"];

/// A file, and its name in messages.
pub(super) type NamedFile = (PathBuf, String);

/// The files of a project.
#[derive(Debug, Default)]
pub(super) struct ProjectFiles {
    pub(super) packages: Vec<NamedFile>,
    pub(super) bundles: Vec<NamedFile>,
    /// Files with repository initialization.
    pub(super) repoinit_texts: Vec<NamedFile>,
    pub(super) left_out: Vec<LeftOutFile>,
}

impl ProjectFiles {
    /// Finds the files below paths. Unpacked packages are packed into files in `folder`.
    pub(super) fn find(paths: &[PathBuf], folder: &Path) -> Result<Self> {
        let mut files = Self::default();
        for path in paths {
            let count = files.count();
            if path.is_dir() {
                files.find_in_folder(path, folder)?;
            } else {
                files.add_file(path, true)?;
            }
            if files.count() == count {
                return Err(Error::Refused(format!(
                    "`{}` holds no content package, no `target/*.zip`, no `jcr_root`, no bundle and no repoinit text",
                    path.display()
                )));
            }
        }
        Ok(files)
    }

    fn count(&self) -> usize {
        self.packages.len() + self.bundles.len() + self.repoinit_texts.len()
    }

    /// Finds the files of a folder: built ones, or the sources of packages if none was built.
    fn find_in_folder(&mut self, dir: &Path, folder: &Path) -> Result<()> {
        let before = self.packages.len();
        let mut sources = Vec::new();
        self.search(dir, 0, &mut sources)?;
        if self.packages.len() > before {
            for source in sources {
                let reason = "the packages of the project were built, and are used instead";
                self.left_out.push(LeftOutFile::new(source.display().to_string(), reason));
            }
            return Ok(());
        }
        for source in sources {
            let file = folder.join(format!("source-{}.zip", self.packages.len()));
            pack_source(&source, &file).map_err(|error| unreadable(&source, error))?;
            self.packages.push((file, source.display().to_string()));
        }
        Ok(())
    }

    /// Adds the files of a folder and those below; `sources` takes the folders that contain `jcr_root`.
    fn search(&mut self, dir: &Path, depth: usize, sources: &mut Vec<PathBuf>) -> Result<()> {
        let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.map_err(|source| unreadable(dir, source))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let is_folder = entry.file_type().is_ok_and(|file_type| file_type.is_dir());
            let is_target = dir.file_name().is_some_and(|name| name == "target");
            if is_folder && name == "jcr_root" {
                // What a build unpacks is in its packages.
                if !is_target {
                    sources.push(dir.to_owned());
                }
            } else if is_folder {
                let is_ignored = name.starts_with('.')
                    || IGNORED_FOLDERS.contains(&&*name)
                    || (is_target && depth > 0);
                if depth < MAX_SEARCH_DEPTH && !is_ignored {
                    self.search(&path, depth + 1, sources)?;
                }
            } else if entry.file_type().is_ok_and(|file_type| file_type.is_file())
                && (is_target || depth == 0 || is_repoinit_name(&name))
            {
                self.add_file(&path, false)?;
            }
        }
        Ok(())
    }

    /// Adds a file by its kind. A file that was named is refused if it is none of a project.
    fn add_file(&mut self, path: &Path, is_named: bool) -> Result<()> {
        let origin = path.display().to_string();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let named = (path.to_owned(), origin.clone());
        if name.ends_with(".jar") {
            if !IGNORED_JAR_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
                self.bundles.push(named);
            }
        } else if is_repoinit_name(&name) || (is_named && name.ends_with(".txt")) {
            self.repoinit_texts.push(named);
        } else if name.ends_with(".zip") {
            if is_content_package(path)? {
                self.packages.push(named);
            } else {
                self.left_out.push(LeftOutFile::new(origin, "it is not a content package"));
            }
        }
        Ok(())
    }
}

/// Returns true if a file is named as a text with repository initialization.
fn is_repoinit_name(name: &str) -> bool {
    name.ends_with(".repoinit") || (name.starts_with("repoinit") && name.ends_with(".txt"))
}

/// Returns true if a ZIP file has the folders of a content package.
fn is_content_package(path: &Path) -> Result<bool> {
    let file = fs::File::open(path).map_err(|source| unreadable(path, source))?;
    let archive = zip::ZipArchive::new(io::BufReader::new(file))
        .map_err(|error| unreadable(path, io::Error::other(error)))?;
    let is_package = archive
        .file_names()
        .flatten()
        .any(|name| name.starts_with("jcr_root/") || name.starts_with("META-INF/vault/"));
    Ok(is_package)
}

/// Packs a folder that contains `jcr_root` and, beside it, `META-INF/vault`.
fn pack_source(source: &Path, file: &Path) -> io::Result<()> {
    let mut zip = zip::ZipWriter::new(io::BufWriter::new(fs::File::create(file)?));
    let metadata = source.join("META-INF");
    if metadata.is_dir() {
        pack_folder(&mut zip, &metadata, "META-INF")?;
    }
    if !metadata.join("vault/filter.xml").is_file() {
        write_entry(&mut zip, "META-INF/vault/filter.xml", derived_filter(source)?.as_bytes())?;
    }
    if !metadata.join("vault/properties.xml").is_file() {
        let properties = derived_properties(source);
        write_entry(&mut zip, "META-INF/vault/properties.xml", properties.as_bytes())?;
    }
    pack_folder(&mut zip, &source.join("jcr_root"), "jcr_root")?;
    zip.finish().map_err(io::Error::other)?.into_inner().map_err(io::Error::other)?.sync_all()
}

fn write_entry(
    zip: &mut zip::ZipWriter<impl Write + io::Seek>,
    name: &str,
    bytes: &[u8],
) -> io::Result<()> {
    let options = SimpleFileOptions::default().last_modified_time(zip::DateTime::default());
    zip.start_file(name, options).map_err(io::Error::other)?;
    zip.write_all(bytes)
}

fn pack_folder(
    zip: &mut zip::ZipWriter<impl Write + io::Seek>,
    folder: &Path,
    name: &str,
) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        let file_type = entry.file_type()?;
        if file_type.is_dir() {
            pack_folder(zip, &entry.path(), &name)?;
        } else if file_type.is_file() {
            write_entry(zip, &name, &fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

/// Returns a filter with the folders below those at the top, which other packages share.
fn derived_filter(source: &Path) -> io::Result<String> {
    let mut filter = String::from("<workspaceFilter version=\"1.0\">\n");
    for top in fs::read_dir(source.join("jcr_root"))? {
        let top = top?;
        if !top.file_type()?.is_dir() {
            continue;
        }
        for below in fs::read_dir(top.path())? {
            let below = below?;
            if below.file_type()?.is_dir() {
                let path =
                    format!("/{}/{}", top.file_name().display(), below.file_name().display());
                let path = tympan_render::url::unmangle_namespaces(&path).unwrap_or(path);
                let path = tympan_notation::escape_xml(&path);
                // Writing to a string cannot fail.
                writeln!(filter, "  <filter root=\"{path}\" mode=\"update\"/>").ok();
            }
        }
    }
    filter.push_str("</workspaceFilter>\n");
    Ok(filter)
}

/// Returns the properties of a package with the name of its module: the folder above `src/main/content`.
fn derived_properties(source: &Path) -> String {
    let absolute = source.canonicalize().unwrap_or_else(|_| source.to_owned());
    let above = absolute.ancestors().map(|folder| folder.file_name().unwrap_or_default());
    let mut names =
        above.filter(|name| !["content", "main", "src"].iter().any(|part| name == part));
    let module = names.next().unwrap_or_default().to_string_lossy().into_owned();
    let project = names.next().unwrap_or_default().to_string_lossy().into_owned();
    let name = tympan_notation::escape_xml(&module);
    let group = tympan_notation::escape_xml(&project);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE properties SYSTEM \
         \"http://java.sun.com/dtd/properties.dtd\">\n<properties>\n<entry key=\"group\">{group}</entry>\n\
         <entry key=\"name\">{name}</entry>\n<entry key=\"version\">sources</entry>\n</properties>\n"
    )
}

/// Returns the error of a file that cannot be read.
pub(super) fn unreadable(file: &Path, source: std::io::Error) -> Error {
    Error::File { action: format!("cannot read `{}`", file.display()), source }
}
