//! The sections `[ledger]` and `[fragments]` of `tympan.toml`; `[back_ends]` is in `backend_config`.

use http::HeaderName;
use schemars::JsonSchema;
use serde::Deserialize;
use tympan_notation::ByteSize;

use crate::fragment::{FragmentCacheOptions, FragmentInvalidationMode};
use crate::ledger::DEFAULT_MAX_URLS;

/// The ledger of the URLs that a publisher has rendered.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerSection {
    /// The maximum number of URLs that are recorded individually; default 100,000, of about 1 KiB each. Raise it if
    /// `tympan_ledger_evictions_total` rises: URLs beyond the limit are flushed by folder.
    pub max_urls: Option<usize>,
    /// The header with the keys by which caches purge a response, such as `"Surrogate-Key"` (Fastly), `"Cache-Tag"`
    /// (Cloudflare) or `"xkey"` (Varnish); default none. Set it if an agent of the kind `purge_keys` or
    /// `purge_template` flushes a cache.
    pub surrogate_key: Option<String>,
}

impl LedgerSection {
    /// Returns the header that names the keys of responses.
    ///
    /// # Errors
    /// If the name is no valid header name.
    pub fn surrogate_key(&self) -> Result<Option<HeaderName>, String> {
        let parse = |name: &str| {
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                format!("`surrogate_key = \"{name}\"` in `[ledger]` is not a header name")
            })
        };
        self.surrogate_key.as_deref().map(parse).transpose()
    }

    /// Returns the maximum number of URLs that are recorded individually.
    pub fn max_urls(&self) -> usize {
        self.max_urls.unwrap_or(DEFAULT_MAX_URLS)
    }
}

/// The rendered component output that a publisher caches, if the components request it in `cache`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FragmentsSection {
    /// True if fragments are cached; default true.
    pub enabled: Option<bool>,
    /// The maximum total size; default 64 MiB. Health suggests a larger one if it is too small.
    pub max_bytes: Option<ByteSize>,
    /// The total size that remains after an eviction; default three quarters of `max_bytes`.
    pub avg_bytes: Option<ByteSize>,
    /// The maximum size of a fragment, beyond which it is not cached; default 4 MiB.
    pub max_entry_bytes: Option<ByteSize>,
    /// The maximum number of cache keys, one per component location; default 50,000.
    pub max_keys: Option<usize>,
    /// The fragments that a change removes: `tags` those that were rendered from it, `full` all, `buckets` those in the
    /// same bucket. Default `tags`; the others are for comparison with OpenCms.
    pub invalidation: FragmentInvalidation,
    /// The buckets: lists of paths.
    pub buckets: Vec<Vec<String>>,
    /// Paths below which a change removes all fragments even if there are buckets; default `/apps`.
    pub clear_all: Option<Vec<String>>,
}

/// The fragments that a change removes.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FragmentInvalidation {
    /// Those that were rendered from it.
    #[default]
    Tags,
    /// All.
    Full,
    /// Those in the same bucket.
    Buckets,
}

impl FragmentsSection {
    /// Returns the cache options; `None` if the cache is disabled.
    pub fn fragment_options(&self) -> Option<FragmentCacheOptions> {
        let default = FragmentCacheOptions::default();
        let bytes = |size: Option<ByteSize>, default: usize| {
            size.map_or(default, |size| usize::try_from(size.as_bytes()).unwrap_or(usize::MAX))
        };
        let max_bytes = bytes(self.max_bytes, default.max_bytes);
        let clear_all = self.clear_all.clone().unwrap_or_else(|| vec!["/apps".to_owned()]);
        self.enabled.unwrap_or(true).then(|| FragmentCacheOptions {
            max_bytes,
            avg_bytes: bytes(self.avg_bytes, max_bytes / 4 * 3),
            max_entry_bytes: bytes(self.max_entry_bytes, default.max_entry_bytes),
            max_components: self.max_keys.unwrap_or(default.max_components),
            invalidation: match self.invalidation {
                FragmentInvalidation::Tags => FragmentInvalidationMode::Tags,
                FragmentInvalidation::Full => FragmentInvalidationMode::Full,
                FragmentInvalidation::Buckets => {
                    FragmentInvalidationMode::Buckets(clear_all, self.buckets.clone())
                }
            },
        })
    }
}
