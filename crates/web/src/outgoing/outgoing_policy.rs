//! Outgoing connections on behalf of content: only listed hosts, at addresses that are public or listed.
//!
//! In: the lists in `tympan.toml`. Out: whether a host may be requested, and whether the program may connect to an
//! address that its name resolved to.
//!
//! Invariants
//! * No host is requested that is not listed; an empty list allows no host.
//! * The address is checked after the name was resolved, and the connection is made to that address. So neither the
//!   notation of an address (`2130706433`, `0177.0.0.1`, `[::ffff:127.0.0.1]`) nor a different result of the next
//!   resolution matters.
//! * A host that is listed by its address may be requested at that address; a name may resolve to non-public addresses
//!   only in listed networks.
//! * A host that the configuration names elsewhere ([`OutgoingPolicy::for_configured_host`]) counts as listed, and may
//!   be in a private network. But its name must never resolve to an address nearer to this machine than at the first
//!   request, and to cloud metadata addresses only if they are listed.
//!
//! Not here: following redirects, which no client of this crate does.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use http::Uri;

use crate::ip_network::{IpNetwork, any_network_contains};

/// The listed hosts and networks. Clones share the state of hosts that are named elsewhere.
#[derive(Debug, Clone, Default)]
pub struct OutgoingPolicy {
    allowed_hosts: Vec<AllowedHost>,
    allowed_networks: Vec<IpNetwork>,
    /// The only allowed host, if the configuration names it elsewhere.
    configured_host: Option<ConfiguredHost>,
    /// The distance from this machine to which the names of such hosts resolved at first.
    first_reach: Arc<Mutex<BTreeMap<String, AddressReach>>>,
}

/// A host that the configuration names at the place of its use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConfiguredHost {
    host: String,
    port: u16,
}

/// The distance of an address from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AddressReach {
    Public,
    Private,
    Local,
}

impl AddressReach {
    fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if is_public_address(address) => Self::Public,
            address if address.is_loopback() || address.is_unspecified() => Self::Local,
            _ => Self::Private,
        }
    }
}

/// A listed host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    pattern: HostPattern,
    /// The only allowed port; `None` allows all ports.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Exact(String),
    /// All subdomains of a domain.
    Subdomain(String),
    Address(IpAddr),
}

/// The text is not a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a host; write \"api.example.com\", \"api.example.com:8443\", \"*.example.com\" or \
     \"10.0.0.7:8080\""
)]
pub struct InvalidHost {
    /// The invalid text.
    pub text: String,
}

impl OutgoingPolicy {
    /// Creates a policy from the allowed hosts, and the non-public networks to which their names may resolve.
    ///
    /// # Errors
    /// The first text that is not a host.
    pub fn new(hosts: &[String], networks: Vec<IpNetwork>) -> Result<Self, InvalidHost> {
        let hosts = hosts.iter().map(|text| AllowedHost::parse(text)).collect::<Result<_, _>>()?;
        Ok(Self { allowed_hosts: hosts, allowed_networks: networks, ..Self::default() })
    }

    /// Returns the policy for the single host of a URI from the machine's configuration, such as a back end's.
    #[must_use]
    pub fn for_configured_host(&self, uri: &Uri) -> Self {
        let host = normalize_host(uri.host().unwrap_or_default());
        Self { configured_host: Some(ConfiguredHost { host, port: uri_port(uri) }), ..self.clone() }
    }

    /// Returns true if a host may be requested at a port.
    #[must_use]
    pub fn allows_host(&self, host: &str, port: u16) -> bool {
        let host = normalize_host(host);
        if let Some(named) = &self.configured_host {
            return named.host == host && named.port == port;
        }
        let address: Option<IpAddr> = host.parse().ok();
        self.allowed_hosts.iter().any(|listed| {
            let is_named = match &listed.pattern {
                HostPattern::Exact(name) => *name == host,
                HostPattern::Subdomain(domain) => host
                    .strip_suffix(domain)
                    .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
                HostPattern::Address(allowed_address) => {
                    address.is_some_and(|address| address.to_canonical() == *allowed_address)
                }
            };
            is_named && listed.port.is_none_or(|only| only == port)
        })
    }

    /// Splits the addresses of a host's name into those that are allowed and the others.
    #[must_use]
    pub fn partition_addresses(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let addresses: Vec<SocketAddr> = addresses.into_iter().collect();
        let Some(named) = &self.configured_host else {
            return addresses.into_iter().partition(|address| self.allows_address(address.ip()));
        };
        let usable = addresses
            .iter()
            .map(|ip| ip.ip())
            .filter(|address| !is_cloud_metadata_address(*address));
        let nearest = usable.map(AddressReach::of_address).max();
        let mut first = self.first_reach.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = match (first.get(&named.host).copied(), nearest) {
            (Some(reach), _) => Some(reach),
            (None, Some(nearest)) => Some(*first.entry(named.host.clone()).or_insert(nearest)),
            (None, None) => None,
        };
        drop(first);
        addresses.into_iter().partition(|address| {
            let is_as_far =
                allowed.is_some_and(|allowed| AddressReach::of_address(address.ip()) <= allowed);
            self.is_in_allowed_networks(address.ip())
                || is_as_far && !is_cloud_metadata_address(address.ip())
        })
    }

    /// Returns the reason why an address is not allowed.
    pub(crate) fn refusal_reason(&self, address: IpAddr) -> String {
        let listed = "is not in `networks` in `[outgoing]` of `tympan.toml`";
        if self.configured_host.is_none() {
            return format!("its name resolves to {address}, which is not public and {listed}");
        }
        if is_cloud_metadata_address(address) {
            return format!("its address is {address}, a cloud metadata address, which {listed}");
        }
        format!(
            "its name now resolves to {address}, which is closer to this machine than its first address and \
             {listed}"
        )
    }

    /// Returns true if an address is allowed, because it is public or listed.
    fn allows_address(&self, address: IpAddr) -> bool {
        is_public_address(address) || self.is_in_allowed_networks(address)
    }

    fn is_in_allowed_networks(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_listed = |host: &AllowedHost| matches!(host.pattern, HostPattern::Address(one) if one == address);
        any_network_contains(&self.allowed_networks, address)
            || self.allowed_hosts.iter().any(is_listed)
    }
}

/// Returns the port of a request URI.
pub(crate) fn uri_port(uri: &Uri) -> u16 {
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    uri.port_u16().unwrap_or(usual)
}

impl AllowedHost {
    fn parse(text: &str) -> Result<Self, InvalidHost> {
        let fault = || InvalidHost { text: text.to_owned() };
        let written = normalize_host(text.trim());
        if let Ok(address) = written.parse::<IpAddr>() {
            return Ok(Self { pattern: HostPattern::Address(address.to_canonical()), port: None });
        }
        let (name, port) = match written.rsplit_once(':') {
            Some((name, port)) => (normalize_host(name), Some(port.parse().map_err(|_| fault())?)),
            None => (written, None),
        };
        if let Ok(address) = name.parse::<IpAddr>() {
            return Ok(Self { pattern: HostPattern::Address(address.to_canonical()), port });
        }
        let (domain, is_below) = match name.strip_prefix("*.") {
            Some(domain) => (domain.to_owned(), true),
            None => (name.clone(), false),
        };
        let is_plain =
            |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        // A name of digits and dots is an address in another notation, which must not be listed by accident.
        let is_number = domain.split('.').next_back().is_some_and(|last| {
            last.starts_with("0x") || last.chars().all(|digit| digit.is_ascii_digit())
        });
        if domain.is_empty() || is_number || !domain.chars().all(is_plain) {
            return Err(fault());
        }
        let name =
            if is_below { HostPattern::Subdomain(domain) } else { HostPattern::Exact(domain) };
        Ok(Self { pattern: name, port })
    }
}

/// Returns a host name in lower case, without brackets and final dot.
fn normalize_host(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host).to_ascii_lowercase()
}

/// Returns true if an address is on the public internet: not of this machine, a private or link-local network or a
/// multicast group, and not an address that embeds one of these.
#[must_use]
pub fn is_public_address(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || first == 0
        || first >= 240
        // Carrier-grade NAT, protocol assignments, and benchmarking networks.
        || (first == 100 && (64..128).contains(&second))
        || (first == 192 && second == 0 && third == 0)
        || (first == 198 && (18..20).contains(&second));
    !is_special
}

/// Returns true if an address is used by cloud metadata services, which provide credentials to a machine: link-local
/// addresses (`169.254.0.0/16`, `fe80::/10`), and the few others that are known.
fn is_cloud_metadata_address(address: IpAddr) -> bool {
    const OTHERS: [IpAddr; 4] = [
        // Amazon's and Google's over IPv6, Alibaba's, Oracle's.
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
        IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
        IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    ];
    let address = match address.to_canonical() {
        IpAddr::V6(address) => embedded_v4(address).map_or(IpAddr::V6(address), IpAddr::V4),
        address @ IpAddr::V4(_) => address,
    };
    let is_of_link = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_of_link || OTHERS.contains(&address)
}

/// Returns the IPv4 address that an IPv6 address embeds, by translation or tunneling.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b) {
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => Some(joined(g, h)),
        (0x2002, _) => Some(joined(b, c)),
        _ => None,
    }
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(embedded) = embedded_v4(address) {
        return is_public_v4(embedded);
    }
    let [a, b, ..] = address.segments();
    match (a, b) {
        (0x2001, 0 | 0xdb8) | (0x64, 0xff9b) => false,
        // All of global unicast, and nothing else.
        _ => (0x2000..0x4000).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_hosts_are_asked() {
        let hosts = ["api.example.com", "*.example.org", "hooks.example.net:8443", "10.0.0.7:8080"];
        let listed = OutgoingPolicy::new(&hosts.map(str::to_owned), Vec::new()).unwrap();
        let check = |host: &str, port: u16, expected: bool| {
            assert_eq!(listed.allows_host(host, port), expected, "{host}:{port}");
        };
        check("api.example.com", 443, true);
        check("API.Example.com.", 80, true);
        check("api.example.com.evil.org", 80, false);
        check("x-api.example.com", 80, false);
        check("a.b.example.org", 80, true);
        check("example.org", 80, false);
        check("evilexample.org", 80, false);
        check("hooks.example.net", 8443, true);
        check("hooks.example.net", 443, false);
        check("10.0.0.7", 8080, true);
        check("10.0.0.7", 22, false);
        check("[::ffff:10.0.0.7]", 8080, true);
        check("127.0.0.1", 80, false);
        assert!(!OutgoingPolicy::default().allows_host("example.com", 80), "an empty list");
        for broken in
            ["", "*", "*.", "http://a", "a/b", "a b", "2130706433", "0x7f.1", "a:b", "a:99999"]
        {
            assert!(OutgoingPolicy::new(&[broken.to_owned()], Vec::new()).is_err(), "{broken}");
        }
    }

    #[test]
    fn only_public_or_listed_addresses_are_connected_to() {
        let networks = vec!["10.20.0.0/16".parse().unwrap()];
        let listed = OutgoingPolicy::new(&["10.0.0.7:8080".to_owned()], networks).unwrap();
        let check = |address: &str, expected: bool| {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(listed.allows_address(address), expected, "{address}");
        };
        for public in
            ["1.1.1.1", "93.184.216.34", "2606:2800:220:1::1", "64:ff9b::101:101", "2002:101:101::"]
        {
            check(public, true);
        }
        for listed in ["10.20.3.4", "::ffff:10.20.3.4", "10.0.0.7"] {
            check(listed, true);
        }
        for private in [
            "0.0.0.0",
            "10.0.0.8",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:0:7f00:1::",
            "64:ff9b:1::1",
        ] {
            check(private, false);
        }
    }

    fn judged(outgoing: &OutgoingPolicy, addresses: &[&str]) -> Vec<String> {
        let addresses =
            addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 80));
        outgoing
            .partition_addresses(addresses)
            .0
            .iter()
            .map(|address| address.ip().to_string())
            .collect()
    }

    #[test]
    fn a_named_host_may_be_a_neighbor_and_comes_no_nearer() {
        let listed = OutgoingPolicy::new(&[], vec!["10.20.0.0/16".parse().unwrap()]).unwrap();
        let named = |uri: &str| listed.for_configured_host(&uri.parse().unwrap());
        let far = named("http://dam.example.com/a");
        assert!(far.allows_host("DAM.example.com.", 80) && !far.allows_host("dam.example.com", 81));
        assert!(!far.allows_host("other.example.com", 80));
        assert_eq!(judged(&far, &["93.184.216.34"]), ["93.184.216.34"]);
        // The name resolves differently the next time, for all users.
        let again = named("http://dam.example.com/b");
        for nearer in ["10.0.0.7", "127.0.0.1", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fd12::1"] {
            assert_eq!(judged(&again, &[nearer]), [""; 0], "{nearer}");
            assert!(
                again.refusal_reason(nearer.parse().unwrap()).contains("closer to this machine")
            );
        }
        assert_eq!(judged(&again, &["10.0.0.7", "1.1.1.1", "10.20.0.1"]), ["1.1.1.1", "10.20.0.1"]);
        let near = named("https://intern.example.com");
        assert!(near.allows_host("intern.example.com", 443));
        assert_eq!(judged(&near, &["10.0.0.7"]), ["10.0.0.7"]);
        assert_eq!(judged(&near, &["192.168.1.1", "1.1.1.1"]), ["192.168.1.1", "1.1.1.1"]);
        assert_eq!(judged(&near, &["127.0.0.1"]), [""; 0]);
        let own = named("http://localhost:8080");
        assert_eq!(judged(&own, &["127.0.0.1", "::1"]), ["127.0.0.1", "::1"]);
    }

    #[test]
    fn secrets_of_the_machine_are_asked_for_only_where_that_is_listed() {
        let secret = [
            "169.254.169.254",
            "169.254.1.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "100.100.100.200",
        ];
        let none = OutgoingPolicy::default();
        for address in secret {
            let named = none.for_configured_host(&"http://meta.example/".parse().unwrap());
            assert_eq!(judged(&named, &[address]), [""; 0], "{address}");
            assert!(
                named.refusal_reason(address.parse().unwrap()).contains("cloud metadata address")
            );
            // A refused address does not change the recorded distance of the host.
            assert_eq!(judged(&named, &[address, "1.1.1.1"]), ["1.1.1.1"], "{address}");
        }
        let literal = none.for_configured_host(&"http://169.254.169.254/latest".parse().unwrap());
        assert_eq!(judged(&literal, &["169.254.169.254"]), [""; 0]);
        for listed in [
            OutgoingPolicy::new(&["169.254.169.254".to_owned()], Vec::new()),
            OutgoingPolicy::new(&[], vec!["169.254.0.0/16".parse().unwrap()]),
        ] {
            let named =
                listed.unwrap().for_configured_host(&"http://169.254.169.254".parse().unwrap());
            assert_eq!(judged(&named, &["169.254.169.254"]), ["169.254.169.254"]);
        }
    }
}
