//! The metrics of blob storages, in one table: name, kind, and the meaning of an increase.

use std::fmt::Write;
use std::sync::Arc;

use crate::bucket::{BlobBucket, BucketCounts};
use crate::composite_storage::{CompositeBlobCounts, CompositeBlobStorage};

/// A counter or gauge of buckets.
type BucketMetricSpec = (&'static str, &'static str, &'static str, fn(&BucketCounts) -> u64);
/// A counter of composites.
type CompositeMetricSpec = (&'static str, &'static str, fn(&CompositeBlobCounts) -> u64);

const BUCKET_METRICS: &[BucketMetricSpec] = &[
    (
        "tympan_blob_cache_hits_total",
        "counter",
        "Reads of a bucket's blobs that were served from the local disk.",
        |counts| counts.cache_hits,
    ),
    (
        "tympan_blob_cache_misses_total",
        "counter",
        "Reads of a bucket's blobs that were served by the bucket; a rise without new content means that \
         cacheSize is too small.",
        |counts| counts.cache_misses,
    ),
    ("tympan_blob_cache_bytes", "gauge", "Bytes in the read cache.", |counts| counts.cached_bytes),
    (
        "tympan_blob_uploads_waiting",
        "gauge",
        "Acknowledged blobs that are not uploaded to the bucket yet; a steady rise means that the bucket is \
         too slow or unreachable.",
        |counts| counts.pending_uploads,
    ),
    (
        "tympan_blob_uploads_waiting_bytes",
        "gauge",
        "Bytes of the blobs that are not uploaded yet.",
        |counts| counts.pending_upload_bytes,
    ),
    ("tympan_blob_uploads_total", "counter", "Blobs that were uploaded.", |counts| counts.uploaded),
    (
        "tympan_blob_upload_failures_total",
        "counter",
        "Staged uploads that failed and wait for a retry; a rise means that the bucket refuses uploads or is \
         unreachable.",
        |counts| counts.upload_failures,
    ),
];

const COMPOSITE_METRICS: &[CompositeMetricSpec] = &[
    ("tympan_blob_origin_hits_total", "Blobs found in the same delegate as last time.", |counts| {
        counts.origin_hits
    }),
    (
        "tympan_blob_origin_misses_total",
        "Blobs found in another delegate than last time; a rise means that the contents of delegates change \
         outside the composite.",
        |counts| counts.stale_origins,
    ),
    (
        "tympan_blob_delegate_failures_total",
        "Failures of delegates; a rise means that a disk is not mounted or a server is unreachable.",
        |counts| counts.delegate_failures,
    ),
];

/// Returns the counters of the blob storages of an instance with this role as Prometheus text. Each bucket has the name
/// of its own role.
pub fn format_blob_metrics(
    role: &str,
    buckets: &[(String, Arc<BlobBucket>)],
    composite: Option<&CompositeBlobStorage>,
) -> String {
    let mut text = String::new();
    let counts: Vec<(&str, BucketCounts)> =
        buckets.iter().map(|(location, bucket)| (&**location, bucket.counts())).collect();
    // Writing to a string cannot fail.
    for (name, kind, help, read) in BUCKET_METRICS.iter().filter(|_| !counts.is_empty()) {
        write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").ok();
        for (location, counts) in &counts {
            let value = read(counts);
            writeln!(text, "{name}{{role=\"{role}\",location=\"{location}\"}} {value}").ok();
        }
    }
    if let Some(composite) = composite {
        let counts = composite.counts();
        for (name, help, read) in COMPOSITE_METRICS {
            let value = read(&counts);
            write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
            )
            .ok();
        }
    }
    text
}
