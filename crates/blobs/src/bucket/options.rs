//! Options of a bucket.

use std::path::PathBuf;
use std::time::Duration;

use tympan_web::tls::TlsTrust;

/// Number of threads for requests to the bucket; they wait most of the time.
pub(super) const RUNTIME_THREAD_COUNT: usize = 2;

/// Options of a bucket. The names of sizes and threads are those of Oak's `CachingDataStore`.
#[derive(Debug, Clone)]
pub struct BucketOptions {
    /// `s3://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; the prefix is optional.
    pub url: String,
    /// Client settings, named like environment variables such as `AWS_REGION`, in any case.
    pub settings: Vec<(String, String)>,
    /// The local folder for cached blobs, and for those that wait for upload. Used by one process.
    pub cache_dir: PathBuf,
    /// Maximum bytes of cached blobs; the least recently used ones are evicted first.
    pub cache_bytes: u64,
    /// Maximum bytes of blobs that wait for upload. While there are more, and if it is 0, `put` returns when the blob
    /// is in the bucket.
    pub staging_bytes: u64,
    /// Number of concurrent staged uploads.
    pub upload_threads: usize,
    /// Delay before a failed staged upload is retried.
    pub retry_interval: Duration,
    /// Timeout for reading or storing a blob, in addition to the time that its bytes take at 128 KiB/s. Blobs that are
    /// transferred in several parts get it for each part.
    pub request_timeout: Duration,
    /// Maximum time without data in a response before the request counts as failed, in addition to the time for the
    /// request's own bytes.
    pub idle_timeout: Duration,
    /// The certificates that `https` servers must be signed by; without it `https` is refused.
    pub trust: Option<TlsTrust>,
}

impl BucketOptions {
    /// Returns the default options: no staging, a read cache of 16 GiB.
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
