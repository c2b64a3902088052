//! Files of a CMIS repository: OpenText (LiveLink), Documentum, Alfresco, SharePoint, Nuxeo.
//!
//! In: `cmis+https://host/service#repository/folder`. The service's address is that of its service document, which
//! tells where the root folder of each repository answers. A document in JSON speaks the browser binding of CMIS 1.1, one
//! in XML the AtomPub binding (`atom`).
//!
//! A version that is checked in is another object in many repositories; the series of versions keeps its identifier,
//! and so identifies a file. Its mark is the change token, or the time of the last change with the length.

use std::collections::HashSet;
use std::io::Read;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};

use super::atom::{self, Object, Workspace};
use super::http::{Answer, Host, Way, url_part};
use super::ledger::key;
use super::name::escape;
use super::place::Place;
use super::source::{Entry, Found, MAX_DEPTH, MAX_FILES, Source, SourceError, is_left_out, joined};

/// Objects of one answer.
const PAGE: usize = 500;
/// The longest answer.
const MAX_ANSWER: u64 = 64 << 20;
/// The most folders.
const MAX_FOLDERS: usize = 200_000;

/// What is told each object of a folder; an error ends the listing.
type Told<'a> = dyn FnMut(Object) -> Result<(), SourceError> + 'a;

/// How a repository is spoken to, and where its folder answers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Binding {
    /// The path of the root folder, below which folders have their own names.
    Browser(String),
    /// The path at which the folder's children are listed.
    Atom(String),
}

/// A folder of a repository.
#[derive(Debug)]
pub(crate) struct Cmis {
    host: Host,
    /// Path of the service document.
    service: String,
    /// The repository; the only one there is if empty.
    repository: String,
    /// The names that lead to the folder.
    folder: Vec<String>,
    /// How the repository answered when it was listed last.
    binding: Mutex<Option<Binding>>,
}

impl Cmis {
    pub(crate) fn new(source: &str, place: &Place, way: &Way) -> Result<Self, String> {
        let url = source.strip_prefix("cmis+").unwrap_or(source);
        let (url, within) = url.split_once('#').unwrap_or((url, ""));
        let (repository, folder) = within.split_once('/').unwrap_or((within, ""));
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        Ok(Self {
            host: Host::new(url, place, way)?,
            service: format!("/{path}"),
            repository: repository.to_owned(),
            folder: folder.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            binding: Mutex::default(),
        })
    }

    fn malformed(&self, reason: impl Into<String>) -> SourceError {
        let place = format!("{}{}", self.host.origin(), self.service);
        SourceError::Malformed { place, reason: reason.into() }
    }

    fn ask(&self, target: &str) -> Result<Answer, SourceError> {
        // Servers of the other binding send what they have.
        self.host.ask(
            &Method::GET,
            target,
            &[("accept", "application/json, */*;q=0.5".to_owned())],
            "",
        )
    }

    fn json(&self, answer: Answer) -> Result<Json, SourceError> {
        let place = answer.place().to_owned();
        serde_json::from_reader(std::io::BufReader::new(answer.take(MAX_ANSWER))).map_err(|error| {
            let reason = error.to_string();
            match error.is_io() {
                true => SourceError::Unreachable { place, reason },
                false => SourceError::Malformed { place, reason },
            }
        })
    }

    /// Asks how the repository is spoken to, and where its folder is.
    fn find(&self) -> Result<Binding, SourceError> {
        let answer = self.ask(&self.service)?;
        if answer.header("content-type").is_some_and(|kind| kind.contains("xml")) {
            return self.find_workspace(answer);
        }
        let service = self.json(answer)?;
        let repositories =
            service.as_object().ok_or_else(|| self.malformed("it is no service document"))?;
        let info = if self.repository.is_empty() && repositories.len() == 1 {
            repositories.values().next()
        } else {
            repositories.get(&self.repository)
        };
        let info = info.ok_or_else(|| self.unknown(repositories.keys()))?;
        let url = info.get("rootFolderUrl").and_then(Json::as_str).unwrap_or_default();
        Ok(Binding::Browser(self.path_of(url)?.trim_end_matches('/').to_owned()))
    }

    /// Does so for a service document in XML.
    fn find_workspace(&self, answer: Answer) -> Result<Binding, SourceError> {
        let place = answer.place().to_owned();
        let all = atom::read_service(answer, &place)?;
        let is_meant = |one: &&Workspace| {
            one.repository == self.repository || (self.repository.is_empty() && all.len() == 1)
        };
        let found = all.iter().find(is_meant);
        let found = found.ok_or_else(|| self.unknown(all.iter().map(|one| &one.repository)))?;
        if self.folder.is_empty() {
            return Ok(Binding::Atom(self.path_of(&found.root)?.to_owned()));
        }
        let answer = self.ask(self.path_of(&found.address_of(&self.folder))?)?;
        let (place, mut children) = (answer.place().to_owned(), String::new());
        atom::read_feed(answer, &place, |object| {
            children = object.children;
            Ok(())
        })?;
        Ok(Binding::Atom(self.path_of(&children)?.to_owned()))
    }

    fn unknown<'a>(&self, known: impl Iterator<Item = &'a String>) -> SourceError {
        let known = known.map(String::as_str).collect::<Vec<_>>().join("`, `");
        SourceError::Refused {
            place: format!("{}{}", self.host.origin(), self.service),
            reason: format!("it has no repository `{}`, but `{known}`", self.repository),
        }
    }

    /// Returns the path and query of an address. Credentials go nowhere else, whatever the service says.
    fn path_of<'a>(&self, url: &'a str) -> Result<&'a str, SourceError> {
        let path = url.strip_prefix(self.host.origin()).filter(|path| path.starts_with('/'));
        path.ok_or_else(|| {
            self.malformed(format!("it leads to `{url}`, which is not at `{}`", self.host.origin()))
        })
    }

    /// Tells the objects of a folder in feeds, page by page.
    fn list_feed(&self, folder: &str, with: &mut Told<'_>) -> Result<(), SourceError> {
        let joint = if folder.contains('?') { '&' } else { '?' };
        let mut page = format!("{folder}{joint}includeAllowableActions=false&maxItems={PAGE}");
        let mut seen = HashSet::new();
        loop {
            let answer = self.ask(&page)?;
            let place = answer.place().to_owned();
            let mut is_new = false;
            let next = atom::read_feed(answer, &place, |mut object| {
                if !seen.insert(key(&text(&object.properties, "cmis:objectId"))) {
                    return Ok(());
                }
                is_new = true;
                for address in [&mut object.children, &mut object.content] {
                    if !address.is_empty() {
                        *address = self.path_of(address)?.to_owned();
                    }
                }
                with(object)
            })?;
            let Some(next) = next else { return Ok(()) };
            if !is_new {
                return Err(self.malformed("it says that there is more, and does not go on"));
            }
            if seen.len() > MAX_FILES {
                return Err(SourceError::TooMany(self.host.origin().to_owned()));
            }
            page = self.path_of(&next)?.to_owned();
        }
    }

    /// Tells the objects of a folder, page by page.
    fn list_folder(&self, folder: &str, with: &mut Told<'_>) -> Result<(), SourceError> {
        let (mut skip, mut seen) = (0, HashSet::new());
        loop {
            let target = format!(
                "{folder}?cmisselector=children&succinct=true&includeAllowableActions=false&maxItems={PAGE}&skipCount={skip}"
            );
            let answer = self.json(self.ask(&target)?)?;
            let objects = answer.get("objects").and_then(Json::as_array);
            let objects = objects.ok_or_else(|| self.malformed("a folder has no `objects`"))?;
            let mut is_new = false;
            for object in objects {
                let object = object.get("object").unwrap_or(object);
                let properties = properties_of(object)
                    .ok_or_else(|| self.malformed("an object has no properties"))?;
                let id = text(&properties, "cmis:objectId");
                // Somebody who adds or removes files between two pages moves the others.
                if seen.insert(key(&id)) {
                    is_new = true;
                    let name = text(&properties, "cmis:name");
                    let children = format!("{folder}/{}", url_part(name.as_bytes()));
                    with(Object { properties, children, content: String::new() })?;
                }
            }
            let has_more = answer.get("hasMoreItems").and_then(Json::as_bool);
            let has_more = has_more.unwrap_or(objects.len() >= PAGE);
            if !has_more {
                return Ok(());
            }
            if !is_new {
                return Err(self.malformed("it says that there is more, and does not go on"));
            }
            if seen.len() > MAX_FILES {
                return Err(SourceError::TooMany(self.host.origin().to_owned()));
            }
            skip += objects.len();
        }
    }
}

/// Returns the properties of an object in the short form, or in the long one of servers that know no other.
fn properties_of(object: &Json) -> Option<Map<String, Json>> {
    if let Some(succinct) = object.get("succinctProperties").and_then(Json::as_object) {
        return Some(succinct.clone());
    }
    let long = object.get("properties")?.as_object()?;
    let value = |property: &Json| property.get("value").cloned().unwrap_or(Json::Null);
    Some(long.iter().map(|(name, property)| (name.clone(), value(property))).collect())
}

fn text(properties: &Map<String, Json>, name: &str) -> String {
    match properties.get(name) {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(values)) => {
            values.first().and_then(Json::as_str).unwrap_or_default().to_owned()
        }
        Some(Json::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

impl Source for Cmis {
    fn list(
        &self,
        found: &mut dyn FnMut(Found) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let binding = self.find()?;
        *self.binding.lock() = Some(binding.clone());
        let (root, is_atom) = match binding {
            Binding::Browser(mut root) => {
                for name in &self.folder {
                    root = format!("{root}/{}", url_part(name.as_bytes()));
                }
                (root, false)
            }
            Binding::Atom(root) => (root, true),
        };
        let mut folders = vec![(root, String::new(), 0)];
        let (mut files, mut asked) = (0, 0);
        while let Some((address, folder, depth)) = folders.pop() {
            asked += 1;
            if asked + folders.len() > MAX_FOLDERS {
                return Err(SourceError::TooMany(self.host.origin().to_owned()));
            }
            let mut look = |object: Object| {
                let properties = &object.properties;
                let name = text(properties, "cmis:name");
                if is_left_out(name.as_bytes()) {
                    return Ok(());
                }
                let path = joined(&folder, &escape(name.as_bytes()));
                match &*text(properties, "cmis:baseTypeId") {
                    "cmis:folder" if depth >= MAX_DEPTH => {
                        let reason = format!("it lies deeper than {MAX_DEPTH} folders");
                        found(Found::LeftOut(path, reason))
                    }
                    "cmis:folder" if object.children.is_empty() => {
                        Err(self.malformed(format!("it does not say what is in `{path}`")))
                    }
                    "cmis:folder" => {
                        folders.push((object.children, path, depth + 1));
                        Ok(())
                    }
                    "cmis:document" => {
                        if let Some(reason) = missing(properties) {
                            return found(Found::LeftOut(path, reason.to_owned()));
                        }
                        files += 1;
                        if files > MAX_FILES {
                            return Err(SourceError::TooMany(self.host.origin().to_owned()));
                        }
                        let mut entry = entry_of(path, properties);
                        if is_atom {
                            entry.handle = object.content;
                        }
                        found(Found::File(entry))
                    }
                    _ => Ok(()),
                }
            };
            match is_atom {
                true => self.list_feed(&address, &mut look)?,
                false => self.list_folder(&address, &mut look)?,
            }
        }
        Ok(())
    }

    fn has_lasting_identities(&self) -> bool {
        true
    }

    fn open(&self, entry: &Entry) -> Result<Box<dyn Read + Send>, SourceError> {
        let known = self.binding.lock().clone();
        let target = match known.map_or_else(|| self.find(), Ok)? {
            Binding::Browser(root) => {
                let id = url_part(entry.handle.as_bytes());
                format!("{root}?cmisselector=content&objectId={id}")
            }
            Binding::Atom(_) if entry.handle.is_empty() => {
                return Err(self.malformed(format!("it does not say where `{}` is", entry.path)));
            }
            Binding::Atom(_) => entry.handle.clone(),
        };
        Ok(Box::new(self.ask(&target)?))
    }
}

/// Tells why a document has nothing to read.
fn missing(properties: &Map<String, Json>) -> Option<&'static str> {
    if properties.get("cmis:isPrivateWorkingCopy") == Some(&Json::Bool(true)) {
        return Some("it is checked out: what is checked in counts");
    }
    let is_null = |name: &str| properties.get(name).is_some_and(Json::is_null);
    let is_empty = is_null("cmis:contentStreamLength") && is_null("cmis:contentStreamMimeType");
    is_empty.then_some("it has no content")
}

fn entry_of(path: String, properties: &Map<String, Json>) -> Entry {
    let bytes = properties.get("cmis:contentStreamLength");
    let bytes = bytes.and_then(Json::as_i64).and_then(|bytes| u64::try_from(bytes).ok());
    let length = bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let mut changed = text(properties, "cmis:changeToken");
    if changed.is_empty() {
        changed = text(properties, "cmis:lastModificationDate");
    }
    let object = text(properties, "cmis:objectId");
    let series = text(properties, "cmis:versionSeriesId");
    let identity = if series.is_empty() { object.clone() } else { series };
    Entry {
        path,
        mark: format!("{length}-{changed}"),
        identity: Some(identity).filter(|identity| !identity.is_empty()),
        bytes,
        modified: None,
        handle: object,
    }
}
