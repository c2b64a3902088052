//! Export on demand: renders, stores and returns a file that a web server did not find.
//!
//! Input: the requested URL. Output: a response, and possibly a file.
//!
//! Only resources at their own address, and names that an exported page links to, become files, so that visitors cannot
//! create arbitrary files. The query of the request is ignored, as web servers find the file regardless of the query.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use tympan_content::{Node, NodePath, Snapshot};
use tympan_render::{BlobBody, DependencySet, encode_path};
use tympan_web::sling_url::mangle_namespaces;

use super::{ExportTree, StaticExporter, is_disk_full};
use crate::address_resolver::{
    EXPORT_NAME_PROPERTY, ExportAddress, ExportAddressKind, NotExportedReason,
    ResolvedExportAddress, validate_file_name,
};
use crate::environment::ExportEnvironment;
use crate::error::{ExportError, ExportResult};
use crate::manifest::ExportManifestEntry;
use crate::rendering::{ExportContext, ExportFileContent, ExportOutcome, RenderedExportFile};

/// Maximum number of renderings per request if changes overtake them.
const MAX_RENDER_ATTEMPTS: usize = 3;

/// The response to a request for a missing file.
#[derive(Debug)]
pub enum OnDemandResponse {
    /// The bytes of the file that was just rendered.
    Bytes {
        /// The bytes.
        bytes: Bytes,
        /// Their media type.
        content_type: String,
    },
    /// The file is a stored binary.
    Blob {
        /// The binary.
        blob: BlobBody,
        /// Its media type.
        content_type: String,
    },
    /// The address is not exported; it is found at this path.
    Redirect(String),
    /// The target does not exist.
    Missing,
    /// The target could not be rendered.
    Failed(String),
}

/// The address of a file, or the reason why there is none together with the address that it would have.
type ExportAddressLookup =
    std::result::Result<ExportAddress, (NotExportedReason, Option<ExportAddress>)>;

/// The cached export names of folders.
#[derive(Debug, Default)]
pub(super) struct FolderNameCache(Option<Arc<BTreeMap<String, String>>>);

impl FolderNameCache {
    /// Clears the cache.
    pub(super) fn invalidate(&mut self) {
        self.0 = None;
    }
}

impl StaticExporter {
    /// Responds to a request for a missing file, and creates the file if it is exported.
    ///
    /// # Errors
    /// If content cannot be read or the disk fails; the served files stay.
    pub fn export_on_demand(
        &self,
        environment: ExportEnvironment<'_>,
        url: &str,
    ) -> ExportResult<OnDemandResponse> {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let files = self.candidate_files(path);
        if files.is_empty() {
            return Ok(OnDemandResponse::Missing);
        }
        for _ in 0..MAX_RENDER_ATTEMPTS {
            let followed = self.followed_changes.load(Ordering::Acquire);
            let snapshot = environment.repository.snapshot()?;
            let context = self.new_context(environment, &snapshot)?;
            let address = match self.find_first_address(&context, &files)? {
                Ok(address) => address,
                Err(otherwise) => return Ok(self.non_file_response(otherwise, path)),
            };
            let rendered = match context.render_address(&address) {
                ExportOutcome::File(rendered) => rendered,
                ExportOutcome::NotExported(reason) => {
                    return Ok(self.non_file_response((reason, Some(address)), path));
                }
                ExportOutcome::Personalized(_) => {
                    return Ok(self.non_file_response(
                        (NotExportedReason::Personalized, Some(address)),
                        path,
                    ));
                }
                ExportOutcome::Failed(reason) => return Ok(OnDemandResponse::Failed(reason)),
            };
            if self.store_rendered_file(environment, &address, &rendered, followed)? {
                return Ok(to_on_demand_response(*rendered));
            }
        }
        // Changes come faster than renderings: the response would be correct now, but a file would be outdated.
        Ok(OnDemandResponse::Failed("it changes faster than it can be rendered".to_owned()))
    }

    /// Returns the files that a URL may name, each with its name in the folder of its rule: a path without a server may
    /// belong to several rules.
    fn candidate_files(&self, url: &str) -> Vec<(String, String)> {
        let of_rules = self.options().rules.iter().filter_map(|rule| {
            let inner = file_name_of_path(rule.strip_url_prefix(url)?)?;
            Some((rule.file_in_folder(&inner), inner))
        });
        let plain = url.strip_prefix(self.options().prefix.as_str()).and_then(file_name_of_path);
        of_rules.chain(plain.map(|name| (name.clone(), name))).collect()
    }

    /// Finds the address of the first file that has one.
    fn find_first_address(
        &self,
        context: &ExportContext<'_>,
        files: &[(String, String)],
    ) -> ExportResult<ExportAddressLookup> {
        let mut refused = (NotExportedReason::Missing, None);
        for (file, inner) in files {
            match self.find_address(context, file, inner)? {
                Ok(address) => return Ok(Ok(address)),
                Err(refusal) if refused.0 == NotExportedReason::Missing => refused = refusal,
                Err(_) => {}
            }
        }
        Ok(Err(refused))
    }

    /// Returns the response for an address without a file.
    fn non_file_response(
        &self,
        (reason, address): (NotExportedReason, Option<ExportAddress>),
        requested_path: &str,
    ) -> OnDemandResponse {
        let is_there =
            !matches!(reason, NotExportedReason::Missing | NotExportedReason::Malformed(_));
        match address.filter(|_| is_there) {
            Some(address) => {
                let elsewhere = format!("{}{address}", self.options().dynamic_prefix);
                if elsewhere == requested_path {
                    OnDemandResponse::Missing
                } else {
                    OnDemandResponse::Redirect(elsewhere)
                }
            }
            None => OnDemandResponse::Missing,
        }
    }

    /// Finds the address of a file, which has the name `inner` in the folder of its rule.
    fn find_address(
        &self,
        context: &ExportContext<'_>,
        file: &str,
        inner: &str,
    ) -> ExportResult<ExportAddressLookup> {
        let known_address = {
            let tree = self.tree.lock();
            let known_address = tree.as_ref().and_then(|tree| tree.manifest.address_of_file(file));
            known_address.map(ExportAddress::parse)
        };
        if let Some(address) = known_address {
            return Ok(Ok(address));
        }
        let mut refused = (NotExportedReason::Missing, None);
        for path in self.candidate_paths(&context.snapshot, inner)? {
            let resolved =
                context.resolve(&ExportAddress { path: encode_path(&path), query: String::new() });
            let ResolvedExportAddress { address, kind, file: named, is_canonical, .. } = resolved;
            match named {
                Ok(named)
                    if named == file && is_canonical && kind == ExportAddressKind::Resource =>
                {
                    return Ok(Ok(address));
                }
                Err(reason) if refused.1.is_none() && reason != NotExportedReason::Missing => {
                    refused = (reason, Some(address));
                }
                _ => {}
            }
        }
        Ok(Err(refused))
    }

    /// Returns URL paths that may have this file.
    fn candidate_paths(&self, snapshot: &Snapshot, file: &str) -> ExportResult<Vec<String>> {
        let mut paths = Vec::new();
        for (name, folder) in &*self.folder_names(snapshot)? {
            let inner = match name.as_str() {
                "" => Some(file),
                name => file.strip_prefix(name).filter(|rest| rest.starts_with(['/', '.'])),
            };
            if let Some(inner) = inner {
                let slash = if name.is_empty() { "/" } else { "" };
                let folder = folder.trim_end_matches('/');
                paths.push(format!("{folder}{slash}{inner}"));
                // The folder that represents the root keeps its own name.
                if let (true, Some(parent)) = (name.is_empty(), folder.rfind('/')) {
                    paths.push(format!("{}/{inner}", folder.get(..parent).unwrap_or_default()));
                }
            }
        }
        let plain = format!("/{file}");
        paths.push(plain.clone());
        let plain_index = plain.strip_suffix("index_export.html");
        paths.extend(plain_index.map(str::to_owned));
        // A page rendered without an extension gets one.
        let without: Vec<String> = paths
            .iter()
            .filter_map(|path| path.rsplit_once('.'))
            .filter(|(_, ending)| !ending.contains('/'))
            .map(|(stem, _)| stem.to_owned())
            .collect();
        paths.extend(without);
        Ok(paths)
    }

    /// Returns the export names of folders.
    fn folder_names(&self, snapshot: &Snapshot) -> ExportResult<Arc<BTreeMap<String, String>>> {
        if let Some(names) = &self.folder_names.lock().0 {
            return Ok(Arc::clone(names));
        }
        let mut names = BTreeMap::new();
        for root in &self.options().content_roots {
            let Ok(root) = NodePath::new(root) else { continue };
            let mut pending: Vec<Node> = snapshot.node(&root)?.into_iter().collect();
            while let Some(node) = pending.pop() {
                let own = node.text(EXPORT_NAME_PROPERTY);
                let text = match own {
                    Some(text) => Some(text),
                    None => {
                        node.content_node()?.and_then(|content| content.text(EXPORT_NAME_PROPERTY))
                    }
                };
                if let Some(text) = text {
                    let name = text.trim().trim_matches('/').to_owned();
                    names.entry(name).or_insert_with(|| mangle_namespaces(node.path().as_str()));
                }
                pending.extend(node.listed_children()?);
            }
        }
        let names = Arc::new(names);
        self.folder_names.lock().0 = Some(Arc::clone(&names));
        Ok(names)
    }

    /// Stores the file of a rendering; returns false if a change overtook it.
    fn store_rendered_file(
        &self,
        environment: ExportEnvironment<'_>,
        address: &ExportAddress,
        rendered: &RenderedExportFile,
        followed: u64,
    ) -> ExportResult<bool> {
        let failed = |error| self.folder_error(error);
        let Ok(file) = &rendered.target.file else { return Ok(true) };
        let mut content = rendered.content.open(environment.repository).map_err(failed)?;
        let mut waiting = self.folder.stage(&mut *content).map_err(failed)?;
        waiting.sync().map_err(failed)?;
        let mut tree = self.tree.lock();
        if self.followed_changes.load(Ordering::Acquire) != followed {
            return Ok(false);
        }
        // Without a tree, or while a run changes it, respond without storing a file.
        let Some(tree) = tree.as_mut() else { return Ok(true) };
        let text = address.to_string();
        if tree.manifest.address_of_file(file).is_some_and(|owner| owner != text) {
            return Ok(true);
        }
        let entry = ExportManifestEntry {
            file: file.clone(),
            source: rendered.target.source.clone(),
            hash: Some(waiting.hash.clone()),
            dependencies: Arc::clone(&rendered.dependencies),
        };
        for link in rendered.linked_targets.iter().filter(|link| !link.is_canonical) {
            tree.record_name(link).map_err(failed)?;
        }
        tree.manifest.record_entry(&text, entry).map_err(failed)?;
        tree.manifest.sync().map_err(failed)?;
        let number = tree.number;
        match self.folder.link_into_tree(number, &waiting, file) {
            Ok(()) => Ok(true),
            Err(error) => {
                tree.manifest.record_removal(&text).map_err(failed)?;
                match is_disk_full(&error) {
                    true => {
                        Err(ExportError::Folder { dir: self.options().dir.clone(), source: error })
                    }
                    // The name conflicts with another file: each request is rendered.
                    false => Ok(true),
                }
            }
        }
    }
}

/// Returns the file name of a URL path; `None` if it is invalid.
fn file_name_of_path(path: &str) -> Option<String> {
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    validate_file_name(decoded.into_owned()).ok()
}

impl ExportTree {
    /// Records the name of a link target.
    pub(super) fn record_name(&mut self, link: &ResolvedExportAddress) -> std::io::Result<()> {
        let text = link.address.to_string();
        let Ok(file) = &link.file else { return Ok(()) };
        if self.manifest.get(&text).is_some() || self.manifest.address_of_file(file).is_some() {
            return Ok(());
        }
        let reads = Arc::new(DependencySet::default());
        let entry = ExportManifestEntry {
            file: file.clone(),
            source: link.source.clone(),
            hash: None,
            dependencies: reads,
        };
        self.manifest.record_entry(&text, entry)
    }
}

fn to_on_demand_response(rendered: RenderedExportFile) -> OnDemandResponse {
    let content_type = rendered.content_type;
    match rendered.content {
        ExportFileContent::Bytes(bytes) => OnDemandResponse::Bytes { bytes, content_type },
        ExportFileContent::Blob(blob) => OnDemandResponse::Blob { blob, content_type },
    }
}
