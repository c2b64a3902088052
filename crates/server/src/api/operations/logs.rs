//! The view of logs: the files in the log folder of this instance, and the end of one of them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// Number of bytes read from the end of a file.
const MAX_READ_BYTES: u64 = 1024 * 1024;
/// Maximum number of lines in a response.
const MAX_LISTED_LINES: u64 = 1000;
/// Number of lines listed by default.
const DEFAULT_LISTED_LINES: usize = 200;
/// Maximum number of files in a response.
const MAX_LISTED_FILES: usize = 200;
/// Parts of the names of parameters in addresses whose values may be secrets.
const SECRET_PARAMETER_PARTS: &[&str] =
    &["auth", "code", "key", "pass", "pwd", "secret", "sig", "token"];

/// The API endpoints that this module defines.
pub(crate) const LOGS_VIEW_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/operations/logs",
    id: "viewLogs",
    description: "Lists the log files of this instance, and the newest lines of one, of its last MiB. Values \
        of parameters in addresses that may be secrets are replaced by `***`. For administrators.",
    parameters: &[
        EndpointParameter::new(
            "file",
            ParameterKind::NonEmptyText,
            "The file, as listed. Default `request.log`.",
        ),
        EndpointParameter::new(
            "contains",
            ParameterKind::Text,
            "Only lines that contain this text, in any case.",
        ),
        EndpointParameter::new(
            "limit",
            ParameterKind::Integer(1, MAX_LISTED_LINES),
            "Maximum number of lines. Default 200.",
        ),
    ],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("LogsView", "The files and the lines, the newest last.")],
    handler: EndpointHandler::Blocking(view_logs),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn logs_view_schemas() -> Map<String, Json> {
    let file = object_schema(&[
        ("name", text_schema()),
        ("bytes", count_schema()),
        ("modified", text_or_null_schema()),
    ]);
    schemas_by_name([(
        "LogsView",
        object_schema(&[
            ("files", array_schema(file)),
            ("file", text_schema()),
            ("lines", array_schema(text_schema())),
            ("isCut", json!({ "type": "boolean" })),
        ]),
    )])
}

/// A file in the log folder.
struct LogEntry {
    name: String,
    bytes: u64,
    modified: Option<SystemTime>,
}

fn view_logs(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("read logs")?;
    let files = list_log_files(&instance.log_folder)?;
    let name = call.parameter("file").unwrap_or("request.log");
    // Only a listed name is opened, so that no path leads out of the folder.
    let file = files.iter().find(|file| file.name == name).ok_or_else(|| {
        let name: String = name.chars().take(100).collect();
        RequestFailure::new(http::StatusCode::NOT_FOUND, format!("there is no log `{name}`"))
    })?;
    let (text, is_start) = read_end(&instance.log_folder.join(&file.name), file.bytes)?;
    let wanted = call.parameter("contains").unwrap_or_default().to_lowercase();
    let limit = call.number_parameter("limit", DEFAULT_LISTED_LINES);
    // The first line may have lost its beginning.
    let text = match is_start {
        true => &*text,
        false => text.split_once('\n').map_or("", |(_, whole)| whole),
    };
    let mut found: Vec<String> = text
        .lines()
        .rev()
        .map(mask_secrets)
        .filter(|line| wanted.is_empty() || line.to_lowercase().contains(&wanted))
        .take(limit.saturating_add(1))
        .collect();
    let is_cut = found.len() > limit || !is_start;
    found.truncate(limit);
    found.reverse();
    let files: Vec<Json> = files
        .iter()
        .map(|file| {
            json!({
                "name": file.name, "bytes": file.bytes, "modified": file.modified.map(to_iso_time),
            })
        })
        .collect();
    Ok(ApiResponse::json(json!({
        "files": files, "file": name, "lines": found, "isCut": is_cut,
    })))
}

/// Lists the log files, by name.
fn list_log_files(folder: &Path) -> Result<Vec<LogEntry>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MAX_LISTED_FILES) {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_log = name.contains(".log") || name.ends_with(".jsonl");
        // Not a link, which could lead elsewhere.
        let Ok(metadata) = entry.metadata() else { continue };
        if is_log && metadata.is_file() {
            let (bytes, modified) = (metadata.len(), metadata.modified().ok());
            files.push(LogEntry { name, bytes, modified });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Reads the end of a file; also returns true if that is all of it.
fn read_end(path: &Path, length: u64) -> Result<(String, bool)> {
    let mut file = File::open(path)?;
    let start = length.saturating_sub(MAX_READ_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_READ_BYTES).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), start == 0))
}

/// Replaces the values of parameters in addresses that may be secrets, such as that of a login link.
fn mask_secrets(line: &str) -> String {
    let mut masked = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['?', '&']) {
        let (before, pair) = rest.split_at(at + 1);
        masked.push_str(before);
        let end =
            pair.find(|letter: char| letter == '&' || letter == '"' || letter.is_whitespace());
        let (pair, behind) = pair.split_at(end.unwrap_or(pair.len()));
        match pair.split_once('=') {
            Some((name, _)) if is_secret_name(name) => {
                masked.push_str(name);
                masked.push_str("=***");
            }
            _ => masked.push_str(pair),
        }
        rest = behind;
    }
    masked.push_str(rest);
    masked
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_PARAMETER_PARTS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_addresses_are_hidden() {
        for (line, shown) in [
            ("GET /login/link?token=abc HTTP/1.1", "GET /login/link?token=*** HTTP/1.1"),
            ("\"GET /a?x=1&Api-Key=k&y=2\" 200", "\"GET /a?x=1&Api-Key=***&y=2\" 200"),
            ("GET /a?x&token", "GET /a?x&token"),
            ("a & b? c=token", "a & b? c=token"),
        ] {
            assert_eq!(mask_secrets(line), shown);
        }
    }
}
