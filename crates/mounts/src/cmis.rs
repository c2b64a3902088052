//! Lists and reads the files of a CMIS repository: OpenText (LiveLink), Documentum, Alfresco, SharePoint, Nuxeo.
//!
//! In: `cmis+https://host/service#repository/folder`. The service's address is that of its service document, which
//! gives the address of each repository's root folder. A JSON document selects the browser binding of CMIS 1.1, an XML
//! document the AtomPub binding (`cmis_atom`).
//!
//! In many repositories a checked-in version is another object. The version series keeps its identifier, and so
//! identifies a file. The file's fingerprint is the change token, or the time of the last change with the length.

use std::collections::HashSet;
use std::io::Read;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};

use crate::cmis_atom::{self, CmisFeedObject, CmisWorkspace};
use crate::mount_ledger::path_hash;
use crate::mount_location::MountLocation;
use crate::mount_source::{
    MAX_FILES, MAX_FOLDER_DEPTH, MountSource, MountSourceError, SourceFile, SourceItem,
    is_ignored_name, join_escaped_path,
};
use crate::name_escaping::escape_name;
use crate::source_http::{SourceHost, SourceNetwork, SourceResponse, escape_url_part};

/// Maximum number of objects per response.
const PAGE_SIZE: usize = 500;
/// Maximum length of a response, in bytes.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;
/// Maximum number of folders.
const MAX_FOLDERS: usize = 200_000;

/// Called with each object of a folder; an error ends the listing.
type CmisObjectVisitor<'a> = dyn FnMut(CmisFeedObject) -> Result<(), MountSourceError> + 'a;

/// The binding of a repository, and the address of its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CmisBinding {
    /// The path of the root folder; folders below it are addressed by name.
    Browser(String),
    /// The path at which the folder's children are listed.
    Atom(String),
}

/// A folder of a repository.
#[derive(Debug)]
pub(crate) struct CmisSource {
    host: SourceHost,
    /// Path of the service document.
    service_path: String,
    /// The repository's ID; if empty, the service must have only one repository.
    repository: String,
    /// The names of the path to the folder.
    folder_names: Vec<String>,
    /// The binding that was discovered by the last listing.
    binding: Mutex<Option<CmisBinding>>,
}

impl CmisSource {
    pub(crate) fn new(
        source: &str,
        location: &MountLocation,
        network: &SourceNetwork,
    ) -> Result<Self, String> {
        let url = source.strip_prefix("cmis+").unwrap_or(source);
        let (url, within) = url.split_once('#').unwrap_or((url, ""));
        let (repository, folder) = within.split_once('/').unwrap_or((within, ""));
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        Ok(Self {
            host: SourceHost::new(url, location, network)?,
            service_path: format!("/{path}"),
            repository: repository.to_owned(),
            folder_names: folder
                .split('/')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            binding: Mutex::default(),
        })
    }

    fn malformed_error(&self, reason: impl Into<String>) -> MountSourceError {
        let location = format!("{}{}", self.host.origin(), self.service_path);
        MountSourceError::Malformed { location, reason: reason.into() }
    }

    fn send_request(&self, target: &str) -> Result<SourceResponse, MountSourceError> {
        // Servers of the other binding ignore the parameter and send their own format.
        self.host.send_request(
            &Method::GET,
            target,
            &[("accept", "application/json, */*;q=0.5".to_owned())],
            "",
        )
    }

    fn read_json(&self, response: SourceResponse) -> Result<Json, MountSourceError> {
        let location = response.location().to_owned();
        serde_json::from_reader(std::io::BufReader::new(response.take(MAX_RESPONSE_BYTES))).map_err(
            |error| {
                let reason = error.to_string();
                match error.is_io() {
                    true => MountSourceError::Unreachable { location, reason },
                    false => MountSourceError::Malformed { location, reason },
                }
            },
        )
    }

    /// Requests the service document, and returns the binding and the folder's address.
    fn discover_binding(&self) -> Result<CmisBinding, MountSourceError> {
        let response = self.send_request(&self.service_path)?;
        if response.header("content-type").is_some_and(|kind| kind.contains("xml")) {
            return self.binding_from_atom(response);
        }
        let service = self.read_json(response)?;
        let repositories = service
            .as_object()
            .ok_or_else(|| self.malformed_error("it is not a service document"))?;
        let info = if self.repository.is_empty() && repositories.len() == 1 {
            repositories.values().next()
        } else {
            repositories.get(&self.repository)
        };
        let info = info.ok_or_else(|| self.unknown_repository_error(repositories.keys()))?;
        let url = info.get("rootFolderUrl").and_then(Json::as_str).unwrap_or_default();
        Ok(CmisBinding::Browser(self.same_host_path(url)?.trim_end_matches('/').to_owned()))
    }

    /// Returns the binding for a service document in XML.
    fn binding_from_atom(&self, response: SourceResponse) -> Result<CmisBinding, MountSourceError> {
        let location = response.location().to_owned();
        let all = cmis_atom::read_service_document(response, &location)?;
        let is_meant = |workspace: &&CmisWorkspace| {
            workspace.repository == self.repository
                || (self.repository.is_empty() && all.len() == 1)
        };
        let matching_workspace = all.iter().find(is_meant);
        let matching_workspace = matching_workspace.ok_or_else(|| {
            self.unknown_repository_error(all.iter().map(|workspace| &workspace.repository))
        })?;
        if self.folder_names.is_empty() {
            return Ok(CmisBinding::Atom(
                self.same_host_path(&matching_workspace.root_children_url)?.to_owned(),
            ));
        }
        let response = self.send_request(
            self.same_host_path(&matching_workspace.folder_url(&self.folder_names))?,
        )?;
        let (location, mut children) = (response.location().to_owned(), String::new());
        cmis_atom::read_atom_feed(response, &location, |object| {
            children = object.children_url;
            Ok(())
        })?;
        Ok(CmisBinding::Atom(self.same_host_path(&children)?.to_owned()))
    }

    fn unknown_repository_error<'a>(
        &self,
        repositories: impl Iterator<Item = &'a String>,
    ) -> MountSourceError {
        let repository_names = repositories.map(String::as_str).collect::<Vec<_>>().join("`, `");
        MountSourceError::Refused {
            location: format!("{}{}", self.host.origin(), self.service_path),
            reason: format!(
                "it has no repository `{}`, only `{repository_names}`",
                self.repository
            ),
        }
    }

    /// Returns the path and query of a URL, which must be on the same host. Credentials are sent to no other host,
    /// whatever the service says.
    fn same_host_path<'a>(&self, url: &'a str) -> Result<&'a str, MountSourceError> {
        let path = url.strip_prefix(self.host.origin()).filter(|path| path.starts_with('/'));
        path.ok_or_else(|| {
            self.malformed_error(format!(
                "it refers to `{url}`, which is not at `{}`",
                self.host.origin()
            ))
        })
    }

    /// Lists the objects of a folder from Atom feeds, page by page.
    fn list_atom_folder(
        &self,
        folder: &str,
        with: &mut CmisObjectVisitor<'_>,
    ) -> Result<(), MountSourceError> {
        let joint = if folder.contains('?') { '&' } else { '?' };
        let mut page = format!("{folder}{joint}includeAllowableActions=false&maxItems={PAGE_SIZE}");
        let mut seen_ids = HashSet::new();
        loop {
            let response = self.send_request(&page)?;
            let location = response.location().to_owned();
            let mut is_new = false;
            let next = cmis_atom::read_atom_feed(response, &location, |mut object| {
                if !seen_ids.insert(path_hash(&property_text(&object.properties, "cmis:objectId")))
                {
                    return Ok(());
                }
                is_new = true;
                for address in [&mut object.children_url, &mut object.content_url] {
                    if !address.is_empty() {
                        *address = self.same_host_path(address)?.to_owned();
                    }
                }
                with(object)
            })?;
            let Some(next) = next else { return Ok(()) };
            if !is_new {
                return Err(
                    self.malformed_error("it reports more entries, but returns no new ones")
                );
            }
            if seen_ids.len() > MAX_FILES {
                return Err(MountSourceError::TooMany(self.host.origin().to_owned()));
            }
            page = self.same_host_path(&next)?.to_owned();
        }
    }

    /// Lists the objects of a folder, page by page.
    fn list_browser_folder(
        &self,
        folder: &str,
        with: &mut CmisObjectVisitor<'_>,
    ) -> Result<(), MountSourceError> {
        let (mut skip, mut seen_ids) = (0, HashSet::new());
        loop {
            let target = format!(
                "{folder}?cmisselector=children&succinct=true&includeAllowableActions=false&maxItems={PAGE_SIZE}&skipCount={skip}"
            );
            let response = self.read_json(self.send_request(&target)?)?;
            let objects = response.get("objects").and_then(Json::as_array);
            let objects =
                objects.ok_or_else(|| self.malformed_error("a folder has no `objects`"))?;
            let mut is_new = false;
            for object in objects {
                let object = object.get("object").unwrap_or(object);
                let properties = object_properties(object)
                    .ok_or_else(|| self.malformed_error("an object has no properties"))?;
                let id = property_text(&properties, "cmis:objectId");
                // Files that are added or removed between two pages shift the other entries.
                if seen_ids.insert(path_hash(&id)) {
                    is_new = true;
                    let name = property_text(&properties, "cmis:name");
                    let children = format!("{folder}/{}", escape_url_part(name.as_bytes()));
                    with(CmisFeedObject {
                        properties,
                        children_url: children,
                        content_url: String::new(),
                    })?;
                }
            }
            let has_more = response.get("hasMoreItems").and_then(Json::as_bool);
            let has_more = has_more.unwrap_or(objects.len() >= PAGE_SIZE);
            if !has_more {
                return Ok(());
            }
            if !is_new {
                return Err(
                    self.malformed_error("it reports more entries, but returns no new ones")
                );
            }
            if seen_ids.len() > MAX_FILES {
                return Err(MountSourceError::TooMany(self.host.origin().to_owned()));
            }
            skip += objects.len();
        }
    }
}

/// Returns the properties of an object in the succinct form, or in the full form of servers that support no other.
fn object_properties(object: &Json) -> Option<Map<String, Json>> {
    if let Some(succinct) = object.get("succinctProperties").and_then(Json::as_object) {
        return Some(succinct.clone());
    }
    let long = object.get("properties")?.as_object()?;
    let value = |property: &Json| property.get("value").cloned().unwrap_or(Json::Null);
    Some(long.iter().map(|(name, property)| (name.clone(), value(property))).collect())
}

fn property_text(properties: &Map<String, Json>, name: &str) -> String {
    match properties.get(name) {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(values)) => {
            values.first().and_then(Json::as_str).unwrap_or_default().to_owned()
        }
        Some(Json::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

impl MountSource for CmisSource {
    fn list_files(
        &self,
        visit_item: &mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError> {
        let binding = self.discover_binding()?;
        *self.binding.lock() = Some(binding.clone());
        let (root, is_atom) = match binding {
            CmisBinding::Browser(mut root) => {
                for name in &self.folder_names {
                    root = format!("{root}/{}", escape_url_part(name.as_bytes()));
                }
                (root, false)
            }
            CmisBinding::Atom(root) => (root, true),
        };
        let mut folders = vec![(root, String::new(), 0)];
        let (mut files, mut folder_count) = (0, 0);
        while let Some((address, folder, depth)) = folders.pop() {
            folder_count += 1;
            if folder_count + folders.len() > MAX_FOLDERS {
                return Err(MountSourceError::TooMany(self.host.origin().to_owned()));
            }
            let mut look = |object: CmisFeedObject| {
                let properties = &object.properties;
                let name = property_text(properties, "cmis:name");
                if is_ignored_name(name.as_bytes()) {
                    return Ok(());
                }
                let path = join_escaped_path(&folder, &escape_name(name.as_bytes()));
                match &*property_text(properties, "cmis:baseTypeId") {
                    "cmis:folder" if depth >= MAX_FOLDER_DEPTH => {
                        let reason = format!("it is nested deeper than {MAX_FOLDER_DEPTH} folders");
                        visit_item(SourceItem::Skipped(path, reason))
                    }
                    "cmis:folder" if object.children_url.is_empty() => {
                        Err(self.malformed_error(format!(
                            "it does not give the address of the contents of \
                            `{path}`"
                        )))
                    }
                    "cmis:folder" => {
                        folders.push((object.children_url, path, depth + 1));
                        Ok(())
                    }
                    "cmis:document" => {
                        if let Some(reason) = missing_content_reason(properties) {
                            return visit_item(SourceItem::Skipped(path, reason.to_owned()));
                        }
                        files += 1;
                        if files > MAX_FILES {
                            return Err(MountSourceError::TooMany(self.host.origin().to_owned()));
                        }
                        let mut entry = source_file_of(path, properties);
                        if is_atom {
                            entry.source_handle = object.content_url;
                        }
                        visit_item(SourceItem::File(entry))
                    }
                    _ => Ok(()),
                }
            };
            match is_atom {
                true => self.list_atom_folder(&address, &mut look)?,
                false => self.list_browser_folder(&address, &mut look)?,
            }
        }
        Ok(())
    }

    fn has_persistent_identities(&self) -> bool {
        true
    }

    fn open_file(&self, entry: &SourceFile) -> Result<Box<dyn Read + Send>, MountSourceError> {
        let cached_binding = self.binding.lock().clone();
        let target = match cached_binding.map_or_else(|| self.discover_binding(), Ok)? {
            CmisBinding::Browser(root) => {
                let id = escape_url_part(entry.source_handle.as_bytes());
                format!("{root}?cmisselector=content&objectId={id}")
            }
            CmisBinding::Atom(_) if entry.source_handle.is_empty() => {
                return Err(self
                    .malformed_error(format!("it does not give the address of `{}`", entry.path)));
            }
            CmisBinding::Atom(_) => entry.source_handle.clone(),
        };
        Ok(Box::new(self.send_request(&target)?))
    }
}

/// Returns the reason why a document has no content to read, if any.
fn missing_content_reason(properties: &Map<String, Json>) -> Option<&'static str> {
    if properties.get("cmis:isPrivateWorkingCopy") == Some(&Json::Bool(true)) {
        return Some("it is a private working copy; the checked-in version is used instead");
    }
    let is_null = |name: &str| properties.get(name).is_some_and(Json::is_null);
    let is_empty = is_null("cmis:contentStreamLength") && is_null("cmis:contentStreamMimeType");
    is_empty.then_some("it has no content")
}

fn source_file_of(path: String, properties: &Map<String, Json>) -> SourceFile {
    let bytes = properties.get("cmis:contentStreamLength");
    let bytes = bytes.and_then(Json::as_i64).and_then(|bytes| u64::try_from(bytes).ok());
    let length = bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let mut changed = property_text(properties, "cmis:changeToken");
    if changed.is_empty() {
        changed = property_text(properties, "cmis:lastModificationDate");
    }
    let object = property_text(properties, "cmis:objectId");
    let series = property_text(properties, "cmis:versionSeriesId");
    let identity = if series.is_empty() { object.clone() } else { series };
    SourceFile {
        path,
        fingerprint: format!("{length}-{changed}"),
        identity: Some(identity).filter(|identity| !identity.is_empty()),
        byte_count: bytes,
        modified_at: None,
        source_handle: object,
    }
}
