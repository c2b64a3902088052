//! XMP write-back: writes an asset's metadata into the file itself, without changing the picture.
//!
//! In: an asset whose metadata changed. Out: a new original that differs only in its XMP packet, or the reason why
//! there is none.
//!
//! Invariants
//! * Only properties of registered namespaces are written, and only if their values in the file differ. Camera data
//!   (`tiff:`, `exif:`, `aux:`) is not written.
//! * The former original's blob is unchanged, for versions and other references.
//! * A new packet causes neither new renditions nor another write-back, because the pixels are the same and the file
//!   then matches content.
//!
//! On failure: a format that cannot hold a packet yields [`WriteBackOutcome::Skipped`] with the reason; the asset is
//! unchanged.

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::time::SystemTime;

use sha1::{Digest, Sha1};
use tympan_content::{
    BlobId, CheckInOptions, CheckOutState, JCR_CONTENT, NodePath, Property, Repository,
    RevisionDetails, Session, Subtree, Value,
};
use tympan_jobs::workflow::WORKFLOW_USER;
use tympan_notation::error_chain_text;

use crate::asset_processor::{
    ASSET_NODE_TYPE, AssetError, AssetProcessor, PROCESSED_ORIGINAL_PROPERTY, blob_id_of_data,
};
use crate::decoder_process_pool::DecoderProcessPool;
use crate::file_format::FileFormat;
use crate::metadata::xmp;
use crate::metadata_change::{changed_names, diff_packet};
use crate::processing_request::MetadataValue;
use crate::rendition_error::RenditionError;
use crate::xmp_packet;

/// Property of `jcr:content` of an asset, and of folders that a mount created: the mount they came from. It is not an
/// AEM property. The file of such an asset belongs to the source of the mount, and is never written.
pub const MOUNT_PROPERTY: &str = "dam:mount";
/// Property of a folder or its `jcr:content` that enables or disables write-back for the assets below; the nearest
/// applies. It is not an AEM property.
const WRITE_BACK_PROPERTY: &str = "dam:xmpWriteBack";
/// Maximum size of a file that is rewritten, in bytes.
const MAX_REWRITTEN_FILE_BYTES: u64 = 256 << 20;
/// Prefixes of properties that programs write about the picture, not people.
const TECHNICAL_PREFIXES: [&str; 4] = ["tiff:", "exif:", "aux:", "xmpMM:"];
pub(crate) const COMMIT_ATTEMPTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// The outcome of a write-back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteBackOutcome {
    /// The original was replaced; the new one contains these changed properties.
    Written(Vec<String>),
    /// The file contains all properties already.
    Unchanged,
    /// The metadata cannot be written into the file, for this reason.
    Skipped(String),
}

impl AssetProcessor {
    /// Writes the metadata of an asset into its original.
    ///
    /// # Errors
    /// If content cannot be read or written.
    pub fn write_back(
        &self,
        path: &NodePath,
        now: SystemTime,
    ) -> Result<WriteBackOutcome, AssetError> {
        let writer = MetadataWriter {
            repository: self.repository(),
            decoder_pool: Some(self.decoder_pool()),
        };
        let written = write_back_metadata(writer, path, &WriteBackOptions::default(), now);
        written
            .map_err(|source| AssetError::Content { path: path.clone(), source: Box::new(source) })
    }
}

/// Options of a write-back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteBackOptions {
    /// True if a version of the asset is created first.
    pub creates_version: bool,
    /// Renditions that also receive the metadata.
    pub renditions: Vec<String>,
}

/// Writes metadata into files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MetadataWriter<'a> {
    pub(crate) repository: &'a Repository,
    /// The pool that reads PDF, which may be hostile; without it PDF is skipped.
    pub(crate) decoder_pool: Option<&'a DecoderProcessPool>,
}

/// Writes the metadata of an asset into its files, in one commit.
pub(crate) fn write_back_metadata(
    writer: MetadataWriter<'_>,
    path: &NodePath,
    how: &WriteBackOptions,
    now: SystemTime,
) -> tympan_content::Result<WriteBackOutcome> {
    let revising = RevisionDetails {
        user: WORKFLOW_USER,
        message: "write metadata into the original",
        time: now,
    };
    let write =
        |session: &mut Session| write_back_in_session(session, writer.decoder_pool, path, how, now);
    writer.repository.commit_with_retry(COMMIT_ATTEMPTS, revising, write)
}

/// Returns the reason why an asset is skipped, if any: a file of a mount belongs to the other system, a subasset
/// belongs to another asset, and a folder may disable write-back.
fn find_exemption(
    session: &mut Session,
    path: &NodePath,
    asset: &Subtree,
) -> tympan_content::Result<Option<&'static str>> {
    if asset
        .child(JCR_CONTENT)
        .is_some_and(|content| content.properties.contains_key(MOUNT_PROPERTY))
    {
        return Ok(Some("its file belongs to the source that it is mounted from"));
    }
    if path.names().any(|name| name == "subassets") {
        return Ok(Some("it is part of another asset"));
    }
    let mut above = path.parent();
    while let Some(folder) = above {
        if let Some(node) = session.node(&folder)? {
            let content = node.child(JCR_CONTENT)?;
            let switch = node.property(WRITE_BACK_PROPERTY);
            let switch = switch
                .or_else(|| content.and_then(|content| content.property(WRITE_BACK_PROPERTY)));
            match switch
                .as_ref()
                .and_then(Property::first)
                .map(|value| value.to_text().into_owned())
            {
                Some(text) if text == "false" => {
                    return Ok(Some("write-back is disabled for its folder"));
                }
                Some(_) => return Ok(None),
                None => {}
            }
        }
        above = folder.parent();
    }
    Ok(None)
}

fn write_back_in_session(
    session: &mut Session,
    decoder_pool: Option<&DecoderProcessPool>,
    path: &NodePath,
    how: &WriteBackOptions,
    now: SystemTime,
) -> tympan_content::Result<WriteBackOutcome> {
    let skipped = |reason: &str| Ok(WriteBackOutcome::Skipped(reason.to_owned()));
    let Some(node) = session.node(path)?.filter(|node| node.primary_type() == ASSET_NODE_TYPE)
    else {
        return skipped("it is not an asset");
    };
    // A concurrent replacement of the original makes this commit fail.
    session.expect_unchanged(path)?;
    let asset = node.read_subtree()?;
    if let Some(reason) = find_exemption(session, path, &asset)? {
        return skipped(reason);
    }
    let Some(original) = rendition_blob(&asset, "original") else {
        return skipped("it has no original");
    };
    let properties =
        asset.find_descendant("jcr:content/metadata").map(writable_metadata).unwrap_or_default();
    let (bytes, names) =
        match read_and_rewrite(session, decoder_pool, &original, properties.clone())? {
            Ok(Some(rewritten)) => rewritten,
            Ok(None) => return Ok(WriteBackOutcome::Unchanged),
            Err(reason) => return Ok(WriteBackOutcome::Skipped(reason)),
        };
    if how.creates_version {
        let comment = "before metadata is written into the file";
        session.versions().create_version_if_changed(
            path,
            &CheckInOptions {
                comment,
                created_at: now,
                check_out_state: CheckOutState::CheckedOut,
            },
        )?;
    }
    let content = path.child(JCR_CONTENT)?;
    let new = put_rendition(session, &content, "original", &bytes)?;
    // The renditions have the same pixels.
    if asset.child(JCR_CONTENT).and_then(|content| content.text(PROCESSED_ORIGINAL_PROPERTY))
        == Some(&*original.to_string())
    {
        session.set_property(
            &content,
            PROCESSED_ORIGINAL_PROPERTY,
            Property::text(new.to_string()),
        )?;
    }
    let metadata_path = content.child("metadata")?;
    let length = i64::try_from(new.length()).unwrap_or(i64::MAX);
    session.set_property(&metadata_path, "dam:size", Value::Long(length).into())?;
    session.set_property(
        &metadata_path,
        "dam:sha1",
        Property::text(hex::encode(Sha1::digest(&bytes))),
    )?;
    for name in how.renditions.iter().filter(|name| *name != "original") {
        if let Some(rendition) = rendition_blob(&asset, name)
            // A rendition that cannot hold a packet is left unchanged.
            && let Ok(Some((bytes, _))) =
                read_and_rewrite(session, decoder_pool, &rendition, properties.clone())?
        {
            put_rendition(session, &content, name, &bytes)?;
        }
    }
    Ok(WriteBackOutcome::Written(names))
}

fn rendition_blob(asset: &Subtree, name: &str) -> Option<BlobId> {
    let resource = asset.find_descendant(&format!("jcr:content/renditions/{name}/jcr:content"))?;
    resource.properties.get("jcr:data").and_then(blob_id_of_data)
}

fn put_rendition(
    session: &mut Session,
    content: &NodePath,
    rendition: &str,
    mut bytes: &[u8],
) -> tympan_content::Result<BlobId> {
    let new = session.put_blob(&mut bytes)?;
    let resource = content.child("renditions")?.child(rendition)?.child(JCR_CONTENT)?;
    session.set_property(&resource, "jcr:data", Value::Binary(new).into())?;
    Ok(new)
}

/// Reads a file and writes the metadata into it; the inner error gives the reason why that is impossible.
fn read_and_rewrite(
    session: &Session,
    decoder_pool: Option<&DecoderProcessPool>,
    blob: &BlobId,
    properties: Vec<(String, MetadataValue)>,
) -> tympan_content::Result<Result<Option<RewrittenFile>, String>> {
    if blob.length() > MAX_REWRITTEN_FILE_BYTES {
        return Ok(Err("the original is too large to rewrite".to_owned()));
    }
    let unreadable = |error| tympan_content::Error::from(tympan_blobs::Error::Source(error));
    let open = || {
        let opened = session.repository().blobs().open(blob)?;
        opened.ok_or(tympan_content::Error::BlobMissing(*blob))
    };
    let mut bytes = Vec::new();
    open()?.into_reader().read_to_end(&mut bytes).map_err(unreadable)?;
    let (Some(FileFormat::Pdf), Some(decoder_pool)) = (FileFormat::detect(&bytes), decoder_pool)
    else {
        return Ok(rewrite_file(properties, &bytes));
    };
    let open = || open().map_err(io::Error::other);
    match decoder_pool.build_pdf_appendix(&open, properties) {
        Ok(None) => Ok(Ok(None)),
        Ok(Some((appendix, names))) => {
            bytes.extend_from_slice(&appendix);
            Ok(Ok(Some((bytes, names))))
        }
        Err(RenditionError::File(reason)) => Ok(Err(reason)),
        Err(error) => Err(unreadable(io::Error::other(error_chain_text(&error)))),
    }
}

/// A file, and the names of its changed properties.
type RewrittenFile = (Vec<u8>, Vec<String>);

/// Returns the file with these properties written, and the names of the changed ones; `None` if nothing changed.
fn rewrite_file(
    properties: Vec<(String, MetadataValue)>,
    bytes: &[u8],
) -> Result<Option<RewrittenFile>, String> {
    let present = xmp_packet::read_packet(bytes)?;
    let changes = diff_packet(present.as_deref(), properties);
    if changes.is_empty() {
        return Ok(None);
    }
    let new = xmp::update_xmp_packet(present.as_deref(), &changes)?;
    let file = xmp_packet::replace_packet(bytes, &new)?;
    Ok(Some((file, changed_names(&changes))))
}

/// Returns the properties of an asset that are written into its file.
fn writable_metadata(metadata: &Subtree) -> Vec<(String, MetadataValue)> {
    let properties = metadata.properties.iter().filter(|(name, _)| {
        xmp::is_writable_property(name)
            && !TECHNICAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            && *name != "dc:format"
    });
    properties
        .filter_map(|(name, property)| Some((name.clone(), property_to_metadata(property)?)))
        .collect()
}

fn property_to_metadata(property: &Property) -> Option<MetadataValue> {
    if property.is_list() {
        let texts = property.values().iter().map(|value| value.to_text().into_owned()).collect();
        return Some(MetadataValue::Texts(texts));
    }
    Some(match property.first()? {
        Value::Binary(_) => return None,
        Value::Long(number) => MetadataValue::Long(*number),
        Value::Double(number) => MetadataValue::Double(*number),
        date @ Value::Date(_) => MetadataValue::Date(date.to_text().into_owned()),
        other => MetadataValue::Text(other.to_text().into_owned()),
    })
}
