//! The limits on what is read of a blob, and on its text.

/// The maximum length of the text extracted from one blob, and from one document.
pub(crate) const MAX_EXTRACTED_BYTES: usize = 2 << 20;
/// The maximum size of an office document or PDF, in bytes; larger ones are not read.
pub(super) const MAX_DOCUMENT_BYTES: u64 = 128 << 20;

/// Truncates a text to a number of bytes, at a character boundary.
pub(crate) fn truncate_text(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
}
