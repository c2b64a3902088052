//! Slowing down who guesses passwords.
//!
//! In: each attempt with user name, address and time. Out: whether it may be tried now, or how long to wait.
//!
//! Failures are counted for each pair of user and address, and, with a higher limit, for each user from everywhere. After
//! the limit each further failure doubles the wait. An address from which the user has logged in is not bound by the
//! second limit, so that strangers cannot keep a user out.
//!
//! Invariants
//! * Time is an argument; nothing here sleeps.
//! * Memory is bounded. When the table is full, what has failed least and longest ago is forgotten first.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

/// How many failures from one address are free for one user.
const PAIR_FREE: u32 = 5;
/// The longest wait of a pair.
const PAIR_MAX: Duration = Duration::from_secs(15 * 60);
/// How many failures from everywhere are free for one user.
const USER_FREE: u32 = 100;
/// The longest wait of a user from an address that is not known.
const USER_MAX: Duration = Duration::from_secs(60);
/// Failures are forgotten when none followed for this long.
const MEMORY: Duration = Duration::from_secs(3600);
/// How many pairs, and how many users, are remembered.
const MAX_ENTRIES: usize = 10_000;
/// Longer names are counted together with others that begin alike.
const MAX_NAME_BYTES: usize = 64;

/// The failed logins that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    pairs: HashMap<(String, Option<IpAddr>), Attempts>,
    users: HashMap<String, Attempts>,
}

#[derive(Debug, Clone, Copy)]
struct Attempts {
    failures: u32,
    last: SystemTime,
    /// Whether the user has logged in from there.
    is_known: bool,
}

impl Throttle {
    /// Tells how long to wait before trying; nothing if the attempt may be made now.
    pub(crate) fn wait(
        &self,
        user: &str,
        address: Option<IpAddr>,
        now: SystemTime,
    ) -> Option<Duration> {
        let tables = self.0.lock();
        let user = shortened(user);
        let pair = tables.pairs.get(&(user.to_owned(), address));
        let pair_wait = pair.and_then(|one| one.wait(PAIR_FREE, PAIR_MAX, now));
        let is_known = pair.is_some_and(|one| one.is_known);
        let user_wait = match tables.users.get(user) {
            Some(one) if !is_known => one.wait(USER_FREE, USER_MAX, now),
            _ => None,
        };
        pair_wait.max(user_wait)
    }

    /// Notes a failure.
    pub(crate) fn failed(&self, user: &str, address: Option<IpAddr>, now: SystemTime) {
        let mut tables = self.0.lock();
        let user = shortened(user).to_owned();
        note(&mut tables.pairs, (user.clone(), address), now);
        note(&mut tables.users, user, now);
    }

    /// Notes a login: failures from this address are forgotten, and the address is known from now on.
    pub(crate) fn succeeded(&self, user: &str, address: Option<IpAddr>, now: SystemTime) {
        let mut tables = self.0.lock();
        let key = (shortened(user).to_owned(), address);
        make_room(&mut tables.pairs, &key, now);
        tables.pairs.insert(key, Attempts { failures: 0, last: now, is_known: true });
    }
}

impl Attempts {
    fn wait(&self, free: u32, max: Duration, now: SystemTime) -> Option<Duration> {
        let steps = self.failures.checked_sub(free)?;
        let seconds = 1_u64.checked_shl(steps).unwrap_or(u64::MAX);
        let until = self.last + Duration::from_secs(seconds).min(max);
        until.duration_since(now).ok().filter(|wait| !wait.is_zero())
    }

    fn is_stale(&self, now: SystemTime) -> bool {
        !self.is_known && now.duration_since(self.last).is_ok_and(|since| since >= MEMORY)
    }
}

fn note<K: Hash + Eq + Clone>(table: &mut HashMap<K, Attempts>, key: K, now: SystemTime) {
    make_room(table, &key, now);
    let attempts = table.entry(key).or_insert(Attempts { failures: 0, last: now, is_known: false });
    let is_forgotten = now.duration_since(attempts.last).is_ok_and(|since| since >= MEMORY);
    attempts.failures = if is_forgotten { 1 } else { attempts.failures.saturating_add(1) };
    attempts.last = now;
}

fn make_room<K: Hash + Eq + Clone>(table: &mut HashMap<K, Attempts>, key: &K, now: SystemTime) {
    if table.len() < MAX_ENTRIES || table.contains_key(key) {
        return;
    }
    table.retain(|_, attempts| !attempts.is_stale(now));
    if table.len() >= MAX_ENTRIES {
        let least = table.iter().min_by_key(|(_, one)| (one.failures, one.last));
        if let Some(least) = least.map(|(key, _)| key.clone()) {
            table.remove(&least);
        }
    }
}

fn shortened(user: &str) -> &str {
    let end = (0..=MAX_NAME_BYTES.min(user.len())).rev().find(|end| user.is_char_boundary(*end));
    user.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn waits_double_after_the_free_failures() {
        let throttle = Throttle::default();
        for failure in 1..=8 {
            throttle.failed("ann", address(1), at(0));
            let expected = match failure {
                1..=4 => None,
                _ => Some(Duration::from_secs(1 << (failure - 5))),
            };
            assert_eq!(throttle.wait("ann", address(1), at(0)), expected, "{failure}");
        }
        assert_eq!(throttle.wait("ann", address(1), at(8)), None);
        assert_eq!(throttle.wait("ann", address(2), at(0)), None);
        assert_eq!(throttle.wait("bob", address(1), at(0)), None);
        for _ in 0..40 {
            throttle.failed("ann", address(1), at(10));
        }
        assert_eq!(throttle.wait("ann", address(1), at(10)), Some(PAIR_MAX));
        throttle.failed("ann", address(1), at(10 + 3600));
        assert_eq!(throttle.wait("ann", address(1), at(10 + 3600)), None);
    }

    #[test]
    fn many_addresses_share_a_limit_that_binds_no_known_address() {
        let throttle = Throttle::default();
        throttle.succeeded("ann", address(200), at(0));
        for failure in 0..110 {
            throttle.failed("ann", address(failure % 100), at(1));
        }
        assert_eq!(throttle.wait("ann", address(201), at(1)), Some(USER_MAX));
        assert_eq!(throttle.wait("ann", address(200), at(1)), None);
    }

    #[test]
    fn memory_is_bounded_and_keeps_who_failed_most() {
        let throttle = Throttle::default();
        for _ in 0..6 {
            throttle.failed("ann", address(1), at(0));
        }
        for user in 0..2 * MAX_ENTRIES {
            throttle.failed(&format!("user{user}"), address(1), at(1));
        }
        let tables = throttle.0.lock();
        assert!(tables.pairs.len() <= MAX_ENTRIES && tables.users.len() <= MAX_ENTRIES);
        drop(tables);
        assert!(throttle.wait("ann", address(1), at(0)).is_some());
    }
}
