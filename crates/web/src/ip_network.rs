//! Address ranges such as `10.0.0.0/8`, or single addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address range. IPv4-mapped IPv6 addresses count as IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_bits: u8,
}

/// The text is not an address range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address or a range; write \"10.0.0.7\" or \"10.0.0.0/8\"")]
pub struct InvalidNetwork {
    /// The invalid text.
    pub text: String,
}

impl IpNetwork {
    /// Returns true if `address` is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        mask_address(address.to_canonical(), self.prefix_bits) == Some(self.address)
    }
}

/// Returns true if `address` is in one of the ranges.
#[must_use]
pub fn any_network_contains(networks: &[IpNetwork], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

/// Returns the address with all but the first `bits` cleared; `None` if it has fewer bits.
pub(crate) fn mask_address(address: IpAddr, bits: u8) -> Option<IpAddr> {
    let bits = u32::from(bits);
    Some(match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(bits)?).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(bits)?).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    })
}

impl FromStr for IpNetwork {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let fault = || InvalidNetwork { text: text.to_owned() };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| fault())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.trim().parse().map_err(|_| fault())?,
            None => all,
        };
        let address = mask_address(address, bits).ok_or_else(fault)?;
        Ok(Self { address, prefix_bits: bits })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::IpNetwork;

    #[test]
    fn ranges_hold_their_addresses() {
        let check = |range: &str, inside: &[&str], outside: &[&str]| {
            let network: IpNetwork = range.parse().unwrap();
            let holds = |text: &&str| network.contains(text.parse().unwrap());
            assert!(inside.iter().all(holds), "{range}");
            assert!(!outside.iter().any(holds), "{range}");
        };
        check("10.0.0.0/8", &["10.0.0.1", "10.255.0.1", "::ffff:10.1.1.1"], &["11.0.0.1", "::1"]);
        check("10.1.2.3", &["10.1.2.3"], &["10.1.2.4"]);
        check("10.1.2.3/24", &["10.1.2.200"], &["10.1.3.3"]);
        check("0.0.0.0/0", &["1.2.3.4"], &["::1"]);
        check("2001:db8::/32", &["2001:db8:1::1"], &["2001:db9::1", "10.0.0.1"]);
        for broken in ["", "10.0.0", "10.0.0.0/33", "::/129", "10.0.0.0/x", "example.org"] {
            assert!(broken.parse::<IpNetwork>().is_err(), "{broken}");
        }
        assert_eq!("10.1.2.3/8".parse::<IpNetwork>().unwrap().to_string(), "10.0.0.0/8");
    }
}
