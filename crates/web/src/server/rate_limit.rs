//! Rate limit of clients: a token bucket for each address, in a table of bounded size. [`TokenBuckets`] does the same
//! for other keys.
//!
//! A bucket holds `burst` tokens and gains `requests_per_second` of them; a request takes one. IPv4 addresses have a
//! bucket each, IPv6 addresses one for each /64, as a single machine can use any number of addresses within it.
//!
//! Invariants
//! * At most [`RequestRate::max_tracked_clients`] buckets exist. When the table is full, new clients share one bucket,
//!   so that an attack from many addresses slows down other new clients, but neither affects known clients nor exhausts
//!   memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::ip_network::mask_address;

/// Number of leading bits of an IPv6 address that identify a client.
const CLIENT_PREFIX_BITS: u8 = 64;

/// Number of shards of the table, each with its own lock.
const BUCKET_SHARD_COUNT: usize = 16;

/// The rate limit of one client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestRate {
    /// Average number of requests per second.
    pub requests_per_second: f64,
    /// Maximum number of requests at once.
    pub burst: u32,
    /// Maximum number of clients that are tracked separately; default 100,000, of about 64 bytes each.
    pub max_tracked_clients: usize,
}

impl RequestRate {
    /// Creates a rate with the default number of clients.
    #[must_use]
    pub fn new(per_second: f64, burst: u32) -> Self {
        Self { requests_per_second: per_second, burst, max_tracked_clients: 100_000 }
    }
}

/// The buckets of all clients.
#[derive(Debug)]
pub struct RateLimiter(TokenBuckets<IpAddr>);

impl RateLimiter {
    /// Returns a limiter without clients.
    #[must_use]
    pub fn new(rate: RequestRate) -> Self {
        Self(TokenBuckets::new(rate))
    }

    /// Returns the rate limit.
    #[must_use]
    pub fn rate(&self) -> RequestRate {
        self.0.rate()
    }

    /// Takes a token of the client at `address`.
    ///
    /// # Errors
    /// The time until the next token, if there is none.
    pub fn take_token(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let client = client_prefix(address);
        self.0.take_token((client, client_hash(client)), now)
    }

    /// Returns the number of known clients.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.0.len()
    }
}

/// Returns the address that identifies a client: an IPv4 address itself, or the /64 of an IPv6 address.
#[must_use]
pub fn client_prefix(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(_) => mask_address(address, CLIENT_PREFIX_BITS).unwrap_or(address),
    }
}

/// A token bucket for each key, in a table of bounded size.
#[derive(Debug)]
pub struct TokenBuckets<K> {
    rate: RequestRate,
    shards: Vec<Mutex<TokenBucketShard<K>>>,
}

#[derive(Debug)]
struct TokenBucketShard<K> {
    buckets_by_key: HashMap<K, TokenBucket>,
    overflow_bucket: TokenBucket,
    last_sweep: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct TokenBucket {
    tokens: f64,
    updated_at: Option<Instant>,
}

impl<K: Eq + Hash> TokenBuckets<K> {
    /// Returns a table in which all buckets are full; [`RequestRate::max_tracked_clients`] is the maximum number of
    /// keys tracked separately.
    #[must_use]
    pub fn new(rate: RequestRate) -> Self {
        let full = TokenBucket { tokens: f64::from(rate.burst.max(1)), updated_at: None };
        let shard = || TokenBucketShard {
            buckets_by_key: HashMap::new(),
            overflow_bucket: full,
            last_sweep: None,
        };
        Self { rate, shards: (0..BUCKET_SHARD_COUNT).map(|_| Mutex::new(shard())).collect() }
    }

    /// Returns the rate limit of each key.
    #[must_use]
    pub fn rate(&self) -> RequestRate {
        self.rate
    }

    /// Takes a token of `key`; its number spreads keys over the table and is the same for equal keys.
    ///
    /// # Errors
    /// The time until the next token, if there is none.
    pub fn take_token(&self, (key, number): (K, u64), now: Instant) -> Result<(), Duration> {
        let Some(shard) = self.shards.get(shard_index(number)) else { return Ok(()) };
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        match self.own_bucket(&mut shard, key, now) {
            Some(bucket) => bucket.take_token(&self.rate, now),
            None => shard.overflow_bucket.take_token(&self.rate, now),
        }
    }

    /// Same as [`TokenBuckets::take_token`], but takes no token for a new key if the table is full.
    pub fn take_own_token(
        &self,
        key: K,
        number: u64,
        now: Instant,
    ) -> Option<Result<(), Duration>> {
        let shard = self.shards.get(shard_index(number))?;
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        self.own_bucket(&mut shard, key, now).map(|bucket| bucket.take_token(&self.rate, now))
    }

    /// Returns the bucket of `key`, if it exists or the table has space for it.
    fn own_bucket<'a>(
        &self,
        shard: &'a mut TokenBucketShard<K>,
        key: K,
        now: Instant,
    ) -> Option<&'a mut TokenBucket> {
        let max = (self.rate.max_tracked_clients / BUCKET_SHARD_COUNT).max(1);
        if shard.buckets_by_key.len() >= max && !shard.buckets_by_key.contains_key(&key) {
            shard.remove_full_buckets(&self.rate, now);
        }
        let full = TokenBucket { tokens: f64::from(self.rate.burst.max(1)), updated_at: Some(now) };
        let has_place = shard.buckets_by_key.len() < max;
        match shard.buckets_by_key.entry(key) {
            Entry::Occupied(occupied) => Some(occupied.into_mut()),
            Entry::Vacant(vacant) => has_place.then(|| vacant.insert(full)),
        }
    }

    /// Returns the number of known keys.
    #[must_use]
    pub fn len(&self) -> usize {
        let len = |shard: &Mutex<TokenBucketShard<K>>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).buckets_by_key.len()
        };
        self.shards.iter().map(len).sum()
    }

    /// Returns true if no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> TokenBucketShard<K> {
    /// Removes keys whose buckets are full again: a new bucket would be equal.
    fn remove_full_buckets(&mut self, rate: &RequestRate, now: Instant) {
        // A sweep scans the whole shard, so a flood of new keys must not cause one each.
        let is_recent = |at: Instant| now.saturating_duration_since(at) < Duration::from_secs(1);
        if self.last_sweep.is_some_and(is_recent) {
            return;
        }
        self.last_sweep = Some(now);
        self.buckets_by_key
            .retain(|_, bucket| bucket.token_level(rate, now) < f64::from(rate.burst.max(1)));
    }
}

impl TokenBucket {
    fn token_level(&self, rate: &RequestRate, now: Instant) -> f64 {
        let age = self.updated_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        (self.tokens + age.as_secs_f64() * rate.requests_per_second)
            .min(f64::from(rate.burst.max(1)))
    }

    fn take_token(&mut self, rate: &RequestRate, now: Instant) -> Result<(), Duration> {
        let level = self.token_level(rate, now);
        self.updated_at = Some(now);
        if level >= 1.0 {
            self.tokens = level - 1.0;
            return Ok(());
        }
        self.tokens = level;
        let wait = (1.0 - level) / rate.requests_per_second.max(f64::MIN_POSITIVE);
        Err(Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX))
    }
}

fn client_hash(client: IpAddr) -> u64 {
    match client {
        IpAddr::V4(address) => u64::from(u32::from(address)),
        // Use the upper half, because the lower one is cleared.
        IpAddr::V6(address) => (u128::from(address) >> 64) as u64,
    }
}

fn shard_index(number: u64) -> usize {
    // Multiplying by the golden ratio spreads adjacent numbers, and the upper bits are mixed best.
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % BUCKET_SHARD_COUNT
}

#[cfg(test)]
mod tests {
    use super::{BUCKET_SHARD_COUNT, RateLimiter, RequestRate};
    use std::net::IpAddr;
    use std::time::{Duration, Instant};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let limiter = RateLimiter::new(RequestRate::new(2.0, 3));
        let now = Instant::now();
        let client = address("192.0.2.1");
        for _ in 0..3 {
            assert_eq!(limiter.take_token(client, now), Ok(()));
        }
        assert_eq!(limiter.take_token(client, now), Err(Duration::from_millis(500)));
        assert_eq!(
            limiter.take_token(address("192.0.2.2"), now),
            Ok(()),
            "others are not concerned"
        );
        let later = now + Duration::from_millis(500);
        assert_eq!(limiter.take_token(client, later), Ok(()));
        assert!(limiter.take_token(client, later).is_err());
        let much_later = now + Duration::from_secs(100);
        let passed = (0..10).filter(|_| limiter.take_token(client, much_later).is_ok()).count();
        assert_eq!(passed, 3, "no more than a burst is saved up");
    }

    #[test]
    fn addresses_of_one_machine_share_a_bucket() {
        let limiter = RateLimiter::new(RequestRate::new(1.0, 1));
        let now = Instant::now();
        assert!(limiter.take_token(address("2001:db8::1"), now).is_ok());
        assert!(limiter.take_token(address("2001:db8::2"), now).is_err());
        assert!(limiter.take_token(address("2001:db8:0:1::1"), now).is_ok());
        assert!(limiter.take_token(address("192.0.2.1"), now).is_ok());
        assert!(limiter.take_token(address("::ffff:192.0.2.1"), now).is_err());
    }

    #[test]
    fn the_table_is_bounded_and_known_clients_keep_their_place() {
        let rate = RequestRate { requests_per_second: 1.0, burst: 2, max_tracked_clients: 160 };
        let limiter = RateLimiter::new(rate);
        let mut now = Instant::now();
        let known_client = address("192.0.2.1");
        assert!(limiter.take_token(known_client, now).is_ok());
        for number in 0..100_000_u32 {
            limiter.take_token(IpAddr::from((0x0a00_0000 + number).to_be_bytes()), now).ok();
            assert!(limiter.client_count() <= 160 + BUCKET_SHARD_COUNT || number % 1000 != 0);
        }
        assert!(limiter.client_count() <= 160, "{}", limiter.client_count());
        assert!(limiter.take_token(known_client, now).is_ok(), "the second of its two tokens");
        assert!(limiter.take_token(known_client, now).is_err());
        now += Duration::from_secs(60);
        for number in 0..BUCKET_SHARD_COUNT as u32 * 4 {
            assert!(
                limiter.take_token(IpAddr::from((0x0b00_0000 + number).to_be_bytes()), now).is_ok()
            );
        }
    }
}
