//! Requests to an author, asset uploads, and the processing state of an asset: shared by all code that loads or fills
//! an author.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::net::{ExchangeOutcome, LoadTarget, ResponseRetention, TargetRequest};

/// Maximum size in bytes of a response about an asset.
pub const MAX_ASSET_RESPONSE_BYTES: usize = 1 << 20;

/// A request to an author.
#[derive(Debug, Clone, Copy)]
pub struct AssetRequest<'a> {
    /// The method.
    pub method: &'static str,
    /// The path as it is written in the request line.
    pub path: &'a str,
    /// The media type of the body, and the body; both are empty if there is none.
    pub body: (&'a str, &'a [u8]),
    /// The parts of the response to retain.
    pub retention: ResponseRetention,
    /// Maximum time without data from the author.
    pub idle_timeout: Duration,
}

/// Builds the request; `headers` are added to those that every request has.
pub fn build_asset_request(
    target: &Arc<LoadTarget>,
    headers: &[(String, String)],
    ask: AssetRequest<'_>,
) -> TargetRequest {
    let mut text = format!(
        "{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {}\r\nAccept: */*\r\n",
        ask.method,
        ask.path,
        target.authority(),
        concat!("tympan-lab/", env!("CARGO_PKG_VERSION"))
    );
    let (media_type, body) = ask.body;
    if !media_type.is_empty() {
        text.push_str(&format!("Content-Type: {media_type}\r\nContent-Length: {}\r\n", body.len()));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    TargetRequest {
        target: Arc::clone(target),
        encoded_bytes: bytes.into(),
        is_head: false,
        retention: ask.retention,
        uses_keep_alive: true,
        connect_timeout: Some(Duration::from_secs(30)),
        idle_timeout: Some(ask.idle_timeout),
    }
}

/// Returns the media type and the body of the form that uploads a file. The file's parts are concatenated; `boundary`
/// must not occur in them.
pub fn build_upload_form(
    (name, media_type): (&str, &str),
    boundary: &str,
    pieces: &[&[u8]],
) -> (String, Vec<u8>) {
    let mut body = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\":operation\"\r\n\r\ncreateasset\r\n--{boundary}\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: {media_type}\r\n\r\n"
    )
    .into_bytes();
    pieces.iter().for_each(|piece| body.extend_from_slice(piece));
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}

/// The final state of an asset's processing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssetProcessingOutcome {
    /// The asset was processed.
    Done,
    /// Processing failed.
    Failed,
}

/// Returns the final processing state of an asset, from the response to a request for its content; `None` while
/// processing continues.
pub fn asset_processing_outcome(reply: &ExchangeOutcome) -> Option<AssetProcessingOutcome> {
    let response = reply.result.as_ref().ok().filter(|response| response.status == 200)?;
    parse_processing_state(&response.body)
}

fn parse_processing_state(content: &[u8]) -> Option<AssetProcessingOutcome> {
    let asset: Value = serde_json::from_slice(content).ok()?;
    match asset.get("dam:assetState")?.as_str()? {
        "processed" => Some(AssetProcessingOutcome::Done),
        "processing" | "unProcessed" => None,
        _ => Some(AssetProcessingOutcome::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asset_says_how_far_it_is() {
        let check = |state: &str, expected| {
            let content = format!(
                "{{\"jcr:primaryType\":\"dam:AssetContent\",\"dam:assetState\":\"{state}\"}}"
            );
            assert_eq!(parse_processing_state(content.as_bytes()), expected, "{state}");
        };
        check("processed", Some(AssetProcessingOutcome::Done));
        check("processing", None);
        check("unProcessed", None);
        check("failed", Some(AssetProcessingOutcome::Failed));
        assert_eq!(parse_processing_state(b"{}"), None);
        assert_eq!(parse_processing_state(b"no asset"), None);
    }

    #[test]
    fn an_upload_holds_the_file_as_it_is() {
        let (media_type, body) =
            build_upload_form(("a.png", "image/png"), "xyz", &[b"one", b"two"]);
        assert_eq!(media_type, "multipart/form-data; boundary=xyz");
        let body = String::from_utf8(body).unwrap();
        assert!(body.starts_with("--xyz\r\nContent-Disposition: form-data; name=\":operation\"\r\n\r\ncreateasset\r\n--xyz\r\n"), "{body}");
        assert!(
            body.ends_with(
                "filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\nonetwo\r\n--xyz--\r\n"
            ),
            "{body}"
        );
    }
}
