//! Addresses of sized images of an asset: written by templates, parsed by the server.
//!
//! ```text
//! <asset>.width-640.webp                      whole, 640 columns
//! <asset>.crop-400x300.jpeg                   cut to this shape around the asset's focal point
//! <asset>.width-640.h-<16 hex digits>.webp    with the beginning of the original's hash: never changes
//! <asset>.width-777.sig-<32 hex digits>.webp  signed with the instances' key: any size
//! ```
//!
//! The signature covers the asset, the size and the format, but not the hash, which only tells caches how long to store
//! the image.
//!
//! Not here: the sizes that need no signature, and image processing (`server::image_address`).

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::page::link::encode_path;

/// Maximum side length in an address, in pixels.
pub const MAX_IMAGE_SIDE: u32 = 8192;

/// The requested shape of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageShape {
    /// Uncropped, with this width in pixels.
    Width(u32),
    /// Cropped to this width and height.
    Crop(u32, u32),
}

impl fmt::Display for ImageShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Width(width) => write!(f, "width-{width}"),
            Self::Crop(width, height) => write!(f, "crop-{width}x{height}"),
        }
    }
}

/// A format that an address may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormatExtension {
    /// JPEG; also written `jpg`.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
}

impl ImageFormatExtension {
    /// Finds a format by its extension.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "jpeg" | "jpg" => Self::Jpeg,
            "png" => Self::Png,
            "webp" => Self::WebP,
            _ => return None,
        })
    }

    /// Returns the extension.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
        }
    }
}

/// The key that signs addresses; instances share it, and templates cannot read it.
#[derive(Clone, Copy)]
pub struct ImageSigningKey([u8; 32]);

impl ImageSigningKey {
    /// Derives the key from the secret that the instances share.
    #[must_use]
    pub fn from_secret(secret: &str) -> Self {
        Self(Sha256::digest(format!("image addresses\n{secret}")).into())
    }
}

impl fmt::Debug for ImageSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ImageKey")
    }
}

/// A sized image of an asset, as an address names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageAddress {
    /// The path of the asset.
    pub asset: String,
    /// The requested shape.
    pub shape: ImageShape,
    /// The requested format.
    pub extension: ImageFormatExtension,
    /// The first 16 digits of the original's hash, in lower case.
    pub hash: Option<String>,
    /// The signature, in lower case.
    pub signature: Option<String>,
}

impl ImageAddress {
    /// Parses a URL path; `None` if it names no size.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let path = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
        let (rest, ending) = path.rsplit_once('.')?;
        let ending = ImageFormatExtension::parse(ending)?;
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
        let shape = ImageShape::parse(selector)?;
        Some(Self { asset: rest.to_owned(), shape, extension: ending, hash, signature })
    }

    /// Returns the URL path of this image.
    #[must_use]
    pub fn to_url(&self) -> String {
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
        url.push_str(self.extension.name());
        url
    }

    /// Adds a signature to the address.
    #[must_use]
    pub fn sign(self, key: &ImageSigningKey) -> Self {
        Self { signature: self.compute_signature(key), ..self }
    }

    /// Returns true if the signature was made with the key.
    #[must_use]
    pub fn is_signed_by(&self, key: &ImageSigningKey) -> bool {
        match (&self.signature, self.compute_signature(key)) {
            (Some(signature), Some(right)) => signature.as_bytes().ct_eq(right.as_bytes()).into(),
            _ => false,
        }
    }

    fn compute_signature(&self, key: &ImageSigningKey) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
        // A shape or format contains no line break, so that the parts are unambiguous.
        mac.update(format!("{}\n{}\n{}", self.shape, self.extension.name(), self.asset).as_bytes());
        let digest = mac.finalize().into_bytes();
        Some(format!("{:.32}", hex::encode(digest)))
    }
}

impl ImageShape {
    fn parse(selector: &str) -> Option<Self> {
        if let Some(width) = selector.strip_prefix("width-") {
            return Some(Self::Width(parse_side(width)?));
        }
        let (width, height) = selector.strip_prefix("crop-")?.split_once('x')?;
        Some(Self::Crop(parse_side(width)?, parse_side(height)?))
    }
}

fn parse_side(text: &str) -> Option<u32> {
    let is_plain = !text.starts_with(['0', '+']);
    text.parse().ok().filter(|side| is_plain && (1..=MAX_IMAGE_SIDE).contains(side))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_sizes() {
        let asset = |path: &str| {
            ImageAddress::parse(path)
                .map(|address| (address.asset, address.shape, address.extension))
        };
        let a = || "/content/dam/a.jpg".to_owned();
        assert_eq!(
            asset("/content/dam/a.jpg.width-640.webp"),
            Some((a(), ImageShape::Width(640), ImageFormatExtension::WebP))
        );
        assert_eq!(
            asset("/content/dam/a.jpg.crop-400x300.jpg"),
            Some((a(), ImageShape::Crop(400, 300), ImageFormatExtension::Jpeg))
        );
        assert_eq!(
            asset("/content/dam/%C3%A4.width-1.png").map(|wish| wish.0).as_deref(),
            Some("/content/dam/ä")
        );
        let hashed = ImageAddress::parse("/content/dam/a.jpg.width-640.h-0123456789abcdef.webp");
        let hashed = hashed.unwrap();
        assert_eq!(
            (&*hashed.asset, hashed.hash.as_deref()),
            ("/content/dam/a.jpg", Some("0123456789abcdef"))
        );
        for invalid_path in [
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
            assert_eq!(ImageAddress::parse(invalid_path), None, "{invalid_path}");
        }
    }

    #[test]
    fn a_signature_is_of_one_picture_and_one_key() {
        let (key, other_key) =
            (ImageSigningKey::from_secret("a"), ImageSigningKey::from_secret("b"));
        let plain = ImageAddress::parse("/a.jpg.width-777.webp").unwrap();
        assert!(!plain.is_signed_by(&key));
        let signed = plain.sign(&key);
        assert!(signed.is_signed_by(&key) && !signed.is_signed_by(&other_key));
        let signature = signed.signature.clone().unwrap();
        let is_signed = |path: &str| {
            let address = ImageAddress::parse(&path.replace("SIG", &format!("sig-{signature}")));
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
            shape: ImageShape::Crop(400, 300),
            extension: ImageFormatExtension::Jpeg,
            hash: Some("0123456789abcdef".to_owned()),
            signature: None,
        };
        let signed = address.sign(&ImageSigningKey::from_secret("a"));
        assert_eq!(
            ImageAddress::parse(&signed.to_url()),
            Some(signed.clone()),
            "{}",
            signed.to_url()
        );
    }
}
