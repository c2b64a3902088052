//! Lists and reads the files of a bucket: Amazon S3 and compatible servers.
//!
//! Buckets are addressed in path style (`https://host/bucket/key`), which all servers support. Requests are signed with
//! AWS Signature 4 if the location has credentials.
//!
//! Not here: the buckets of `blobs`, which only hold keys of ours (`docs/decisions/0010-own-code-beside-kept-crates.md`).

use std::io::Read;
use std::path::PathBuf;

use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tympan_blobs::parse_profile;

use crate::mount_location::{MountLocation, MountSecret};
use crate::mount_source::{
    MAX_FILES, MAX_FOLDER_DEPTH, MountSource, MountSourceError, SourceFile, SourceItem,
    is_ignored_name,
};
use crate::name_escaping::{escape_name, unescape_name};
use crate::source_http::{SourceHost, SourceNetwork, SourceResponse, escape_url_part};
use crate::xml_reader::{self, XmlEvent};

const DEFAULT_S3_REGION: &str = "us-east-1";
/// Maximum number of pages of one listing, because a server may announce further pages without end.
const MAX_LISTING_PAGES: usize = 20_000;
/// The header for the session token of temporary credentials.
const TOKEN_HEADER: &str = "x-amz-security-token";
/// The SHA-256 hash of an empty body.
const EMPTY_BODY_HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A bucket, or the keys with a prefix in it.
#[derive(Debug)]
pub(crate) struct BucketSource {
    host: SourceHost,
    name: String,
    /// Empty, or ends with a slash.
    prefix: String,
    region: String,
    credentials: Option<S3CredentialSource>,
}

/// Where the credentials of requests come from.
#[derive(Debug)]
enum S3CredentialSource {
    Fixed(S3Credentials),
    /// A file of AWS's tools, whose profile `default` applies.
    File(PathBuf),
}

impl S3CredentialSource {
    /// Returns the credentials that are valid now.
    fn current(&self) -> Result<S3Credentials, MountSourceError> {
        match self {
            Self::Fixed(credentials) => Ok(credentials.clone()),
            Self::File(file) => {
                let location = || file.display().to_string();
                let text = std::fs::read_to_string(file)
                    .map_err(|source| MountSourceError::Read { file: location(), source })?;
                S3Credentials::from_profile(&text).ok_or_else(|| MountSourceError::Refused {
                    location: location(),
                    reason: "its profile `default` has no `aws_access_key_id` and \
                             `aws_secret_access_key`"
                        .to_owned(),
                })
            }
        }
    }
}

/// An access key, with a session token if it is temporary.
#[derive(Debug, Clone)]
struct S3Credentials {
    key_id: String,
    secret: MountSecret,
    session_token: Option<MountSecret>,
}

impl S3Credentials {
    fn from_profile(text: &str) -> Option<Self> {
        let settings = parse_profile(text, "default");
        let setting = |name: &str| {
            settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        Some(Self {
            key_id: setting("AWS_ACCESS_KEY_ID")?,
            secret: MountSecret::new(setting("AWS_SECRET_ACCESS_KEY")?),
            session_token: setting("AWS_SESSION_TOKEN").map(MountSecret::new),
        })
    }
}

impl BucketSource {
    pub(crate) fn new(
        source: &str,
        location: &MountLocation,
        network: &SourceNetwork,
    ) -> Result<Self, String> {
        let rest = source.strip_prefix("s3://").unwrap_or_default();
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if name.is_empty() || !name.bytes().all(is_fine) {
            return Err(format!("`{source}` names no bucket; write `s3://bucket/folder`"));
        }
        let region = location.region.clone().unwrap_or_else(|| DEFAULT_S3_REGION.to_owned());
        let endpoint = match &location.endpoint {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{region}.amazonaws.com"),
        };
        let credentials = match (&location.credentials_file, &location.user, &location.secret) {
            (Some(file), _, _) => Some(S3CredentialSource::File(file.clone())),
            (None, Some(user), Some(secret)) => Some(S3CredentialSource::Fixed(S3Credentials {
                key_id: user.clone(),
                secret: secret.clone(),
                session_token: None,
            })),
            _ => None,
        };
        // Requests are authenticated by signatures, not by a password header.
        let open = MountLocation { user: None, secret: None, ..location.clone() };
        let prefix = prefix.trim_matches('/');
        Ok(Self {
            host: SourceHost::new(&endpoint, &open, network)?,
            name: name.to_owned(),
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            region,
            credentials,
        })
    }

    /// Requests a path; the parameters must be sorted by name.
    fn send_signed_request(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
    ) -> Result<SourceResponse, MountSourceError> {
        let pairs = parameters
            .iter()
            .map(|(name, value)| format!("{name}={}", escape_url_part(value.as_bytes())));
        let query = pairs.collect::<Vec<_>>().join("&");
        let mut headers = Vec::new();
        if let Some(source) = &self.credentials {
            let credentials = source.current()?;
            let now = Timestamp::now();
            let request = S3SignedRequest {
                host: self.host.authority(),
                path,
                query: &query,
                region: &self.region,
            };
            headers.push(("x-amz-date", now.strftime("%Y%m%dT%H%M%SZ").to_string()));
            headers.push(("x-amz-content-sha256", EMPTY_BODY_HASH.to_owned()));
            headers.push(("authorization", request.authorization_header(&credentials, now)));
            let token = credentials.session_token;
            headers.extend(token.map(|token| (TOKEN_HEADER, token.expose_secret().to_owned())));
        }
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        self.host.send_request(&Method::GET, &target, &headers, "")
    }
}

/// The signed parts of a request.
struct S3SignedRequest<'a> {
    host: &'a str,
    path: &'a str,
    query: &'a str,
    region: &'a str,
}

impl S3SignedRequest<'_> {
    fn authorization_header(&self, credentials: &S3Credentials, now: Timestamp) -> String {
        let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let day = now.strftime("%Y%m%d").to_string();
        let mut names = "host;x-amz-content-sha256;x-amz-date".to_owned();
        let mut headers = format!(
            "host:{}\nx-amz-content-sha256:{EMPTY_BODY_HASH}\nx-amz-date:{time}\n",
            self.host
        );
        if let Some(token) = &credentials.session_token {
            names.push_str(&format!(";{TOKEN_HEADER}"));
            headers.push_str(&format!("{TOKEN_HEADER}:{}\n", token.expose_secret()));
        }
        let request =
            format!("GET\n{}\n{}\n{headers}\n{names}\n{EMPTY_BODY_HASH}", self.path, self.query);
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let hash = hex::encode(Sha256::digest(request.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
        let secret = format!("AWS4{}", credentials.secret.expose_secret());
        let mut key = hmac_sha256(secret.as_bytes(), &day);
        for part in [self.region, "s3", "aws4_request", &text] {
            key = hmac_sha256(&key, part);
        }
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={}",
            credentials.key_id,
            hex::encode(key)
        )
    }
}

fn hmac_sha256(key: &[u8], text: &str) -> Vec<u8> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// One page of a listing.
#[derive(Debug, Default)]
struct S3ListPage {
    has_escaped_keys: bool,
    is_truncated: bool,
    continuation_token: String,
    key: String,
    etag: String,
    byte_count: Option<u64>,
    objects: Vec<(String, String, Option<u64>)>,
}

impl BucketSource {
    fn list_page(&self, token: &str) -> Result<S3ListPage, MountSourceError> {
        let mut parameters = vec![
            ("encoding-type", "url"),
            ("list-type", "2"),
            ("max-keys", "1000"),
            ("prefix", &*self.prefix),
        ];
        if !token.is_empty() {
            parameters.insert(0, ("continuation-token", token));
        }
        let response = self.send_signed_request(&format!("/{}", self.name), &parameters)?;
        let location = response.location().to_owned();
        let mut page = S3ListPage::default();
        xml_reader::read_xml_events(response, &location, |piece| {
            let XmlEvent::End(name, text) = piece else { return Ok(()) };
            match &*name {
                "EncodingType" => page.has_escaped_keys = text == "url",
                "IsTruncated" => page.is_truncated = text == "true",
                "NextContinuationToken" => page.continuation_token = text,
                "Key" => page.key = text,
                "ETag" => page.etag = text.trim_matches('"').to_owned(),
                "Size" => page.byte_count = text.parse().ok(),
                "Contents" => {
                    let (key, tag) =
                        (std::mem::take(&mut page.key), std::mem::take(&mut page.etag));
                    page.objects.push((key, tag, page.byte_count.take()));
                    if page.objects.len() > 10_000 {
                        let reason = "it has more keys than requested".to_owned();
                        return Err(MountSourceError::Malformed {
                            location: location.clone(),
                            reason,
                        });
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(page)
    }

    /// Returns the escaped path of a key; `None` if the key is not a file.
    fn escaped_path_of_key(&self, key: &[u8]) -> Option<Result<String, String>> {
        let below = key.strip_prefix(self.prefix.as_bytes())?;
        // A key that ends in a slash represents a folder.
        if below.is_empty() || below.ends_with(b"/") {
            return None;
        }
        let names: Vec<&[u8]> = below.split(|byte| *byte == b'/').collect();
        if names.iter().any(|name| is_ignored_name(name)) {
            return None;
        }
        let path = names.iter().map(|name| escape_name(name)).collect::<Vec<_>>().join("/");
        Some(if names.len() > MAX_FOLDER_DEPTH { Err(path) } else { Ok(path) })
    }
}

impl MountSource for BucketSource {
    fn list_files(
        &self,
        visit_item: &mut dyn FnMut(SourceItem) -> Result<(), MountSourceError>,
    ) -> Result<(), MountSourceError> {
        let location = || format!("s3://{}/{}", self.name, self.prefix);
        let malformed = |reason: &str| MountSourceError::Malformed {
            location: location(),
            reason: reason.to_owned(),
        };
        let (mut token, mut files, mut pages) = (String::new(), 0, 0);
        loop {
            let page = self.list_page(&token)?;
            for (key, tag, bytes) in page.objects {
                let key: Vec<u8> = if page.has_escaped_keys {
                    percent_decode_str(&key.replace('+', " ")).collect()
                } else {
                    key.into_bytes()
                };
                files += 1;
                if files > MAX_FILES {
                    return Err(MountSourceError::TooMany(location()));
                }
                match self.escaped_path_of_key(&key) {
                    None => {}
                    Some(Err(path)) => {
                        let reason = format!("it is nested deeper than {MAX_FOLDER_DEPTH} folders");
                        visit_item(SourceItem::Skipped(path, reason))?;
                    }
                    Some(Ok(path)) => {
                        let length = bytes.map_or_else(String::new, |bytes| bytes.to_string());
                        let mark = format!("{length}-{tag}");
                        // Keys with the same tag and length have the same bytes, so the bytes are read only once.
                        let identity = Some(mark.clone()).filter(|_| !tag.is_empty());
                        let entry = SourceFile {
                            path,
                            fingerprint: mark,
                            identity,
                            byte_count: bytes,
                            modified_at: None,
                            source_handle: tag,
                        };
                        visit_item(SourceItem::File(entry))?;
                    }
                }
            }
            if !page.is_truncated {
                return Ok(());
            }
            pages += 1;
            if page.continuation_token.is_empty()
                || page.continuation_token == token
                || pages > MAX_LISTING_PAGES
            {
                return Err(malformed("it reports more entries, but returns no new ones"));
            }
            token = page.continuation_token;
        }
    }

    fn open_file(&self, entry: &SourceFile) -> Result<Box<dyn Read + Send>, MountSourceError> {
        let refused = |reason: &str| MountSourceError::Refused {
            location: format!("s3://{}/{}{}", self.name, self.prefix, entry.path),
            reason: reason.to_owned(),
        };
        let names: Option<Vec<Vec<u8>>> = entry.path.split('/').map(unescape_name).collect();
        let names = names.ok_or_else(|| refused("its name is invalid"))?;
        let prefix = self.prefix.trim_end_matches('/');
        let prefix = prefix.split('/').filter(|_| !prefix.is_empty()).map(str::as_bytes);
        let names = prefix.chain(names.iter().map(Vec::as_slice)).map(escape_url_part);
        let path = format!("/{}/{}", self.name, names.collect::<Vec<_>>().join("/"));
        let response = self.send_signed_request(&path, &[])?;
        let is_other = |tag: &str| {
            !entry.source_handle.is_empty() && tag.trim_matches('"') != entry.source_handle
        };
        if response.header("etag").is_some_and(is_other) {
            return Err(refused("it changed since it was listed"));
        }
        Ok(Box::new(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_documentation() {
        // The example of "GET Bucket (List Objects)" in Amazon's description of Signature Version 4.
        let request = S3SignedRequest {
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query: "max-keys=2&prefix=J",
            region: "us-east-1",
        };
        let mut credentials = S3Credentials {
            key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: MountSecret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            session_token: None,
        };
        let now = Timestamp::from_second(1_369_353_600).unwrap();
        let authorization = request.authorization_header(&credentials, now);
        assert!(
            authorization
                .ends_with("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{authorization}"
        );
        credentials.session_token = Some(MountSecret::new("token"));
        let authorization = request.authorization_header(&credentials, now);
        assert!(
            authorization.contains(
                "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"
            ),
            "{authorization}"
        );
    }

    #[test]
    fn credentials_are_read_from_a_profile() {
        let read = S3Credentials::from_profile;
        let text = "[other]\naws_access_key_id = X\n[default]\naws_access_key_id = A\n\
                    aws_secret_access_key = B\naws_session_token = C\n";
        let credentials = read(text).unwrap();
        assert_eq!(credentials.key_id, "A");
        assert_eq!(credentials.secret.expose_secret(), "B");
        assert_eq!(credentials.session_token, Some(MountSecret::new("C")));
        assert!(read("[default]\naws_access_key_id = A\n").is_none());
    }
}
