//! A vault in an S3 bucket, with restic's object names.
//!
//! In: a bucket client. A bucket has no folders, and shows an object only when it is complete.
//!
//! Not here: how a bucket is reached and which credentials are used (`blobs`, and the binary).

use std::io::{self, ErrorKind};

use bytes::Bytes;
use tympan_blobs::{Error, ObjectBucket};

use super::address::redact_address;
use super::vault_backend::VaultBackend;
use super::vault_file::{VaultFileKind, kind_folder_name, vault_file_path};
use crate::object_id::VaultObjectId;

/// The address of a bucket in restic's notation: `s3:HOST/BUCKET/PREFIX`, `s3:https://HOST/BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Address {
    /// The server: `https://HOST`, or `http://HOST:PORT`.
    pub endpoint: String,
    /// The name of the bucket.
    pub bucket: String,
    /// The prefix of the vault's object names; may be empty.
    pub prefix: String,
    /// The region, if the host name contains it.
    pub region: Option<String>,
}

impl S3Address {
    /// Parses an address; `None` if it does not begin with `s3:`.
    ///
    /// # Errors
    /// A message that describes the mistake and the correct form.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let rest = text.strip_prefix("s3:")?;
        let (scheme, rest) = match rest.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
            _ => ("https", rest.strip_prefix("//").unwrap_or(rest)),
        };
        let mut parts = rest.splitn(3, '/');
        let mut next = || parts.next().unwrap_or_default();
        let (host, bucket, prefix) = (next(), next(), next());
        if host.is_empty() || bucket.is_empty() || host.contains(['@', ' ']) {
            let text = redact_address(text);
            let text = format!(
                "`{text}` names no bucket; write `s3:HOST/BUCKET/PREFIX`, or `s3:http://HOST:PORT/BUCKET/PREFIX`"
            );
            return Some(Err(text));
        }
        Some(Ok(Self {
            endpoint: format!("{scheme}://{host}"),
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            region: parse_aws_region(host),
        }))
    }
}

/// Returns the region from an Amazon host name: `s3.REGION.amazonaws.com`.
fn parse_aws_region(host: &str) -> Option<String> {
    let name = host.strip_suffix(".amazonaws.com")?;
    let region = name.strip_prefix("s3.").or_else(|| name.strip_prefix("s3-"))?;
    (!region.is_empty()).then(|| region.trim_start_matches("dualstack.").to_owned())
}

/// A vault in a bucket.
#[derive(Debug)]
pub struct S3Backend {
    location: String,
    objects: ObjectBucket,
    connections: usize,
}

impl S3Backend {
    /// Creates a backend for the bucket, without contacting it. `location` is the location as shown to users.
    #[must_use]
    pub const fn new(location: String, objects: ObjectBucket, connections: usize) -> Self {
        Self { location, objects, connections }
    }
}

fn object_store_error(error: Error) -> io::Error {
    // The client has already retried transient errors until its timeout.
    let kind = if error.is_transient() { ErrorKind::ResourceBusy } else { ErrorKind::Other };
    io::Error::new(kind, error)
}

impl VaultBackend for S3Backend {
    fn location(&self) -> String {
        self.location.clone()
    }

    fn connections(&self) -> usize {
        self.connections
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn create(&self) -> io::Result<()> {
        if self.objects.list("").map_err(object_store_error)?.is_empty() {
            Ok(())
        } else {
            Err(ErrorKind::AlreadyExists.into())
        }
    }

    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>> {
        if kind == VaultFileKind::Config {
            let length = self.objects.length("config").map_err(object_store_error)?;
            return Ok(vec![(VaultObjectId::default(), length.ok_or(ErrorKind::NotFound)?)]);
        }
        let response = self.objects.list(kind_folder_name(kind)).map_err(object_store_error)?;
        let named =
            response.into_iter().filter_map(|(name, length)| Some((name.parse().ok()?, length)));
        Ok(named.collect())
    }

    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        Ok(self.objects.length(&vault_file_path(kind, id)).map_err(object_store_error)?.is_some())
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        let response = self.objects.read(&vault_file_path(kind, id)).map_err(object_store_error)?;
        Ok(response.ok_or(ErrorKind::NotFound)?.into())
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let range = start..start.saturating_add(length as u64);
        let response = self
            .objects
            .read_range(&vault_file_path(kind, id), range)
            .map_err(object_store_error)?;
        let bytes = response.ok_or(ErrorKind::NotFound)?;
        if bytes.len() == length { Ok(bytes.into()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        self.objects
            .put(&vault_file_path(kind, id), Bytes::copy_from_slice(bytes))
            .map_err(object_store_error)
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        self.objects.remove(&vault_file_path(kind, id)).map_err(object_store_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_as_restic_does() {
        let check = |text: &str, expected: &str| {
            let description = match S3Address::parse(text) {
                None => "none".to_owned(),
                Some(Err(reason)) => reason,
                Some(Ok(S3Address { endpoint, bucket, prefix, region })) => {
                    format!("{endpoint} {bucket} [{prefix}] {}", region.unwrap_or_default())
                }
            };
            assert!(description.contains(expected), "{text}: {description}");
        };
        check("s3:s3.amazonaws.com/bucket", "https://s3.amazonaws.com bucket [] ");
        check(
            "s3:s3.eu-west-1.amazonaws.com/b/x/y/",
            "https://s3.eu-west-1.amazonaws.com b [x/y] eu-west-1",
        );
        check("s3:http://localhost:9000/b/p", "http://localhost:9000 b [p]");
        check("s3://minio.example/b", "https://minio.example b []");
        check("s3:https://h/b", "https://h b []");
        check("s3:bucket", "names no bucket");
        check("s3:http://key:secret@h/b", "`s3:http://key:***@h/b` names no bucket");
        check("s3:http://h/", "names no bucket");
        check("/s3:x", "none");
    }
}
