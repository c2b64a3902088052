//! What a bucket is opened with.

use std::path::PathBuf;
use std::time::Duration;

use tympan_web::tls::TlsTrust;

/// What a bucket is opened with. The names of sizes and threads are those of Oak's `CachingDataStore`.
#[derive(Debug, Clone)]
pub struct BucketOptions {
    /// `s3://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; the prefix may be missing.
    pub url: String,
    /// Settings of the client by their names in the environment, such as `AWS_REGION`, in any case.
    pub settings: Vec<(String, String)>,
    /// The local folder for what was read, and for what waits to be uploaded. For one process.
    pub cache_dir: PathBuf,
    /// Bytes of blobs that were read lately and are kept; the least lately used go first.
    pub cache_bytes: u64,
    /// Bytes of blobs that may wait to be uploaded. While there are more, and if it is 0, `put` returns when the blob is
    /// in the bucket.
    pub staging_bytes: u64,
    /// Staged uploads at a time.
    pub upload_threads: usize,
    /// After how long a staged upload that failed is tried again.
    pub retry_interval: Duration,
    /// For how long the bucket is asked before reading or storing a blob fails, beside the time that its bytes take at
    /// 128 KiB/s. Blobs that are sent or read in several parts get it for each.
    pub request_timeout: Duration,
    /// How long an answer may be silent before the request counts as failed, beside the time for the request's own bytes.
    pub idle_timeout: Duration,
    /// Whom `https` servers must be signed by; without it `https` is refused.
    pub trust: Option<TlsTrust>,
}

impl BucketOptions {
    /// Returns the usual options: no staging, a read cache of 16 GiB.
    pub fn new(url: impl Into<String>, cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            url: url.into(),
            settings: Vec::new(),
            cache_dir: cache_dir.into(),
            cache_bytes: 16 << 30,
            staging_bytes: 0,
            upload_threads: 10,
            retry_interval: Duration::from_secs(600),
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(15),
            trust: None,
        }
    }
}
