//! HTTP digest authentication (RFC 7616; RFC 2069 if a server specifies no `qop`), compatible with Apache's HttpClient.
//!
//! In: the `WWW-Authenticate` headers of a response. Out: the value of an `Authorization` header.
//!
//! Each sample is challenged again and responds with a nonce count of one, as JMeter's samples do.

use std::fmt::Write as _;

use md5::{Digest as _, Md5};
use sha2::{Sha256, Sha512_256};

/// An authentication challenge of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AuthChallenge {
    Basic { realm: String },
    Digest(Box<DigestChallenge>),
}

/// A digest challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DigestChallenge {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    /// The algorithm as the server wrote it.
    algorithm: String,
    hash: DigestHash,
    /// True if the secret is hashed with the two nonces.
    is_session: bool,
    qop: QualityOfProtection,
    /// True if the credentials were valid and only the server's nonce had expired.
    pub(super) is_stale: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DigestHash {
    Md5,
    Sha256,
    Sha512Of256,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QualityOfProtection {
    /// The server specifies none.
    Unspecified,
    Auth,
    /// The body is part of the digest.
    AuthInt,
    AuthOrAuthInt,
}

/// The parts of a request that a digest covers.
#[derive(Debug, Clone, Copy)]
pub(super) struct DigestedRequest<'a> {
    pub(super) method: &'a str,
    /// The request target.
    pub(super) target: &'a str,
    pub(super) body: &'a [u8],
}

impl AuthChallenge {
    /// Parses all supported challenges of a response.
    pub(super) fn parse_all<'a>(headers: impl Iterator<Item = &'a str>) -> Vec<Self> {
        headers
            .flat_map(split_challenges)
            .filter_map(|(scheme, words)| Self::from_parameters(&scheme, &words))
            .collect()
    }

    fn from_parameters(scheme: &str, words: &[(String, String)]) -> Option<Self> {
        let find = |name: &str| {
            words
                .iter()
                .find(|(parameter_name, _)| parameter_name.eq_ignore_ascii_case(name))
                .map(|(_, value)| value)
        };
        let realm = find("realm").cloned().unwrap_or_default();
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic { realm });
        }
        if !scheme.eq_ignore_ascii_case("digest") {
            return None;
        }
        let algorithm = find("algorithm").map_or("MD5", String::as_str);
        let upper = algorithm.to_ascii_uppercase();
        let bare = upper.strip_suffix("-SESS");
        let hash = match bare.unwrap_or(&upper) {
            "MD5" => DigestHash::Md5,
            "SHA-256" => DigestHash::Sha256,
            "SHA-512-256" => DigestHash::Sha512Of256,
            _ => return None,
        };
        let offers = |option: &str, list: &str| {
            list.split(',').any(|item| item.trim().eq_ignore_ascii_case(option))
        };
        let quality = match find("qop") {
            None => QualityOfProtection::Unspecified,
            Some(list) => match (offers("auth", list), offers("auth-int", list)) {
                (true, true) => QualityOfProtection::AuthOrAuthInt,
                (true, false) => QualityOfProtection::Auth,
                (false, true) => QualityOfProtection::AuthInt,
                (false, false) => return None,
            },
        };
        Some(Self::Digest(Box::new(DigestChallenge {
            realm,
            nonce: find("nonce")?.clone(),
            opaque: find("opaque").cloned(),
            algorithm: algorithm.to_owned(),
            hash,
            is_session: bare.is_some(),
            qop: quality,
            is_stale: find("stale").is_some_and(|stale| stale.eq_ignore_ascii_case("true")),
        })))
    }

    /// Returns the realm of the credentials.
    pub(super) fn realm(&self) -> &str {
        match self {
            Self::Basic { realm } => realm,
            Self::Digest(digest) => &digest.realm,
        }
    }
}

impl DigestChallenge {
    /// Returns the response to the challenge; `nonce` is the client nonce.
    pub(super) fn authorization(
        &self,
        (user, password): (&str, &str),
        sent: DigestedRequest<'_>,
        nonce: &str,
    ) -> String {
        const COUNT: &str = "00000001";
        let hash = |text: &[u8]| self.hash.hex_digest(text);
        let quality = match self.qop {
            QualityOfProtection::Unspecified => None,
            QualityOfProtection::Auth => Some("auth"),
            QualityOfProtection::AuthInt => Some("auth-int"),
            QualityOfProtection::AuthOrAuthInt if sent.body.is_empty() => Some("auth"),
            QualityOfProtection::AuthOrAuthInt => Some("auth-int"),
        };
        let mut secret = hash(format!("{user}:{}:{password}", self.realm).as_bytes());
        if self.is_session {
            secret = hash(format!("{secret}:{}:{nonce}", self.nonce).as_bytes());
        }
        let mut request_digest = format!("{}:{}", sent.method, sent.target);
        if quality == Some("auth-int") {
            write!(request_digest, ":{}", hash(sent.body)).ok();
        }
        let request_digest = hash(request_digest.as_bytes());
        let middle = match quality {
            None => self.nonce.clone(),
            Some(quality) => format!("{}:{COUNT}:{nonce}:{quality}", self.nonce),
        };
        let response = hash(format!("{secret}:{middle}:{request_digest}").as_bytes());
        let mut out = "Digest ".to_owned();
        for (name, value) in [
            ("username", user),
            ("realm", &self.realm),
            ("nonce", &self.nonce),
            ("uri", sent.target),
            ("response", &response),
        ] {
            // Writing to a string cannot fail.
            write!(out, "{name}=\"{}\", ", value.replace('\\', "\\\\").replace('"', "\\\"")).ok();
        }
        if let Some(quality) = quality {
            write!(out, "qop={quality}, nc={COUNT}, cnonce=\"{nonce}\", ").ok();
        }
        write!(out, "algorithm={}", self.algorithm).ok();
        if let Some(opaque) = &self.opaque {
            write!(out, ", opaque=\"{}\"", opaque.replace('\\', "\\\\").replace('"', "\\\"")).ok();
        }
        out
    }
}

impl DigestHash {
    /// Returns the digest in hexadecimal.
    fn hex_digest(self, text: &[u8]) -> String {
        let bytes: Vec<u8> = match self {
            Self::Md5 => Md5::digest(text).to_vec(),
            Self::Sha256 => Sha256::digest(text).to_vec(),
            Self::Sha512Of256 => Sha512_256::digest(text).to_vec(),
        };
        hex::encode(bytes)
    }
}

type ChallengeParameters = Vec<(String, String)>;

/// Splits a header into its challenges: a scheme, and parameters.
fn split_challenges(header: &str) -> Vec<(String, ChallengeParameters)> {
    let mut all: Vec<(String, ChallengeParameters)> = Vec::new();
    for part in split_unquoted_commas(header) {
        let mut part = part.trim();
        let before_value = part.split('=').next().unwrap_or_default().trim_end();
        // A scheme precedes its first parameter name, or stands alone.
        if let Some((scheme, rest)) = before_value.split_once(char::is_whitespace) {
            all.push((scheme.to_owned(), ChallengeParameters::new()));
            part = part.get(scheme.len()..).unwrap_or_default().trim_start();
            if rest.trim().is_empty() && !part.contains('=') {
                continue;
            }
        } else if !part.contains('=') {
            if !part.is_empty() {
                all.push((part.to_owned(), ChallengeParameters::new()));
            }
            continue;
        }
        if let (Some((name, value)), Some((_, words))) = (part.split_once('='), all.last_mut()) {
            words.push((name.trim().to_owned(), unquote(value.trim())));
        }
    }
    all
}

/// Splits at commas outside quotes.
fn split_unquoted_commas(header: &str) -> Vec<&str> {
    let (mut parts, mut from) = (Vec::new(), 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, letter) in header.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => {
                parts.extend(header.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(header.get(from..));
    parts
}

/// Removes the quotes from a value.
fn unquote(value: &str) -> String {
    let Some(inside) = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut out = String::with_capacity(inside.len());
    let mut letters = inside.chars();
    while let Some(letter) = letters.next() {
        out.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(header: &str) -> DigestChallenge {
        match AuthChallenge::parse_all([header].into_iter()).remove(0) {
            AuthChallenge::Digest(digest) => *digest,
            challenge @ AuthChallenge::Basic { .. } => panic!("{challenge:?}"),
        }
    }

    const GET: DigestedRequest<'static> =
        DigestedRequest { method: "GET", target: "/dir/index.html", body: b"" };

    #[test]
    fn the_example_of_rfc_7616_is_answered_as_it_says() {
        let nonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v";
        let opaque = "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS";
        for (algorithm, response) in [
            ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
            ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
        ] {
            let challenge = digest(&format!(
                "Digest realm=\"http-auth@example.org\", qop=\"auth, auth-int\", algorithm={algorithm}, \
                 nonce=\"{nonce}\", opaque=\"{opaque}\""
            ));
            let authorization = challenge.authorization(
                ("Mufasa", "Circle of Life"),
                GET,
                "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
            );
            assert!(
                authorization.contains(&format!("response=\"{response}\", qop=auth, nc=00000001")),
                "{authorization}"
            );
            assert!(
                authorization.ends_with(&format!("algorithm={algorithm}, opaque=\"{opaque}\"")),
                "{authorization}"
            );
        }
    }

    #[test]
    fn a_server_without_qop_is_answered_as_rfc_2069_says() {
        let challenge = digest(
            r#"Digest realm="testrealm@host.com", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093""#,
        );
        let authorization = challenge.authorization(("Mufasa", "CircleOfLife"), GET, "x");
        assert_eq!(
            authorization,
            "Digest username=\"Mufasa\", realm=\"testrealm@host.com\", nonce=\"dcd98b7102dd2f0e8b11d0f600bfb0c093\", \
             uri=\"/dir/index.html\", response=\"1949323746fe6a43ef61f9606e7febea\", algorithm=MD5"
        );
    }

    #[test]
    fn bodies_are_part_of_a_digest_where_the_server_offers_it() {
        let challenge = digest(r#"Digest realm="r", nonce="n", qop="auth,auth-int""#);
        let sent = DigestedRequest { method: "POST", target: "/", body: b"a=1" };
        let with_body = challenge.authorization(("u", "p"), sent, "c");
        assert!(with_body.contains("qop=auth-int"), "{with_body}");
        let with_other_body =
            challenge.authorization(("u", "p"), DigestedRequest { body: b"a=2", ..sent }, "c");
        assert_ne!(with_body, with_other_body);
    }

    #[test]
    fn challenges_are_read_however_they_are_written() {
        let read = |headers: &[&str]| -> Vec<String> {
            AuthChallenge::parse_all(headers.iter().copied())
                .iter()
                .map(|challenge| match challenge {
                    AuthChallenge::Basic { realm } => format!("basic {realm}"),
                    AuthChallenge::Digest(digest_challenge) => {
                        format!(
                            "{} {} {}",
                            digest_challenge.algorithm,
                            digest_challenge.realm,
                            digest_challenge.is_stale
                        )
                    }
                })
                .collect()
        };
        assert_eq!(read(&["Basic realm=\"a, \\\"b\\\"\""]), ["basic a, \"b\""]);
        assert_eq!(
            read(&["Negotiate, digest Realm=x,nonce=\"n\", stale=TRUE, Basic realm=\"y\"", "NTLM"]),
            ["MD5 x true", "basic y"]
        );
        assert_eq!(
            read(&["Digest realm=x, nonce=n, algorithm=sha-256-sess"]),
            ["sha-256-sess x false"]
        );
        assert!(
            read(&["Digest realm=x", "Digest nonce=n, algorithm=SHA-1", "", ",,", "="]).is_empty()
        );
    }
}
