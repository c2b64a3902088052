//! `[blobs]` of `tympan.toml`: the storages of large blobs. The keys for composites and buckets are those of Oak's
//! configuration (OAK-7083, `FileDataStore`, `S3DataStore`); `docs/compat/oak.md` lists the differences.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tympan_notation::ByteSize;
use tympan_notation::DurationText;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::error::{Error, Result};

/// The role of a home's only storage.
const OWN_ROLE: &str = "own";

/// The storage of large blobs. By default, they are stored in the folder `blobs` of the home.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BlobsSection {
    /// One bucket for all blobs: `"s3://BUCKET/PREFIX"` or `"az://CONTAINER/PREFIX"`; `--blobs` takes precedence. Set
    /// it if machines share blobs or a local disk is too small.
    pub url: Option<String>,
    /// The roles of the delegates, as in Oak: `"staging, production"`, or a list. They must be those of `delegates`.
    pub roles: RoleNames,
    /// The folder that caches blobs of buckets; default `blob-cache` below the home.
    pub path: Option<PathBuf>,
    /// The storages. New blobs go to the first one that is not `readOnly`.
    pub delegates: Vec<BlobDelegateSection>,
    /// Folders in which other homes that only read these blobs leave their `marks`; marked blobs are not collected. A
    /// collection fails if one of the folders cannot be read.
    pub guests: Vec<PathBuf>,
}

/// One storage; the section is `[[blobs.delegates]]`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BlobDelegateSection {
    /// The role of the storage; one of `roles`.
    pub role: String,
    /// True if the storage is never written to; default false.
    #[serde(default)]
    pub read_only: OakFlag,
    /// A folder: the `blobs` of a home or, read-only, the data store of an Oak repository.
    pub path: Option<PathBuf>,
    /// A bucket (`s3://`, `az://`) or, read-only, another instance (`https://`).
    pub url: Option<String>,
    /// For a read-only storage: the folder in which this home records the blobs that it needs, so that their owner, who
    /// lists the folder in `guests`, keeps them. Without it the owner does not know of this home, unless the owner is
    /// another instance, which is notified over HTTP.
    pub marks: Option<PathBuf>,
    /// Accepted and checked, but without effect: blobs below 16 KiB are stored in the repository's packs.
    pub min_record_length: Option<u64>,
    /// For another instance: the file with its replication key.
    pub key: Option<PathBuf>,
    /// For another instance: a file with a token of its user `admin`.
    pub token: Option<PathBuf>,
    /// A PEM file of certificates, one of which must have signed that of an `https` address; default those of the
    /// system.
    pub ca: Option<PathBuf>,
    /// The maximum size of the local cache of a bucket's blobs; default 16 GiB.
    pub cache_size: Option<OakByteSize>,
    /// The percentage of `cacheSize` for blobs that are stored locally and not uploaded yet; default 0: storing waits
    /// for the upload. Raise it if storing must not wait and only one process uses the bucket: other processes see a
    /// blob only after its upload.
    pub staging_split_percentage: Option<u8>,
    /// The number of concurrent staged uploads; default 10.
    pub upload_threads: Option<usize>,
    /// The delay before a failed staged upload is retried; default 10 min.
    pub staging_retry_interval: Option<OakSeconds>,
    /// The bucket, instead of `url`.
    pub s3_bucket: Option<String>,
    /// The region of the bucket; default that of the environment, or `us-east-1`.
    pub s3_region: Option<String>,
    /// The endpoint of the bucket, such as `"http://127.0.0.1:9000"`; default that of the environment, or Amazon.
    pub s3_end_point: Option<String>,
    /// The access key; by default read from the environment or the usual files, which is safer.
    #[schemars(extend("x-secret" = true))]
    pub access_key: Option<String>,
    /// The secret key; by default read from the environment or the usual files, which is safer.
    #[schemars(extend("x-secret" = true))]
    pub secret_key: Option<String>,
}

/// A set of names, written as a comma-separated string or as a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
pub struct RoleNames(BTreeSet<String>);

/// A boolean in the notation of Oak's configuration: `true`, `"true"`, or a number other than 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema)]
pub struct OakFlag(pub(crate) bool);

/// A size with a unit, or a number of bytes as in Oak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
pub struct OakByteSize(#[schemars(with = "ByteSize")] pub(crate) u64);

/// A duration with a unit, or a number of seconds as in Oak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
pub struct OakSeconds(#[schemars(with = "DurationText")] pub(crate) Duration);

impl<'de> Deserialize<'de> for RoleNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum RoleNamesInput {
            Text(String),
            List(Vec<String>),
        }
        let roles = match RoleNamesInput::deserialize(deserializer)? {
            RoleNamesInput::Text(text) => text.split(',').map(str::to_owned).collect(),
            RoleNamesInput::List(list) => list,
        };
        let roles = roles.iter().map(|role| role.trim().to_owned());
        Ok(Self(roles.filter(|role| !role.is_empty()).collect()))
    }
}

impl<'de> Deserialize<'de> for OakFlag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum OakFlagInput {
            Truth(bool),
            Number(i64),
            Text(String),
        }
        match OakFlagInput::deserialize(deserializer)? {
            OakFlagInput::Truth(truth) => Ok(Self(truth)),
            OakFlagInput::Number(number) => Ok(Self(number != 0)),
            OakFlagInput::Text(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" => Ok(Self(true)),
                "false" | "" => Ok(Self(false)),
                // Oak reads any other string as false, and would then write to a storage that was meant to be
                // read-only.
                _ => Err(D::Error::custom(format!("`{text}` is neither true nor false"))),
            },
        }
    }
}

/// A number, or a string with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText<T> {
    Number(u64),
    Unit(T),
}

impl<'de> Deserialize<'de> for OakByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match NumberOrText::<ByteSize>::deserialize(deserializer)? {
            NumberOrText::Number(bytes) => Self(bytes),
            NumberOrText::Unit(size) => Self(size.as_bytes()),
        })
    }
}

impl<'de> Deserialize<'de> for OakSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match NumberOrText::<DurationText>::deserialize(deserializer)? {
            NumberOrText::Number(seconds) => Self(Duration::from_secs(seconds)),
            NumberOrText::Unit(span) => Self(span.0),
        })
    }
}

/// Returns true if the address of a store is the URL of a running instance rather than a directory.
pub fn is_instance_url(address: &str) -> bool {
    address.starts_with("http://") || address.starts_with("https://")
}

/// The destination of new blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewBlobDestination {
    /// A folder, which other processes may share.
    Folder(PathBuf),
    /// The URL of a bucket.
    Bucket(String),
}

impl fmt::Display for NewBlobDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Bucket(url) => f.write_str(url),
        }
    }
}

impl BlobsSection {
    /// Returns true if a storage is configured.
    pub fn is_configured(&self) -> bool {
        self.url.is_some() || !self.roles.0.is_empty() || !self.delegates.is_empty()
    }

    /// Stores everything in one bucket, if `url` is given.
    pub fn with_bucket_url(self, url: Option<String>) -> Self {
        match url {
            Some(_) => Self { url, path: self.path, guests: self.guests, ..Self::default() },
            None => self,
        }
    }

    /// Returns the destination of a home's new blobs.
    ///
    /// # Errors
    /// [`Error::Refused`] if the delegates contradict each other.
    pub fn new_blob_destination(&self, home: &Path) -> Result<NewBlobDestination> {
        let delegates = self.delegate_sections()?;
        let first = delegates.iter().find(|delegate| !delegate.read_only.0);
        let folder =
            first.and_then(|delegate| delegate.path.clone()).unwrap_or_else(|| "blobs".into());
        Ok(match first.and_then(BlobDelegateSection::bucket_url) {
            Some(url) => NewBlobDestination::Bucket(url),
            None => NewBlobDestination::Folder(home.join(folder)),
        })
    }

    /// Returns the storages, and checks that they are consistent: an instance that starts with a missing role would
    /// lack its blobs.
    pub(crate) fn delegate_sections(&self) -> Result<Vec<BlobDelegateSection>> {
        let wrong = |reason: String| Err(Error::refused(format!("tympan.toml: [blobs]: {reason}")));
        let is_composite = !self.roles.0.is_empty() || !self.delegates.is_empty();
        match (&self.url, is_composite) {
            (Some(_), true) => {
                return wrong(
                    "`url` cannot be combined with `roles` or `delegates`; set it in one of the `delegates`".to_owned(),
                );
            }
            (Some(url), false) => {
                return Ok(vec![BlobDelegateSection {
                    url: Some(url.clone()),
                    ..BlobDelegateSection::with_role(OWN_ROLE)
                }]);
            }
            (None, false) => {
                return Ok(vec![BlobDelegateSection {
                    path: Some("blobs".into()),
                    ..BlobDelegateSection::with_role(OWN_ROLE)
                }]);
            }
            (None, true) => {}
        }
        let mut roles = BTreeSet::new();
        for delegate in &self.delegates {
            if !roles.insert(delegate.role.clone()) {
                return wrong(format!("two delegates have the role `{}`", delegate.role));
            }
        }
        if let Some(role) = self.roles.0.difference(&roles).next() {
            return wrong(format!("`roles` lists `{role}`, but none of the `delegates` has it"));
        }
        if let Some(role) = roles.difference(&self.roles.0).next() {
            return wrong(format!("a delegate has the role `{role}`, which `roles` does not list"));
        }
        if self.delegates.iter().all(|delegate| delegate.read_only.0) {
            return wrong(
                "all delegates are `readOnly`; new blobs need a writable delegate".to_owned(),
            );
        }
        Ok(self.delegates.clone())
    }
}

impl BlobDelegateSection {
    fn with_role(role: &str) -> Self {
        Self {
            role: role.to_owned(),
            read_only: OakFlag(false),
            path: None,
            url: None,
            marks: None,
            min_record_length: None,
            key: None,
            token: None,
            ca: None,
            cache_size: None,
            staging_split_percentage: None,
            upload_threads: None,
            staging_retry_interval: None,
            s3_bucket: None,
            s3_region: None,
            s3_end_point: None,
            access_key: None,
            secret_key: None,
        }
    }

    pub(crate) fn bucket_url(&self) -> Option<String> {
        let url = self.url.clone().filter(|url| !is_instance_url(url));
        url.or_else(|| Some(format!("s3://{}", self.s3_bucket.as_deref()?)))
    }

    pub(crate) fn section_error(&self, reason: &str) -> Error {
        Error::refused(format!("tympan.toml: [blobs]: the delegate `{}`: {reason}", self.role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BlobsSection, String> {
        crate::config_value::parse_toml("tympan.toml", text)
    }

    fn places(text: &str) -> Result<Vec<String>, String> {
        let delegates = read(text)?.delegate_sections().map_err(|error| error.to_string())?;
        let name = |delegate: &BlobDelegateSection| {
            format!("{}{}", delegate.role, if delegate.read_only.0 { " (read)" } else { "" })
        };
        Ok(delegates.iter().map(name).collect())
    }

    const COMPOSITE: &str = "roles = \" stg,prod \"\n[[delegates]]\nrole = \"prod\"\nreadOnly = \"true\"\npath = \"/p\"\n\
                             minRecordLength = 4096\n[[delegates]]\nrole = \"stg\"\npath = \"own\"\n";

    #[test]
    fn oaks_keys_are_read_in_oaks_words() {
        assert_eq!(places(COMPOSITE).unwrap(), ["prod (read)", "stg"]);
        let listed = COMPOSITE.replace("\" stg,prod \"", "[\"prod\", \"stg\"]");
        assert_eq!(places(&listed).unwrap(), ["prod (read)", "stg"]);
        for flag in ["true", "1", "\"TRUE\""] {
            let text = COMPOSITE.replace("\"true\"", flag);
            assert_eq!(places(&text).unwrap(), ["prod (read)", "stg"], "{flag}");
        }
        for flag in ["false", "0", "\"false\""] {
            assert_eq!(places(&COMPOSITE.replace("\"true\"", flag)).unwrap(), ["prod", "stg"]);
        }
        assert!(
            places(&COMPOSITE.replace("\"true\"", "\"yes\"")).is_err(),
            "never writable by a typo"
        );
    }

    #[test]
    fn a_store_that_lacks_a_role_does_not_start() {
        let config_text = COMPOSITE.replace(" stg,prod ", "stg,prod,archive");
        assert!(places(&config_text).unwrap_err().contains("lists `archive`"));
        assert!(places(&COMPOSITE.replace(" stg,prod ", "stg")).unwrap_err().contains("`prod`"));
        assert!(places(&COMPOSITE.replace("roles =", "# roles =")).is_err());
        let twice = COMPOSITE.replace("\"stg\"", "\"prod\"");
        assert!(places(&twice).unwrap_err().contains("two delegates"));
        let read_only = COMPOSITE.replace("\"own\"", "\"own\"\nreadOnly = true");
        assert!(places(&read_only).unwrap_err().contains("new blobs need a writable delegate"));
        assert!(
            places(&COMPOSITE.replace("readOnly", "readonly"))
                .unwrap_err()
                .contains("did you mean `readOnly`")
        );
        assert!(places(&format!("url = \"s3://b\"\n{COMPOSITE}")).is_err());
    }

    #[test]
    fn one_place_needs_no_roles() {
        assert_eq!(places("").unwrap(), ["own"]);
        assert_eq!(places("url = \"s3://site/blobs\"").unwrap(), ["own"]);
        let destination_text = |text: &str| {
            let destination = read(text).unwrap().new_blob_destination(Path::new("/srv/author"));
            destination.unwrap().to_string()
        };
        assert_eq!(destination_text("url = \"s3://site/blobs\""), "s3://site/blobs");
        assert_eq!(destination_text(""), "/srv/author/blobs");
        assert_eq!(destination_text(COMPOSITE), "/srv/author/own");
        let bucket = "s3Bucket = \"site\"\ncacheSize = 68719476736\nstagingRetryInterval = \"1 s\"";
        assert_eq!(destination_text(&COMPOSITE.replace("path = \"own\"", bucket)), "s3://site");
    }
}
