//! The client behind proxies, from `X-Forwarded-For` as far as trusted proxies wrote it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::HeaderMap;

use crate::ip_network::{IpNetwork, any_network_contains};

/// Represents a client whose address a trusted proxy does not name. It is not a valid client address, so no rule that
/// lists addresses matches it.
pub const UNKNOWN_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Returns the client behind `sender`: the last address of `X-Forwarded-For` that is not a trusted proxy, if the sender
/// is one.
///
/// If that entry is not an address, the client is unknown, and is never mistaken for the proxy that wrote it. Entries
/// that a client itself put at the beginning of the list have no effect, as each proxy appends to the end.
#[must_use]
pub fn forwarded_client_address(
    headers: &HeaderMap,
    sender: IpAddr,
    trusted: &[IpNetwork],
) -> IpAddr {
    let mut client = sender;
    if !any_network_contains(trusted, sender) {
        return client;
    }
    let lists = headers.get_all("x-forwarded-for").iter().rev();
    let entries = lists.flat_map(|list| list.as_bytes().rsplit(|byte| *byte == b','));
    for entry in entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
        client = parse_forwarded_address(entry).unwrap_or(UNKNOWN_CLIENT);
        if client == UNKNOWN_CLIENT || !any_network_contains(trusted, client) {
            break;
        }
    }
    client
}

/// Parses an address with an optional port, and with brackets if it is IPv6.
fn parse_forwarded_address(bytes: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(bytes).ok()?;
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    let plain = text.trim_start_matches('[').trim_end_matches(']');
    plain.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
        let check = |sender: &str, lists: &[&str], expected: &str| {
            let trusted = ["10.0.0.0/8", "127.0.0.1"].map(|network| network.parse().unwrap());
            let mut headers = HeaderMap::new();
            for list in lists {
                headers.append("x-forwarded-for", list.parse().unwrap());
            }
            let client = forwarded_client_address(&headers, sender.parse().unwrap(), &trusted);
            assert_eq!(client, expected.parse::<IpAddr>().unwrap(), "{sender} {lists:?}");
        };
        check("198.51.100.9", &["192.0.2.1"], "198.51.100.9");
        check("127.0.0.1", &[], "127.0.0.1");
        check("127.0.0.1", &["192.0.2.1"], "192.0.2.1");
        check("127.0.0.1", &["192.0.2.1, 198.51.100.9"], "198.51.100.9");
        check("127.0.0.1", &["192.0.2.1", "198.51.100.9, 10.1.2.3"], "198.51.100.9");
        check("127.0.0.1", &["192.0.2.1, unknown"], "0.0.0.0");
        check("127.0.0.1", &["192.0.2.1, unknown, 10.0.0.1"], "0.0.0.0");
        check("127.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1");
        check("127.0.0.1", &["[2001:db8::1]:8443"], "2001:db8::1");
        check("127.0.0.1", &["192.0.2.1:443,"], "192.0.2.1");
        check("10.9.9.9", &["10.1.1.1, 10.2.2.2"], "10.1.1.1");
    }
}
