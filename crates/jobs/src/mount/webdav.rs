//! Files of a WebDAV server (RFC 4918): Nextcloud, SharePoint, Apache, and AEM itself.
//!
//! Each folder is asked for what is directly in it (`PROPFIND`, `Depth: 1`), as many servers refuse to tell all at
//! once.

use std::io::Read;
use std::time::SystemTime;

use http::Method;
use percent_encoding::percent_decode_str;

use super::http::{Host, Way, url_part, url_path};
use super::name::escape;
use super::place::Place;
use super::source::{Entry, Found, MAX_DEPTH, MAX_FILES, Source, SourceError, is_left_out, joined};
use super::xml::{self, Piece};

const QUESTION: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><propfind xmlns=\"DAV:\"><prop><resourcetype/>\
                        <getcontentlength/><getlastmodified/><getetag/><resource-id/></prop></propfind>";
/// The most folders of one place.
const MAX_FOLDERS: usize = 200_000;

/// A folder of a WebDAV server.
#[derive(Debug)]
pub(crate) struct WebDav {
    host: Host,
    /// The names that lead to the folder.
    root: Vec<Vec<u8>>,
}

/// What a server says about one resource.
#[derive(Debug, Default)]
struct Resource {
    href: String,
    is_folder: bool,
    bytes: Option<u64>,
    modified: String,
    tag: String,
    identity: String,
}

impl WebDav {
    pub(crate) fn new(source: &str, place: &Place, way: &Way) -> Result<Self, String> {
        let url = match source.split_once("://") {
            Some(("davs", rest)) => format!("https://{rest}"),
            Some((_, rest)) => format!("http://{rest}"),
            None => return Err(format!("`{source}` is no address")),
        };
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        let root = names_of(path);
        let address = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        Ok(Self { host: Host::new(&address, place, way)?, root })
    }

    fn target(&self, below: &str) -> Option<String> {
        let root: String = self.root.iter().map(|name| format!("/{}", url_part(name))).collect();
        match below {
            "" => Some(root),
            below => Some(format!("{root}/{}", url_path(below)?)),
        }
    }

    fn list_folder(
        &self,
        folder: &str,
        with: &mut dyn FnMut(Vec<u8>, Resource) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let malformed = |reason: String| SourceError::Malformed {
            place: format!("{}/{folder}", self.host.origin()),
            reason,
        };
        let target =
            self.target(folder).ok_or_else(|| malformed("it cannot be named".to_owned()))?;
        let headers = [("Depth", "1".to_owned()), ("Content-Type", "application/xml".to_owned())];
        let method =
            Method::from_bytes(b"PROPFIND").map_err(|error| malformed(error.to_string()))?;
        let answer = self.host.ask(&method, &format!("{target}/"), &headers, QUESTION)?;
        let place = answer.place().to_owned();
        let mut base = self.root.clone();
        base.extend(
            folder.split('/').filter(|name| !name.is_empty()).filter_map(super::name::unescape),
        );
        let mut now = Resource::default();
        xml::read(answer, &place, |piece| match piece {
            Piece::Start(name, _) => {
                match &*name {
                    "response" => now = Resource::default(),
                    "collection" => now.is_folder = true,
                    _ => {}
                }
                Ok(())
            }
            Piece::End(name, text) => {
                match &*name {
                    // One within `resource-id`, too.
                    "href" if now.href.is_empty() => now.href = text,
                    "href" => now.identity = text,
                    "getcontentlength" => now.bytes = text.parse().ok(),
                    "getlastmodified" => now.modified = text,
                    "getetag" => now.tag = text,
                    "response" => {
                        let resource = std::mem::take(&mut now);
                        let Some(name) = child_of(&base, &resource.href).map_err(&malformed)?
                        else {
                            return Ok(());
                        };
                        return with(name, resource);
                    }
                    _ => {}
                }
                Ok(())
            }
        })
    }
}

/// Returns the names of a path, without those that are empty.
fn names_of(path: &str) -> Vec<Vec<u8>> {
    let names = path.split(['?', '#']).next().unwrap_or_default().split('/');
    names.filter(|name| !name.is_empty()).map(|name| percent_decode_str(name).collect()).collect()
}

/// Returns the name that an address has in a folder; nothing for the folder itself.
fn child_of(folder: &[Vec<u8>], href: &str) -> Result<Option<Vec<u8>>, String> {
    let path = match href.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => href,
    };
    let mut names = names_of(path);
    if names == folder {
        return Ok(None);
    }
    let name = names.pop();
    match name {
        Some(name) if names == folder && name != b"." && name != b".." => Ok(Some(name)),
        _ => Err(format!("it tells of `{href}`, which is not in the folder")),
    }
}

impl Source for WebDav {
    fn list(
        &self,
        found: &mut dyn FnMut(Found) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let mut folders = vec![(String::new(), 0)];
        let (mut files, mut asked) = (0, 0);
        while let Some((folder, depth)) = folders.pop() {
            asked += 1;
            if asked + folders.len() > MAX_FOLDERS {
                return Err(SourceError::TooMany(self.host.origin().to_owned()));
            }
            self.list_folder(&folder, &mut |name, resource| {
                if is_left_out(&name) {
                    return Ok(());
                }
                let path = joined(&folder, &escape(&name));
                if !resource.is_folder {
                    files += 1;
                    if files > MAX_FILES {
                        return Err(SourceError::TooMany(self.host.origin().to_owned()));
                    }
                    return found(Found::File(entry_of(path, resource)));
                }
                if depth >= MAX_DEPTH {
                    let reason = format!("it lies deeper than {MAX_DEPTH} folders");
                    return found(Found::LeftOut(path, reason));
                }
                folders.push((path, depth + 1));
                Ok(())
            })?;
        }
        Ok(())
    }

    fn has_lasting_identities(&self) -> bool {
        true
    }

    fn open(&self, entry: &Entry) -> Result<Box<dyn Read + Send>, SourceError> {
        let refused = |reason: &str| SourceError::Refused {
            place: format!("{}/{}", self.host.origin(), entry.path),
            reason: reason.to_owned(),
        };
        let target = self.target(&entry.path).ok_or_else(|| refused("it cannot be named"))?;
        let answer = self.host.ask(&Method::GET, &target, &[], "")?;
        let is_other = |tag: &str| !entry.handle.is_empty() && strong(tag) != entry.handle;
        if answer.header("etag").is_some_and(is_other) {
            return Err(refused("it changed since it was listed"));
        }
        Ok(Box::new(answer))
    }
}

/// Takes the sign of a weak tag away: Apache gives weak ones to files of this second.
fn strong(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

fn entry_of(path: String, resource: Resource) -> Entry {
    let Resource { bytes, modified, tag, identity, .. } = resource;
    let length = bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let tag = strong(&tag).to_owned();
    let mark =
        if tag.is_empty() { format!("{length}-{modified}") } else { format!("{length}-{tag}") };
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(&modified);
    Entry {
        path,
        mark,
        identity: Some(identity).filter(|identity| !identity.is_empty()),
        bytes,
        modified: time.ok().map(SystemTime::from),
        handle: tag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_children_of_their_folder_only() {
        let folder = names_of("/remote.php/dav/My%20Files");
        let check = |href: &str, expected: Result<Option<&str>, ()>| {
            let found = child_of(&folder, href).map_err(drop);
            let found = found.map(|name| name.map(|name| String::from_utf8(name).unwrap()));
            assert_eq!(found, expected.map(|name| name.map(str::to_owned)), "{href}");
        };
        check("/remote.php/dav/My%20Files/", Ok(None));
        check("/remote.php/dav/My%20Files", Ok(None));
        check("/remote.php/dav/My Files/a.jpg", Ok(Some("a.jpg")));
        check("https://other/remote.php/dav/My%20Files/sub/", Ok(Some("sub")));
        check("/remote.php/dav/My%20Files/a%2Fb", Ok(Some("a/b")));
        check("/remote.php/dav/My%20Files/sub/deep", Err(()));
        check("/remote.php/dav/My%20Files/..", Err(()));
        check("/etc/passwd", Err(()));
        check("", Err(()));
    }
}
