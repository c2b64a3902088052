//! Writing what a cache would serve into an archive or folder, the same bytes for the same pages.
//!
//! In: a farm, of which the document root may be in use meanwhile. Out: its fresh files in the order of their names, with times,
//! owners and permissions that do not depend on when and by whom they were fetched.
//!
//! Invariants
//! * A body stands beside its own headers: both are read from files that were open together and fit.
//! * What a visitor would be refused, or is asked about first, is left out.
//! * A folder is on the disk when it was written; so is an archive when its writer has seen to that.
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
use crate::cache::{CacheFile, Docroot, Lookup, StoredHeaders};
use crate::config::Farm;
use crate::decision::{Action, decide_in};
use crate::freshness::{Freshness, judge};
use crate::request::{RequestView, encode_path};
use crate::tar::{Archive, MAX_TIME, Member};
use crate::variant;

/// How often a file is looked up that changes at each look.
const TRIES: u32 = 50;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// What is exported.
#[derive(Debug, Clone, Copy)]
pub struct Export<'a> {
    /// Whose files.
    pub farm: &'a Farm,
    /// The time now, by which files are fresh or not.
    pub now: SystemTime,
    /// Whether files that are out of date are exported, too.
    pub has_stale: bool,
    /// Whether header files and ends of files are left out, as another web server knows nothing of them.
    pub is_bare: bool,
    /// The time of all files, in seconds since 1970; 2^33 - 1 at most, and later ones count as that.
    pub time: u64,
}

/// Where files go.
#[derive(Debug)]
pub enum Sink<W: Write> {
    /// Into an archive.
    Tar(W),
    /// Below a folder, which is empty.
    Folder(PathBuf),
}

/// What was exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// Pages.
    pub files: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Pages that were left out, as they are out of date.
    pub stale: u64,
    /// Files that were left out, as no visitor gets them from the cache.
    pub unserved: u64,
    /// Pages that were left out, as they changed whenever they were looked at.
    pub unsteady: u64,
}

/// Writes the files of a farm.
///
/// # Errors
/// [`Error::NoDocroot`], [`Error::Read`] and [`Error::Write`]; what was written is useless then.
pub fn export<W: Write>(export: &Export<'_>, sink: Sink<W>) -> Result<Exported, Error> {
    let cache = export.farm.cache.as_ref();
    let root = cache.and_then(|cache| cache.docroot.as_deref());
    let root = root.ok_or_else(|| Error::NoDocroot(export.farm.name.clone()))?;
    let unreadable = |source| Error::Read { file: root.to_owned(), source };
    let docroot = Docroot::open_to_read(root).map_err(unreadable)?;
    // What cannot be listed would be missing without a word.
    let mut names = Vec::new();
    docroot.list_files(&mut |file| names.push(file.to_owned())).map_err(unreadable)?;
    names.sort_unstable_by(|one, other| {
        one.as_os_str().as_encoded_bytes().cmp(other.as_os_str().as_encoded_bytes())
    });
    let mut exported = Exported::default();
    let mut writer = Writer::new(sink, export);
    for file in &names {
        let Some((name, path)) = served_as(export.farm, file) else {
            exported.unserved += 1;
            continue;
        };
        let found = find(export, &docroot, (file, &path));
        match found.map_err(|source| Error::Read { file: root.join(file), source })? {
            Found::Fresh(page) => {
                let added = writer.add(name, page);
                let bytes = added.map_err(|source| Error::Write { file: file.clone(), source })?;
                exported.files += 1;
                exported.bytes += bytes;
            }
            Found::Stale => exported.stale += 1,
            Found::Unsteady => exported.unsteady += 1,
            Found::Gone => {}
        }
    }
    writer.finish().map_err(|source| Error::Write { file: PathBuf::from("."), source })?;
    Ok(exported)
}

/// Returns the name of a file and its page's path, if visitors get it from the cache.
fn served_as<'a>(farm: &Farm, file: &'a Path) -> Option<(&'a str, String)> {
    let name = file.to_str()?;
    let (path, query) = variant::url_of(name);
    let target = encode_path(&path);
    let url = query.map_or_else(|| target.clone(), |query| format!("{target}?{query}"));
    // A page that only those who are logged in see is none of this request.
    let view = RequestView::from_url(Method::GET, &url, HeaderMap::new()).ok()?;
    let is_asked_about =
        farm.auth_checker.as_ref().is_some_and(|checker| checker.filter.allows(&path));
    let is_served = matches!(decide_in(farm, &view), Action::Cache(own) if own == file);
    (is_served && !is_asked_about).then_some((name, path))
}

/// What became of looking for a file.
#[expect(clippy::large_enum_variant, reason = "taken apart where it is made")]
enum Found {
    Fresh(CacheFile),
    Stale,
    Unsteady,
    Gone,
}

fn find(export: &Export<'_>, docroot: &Docroot, (file, path): (&Path, &str)) -> io::Result<Found> {
    let Some(cache) = &export.farm.cache else { return Ok(Found::Gone) };
    for _ in 0..TRIES {
        match docroot.look_up(file, cache.enable_ttl)? {
            Lookup::File(page) => {
                let facts = docroot.facts(cache, (file, path), &page, export.now);
                let is_fresh = judge(facts, cache.patience()) == Freshness::Valid;
                return Ok(if is_fresh || export.has_stale {
                    Found::Fresh(page)
                } else {
                    Found::Stale
                });
            }
            Lookup::Directory => return Ok(Found::Gone),
            Lookup::Absent if !docroot.has(file) => return Ok(Found::Gone),
            // Body and header file do not fit: they are being replaced, or a crash left them so.
            Lookup::Absent => std::thread::sleep(PAUSE),
        }
    }
    Ok(Found::Unsteady)
}

/// Writes files.
struct Writer<'a, W: Write> {
    to: To<W>,
    export: &'a Export<'a>,
    /// What an archive and a header file can both tell.
    time: u64,
}

enum To<W: Write> {
    Tar(Archive<W>),
    Folder(PathBuf),
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(sink: Sink<W>, export: &'a Export<'a>) -> Self {
        let to = match sink {
            Sink::Tar(to) => To::Tar(Archive::new(to)),
            Sink::Folder(folder) => To::Folder(folder),
        };
        Self { to, export, time: export.time.min(MAX_TIME) }
    }

    /// Adds a page with its side files; returns the length of its body.
    fn add(&mut self, name: &str, page: CacheFile) -> io::Result<u64> {
        let time = self.time;
        let CacheFile { mut body, length, headers, expires, .. } = page;
        self.put(Member { name, length, modified: time }, &mut body)?;
        if self.export.is_bare {
            return Ok(length);
        }
        if let Some(stored) = headers {
            let fetched = UNIX_EPOCH + Duration::from_secs(time);
            let text = StoredHeaders { fetched, headers: sorted(&stored.headers) }.to_text();
            let (name, length) = (format!("{name}.h"), text.len() as u64);
            self.put(Member { name: &name, length, modified: time }, &mut text.as_slice())?;
        }
        if let Some(expires) = expires {
            let since = expires.duration_since(UNIX_EPOCH).unwrap_or_default();
            let name = format!("{name}.ttl");
            let member = Member { name: &name, length: 0, modified: since.as_secs() };
            self.put(member, &mut io::empty())?;
        }
        Ok(length)
    }

    fn put(&mut self, member: Member<'_>, mut body: &mut dyn io::Read) -> io::Result<()> {
        match &mut self.to {
            To::Tar(archive) => archive.add(member, body),
            To::Folder(folder) => {
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
                file.set_modified(UNIX_EPOCH + Duration::from_secs(member.modified))
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self.to {
            To::Tar(archive) => archive.finish().map(drop),
            To::Folder(folder) => {
                settle_folders(&folder, self.time)?;
                // All files at once, as there may be many.
                Ok(rustix::fs::syncfs(File::open(folder)?)?)
            }
        }
    }
}

/// Gives a folder and those below it the same permissions and times everywhere.
fn settle_folders(folder: &Path, time: u64) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            settle_folders(&entry.path(), time)?;
        }
    }
    let opened = File::open(folder)?;
    opened.set_permissions(PermissionsExt::from_mode(0o755))?;
    opened.set_modified(UNIX_EPOCH + Duration::from_secs(time))
}

/// Returns headers in the order of their names; of those with one name the order stays.
fn sorted(headers: &HeaderMap) -> HeaderMap {
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
