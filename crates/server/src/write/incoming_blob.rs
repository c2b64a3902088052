//! Incoming files: detection of their media type and verification of their digest.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write as _};
use std::path::Path;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http_body_util::BodyExt;
use tempfile::NamedTempFile;
use tympan_content::{BlobId, Error, NodePath, Privileges, Session, Snapshot};

use crate::failure::{RequestFailure, Result};

/// Number of leading bytes used to detect the type of a file.
const TYPE_DETECTION_BYTES: u64 = 4_096;
const DEFAULT_MEDIA_TYPE: &str = "application/octet-stream";

/// A SHA-256 digest supplied by a client.
pub(crate) type Sha256Digest = [u8; 32];

/// Returns the media type of a file: the declared type if that is a media type, else the type of the file extension,
/// else the type detected from its first bytes.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn detect_media_type(
    sent: Option<&str>,
    name: &str,
    file: &File,
) -> std::io::Result<String> {
    let is_media_type =
        |sent: &&str| *sent != DEFAULT_MEDIA_TYPE && sent.parse::<mime_guess::Mime>().is_ok();
    if let Some(sent) = sent.filter(is_media_type) {
        return Ok(sent.to_owned());
    }
    if let Some(guessed) = mime_guess::from_path(name).first() {
        return Ok(guessed.to_string());
    }
    let mut file = file;
    let mut head = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(TYPE_DETECTION_BYTES).read_to_end(&mut head)?;
    let kind = infer::get(&head);
    // A guess must not declare content that a browser would execute.
    let kind = kind.filter(|kind| !matches!(kind.mime_type(), "text/html" | "text/xml"));
    Ok(kind.map_or(DEFAULT_MEDIA_TYPE, |kind| kind.mime_type()).to_owned())
}

/// Writes a request body to a temporary file.
pub(crate) async fn spool_body(spool_folder: &Path, mut body: Body) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(spool_folder)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| RequestFailure::unreadable_body(&error))?;
        if let Ok(piece) = frame.into_data() {
            let written = move || file.write_all(&piece).map(|()| file);
            file = tokio::task::spawn_blocking(written).await??;
        }
    }
    Ok(file)
}

/// Refuses bytes for a path where the viewer of a snapshot has no write permission, before the bytes are stored: a
/// refused commit leaves data behind that occupies space until the next garbage collection.
///
/// # Errors
/// Access denied, at the path or its nearest visible ancestor; if content fails.
pub(crate) fn require_write_access(snapshot: &Snapshot, path: &NodePath) -> Result<()> {
    let mut at = path.clone();
    while snapshot.node(&at)?.is_none() {
        let Some(parent) = at.parent() else { break };
        at = parent;
    }
    let write =
        Privileges::ADD_CHILD_NODES | Privileges::ADD_PROPERTIES | Privileges::ALTER_PROPERTIES;
    if (snapshot.privileges(&at)? & write).is_empty() {
        return Err(Error::AccessDenied { path: at, privilege: "jcr:addChildNodes" }.into());
    }
    Ok(())
}

/// Stores a file. If the client supplied a digest, the file must match it.
///
/// # Errors
/// A bad request if the digest differs; if the file cannot be read or stored.
pub(crate) fn store_file(
    session: &mut Session,
    mut file: File,
    named: Option<Sha256Digest>,
) -> Result<BlobId> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(0))?;
    store_bytes(session, &mut BufReader::new(file), named.map(|digest| BlobId::new(digest, length)))
}

/// Stores bytes. If the client named a blob, the bytes must match it.
///
/// # Errors
/// As [`store_file`].
pub(crate) fn store_bytes(
    session: &mut Session,
    source: &mut dyn Read,
    named: Option<BlobId>,
) -> Result<BlobId> {
    let Some(id) = named else { return Ok(session.put_blob(source)?) };
    match session.put_named_blob(&id, source) {
        Ok(()) => Ok(id),
        Err(error @ Error::BlobMismatch { .. }) => {
            Err(RequestFailure::bad_request(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Parses the digest in the header `Repr-Digest` (RFC 9530), or in its predecessor `Digest`; `None` if neither contains
/// a SHA-256 digest.
///
/// # Errors
/// A bad request if the header is malformed.
pub(crate) fn parse_digest_header(headers: &HeaderMap) -> Result<Option<Sha256Digest>> {
    for name in ["repr-digest", "content-digest", "digest"] {
        for value in headers.get_all(name) {
            let value = value.to_str().unwrap_or_default();
            for part in value.split(',') {
                let Some((algorithm, digest)) = part.trim().split_once('=') else { continue };
                if algorithm.eq_ignore_ascii_case("sha-256") {
                    let decoded = STANDARD.decode(digest.trim().trim_matches(':'));
                    let digest = decoded.ok().and_then(|digest| digest.try_into().ok());
                    return digest.map(Some).ok_or_else(|| {
                        RequestFailure::bad_request(format!(
                            "`{name}` does not contain a SHA-256 in Base64"
                        ))
                    });
                }
            }
        }
    }
    Ok(None)
}

/// Parses a digest of 64 hexadecimal digits.
pub(crate) fn parse_hex_digest(text: &str) -> Option<Sha256Digest> {
    // A blob ID consists of the same digits and a length.
    let id: BlobId = format!("{}#0", text.trim().to_ascii_lowercase()).parse().ok()?;
    Some(*id.digest())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn types_are_detected_by_the_sender_the_name_or_the_bytes() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        let check = |sent: Option<&str>, name: &str, bytes: &[u8], expected: &str| {
            assert_eq!(
                detect_media_type(sent, name, &file(bytes)).unwrap(),
                expected,
                "{sent:?} {name}"
            );
        };
        check(Some("image/x-own"), "a.txt", png, "image/x-own");
        check(Some(DEFAULT_MEDIA_TYPE), "a.txt", png, "text/plain");
        check(None, "a.txt", png, "text/plain");
        check(None, "picture", png, "image/png");
        check(None, "film", b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "video/mp4");
        check(None, "paper", b"%PDF-1.7\n", "application/pdf");
        check(None, "page", b"<!DOCTYPE html><script>alert(1)</script>", DEFAULT_MEDIA_TYPE);
        check(None, "nothing", b"", DEFAULT_MEDIA_TYPE);
        check(None, "noise", b"\x01\x02\x03", DEFAULT_MEDIA_TYPE);
    }

    #[test]
    fn digests_are_read_from_headers() {
        let of = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            parse_digest_header(&headers)
        };
        let text = STANDARD.encode([7; 32]);
        assert_eq!(of("repr-digest", &format!("sha-256=:{text}:")).unwrap(), Some([7; 32]));
        assert_eq!(of("digest", &format!("md5=x, SHA-256={text}")).unwrap(), Some([7; 32]));
        assert_eq!(of("repr-digest", "sha-512=:AAAA:").unwrap(), None);
        assert!(of("content-digest", "sha-256=:short:").is_err());
        assert!(of("content-digest", "sha-256=:QUJD:").is_err());
        assert_eq!(parse_hex_digest(&"aB".repeat(32)), Some([0xab; 32]));
        assert_eq!(parse_hex_digest("ab"), None);
        assert_eq!(parse_hex_digest(&"zz".repeat(32)), None);
    }
}
