//! An in-memory file tree, and small WebDAV and CMIS servers that serve it in the dialects of other systems.
//!
//! Input: files by path. Output: servers on free ports that serve them and record their requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use tympan_notation::escape_xml;

use crate::origin_server::{OriginRequest, OriginResponse, OriginServer};

/// One file.
#[derive(Debug, Clone)]
struct MemoryTreeFile {
    id: u64,
    change_number: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct MemoryTreeFiles {
    next_id: u64,
    by_path: BTreeMap<String, MemoryTreeFile>,
}

/// Files by path, such as `2024/a.jpg`. Clones share the files.
#[derive(Debug, Clone, Default)]
pub struct MemoryFileTree(Arc<Mutex<MemoryTreeFiles>>);

/// The contents of a folder.
#[derive(Debug, Default)]
struct MemoryTreeFolder {
    folders: BTreeSet<String>,
    files: Vec<(String, MemoryTreeFile)>,
}

impl MemoryFileTree {
    fn with_files<T>(&self, work: impl FnOnce(&mut MemoryTreeFiles) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Creates a file, or replaces its content.
    pub fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.with_files(|files| {
            files.next_id += 1;
            let change = files.next_id;
            let id = files.by_path.get(path).map_or(change, |file| file.id);
            files.by_path.insert(
                path.to_owned(),
                MemoryTreeFile { id, change_number: change, bytes: bytes.into() },
            );
        });
    }

    /// Removes a file.
    pub fn remove(&self, path: &str) {
        self.with_files(|files| files.by_path.remove(path));
    }

    /// Renames a file; it remains the same file, and counts as changed.
    pub fn rename(&self, from: &str, to: &str) {
        self.with_files(|files| {
            files.next_id += 1;
            if let Some(file) = files.by_path.remove(from) {
                files
                    .by_path
                    .insert(to.to_owned(), MemoryTreeFile { change_number: files.next_id, ..file });
            }
        });
    }

    fn file(&self, path: &str) -> Option<MemoryTreeFile> {
        self.with_files(|files| files.by_path.get(path).cloned())
    }

    /// Returns the contents of a folder; `None` if it does not exist.
    fn folder(&self, path: &str) -> Option<MemoryTreeFolder> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let mut tree_folder = MemoryTreeFolder::default();
        self.with_files(|files| {
            for (path, file) in &files.by_path {
                let Some(below) = path.strip_prefix(&prefix) else { continue };
                match below.split_once('/') {
                    Some((folder, _)) => {
                        tree_folder.folders.insert(folder.to_owned());
                    }
                    None => tree_folder.files.push((below.to_owned(), file.clone())),
                }
            }
        });
        let is_there =
            path.is_empty() || !tree_folder.folders.is_empty() || !tree_folder.files.is_empty();
        is_there.then_some(tree_folder)
    }

    /// Starts a WebDAV server that serves the files below `/dav`.
    #[must_use]
    pub fn serve_webdav(&self) -> OriginServer {
        let tree = self.clone();
        OriginServer::start(move |request| tree.handle_webdav(request))
    }

    fn handle_webdav(&self, request: &OriginRequest) -> OriginResponse {
        let path = percent_decode(&request.target);
        let Some(path) = path.strip_prefix("/dav") else { return OriginResponse::with_status(404) };
        let path = path.trim_matches('/');
        match &*request.method {
            "GET" => match self.file(path) {
                Some(file) => OriginResponse::with_status(200)
                    .with_header("ETag", &file_etag(&file))
                    .with_body(file.bytes),
                None => OriginResponse::with_status(404),
            },
            "PROPFIND" if request.header("depth") != Some("1") => OriginResponse::with_status(403),
            "PROPFIND" => match self.folder(path) {
                Some(folder) => {
                    let body = multistatus_document(path, &folder);
                    OriginResponse::with_status(207)
                        .with_header("Content-Type", "application/xml")
                        .with_body(body)
                }
                None => OriginResponse::with_status(404),
            },
            _ => OriginResponse::with_status(405),
        }
    }

    /// Starts a CMIS server with the browser binding: the repository `main` at `/cmis`.
    #[must_use]
    pub fn serve_cmis(&self) -> OriginServer {
        let tree = self.clone();
        OriginServer::start(move |request| tree.handle_cmis(request))
    }

    fn handle_cmis(&self, request: &OriginRequest) -> OriginResponse {
        let json = |body: String| {
            OriginResponse::with_status(200)
                .with_header("Content-Type", "application/json")
                .with_body(body)
        };
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let host = request.header("host").unwrap_or_default();
        if path == "/cmis" {
            return json(format!(
                r#"{{"main":{{"repositoryId":"main","repositoryUrl":"http://{host}/cmis/main","rootFolderUrl":"http://{host}/cmis/main/root"}}}}"#
            ));
        }
        let path = percent_decode(path);
        let Some(path) = path.strip_prefix("/cmis/main/root") else {
            return OriginResponse::with_status(404);
        };
        let parameter = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            pair.map(percent_decode).unwrap_or_default()
        };
        match &*parameter("cmisselector") {
            "content" => {
                let id = parameter("objectId");
                let file = self.with_files(|files| {
                    files.by_path.values().find(|file| object_id(file) == id).cloned()
                });
                file.map_or_else(
                    || OriginResponse::with_status(404),
                    |file| OriginResponse::with_status(200).with_body(file.bytes),
                )
            }
            "children" => match self.folder(path.trim_matches('/')) {
                Some(folder) => {
                    let number = |name: &str| parameter(name).parse::<usize>().unwrap_or_default();
                    json(children_json(&folder, number("skipCount"), number("maxItems")))
                }
                None => OriginResponse::with_status(404),
            },
            _ => OriginResponse::with_status(400),
        }
    }
}

impl MemoryFileTree {
    /// Starts a CMIS server with the AtomPub binding: the repository `main` at `/cmis`.
    #[must_use]
    pub fn serve_cmis_atom(&self) -> OriginServer {
        let tree = self.clone();
        OriginServer::start(move |request| tree.handle_cmis_atom(request))
    }

    fn handle_cmis_atom(&self, request: &OriginRequest) -> OriginResponse {
        let xml = |kind: &str, body: String| {
            let kind = format!("application/atom{kind}");
            OriginResponse::with_status(200).with_header("Content-Type", &kind).with_body(body)
        };
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let base = format!("http://{}/cmis/main", request.header("host").unwrap_or_default());
        let parameter = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            pair.map(percent_decode).unwrap_or_default()
        };
        let number = |name: &str| parameter(name).parse::<usize>().unwrap_or_default();
        let folder = parameter("folder");
        match path {
            "/cmis" => xml("svc+xml", service_document(&base)),
            "/cmis/main/path" => match self.folder(parameter("path").trim_matches('/')) {
                Some(_) => xml(
                    "+xml;type=entry",
                    folder_entry_element(&base, parameter("path").trim_matches('/')),
                ),
                None => OriginResponse::with_status(404),
            },
            "/cmis/main/children" => match self.folder(&folder) {
                Some(contents) => {
                    let (skip, max) = (number("skipCount"), number("maxItems"));
                    xml("+xml;type=feed", feed_document(&base, (&folder, &contents), skip, max))
                }
                None => OriginResponse::with_status(404),
            },
            "/cmis/main/content" => {
                let id = parameter("id");
                let file = self.with_files(|files| {
                    files.by_path.values().find(|file| object_id(file) == id).cloned()
                });
                file.map_or_else(
                    || OriginResponse::with_status(404),
                    |file| OriginResponse::with_status(200).with_body(file.bytes),
                )
            }
            _ => OriginResponse::with_status(404),
        }
    }
}

const ATOM_NAMESPACES: &str = "xmlns=\"http://www.w3.org/2005/Atom\" xmlns:app=\"http://www.w3.org/2007/app\" \
                    xmlns:cmis=\"http://docs.oasis-open.org/ns/cmis/core/200908/\" \
                    xmlns:cmisra=\"http://docs.oasis-open.org/ns/cmis/restatom/200908/\"";

fn service_document(base: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?><app:service {ATOM_NAMESPACES}><app:workspace><title>main</title>\
         <app:collection href=\"{base}/types\"><cmisra:collectionType>types</cmisra:collectionType></app:collection>\
         <app:collection href=\"{base}/children?folder=\"><cmisra:collectionType>root</cmisra:collectionType>\
         </app:collection><cmisra:repositoryInfo><cmis:repositoryId>main</cmis:repositoryId></cmisra:repositoryInfo>\
         <cmisra:uritemplate><cmisra:template>{base}/id?id={{id}}</cmisra:template><cmisra:type>objectbyid</cmisra:type>\
         </cmisra:uritemplate><cmisra:uritemplate><cmisra:template>{base}/path?path={{path}}&amp;filter={{filter}}\
         </cmisra:template><cmisra:type>objectbypath</cmisra:type></cmisra:uritemplate></app:workspace></app:service>"
    )
}

fn property_element(kind: &str, id: &str, value: &str) -> String {
    format!(
        "<cmis:property{kind} propertyDefinitionId=\"cmis:{id}\"><cmis:value>{}</cmis:value></cmis:property{kind}>",
        escape_xml(value)
    )
}

fn entry_element(links: &str, properties: &str) -> String {
    format!(
        "<entry {ATOM_NAMESPACES}><author><name>ann</name></author>{links}<cmisra:object><cmis:properties>{properties}\
         </cmis:properties></cmisra:object></entry>"
    )
}

fn folder_entry_element(base: &str, path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let links = format!(
        "<link rel=\"down\" type=\"application/cmistree+xml\" href=\"{base}/tree\"/>\
         <link rel=\"down\" type=\"application/atom+xml;type=feed\" href=\"{base}/children?folder={}\"/>",
        percent_encode(path)
    );
    let properties = [
        property_element("Id", "objectId", &format!("folder-{path}")),
        property_element("String", "name", name),
        property_element("Id", "baseTypeId", "cmis:folder"),
    ];
    entry_element(&links, &properties.concat())
}

fn feed_document(
    base: &str,
    (path, folder): (&str, &MemoryTreeFolder),
    skip: usize,
    max: usize,
) -> String {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    let folders = folder.folders.iter().map(|name| folder_entry_element(base, &below(name)));
    let files = folder.files.iter().map(|(name, file)| {
        let links =
            format!("<content type=\"image/jpeg\" src=\"{base}/content?id={}\"/>", object_id(file));
        let properties = [
            property_element("Id", "objectId", &object_id(file)),
            property_element("Id", "versionSeriesId", &file.id.to_string()),
            property_element("String", "name", name),
            property_element("Id", "baseTypeId", "cmis:document"),
            property_element("Integer", "contentStreamLength", &file.bytes.len().to_string()),
            property_element("DateTime", "lastModificationDate", &file.change_number.to_string()),
            "<cmis:propertyString propertyDefinitionId=\"cmis:changeToken\"/>".to_owned(),
        ];
        entry_element(&links, &properties.concat())
    });
    let all: Vec<String> = folders.chain(files).collect();
    let page: Vec<String> = all.iter().skip(skip).take(max).cloned().collect();
    let next = skip + page.len();
    let mut body =
        format!("<?xml version=\"1.0\"?><feed {ATOM_NAMESPACES}><title>children</title>");
    if next < all.len() {
        let folder = percent_encode(path);
        body.push_str(&format!(
            "<link rel=\"next\" href=\"{base}/children?folder={folder}&amp;skipCount={next}&amp;maxItems={max}\"/>"
        ));
    }
    body.push_str(&page.concat());
    body.push_str("</feed>");
    body
}

/// A changed version is another object, as in Documentum.
fn object_id(file: &MemoryTreeFile) -> String {
    format!("{};{}", file.id, file.change_number)
}

fn file_etag(file: &MemoryTreeFile) -> String {
    format!("\"{}\"", file.change_number)
}

fn multistatus_document(path: &str, folder: &MemoryTreeFolder) -> String {
    let base = if path.is_empty() {
        "/dav/".to_owned()
    } else {
        format!("/dav/{}/", percent_encode(path))
    };
    let mut body = String::from("<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\">");
    let mut collection = |href: &str| {
        write!(
            body,
            "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:resourcetype><D:collection/>\
             </D:resourcetype></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
        )
        .ok();
    };
    collection(&base);
    for name in &folder.folders {
        collection(&format!("{base}{}/", percent_encode(name)));
    }
    for (name, file) in &folder.files {
        write!(
            body,
            "<D:response><D:href>{base}{}</D:href><D:propstat><D:prop><D:resourcetype/><D:getcontentlength>{}\
             </D:getcontentlength><D:getetag>{}</D:getetag><D:getlastmodified>Mon, 12 Jan 1998 09:25:56 GMT\
             </D:getlastmodified></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>",
            percent_encode(name),
            file.bytes.len(),
            file_etag(file)
        )
        .ok();
    }
    body.push_str("</D:multistatus>");
    body
}

fn children_json(folder: &MemoryTreeFolder, skip: usize, max: usize) -> String {
    let folders = folder.folders.iter().map(|name| {
        format!(
            r#"{{"object":{{"succinctProperties":{{"cmis:objectId":"folder-{0}","cmis:name":"{0}","cmis:baseTypeId":"cmis:folder"}}}}}}"#,
            quote_json(name)
        )
    });
    let files = folder.files.iter().map(|(name, file)| {
        format!(
            r#"{{"object":{{"succinctProperties":{{"cmis:objectId":"{}","cmis:versionSeriesId":"{}","cmis:name":"{}","cmis:baseTypeId":"cmis:document","cmis:contentStreamLength":{},"cmis:lastModificationDate":{},"cmis:changeToken":null}}}}}}"#,
            object_id(file),
            file.id,
            quote_json(name),
            file.bytes.len(),
            file.change_number
        )
    });
    let all: Vec<String> = folders.chain(files).collect();
    let page: Vec<String> = all.iter().skip(skip).take(max).cloned().collect();
    let has_more = skip + page.len() < all.len();
    format!(
        r#"{{"objects":[{}],"hasMoreItems":{has_more},"numItems":{}}}"#,
        page.join(","),
        all.len()
    )
}

fn quote_json(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '"' | '\\' => escaped.extend(['\\', letter]),
            letter if letter < ' ' => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn percent_encode(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut half =
                || rest.next().and_then(|digit| char::from(digit).to_digit(16)).unwrap_or(0);
            let (high, low) = (half(), half());
            bytes.push(u8::try_from(high * 16 + low).unwrap_or(0));
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
