//! Rate limits for failed logins.
//!
//! In: each attempt with its user name, the client's address and, if the client proves one, the browser with which the
//! user has logged in before. Out: whether the password may be checked now, or how long to wait.
//!
//! Failures are counted for each pair of user and address, and, with higher limits, for each user over all addresses
//! and for each address and each IPv6 site over all users, so that trying one password on many accounts is slowed down
//! as well. Beyond a limit, each further failure doubles the wait. An address from which the user has logged in is
//! subject only to the limit of its pair, and a browser with which the user has logged in only to a limit of its own,
//! so that failures of others do not lock a user out. A browser that exceeds its own limit, because its cookie was
//! stolen, counts as any client of its address.
//!
//! Invariants
//! * Time is an argument; nothing here sleeps.
//! * Memory is bounded. When a table of failures is full, the entry with the fewest and oldest failures is removed
//!   first; of known addresses, the least recently used one. Only a correct password makes an address known.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tympan_web::rate_limit::client_prefix;

/// Limit of failures of a user from one address or with one browser.
const USER_AND_CLIENT_LIMIT: LoginFailureLimit =
    LoginFailureLimit { free_failures: 10, max_backoff: Duration::from_secs(15 * 60) };
/// Limit of failures of a user over all addresses.
const USER_LIMIT: LoginFailureLimit =
    LoginFailureLimit { free_failures: 100, max_backoff: Duration::from_secs(60) };
/// Limit of failures of an address over all users.
const ADDRESS_LIMIT: LoginFailureLimit =
    LoginFailureLimit { free_failures: 20, max_backoff: Duration::from_secs(15 * 60) };
/// Limit of failures of an IPv6 site (a /48, all of which may belong to one subscriber).
const SITE_LIMIT: LoginFailureLimit =
    LoginFailureLimit { free_failures: 200, max_backoff: Duration::from_secs(60) };
/// Failures are discarded after this time without a new one.
const FAILURE_MEMORY: Duration = Duration::from_secs(3600);
/// Maximum number of entries in each table.
const MAX_TABLE_ENTRIES: usize = 10_000;
/// Longer names are counted together with others that have the same beginning.
const MAX_COUNTED_NAME_BYTES: usize = 64;

/// The number of failures without a delay, and the longest delay after further ones.
#[derive(Debug, Clone, Copy)]
struct LoginFailureLimit {
    free_failures: u32,
    max_backoff: Duration,
}

/// The client of a login attempt, and the user name it tries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoginClient<'a> {
    /// The attempted user name.
    pub(crate) user: &'a str,
    /// The client's address, if known.
    pub(crate) address: Option<IpAddr>,
    /// The browser ID, if the browser proves that this user has logged in with it.
    pub(crate) browser: Option<u128>,
}

/// The recorded login failures.
#[derive(Debug, Default)]
pub(crate) struct LoginThrottle(Mutex<LoginFailureTables>);

#[derive(Debug, Default)]
struct LoginFailureTables {
    users_and_addresses: HashMap<(String, Option<IpAddr>), LoginFailures>,
    browsers: HashMap<(String, u128), LoginFailures>,
    users: HashMap<String, LoginFailures>,
    addresses: HashMap<IpAddr, LoginFailures>,
    sites: HashMap<IpAddr, LoginFailures>,
    /// Time of a user's last login from an address.
    known_addresses: HashMap<(String, IpAddr), SystemTime>,
}

/// Trust in the browser of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BrowserTrust {
    /// The client has no valid browser proof.
    Unproven,
    /// The user has logged in with it, and it is within its limit.
    Trusted,
    /// It has exceeded its limit.
    Blocked(Duration),
}

/// The failures recorded for one key.
#[derive(Debug, Clone, Copy)]
struct LoginFailures {
    count: u32,
    last_failure: SystemTime,
}

impl LoginThrottle {
    /// Returns how long to wait before the attempt; `None` if it is allowed now.
    pub(crate) fn login_backoff(
        &self,
        client: LoginClient<'_>,
        now: SystemTime,
    ) -> Option<Duration> {
        let tables = self.0.lock();
        match tables.browser_trust(client, now) {
            BrowserTrust::Trusted => None,
            BrowserTrust::Blocked(wait) => {
                tables.address_backoff(client, now).map(|address_wait| address_wait.min(wait))
            }
            BrowserTrust::Unproven => tables.address_backoff(client, now),
        }
    }

    /// Returns true if the user has logged in with this browser or from this address before, so that the attempt is
    /// most likely the user's own.
    pub(crate) fn is_known_client(&self, client: LoginClient<'_>, now: SystemTime) -> bool {
        let tables = self.0.lock();
        tables.browser_trust(client, now) == BrowserTrust::Trusted
            || tables.is_known_address(client)
    }

    /// Records a failure.
    pub(crate) fn record_failure(&self, client: LoginClient<'_>, now: SystemTime) {
        let mut tables = self.0.lock();
        let user = shorten_user_name(client.user).to_owned();
        if let Some(browser) = client.browser
            && tables.browser_trust(client, now) == BrowserTrust::Trusted
        {
            record_login_failure(&mut tables.browsers, (user, browser), now);
            return;
        }
        let address = client.address.map(client_prefix);
        record_login_failure(&mut tables.users_and_addresses, (user.clone(), address), now);
        record_login_failure(&mut tables.users, user, now);
        if let Some(address) = address {
            record_login_failure(&mut tables.addresses, address, now);
            if let Some(site) = ipv6_site_of(address) {
                record_login_failure(&mut tables.sites, site, now);
            }
        }
    }

    /// Records a successful login: the user's failures with this browser and from this address are removed, and the
    /// address becomes known. Counts over all users stay; otherwise an attacker could reset them with an account of
    /// their own.
    pub(crate) fn record_success(&self, client: LoginClient<'_>, now: SystemTime) {
        let mut tables = self.0.lock();
        let user = shorten_user_name(client.user).to_owned();
        let address = client.address.map(client_prefix);
        if let Some(browser) = client.browser {
            tables.browsers.remove(&(user.clone(), browser));
        }
        tables.users_and_addresses.remove(&(user.clone(), address));
        let Some(address) = address else { return };
        let addresses = &mut tables.known_addresses;
        let key = (user, address);
        if addresses.len() >= MAX_TABLE_ENTRIES && !addresses.contains_key(&key) {
            let oldest =
                addresses.iter().min_by_key(|(_, used)| **used).map(|(key, _)| key.clone());
            oldest.map(|oldest| addresses.remove(&oldest));
        }
        addresses.insert(key, now);
    }
}

impl LoginFailureTables {
    fn browser_trust(&self, client: LoginClient<'_>, now: SystemTime) -> BrowserTrust {
        let Some(browser) = client.browser else { return BrowserTrust::Unproven };
        let failures = self.browsers.get(&(shorten_user_name(client.user).to_owned(), browser));
        match failures.and_then(|failures| failures.backoff(USER_AND_CLIENT_LIMIT, now)) {
            Some(wait) => BrowserTrust::Blocked(wait),
            None => BrowserTrust::Trusted,
        }
    }

    fn is_known_address(&self, client: LoginClient<'_>) -> bool {
        let user = shorten_user_name(client.user).to_owned();
        let address = client.address.map(client_prefix);
        address.is_some_and(|address| self.known_addresses.contains_key(&(user, address)))
    }

    /// Returns the wait of a client without a browser proof.
    fn address_backoff(&self, client: LoginClient<'_>, now: SystemTime) -> Option<Duration> {
        let user = shorten_user_name(client.user);
        let address = client.address.map(client_prefix);
        let wait = |failures: Option<&LoginFailures>, limit| {
            failures.and_then(|entry| entry.backoff(limit, now))
        };
        let pair =
            wait(self.users_and_addresses.get(&(user.to_owned(), address)), USER_AND_CLIENT_LIMIT);
        if self.is_known_address(client) {
            return pair;
        }
        let of_user = wait(self.users.get(user), USER_LIMIT);
        let of_address = wait(address.and_then(|key| self.addresses.get(&key)), ADDRESS_LIMIT);
        let site = address.and_then(ipv6_site_of);
        let of_site = wait(site.and_then(|key| self.sites.get(&key)), SITE_LIMIT);
        pair.max(of_user).max(of_address).max(of_site)
    }
}

impl LoginFailures {
    fn backoff(&self, limit: LoginFailureLimit, now: SystemTime) -> Option<Duration> {
        let steps = self.count.checked_sub(limit.free_failures)?;
        let seconds = 1_u64.checked_shl(steps).unwrap_or(u64::MAX);
        let until = self.last_failure + Duration::from_secs(seconds).min(limit.max_backoff);
        // A clock that was set back neither ends a wait early nor extends it beyond the limit.
        let wait = until.duration_since(now).ok().filter(|wait| !wait.is_zero())?;
        Some(wait.min(limit.max_backoff))
    }

    fn is_expired(&self, now: SystemTime) -> bool {
        now.duration_since(self.last_failure).is_ok_and(|since| since >= FAILURE_MEMORY)
    }
}

/// Returns the first 48 bits of an IPv6 address; `None` for IPv4.
fn ipv6_site_of(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(IpAddr::V6((u128::from(address) >> 80 << 80).into())),
    }
}

fn record_login_failure<K: Hash + Eq + Clone>(
    table: &mut HashMap<K, LoginFailures>,
    key: K,
    now: SystemTime,
) {
    make_room_for(table, &key, now);
    let failures = table.entry(key).or_insert(LoginFailures { count: 0, last_failure: now });
    failures.count = if failures.is_expired(now) { 1 } else { failures.count.saturating_add(1) };
    failures.last_failure = now;
}

fn make_room_for<K: Hash + Eq + Clone>(
    table: &mut HashMap<K, LoginFailures>,
    key: &K,
    now: SystemTime,
) {
    if table.len() < MAX_TABLE_ENTRIES || table.contains_key(key) {
        return;
    }
    table.retain(|_, failures| !failures.is_expired(now));
    if table.len() >= MAX_TABLE_ENTRIES {
        let least = table.iter().min_by_key(|(_, entry)| (entry.count, entry.last_failure));
        if let Some(least) = least.map(|(key, _)| key.clone()) {
            table.remove(&least);
        }
    }
}

fn shorten_user_name(user: &str) -> &str {
    let end =
        (0..=MAX_COUNTED_NAME_BYTES.min(user.len())).rev().find(|end| user.is_char_boundary(*end));
    user.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    fn client<'a>(user: &'a str, address: &str) -> LoginClient<'a> {
        LoginClient { user, address: Some(address.parse().unwrap()), browser: None }
    }

    #[test]
    fn waits_double_after_the_free_failures() {
        let throttle = LoginThrottle::default();
        let ann = client("ann", "10.0.0.1");
        for failure in 1..=13 {
            throttle.record_failure(ann, at(0));
            let expected = match failure {
                1..=9 => None,
                _ => Some(Duration::from_secs(1 << (failure - 10))),
            };
            assert_eq!(throttle.login_backoff(ann, at(0)), expected, "{failure}");
        }
        assert_eq!(throttle.login_backoff(ann, at(8)), None);
        assert_eq!(throttle.login_backoff(client("ann", "10.0.0.2"), at(0)), None);
        assert_eq!(throttle.login_backoff(client("bob", "10.0.0.1"), at(0)), None);
        for _ in 0..40 {
            throttle.record_failure(ann, at(10));
        }
        assert_eq!(throttle.login_backoff(ann, at(10)), Some(USER_AND_CLIENT_LIMIT.max_backoff));
        assert_eq!(
            throttle.login_backoff(ann, at(0)),
            Some(USER_AND_CLIENT_LIMIT.max_backoff),
            "the clock was set back"
        );
        throttle.record_failure(ann, at(10 + 3600));
        assert_eq!(throttle.login_backoff(ann, at(10 + 3600)), None);
    }

    #[test]
    fn many_addresses_share_a_limit_that_binds_no_known_address() {
        let throttle = LoginThrottle::default();
        throttle.record_success(client("ann", "10.0.1.1"), at(0));
        for failure in 0..110 {
            throttle.record_failure(client("ann", &format!("10.0.0.{}", failure % 100)), at(1));
        }
        let unknown_client = client("ann", "10.0.2.1");
        assert_eq!(throttle.login_backoff(unknown_client, at(1)), Some(USER_LIMIT.max_backoff));
        assert_eq!(throttle.login_backoff(client("ann", "10.0.1.1"), at(1)), None);
        assert_eq!(
            throttle.login_backoff(LoginClient { browser: Some(7), ..unknown_client }, at(1)),
            None
        );
        assert!(throttle.is_known_client(client("ann", "10.0.1.1"), at(1)));
        assert!(!throttle.is_known_client(unknown_client, at(1)));
    }

    #[test]
    fn one_password_for_many_users_is_limited_by_address() {
        let throttle = LoginThrottle::default();
        throttle.record_success(client("ann", "10.0.0.1"), at(0));
        for number in 0..ADDRESS_LIMIT.free_failures {
            let user = format!("user{number}");
            assert_eq!(throttle.login_backoff(client(&user, "10.0.0.1"), at(1)), None);
            throttle.record_failure(client(&user, "10.0.0.1"), at(1));
        }
        assert!(throttle.login_backoff(client("somebody", "10.0.0.1"), at(1)).is_some());
        assert_eq!(throttle.login_backoff(client("somebody", "10.0.0.2"), at(1)), None);
        // A user who has logged in from this address is not locked out, which does not unlock other accounts.
        assert_eq!(throttle.login_backoff(client("ann", "10.0.0.1"), at(1)), None);
        throttle.record_success(client("ann", "10.0.0.1"), at(1));
        assert!(throttle.login_backoff(client("somebody", "10.0.0.1"), at(1)).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let throttle = LoginThrottle::default();
        for number in 0..ADDRESS_LIMIT.free_failures {
            throttle.record_failure(
                client(&format!("user{number}"), &format!("2001:db8::{number}")),
                at(0),
            );
        }
        assert!(throttle.login_backoff(client("ann", "2001:db8::ffff"), at(0)).is_some());
        assert_eq!(throttle.login_backoff(client("ann", "2001:db8:0:1::1"), at(0)), None);
        for number in 0..SITE_LIMIT.free_failures {
            let address = format!("2001:db8:0:{number:x}::1");
            throttle.record_failure(client(&format!("user{number}"), &address), at(1));
        }
        assert!(throttle.login_backoff(client("ann", "2001:db8:0:ffff::1"), at(1)).is_some());
        assert_eq!(throttle.login_backoff(client("ann", "2001:db8:1::1"), at(1)), None);
        // An IPv4-mapped IPv6 address counts as the IPv4 address.
        for _ in 0..USER_AND_CLIENT_LIMIT.free_failures {
            throttle.record_failure(client("ann", "::ffff:10.0.0.1"), at(2));
        }
        assert!(throttle.login_backoff(client("ann", "10.0.0.1"), at(2)).is_some());
    }

    #[test]
    fn a_stranger_keeps_nobody_out() {
        let throttle = LoginThrottle::default();
        for _ in 0..11 {
            throttle.record_failure(client("ann", "10.0.0.1"), at(0));
        }
        let unknown_client = client("ann", "10.0.0.1");
        assert!(throttle.login_backoff(unknown_client, at(0)).is_some());
        assert_eq!(throttle.login_backoff(client("ann", "10.0.0.2"), at(0)), None);
        assert_eq!(
            throttle.login_backoff(LoginClient { browser: Some(7), ..unknown_client }, at(0)),
            None
        );
    }

    #[test]
    fn a_stolen_browser_cookie_gives_ten_tries_and_blocks_no_other_browser() {
        let throttle = LoginThrottle::default();
        let thief = LoginClient { browser: Some(7), ..client("ann", "10.0.0.1") };
        for _ in 0..USER_AND_CLIENT_LIMIT.free_failures {
            assert_eq!(throttle.login_backoff(thief, at(0)), None);
            throttle.record_failure(thief, at(0));
        }
        // From now on the stolen browser counts as any client of the address.
        for _ in 0..USER_AND_CLIENT_LIMIT.free_failures {
            assert_eq!(throttle.login_backoff(thief, at(0)), None);
            throttle.record_failure(thief, at(0));
        }
        assert_eq!(throttle.login_backoff(thief, at(0)), Some(Duration::from_secs(1)));
        assert_eq!(throttle.login_backoff(LoginClient { browser: Some(8), ..thief }, at(0)), None);
        let elsewhere = LoginClient { browser: Some(7), ..client("ann", "10.0.0.2") };
        assert_eq!(throttle.login_backoff(elsewhere, at(0)), None, "the owner's address is free");
    }

    #[test]
    fn memory_is_bounded_and_keeps_who_failed_most() {
        let throttle = LoginThrottle::default();
        for _ in 0..=USER_AND_CLIENT_LIMIT.free_failures {
            throttle.record_failure(client("ann", "10.0.0.1"), at(0));
        }
        throttle.record_success(client("bob", "10.0.0.3"), at(0));
        for number in 0..MAX_TABLE_ENTRIES + 300 {
            let user = format!("user{number}");
            let address = format!("2001:db8:{:x}:{:x}::1", number >> 16, number & 0xffff);
            throttle.record_failure(client(&user, &address), at(1));
        }
        let tables = throttle.0.lock();
        let lengths = [
            tables.users_and_addresses.len(),
            tables.browsers.len(),
            tables.users.len(),
            tables.addresses.len(),
            tables.sites.len(),
        ];
        assert!(lengths.iter().all(|length| *length <= MAX_TABLE_ENTRIES), "{lengths:?}");
        drop(tables);
        assert!(throttle.login_backoff(client("ann", "10.0.0.1"), at(0)).is_some());
        // Failures do not evict known addresses.
        assert!(throttle.is_known_client(client("bob", "10.0.0.3"), at(1)));
        for number in 0..=MAX_TABLE_ENTRIES {
            throttle.record_success(client(&format!("user{number}"), "10.0.0.4"), at(2));
        }
        assert_eq!(throttle.0.lock().known_addresses.len(), MAX_TABLE_ENTRIES);
    }
}
