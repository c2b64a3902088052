//! Replaces the XMP packet of a PDF. The packet is appended as an incremental update, and no byte of the original file
//! changes.
//!
//! In: the bytes of a file, and the properties to write. Out: the bytes to append, or the reason why there are none.
//!
//! Hostile PDF files may crash the parser or exhaust its memory, so this runs in the rendition process.

use lopdf::{Dictionary, Document, IncrementalDocument, Object, ObjectId, Stream};

use crate::metadata::pdf::find_xmp_packet;
use crate::metadata_change::{changed_names, diff_packet};
use crate::processing_request::MetadataValue;

/// Entries of a cross-reference stream that the update regenerates.
const REGENERATED_STREAM_ENTRIES: [&[u8]; 7] =
    [b"Type", b"Index", b"W", b"Filter", b"DecodeParms", b"Length", b"XRefStm"];
/// The flag of a form that indicates signatures.
const SIGNATURES_EXIST_FLAG: i64 = 1;

/// The bytes to append to a file, and the names of the properties that they set.
pub(crate) type PdfAppendix = (Vec<u8>, Vec<String>);

/// Returns the bytes that set these properties in a PDF; `None` if the PDF contains them already.
///
/// # Errors
/// If the file is not a readable PDF, is encrypted or signed, or its packet cannot be read.
pub(crate) fn build_pdf_appendix(
    bytes: &[u8],
    properties: Vec<(String, MetadataValue)>,
) -> Result<Option<PdfAppendix>, String> {
    let unreadable = |error: lopdf::Error| format!("it is not a readable PDF: {error}");
    let document = Document::load_mem(bytes).map_err(unreadable)?;
    if document.was_encrypted() || document.trailer.has(b"Encrypt") {
        return Err("it is encrypted, so nothing can be written into it".to_owned());
    }
    let root = document.trailer.get(b"Root").and_then(Object::as_reference).map_err(unreadable)?;
    let catalog = document.get_dictionary(root).map_err(unreadable)?;
    if is_signed_document(&document, catalog) {
        return Err("it is signed, so a change would break its signature".to_owned());
    }
    let present = find_xmp_packet(&document);
    let changes = diff_packet(present.as_deref(), properties);
    if changes.is_empty() {
        return Ok(None);
    }
    let packet = super::metadata::xmp::update_xmp_packet(present.as_deref(), &changes)?;
    let packet_id = catalog.get(b"Metadata").and_then(Object::as_reference).ok();
    let mut updated = IncrementalDocument::create_from(bytes.to_vec(), document);
    put_packet(&mut updated, root, packet_id, packet.clone()).map_err(unreadable)?;
    let mut whole = Vec::with_capacity(bytes.len() + packet.len() + 1024);
    updated.save_to(&mut whole).map_err(|error| unreadable(error.into()))?;
    // A result that cannot be read back is rejected.
    let again = Document::load_mem(&whole).map_err(unreadable)?;
    let appended = whole.strip_prefix(bytes).filter(|_| find_xmp_packet(&again) == Some(packet));
    let appended = appended.ok_or("its structure does not allow an update")?;
    Ok(Some((appended.to_vec(), changed_names(&changes))))
}

/// Adds a packet to the update: as a new version of the existing one, or as a new object that the catalog references.
fn put_packet(
    updated: &mut IncrementalDocument,
    root: ObjectId,
    packet_id: Option<ObjectId>,
    packet: Vec<u8>,
) -> lopdf::Result<()> {
    let mut entries = Dictionary::new();
    entries.set("Type", Object::Name(b"Metadata".to_vec()));
    entries.set("Subtype", Object::Name(b"XML".to_vec()));
    // The packet is stored uncompressed, so that programs without PDF support find it.
    let stream = Object::Stream(Stream::new(entries, packet).with_compression(false));
    match packet_id {
        Some(packet_id) => updated.new_document.set_object(packet_id, stream),
        None => {
            updated.opt_clone_object_to_new_document(root)?;
            let new = updated.new_document.add_object(stream);
            let catalog = updated.new_document.get_object_mut(root)?.as_dict_mut()?;
            catalog.set("Metadata", Object::Reference(new));
        }
    }
    for entry in REGENERATED_STREAM_ENTRIES {
        updated.new_document.trailer.remove(entry);
    }
    Ok(())
}

/// Returns true if the document is signed, or certified with restrictions on changes.
fn is_signed_document(document: &Document, catalog: &Dictionary) -> bool {
    let resolve =
        |object: &Object| document.dereference(object).ok().map(|(_, object)| object.clone());
    let form = catalog.get(b"AcroForm").ok().and_then(resolve);
    let flags =
        form.as_ref().and_then(|form| form.as_dict().ok()?.get(b"SigFlags").ok()?.as_i64().ok());
    let is_signature = |object: &Object| {
        let dictionary = object.as_dict().ok();
        let is = |key: &[u8], value: &[u8]| {
            dictionary.is_some_and(|dictionary| {
                dictionary.get(key).and_then(Object::as_name).is_ok_and(|name| name == value)
            })
        };
        is(b"Type", b"Sig") || is(b"Type", b"DocTimeStamp")
    };
    catalog.has(b"Perms")
        || flags.is_some_and(|flags| flags & SIGNATURES_EXIST_FLAG != 0)
        || document.objects.values().any(is_signature)
}
