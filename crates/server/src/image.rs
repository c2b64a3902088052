//! Pictures in the size that a URL asks for: `/content/dam/a.jpg.width-640.webp`.
//!
//! ```text
//! <asset>.width-640.webp                      whole, 640 columns
//! <asset>.crop-400x300.jpeg                   cut to this shape around the asset's focal point
//! <asset>.width-640.h-<16 hex digits>.webp    with the beginning of the original's hash: never changes
//! <asset>.width-777.sig-<32 hex digits>.webp  a size that is not on the list, signed with the instance's key
//! ```
//!
//! Invariants
//! * Nobody can make an instance draw sizes at will: what is not on the list needs a signature.
//! * Who may not read the asset gets what they would get for the asset itself.
//! * A picture is drawn once, however many ask for it at the same time.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, KeyInit, Mac};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use tympan_content::{BlobId, Node, NodePath, Value};
use tympan_jobs::asset::{
    ASSET, DrawError, Encoding, Fit, Focus, Limits, Order, RenditionOrder, Size, Studio,
};

use crate::failure::{Failure, Result};
use crate::{Instance, Role, page};

/// Widths that anybody may ask for unless configured.
const WIDTHS: [u32; 10] = [160, 320, 480, 640, 768, 1024, 1280, 1600, 1920, 2048];
/// The longest side of a wish, signed or not.
const MAX_SIDE: u32 = 8192;
/// Memory for drawn pictures, in bytes.
const CACHE_BYTES: u64 = 64 << 20;
/// How long a picture whose URL names no hash may be kept without asking.
const MAX_AGE: &str = "max-age=300";
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
const QUALITY: u8 = 82;

/// What an instance draws with.
#[derive(Debug)]
pub(crate) struct Images {
    studio: Arc<Studio>,
    limits: Limits,
    widths: Vec<u32>,
    drawn: Cache<PictureKey, Arc<Picture>, PictureWeight>,
}

/// The original, what is wanted of it, and where the eye goes.
type PictureKey = (BlobId, Wish, (u64, u64));

#[derive(Debug)]
struct Picture {
    media_type: String,
    bytes: bytes::Bytes,
}

#[derive(Debug, Clone)]
struct PictureWeight;

impl<K> Weighter<K, Arc<Picture>> for PictureWeight {
    fn weight(&self, _: &K, picture: &Arc<Picture>) -> u64 {
        picture.bytes.len() as u64 + 256
    }
}

impl Instance {
    /// Lets the instance draw pictures of any asset; without, URLs with sizes are not found. `widths` may be asked for
    /// without a signature; the default list if nothing is given.
    pub fn draw_with(&self, studio: Arc<Studio>, limits: Limits, widths: Option<Vec<u32>>) {
        let images = Images {
            studio,
            limits,
            widths: widths.unwrap_or_else(|| WIDTHS.to_vec()),
            drawn: Cache::with_weighter(2048, CACHE_BYTES, PictureWeight),
        };
        // An instance is told once, when it starts.
        self.images.set(images).ok();
    }
}

/// How a picture is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Shape {
    Width(u32),
    Crop(u32, u32),
}

/// A format that a URL may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ending {
    Jpeg,
    Png,
    WebP,
}

/// A picture that a URL asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Wish {
    asset: String,
    shape: Shape,
    ending: Ending,
    hash: Option<String>,
    signature: Option<String>,
}

impl Wish {
    /// Reads a URL's path; nothing if it asks for no size.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let path = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
        let (rest, ending) = path.rsplit_once('.')?;
        let ending = match ending {
            "jpeg" | "jpg" => Ending::Jpeg,
            "png" => Ending::Png,
            "webp" => Ending::WebP,
            _ => return None,
        };
        let (mut rest, mut selector) = rest.rsplit_once('.')?;
        let mut take = |prefix: &str, digits: usize| -> Option<String> {
            let text = selector.strip_prefix(prefix)?;
            let is_right =
                text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let text = is_right.then(|| text.to_ascii_lowercase())?;
            (rest, selector) = rest.rsplit_once('.')?;
            Some(text)
        };
        let signature = take("sig-", 32);
        let hash = take("h-", 16);
        let shape = if let Some(width) = selector.strip_prefix("width-") {
            Shape::Width(side(width)?)
        } else {
            let (width, height) = selector.strip_prefix("crop-")?.split_once('x')?;
            Shape::Crop(side(width)?, side(height)?)
        };
        Some(Self { asset: rest.to_owned(), shape, ending, hash, signature })
    }

    fn is_listed(&self, widths: &[u32]) -> bool {
        match self.shape {
            Shape::Width(width) => widths.contains(&width),
            // The usual shapes of the listed widths.
            Shape::Crop(width, height) => {
                let is_ratio = |across: u32, down: u32| width * down == height * across;
                widths.contains(&width)
                    && (is_ratio(1, 1) || is_ratio(4, 3) || is_ratio(3, 2) || is_ratio(16, 9))
            }
        }
    }

    /// Returns the signature that lets anybody ask for this.
    fn signature(&self, key: &str) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).ok()?;
        mac.update(
            format!("image\n{}\n{:?}\n{:?}", self.asset, self.shape, self.ending).as_bytes(),
        );
        let digest = mac.finalize().into_bytes();
        Some(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    fn is_signed(&self, key: &str) -> bool {
        match (&self.signature, self.signature(key)) {
            (Some(given), Some(right)) => given.as_bytes().ct_eq(right.as_bytes()).into(),
            _ => false,
        }
    }

    fn order(&self, focus: Focus, limits: Limits) -> Order {
        let (within, fit) = match self.shape {
            // As high as it has to be.
            Shape::Width(width) => (Size { width, height: 4 * MAX_SIDE }, Fit::Inside),
            Shape::Crop(width, height) => (Size { width, height }, Fit::Cover(focus)),
        };
        let encoding = match self.ending {
            Ending::Jpeg => Encoding::Jpeg(QUALITY),
            Ending::Png => Encoding::Png,
            Ending::WebP => Encoding::WebP(QUALITY),
        };
        let rendition = RenditionOrder { name: String::new(), within, fit, encoding };
        Order {
            renditions: vec![rendition],
            metadata: false,
            declared: "image/".to_owned(),
            limits,
        }
    }
}

fn side(text: &str) -> Option<u32> {
    let is_plain = !text.starts_with(['0', '+']);
    text.parse().ok().filter(|side| is_plain && (1..=MAX_SIDE).contains(side))
}

/// Answers a URL with a size, or what the URL means otherwise.
pub(crate) async fn get(instance: Arc<Instance>, request: Request, wish: Wish) -> Response {
    let (parts, body) = request.into_parts();
    match serve(&instance, &parts, wish).await {
        Ok(Some(response)) => response,
        // No asset: a page may have such a name, too.
        Ok(None) => page::get(State(instance), Request::from_parts(parts, body)).await,
        Err(failure) => failure.into_response(),
    }
}

async fn serve(instance: &Arc<Instance>, parts: &Parts, wish: Wish) -> Result<Option<Response>> {
    if instance.images.get().is_none() {
        return Ok(None);
    }
    let identity = instance.identify(parts).await?;
    if instance.role == Role::Author && identity.is_none() {
        return Ok(None);
    }
    let viewer = instance.viewer_of(identity.as_ref())?;
    let path =
        percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8_lossy().into_owned();
    let known = parts.headers.get(header::IF_NONE_MATCH).cloned();
    let is_head = parts.method == Method::HEAD;
    let answer = instance
        .work(move |instance| {
            let snapshot = instance.repository.snapshot()?.seen_by(&viewer);
            // A node of just this name goes first.
            if NodePath::new(&path)
                .is_ok_and(|path| snapshot.node(&path).is_ok_and(|node| node.is_some()))
            {
                return Ok(None);
            }
            let Ok(path) = NodePath::new(&wish.asset) else { return Ok(None) };
            let Some(asset) = snapshot.node(&path)?.filter(|node| node.primary_type() == ASSET)
            else {
                return Ok(None);
            };
            answer(instance, &wish, &asset, known.as_ref(), is_head).map(Some)
        })
        .await?;
    Ok(answer.map(|mut response| {
        if let Some(identity) = identity {
            response.extensions_mut().insert(identity);
        }
        response
    }))
}

fn answer(
    instance: &Instance,
    wish: &Wish,
    asset: &Node,
    known: Option<&HeaderValue>,
    is_head: bool,
) -> Result<Response> {
    let Some(images) = instance.images.get() else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    if !wish.is_listed(&images.widths) && !wish.is_signed(&instance.replication_key) {
        let message =
            "this size is not one that URLs may ask for; `url_widths` in tympan.toml lists them";
        return Err(Failure::new(StatusCode::FORBIDDEN, message));
    }
    let original = asset.find("jcr:content/renditions/original/jcr:content")?;
    let data = original.and_then(|original| original.property("jcr:data"));
    let Some(Value::Binary(blob)) = data.as_ref().and_then(|data| data.first()) else {
        return Err(Failure::new(StatusCode::NOT_FOUND, "the asset has no original"));
    };
    let focus = focus_of(asset)?;
    let spot = (focus.x.to_bits(), focus.y.to_bits());
    let key = (*blob, Wish { hash: None, signature: None, ..wish.clone() }, spot);
    let tag = format!(
        "\"{}-{:?}-{:?}-{:x}\"",
        short(blob),
        wish.shape,
        wish.ending,
        spot.0 ^ spot.1.rotate_left(1)
    );
    let tag = tag.replace(['(', ')', ' ', ','], "_");
    let mut response = if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let picture =
            images.drawn.get_or_insert_with(&key, || draw(instance, images, wish, *blob, focus))?;
        let length = picture.bytes.len();
        let mut response = match is_head {
            true => StatusCode::OK.into_response(),
            false => picture.bytes.clone().into_response(),
        };
        set(&mut response, header::CONTENT_TYPE, &picture.media_type);
        set(&mut response, header::CONTENT_LENGTH, &length.to_string());
        response
    };
    // A URL with the hash of another original shows the present one, and is not kept for good.
    let is_fixed = wish.hash.as_deref().is_some_and(|hash| blob.to_string().starts_with(hash));
    let control = match (is_fixed, instance.role) {
        (true, Role::Publish) => IMMUTABLE,
        (false, Role::Publish) => MAX_AGE,
        // What an author sees depends on who asks.
        (_, Role::Author) => "private, no-cache",
    };
    set(&mut response, header::CACHE_CONTROL, control);
    set(&mut response, header::ETAG, &tag);
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    Ok(response)
}

fn draw(
    instance: &Instance,
    images: &Images,
    wish: &Wish,
    blob: BlobId,
    focus: Focus,
) -> Result<Arc<Picture>> {
    let open = || {
        let opened = instance.repository.blobs().open(&blob).map_err(std::io::Error::other)?;
        opened.ok_or_else(|| std::io::Error::other(format!("the blob {blob} is missing")))
    };
    let drawn = images.studio.draw(&open, &wish.order(focus, images.limits));
    let drawn = drawn.map_err(|error| match &error {
        DrawError::File(reason) => Failure::new(
            StatusCode::NOT_FOUND,
            format!("there is no picture of this asset: {reason}"),
        ),
        other => Failure::new(StatusCode::SERVICE_UNAVAILABLE, other.to_string()),
    })?;
    let rendition = drawn.renditions.into_iter().next();
    let rendition = rendition
        .ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, "there is no picture of this asset"))?;
    Ok(Arc::new(Picture { media_type: rendition.media_type, bytes: rendition.bytes.into() }))
}

/// Reads where the eye goes; the middle if nobody said.
fn focus_of(asset: &Node) -> Result<Focus> {
    let metadata = asset.find("jcr:content/metadata")?;
    let share = |name: &str| {
        let property = metadata.as_ref()?.property(name)?;
        let share: f64 = property.first()?.to_text().parse().ok()?;
        (0.0..=1.0).contains(&share).then_some(share)
    };
    Ok(Focus { x: share("dam:focalX").unwrap_or(0.5), y: share("dam:focalY").unwrap_or(0.5) })
}

fn short(blob: &BlobId) -> String {
    blob.to_string().chars().take(16).collect()
}

fn set(response: &mut Response, name: header::HeaderName, value: &str) {
    // None of the values can hold what a header cannot.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_sizes() {
        let asset = |path: &str| Wish::of(path).map(|wish| (wish.asset, wish.shape, wish.ending));
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
        let hashed = Wish::of("/content/dam/a.jpg.width-640.h-0123456789ABCDEF.webp").unwrap();
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
            "/content/dam/a.jpg.width-640.h-xyz.webp",
            "/content/page.width-640",
            "",
        ] {
            assert_eq!(Wish::of(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_listed_needs_the_right_signature() {
        let wish = Wish::of("/a.jpg.width-777.webp").unwrap();
        assert!(!wish.is_listed(&WIDTHS) && !wish.is_signed("key"));
        let signature = wish.signature("key").unwrap();
        let signed = |path: &str| Wish::of(path).unwrap();
        assert!(signed(&format!("/a.jpg.width-777.sig-{signature}.webp")).is_signed("key"));
        assert!(!signed(&format!("/a.jpg.width-777.sig-{signature}.webp")).is_signed("other"));
        assert!(!signed(&format!("/a.jpg.width-778.sig-{signature}.webp")).is_signed("key"));
        assert!(!signed(&format!("/b.jpg.width-777.sig-{signature}.webp")).is_signed("key"));
        assert!(signed("/a.jpg.crop-640x360.webp").is_listed(&WIDTHS));
        assert!(!signed("/a.jpg.crop-640x361.webp").is_listed(&WIDTHS));
    }
}
