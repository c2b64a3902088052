//! Verification of host keys against files in the format of OpenSSH's `known_hosts`.
//!
//! Pure but for [`append_known_host`]. Names may be hashed, contain wildcards or be negated; revoked keys are honored.
//! Certificate authorities are skipped, as no certificate is requested.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use tympan_notation::{matches_wildcards, wildcard_tokens};

/// The result of looking up a host and the key that it presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostKeyStatus {
    /// The host is known with this key.
    Trusted,
    /// The host is not known.
    Unknown,
    /// The host is known with another key, at this line.
    Changed(usize),
    /// The key is revoked, at this line.
    Revoked(usize),
}

/// A line about one or several hosts.
struct KnownHostLine<'a> {
    line_number: usize,
    marker: Option<&'a str>,
    key_kind: &'a str,
    key: &'a str,
}

/// Returns the name of a host as these files write it.
pub(crate) fn known_host_name(host: &str, port: u16) -> String {
    if port == 22 { host.to_owned() } else { format!("[{host}]:{port}") }
}

/// Looks up a key, given in OpenSSH's form: its type, and its bytes in base64.
pub(crate) fn look_up_host_key(text: &str, name: &str, (kind, key): (&str, &str)) -> HostKeyStatus {
    let mut verdict = HostKeyStatus::Unknown;
    for entry in matching_lines(text, name) {
        let is_same = entry.key_kind == kind && entry.key == key;
        match entry.marker {
            Some("@revoked") if is_same => return HostKeyStatus::Revoked(entry.line_number),
            Some(_) => {}
            None if is_same => verdict = HostKeyStatus::Trusted,
            None if verdict == HostKeyStatus::Unknown => {
                verdict = HostKeyStatus::Changed(entry.line_number)
            }
            None => {}
        }
    }
    verdict
}

/// Returns the types of the known keys of a host, so that one of them is requested.
pub(crate) fn known_key_kinds(text: &str, name: &str) -> Vec<String> {
    let plain = matching_lines(text, name).filter(|entry| entry.marker.is_none());
    plain.map(|entry| entry.key_kind.to_owned()).collect()
}

fn matching_lines<'a>(text: &'a str, name: &str) -> impl Iterator<Item = KnownHostLine<'a>> {
    text.lines().enumerate().filter_map(move |(number, line)| {
        let mut words = line.split_whitespace();
        let mut first = words.next().filter(|field| !field.starts_with('#'))?;
        let marker = first.starts_with('@').then_some(first);
        if marker.is_some() {
            first = words.next()?;
        }
        let (kind, key) = (words.next()?, words.next()?);
        matches_patterns(first, name).then_some(KnownHostLine {
            line_number: number + 1,
            marker,
            key_kind: kind,
            key,
        })
    })
}

fn matches_patterns(patterns: &str, name: &str) -> bool {
    let mut is_named = false;
    for pattern in patterns.split(',') {
        match pattern.strip_prefix('!') {
            Some(not) if matches_wildcards(wildcard_tokens(not), name) => return false,
            Some(_) => {}
            None if pattern.starts_with("|1|") => is_named |= is_hash_of(pattern, name),
            None => {
                let pattern = pattern.to_ascii_lowercase();
                is_named |= matches_wildcards(wildcard_tokens(&pattern), name);
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

/// Appends a host with its key.
pub(super) fn append_known_host(
    file: &Path,
    name: &str,
    (kind, key): (&str, &str),
) -> io::Result<()> {
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

    fn check(name: &str, key: &str, expected: HostKeyStatus) {
        let (kind, bytes) = key.split_once(' ').unwrap();
        assert_eq!(look_up_host_key(KNOWN, name, (kind, bytes)), expected, "{name} {key}");
    }

    #[test]
    fn keys_are_known_changed_unknown_or_revoked() {
        check("server", "ssh-ed25519 AAAA", HostKeyStatus::Trusted);
        check("10.0.0.1", "ssh-ed25519 AAAA", HostKeyStatus::Trusted);
        check("server", "ssh-ed25519 XXXX", HostKeyStatus::Changed(2));
        // A key of another type does not prove the identity of the host.
        check("server", "ssh-rsa AAAA", HostKeyStatus::Changed(2));
        check("server", "ssh-ed25519 EEEE", HostKeyStatus::Changed(2));
        check("server", "ssh-ed25519 DDDD", HostKeyStatus::Revoked(5));
        check("[server]:2222", "ssh-rsa BBBB", HostKeyStatus::Trusted);
        check("[server]:2222", "ssh-ed25519 AAAA", HostKeyStatus::Changed(3));
        check("a.example.com", "ssh-ed25519 CCCC", HostKeyStatus::Trusted);
        check("bad.example.com", "ssh-ed25519 CCCC", HostKeyStatus::Unknown);
        check("elsewhere", "ssh-ed25519 AAAA", HostKeyStatus::Unknown);
        assert_eq!(known_key_kinds(KNOWN, "[server]:2222"), ["ssh-rsa"]);
    }

    #[test]
    fn hashed_names_are_found() {
        let salt: Vec<u8> = (0..20).collect();
        let mac = Hmac::<Sha1>::new_from_slice(&salt).unwrap().chain_update(b"hidden");
        let hash = STANDARD.encode(mac.finalize().into_bytes());
        let line = format!("|1|{}|{hash} ssh-ed25519 AAAA\n", STANDARD.encode(&salt));
        assert_eq!(
            look_up_host_key(&line, "hidden", ("ssh-ed25519", "AAAA")),
            HostKeyStatus::Trusted
        );
        assert_eq!(
            look_up_host_key(&line, "other", ("ssh-ed25519", "AAAA")),
            HostKeyStatus::Unknown
        );
    }

    #[test]
    fn recorded_hosts_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/known_hosts");
        append_known_host(&file, "one", ("ssh-ed25519", "AAAA")).unwrap();
        std::fs::write(&file, "zero ssh-rsa CCCC").unwrap();
        append_known_host(&file, "[two]:23", ("ssh-ed25519", "BBBB")).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "zero ssh-rsa CCCC\n[two]:23 ssh-ed25519 BBBB\n");
        assert_eq!(
            look_up_host_key(&text, &known_host_name("two", 23), ("ssh-ed25519", "BBBB")),
            HostKeyStatus::Trusted
        );
        assert_eq!(known_host_name("two", 22), "two");
    }
}
