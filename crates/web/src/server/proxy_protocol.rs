//! The PROXY protocol, versions 1 and 2: the client of a proxy in front.
//!
//! In: the first bytes of a connection from a trusted proxy. Out: the client's address, and whether it used TLS to the
//! proxy.
//!
//! Invariants
//! * Nothing after the header is read.
//! * A connection that should begin with a header and does not is closed: any guess would let clients choose their own
//!   address.

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The first bytes of a version 2 header.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Maximum length of a version 1 line, including its end.
const MAX_V1_LINE_BYTES: usize = 107;

/// Maximum length of a header: addresses and a few hundred bytes about the proxy's TLS.
const MAX_PROXY_HEADER_BYTES: usize = 4096;

/// The TLV of version 2 about TLS, and its flag for a client that uses TLS.
const TLS_TLV_TYPE: u8 = 0x20;
const TLS_CLIENT_FLAG: u8 = 0x01;

/// The client behind a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client; `None` if the connection is the proxy's own, as for a health check.
    pub client: Option<SocketAddr>,
    /// True if the client used TLS to the proxy; always false in version 1, which does not report it.
    pub is_tls: bool,
}

/// Reads a header.
///
/// # Errors
/// [`ErrorKind::InvalidData`] if there is none, otherwise the error of the connection.
pub async fn read_proxy_header<T: AsyncRead + Unpin>(stream: &mut T) -> Result<ProxyHeader> {
    let mut start = [0; V2_SIGNATURE.len()];
    stream.read_exact(&mut start).await?;
    if start == *V2_SIGNATURE {
        return read_v2_header(stream).await;
    }
    let mut line = start.to_vec();
    // Read byte by byte, as the data after the line belongs to another reader.
    while !line.ends_with(b"\r\n") {
        if line.len() >= MAX_V1_LINE_BYTES || !line.starts_with(b"PROXY ") {
            return Err(invalid_header_error("the connection does not begin with a PROXY header"));
        }
        line.push(stream.read_u8().await?);
    }
    parse_v1_line(&line).ok_or_else(|| invalid_header_error("the PROXY line is malformed"))
}

async fn read_v2_header<T: AsyncRead + Unpin>(stream: &mut T) -> Result<ProxyHeader> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, family, high, low] = head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_PROXY_HEADER_BYTES {
        return Err(invalid_header_error("the PROXY header is too long"));
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    parse_v2_header(version, family, &rest)
        .ok_or_else(|| invalid_header_error("the PROXY header is malformed"))
}

/// Parses a complete header; for tests with arbitrary bytes.
#[must_use]
pub fn parse_proxy_header(bytes: &[u8]) -> Option<ProxyHeader> {
    match bytes.strip_prefix(V2_SIGNATURE) {
        Some(&[version, family, high, low, ref rest @ ..]) => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            parse_v2_header(version, family, rest.get(..length)?)
        }
        Some(_) => None,
        None => parse_v1_line(bytes),
    }
}

/// `PROXY TCP4 192.0.2.1 192.0.2.2 56324 443`
fn parse_v1_line(line: &[u8]) -> Option<ProxyHeader> {
    let line = line.get(..line.len().min(MAX_V1_LINE_BYTES))?.strip_suffix(b"\r\n")?;
    let mut words = std::str::from_utf8(line).ok()?.strip_prefix("PROXY ")?.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(ProxyHeader { client: None, is_tls: false });
    }
    let client: IpAddr = words.next()?.parse().ok()?;
    let own: IpAddr = words.next()?.parse().ok()?;
    let port = words.next()?;
    let _own_port: u16 = words.next()?.parse().ok()?;
    let is_right = match family {
        "TCP4" => client.is_ipv4() && own.is_ipv4(),
        "TCP6" => client.is_ipv6() && own.is_ipv6(),
        _ => false,
    };
    let client = SocketAddr::new(client, port.parse().ok()?);
    (is_right && words.next().is_none())
        .then_some(ProxyHeader { client: Some(client), is_tls: false })
}

fn parse_v2_header(version: u8, family: u8, rest: &[u8]) -> Option<ProxyHeader> {
    match version {
        // A connection of the proxy itself.
        0x20 => return Some(ProxyHeader { client: None, is_tls: false }),
        0x21 => {}
        _ => return None,
    }
    let (client, parts) = match family {
        0x11 => {
            let (addresses, parts) = rest.split_at_checked(12)?;
            let ip = Ipv4Addr::from(<[u8; 4]>::try_from(addresses.get(..4)?).ok()?);
            (Some(SocketAddr::from((ip, read_port(addresses, 8)?))), parts)
        }
        0x21 => {
            let (addresses, parts) = rest.split_at_checked(36)?;
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(addresses.get(..16)?).ok()?);
            (Some(SocketAddr::from((ip, read_port(addresses, 32)?))), parts)
        }
        // Unix sockets, datagrams and unknown protocols: the client has no address that can be checked.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => (None, &[][..]),
        _ => return None,
    };
    Some(ProxyHeader { client, is_tls: has_tls_client_tlv(parts) })
}

fn read_port(addresses: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(<[u8; 2]>::try_from(addresses.get(at..at + 2)?).ok()?))
}

/// Searches for the TLV about TLS: type, length in two bytes, value.
fn has_tls_client_tlv(mut parts: &[u8]) -> bool {
    while let Some((&[kind, high, low], rest)) = parts.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some((value, next)) = rest.split_at_checked(length) else { return false };
        if kind == TLS_TLV_TYPE {
            return value.first().is_some_and(|bits| bits & TLS_CLIENT_FLAG != 0);
        }
        parts = next;
    }
    false
}

fn invalid_header_error(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{ProxyHeader, V2_SIGNATURE, parse_proxy_header, read_proxy_header};

    fn client(text: &str) -> Option<ProxyHeader> {
        Some(ProxyHeader { client: Some(text.parse().unwrap()), is_tls: false })
    }

    fn binary(version: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([version, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 192, 0, 2, 2, 0xdc, 0x04, 0x01, 0xbb];

    #[test]
    fn lines_of_version_1() {
        let check = |line: &str, expected| {
            assert_eq!(parse_proxy_header(format!("{line}\r\n").as_bytes()), expected, "{line}");
        };
        check("PROXY TCP4 192.0.2.1 192.0.2.2 56324 443", client("192.0.2.1:56324"));
        check("PROXY TCP6 2001:db8::1 2001:db8::2 56324 443", client("[2001:db8::1]:56324"));
        check("PROXY UNKNOWN", Some(ProxyHeader { client: None, is_tls: false }));
        check("PROXY UNKNOWN whatever else", Some(ProxyHeader { client: None, is_tls: false }));
        for broken in [
            "PROXY TCP4 192.0.2.1 192.0.2.2 56324",
            "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443 1",
            "PROXY TCP4 2001:db8::1 2001:db8::2 56324 443",
            "PROXY TCP4 192.0.2.1 192.0.2.2 99999 443",
            "PROXY TCP5 192.0.2.1 192.0.2.2 1 443",
            "PROXY  TCP4 192.0.2.1 192.0.2.2 1 443",
            "GET / HTTP/1.1",
            "",
        ] {
            check(broken, None);
        }
    }

    #[test]
    fn headers_of_version_2() {
        assert_eq!(parse_proxy_header(&binary(0x21, 0x11, &V4)), client("192.0.2.1:56324"));
        let mut six = [0; 36];
        six[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        six[15] = 1;
        six[33] = 80;
        assert_eq!(parse_proxy_header(&binary(0x21, 0x21, &six)), client("[2001:db8::1]:80"));
        let nobody = Some(ProxyHeader { client: None, is_tls: false });
        assert_eq!(parse_proxy_header(&binary(0x20, 0x11, &V4)), nobody, "the proxy's own");
        assert_eq!(parse_proxy_header(&binary(0x21, 0x00, &[])), nobody);
        assert_eq!(parse_proxy_header(&binary(0x21, 0x31, &[0; 216])), nobody, "a Unix socket");
        assert_eq!(parse_proxy_header(&binary(0x11, 0x11, &V4)), None, "another version");
        assert_eq!(
            parse_proxy_header(&binary(0x21, 0x41, &V4)),
            None,
            "a family that nobody knows"
        );
        assert_eq!(
            parse_proxy_header(&binary(0x21, 0x13, &V4)),
            None,
            "a transport that nobody knows"
        );
        assert_eq!(parse_proxy_header(&binary(0x21, 0x11, &V4[..8])), None, "too short");
        let with = |parts: &[u8]| {
            parse_proxy_header(&binary(0x21, 0x11, &[&V4[..], parts].concat())).unwrap()
        };
        assert!(with(&[0x02, 0, 1, b'h', 0x20, 0, 5, 1, 0, 0, 0, 0]).is_tls);
        assert!(!with(&[0x20, 0, 5, 0, 0, 0, 0, 0]).is_tls);
        assert!(!with(&[0x20, 0, 50, 1]).is_tls, "a part that does not fit");
    }

    #[tokio::test]
    async fn nothing_behind_the_header_is_read() {
        for header in [
            b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n".to_vec(),
            b"PROXY UNKNOWN\r\n".to_vec(),
            binary(0x21, 0x11, &V4),
        ] {
            let bytes = [&header[..], b"GET"].concat();
            let mut reader = &bytes[..];
            read_proxy_header(&mut reader).await.unwrap();
            assert_eq!(reader, b"GET");
        }
        for broken in [&b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..], &[b'P'; 200], b"PROXY TCP4 "] {
            assert!(read_proxy_header(&mut &*broken).await.is_err());
        }
        let endless = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        assert!(read_proxy_header(&mut &endless[..]).await.is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>, family: u8) {
            let line = [b"PROXY ", &bytes[..], b"\r\n"].concat();
            for bytes in [&bytes, &line, &binary(0x21, family, &bytes)] {
                std::hint::black_box(parse_proxy_header(bytes));
            }
        }
    }
}
