//! Export of the servable files of a cache into an archive or folder; the same pages give the same bytes.
//!
//! Input: a farm, whose document root may be in use. Output: its fresh files ordered by name, with times, owners and
//! permissions that do not depend on when and by whom they were fetched.
//!
//! Invariants
//! * A body is exported with its own headers: both are read from files that were open together and match.
//! * Pages that a visitor would be refused, or that need a permission check, are left out.
//! * A folder is on the disk when the export ends; an archive is too if its writer ensures that.
//!
//! Not here: writing into the document root; it may be read-only.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Method};
use serde::Serialize;

use crate::Error;
use crate::cache::freshness::{CacheFileFreshness, assess_freshness};
use crate::cache::page_variant;
use crate::cache::tar_archive::{MAX_OCTAL_TIME, TarMember, TarWriter};
use crate::cache::{CacheFileLookup, Docroot, OpenCacheFile, StoredHeaders};
use crate::config::FarmConfig;
use crate::request::decision::{RequestAction, decide_in_farm};
use crate::request::view::{RequestView, encode_path};

/// The maximum number of look-ups of a file that changes each time.
const MAX_LOOKUP_ATTEMPTS: u32 = 50;
/// The pause between two look-ups.
const LOOKUP_RETRY_DELAY: Duration = Duration::from_millis(2);

/// The parameters of an export.
#[derive(Debug, Clone, Copy)]
pub struct CacheExport<'a> {
    /// The farm whose files are exported.
    pub farm: &'a FarmConfig,
    /// The current time, which decides the freshness of files.
    pub now: SystemTime,
    /// True if stale files are exported, too.
    pub includes_stale: bool,
    /// True if header files and expiry files are left out, because another web server does not know them.
    pub excludes_metadata: bool,
    /// The time of all files, in seconds since 1970; at most 2^33 - 1, and later times are clamped to it.
    pub file_time: u64,
}

/// The destination of an export.
#[derive(Debug)]
pub enum ExportSink<W: Write> {
    /// Into an archive.
    Tar(W),
    /// Below a folder, which must be empty.
    Folder(PathBuf),
}

/// The result of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ExportSummary {
    /// The number of pages exported.
    pub files: u64,
    /// The number of bytes of their bodies.
    pub bytes: u64,
    /// The number of pages left out because they are out of date.
    pub stale: u64,
    /// The number of files left out because no visitor gets them from the cache.
    pub unserved: u64,
    /// The number of pages left out because they changed at every look-up.
    pub unsteady: u64,
}

/// Writes the files of a farm.
///
/// # Errors
/// [`Error::NoDocroot`], [`Error::Read`] and [`Error::Write`]; the partial output is then useless.
pub fn export_cache<W: Write>(
    export: &CacheExport<'_>,
    sink: ExportSink<W>,
) -> Result<ExportSummary, Error> {
    let cache = export.farm.cache.as_ref();
    let root = cache.and_then(|cache| cache.docroot.as_deref());
    let root = root.ok_or_else(|| Error::NoDocroot(export.farm.name.clone()))?;
    let unreadable = |source| Error::Read { file: root.to_owned(), source };
    let docroot = Docroot::open_read_only(root).map_err(unreadable)?;
    // Entries that cannot be listed would be missing without an error.
    let mut names = Vec::new();
    docroot.list_files(&mut |file| names.push(file.to_owned())).map_err(unreadable)?;
    names.sort_unstable_by(|left, right| {
        left.as_os_str().as_encoded_bytes().cmp(right.as_os_str().as_encoded_bytes())
    });
    let mut exported = ExportSummary::default();
    let mut writer = ExportWriter::new(sink, export);
    for file in &names {
        let Some((name, path)) = served_name_and_path(export.farm, file) else {
            exported.unserved += 1;
            continue;
        };
        let exportable = find_exportable_file(export, &docroot, file, &path);
        match exportable.map_err(|source| Error::Read { file: root.join(file), source })? {
            ExportLookup::Fresh(page) => {
                let added = writer.add_page(name, page);
                let bytes = added.map_err(|source| Error::Write { file: file.clone(), source })?;
                exported.files += 1;
                exported.bytes += bytes;
            }
            ExportLookup::Stale => exported.stale += 1,
            ExportLookup::Changing => exported.unsteady += 1,
            ExportLookup::Missing => {}
        }
    }
    writer.finish().map_err(|source| Error::Write { file: PathBuf::from("."), source })?;
    Ok(exported)
}

/// Returns the name of a file and its page's path; `None` if visitors do not get it from the cache.
fn served_name_and_path<'a>(farm: &FarmConfig, file: &'a Path) -> Option<(&'a str, String)> {
    let name = file.to_str()?;
    let (path, query) = page_variant::variant_url(name);
    let target = encode_path(&path);
    let url = query.map_or_else(|| target.clone(), |query| format!("{target}?{query}"));
    // A page that only logged-in visitors see is not served for this request.
    let view = RequestView::from_url(Method::GET, &url, HeaderMap::new()).ok()?;
    let is_asked_about =
        farm.auth_checker.as_ref().is_some_and(|checker| checker.filter.allows(&path));
    let is_served = matches!(decide_in_farm(farm, &view), RequestAction::Cache(own) if own == file);
    (is_served && !is_asked_about).then_some((name, path))
}

/// The result of looking up a file.
#[expect(clippy::large_enum_variant, reason = "taken apart where it is made")]
enum ExportLookup {
    Fresh(OpenCacheFile),
    Stale,
    Changing,
    Missing,
}

fn find_exportable_file(
    export: &CacheExport<'_>,
    docroot: &Docroot,
    file: &Path,
    path: &str,
) -> io::Result<ExportLookup> {
    let Some(cache) = &export.farm.cache else { return Ok(ExportLookup::Missing) };
    for _ in 0..MAX_LOOKUP_ATTEMPTS {
        match docroot.look_up_file(file, cache.enable_ttl)? {
            // Nobody compares a visitor's headers where it goes.
            CacheFileLookup::File(page) if page.separates_requests(&export.farm.client_headers) => {
                return Ok(ExportLookup::Missing);
            }
            CacheFileLookup::File(page) => {
                let facts = docroot.freshness_facts(cache, file, path, &page, export.now);
                let is_fresh =
                    assess_freshness(facts, cache.stale_limits()) == CacheFileFreshness::Valid;
                return Ok(if is_fresh || export.includes_stale {
                    ExportLookup::Fresh(page)
                } else {
                    ExportLookup::Stale
                });
            }
            CacheFileLookup::Directory => return Ok(ExportLookup::Missing),
            CacheFileLookup::Absent if !docroot.exists(file) => return Ok(ExportLookup::Missing),
            // The body and the header file do not match: they are being replaced, or a crash left them so.
            CacheFileLookup::Absent => std::thread::sleep(LOOKUP_RETRY_DELAY),
        }
    }
    Ok(ExportLookup::Changing)
}

/// Writes the exported files.
struct ExportWriter<'a, W: Write> {
    target: ExportTarget<W>,
    export: &'a CacheExport<'a>,
    /// The time that both an archive and a header file can represent.
    header_time: u64,
}

enum ExportTarget<W: Write> {
    Tar(TarWriter<W>),
    Folder(PathBuf),
}

impl<'a, W: Write> ExportWriter<'a, W> {
    fn new(sink: ExportSink<W>, export: &'a CacheExport<'a>) -> Self {
        let to = match sink {
            ExportSink::Tar(to) => ExportTarget::Tar(TarWriter::new(to)),
            ExportSink::Folder(folder) => ExportTarget::Folder(folder),
        };
        Self { target: to, export, header_time: export.file_time.min(MAX_OCTAL_TIME) }
    }

    /// Adds a page with its side files; returns the length of its body.
    fn add_page(&mut self, name: &str, page: OpenCacheFile) -> io::Result<u64> {
        let time = self.header_time;
        let OpenCacheFile { mut body, length, headers, expires_at, .. } = page;
        self.write_member(TarMember { name, length, modification_seconds: time }, &mut body)?;
        if self.export.excludes_metadata {
            return Ok(length);
        }
        if let Some(stored) = headers {
            let fetched = UNIX_EPOCH + Duration::from_secs(time);
            let text =
                StoredHeaders { fetched_at: fetched, headers: sort_headers(&stored.headers) }
                    .to_text();
            let (name, length) = (format!("{name}.h"), text.len() as u64);
            self.write_member(
                TarMember { name: &name, length, modification_seconds: time },
                &mut text.as_slice(),
            )?;
        }
        if let Some(expires_at) = expires_at {
            let since = expires_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let name = format!("{name}.ttl");
            let member =
                TarMember { name: &name, length: 0, modification_seconds: since.as_secs() };
            self.write_member(member, &mut io::empty())?;
        }
        Ok(length)
    }

    fn write_member(
        &mut self,
        member: TarMember<'_>,
        mut body: &mut dyn io::Read,
    ) -> io::Result<()> {
        match &mut self.target {
            ExportTarget::Tar(archive) => archive.add_member(member, body),
            ExportTarget::Folder(folder) => {
                let path = folder.join(member.name);
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                let mut file = File::create_new(&path)?;
                let copied = io::copy(&mut (&mut body).take(member.length), &mut file)?;
                if copied < member.length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                file.set_permissions(PermissionsExt::from_mode(0o644))?;
                file.set_modified(UNIX_EPOCH + Duration::from_secs(member.modification_seconds))
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self.target {
            ExportTarget::Tar(archive) => archive.finish().map(drop),
            ExportTarget::Folder(folder) => {
                normalize_folders(&folder, self.header_time)?;
                // Sync all files at once, as there may be many.
                Ok(rustix::fs::syncfs(File::open(folder)?)?)
            }
        }
    }
}

/// Sets fixed permissions and times on a folder and all folders below it.
fn normalize_folders(folder: &Path, time: u64) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            normalize_folders(&entry.path(), time)?;
        }
    }
    let opened = File::open(folder)?;
    opened.set_permissions(PermissionsExt::from_mode(0o755))?;
    opened.set_modified(UNIX_EPOCH + Duration::from_secs(time))
}

/// Returns headers sorted by name; the order of headers with the same name is preserved.
fn sort_headers(headers: &HeaderMap) -> HeaderMap {
    let mut names: Vec<_> = headers.keys().collect();
    names.sort_unstable_by_key(|name| name.as_str());
    let mut sorted = HeaderMap::new();
    for name in names {
        for value in headers.get_all(name) {
            sorted.append(name, value.clone());
        }
    }
    sorted
}
