//! Client libraries: style sheets, scripts and images of a site, at URLs that change with their content.
//!
//! `wayfare/site.css` is found at `/etc.clientlibs/wayfare/site.css`, or in a client library folder below `/apps` or
//! `/libs` that allows it (`cq:ClientLibraryFolder` with `allowProxy`, as in AEM). Its URL is
//! `/etc.clientlibs/wayfare/site.<hash>.css`, which browsers may cache forever. The URL without the hash works, too.
//!
//! Invariant: nothing else below `/apps` and `/libs`, such as the text of a script, is served through these URLs.

use bytes::Bytes;
use tympan_content::BlobId;

use crate::client_library::{ClientLibraryKind, ClientLibrarySet};
use crate::dependency::content_reader::ContentReader;
use crate::dynamic_inclusion;
use crate::page::link::encode_path;
use crate::response::stored_file::{StoredFile, short_digest_hex};
use crate::script::ScriptCache;

/// URL prefix of client libraries.
const CLIENT_LIBRARY_PREFIX: &str = "/etc.clientlibs/";

/// Folders that are searched for library files, in order.
const CLIENT_LIBRARY_FOLDERS: [&str; 3] = ["/etc.clientlibs/", "/apps/", "/libs/"];

/// Length of the hash in URLs, in digits.
const HASH_DIGITS: usize = 8;

/// Finds client libraries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientLibraryResolver<'a> {
    pub script_cache: &'a ScriptCache,
    /// Libraries joined from several files.
    pub joined_libraries: &'a ClientLibrarySet,
}

/// A file of a client library.
#[derive(Debug)]
pub(crate) enum ClientLibraryFile {
    /// Stored in the repository.
    Stored(StoredFile),
    /// From a live folder, or built into the program.
    LiveBytes(Bytes),
}

impl ClientLibraryFile {
    /// Returns the hash for the URL.
    fn hash(&self) -> String {
        match self {
            Self::Stored(file) => file.short_hash(),
            Self::LiveBytes(bytes) => short_digest_hex(BlobId::hash_of(bytes).digest()),
        }
    }
}

/// A library file that a URL requests.
#[derive(Debug)]
pub(crate) struct RequestedLibraryFile {
    pub file: ClientLibraryFile,
    /// The extension of its name.
    pub extension: String,
    pub hash_match: UrlHashMatch,
}

/// Result of comparing the hash in a URL with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UrlHashMatch {
    /// The URL has no hash.
    NoHash,
    /// The hash is that of the file.
    Match,
    /// The hash is another one: of an earlier file, or of none.
    Mismatch,
}

impl ClientLibraryResolver<'_> {
    /// Returns the URL of a file, with its hash if the file exists.
    pub(crate) fn library_url(self, reader: &ContentReader, name: &str) -> String {
        let name = name.trim_start_matches('/');
        let path = match (self.find_by_name(reader, name), name.rsplit_once('.')) {
            (Some(file), Some((stem, extension))) => {
                format!("{CLIENT_LIBRARY_PREFIX}{stem}.{}.{extension}", file.hash())
            }
            _ => format!("{CLIENT_LIBRARY_PREFIX}{name}"),
        };
        encode_path(&path)
    }

    /// Returns true if a raw URL path may be the address of a library, possibly percent-encoded.
    pub(crate) fn may_be_library_url(raw: &str) -> bool {
        raw.starts_with(CLIENT_LIBRARY_PREFIX) || raw.bytes().any(|byte| byte == b'%')
    }

    /// Finds the file that a decoded URL path requests; `None` if it is not the address of a library.
    pub(crate) fn find_by_url(
        self,
        reader: &ContentReader,
        path: &str,
    ) -> Option<RequestedLibraryFile> {
        let name = path.strip_prefix(CLIENT_LIBRARY_PREFIX)?;
        let (stem, extension) = name.rsplit_once('.')?;
        let extension = extension.to_owned();
        if let Some(file) = self.find_by_name(reader, name) {
            return Some(RequestedLibraryFile {
                file,
                extension,
                hash_match: UrlHashMatch::NoHash,
            });
        }
        let (stem, hash) = stem.rsplit_once('.')?;
        if hash.len() != HASH_DIGITS || !hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let file = self.find_by_name(reader, &format!("{stem}.{extension}"))?;
        let pin = if file.hash() == hash { UrlHashMatch::Match } else { UrlHashMatch::Mismatch };
        Some(RequestedLibraryFile { file, extension, hash_match: pin })
    }

    /// Finds a file by its name.
    fn find_by_name(self, reader: &ContentReader, name: &str) -> Option<ClientLibraryFile> {
        if name == dynamic_inclusion::INCLUDE_SCRIPT_NAME {
            return Some(ClientLibraryFile::LiveBytes(Bytes::from_static(
                dynamic_inclusion::INCLUDE_SCRIPT.as_bytes(),
            )));
        }
        let joined = || {
            let (stem, extension) = name.rsplit_once('.')?;
            let kind = ClientLibraryKind::ALL_KINDS
                .into_iter()
                .find(|kind| kind.extension() == extension)?;
            // The text is joined from files of this and other libraries.
            reader.record_any_script();
            Some(ClientLibraryFile::LiveBytes(self.joined_libraries.find(stem, kind)?.text.clone()))
        };
        let single = CLIENT_LIBRARY_FOLDERS.iter().find_map(|library_folder| {
            let path = format!("{library_folder}{name}");
            if *library_folder != CLIENT_LIBRARY_PREFIX && !is_proxied(reader, &path) {
                return None;
            }
            if let Some(bytes) = self.script_cache.source().live_file(&path) {
                return Some(ClientLibraryFile::LiveBytes(bytes));
            }
            let node = reader.node_at(&path)?;
            let file = StoredFile::from_node(&node).ok().flatten();
            file.map(ClientLibraryFile::Stored)
        });
        single.or_else(joined)
    }
}

/// Returns true if a path lies in a client library folder that visitors may read.
fn is_proxied(reader: &ContentReader, path: &str) -> bool {
    let folders = path.rmatch_indices('/').filter_map(|(at, _)| path.get(..at));
    let folders = folders.take_while(|folder| folder.len() > "/apps".len());
    let mut nodes = folders.filter_map(|folder| reader.node_at(folder));
    let library = nodes.find(|node| node.primary_type() == "cq:ClientLibraryFolder");
    let allowed = library.and_then(|library| library.property("allowProxy"));
    allowed.and_then(|allowed| Some(allowed.first()?.to_text() == "true")).unwrap_or(false)
}
