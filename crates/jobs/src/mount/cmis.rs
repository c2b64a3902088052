//! Files of a CMIS repository, by the browser binding of CMIS 1.1: OpenText (LiveLink), Documentum, Alfresco,
//! SharePoint, Nuxeo.
//!
//! In: `cmis+https://host/service#repository/folder`. The service's address is that of its service document, which
//! tells where the root folder of each repository answers.
//!
//! A version that is checked in is another object in many repositories; the series of versions keeps its identifier,
//! and so identifies a file. Its mark is the change token, or the time of the last change with the length.

use std::collections::HashSet;
use std::io::Read;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};
use tokio::runtime::Handle;

use super::http::{Answer, Host, url_part};
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

/// What is told the properties of an object; an error ends the listing.
type Told<'a> = dyn FnMut(&Map<String, Json>) -> Result<(), SourceError> + 'a;

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
    /// The path at which the root folder answered when it was listed last.
    root: Mutex<Option<String>>,
}

impl Cmis {
    pub(crate) fn new(source: &str, place: &Place, runtime: &Handle) -> Result<Self, String> {
        let url = source.strip_prefix("cmis+").unwrap_or(source);
        let (url, within) = url.split_once('#').unwrap_or((url, ""));
        let (repository, folder) = within.split_once('/').unwrap_or((within, ""));
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        Ok(Self {
            host: Host::new(url, place, runtime)?,
            service: format!("/{path}"),
            repository: repository.to_owned(),
            folder: folder.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            root: Mutex::default(),
        })
    }

    fn malformed(&self, reason: impl Into<String>) -> SourceError {
        let place = format!("{}{}", self.host.origin(), self.service);
        SourceError::Malformed { place, reason: reason.into() }
    }

    fn ask(&self, target: &str) -> Result<Answer, SourceError> {
        self.host.ask(&Method::GET, target, &[("accept", "application/json".to_owned())], "")
    }

    fn json(&self, target: &str) -> Result<Json, SourceError> {
        let answer = self.ask(target)?;
        let place = answer.place().to_owned();
        serde_json::from_reader(std::io::BufReader::new(answer.take(MAX_ANSWER))).map_err(|error| {
            let reason = error.to_string();
            match error.is_io() {
                true => SourceError::Unreachable { place, reason },
                false => SourceError::Malformed { place, reason },
            }
        })
    }

    /// Returns the path at which the root folder answers.
    fn find_root(&self) -> Result<String, SourceError> {
        let service = self.json(&self.service)?;
        let repositories =
            service.as_object().ok_or_else(|| self.malformed("it is no service document"))?;
        let info = if self.repository.is_empty() && repositories.len() == 1 {
            repositories.values().next()
        } else {
            repositories.get(&self.repository)
        };
        let known = || repositories.keys().map(String::as_str).collect::<Vec<_>>().join("`, `");
        let info = info.ok_or_else(|| SourceError::Refused {
            place: format!("{}{}", self.host.origin(), self.service),
            reason: format!("it has no repository `{}`, but `{}`", self.repository, known()),
        })?;
        let url = info.get("rootFolderUrl").and_then(Json::as_str).unwrap_or_default();
        // Credentials go nowhere else, whatever the service says.
        let path = url.strip_prefix(self.host.origin()).filter(|path| path.starts_with('/'));
        path.map(|path| path.trim_end_matches('/').to_owned()).ok_or_else(|| {
            self.malformed(format!("its root folder `{url}` is not at `{}`", self.host.origin()))
        })
    }

    /// Tells the objects of a folder, page by page.
    fn list_folder(&self, folder: &str, with: &mut Told<'_>) -> Result<(), SourceError> {
        let (mut skip, mut seen) = (0, HashSet::new());
        loop {
            let target = format!(
                "{folder}?cmisselector=children&succinct=true&includeAllowableActions=false&maxItems={PAGE}&skipCount={skip}"
            );
            let answer = self.json(&target)?;
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
                    with(&properties)?;
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
        let mut root = self.find_root()?;
        *self.root.lock() = Some(root.clone());
        for name in &self.folder {
            root = format!("{root}/{}", url_part(name.as_bytes()));
        }
        let mut folders = vec![(root, String::new(), 0)];
        let (mut files, mut asked) = (0, 0);
        while let Some((address, folder, depth)) = folders.pop() {
            asked += 1;
            if asked + folders.len() > MAX_FOLDERS {
                return Err(SourceError::TooMany(self.host.origin().to_owned()));
            }
            self.list_folder(&address, &mut |properties| {
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
                    "cmis:folder" => {
                        folders.push((
                            format!("{address}/{}", url_part(name.as_bytes())),
                            path,
                            depth + 1,
                        ));
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
                        found(Found::File(entry_of(path, properties)))
                    }
                    _ => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    fn has_lasting_identities(&self) -> bool {
        true
    }

    fn open(&self, entry: &Entry) -> Result<Box<dyn Read + Send>, SourceError> {
        let id = url_part(entry.handle.as_bytes());
        let known = self.root.lock().clone();
        let root = known.map_or_else(|| self.find_root(), Ok)?;
        let target = format!("{root}?cmisselector=content&objectId={id}");
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
