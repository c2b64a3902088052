//! Addresses of an asset's picture in a size: what templates write, and the server reads.
//!
//! ```text
//! <asset>.width-640.webp                      whole, 640 columns
//! <asset>.crop-400x300.jpeg                   cut to this shape around the asset's focal point
//! <asset>.width-640.h-<16 hex digits>.webp    with the beginning of the original's hash: never changes
//! <asset>.width-777.sig-<32 hex digits>.webp  signed with the instances' key: any size
//! ```
//!
//! The signature covers the asset, the size and the format, not the hash: that one only tells caches how long to keep it.
//!
//! Not here: which sizes need no signature, and drawing (`server::image`).

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::link::encode_path;

/// The longest side that an address may name.
pub const MAX_SIDE: u32 = 8192;

/// How a picture is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Whole, with this many columns.
    Width(u32),
    /// Cut to this width and height.
    Crop(u32, u32),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Width(width) => write!(f, "width-{width}"),
            Self::Crop(width, height) => write!(f, "crop-{width}x{height}"),
        }
    }
}

/// A format that an address may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// JPEG; also written `jpg`.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
}

impl Ending {
    /// Finds a format by its ending.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Some(match name {
            "jpeg" | "jpg" => Self::Jpeg,
            "png" => Self::Png,
            "webp" => Self::WebP,
            _ => return None,
        })
    }

    /// Returns the ending.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
        }
    }
}

/// The key that signs addresses; what instances share, templates cannot read.
#[derive(Clone, Copy)]
pub struct ImageKey([u8; 32]);

impl ImageKey {
    /// Derives the key from a secret of the instances that sign and check.
    #[must_use]
    pub fn of_secret(secret: &str) -> Self {
        Self(Sha256::digest(format!("image addresses\n{secret}")).into())
    }
}

impl fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ImageKey")
    }
}

/// A picture of an asset, as an address names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageAddress {
    /// The path of the asset.
    pub asset: String,
    /// How it is wanted.
    pub shape: Shape,
    /// In which format.
    pub ending: Ending,
    /// The first 16 digits of the original's hash, in lower case.
    pub hash: Option<String>,
    /// The signature, in lower case.
    pub signature: Option<String>,
}

impl ImageAddress {
    /// Reads a URL's path; nothing if it names no size.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        let path = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
        let (rest, ending) = path.rsplit_once('.')?;
        let ending = Ending::find(ending)?;
        let (mut rest, mut selector) = rest.rsplit_once('.')?;
        let mut take = |prefix: &str, digits: usize| -> Option<String> {
            let text = selector.strip_prefix(prefix)?;
            let is_right = text.len() == digits
                && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let text = is_right.then(|| text.to_owned())?;
            (rest, selector) = rest.rsplit_once('.')?;
            Some(text)
        };
        let signature = take("sig-", 32);
        let hash = take("h-", 16);
        let shape = Shape::find(selector)?;
        Some(Self { asset: rest.to_owned(), shape, ending, hash, signature })
    }

    /// Returns the path of a URL that names this.
    #[must_use]
    pub fn url(&self) -> String {
        let mut url = format!("{}.{}", encode_path(&self.asset), self.shape);
        if let Some(hash) = &self.hash {
            url.push_str(".h-");
            url.push_str(hash);
        }
        if let Some(signature) = &self.signature {
            url.push_str(".sig-");
            url.push_str(signature);
        }
        url.push('.');
        url.push_str(self.ending.name());
        url
    }

    /// Signs it.
    #[must_use]
    pub fn signed(self, key: &ImageKey) -> Self {
        Self { signature: self.signature_by(key), ..self }
    }

    /// Tells whether its signature is that of the key.
    #[must_use]
    pub fn is_signed_by(&self, key: &ImageKey) -> bool {
        match (&self.signature, self.signature_by(key)) {
            (Some(given), Some(right)) => given.as_bytes().ct_eq(right.as_bytes()).into(),
            _ => false,
        }
    }

    fn signature_by(&self, key: &ImageKey) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
        // A line break cannot be in a shape or format, so that the parts cannot be shifted.
        mac.update(format!("{}\n{}\n{}", self.shape, self.ending.name(), self.asset).as_bytes());
        let digest = mac.finalize().into_bytes();
        Some(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Shape {
    fn find(selector: &str) -> Option<Self> {
        if let Some(width) = selector.strip_prefix("width-") {
            return Some(Self::Width(side(width)?));
        }
        let (width, height) = selector.strip_prefix("crop-")?.split_once('x')?;
        Some(Self::Crop(side(width)?, side(height)?))
    }
}

fn side(text: &str) -> Option<u32> {
    let is_plain = !text.starts_with(['0', '+']);
    text.parse().ok().filter(|side| is_plain && (1..=MAX_SIDE).contains(side))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_sizes() {
        let asset =
            |path: &str| ImageAddress::of(path).map(|wish| (wish.asset, wish.shape, wish.ending));
        let a = || "/content/dam/a.jpg".to_owned();
        assert_eq!(
            asset("/content/dam/a.jpg.width-640.webp"),
            Some((a(), Shape::Width(640), Ending::WebP))
        );
        assert_eq!(
            asset("/content/dam/a.jpg.crop-400x300.jpg"),
            Some((a(), Shape::Crop(400, 300), Ending::Jpeg))
        );
        assert_eq!(
            asset("/content/dam/%C3%A4.width-1.png").map(|wish| wish.0).as_deref(),
            Some("/content/dam/ä")
        );
        let hashed = ImageAddress::of("/content/dam/a.jpg.width-640.h-0123456789abcdef.webp");
        let hashed = hashed.unwrap();
        assert_eq!(
            (&*hashed.asset, hashed.hash.as_deref()),
            ("/content/dam/a.jpg", Some("0123456789abcdef"))
        );
        for other in [
            "/content/dam/a.jpg",
            "/content/dam/a.jpg.width-0.webp",
            "/content/dam/a.jpg.width-+5.webp",
            "/content/dam/a.jpg.width-640.html",
            "/content/dam/a.jpg.width-9000.webp",
            "/content/dam/a.jpg.crop-5.webp",
            "/content/dam/a.jpg.crop-5x.webp",
            "/content/dam/a.jpg.width-640.h-xyz.webp",
            "/content/dam/a.jpg.width-640.h-0123456789ABCDEF.webp",
            "/content/dam/a.jpg.width-640.sig-0123.webp",
            "/content/page.width-640",
            "",
        ] {
            assert_eq!(ImageAddress::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_signature_is_of_one_picture_and_one_key() {
        let (key, other) = (ImageKey::of_secret("a"), ImageKey::of_secret("b"));
        let plain = ImageAddress::of("/a.jpg.width-777.webp").unwrap();
        assert!(!plain.is_signed_by(&key));
        let signed = plain.signed(&key);
        assert!(signed.is_signed_by(&key) && !signed.is_signed_by(&other));
        let signature = signed.signature.clone().unwrap();
        let is_signed = |path: &str| {
            let address = ImageAddress::of(&path.replace("SIG", &format!("sig-{signature}")));
            address.unwrap().is_signed_by(&key)
        };
        assert!(is_signed("/a.jpg.width-777.SIG.webp"));
        assert!(is_signed("/a.jpg.width-777.h-0123456789abcdef.SIG.webp"));
        for forged in [
            "/a.jpg.width-778.SIG.webp",
            "/a.jpg.width-777.SIG.png",
            "/b.jpg.width-777.SIG.webp",
            "/a.jpg.crop-777x777.SIG.webp",
        ] {
            assert!(!is_signed(forged), "{forged}");
        }
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let address = ImageAddress {
            asset: "/content/dam/ä b/50%?.jpg".to_owned(),
            shape: Shape::Crop(400, 300),
            ending: Ending::Jpeg,
            hash: Some("0123456789abcdef".to_owned()),
            signature: None,
        };
        let signed = address.signed(&ImageKey::of_secret("a"));
        assert_eq!(ImageAddress::of(&signed.url()), Some(signed.clone()), "{}", signed.url());
    }
}
