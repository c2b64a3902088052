//! A limit on the variants of one page that clients may make renders produce (`/x-variantLimit`): URLs that differ only
//! by selectors, suffix or query, each of which misses the cache.
//!
//! Input: requests about to be sent to a render. Output: permission, or the time to wait.
//!
//! Invariants
//! * The page itself, without selectors, suffix and query, does not count as a variant.
//! * A recently counted variant is not counted again, so that repeated requests are not limited.
//! * Memory is bounded, whatever URLs and addresses come. If a table is full, all new pages of a client share a bucket,
//!   so that a client with made-up pages limits itself and no other client.
//!
//! Not here: the limit on all requests of a client (`front_settings`).

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tympan_web::rate_limit::{RequestRate, TokenBuckets, client_prefix};
use tympan_web::sling_url::SlingUrlReading;

use crate::cache::suffix_folder::is_page_extension;
use crate::config::VariantLimit;
use crate::request::view::RequestView;

/// The maximum number of counted variants remembered, in each of two halves.
const MAX_REMEMBERED_VARIANTS: usize = 65_536;

/// The factor for new pages of a client when a table is full: all of them together are allowed this many times the
/// limit of one page.
const OVERFLOW_PAGE_FACTOR: u32 = 10;

/// Counts the variants of a farm's pages.
#[derive(Debug)]
pub(crate) struct VariantLimiter {
    limit: VariantLimit,
    client_buckets: Option<TokenBuckets<u64>>,
    total_buckets: Option<TokenBuckets<u64>>,
    /// Buckets by client only.
    overflow_buckets: TokenBuckets<u64>,
    counted_variants: Mutex<CountedVariants>,
    hasher: RandomState,
}

/// The recently counted variants: the current half, and the previous one.
#[derive(Debug, Default)]
struct CountedVariants {
    recent_keys: HashSet<u64>,
    previous_keys: HashSet<u64>,
    last_rotation: Option<Instant>,
}

impl CountedVariants {
    /// Returns true if `key` was counted within about `window`.
    fn contains(&mut self, key: u64, window: Duration, now: Instant) -> bool {
        let age = self.last_rotation.map(|turned| now.saturating_duration_since(turned));
        if age.is_none_or(|age| age >= window) || self.recent_keys.len() >= MAX_REMEMBERED_VARIANTS
        {
            let is_long_ago = age.is_some_and(|age| age >= 2 * window);
            self.previous_keys =
                if is_long_ago { HashSet::new() } else { std::mem::take(&mut self.recent_keys) };
            self.recent_keys.clear();
            self.last_rotation = Some(now);
        }
        self.recent_keys.contains(&key) || self.previous_keys.contains(&key)
    }
}

/// A page's name, and the text that distinguishes the variant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestedVariant<'a> {
    page: &'a str,
    extra: (&'a str, Option<&'a str>),
}

impl<'a> RequestedVariant<'a> {
    /// Returns the variant that a request asks for; `None` for the page itself.
    pub(crate) fn from_request(view: &'a RequestView) -> Option<Self> {
        let path = view.path.as_str();
        let parts = read_page_path(path);
        let query = view.query.as_deref();
        // Made-up extensions bypass the cache as well.
        let is_known = parts
            .extension
            .is_none_or(|extension| mime_guess::from_ext(extension).first_raw().is_some());
        // Renders cut path parameters, so they do not make another page.
        let (page, parameters) =
            parts.path.split_at(parts.path.find(';').unwrap_or(parts.path.len()));
        let is_plain = parts.selectors.is_none()
            && parts.suffix.is_none()
            && parameters.is_empty()
            && query.is_none()
            && is_known;
        let rest = path.get(page.len()..).unwrap_or_default();
        (!is_plain).then_some(Self { page, extra: (rest, query) })
    }
}

/// Returns the reading of a path whose extension is that of a page: an earlier segment with a dot is a folder, such as
/// `etc.clientlibs`, and its files are pages of their own. A segment that ends with a dot is no folder: renders show the
/// page or file before the dot, whatever follows (`/dam/a.jpg./x.html`).
fn read_page_path(path: &str) -> SlingUrlReading<'_> {
    let is_page = |reading: &SlingUrlReading<'_>| {
        reading.suffix.is_none() || reading.extension.is_none_or(is_page_extension)
    };
    SlingUrlReading::all_readings(path)
        .find(is_page)
        .unwrap_or_else(|| SlingUrlReading::by_first_dot(path))
}

impl VariantLimiter {
    pub(crate) fn new(limit: VariantLimit) -> Self {
        let buckets = |count: u32| {
            let rate = RequestRate::new(f64::from(count) / limit.window.as_secs_f64(), count);
            TokenBuckets::new(rate)
        };
        let of_page = limit.max_per_client.or(limit.max_total).unwrap_or(1);
        Self {
            limit,
            client_buckets: limit.max_per_client.map(buckets),
            total_buckets: limit.max_total.map(buckets),
            overflow_buckets: buckets(of_page.saturating_mul(OVERFLOW_PAGE_FACTOR)),
            counted_variants: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the effective limit.
    pub(crate) fn limit(&self) -> VariantLimit {
        self.limit
    }

    /// Counts a request of `client` for a variant.
    ///
    /// # Errors
    /// Returns the time to wait if it is over the limit.
    pub(crate) fn charge_variant(
        &self,
        client: IpAddr,
        view: &RequestView,
        now: Instant,
    ) -> Result<(), Duration> {
        let Some(variant) = RequestedVariant::from_request(view) else { return Ok(()) };
        let client = self.hasher.hash_one(client_prefix(client));
        let page = self.hasher.hash_one(variant.page);
        let of_client = self.hasher.hash_one((client, page));
        // Separate prefixes, because a client's variant is counted separately from that of all clients.
        let charges = [(&self.client_buckets, of_client, 1_u8), (&self.total_buckets, page, 2)];
        // A variant that fits no table counts once for its client, not twice.
        let mut has_taken = false;
        for (buckets, key, kind) in charges {
            let Some(buckets) = buckets else { continue };
            let counted = self.hasher.hash_one((kind, key, variant.extra));
            let mut variants = self.counted_variants.lock();
            if variants.contains(counted, self.limit.window, now) {
                continue;
            }
            let token = buckets.take_own_token(key, key, now);
            match token {
                Some(token) => token?,
                None if has_taken => {}
                None => self.overflow_buckets.take_token((client, client), now)?,
            }
            has_taken |= token.is_none();
            variants.recent_keys.insert(counted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_REMEMBERED_VARIANTS, RequestedVariant, VariantLimiter};
    use crate::config::{OverLimitAction, VariantLimit};
    use crate::request::view::RequestView;
    use http::{HeaderMap, Method};
    use std::net::IpAddr;
    use std::time::{Duration, Instant};

    fn view(url: &str) -> RequestView {
        RequestView::from_url(Method::GET, url, HeaderMap::new()).unwrap()
    }

    fn limiter(per_client: u32, total: u32) -> VariantLimiter {
        VariantLimiter::new(VariantLimit {
            max_per_client: Some(per_client),
            max_total: Some(total),
            window: Duration::from_secs(60),
            over_limit_action: OverLimitAction::Refuse,
            counts_queries: true,
        })
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn a_page_is_no_variant_of_itself() {
        let check = |url: &str, expected: Option<&str>| {
            let view = view(url);
            let page = RequestedVariant::from_request(&view).map(|variant| variant.page.to_owned());
            assert_eq!(page.as_deref(), expected, "{url}");
        };
        for plain in ["/", "/a/b", "/a/b.html", "/a/b.json", "/a/"] {
            check(plain, None);
        }
        check("/a/b?x", Some("/a/b"));
        check("/a/b.html?x=1", Some("/a/b"));
        check("/a/b.print.html", Some("/a/b"));
        check("/a/b.html/c/d.html", Some("/a/b"));
        check("/a/b.x7f3", Some("/a/b"));
        check("/a/b;x=1.html", Some("/a/b"));
        check("/a/b.html;x=1", Some("/a/b"));
        // Folders whose names contain dots are not pages.
        for plain in ["/etc.clientlibs/a/b.js", "/dam/v1.2/a.jpg", "/example.com/en.html"] {
            check(plain, None);
        }
        check("/etc.clientlibs/a/b.min.js", Some("/etc.clientlibs/a/b"));
        check("/dam/a.jpg/renditions/b.png", Some("/dam/a"));
        check("/a/b.v1.html/c.d/e", Some("/a/b"));
        // A segment that ends with a dot shows what is before it.
        check("/a/b./c.html", Some("/a/b"));
        check("/dam/a.jpg./x.html", Some("/dam/a"));
        check("/dam/a.jpg./x.html/y.html", Some("/dam/a"));
        check("/dam/v1.2/a.jpg./x.html", Some("/dam/v1.2/a"));
    }

    #[test]
    fn variants_are_counted_by_client_and_page_and_once() {
        let (limiter, now) = (limiter(2, 3), Instant::now());
        let ask =
            |client, url: &str| limiter.charge_variant(address(client), &view(url), now).is_ok();
        assert!(ask(1, "/a.html?1") && ask(1, "/a.html?2"));
        assert!(!ask(1, "/a.html?3"));
        assert!(ask(1, "/a.html?1"), "it was counted already");
        assert!(ask(1, "/a.html") && ask(1, "/b.html?1"), "others are not concerned");
        assert!(ask(2, "/a.1.html"), "another client");
        assert!(!ask(3, "/a.2.html"), "all clients together");
        assert!(ask(3, "/a.1.html"), "one more client for a variant is no further variant");
        assert_eq!(
            limiter.charge_variant(address(1), &view("/a.html?3"), now),
            Err(Duration::from_secs(30))
        );
        let later = now + Duration::from_secs(31);
        assert!(limiter.charge_variant(address(1), &view("/a.html?3"), later).is_ok());
    }

    #[test]
    fn who_makes_pages_up_holds_up_nobody_else() {
        let (limiter, now) = (limiter(3, 1_000), Instant::now());
        let ask =
            |client, url: &str| limiter.charge_variant(address(client), &view(url), now).is_ok();
        assert!(ask(2, "/known.html?1"));
        let passed = (0..120_000).filter(|page| ask(1, &format!("/{page}.html?1"))).count();
        assert!((95_000..100_100).contains(&passed), "{passed}");
        assert!(!ask(1, "/new.html?1"), "its own bucket is empty");
        assert!(ask(1, "/0.html?2"), "a page that has a place has its own");
        assert!(ask(2, "/known.html?2"));
        // Other clients may still request new pages, although the table is full.
        for client in 3..10 {
            let is_served = |page: &u32| ask(client, &format!("/new{page}.html?{client}"));
            let served_count = (0..100).filter(is_served).count();
            assert_eq!(served_count, 30, "ten times what it may ask of one page");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let (limiter, mut now) = (limiter(1_000_000, 1_000_000), Instant::now());
        for number in 0..3 * MAX_REMEMBERED_VARIANTS {
            limiter.charge_variant(address(1), &view(&format!("/a.html?{number}")), now).unwrap();
        }
        let counted = limiter.counted_variants.lock();
        assert!(
            counted.recent_keys.len() + counted.previous_keys.len()
                <= 2 * MAX_REMEMBERED_VARIANTS + 2
        );
        drop(counted);
        now += Duration::from_secs(200);
        limiter.charge_variant(address(1), &view("/a.html?x"), now).unwrap();
        let counted = limiter.counted_variants.lock();
        assert_eq!(
            counted.recent_keys.len() + counted.previous_keys.len(),
            2,
            "what was counted long ago is forgotten"
        );
    }
}
