//! Processes an original into a finished asset: generates renditions, then writes metadata, renditions and state in one
//! commit.
//!
//! In: the path of a `dam:Asset`. Out: [`AssetUpdateOutcome`], and the changes in content.
//!
//! Invariants
//! * The commit is made only if the original is still the one that was processed; otherwise the new one is processed.
//! * Unchanged values are not written, so a second run changes nothing.
//! * Text written by people is preserved: descriptive metadata is added only if it is absent.
//!
//! On failure: a file that cannot be processed leaves the asset with the state `failed` and the reason.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_content::{
    BlobId, JCR_CONTENT, JcrDate, Node, NodePath, Property, Repository, RevisionDetails, Session,
    Subtree, Value, ValueType,
};

use crate::decoder_process_pool::{DecoderProcessPool, detect_media_type};
use crate::processing_request::{
    AssetProcessingRequest, AssetProcessingResult, EncodedRendition, MetadataValue,
    ProcessingLimits,
};
use crate::rendition_error::{RenditionError, system_error};
use crate::rendition_profile::{RenditionProfile, is_generated_rendition};

/// The node type of an asset.
pub const ASSET_NODE_TYPE: &str = "dam:Asset";
/// The user in whose name assets are changed.
pub const ASSET_UPDATE_USER: &str = "dam-update-service";
/// AEM's property for the processing state of an asset.
const ASSET_STATE_PROPERTY: &str = "dam:assetState";
/// The original from which the renditions were generated; not an AEM property.
pub(crate) const PROCESSED_ORIGINAL_PROPERTY: &str = "dam:processedOriginal";
/// The reason why an asset failed; not an AEM property.
const FAILURE_REASON_PROPERTY: &str = "dam:failureReason";
/// Faults of an original that was processed nevertheless; not an AEM property.
const WARNINGS_PROPERTY: &str = "dam:processingWarnings";
const METADATA_PATH: &str = "jcr:content/metadata";
/// The node below an asset whose `jcr:data` is the original.
pub const ORIGINAL_CONTENT_PATH: &str = "jcr:content/renditions/original/jcr:content";
const EXTRACTED_PROPERTY: &str = "dam:extracted";
/// Prefixes of metadata that describes the file, not its subject. It is replaced with the file.
const TECHNICAL_METADATA_PREFIXES: [&str; 5] = ["tiff:", "exif:", "aux:", "dam:", "xmpTPg:"];
/// Maximum number of commit attempts while others change the same asset.
const COMMIT_ATTEMPTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);
/// Maximum number of times an asset is processed again because its original changes.
const MAX_ORIGINAL_CHANGES: usize = 4;

/// The outcome of processing an asset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssetUpdateOutcome {
    /// The asset has its renditions and metadata.
    Processed {
        /// Number of renditions.
        renditions: usize,
        /// Faults of the original that did not prevent processing.
        warnings: Vec<String>,
    },
    /// The asset cannot be processed, for this reason, which the asset records.
    Failed(String),
    /// No asset with an original exists at the path anymore.
    Gone,
}

/// The reason why an asset was not processed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssetError {
    /// Content cannot be read or written.
    #[error("cannot process the asset `{path}`")]
    Content {
        /// The asset.
        path: NodePath,
        /// The cause.
        source: Box<tympan_content::Error>,
    },
    /// The system failed.
    #[error("cannot process the asset `{path}`")]
    Rendition {
        /// The asset.
        path: NodePath,
        /// The cause.
        source: RenditionError,
    },
    /// Others replace the original faster than it is processed.
    #[error("the original of `{0}` changed while it was processed; it will be retried later")]
    OriginalUnstable(NodePath),
}

/// Generates the renditions and metadata of assets.
#[derive(Debug, Clone)]
pub struct AssetProcessor {
    repository: Repository,
    decoder_pool: Arc<DecoderProcessPool>,
    profile: RenditionProfile,
    limits: ProcessingLimits,
}

/// An original as it was read.
struct AssetOriginal {
    blob: BlobId,
    declared_media_type: String,
}

impl AssetProcessor {
    /// Creates a processor for the assets of this repository.
    #[must_use]
    pub fn new(
        repository: Repository,
        decoder_pool: Arc<DecoderProcessPool>,
        profile: RenditionProfile,
        limits: ProcessingLimits,
    ) -> Self {
        Self { repository, decoder_pool, profile, limits }
    }

    /// Returns the repository.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns the pool of rendition processes.
    #[must_use]
    pub fn decoder_pool(&self) -> &DecoderProcessPool {
        &self.decoder_pool
    }

    /// Returns the limits for one file.
    #[must_use]
    pub fn limits(&self) -> ProcessingLimits {
        self.limits
    }

    /// Generates an asset's renditions, reads its metadata, and commits both together.
    ///
    /// # Errors
    /// [`AssetError`]; a fault of the file is not an error, but [`AssetUpdateOutcome::Failed`].
    pub fn process_asset(
        &self,
        path: &NodePath,
        now: SystemTime,
    ) -> Result<AssetUpdateOutcome, AssetError> {
        let content = |source| AssetError::Content { path: path.clone(), source: Box::new(source) };
        for _ in 0..MAX_ORIGINAL_CHANGES {
            let node = self
                .repository
                .snapshot()
                .and_then(|snapshot| snapshot.node(path))
                .map_err(content)?;
            let Some(original) =
                node.as_ref().map(find_original).transpose().map_err(content)?.flatten()
            else {
                return Ok(AssetUpdateOutcome::Gone);
            };
            let outcome = match self.render_original(&original) {
                Ok(result) => Ok(result),
                Err(RenditionError::File(reason)) => Err(reason),
                Err(source) => return Err(AssetError::Rendition { path: path.clone(), source }),
            };
            let revising =
                RevisionDetails { user: ASSET_UPDATE_USER, message: "process an asset", time: now };
            let is_written = self
                .repository
                .commit_with_retry(COMMIT_ATTEMPTS, revising, |session| {
                    AssetUpdate { session, path, original: &original, now }.write_result(&outcome)
                })
                .map_err(content)?;
            if is_written {
                return Ok(match outcome {
                    Ok(AssetProcessingResult { renditions, warnings, .. }) => {
                        AssetUpdateOutcome::Processed { renditions: renditions.len(), warnings }
                    }
                    Err(reason) => AssetUpdateOutcome::Failed(reason),
                });
            }
        }
        Err(AssetError::OriginalUnstable(path.clone()))
    }

    /// Records on an asset that it is not processed, and why.
    ///
    /// # Errors
    /// If content cannot be read or written.
    pub(crate) fn mark_given_up(
        &self,
        path: &NodePath,
        reason: &str,
        now: SystemTime,
    ) -> Result<(), AssetError> {
        let content = |source| AssetError::Content { path: path.clone(), source: Box::new(source) };
        let revising =
            RevisionDetails { user: ASSET_UPDATE_USER, message: "give up on an asset", time: now };
        let write = |session: &mut Session| {
            let Some(node) = session.node(path)? else { return Ok(()) };
            let Some(original) = find_original(&node)? else { return Ok(()) };
            let mut update = AssetUpdate { session, path, original: &original, now };
            update.write_result(&Err(reason.to_owned())).map(drop)
        };
        self.repository.commit_with_retry(COMMIT_ATTEMPTS, revising, write).map_err(content)
    }

    fn render_original(
        &self,
        original: &AssetOriginal,
    ) -> Result<AssetProcessingResult, RenditionError> {
        let open = || {
            let opened = self.repository.blobs().open(&original.blob).map_err(io::Error::other)?;
            opened.ok_or_else(|| io::Error::other(format!("the blob {} is missing", original.blob)))
        };
        // The renditions depend on the bytes: the declared type is replaced once they are known.
        let media_type = detect_media_type(&open().map_err(system_error("read the original"))?);
        let request = AssetProcessingRequest {
            renditions: self
                .profile
                .renditions_for(media_type.unwrap_or(&original.declared_media_type)),
            metadata: true,
            declared: original.declared_media_type.clone(),
            limits: self.limits,
        };
        self.decoder_pool.render_file(&open, &request)
    }
}

/// Returns the original of an asset; `None` if the node is not an asset.
fn find_original(node: &Node) -> tympan_content::Result<Option<AssetOriginal>> {
    if node.primary_type() != ASSET_NODE_TYPE {
        return Ok(None);
    }
    let Some(resource) = node.find_descendant(ORIGINAL_CONTENT_PATH)? else { return Ok(None) };
    let Some(blob) = resource.property("jcr:data").and_then(|data| blob_id_of_data(&data)) else {
        return Ok(None);
    };
    let declared = resource.text("jcr:mimeType").unwrap_or_default();
    let guessed = crate::rendition_profile::guess_image_media_type(node.name());
    // A sender that does not know the type declares this one.
    let is_vague = declared.is_empty() || declared == "application/octet-stream";
    let declared = if is_vague { guessed.unwrap_or(&declared).to_owned() } else { declared };
    Ok(Some(AssetOriginal { blob, declared_media_type: declared }))
}

/// Returns the blob of an asset's original, if it has one. The node may be of any type.
///
/// # Errors
/// If the store fails.
pub fn original_blob(node: &Node) -> tympan_content::Result<Option<BlobId>> {
    let resource = node.find_descendant(ORIGINAL_CONTENT_PATH)?;
    Ok(resource
        .and_then(|resource| resource.property("jcr:data"))
        .and_then(|data| blob_id_of_data(&data)))
}

pub(crate) fn blob_id_of_data(data: &Property) -> Option<BlobId> {
    match data.first()? {
        Value::Binary(blob) => Some(*blob),
        _ => None,
    }
}

/// Returns true if an asset's original differs from the one its renditions were generated from. An asset that arrived
/// with renditions, in a package or from another instance, is accepted as it is.
///
/// # Errors
/// If the store fails.
pub fn needs_processing(node: &Node) -> tympan_content::Result<bool> {
    Ok(original_if_due(node)?.is_some())
}

/// Returns the original of an asset that [`needs_processing`].
pub(crate) fn original_if_due(node: &Node) -> tympan_content::Result<Option<BlobId>> {
    let Some(AssetOriginal { blob, .. }) = find_original(node)? else { return Ok(None) };
    let Some(content) = node.child(JCR_CONTENT)? else { return Ok(None) };
    let is_due = match content.text(PROCESSED_ORIGINAL_PROPERTY) {
        Some(processed_original) => processed_original != blob.to_string(),
        None => match content.child("renditions")? {
            Some(renditions) => !renditions
                .children()?
                .iter()
                .any(|rendition| is_generated_rendition(rendition.name())),
            None => true,
        },
    };
    Ok(is_due.then_some(blob))
}

/// The update of an asset with one result.
struct AssetUpdate<'a> {
    session: &'a mut Session,
    path: &'a NodePath,
    original: &'a AssetOriginal,
    now: SystemTime,
}

impl AssetUpdate<'_> {
    /// Writes the result. Returns false if the original has changed in the meantime.
    fn write_result(
        &mut self,
        outcome: &Result<AssetProcessingResult, String>,
    ) -> tympan_content::Result<bool> {
        let Some(node) = self.session.node(self.path)? else { return Ok(true) };
        match find_original(&node)? {
            None => return Ok(true),
            Some(original) if original.blob != self.original.blob => return Ok(false),
            Some(_) => {}
        }
        let before = node.read_subtree()?;
        let mut is_changed = match outcome {
            Ok(result) => {
                self.write_renditions(&before, &result.renditions)?
                    | self.write_metadata(&before, result)?
            }
            Err(_) => self.write_renditions(&before, &[])?,
        };
        is_changed |= self.write_state(&before, outcome)?;
        if is_changed && outcome.is_ok() {
            let at = Value::Date(JcrDate::from_system_time(self.now));
            self.session.set_property(
                &self.path.child(JCR_CONTENT)?.child("metadata")?,
                EXTRACTED_PROPERTY,
                at.into(),
            )?;
        }
        Ok(true)
    }

    /// Writes the renditions that differ, and removes those of former originals.
    fn write_renditions(
        &mut self,
        before: &Subtree,
        renditions: &[EncodedRendition],
    ) -> tympan_content::Result<bool> {
        let folder = self.path.child(JCR_CONTENT)?.child("renditions")?;
        let old_renditions = before.find_descendant("jcr:content/renditions");
        let mut is_changed = false;
        let bytes: Vec<&[u8]> = renditions.iter().map(|rendition| &*rendition.bytes).collect();
        let blobs = self.session.put_blobs(&bytes)?;
        for (rendition, blob) in renditions.iter().zip(blobs) {
            let old = old_renditions.and_then(|old_renditions| {
                old_renditions.find_descendant(&format!("{}/jcr:content", rendition.name))
            });
            let is_same = old.is_some_and(|old| {
                old.properties.get("jcr:data").and_then(blob_id_of_data) == Some(blob)
                    && old.text("jcr:mimeType") == Some(&rendition.media_type)
            });
            if is_same {
                continue;
            }
            let resource = Subtree::new(JCR_CONTENT, "nt:resource")
                .with_property("jcr:data", Value::Binary(blob))
                .with_property("jcr:mimeType", Property::text(&*rendition.media_type))
                .with_property("jcr:lastModified", Value::Date(JcrDate::from_system_time(self.now)))
                .with_property("jcr:lastModifiedBy", Property::text(ASSET_UPDATE_USER));
            let file = Subtree::new(&*rendition.name, "nt:file").with_child(resource);
            self.session.replace_node(&folder.child(&rendition.name)?, file)?;
            is_changed = true;
        }
        for old in old_renditions.into_iter().flat_map(|renditions| &renditions.children) {
            let is_generated = renditions.iter().any(|rendition| rendition.name == old.name);
            if is_generated_rendition(&old.name) && !is_generated {
                self.session.remove_node(&folder.child(&old.name)?)?;
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    fn write_metadata(
        &mut self,
        before: &Subtree,
        result: &AssetProcessingResult,
    ) -> tympan_content::Result<bool> {
        let content = self.path.child(JCR_CONTENT)?;
        let path = content.child("metadata")?;
        let present = before.find_descendant(METADATA_PATH);
        if present.is_none() {
            self.session.add_node(&path, "nt:unstructured")?;
        }
        let mut properties: Vec<(String, Property)> = result
            .metadata
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), metadata_to_property(value)?)))
            .collect();
        let length = i64::try_from(self.original.blob.length()).unwrap_or(i64::MAX);
        properties.push(("dam:size".to_owned(), Value::Long(length).into()));
        properties.push(("dam:sha1".to_owned(), Property::text(&*result.sha1)));
        let media_type =
            Some(&*result.media_type).filter(|detected_type| !detected_type.is_empty());
        let media_type = media_type.unwrap_or(&self.original.declared_media_type);
        if !media_type.is_empty() {
            properties.push(("dc:format".to_owned(), Property::text(media_type)));
            properties.push(("dam:MIMEtype".to_owned(), Property::text(media_type)));
        }
        let mut is_changed = present.is_none();
        for (name, property) in properties {
            let old = present.and_then(|present| present.properties.get(&name));
            let follows = name == "dc:format"
                || TECHNICAL_METADATA_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if old == Some(&property) || (old.is_some() && !follows) {
                continue;
            }
            self.session.set_property(&path, &name, property)?;
            is_changed = true;
        }
        let resource = content.child("renditions")?.child("original")?.child(JCR_CONTENT)?;
        let declared = before
            .find_descendant(ORIGINAL_CONTENT_PATH)
            .and_then(|resource| resource.text("jcr:mimeType"));
        if !media_type.is_empty() && declared != Some(media_type) {
            self.session.set_property(&resource, "jcr:mimeType", Property::text(media_type))?;
            is_changed = true;
        }
        Ok(is_changed)
    }

    fn write_state(
        &mut self,
        before: &Subtree,
        outcome: &Result<AssetProcessingResult, String>,
    ) -> tympan_content::Result<bool> {
        let path = self.path.child(JCR_CONTENT)?;
        let present = before.child(JCR_CONTENT);
        let texts = |texts: &[String]| {
            let values = texts.iter().cloned().map(Value::String).collect();
            (!texts.is_empty()).then_some(Property::List(ValueType::String, values))
        };
        let (state, failure, warnings) = match outcome {
            Ok(result) => ("processed", None, texts(&result.warnings)),
            Err(reason) => ("failed", Some(Property::text(reason)), None),
        };
        let properties = [
            (ASSET_STATE_PROPERTY, Some(Property::text(state))),
            (PROCESSED_ORIGINAL_PROPERTY, Some(Property::text(self.original.blob.to_string()))),
            (FAILURE_REASON_PROPERTY, failure),
            (WARNINGS_PROPERTY, warnings),
        ];
        let mut is_changed = false;
        for (name, property) in properties {
            let old = present.and_then(|present| present.properties.get(name));
            if old == property.as_ref() {
                continue;
            }
            is_changed = true;
            match property {
                Some(property) => self.session.set_property(&path, name, property)?,
                None => {
                    self.session.remove_property(&path, name)?;
                }
            }
        }
        Ok(is_changed)
    }
}

/// Returns metadata as a property; `None` for an invalid date.
fn metadata_to_property(value: &MetadataValue) -> Option<Property> {
    Some(match value {
        MetadataValue::Text(text) => Property::text(&**text),
        MetadataValue::Texts(texts) => {
            Property::List(ValueType::String, texts.iter().cloned().map(Value::String).collect())
        }
        MetadataValue::Long(number) => Value::Long(*number).into(),
        MetadataValue::Double(number) => Value::Double(*number).into(),
        MetadataValue::Date(text) => Value::Date(JcrDate::parse(text).ok()?).into(),
    })
}
