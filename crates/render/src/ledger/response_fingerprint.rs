//! Fingerprints of responses: the information needed to render a response again and to detect any difference.
//!
//! Invariant: two responses with equal fingerprints have the same status, headers and body, and a client that has one
//! need not fetch the other.
//!
//! Only responses for everyone can be rendered again. A response has no fingerprint if it used more of its request than
//! the URL, the scheme and the host, if it used query parameters that were present, or if it queried an index, which
//! follows content with a delay. A slow response has none either: a flush would wait for its rendering only to find
//! that it need not be fetched.
//!
//! Caches that fill in includes and other clients may get the same bytes now and different ones after a change. So a
//! fingerprint stores which of them requested it, and is rendered again for each.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::dependency::content_reader::{ReadRecording, RequestFacts};
use crate::dependency::path_dependency::{folded_multiply, mix_bits};
use crate::request::{FragmentCacheOverride, RenderRequest};
use crate::response::{RenderOutcome, RenderResponse, RenderResponseBody};

/// The facts of its request that a response with a fingerprint may have used.
const REPEATABLE_FACTS: RequestFacts = RequestFacts::PAGE
    .combine(RequestFacts::URL)
    .combine(RequestFacts::EDIT)
    .combine(RequestFacts::HOST)
    .combine(RequestFacts::FAULT)
    .combine(RequestFacts::PARAMETERS)
    .combine(RequestFacts::ACCOUNTS);
/// Maximum render time of a response that is rendered again for comparison. Most pages take a few milliseconds at most.
const MAX_COMPARED_RENDER_TIME: Duration = Duration::from_millis(250);
/// Maximum length of a stored host, in bytes.
const MAX_HOST_BYTES: usize = 255;

/// Flags in the byte after the digest: whether a host follows, the scheme of its request, and the kinds of clients.
const HOST_FLAG: u8 = 1;
const TLS_FLAG: u8 = 2;
const PLAIN_CLIENT_FLAG: u8 = 4;
const FILLING_CACHE_FLAG: u8 = 8;
/// Set if query parameters would affect the response.
const QUERY_FLAG: u8 = 16;

/// The fingerprint of a response, and the properties of its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseFingerprint {
    /// Covers status, headers and body.
    digest: [u64; 2],
    /// The host and whether the request used TLS, if address mappings depend on them.
    host_and_tls: Option<(Box<str>, bool)>,
    /// The kinds of clients that got it: [`PLAIN_CLIENT_FLAG`] for caches and visitors, [`FILLING_CACHE_FLAG`] for
    /// caches that fill in includes, or both.
    client_flags: u8,
    /// True if the response looked up query parameters and found none. As long as it does not, copies requested with
    /// parameters equal those without.
    reads_parameters: bool,
}

impl ResponseFingerprint {
    /// Returns the fingerprint of a response; `None` if the request cannot be repeated.
    #[must_use]
    pub fn from_response(response: &RenderResponse, request: &RenderRequest<'_>) -> Option<Self> {
        let reads = &response.reads;
        let is_plain = request.cache_override == FragmentCacheOverride::None
            && !request.is_edit_mode
            // A path parameter may name a version.
            && !request.path.contains(';')
            && request.host.len() <= MAX_HOST_BYTES
            && request.method == "GET";
        let is_whole = reads.max_age.is_none()
            && response.timing.total_time() <= MAX_COMPARED_RENDER_TIME
            && reads.facts.without(REPEATABLE_FACTS) == RequestFacts::default()
            && (request.query.is_empty() || !reads.facts.intersects(RequestFacts::PARAMETERS));
        (is_plain && is_whole).then(|| Self {
            digest: digest_response(response),
            host_and_tls: reads
                .facts
                .intersects(RequestFacts::HOST)
                .then(|| (request.host.into(), request.scheme == "https")),
            client_flags: if request.supports_includes {
                FILLING_CACHE_FLAG
            } else {
                PLAIN_CLIENT_FLAG
            },
            reads_parameters: reads.facts.intersects(RequestFacts::PARAMETERS),
        })
    }

    /// Returns true if both have the same content, regardless of the clients.
    pub(super) fn equals_ignoring_client(&self, other: &Self) -> bool {
        self.digest == other.digest
            && self.host_and_tls == other.host_and_tls
            && self.reads_parameters == other.reads_parameters
    }

    /// Returns true if the other fingerprint is that of all or some of these copies.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.equals_ignoring_client(other)
            && self.client_flags & other.client_flags == other.client_flags
    }

    /// Returns the fingerprint of the copies of both; `None` if they differ.
    pub(super) fn join(&self, other: &Self) -> Option<Self> {
        let client_flags = self.client_flags | other.client_flags;
        self.equals_ignoring_client(other).then(|| Self { client_flags, ..self.clone() })
    }

    /// Encodes the fingerprint: the digest, the kinds of clients, and the host if it matters.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.digest.map(u64::to_le_bytes).concat();
        let by = self
            .host_and_tls
            .as_ref()
            .map_or(0, |(_, is_secure)| if *is_secure { HOST_FLAG | TLS_FLAG } else { HOST_FLAG });
        bytes.push(self.client_flags | by | if self.reads_parameters { QUERY_FLAG } else { 0 });
        if let Some((host, _)) = &self.host_and_tls {
            bytes.extend_from_slice(host.as_bytes());
        }
        bytes
    }

    /// Decodes a fingerprint; `None` if the bytes are malformed.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (digest, rest) = bytes.split_at_checked(16)?;
        let (words, _) = digest.as_chunks::<8>();
        let [first, second] = *words else { return None };
        let (bits, host) = rest.split_first()?;
        let host_and_tls = match bits & HOST_FLAG {
            0 => host.is_empty().then_some(None)?,
            _ => Some((std::str::from_utf8(host).ok()?.into(), bits & TLS_FLAG != 0)),
        };
        let client_flags = bits & (PLAIN_CLIENT_FLAG | FILLING_CACHE_FLAG);
        let digest = [u64::from_le_bytes(first), u64::from_le_bytes(second)];
        let takes_parameters = bits & QUERY_FLAG != 0;
        (client_flags != 0).then_some(Self {
            digest,
            host_and_tls,
            client_flags,
            reads_parameters: takes_parameters,
        })
    }

    /// Returns the requests that repeat the original one, one for each kind of client.
    pub(super) fn repeat_requests<'a>(
        &'a self,
        url: &'a str,
    ) -> impl Iterator<Item = RenderRequest<'a>> {
        let (host, scheme) = match &self.host_and_tls {
            Some((host, true)) => (&**host, "https"),
            Some((host, false)) => (&**host, "http"),
            None => ("", "http"),
        };
        let kinds = [(PLAIN_CLIENT_FLAG, false), (FILLING_CACHE_FLAG, true)].into_iter();
        kinds.filter(|(kind, _)| self.client_flags & kind != 0).map(move |(_, fills_includes)| {
            RenderRequest {
                scheme,
                host,
                recording: ReadRecording::Paths,
                supports_includes: fills_includes,
                is_offline: true,
                ..RenderRequest::get(url)
            }
        })
    }
}

/// Digests the parts of a response that a client gets.
fn digest_response(response: &RenderResponse) -> [u64; 2] {
    let mut digest = ResponseHasher::default();
    let RenderResponse { outcome, content_type, headers, body, .. } = response;
    std::mem::discriminant(outcome).hash(&mut digest);
    if let RenderOutcome::Redirect { location, kind } = outcome {
        location.hash(&mut digest);
        std::mem::discriminant(kind).hash(&mut digest);
    }
    content_type.hash(&mut digest);
    headers.hash(&mut digest);
    std::mem::discriminant(body).hash(&mut digest);
    match body {
        RenderResponseBody::Empty => {}
        RenderResponseBody::Bytes(bytes) => bytes.hash(&mut digest),
        RenderResponseBody::Image(address) => address.hash(&mut digest),
        RenderResponseBody::Blob(blob) => {
            blob.etag.hash(&mut digest);
            blob.last_modified.hash(&mut digest);
        }
    }
    digest.words()
}

/// Keep a word of zeros from equaling the end of a lane.
const LANE_END_MARKS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// A 128-bit hash with four lanes. It need not resist deliberate collisions, because nobody gains by making two pages
/// of a site collide, and it must not delay renders. Each lane waits only for its own multiplications.
struct ResponseHasher([u64; 4]);

impl Default for ResponseHasher {
    fn default() -> Self {
        Self([
            0x243f_6a88_85a3_08d3,
            0x1319_8a2e_0370_7344,
            0x4528_21e6_38d0_1377,
            0xbe54_66cf_34e9_0c6c,
        ])
    }
}

impl ResponseHasher {
    /// Returns both words; each depends on all lanes.
    fn words(&self) -> [u64; 2] {
        let Self([first, second, third, fourth]) = *self;
        let joined =
            |lanes: [u64; 4]| lanes.into_iter().fold(0, |state, lane| mix_bits(state ^ lane));
        [joined([first, second, third, fourth]), joined([third, fourth, second, first])]
    }
}

impl Hasher for ResponseHasher {
    /// Processes 64 bytes at a time, a quarter of them in each lane: a page is read once, at the speed of memory.
    fn write(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<64>();
        // As separate local variables, the lanes stay in registers.
        let Self([mut first, mut second, mut third, mut fourth]) = *self;
        let read_word = u64::from_le_bytes;
        for block in blocks {
            let (words, _) = block.as_chunks::<8>();
            let [a, b, c, d, e, f, g, h] = *words else { continue };
            first = folded_multiply(first ^ read_word(a), read_word(b) ^ LANE_END_MARKS[0]);
            second = folded_multiply(second ^ read_word(c), read_word(d) ^ LANE_END_MARKS[1]);
            third = folded_multiply(third ^ read_word(e), read_word(f) ^ LANE_END_MARKS[2]);
            fourth = folded_multiply(fourth ^ read_word(g), read_word(h) ^ LANE_END_MARKS[3]);
        }
        self.0 = [first, second, third, fourth];
        let (words, rest) = rest.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        let mut last = [0_u8; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.write_u64(u64::from_le_bytes(last));
        self.write_u64(bytes.len() as u64);
    }

    // The separators between texts are single numbers, and need no length.
    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, word: u64) {
        let [first, second, ..] = &mut self.0;
        *first = mix_bits(*first ^ word);
        *second = mix_bits(second.rotate_left(23) ^ word);
    }

    fn finish(&self) -> u64 {
        let [first, _] = self.words();
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(parts: &[&[u8]]) -> [u64; 2] {
        let mut digest = ResponseHasher::default();
        parts.iter().for_each(|part| digest.write(part));
        digest.words()
    }

    #[test]
    fn digests_tell_texts_and_their_parts_apart() {
        let many = (0..20_000).map(|number| format!("<p>Page {number}</p>"));
        let all: std::collections::HashSet<_> =
            many.map(|text| digest_of(&[text.as_bytes()])).collect();
        assert_eq!(all.len(), 20_000);
        assert_ne!(digest_of(&[b"ab", b"c"]), digest_of(&[b"a", b"bc"]));
        assert_ne!(digest_of(&[b"a\0"]), digest_of(&[b"a"]));
        assert_ne!(digest_of(&[&[0; 8]]), digest_of(&[&[0; 16]]));
        assert_eq!(digest_of(&[b"same"]), digest_of(&[b"same"]));
        // A difference in one byte at any position of a long text.
        let text = vec![b'x'; 200];
        let whole = digest_of(&[&text]);
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] = b'y';
            let [first, second] = digest_of(&[&changed]);
            assert!(first != whole[0] && second != whole[1], "{at}");
        }
        assert_ne!(digest_of(&[&[0; 64]]), digest_of(&[&[0; 128]]));
        // Two swapped parts of a block.
        let block: Vec<u8> = (0..64).collect();
        for (left, right) in (0..8).flat_map(|left| (0..left).map(move |right| (left, right))) {
            let mut swapped = block.clone();
            (0..8).for_each(|byte| swapped.swap(8 * left + byte, 8 * right + byte));
            assert_ne!(digest_of(&[&swapped]), digest_of(&[&block]), "{left} {right}");
        }
    }

    #[test]
    fn looks_are_read_back() {
        for host_and_tls in [None, Some(("".into(), false)), Some(("www.example.com".into(), true))]
        {
            for (client_flags, takes_parameters) in [
                (PLAIN_CLIENT_FLAG, false),
                (FILLING_CACHE_FLAG, true),
                (PLAIN_CLIENT_FLAG | FILLING_CACHE_FLAG, false),
            ] {
                let host_and_tls = host_and_tls.clone();
                let look = ResponseFingerprint {
                    digest: [1, u64::MAX],
                    host_and_tls,
                    client_flags,
                    reads_parameters: takes_parameters,
                };
                assert_eq!(ResponseFingerprint::from_bytes(&look.to_bytes()), Some(look));
            }
        }
        // Too short, without a client, a missing host, and a host that is not text.
        for bytes in
            [&[0; 16][..], &[0; 17], &[[0; 16].as_slice(), &[PLAIN_CLIENT_FLAG, b'x']].concat()]
        {
            assert_eq!(ResponseFingerprint::from_bytes(bytes), None);
        }
        assert_eq!(
            ResponseFingerprint::from_bytes(
                &[[0; 16].as_slice(), &[PLAIN_CLIENT_FLAG | HOST_FLAG, 0xff]].concat()
            ),
            None
        );
    }

    #[test]
    fn what_took_long_is_not_rendered_again() {
        let look = |spent| {
            let row = crate::timing::TimingRow {
                script: "page.html.j2".into(),
                path: "/content/a".into(),
                depth: 0,
                call_count: 1,
                total_time: spent,
                self_time: spent,
                read_count: 0,
                query_count: 0,
            };
            let response = RenderResponse {
                outcome: RenderOutcome::Ok,
                content_type: "text/html".into(),
                headers: Vec::new(),
                body: RenderResponseBody::Empty,
                reads: crate::dependency::content_reader::RequestReads::default(),
                timing: crate::timing::RenderTiming { rows: vec![row] },
                failed_component_count: 0,
                fragment_counts: crate::fragment::FragmentLookupCounts::default(),
            };
            ResponseFingerprint::from_response(&response, &RenderRequest::get("/content/a.html"))
        };
        assert!(look(MAX_COMPARED_RENDER_TIME).is_some());
        assert!(look(MAX_COMPARED_RENDER_TIME + Duration::from_micros(1)).is_none());
    }

    #[test]
    fn looks_are_joined_where_the_bytes_are_the_same() {
        let look = |digest, client_flags| {
            let takes_parameters = false;
            ResponseFingerprint {
                digest: [digest, 0],
                host_and_tls: None,
                client_flags,
                reads_parameters: takes_parameters,
            }
        };
        let taking = ResponseFingerprint { reads_parameters: true, ..look(1, PLAIN_CLIENT_FLAG) };
        assert!(taking.join(&look(1, PLAIN_CLIENT_FLAG)).is_none() && taking.covers(&taking));
        assert_eq!(
            look(1, PLAIN_CLIENT_FLAG).join(&look(1, FILLING_CACHE_FLAG)),
            Some(look(1, PLAIN_CLIENT_FLAG | FILLING_CACHE_FLAG))
        );
        assert_eq!(look(1, PLAIN_CLIENT_FLAG).join(&look(2, PLAIN_CLIENT_FLAG)), None);
        assert_eq!(
            look(1, PLAIN_CLIENT_FLAG | FILLING_CACHE_FLAG).repeat_requests("/a").count(),
            2
        );
    }
}
