//! XMP write-back: what people wrote about an asset goes into the file itself, without touching the picture.
//!
//! In: an asset whose metadata changed. Out: a new original that differs in its XMP packet only, or why there is none.
//!
//! Invariants
//! * Only properties of registered namespaces are written, and only those that the file says differently; what the camera
//!   noted (`tiff:`, `exif:`, `aux:`) is left to the camera.
//! * The former original's blob stays as it is, for versions and for whoever holds it.
//! * A new packet makes no new renditions and no further write-back: the pixels are the same, and the file then says
//!   what content says.
//!
//! On failure: a format that cannot take a packet is [`WrittenBack::Skipped`] with the reason; the asset is as before.

use std::io::Read;
use std::num::NonZeroUsize;
use std::time::SystemTime;

use bytes::Bytes;
use img_parts::jpeg::{Jpeg, JpegSegment};
use img_parts::png::{Png, PngChunk};
use sha1::{Digest, Sha1};
use tympan_content::{JCR_CONTENT, NodePath, Property, Revising, Session, Subtree, Value};

use super::draw::hex;
use super::format::Format;
use super::ingest::{ASSET, AssetError, Assets, DRAWN_OF, ORIGINAL, USER, blob_of};
use super::metadata::{Properties, xmp};
use super::order::MetadataValue;

/// What begins the packet's segment in a JPEG.
const JPEG_XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
/// What begins the packet's chunk in a PNG: its keyword, uncompressed, without language and translation.
const PNG_XMP: &[u8] = b"XML:com.adobe.xmp\0\0\0\0\0";
const APP1: u8 = 0xe1;
/// A segment's length has 16 bits.
const MAX_SEGMENT: usize = 65_533;
/// The most bytes of a file that is written anew.
const MAX_FILE: u64 = 256 << 20;
/// Prefixes of what a program noted about the picture, not a person.
const TECHNICAL: [&str; 4] = ["tiff:", "exif:", "aux:", "xmpMM:"];
const ATTEMPTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// What became of a write-back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenBack {
    /// The original is a new one, which says these properties.
    Written(Vec<String>),
    /// The file says all of it already.
    Unchanged,
    /// The file cannot take it, for this reason.
    Skipped(String),
}

impl Assets {
    /// Writes the metadata of an asset into its original.
    ///
    /// # Errors
    /// If content cannot be read or written.
    pub fn write_back(&self, path: &NodePath, now: SystemTime) -> Result<WrittenBack, AssetError> {
        let content = |source| AssetError::Content { path: path.clone(), source: Box::new(source) };
        let revising =
            Revising { user: USER, message: "write metadata into the original", at: now };
        let mut written = WrittenBack::Unchanged;
        self.repository()
            .retry(ATTEMPTS, revising, |session| {
                written = write(session, path)?;
                Ok(())
            })
            .map_err(content)?;
        Ok(written)
    }
}

fn write(session: &mut Session, path: &NodePath) -> tympan_content::Result<WrittenBack> {
    let skipped = |reason: &str| Ok(WrittenBack::Skipped(reason.to_owned()));
    let Some(node) = session.node(path)?.filter(|node| node.primary_type() == ASSET) else {
        return skipped("it is no asset");
    };
    // Whoever replaces the original meanwhile is in the way of this commit.
    session.expect_unchanged(path)?;
    let asset = node.read()?;
    let Some(blob) = asset
        .find(ORIGINAL)
        .and_then(|original| original.properties.get("jcr:data"))
        .and_then(blob_of)
    else {
        return skipped("it has no original");
    };
    if blob.length() > MAX_FILE {
        return skipped("the original is too large to be written anew");
    }
    let opened = session.repository().blobs().open(&blob)?;
    let Some(opened) = opened else { return Err(tympan_content::Error::BlobMissing(blob)) };
    let mut bytes = Vec::new();
    let unreadable = |error| tympan_content::Error::from(tympan_blobs::Error::Source(error));
    opened.into_reader().read_to_end(&mut bytes).map_err(unreadable)?;
    let metadata = asset.find("jcr:content/metadata").cloned().unwrap_or_default();
    let (bytes, names) = match written(&metadata, bytes) {
        Ok(Some(written)) => written,
        Ok(None) => return Ok(WrittenBack::Unchanged),
        Err(reason) => return Ok(WrittenBack::Skipped(reason)),
    };
    let new = session.put_blob(&mut &*bytes)?;
    let content = path.child(JCR_CONTENT)?;
    let original = content.child("renditions")?.child("original")?.child(JCR_CONTENT)?;
    session.set_property(&original, "jcr:data", Value::Binary(new).into())?;
    // The renditions are of the same pixels.
    if asset.child(JCR_CONTENT).and_then(|content| content.text(DRAWN_OF))
        == Some(&*blob.to_string())
    {
        session.set_property(&content, DRAWN_OF, Property::text(new.to_string()))?;
    }
    let metadata = content.child("metadata")?;
    let length = i64::try_from(new.length()).unwrap_or(i64::MAX);
    session.set_property(&metadata, "dam:size", Value::Long(length).into())?;
    session.set_property(&metadata, "dam:sha1", Property::text(hex(&Sha1::digest(&bytes))))?;
    Ok(WrittenBack::Written(names))
}

/// A file and the names of the properties that it says anew.
type Rewritten = (Vec<u8>, Vec<String>);

/// Returns the file with the metadata in it and the names of what changed; nothing if it says all of it already.
fn written(metadata: &Subtree, bytes: Vec<u8>) -> Result<Option<Rewritten>, String> {
    let mut file = Container::open(bytes)?;
    let packet = file.packet();
    let mut says = Properties::default();
    if let Some(packet) = &packet {
        xmp::read(packet, &mut says);
    }
    let says = says.into_list();
    let wanted = metadata.properties.iter().filter(|(name, _)| {
        xmp::is_writable(name)
            && !TECHNICAL.iter().any(|prefix| name.starts_with(prefix))
            && *name != "dc:format"
    });
    let changes: Vec<(String, Option<MetadataValue>)> = wanted
        .filter_map(|(name, property)| Some((name.clone(), value_of(property)?)))
        .filter(|(name, value)| {
            !says.iter().any(|(said, present)| said == name && is_same(present, value))
        })
        .map(|(name, value)| (name, Some(value)))
        .collect();
    if changes.is_empty() {
        return Ok(None);
    }
    let packet = xmp::write(packet.as_deref(), &changes)?;
    file.set_packet(&packet)?;
    Ok(Some((file.into_bytes(), changes.into_iter().map(|(name, _)| name).collect())))
}

fn is_same(left: &MetadataValue, right: &MetadataValue) -> bool {
    use MetadataValue::{Date, Text, Texts};
    match (left, right) {
        // A list of one and its text are the same in a file.
        (Text(text), Texts(texts)) | (Texts(texts), Text(text)) => texts.iter().eq([text]),
        (Date(one), Date(other)) => {
            let instant =
                |text: &str| tympan_content::Date::parse(text).map(|date| date.millis).ok();
            instant(one) == instant(other)
        }
        _ => left == right,
    }
}

fn value_of(property: &Property) -> Option<MetadataValue> {
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

/// A file cut into the pieces between which a packet goes.
enum Container {
    Jpeg(Jpeg),
    Png(Png),
}

impl Container {
    fn open(bytes: Vec<u8>) -> Result<Self, String> {
        let format = Format::of(&bytes);
        let bytes = Bytes::from(bytes);
        let damaged = |error| format!("the original is damaged: {error}");
        match format {
            Some(Format::Jpeg) => Jpeg::from_bytes(bytes).map(Self::Jpeg).map_err(damaged),
            Some(Format::Png) => Png::from_bytes(bytes).map(Self::Png).map_err(damaged),
            _ => Err("files of this format take no metadata here; JPEG and PNG do".to_owned()),
        }
    }

    fn packet(&self) -> Option<Vec<u8>> {
        match self {
            Self::Jpeg(file) => {
                let mut segments = file.segments_by_marker(APP1);
                segments.find_map(|segment| {
                    segment.contents().strip_prefix(JPEG_XMP).map(<[u8]>::to_vec)
                })
            }
            Self::Png(file) => {
                let mut chunks = file.chunks_by_type(*b"iTXt");
                chunks.find_map(|chunk| chunk.contents().strip_prefix(PNG_XMP).map(<[u8]>::to_vec))
            }
        }
    }

    fn set_packet(&mut self, packet: &[u8]) -> Result<(), String> {
        match self {
            Self::Jpeg(file) => {
                let contents = [JPEG_XMP, packet].concat();
                if contents.len() > MAX_SEGMENT {
                    return Err("its metadata is too long for a JPEG's packet".to_owned());
                }
                let segments = file.segments_mut();
                segments.retain(|segment| {
                    segment.marker() != APP1 || !segment.contents().starts_with(JPEG_XMP)
                });
                // Behind JFIF's and EXIF's segments, which want to be first.
                let place =
                    segments.iter().position(|segment| !matches!(segment.marker(), 0xe0 | APP1));
                let segment = JpegSegment::new_with_contents(APP1, contents.into());
                segments.insert(place.unwrap_or(0), segment);
            }
            Self::Png(file) => {
                let chunks = file.chunks_mut();
                chunks.retain(|chunk| {
                    chunk.kind() != *b"iTXt" || !chunk.contents().starts_with(PNG_XMP)
                });
                let chunk = PngChunk::new(*b"iTXt", [PNG_XMP, packet].concat().into());
                // The first chunk is the header.
                chunks.insert(1.min(chunks.len()), chunk);
            }
        }
        Ok(())
    }

    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Jpeg(file) => file.encoder().bytes().to_vec(),
            Self::Png(file) => file.encoder().bytes().to_vec(),
        }
    }
}
