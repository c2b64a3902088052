//! Lists and reads the files of a WebDAV server (RFC 4918): Nextcloud, SharePoint, Apache, and AEM itself.
//!
//! Each folder is listed separately (`PROPFIND`, `Depth: 1`), because many servers reject recursive listings.

use std::io::Read;
use std::time::SystemTime;

use http::Method;
use percent_encoding::percent_decode_str;

use crate::mount_location::MountLocation;
use crate::mount_source::{
    MAX_FILES, MAX_FOLDER_DEPTH, MountSource, MountSourceError, SourceFile, SourceItem,
    is_ignored_name, join_escaped_path,
};
use crate::name_escaping::escape_name;
use crate::source_http::{SourceHost, SourceNetwork, escape_url_part, escape_url_path};
use crate::xml_reader::{self, XmlEvent};

const PROPFIND_BODY: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><propfind xmlns=\"DAV:\"><prop><resourcetype/>\
                        <getcontentlength/><getlastmodified/><getetag/><resource-id/></prop></propfind>";
/// Maximum number of folders of one source.
const MAX_FOLDERS: usize = 200_000;

/// A folder of a WebDAV server.
#[derive(Debug)]
pub(crate) struct WebDavSource {
    host: SourceHost,
    /// The names of the path to the folder.
    root_names: Vec<Vec<u8>>,
}

/// The properties of one resource.
#[derive(Debug, Default)]
struct WebDavResource {
    href: String,
    is_folder: bool,
    byte_count: Option<u64>,
    last_modified: String,
    etag: String,
    identity: String,
}

impl WebDavSource {
    pub(crate) fn new(
        source: &str,
        location: &MountLocation,
        network: &SourceNetwork,
    ) -> Result<Self, String> {
        let url = match source.split_once("://") {
            Some(("davs", rest)) => format!("https://{rest}"),
            Some((_, rest)) => format!("http://{rest}"),
            None => return Err(format!("`{source}` is not a valid address")),
        };
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        let root = split_path_names(path);
        let address = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        Ok(Self { host: SourceHost::new(&address, location, network)?, root_names: root })
    }

    fn request_target(&self, below: &str) -> Option<String> {
        let root: String =
            self.root_names.iter().map(|name| format!("/{}", escape_url_part(name))).collect();
        match below {
            "" => Some(root),
            below => Some(format!("{root}/{}", escape_url_path(below)?)),
        }
    }

    fn list_folder(
        &self,
        folder: &str,
        with: &mut dyn FnMut(Vec<u8>, WebDavResource) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError> {
        let malformed = |reason: String| MountSourceError::Malformed {
            location: format!("{}/{folder}", self.host.origin()),
            reason,
        };
        let target = self
            .request_target(folder)
            .ok_or_else(|| malformed("its name is invalid".to_owned()))?;
        let headers = [("Depth", "1".to_owned()), ("Content-Type", "application/xml".to_owned())];
        let method =
            Method::from_bytes(b"PROPFIND").map_err(|error| malformed(error.to_string()))?;
        let response =
            self.host.send_request(&method, &format!("{target}/"), &headers, PROPFIND_BODY)?;
        let location = response.location().to_owned();
        let mut base = self.root_names.clone();
        base.extend(
            folder
                .split('/')
                .filter(|name| !name.is_empty())
                .filter_map(super::name_escaping::unescape_name),
        );
        let mut now = WebDavResource::default();
        xml_reader::read_xml_events(response, &location, |piece| match piece {
            XmlEvent::Start(name, _) => {
                match &*name {
                    "response" => now = WebDavResource::default(),
                    "collection" => now.is_folder = true,
                    _ => {}
                }
                Ok(())
            }
            XmlEvent::End(name, text) => {
                match &*name {
                    // The first one applies; `resource-id` may contain another.
                    "href" if now.href.is_empty() => now.href = text,
                    "href" => now.identity = text,
                    "getcontentlength" => now.byte_count = text.parse().ok(),
                    "getlastmodified" => now.last_modified = text,
                    "getetag" => now.etag = text,
                    "response" => {
                        let resource = std::mem::take(&mut now);
                        let Some(name) =
                            child_name_of_href(&base, &resource.href).map_err(&malformed)?
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

/// Returns the names of a path, without empty ones.
fn split_path_names(path: &str) -> Vec<Vec<u8>> {
    let names = path.split(['?', '#']).next().unwrap_or_default().split('/');
    names.filter(|name| !name.is_empty()).map(|name| percent_decode_str(name).collect()).collect()
}

/// Returns the name of an address within a folder; `None` for the folder itself.
fn child_name_of_href(folder: &[Vec<u8>], href: &str) -> Result<Option<Vec<u8>>, String> {
    let path = match href.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => href,
    };
    let mut names = split_path_names(path);
    if names == folder {
        return Ok(None);
    }
    let name = names.pop();
    match name {
        Some(name) if names == folder && name != b"." && name != b".." => Ok(Some(name)),
        _ => Err(format!("it lists `{href}`, which is not in the folder")),
    }
}

impl MountSource for WebDavSource {
    fn list_files(
        &self,
        visit_item: &mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError> {
        let mut folders = vec![(String::new(), 0)];
        let (mut files, mut folder_count) = (0, 0);
        while let Some((folder, depth)) = folders.pop() {
            folder_count += 1;
            if folder_count + folders.len() > MAX_FOLDERS {
                return Err(MountSourceError::TooMany(self.host.origin().to_owned()));
            }
            self.list_folder(&folder, &mut |name, resource| {
                if is_ignored_name(&name) {
                    return Ok(());
                }
                let path = join_escaped_path(&folder, &escape_name(&name));
                if !resource.is_folder {
                    files += 1;
                    if files > MAX_FILES {
                        return Err(MountSourceError::TooMany(self.host.origin().to_owned()));
                    }
                    return visit_item(SourceItem::File(source_file_of(path, resource)));
                }
                if depth >= MAX_FOLDER_DEPTH {
                    let reason = format!("it is nested deeper than {MAX_FOLDER_DEPTH} folders");
                    return visit_item(SourceItem::Skipped(path, reason));
                }
                folders.push((path, depth + 1));
                Ok(())
            })?;
        }
        Ok(())
    }

    fn has_persistent_identities(&self) -> bool {
        true
    }

    fn open_file(&self, entry: &SourceFile) -> Result<Box<dyn Read + Send>, MountSourceError> {
        let refused = |reason: &str| MountSourceError::Refused {
            location: format!("{}/{}", self.host.origin(), entry.path),
            reason: reason.to_owned(),
        };
        let target =
            self.request_target(&entry.path).ok_or_else(|| refused("its name is invalid"))?;
        let response = self.host.send_request(&Method::GET, &target, &[], "")?;
        let is_other = |tag: &str| {
            !entry.source_handle.is_empty() && strip_weak_prefix(tag) != entry.source_handle
        };
        if response.header("etag").is_some_and(is_other) {
            return Err(refused("it changed since it was listed"));
        }
        Ok(Box::new(response))
    }
}

/// Removes the prefix of a weak tag: Apache sends weak tags for files written in the current second.
fn strip_weak_prefix(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

fn source_file_of(path: String, resource: WebDavResource) -> SourceFile {
    let WebDavResource { byte_count: bytes, last_modified, etag: tag, identity, .. } = resource;
    let length = bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let tag = strip_weak_prefix(&tag).to_owned();
    let mark = if tag.is_empty() {
        format!("{length}-{last_modified}")
    } else {
        format!("{length}-{tag}")
    };
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(&last_modified);
    SourceFile {
        path,
        fingerprint: mark,
        identity: Some(identity).filter(|identity| !identity.is_empty()),
        byte_count: bytes,
        modified_at: time.ok().map(SystemTime::from),
        source_handle: tag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_children_of_their_folder_only() {
        let folder = split_path_names("/remote.php/dav/My%20Files");
        let check = |href: &str, expected: Result<Option<&str>, ()>| {
            let child_name = child_name_of_href(&folder, href).map_err(drop);
            let child_name =
                child_name.map(|name| name.map(|name| String::from_utf8(name).unwrap()));
            assert_eq!(child_name, expected.map(|name| name.map(str::to_owned)), "{href}");
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
