//! Files of a bucket: Amazon S3 and what speaks its protocol.
//!
//! Buckets are asked in path style (`https://host/bucket/key`), which all servers know. Requests are signed with AWS
//! Signature 4 if the place has credentials.

use std::io::Read;

use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use super::http::{Answer, Host, Way, url_part};
use super::name::{escape, unescape};
use super::place::{Place, Secret};
use super::source::{Entry, Found, MAX_DEPTH, MAX_FILES, Source, SourceError, is_left_out};
use super::xml::{self, Piece};

const DEFAULT_REGION: &str = "us-east-1";
/// The most answers of one listing: a server may say that there is more, without end.
const MAX_PAGES: usize = 20_000;
/// The hash of no body.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A bucket, or what begins with a prefix in it.
#[derive(Debug)]
pub(crate) struct Bucket {
    host: Host,
    name: String,
    /// Empty, or with a slash at its end.
    prefix: String,
    region: String,
    keys: Option<(String, Secret)>,
}

impl Bucket {
    pub(crate) fn new(source: &str, place: &Place, way: &Way) -> Result<Self, String> {
        let rest = source.strip_prefix("s3://").unwrap_or_default();
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if name.is_empty() || !name.bytes().all(is_fine) {
            return Err(format!("`{source}` names no bucket; write `s3://bucket/folder`"));
        }
        let region = place.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let endpoint = match &place.endpoint {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{region}.amazonaws.com"),
        };
        let keys = match (&place.user, &place.secret) {
            (Some(user), Some(secret)) => Some((user.clone(), secret.clone())),
            _ => None,
        };
        // Signatures say who asks, not the head of a password.
        let open = Place { user: None, secret: None, ..place.clone() };
        let prefix = prefix.trim_matches('/');
        Ok(Self {
            host: Host::new(&endpoint, &open, way)?,
            name: name.to_owned(),
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            region,
            keys,
        })
    }

    /// Asks for a path; the parameters are sorted by name.
    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Answer, SourceError> {
        let pairs =
            parameters.iter().map(|(name, value)| format!("{name}={}", url_part(value.as_bytes())));
        let query = pairs.collect::<Vec<_>>().join("&");
        let mut headers = Vec::new();
        if let Some((id, secret)) = &self.keys {
            let now = Timestamp::now();
            let request =
                Signed { host: self.host.authority(), path, query: &query, region: &self.region };
            headers.push(("x-amz-date", now.strftime("%Y%m%dT%H%M%SZ").to_string()));
            headers.push(("x-amz-content-sha256", EMPTY.to_owned()));
            headers.push(("authorization", request.authorization(id, secret, now)));
        }
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        self.host.ask(&Method::GET, &target, &headers, "")
    }
}

/// What is signed.
struct Signed<'a> {
    host: &'a str,
    path: &'a str,
    query: &'a str,
    region: &'a str,
}

impl Signed<'_> {
    fn authorization(&self, id: &str, secret: &Secret, now: Timestamp) -> String {
        let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let day = now.strftime("%Y%m%d").to_string();
        let names = "host;x-amz-content-sha256;x-amz-date";
        let request = format!(
            "GET\n{}\n{}\nhost:{}\nx-amz-content-sha256:{EMPTY}\nx-amz-date:{time}\n\n{names}\n{EMPTY}",
            self.path, self.query, self.host
        );
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let hash = hex(&Sha256::digest(request.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
        let mut key = mac(format!("AWS4{}", secret.reveal()).as_bytes(), &day);
        for part in [self.region, "s3", "aws4_request", &text] {
            key = mac(&key, part);
        }
        format!(
            "AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={}",
            hex(&key)
        )
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One answer of a listing.
#[derive(Debug, Default)]
struct Page {
    is_escaped: bool,
    is_cut: bool,
    next: String,
    key: String,
    tag: String,
    bytes: Option<u64>,
    contents: Vec<(String, String, Option<u64>)>,
}

impl Bucket {
    fn page(&self, token: &str) -> Result<Page, SourceError> {
        let mut parameters = vec![
            ("encoding-type", "url"),
            ("list-type", "2"),
            ("max-keys", "1000"),
            ("prefix", &*self.prefix),
        ];
        if !token.is_empty() {
            parameters.insert(0, ("continuation-token", token));
        }
        let answer = self.ask(&format!("/{}", self.name), &parameters)?;
        let place = answer.place().to_owned();
        let mut page = Page::default();
        xml::read(answer, &place, |piece| {
            let Piece::End(name, text) = piece else { return Ok(()) };
            match &*name {
                "EncodingType" => page.is_escaped = text == "url",
                "IsTruncated" => page.is_cut = text == "true",
                "NextContinuationToken" => page.next = text,
                "Key" => page.key = text,
                "ETag" => page.tag = text.trim_matches('"').to_owned(),
                "Size" => page.bytes = text.parse().ok(),
                "Contents" => {
                    let (key, tag) = (std::mem::take(&mut page.key), std::mem::take(&mut page.tag));
                    page.contents.push((key, tag, page.bytes.take()));
                    if page.contents.len() > 10_000 {
                        let reason = "it has more keys than it was asked for".to_owned();
                        return Err(SourceError::Malformed { place: place.clone(), reason });
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(page)
    }

    /// Returns the escaped path of a key; nothing for what is no file.
    fn path_of(&self, key: &[u8]) -> Option<Result<String, String>> {
        let below = key.strip_prefix(self.prefix.as_bytes())?;
        // What ends in a slash stands for a folder.
        if below.is_empty() || below.ends_with(b"/") {
            return None;
        }
        let names: Vec<&[u8]> = below.split(|byte| *byte == b'/').collect();
        if names.iter().any(|name| is_left_out(name)) {
            return None;
        }
        let path = names.iter().map(|name| escape(name)).collect::<Vec<_>>().join("/");
        Some(if names.len() > MAX_DEPTH { Err(path) } else { Ok(path) })
    }
}

impl Source for Bucket {
    fn list(
        &self,
        found: &mut dyn FnMut(Found) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let place = || format!("s3://{}/{}", self.name, self.prefix);
        let malformed =
            |reason: &str| SourceError::Malformed { place: place(), reason: reason.to_owned() };
        let (mut token, mut files, mut pages) = (String::new(), 0, 0);
        loop {
            let page = self.page(&token)?;
            for (key, tag, bytes) in page.contents {
                let key: Vec<u8> = if page.is_escaped {
                    percent_decode_str(&key.replace('+', " ")).collect()
                } else {
                    key.into_bytes()
                };
                files += 1;
                if files > MAX_FILES {
                    return Err(SourceError::TooMany(place()));
                }
                match self.path_of(&key) {
                    None => {}
                    Some(Err(path)) => {
                        let reason = format!("it lies deeper than {MAX_DEPTH} folders");
                        found(Found::LeftOut(path, reason))?;
                    }
                    Some(Ok(path)) => {
                        let length = bytes.map_or_else(String::new, |bytes| bytes.to_string());
                        let mark = format!("{length}-{tag}");
                        // Keys of one tag and length hold the same bytes, so that none need be read twice.
                        let identity = Some(mark.clone()).filter(|_| !tag.is_empty());
                        let entry =
                            Entry { path, mark, identity, bytes, modified: None, handle: tag };
                        found(Found::File(entry))?;
                    }
                }
            }
            if !page.is_cut {
                return Ok(());
            }
            pages += 1;
            if page.next.is_empty() || page.next == token || pages > MAX_PAGES {
                return Err(malformed("it says that there is more, and does not go on"));
            }
            token = page.next;
        }
    }

    fn open(&self, entry: &Entry) -> Result<Box<dyn Read + Send>, SourceError> {
        let refused = |reason: &str| SourceError::Refused {
            place: format!("s3://{}/{}{}", self.name, self.prefix, entry.path),
            reason: reason.to_owned(),
        };
        let names: Option<Vec<Vec<u8>>> = entry.path.split('/').map(unescape).collect();
        let names = names.ok_or_else(|| refused("it cannot be named"))?;
        let prefix = self.prefix.trim_end_matches('/');
        let prefix = prefix.split('/').filter(|_| !prefix.is_empty()).map(str::as_bytes);
        let names = prefix.chain(names.iter().map(Vec::as_slice)).map(url_part);
        let path = format!("/{}/{}", self.name, names.collect::<Vec<_>>().join("/"));
        let answer = self.ask(&path, &[])?;
        let is_other =
            |tag: &str| !entry.handle.is_empty() && tag.trim_matches('"') != entry.handle;
        if answer.header("etag").is_some_and(is_other) {
            return Err(refused("it changed since it was listed"));
        }
        Ok(Box::new(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_documentation() {
        // The example of "GET Bucket (List Objects)" in Amazon's description of Signature Version 4.
        let request = Signed {
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query: "max-keys=2&prefix=J",
            region: "us-east-1",
        };
        let secret = Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        let found = request.authorization(
            "AKIAIOSFODNN7EXAMPLE",
            &secret,
            Timestamp::from_second(1_369_353_600).unwrap(),
        );
        assert!(
            found.ends_with("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{found}"
        );
    }
}
