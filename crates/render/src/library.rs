//! Client libraries: style sheets, scripts and pictures of a site, at URLs that change with their bytes.
//!
//! `wayfare/site.css` is found at `/etc.clientlibs/wayfare/site.css`, or in a client library folder below `/apps` or
//! `/libs` that allows it (`cq:ClientLibraryFolder` with `allowProxy`, as in AEM). Its URL is
//! `/etc.clientlibs/wayfare/site.<hash>.css`, which browsers may keep forever; the URL without the hash works too.
//!
//! Invariant: nothing else below `/apps` and `/libs`, such as the text of a script, is served through these URLs.

use bytes::Bytes;
use tympan_content::BlobId;

use crate::client_library::{ClientLibraries, Kind};
use crate::dynamic;
use crate::file::{StoredFile, short_hash};
use crate::link::encode_path;
use crate::reads::Reader;
use crate::script::ScriptTable;

/// Where client libraries are addressed.
const PREFIX: &str = "/etc.clientlibs/";

/// Where their files are looked for, in order.
const PLACES: [&str; 3] = ["/etc.clientlibs/", "/apps/", "/libs/"];

/// Length of the hash in URLs.
const HASH_DIGITS: usize = 8;

/// Finds client libraries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Libraries<'a> {
    pub scripts: &'a ScriptTable,
    /// Libraries that are joined from files.
    pub joined: &'a ClientLibraries,
}

/// A file of a client library.
#[derive(Debug)]
pub(crate) enum LibraryFile {
    /// From the repository.
    Stored(StoredFile),
    /// From a live folder, or from the program.
    Live(Bytes),
}

impl LibraryFile {
    /// Returns the hash for the URL.
    fn hash(&self) -> String {
        match self {
            Self::Stored(file) => file.short_hash(),
            Self::Live(bytes) => short_hash(BlobId::of(bytes).digest()),
        }
    }
}

/// A library file that a URL asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub file: LibraryFile,
    /// The extension of its name.
    pub extension: String,
    pub pin: Pin,
}

/// Whether a URL names the bytes of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pin {
    /// It names no bytes.
    Unpinned,
    /// It names these bytes.
    Right,
    /// It names other bytes: those of an earlier file, or none that ever were.
    Other,
}

impl Libraries<'_> {
    /// Returns the URL of a file, with its hash if the file exists.
    pub(crate) fn url(self, reader: &Reader, name: &str) -> String {
        let name = name.trim_start_matches('/');
        let path = match (self.find(reader, name), name.rsplit_once('.')) {
            (Some(file), Some((stem, extension))) => {
                format!("{PREFIX}{stem}.{}.{extension}", file.hash())
            }
            _ => format!("{PREFIX}{name}"),
        };
        encode_path(&path)
    }

    /// Tells whether a raw URL path may be the address of a library, perhaps by escapes.
    pub(crate) fn may_be_at(raw: &str) -> bool {
        raw.starts_with(PREFIX) || raw.bytes().any(|byte| byte == b'%')
    }

    /// Finds the file that a decoded URL path asks for; nothing if it is no address of a library.
    pub(crate) fn at_url(self, reader: &Reader, path: &str) -> Option<Asked> {
        let name = path.strip_prefix(PREFIX)?;
        let (stem, extension) = name.rsplit_once('.')?;
        let extension = extension.to_owned();
        if let Some(file) = self.find(reader, name) {
            return Some(Asked { file, extension, pin: Pin::Unpinned });
        }
        let (stem, hash) = stem.rsplit_once('.')?;
        if hash.len() != HASH_DIGITS || !hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let file = self.find(reader, &format!("{stem}.{extension}"))?;
        let pin = if file.hash() == hash { Pin::Right } else { Pin::Other };
        Some(Asked { file, extension, pin })
    }

    /// Finds a file by its name.
    fn find(self, reader: &Reader, name: &str) -> Option<LibraryFile> {
        if name == dynamic::FETCHER_NAME {
            return Some(LibraryFile::Live(Bytes::from_static(dynamic::FETCHER.as_bytes())));
        }
        let joined = || {
            let (stem, extension) = name.rsplit_once('.')?;
            let kind = Kind::ALL.into_iter().find(|kind| kind.extension() == extension)?;
            // It is joined from files of this and other libraries.
            reader.note_any_script();
            Some(LibraryFile::Live(self.joined.find(stem, kind)?.text.clone()))
        };
        let single = PLACES.iter().find_map(|place| {
            let path = format!("{place}{name}");
            if *place != PREFIX && !is_proxied(reader, &path) {
                return None;
            }
            if let Some(bytes) = self.scripts.source().live_file(&path) {
                return Some(LibraryFile::Live(bytes));
            }
            let node = reader.node_at(&path)?;
            let file = StoredFile::of(&node).ok().flatten();
            file.map(LibraryFile::Stored)
        });
        single.or_else(joined)
    }
}

/// Tells whether a path lies in a client library folder that visitors may read.
fn is_proxied(reader: &Reader, path: &str) -> bool {
    let folders = path.rmatch_indices('/').filter_map(|(at, _)| path.get(..at));
    let folders = folders.take_while(|folder| folder.len() > "/apps".len());
    let mut nodes = folders.filter_map(|folder| reader.node_at(folder));
    let library = nodes.find(|node| node.primary_type() == "cq:ClientLibraryFolder");
    let allowed = library.and_then(|library| library.property("allowProxy"));
    allowed.and_then(|allowed| Some(allowed.first()?.to_text() == "true")).unwrap_or(false)
}
