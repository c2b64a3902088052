//! From an original to a finished asset: draws, then writes metadata, renditions and state in one commit.
//!
//! In: the path of a `dam:Asset`. Out: [`Processed`], and what changed in content.
//!
//! Invariants
//! * The commit is made only if the original is still the one that was drawn; otherwise the new one is drawn.
//! * What already is as it should be is not written, so that a second time changes nothing.
//! * What people wrote stays: metadata that describes is only added where there is none.
//!
//! On failure: a file that cannot be drawn leaves the asset with the state `failed` and the reason.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_content::{
    BlobId, Date, JCR_CONTENT, Node, NodePath, Property, Repository, Revising, Session, Subtree,
    Value, ValueType,
};

use super::order::{Drawn, Limits, MetadataValue, Order, Rendition};
use super::profile::{Profile, is_generated};
use super::studio::{DrawError, Studio, media_type_of, system};

/// The type of an asset.
pub const ASSET: &str = "dam:Asset";
/// In whose name assets change.
pub(crate) const USER: &str = "dam-update-service";
/// AEM's property of what became of an asset.
pub(crate) const STATE: &str = "dam:assetState";
/// The original that the renditions are of; not one of AEM's.
pub(crate) const DRAWN_OF: &str = "dam:processedOriginal";
/// Why an asset failed; not one of AEM's.
const FAILURE: &str = "dam:failureReason";
/// What is wrong with an original that was drawn all the same; not one of AEM's.
const WARNINGS: &str = "dam:processingWarnings";
const METADATA: &str = "jcr:content/metadata";
pub(crate) const ORIGINAL: &str = "jcr:content/renditions/original/jcr:content";
const EXTRACTED: &str = "dam:extracted";
/// Prefixes of metadata that describes what the file is, not what it is about: it follows the file.
const TECHNICAL: [&str; 5] = ["tiff:", "exif:", "aux:", "dam:", "xmpTPg:"];
/// How often a commit is made anew because others changed the same asset.
const ATTEMPTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);
/// How often an asset whose original keeps changing is drawn anew.
const ORIGINALS: usize = 4;

/// What became of an asset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Processed {
    /// It has its renditions and metadata.
    Done {
        /// How many renditions there are.
        renditions: usize,
        /// What is wrong with the original all the same.
        warnings: Vec<String>,
    },
    /// It cannot be drawn, for this reason; the asset says so.
    Failed(String),
    /// There is no asset with an original at the path any more.
    Gone,
}

/// Why an asset was not processed.
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
    /// The machine is to blame.
    #[error("cannot process the asset `{path}`")]
    Draw {
        /// The asset.
        path: NodePath,
        /// The cause.
        source: DrawError,
    },
    /// Others replace the original faster than it is drawn.
    #[error("the original of `{0}` changed while it was drawn; it is tried again later")]
    Restless(NodePath),
}

/// What makes assets of originals.
#[derive(Debug, Clone)]
pub struct Assets {
    repository: Repository,
    studio: Arc<Studio>,
    profile: Profile,
    limits: Limits,
}

/// An original as it was found.
struct Original {
    blob: BlobId,
    declared: String,
}

impl Assets {
    /// Makes assets in this repository.
    #[must_use]
    pub fn new(
        repository: Repository,
        studio: Arc<Studio>,
        profile: Profile,
        limits: Limits,
    ) -> Self {
        Self { repository, studio, profile, limits }
    }

    /// Returns the repository.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns what draws.
    #[must_use]
    pub fn studio(&self) -> &Studio {
        &self.studio
    }

    /// Returns what one file may cost.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Draws an asset's renditions and reads its metadata, and commits all of it together.
    ///
    /// # Errors
    /// [`AssetError`]; what is wrong with the file is no error, but [`Processed::Failed`].
    pub fn process(&self, path: &NodePath, now: SystemTime) -> Result<Processed, AssetError> {
        let content = |source| AssetError::Content { path: path.clone(), source: Box::new(source) };
        for _ in 0..ORIGINALS {
            let node = self
                .repository
                .snapshot()
                .and_then(|snapshot| snapshot.node(path))
                .map_err(content)?;
            let Some(original) =
                node.as_ref().map(original_of).transpose().map_err(content)?.flatten()
            else {
                return Ok(Processed::Gone);
            };
            let drawn = match self.draw(&original) {
                Ok(drawn) => Ok(drawn),
                Err(DrawError::File(reason)) => Err(reason),
                Err(source) => return Err(AssetError::Draw { path: path.clone(), source }),
            };
            let revising = Revising { user: USER, message: "process an asset", at: now };
            let is_written = self
                .repository
                .retry(ATTEMPTS, revising, |session| {
                    Update { session, path, original: &original, now }.write(&drawn)
                })
                .map_err(content)?;
            if is_written {
                return Ok(match drawn {
                    Ok(Drawn { renditions, warnings, .. }) => {
                        Processed::Done { renditions: renditions.len(), warnings }
                    }
                    Err(reason) => Processed::Failed(reason),
                });
            }
        }
        Err(AssetError::Restless(path.clone()))
    }

    /// Says at an asset that it is not processed, and why.
    ///
    /// # Errors
    /// If content cannot be read or written.
    pub(crate) fn give_up(
        &self,
        path: &NodePath,
        reason: &str,
        now: SystemTime,
    ) -> Result<(), AssetError> {
        let content = |source| AssetError::Content { path: path.clone(), source: Box::new(source) };
        let revising = Revising { user: USER, message: "give an asset up", at: now };
        let write = |session: &mut Session| {
            let Some(node) = session.node(path)? else { return Ok(()) };
            let Some(original) = original_of(&node)? else { return Ok(()) };
            let mut update = Update { session, path, original: &original, now };
            update.write(&Err(reason.to_owned())).map(drop)
        };
        self.repository.retry(ATTEMPTS, revising, write).map_err(content)
    }

    fn draw(&self, original: &Original) -> Result<Drawn, DrawError> {
        let open = || {
            let opened = self.repository.blobs().open(&original.blob).map_err(io::Error::other)?;
            opened.ok_or_else(|| io::Error::other(format!("the blob {} is missing", original.blob)))
        };
        // The renditions follow from the bytes: what the sender says changes once they are known.
        let media_type = media_type_of(&open().map_err(system("read the original"))?);
        let order = Order {
            renditions: self.profile.renditions_of(media_type.unwrap_or(&original.declared)),
            metadata: true,
            declared: original.declared.clone(),
            limits: self.limits,
        };
        self.studio.draw(&open, &order)
    }
}

/// Finds the original of an asset; nothing if the node is none.
fn original_of(node: &Node) -> tympan_content::Result<Option<Original>> {
    if node.primary_type() != ASSET {
        return Ok(None);
    }
    let Some(resource) = node.find(ORIGINAL)? else { return Ok(None) };
    let Some(blob) = resource.property("jcr:data").and_then(|data| blob_of(&data)) else {
        return Ok(None);
    };
    let declared = resource.text("jcr:mimeType").unwrap_or_default();
    let guessed = super::profile::media_type_of_name(node.name());
    // A sender that knows nothing says so with this type.
    let is_vague = declared.is_empty() || declared == "application/octet-stream";
    let declared = if is_vague { guessed.unwrap_or(&declared).to_owned() } else { declared };
    Ok(Some(Original { blob, declared }))
}

pub(crate) fn blob_of(data: &Property) -> Option<BlobId> {
    match data.first()? {
        Value::Binary(blob) => Some(*blob),
        _ => None,
    }
}

/// Tells whether an asset's original is not the one that its renditions are of. An asset that came with renditions, in a
/// package or from another instance, is taken as it is.
///
/// # Errors
/// If the store fails.
pub fn needs_processing(node: &Node) -> tympan_content::Result<bool> {
    Ok(due_original(node)?.is_some())
}

/// Returns the original of an asset that [`needs_processing`].
pub(crate) fn due_original(node: &Node) -> tympan_content::Result<Option<BlobId>> {
    let Some(Original { blob, .. }) = original_of(node)? else { return Ok(None) };
    let Some(content) = node.child(JCR_CONTENT)? else { return Ok(None) };
    let is_due = match content.text(DRAWN_OF) {
        Some(drawn_of) => drawn_of != blob.to_string(),
        None => match content.child("renditions")? {
            Some(renditions) => {
                !renditions.children()?.iter().any(|rendition| is_generated(rendition.name()))
            }
            None => true,
        },
    };
    Ok(is_due.then_some(blob))
}

/// The writing of one result.
struct Update<'a> {
    session: &'a mut Session,
    path: &'a NodePath,
    original: &'a Original,
    now: SystemTime,
}

impl Update<'_> {
    /// Writes what was drawn; false if the original is another one by now.
    fn write(&mut self, drawn: &Result<Drawn, String>) -> tympan_content::Result<bool> {
        let Some(node) = self.session.node(self.path)? else { return Ok(true) };
        match original_of(&node)? {
            None => return Ok(true),
            Some(original) if original.blob != self.original.blob => return Ok(false),
            Some(_) => {}
        }
        let before = node.read()?;
        let mut is_changed = match drawn {
            Ok(drawn) => {
                self.write_renditions(&before, &drawn.renditions)?
                    | self.write_metadata(&before, drawn)?
            }
            Err(_) => self.write_renditions(&before, &[])?,
        };
        is_changed |= self.write_state(&before, drawn)?;
        if is_changed && drawn.is_ok() {
            let at = Value::Date(Date::from_system_time(self.now));
            self.session.set_property(
                &self.path.child(JCR_CONTENT)?.child("metadata")?,
                EXTRACTED,
                at.into(),
            )?;
        }
        Ok(true)
    }

    /// Puts the renditions that differ and removes those of former originals.
    fn write_renditions(
        &mut self,
        before: &Subtree,
        made: &[Rendition],
    ) -> tympan_content::Result<bool> {
        let folder = self.path.child(JCR_CONTENT)?.child("renditions")?;
        let present = before.find("jcr:content/renditions");
        let mut is_changed = false;
        let bytes: Vec<&[u8]> = made.iter().map(|rendition| &*rendition.bytes).collect();
        let blobs = self.session.put_blobs(&bytes)?;
        for (rendition, blob) in made.iter().zip(blobs) {
            let old = present
                .and_then(|present| present.find(&format!("{}/jcr:content", rendition.name)));
            let is_same = old.is_some_and(|old| {
                old.properties.get("jcr:data").and_then(blob_of) == Some(blob)
                    && old.text("jcr:mimeType") == Some(&rendition.media_type)
            });
            if is_same {
                continue;
            }
            let resource = Subtree::new(JCR_CONTENT, "nt:resource")
                .with("jcr:data", Value::Binary(blob))
                .with("jcr:mimeType", Property::text(&*rendition.media_type))
                .with("jcr:lastModified", Value::Date(Date::from_system_time(self.now)))
                .with("jcr:lastModifiedBy", Property::text(USER));
            let file = Subtree::new(&*rendition.name, "nt:file").with_child(resource);
            self.session.put(&folder.child(&rendition.name)?, file)?;
            is_changed = true;
        }
        for old in present.map(|present| &*present.children).unwrap_or_default() {
            let is_made = made.iter().any(|rendition| rendition.name == old.name);
            if is_generated(&old.name) && !is_made {
                self.session.remove(&folder.child(&old.name)?)?;
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    fn write_metadata(&mut self, before: &Subtree, drawn: &Drawn) -> tympan_content::Result<bool> {
        let content = self.path.child(JCR_CONTENT)?;
        let path = content.child("metadata")?;
        let present = before.find(METADATA);
        if present.is_none() {
            self.session.add_node(&path, "nt:unstructured")?;
        }
        let mut wanted: Vec<(String, Property)> = drawn
            .metadata
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), property_of(value)?)))
            .collect();
        let length = i64::try_from(self.original.blob.length()).unwrap_or(i64::MAX);
        wanted.push(("dam:size".to_owned(), Value::Long(length).into()));
        wanted.push(("dam:sha1".to_owned(), Property::text(&*drawn.sha1)));
        let media_type = Some(&*drawn.media_type).filter(|found| !found.is_empty());
        let media_type = media_type.unwrap_or(&self.original.declared);
        if !media_type.is_empty() {
            wanted.push(("dc:format".to_owned(), Property::text(media_type)));
            wanted.push(("dam:MIMEtype".to_owned(), Property::text(media_type)));
        }
        let mut is_changed = present.is_none();
        for (name, property) in wanted {
            let old = present.and_then(|present| present.properties.get(&name));
            let follows =
                name == "dc:format" || TECHNICAL.iter().any(|prefix| name.starts_with(prefix));
            if old == Some(&property) || (old.is_some() && !follows) {
                continue;
            }
            self.session.set_property(&path, &name, property)?;
            is_changed = true;
        }
        let resource = content.child("renditions")?.child("original")?.child(JCR_CONTENT)?;
        let declared = before.find(ORIGINAL).and_then(|resource| resource.text("jcr:mimeType"));
        if !media_type.is_empty() && declared != Some(media_type) {
            self.session.set_property(&resource, "jcr:mimeType", Property::text(media_type))?;
            is_changed = true;
        }
        Ok(is_changed)
    }

    fn write_state(
        &mut self,
        before: &Subtree,
        drawn: &Result<Drawn, String>,
    ) -> tympan_content::Result<bool> {
        let path = self.path.child(JCR_CONTENT)?;
        let present = before.child(JCR_CONTENT);
        let texts = |texts: &[String]| {
            let values = texts.iter().cloned().map(Value::String).collect();
            (!texts.is_empty()).then_some(Property::List(ValueType::String, values))
        };
        let (state, failure, warnings) = match drawn {
            Ok(drawn) => ("processed", None, texts(&drawn.warnings)),
            Err(reason) => ("failed", Some(Property::text(reason)), None),
        };
        let wanted = [
            (STATE, Some(Property::text(state))),
            (DRAWN_OF, Some(Property::text(self.original.blob.to_string()))),
            (FAILURE, failure),
            (WARNINGS, warnings),
        ];
        let mut is_changed = false;
        for (name, property) in wanted {
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

/// Returns metadata as a property; nothing for a date that is none.
fn property_of(value: &MetadataValue) -> Option<Property> {
    Some(match value {
        MetadataValue::Text(text) => Property::text(&**text),
        MetadataValue::Texts(texts) => {
            Property::List(ValueType::String, texts.iter().cloned().map(Value::String).collect())
        }
        MetadataValue::Long(number) => Value::Long(*number).into(),
        MetadataValue::Double(number) => Value::Double(*number).into(),
        MetadataValue::Date(text) => Value::Date(Date::parse(text).ok()?).into(),
    })
}
