//! Files in memory, and small servers that show them: WebDAV and CMIS as other systems speak them.
//!
//! In: files by path. Out: servers on free ports that answer from them, and record what they were asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use crate::origin::{Answer, Origin, Seen};

/// One file.
#[derive(Debug, Clone)]
struct File {
    id: u64,
    change: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Files {
    next: u64,
    by_path: BTreeMap<String, File>,
}

/// Files by path, such as `2024/a.jpg`. Clones show the same.
#[derive(Debug, Clone, Default)]
pub struct Shelf(Arc<Mutex<Files>>);

/// What a folder holds.
#[derive(Debug, Default)]
struct Folder {
    folders: BTreeSet<String>,
    files: Vec<(String, File)>,
}

impl Shelf {
    fn with<T>(&self, work: impl FnOnce(&mut Files) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a file, or other bytes into it.
    pub fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.with(|files| {
            files.next += 1;
            let change = files.next;
            let id = files.by_path.get(path).map_or(change, |file| file.id);
            files.by_path.insert(path.to_owned(), File { id, change, bytes: bytes.into() });
        });
    }

    /// Takes a file away.
    pub fn remove(&self, path: &str) {
        self.with(|files| files.by_path.remove(path));
    }

    /// Gives a file another path; it stays the same file, and is changed.
    pub fn rename(&self, from: &str, to: &str) {
        self.with(|files| {
            files.next += 1;
            if let Some(file) = files.by_path.remove(from) {
                files.by_path.insert(to.to_owned(), File { change: files.next, ..file });
            }
        });
    }

    fn file(&self, path: &str) -> Option<File> {
        self.with(|files| files.by_path.get(path).cloned())
    }

    /// Returns what a folder holds; nothing if there is no such folder.
    fn folder(&self, path: &str) -> Option<Folder> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let mut found = Folder::default();
        self.with(|files| {
            for (path, file) in &files.by_path {
                let Some(below) = path.strip_prefix(&prefix) else { continue };
                match below.split_once('/') {
                    Some((folder, _)) => {
                        found.folders.insert(folder.to_owned());
                    }
                    None => found.files.push((below.to_owned(), file.clone())),
                }
            }
        });
        let is_there = path.is_empty() || !found.folders.is_empty() || !found.files.is_empty();
        is_there.then_some(found)
    }

    /// Starts a WebDAV server that shows the files below `/dav`.
    #[must_use]
    pub fn serve_webdav(&self) -> Origin {
        let shelf = self.clone();
        Origin::start(move |seen| shelf.answer_webdav(seen))
    }

    fn answer_webdav(&self, seen: &Seen) -> Answer {
        let path = decoded(&seen.target);
        let Some(path) = path.strip_prefix("/dav") else { return Answer::status(404) };
        let path = path.trim_matches('/');
        match &*seen.method {
            "GET" => match self.file(path) {
                Some(file) => Answer::status(200).header("ETag", &tag(&file)).body(file.bytes),
                None => Answer::status(404),
            },
            "PROPFIND" if seen.header("depth") != Some("1") => Answer::status(403),
            "PROPFIND" => match self.folder(path) {
                Some(folder) => {
                    let body = multistatus(path, &folder);
                    Answer::status(207).header("Content-Type", "application/xml").body(body)
                }
                None => Answer::status(404),
            },
            _ => Answer::status(405),
        }
    }

    /// Starts a CMIS server with the browser binding: the repository `main` at `/cmis`.
    #[must_use]
    pub fn serve_cmis(&self) -> Origin {
        let shelf = self.clone();
        Origin::start(move |seen| shelf.answer_cmis(seen))
    }

    fn answer_cmis(&self, seen: &Seen) -> Answer {
        let json = |body: String| {
            Answer::status(200).header("Content-Type", "application/json").body(body)
        };
        let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
        let host = seen.header("host").unwrap_or_default();
        if path == "/cmis" {
            return json(format!(
                r#"{{"main":{{"repositoryId":"main","repositoryUrl":"http://{host}/cmis/main","rootFolderUrl":"http://{host}/cmis/main/root"}}}}"#
            ));
        }
        let path = decoded(path);
        let Some(path) = path.strip_prefix("/cmis/main/root") else { return Answer::status(404) };
        let parameter = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            pair.map(decoded).unwrap_or_default()
        };
        match &*parameter("cmisselector") {
            "content" => {
                let id = parameter("objectId");
                let file = self.with(|files| {
                    files.by_path.values().find(|file| object_id(file) == id).cloned()
                });
                file.map_or_else(
                    || Answer::status(404),
                    |file| Answer::status(200).body(file.bytes),
                )
            }
            "children" => match self.folder(path.trim_matches('/')) {
                Some(folder) => {
                    let number = |name: &str| parameter(name).parse::<usize>().unwrap_or_default();
                    json(children(&folder, number("skipCount"), number("maxItems")))
                }
                None => Answer::status(404),
            },
            _ => Answer::status(400),
        }
    }
}

impl Shelf {
    /// Starts a CMIS server with the AtomPub binding: the repository `main` at `/cmis`.
    #[must_use]
    pub fn serve_cmis_atom(&self) -> Origin {
        let shelf = self.clone();
        Origin::start(move |seen| shelf.answer_atom(seen))
    }

    fn answer_atom(&self, seen: &Seen) -> Answer {
        let xml = |kind: &str, body: String| {
            let kind = format!("application/atom{kind}");
            Answer::status(200).header("Content-Type", &kind).body(body)
        };
        let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
        let base = format!("http://{}/cmis/main", seen.header("host").unwrap_or_default());
        let parameter = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            pair.map(decoded).unwrap_or_default()
        };
        let number = |name: &str| parameter(name).parse::<usize>().unwrap_or_default();
        let folder = parameter("folder");
        match path {
            "/cmis" => xml("svc+xml", service(&base)),
            "/cmis/main/path" => match self.folder(parameter("path").trim_matches('/')) {
                Some(_) => {
                    xml("+xml;type=entry", folder_entry(&base, parameter("path").trim_matches('/')))
                }
                None => Answer::status(404),
            },
            "/cmis/main/children" => match self.folder(&folder) {
                Some(found) => {
                    let (skip, max) = (number("skipCount"), number("maxItems"));
                    xml("+xml;type=feed", feed(&base, (&folder, &found), skip, max))
                }
                None => Answer::status(404),
            },
            "/cmis/main/content" => {
                let id = parameter("id");
                let file = self.with(|files| {
                    files.by_path.values().find(|file| object_id(file) == id).cloned()
                });
                file.map_or_else(
                    || Answer::status(404),
                    |file| Answer::status(200).body(file.bytes),
                )
            }
            _ => Answer::status(404),
        }
    }
}

const ATOM: &str = "xmlns=\"http://www.w3.org/2005/Atom\" xmlns:app=\"http://www.w3.org/2007/app\" \
                    xmlns:cmis=\"http://docs.oasis-open.org/ns/cmis/core/200908/\" \
                    xmlns:cmisra=\"http://docs.oasis-open.org/ns/cmis/restatom/200908/\"";

fn service(base: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?><app:service {ATOM}><app:workspace><title>main</title>\
         <app:collection href=\"{base}/types\"><cmisra:collectionType>types</cmisra:collectionType></app:collection>\
         <app:collection href=\"{base}/children?folder=\"><cmisra:collectionType>root</cmisra:collectionType>\
         </app:collection><cmisra:repositoryInfo><cmis:repositoryId>main</cmis:repositoryId></cmisra:repositoryInfo>\
         <cmisra:uritemplate><cmisra:template>{base}/id?id={{id}}</cmisra:template><cmisra:type>objectbyid</cmisra:type>\
         </cmisra:uritemplate><cmisra:uritemplate><cmisra:template>{base}/path?path={{path}}&amp;filter={{filter}}\
         </cmisra:template><cmisra:type>objectbypath</cmisra:type></cmisra:uritemplate></app:workspace></app:service>"
    )
}

fn property(kind: &str, id: &str, value: &str) -> String {
    format!(
        "<cmis:property{kind} propertyDefinitionId=\"cmis:{id}\"><cmis:value>{}</cmis:value></cmis:property{kind}>",
        xml_text(value)
    )
}

fn entry(links: &str, properties: &str) -> String {
    format!(
        "<entry {ATOM}><author><name>ann</name></author>{links}<cmisra:object><cmis:properties>{properties}\
         </cmis:properties></cmisra:object></entry>"
    )
}

fn folder_entry(base: &str, path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let links = format!(
        "<link rel=\"down\" type=\"application/cmistree+xml\" href=\"{base}/tree\"/>\
         <link rel=\"down\" type=\"application/atom+xml;type=feed\" href=\"{base}/children?folder={}\"/>",
        encoded(path)
    );
    let properties = [
        property("Id", "objectId", &format!("folder-{path}")),
        property("String", "name", name),
        property("Id", "baseTypeId", "cmis:folder"),
    ];
    entry(&links, &properties.concat())
}

fn feed(base: &str, (path, folder): (&str, &Folder), skip: usize, max: usize) -> String {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    let folders = folder.folders.iter().map(|name| folder_entry(base, &below(name)));
    let files = folder.files.iter().map(|(name, file)| {
        let links =
            format!("<content type=\"image/jpeg\" src=\"{base}/content?id={}\"/>", object_id(file));
        let properties = [
            property("Id", "objectId", &object_id(file)),
            property("Id", "versionSeriesId", &file.id.to_string()),
            property("String", "name", name),
            property("Id", "baseTypeId", "cmis:document"),
            property("Integer", "contentStreamLength", &file.bytes.len().to_string()),
            property("DateTime", "lastModificationDate", &file.change.to_string()),
            "<cmis:propertyString propertyDefinitionId=\"cmis:changeToken\"/>".to_owned(),
        ];
        entry(&links, &properties.concat())
    });
    let all: Vec<String> = folders.chain(files).collect();
    let page: Vec<String> = all.iter().skip(skip).take(max).cloned().collect();
    let next = skip + page.len();
    let mut body = format!("<?xml version=\"1.0\"?><feed {ATOM}><title>children</title>");
    if next < all.len() {
        let folder = encoded(path);
        body.push_str(&format!(
            "<link rel=\"next\" href=\"{base}/children?folder={folder}&amp;skipCount={next}&amp;maxItems={max}\"/>"
        ));
    }
    body.push_str(&page.concat());
    body.push_str("</feed>");
    body
}

fn xml_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// A version that is changed is another object, as in Documentum.
fn object_id(file: &File) -> String {
    format!("{};{}", file.id, file.change)
}

fn tag(file: &File) -> String {
    format!("\"{}\"", file.change)
}

fn multistatus(path: &str, folder: &Folder) -> String {
    let base =
        if path.is_empty() { "/dav/".to_owned() } else { format!("/dav/{}/", encoded(path)) };
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
        collection(&format!("{base}{}/", encoded(name)));
    }
    for (name, file) in &folder.files {
        write!(
            body,
            "<D:response><D:href>{base}{}</D:href><D:propstat><D:prop><D:resourcetype/><D:getcontentlength>{}\
             </D:getcontentlength><D:getetag>{}</D:getetag><D:getlastmodified>Mon, 12 Jan 1998 09:25:56 GMT\
             </D:getlastmodified></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>",
            encoded(name),
            file.bytes.len(),
            tag(file)
        )
        .ok();
    }
    body.push_str("</D:multistatus>");
    body
}

fn children(folder: &Folder, skip: usize, max: usize) -> String {
    let folders = folder.folders.iter().map(|name| {
        format!(
            r#"{{"object":{{"succinctProperties":{{"cmis:objectId":"folder-{0}","cmis:name":"{0}","cmis:baseTypeId":"cmis:folder"}}}}}}"#,
            json_text(name)
        )
    });
    let files = folder.files.iter().map(|(name, file)| {
        format!(
            r#"{{"object":{{"succinctProperties":{{"cmis:objectId":"{}","cmis:versionSeriesId":"{}","cmis:name":"{}","cmis:baseTypeId":"cmis:document","cmis:contentStreamLength":{},"cmis:lastModificationDate":{},"cmis:changeToken":null}}}}}}"#,
            object_id(file),
            file.id,
            json_text(name),
            file.bytes.len(),
            file.change
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

fn json_text(text: &str) -> String {
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

fn encoded(path: &str) -> String {
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

fn decoded(text: &str) -> String {
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
