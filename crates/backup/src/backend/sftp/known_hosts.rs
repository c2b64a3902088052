//! Whether a host's key is the one that it had before, by files in the format of OpenSSH's `known_hosts`.
//!
//! Pure but for [`record`]. Names may be hashed, hold wildcards or be negated; revoked keys are honored. Authorities of
//! certificates are passed over, as no certificate is asked for.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// What a file says about a host and the key that it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has this key.
    Known,
    /// Nothing is known about it.
    Unknown,
    /// It has another key, told at this line.
    Changed(usize),
    /// The key must not be used, by this line.
    Revoked(usize),
}

/// A line about one host, or several.
struct Entry<'a> {
    line: usize,
    marker: Option<&'a str>,
    kind: &'a str,
    key: &'a str,
}

/// Returns how a host is named in these files.
pub(crate) fn name_of(host: &str, port: u16) -> String {
    if port == 22 { host.to_owned() } else { format!("[{host}]:{port}") }
}

/// Looks a key up, given as OpenSSH writes it: its kind, and its bytes in base 64.
pub(crate) fn look_up(text: &str, name: &str, (kind, key): (&str, &str)) -> Verdict {
    let mut verdict = Verdict::Unknown;
    for entry in entries(text, name) {
        let is_same = entry.kind == kind && entry.key == key;
        match entry.marker {
            Some("@revoked") if is_same => return Verdict::Revoked(entry.line),
            Some(_) => {}
            None if is_same => verdict = Verdict::Known,
            None if verdict == Verdict::Unknown => verdict = Verdict::Changed(entry.line),
            None => {}
        }
    }
    verdict
}

/// Returns the kinds of keys by which a host is known, so that it is asked for one of them.
pub(crate) fn kinds(text: &str, name: &str) -> Vec<String> {
    let plain = entries(text, name).filter(|entry| entry.marker.is_none());
    plain.map(|entry| entry.kind.to_owned()).collect()
}

fn entries<'a>(text: &'a str, name: &str) -> impl Iterator<Item = Entry<'a>> {
    text.lines().enumerate().filter_map(move |(number, line)| {
        let mut words = line.split_whitespace();
        let mut first = words.next().filter(|word| !word.starts_with('#'))?;
        let marker = first.starts_with('@').then_some(first);
        if marker.is_some() {
            first = words.next()?;
        }
        let (kind, key) = (words.next()?, words.next()?);
        is_named(first, name).then_some(Entry { line: number + 1, marker, kind, key })
    })
}

fn is_named(patterns: &str, name: &str) -> bool {
    let mut is_named = false;
    for pattern in patterns.split(',') {
        match pattern.strip_prefix('!') {
            Some(not) if fits(not.as_bytes(), name.as_bytes()) => return false,
            Some(_) => {}
            None if pattern.starts_with("|1|") => is_named |= is_hash_of(pattern, name),
            None => {
                is_named |= fits(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            }
        }
    }
    is_named
}

fn is_hash_of(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('|').skip(2);
    let mut decode = || STANDARD.decode(parts.next()?).ok();
    let (Some(salt), Some(hash)) = (decode(), decode()) else { return false };
    let Ok(mac) = Hmac::<Sha1>::new_from_slice(&salt) else { return false };
    mac.chain_update(name.as_bytes()).verify_slice(&hash).is_ok()
}

/// Tells whether a name fits a pattern with `*` and `?`, in time proportional to both lengths at most.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star = None;
    while from < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(one) if *one == b'?' || Some(one) == name.get(from) => {
                (at, from) = (at + 1, from + 1)
            }
            _ => match star {
                Some((star_at, star_from)) => {
                    (at, from) = (star_at + 1, star_from + 1);
                    star = Some((star_at, star_from + 1));
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|byte| *byte == b'*')
}

/// Appends a host with its key.
pub(super) fn record(file: &Path, name: &str, (kind, key): (&str, &str)) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let before = match std::fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let gap = if before.last().is_some_and(|byte| *byte != b'\n') { "\n" } else { "" };
    let mut open = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    open.write_all(format!("{gap}{name} {kind} {key}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "# comment\n\
        server,10.0.0.1 ssh-ed25519 AAAA one\n\
        [server]:2222\tssh-rsa  BBBB\n\
        *.example.com,!bad.example.com ssh-ed25519 CCCC\n\
        @revoked * ssh-ed25519 DDDD\n\
        @cert-authority server ssh-ed25519 EEEE\n\
        |1|AAECAwQFBgcICQoLDA0ODxAREhM=|+sT7CltsBU3XGyQOQHyY/C9CuZ8= ssh-ed25519 FFFF\n\
        broken line\n";

    fn check(name: &str, key: &str, expected: Verdict) {
        let (kind, bytes) = key.split_once(' ').unwrap();
        assert_eq!(look_up(KNOWN, name, (kind, bytes)), expected, "{name} {key}");
    }

    #[test]
    fn keys_are_known_changed_unknown_or_revoked() {
        check("server", "ssh-ed25519 AAAA", Verdict::Known);
        check("10.0.0.1", "ssh-ed25519 AAAA", Verdict::Known);
        check("server", "ssh-ed25519 XXXX", Verdict::Changed(2));
        // Another kind of key is no proof of who it is.
        check("server", "ssh-rsa AAAA", Verdict::Changed(2));
        check("server", "ssh-ed25519 EEEE", Verdict::Changed(2));
        check("server", "ssh-ed25519 DDDD", Verdict::Revoked(5));
        check("[server]:2222", "ssh-rsa BBBB", Verdict::Known);
        check("[server]:2222", "ssh-ed25519 AAAA", Verdict::Changed(3));
        check("a.example.com", "ssh-ed25519 CCCC", Verdict::Known);
        check("bad.example.com", "ssh-ed25519 CCCC", Verdict::Unknown);
        check("elsewhere", "ssh-ed25519 AAAA", Verdict::Unknown);
        assert_eq!(kinds(KNOWN, "[server]:2222"), ["ssh-rsa"]);
    }

    #[test]
    fn hashed_names_are_found() {
        let salt: Vec<u8> = (0..20).collect();
        let mac = Hmac::<Sha1>::new_from_slice(&salt).unwrap().chain_update(b"hidden");
        let hash = STANDARD.encode(mac.finalize().into_bytes());
        let line = format!("|1|{}|{hash} ssh-ed25519 AAAA\n", STANDARD.encode(&salt));
        assert_eq!(look_up(&line, "hidden", ("ssh-ed25519", "AAAA")), Verdict::Known);
        assert_eq!(look_up(&line, "other", ("ssh-ed25519", "AAAA")), Verdict::Unknown);
    }

    #[test]
    fn recorded_hosts_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/known_hosts");
        record(&file, "one", ("ssh-ed25519", "AAAA")).unwrap();
        std::fs::write(&file, "zero ssh-rsa CCCC").unwrap();
        record(&file, "[two]:23", ("ssh-ed25519", "BBBB")).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "zero ssh-rsa CCCC\n[two]:23 ssh-ed25519 BBBB\n");
        assert_eq!(look_up(&text, &name_of("two", 23), ("ssh-ed25519", "BBBB")), Verdict::Known);
        assert_eq!(name_of("two", 22), "two");
    }
}
