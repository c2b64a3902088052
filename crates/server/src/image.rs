//! Pictures in the size that a URL asks for: `/content/dam/a.jpg.width-640.webp`; `tympan_render::ImageAddress` says what
//! such URLs look like.
//!
//! Invariants
//! * Nobody can make an instance draw sizes at will: what is not on the list needs a signature.
//! * Who may not read the asset gets what they would get for the asset itself.
//! * A picture is drawn once, however many ask for it at the same time.
//! * Drawing takes no permit of those that render pages; how many draw at once and how many wait is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;
use tympan_content::{BlobContent, BlobId, Node, NodePath, Repository, Snapshot, Value};
use tympan_jobs::asset::{
    ASSET, AssetCounters, DrawError, Encoding, Fit, Focus, Limits, Order, RenditionOrder, Size,
    Studio,
};
use tympan_render::export::Pictures;
use tympan_render::ledger::{Ledger, Recorded};
use tympan_render::url::Url;
use tympan_render::{Aspects, Dependencies, Ending, ImageAddress, ImageKey, MAX_SIDE, Shape};

use crate::failure::{Failure, Result};
use crate::metrics::count;
use crate::pool::PoolState;
use crate::surrogate::add_keys;
use crate::{Instance, Role, page};

/// Widths that anybody may ask for unless configured.
const WIDTHS: [u32; 10] = [160, 320, 480, 640, 768, 1024, 1280, 1600, 1920, 2048];
/// Memory for drawn pictures, in bytes.
const CACHE_BYTES: u64 = 64 << 20;
/// How many pictures may wait for each that is drawn.
const WAITING_FOR_EACH: usize = 32;
/// How long a picture whose URL names no hash may be kept without asking.
const MAX_AGE: &str = "max-age=300";
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
const QUALITY: u8 = 82;

/// What an instance draws with.
#[derive(Debug)]
pub struct ImageOptions {
    /// What draws: at the priority of the server, as visitors wait.
    pub studio: Arc<Studio>,
    /// What one picture may cost.
    pub limits: Limits,
    /// Widths that may be asked for without a signature; the default list if nothing is given.
    pub widths: Option<Vec<u32>>,
    /// How many pictures are drawn at once.
    pub parallel: usize,
    /// What the processing of assets counts, where this instance does any.
    pub assets: Option<Arc<AssetCounters>>,
}

/// What an instance draws with, and what it has drawn.
#[derive(Debug)]
pub(crate) struct Images {
    studio: Arc<Studio>,
    limits: Limits,
    widths: Vec<u32>,
    key: ImageKey,
    drawn: Cache<PictureKey, Arc<Picture>, PictureWeight>,
    drawing: Arc<Semaphore>,
    /// How many draw or wait, and how many may.
    busy: AtomicUsize,
    most_busy: usize,
    assets: Option<Arc<AssetCounters>>,
}

/// The original, what is wanted of it, and where the eye goes.
type PictureKey = (BlobId, Shape, Ending, (u64, u64));

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
    /// Lets the instance draw pictures of any asset; without, URLs with sizes are not found.
    pub fn draw_with(&self, options: ImageOptions) {
        let parallel = options.parallel.max(1);
        let images = Images {
            studio: options.studio,
            limits: options.limits,
            widths: options.widths.unwrap_or_else(|| WIDTHS.to_vec()),
            key: ImageKey::of_secret(&self.replication_key),
            drawn: Cache::with_weighter(2048, CACHE_BYTES, PictureWeight),
            drawing: Arc::new(Semaphore::new(parallel)),
            busy: AtomicUsize::new(0),
            most_busy: parallel * (1 + WAITING_FOR_EACH),
            assets: options.assets,
        };
        // An instance is told once, when it starts.
        self.images.set(images).ok();
    }
}

/// Tells whether anybody may ask for this shape: a listed width, or one of the usual shapes of a listed width.
fn is_listed(shape: Shape, widths: &[u32]) -> bool {
    match shape {
        Shape::Width(width) => widths.contains(&width),
        Shape::Crop(width, height) => {
            let is_ratio = |across: u32, down: u32| width * down == height * across;
            widths.contains(&width)
                && (is_ratio(1, 1) || is_ratio(4, 3) || is_ratio(3, 2) || is_ratio(16, 9))
        }
    }
}

/// Tells whether an address may be asked for: by its size, or by its signature.
fn may_ask(address: &ImageAddress, widths: &[u32], key: &ImageKey) -> bool {
    is_listed(address.shape, widths) || address.is_signed_by(key)
}

fn order_of(address: &ImageAddress, focus: Focus, limits: Limits) -> Order {
    let (within, fit) = match address.shape {
        // As high as it has to be.
        Shape::Width(width) => (Size { width, height: 4 * MAX_SIDE }, Fit::Inside),
        Shape::Crop(width, height) => (Size { width, height }, Fit::Cover(focus)),
    };
    let encoding = match address.ending {
        Ending::Jpeg => Encoding::Jpeg(QUALITY),
        Ending::Png => Encoding::Png,
        Ending::WebP => Encoding::WebP(QUALITY),
    };
    let rendition = RenditionOrder { name: String::new(), within, fit, encoding };
    Order { renditions: vec![rendition], metadata: false, declared: "image/".to_owned(), limits }
}

/// Answers a URL with a size, or what the URL means otherwise.
pub(crate) async fn get(
    instance: Arc<Instance>,
    request: Request,
    address: ImageAddress,
) -> Response {
    let (parts, body) = request.into_parts();
    match serve(&instance, &parts, address).await {
        Ok(Some(response)) => response,
        // No asset: a page may have such a name, too.
        Ok(None) => page::get(State(instance), Request::from_parts(parts, body)).await,
        Err(failure) => failure.into_response(),
    }
}

async fn serve(
    instance: &Arc<Instance>,
    parts: &Parts,
    address: ImageAddress,
) -> Result<Option<Response>> {
    let Some(images) = instance.images.get() else { return Ok(None) };
    // A filter judged the path by its text; where it refuses what is read here, there is nothing here.
    let extension = Some(String::new());
    let reading = Url { path: address.asset.clone(), extension, ..Url::default() };
    if reading.is_refused_by(&parts.headers) {
        return Err(Failure::new(StatusCode::NOT_FOUND, "there is nothing here"));
    }
    let identity = instance.identify(parts).await?;
    if instance.role == Role::Author && identity.is_none() {
        return Ok(None);
    }
    let viewer = instance.viewer_of(identity.as_ref())?;
    let anonymous = instance.viewer_of(None)?;
    let path =
        percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8_lossy().into_owned();
    let (wished, url) = (address.clone(), parts.uri.path().to_owned());
    let wanted = instance
        .work(move |instance| {
            let ticket = instance.ledger.as_ref().map(Ledger::ticket);
            let snapshot = instance.repository.snapshot()?.seen_by(&viewer);
            // A node of just this name goes first.
            let own = NodePath::new(&path).ok();
            if own.as_ref().is_some_and(|own| snapshot.node(own).is_ok_and(|node| node.is_some())) {
                return Ok(None);
            }
            let Ok(path) = NodePath::new(&wished.asset) else { return Ok(None) };
            let Some(asset) = snapshot.node(&path)?.filter(|node| node.primary_type() == ASSET)
            else {
                return Ok(None);
            };
            let mut wanted = Wanted::of(instance, &wished, &asset)?;
            if viewer != anonymous {
                let seen = instance.repository.snapshot()?.seen_by(&anonymous);
                wanted.is_private = seen.node(&path)?.is_none();
            }
            let (Some(ledger), Some(ticket)) = (&instance.ledger, ticket) else {
                return Ok(Some((wanted, Recorded::Kept)));
            };
            let when = (ticket, snapshot.seen_root());
            Ok(Some((wanted, ledger.record(when, &url, &read_for(path, own)))))
        })
        .await?;
    let Some((wanted, recorded)) = wanted else { return Ok(None) };
    let is_private = wanted.is_private;
    let mut response = answer(instance, images, parts, &wanted).await?;
    add_keys(instance, parts.uri.path(), response.headers_mut());
    if is_private && instance.role == Role::Publish {
        response = page::unshared(response);
    }
    if recorded != Recorded::Kept {
        response = page::unkept(response);
    }
    if let Some(identity) = identity {
        response.extensions_mut().insert(identity);
    }
    Ok(Some(response))
}

/// Returns what a picture is drawn from: anything of the asset, which may be a part of a larger document, and that no node
/// has just the name that was asked for.
fn read_for(asset: NodePath, own: Option<NodePath>) -> Dependencies {
    let mut read = vec![(asset, Aspects::EXISTENCE.and(Aspects::BELOW))];
    read.extend(own.map(|own| (own, Aspects::EXISTENCE)));
    Dependencies::of(&read)
}

/// A picture that somebody may have.
struct Wanted {
    address: ImageAddress,
    blob: BlobId,
    focus: Focus,
    /// Whether not everybody may have it.
    is_private: bool,
}

impl Wanted {
    /// Finds what is drawn.
    ///
    /// # Errors
    /// If the size is refused, or there is nothing to draw.
    fn of(instance: &Instance, address: &ImageAddress, asset: &Node) -> Result<Self> {
        let images = instance.images.get();
        let may_ask = images.is_some_and(|images| may_ask(address, &images.widths, &images.key));
        if !may_ask {
            count(&instance.metrics.images_refused);
            let message = "this size is not one that URLs may ask for; `url_widths` in tympan.toml lists them";
            return Err(Failure::new(StatusCode::FORBIDDEN, message));
        }
        Self::find(address, asset)
    }

    /// Finds what is drawn for an address that may be asked for.
    fn find(address: &ImageAddress, asset: &Node) -> Result<Self> {
        let original = asset.find("jcr:content/renditions/original/jcr:content")?;
        let data = original.and_then(|original| original.property("jcr:data"));
        let Some(Value::Binary(blob)) = data.as_ref().and_then(|data| data.first()) else {
            return Err(Failure::new(StatusCode::NOT_FOUND, "the asset has no original"));
        };
        refuse_failed(asset, blob)?;
        Ok(Self {
            address: address.clone(),
            blob: *blob,
            focus: focus_of(asset)?,
            is_private: false,
        })
    }

    fn key(&self) -> PictureKey {
        let spot = (self.focus.x.to_bits(), self.focus.y.to_bits());
        (self.blob, self.address.shape, self.address.ending, spot)
    }

    fn tag(&self) -> String {
        let (blob, shape, ending, spot) = self.key();
        let spot = spot.0 ^ spot.1.rotate_left(1);
        format!("\"{}-{shape}-{}-{spot:x}\"", short(&blob), ending.name())
    }
}

async fn answer(
    instance: &Arc<Instance>,
    images: &Images,
    parts: &Parts,
    wanted: &Wanted,
) -> Result<Response> {
    let tag = wanted.tag();
    let known = parts.headers.get(header::IF_NONE_MATCH);
    let mut response = if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let picture = picture_of(instance, images, wanted).await?;
        let mut response = match parts.method == Method::HEAD {
            true => StatusCode::OK.into_response(),
            false => picture.bytes.clone().into_response(),
        };
        set(&mut response, header::CONTENT_TYPE, &picture.media_type);
        set(&mut response, header::CONTENT_LENGTH, &picture.bytes.len().to_string());
        response
    };
    // A URL with the hash of another original shows the present one, and is not kept for good.
    let hash = wanted.address.hash.as_deref();
    let is_fixed = hash.is_some_and(|hash| wanted.blob.to_string().starts_with(hash));
    let control = match (is_fixed, instance.role) {
        (true, Role::Publish) => IMMUTABLE,
        (false, Role::Publish) => MAX_AGE,
        // What an author sees depends on who asks.
        (_, Role::Author) => "private, no-cache",
    };
    set(&mut response, header::CACHE_CONTROL, control);
    // Anybody can make up hashes and signatures, and each would be a file of caches.
    let is_made_up = (hash.is_some() && !is_fixed)
        || (wanted.address.signature.is_some() && !wanted.address.is_signed_by(&images.key));
    if is_made_up {
        response.headers_mut().insert("dispatcher", HeaderValue::from_static("no-cache"));
    }
    set(&mut response, header::ETAG, &tag);
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    Ok(response)
}

/// Returns the picture; one that is not at hand is drawn, and all who want it meanwhile wait for that.
async fn picture_of(
    instance: &Arc<Instance>,
    images: &Images,
    wanted: &Wanted,
) -> Result<Arc<Picture>> {
    let key = wanted.key();
    if let Some(picture) = images.drawn.get(&key) {
        count(&instance.metrics.image_hits);
        return Ok(picture);
    }
    let _busy = Busy::enter(images).ok_or_else(|| {
        count(&instance.metrics.images_put_off);
        let message = "too many pictures are being drawn; try again in a moment";
        Failure { retry_after: Some(1), ..Failure::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    })?;
    images.drawn.get_or_insert_async(&key, draw(instance, images, wanted)).await
}

/// A request that draws or waits.
struct Busy<'a>(&'a Images);

impl<'a> Busy<'a> {
    /// Counts a request in, unless there are too many.
    fn enter(images: &'a Images) -> Option<Self> {
        let before = images.busy.fetch_add(1, Ordering::Relaxed);
        let entered = Self(images);
        (before < images.most_busy).then_some(entered)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn draw(instance: &Arc<Instance>, images: &Images, wanted: &Wanted) -> Result<Arc<Picture>> {
    let closed = || Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops");
    let permit = Arc::clone(&images.drawing).acquire_owned().await.map_err(|_| closed())?;
    let (blob, studio) = (wanted.blob, Arc::clone(&images.studio));
    let order = order_of(&wanted.address, wanted.focus, images.limits);
    let reader = Arc::clone(instance);
    let drawn = tokio::task::spawn_blocking(move || {
        let drawn = studio.draw(&|| open(&reader.repository, &blob), &order);
        drop(permit);
        drawn
    })
    .await?;
    count(&instance.metrics.images_drawn);
    let nothing = |reason: &str| {
        count(&instance.metrics.images_failed);
        Failure::new(StatusCode::NOT_FOUND, format!("there is no picture of this asset{reason}"))
    };
    let drawn = drawn.map_err(|error| match &error {
        DrawError::File(reason) => nothing(&format!(": {reason}")),
        other => match repair_hint(other) {
            Some(hint) => Failure::damaged(hint),
            None => Failure::new(StatusCode::SERVICE_UNAVAILABLE, other.to_string()),
        },
    })?;
    let rendition = drawn.renditions.into_iter().next().ok_or_else(|| nothing(""))?;
    Ok(Arc::new(Picture { media_type: rendition.media_type, bytes: rendition.bytes.into() }))
}

/// Returns how many pictures are drawn, and how many wait.
pub(crate) fn pool(instance: &Instance) -> Option<PoolState> {
    let images = instance.images.get()?;
    let free = images.drawing.available_permits();
    let limit = images.most_busy / (1 + WAITING_FOR_EACH);
    let (in_use, busy) = (limit.saturating_sub(free), images.busy.load(Ordering::Relaxed));
    Some(PoolState {
        name: "pictures".to_owned(),
        in_use: in_use as u64,
        idle: free as u64,
        limit: limit as u64,
        waiting: busy.saturating_sub(in_use) as u64,
        timeouts: 0,
        refused: instance.metrics.images_put_off.load(Ordering::Relaxed),
    })
}

fn open(repository: &Repository, blob: &BlobId) -> std::io::Result<BlobContent> {
    let opened = repository.blobs().open(blob);
    let opened =
        opened.map_err(|error| std::io::Error::other(tympan_content::Error::from(error)))?;
    opened.ok_or_else(|| std::io::Error::other(tympan_content::Error::BlobMissing(*blob)))
}

/// Tells what helps, if the stored original is damaged or gone.
fn repair_hint(error: &DrawError) -> Option<&'static str> {
    let DrawError::System { source, .. } = error else { return None };
    source.get_ref()?.downcast_ref::<tympan_content::Error>()?.repair_hint()
}

/// Draws pictures for a static export, with the sizes and signatures that URLs of an instance may have.
#[derive(Debug)]
pub struct ExportPictures {
    repository: Repository,
    studio: Arc<Studio>,
    limits: Limits,
    widths: Vec<u32>,
    key: ImageKey,
}

impl ExportPictures {
    /// Takes what an instance draws with, and the key that its addresses are signed with.
    #[must_use]
    pub fn new(repository: Repository, options: ImageOptions, replication_key: &str) -> Self {
        let ImageOptions { studio, limits, widths, .. } = options;
        let widths = widths.unwrap_or_else(|| WIDTHS.to_vec());
        Self { repository, studio, limits, widths, key: ImageKey::of_secret(replication_key) }
    }
}

impl Pictures for ExportPictures {
    fn picture(
        &self,
        snapshot: &Snapshot,
        address: &ImageAddress,
    ) -> Result<Option<bytes::Bytes>, String> {
        let path = NodePath::new(&address.asset).map_err(|error| error.to_string())?;
        let asset = snapshot.node(&path).map_err(|error| error.to_string())?;
        let Some(asset) = asset.filter(|node| node.primary_type() == ASSET) else {
            return Ok(None);
        };
        if !may_ask(address, &self.widths, &self.key) {
            return Ok(None);
        }
        let wanted = Wanted::find(address, &asset).map_err(|failure| failure.message)?;
        let order = order_of(address, wanted.focus, self.limits);
        let drawn = self.studio.draw(&|| open(&self.repository, &wanted.blob), &order);
        let drawn = drawn.map_err(|error| error.to_string())?;
        let rendition = drawn.renditions.into_iter().next();
        Ok(Some(rendition.ok_or("there is no picture of this asset")?.bytes.into()))
    }
}

/// Writes what became of assets in this process as Prometheus text.
pub(crate) fn metrics(instance: &Instance, role: &str) -> String {
    let mut text = String::new();
    let assets = instance.images.get().and_then(|images| images.assets.as_ref());
    for (name, about, value) in assets.map(|counters| counters.all()).unwrap_or_default() {
        text.push_str(&format!(
            "# HELP tympan_assets_{name}_total {about}\n# TYPE tympan_assets_{name}_total counter\n\
             tympan_assets_{name}_total{{role=\"{role}\"}} {value}\n"
        ));
    }
    text
}

/// Refuses an original that is known not to be drawn: each new try would cost as much as the first.
fn refuse_failed(asset: &Node, blob: &BlobId) -> Result<()> {
    let Some(content) = asset.content()? else { return Ok(()) };
    let is_failed = content.text("dam:assetState").as_deref() == Some("failed")
        && content.text("dam:processedOriginal").is_some_and(|of| of == blob.to_string());
    if !is_failed {
        return Ok(());
    }
    let reason = content.text("dam:failureReason").unwrap_or_default();
    let message = format!("there is no picture of this asset: {reason}");
    Err(Failure::new(StatusCode::NOT_FOUND, message))
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
    use std::time::SystemTime;

    use tympan_content::{Property, Subtree};
    use tympan_render::Touched;

    use super::*;

    /// A folder of any type is a document with all that is in it.
    #[test]
    fn another_original_concerns_the_pictures_of_an_asset_wherever_it_lies() {
        let path = |text: &str| NodePath::new(text).unwrap();
        for folder in ["sling:Folder", "nt:unstructured"] {
            let repository = Repository::memory().unwrap();
            let put = |asset: &str, bytes: &[u8]| {
                let blob = repository.blobs().put(&mut std::io::Cursor::new(bytes)).unwrap();
                let data = Property::Single(Value::Binary(blob));
                let holder = Subtree::new("jcr:content", "nt:resource").with("jcr:data", data);
                let original = Subtree::new("original", "nt:file").with_child(holder);
                let renditions = Subtree::new("renditions", "nt:folder").with_child(original);
                let content =
                    Subtree::new("jcr:content", "dam:AssetContent").with_child(renditions);
                let mut session = repository.session("test").unwrap();
                if session.node(&path("/dam")).unwrap().is_none() {
                    session.put(&path("/dam"), Subtree::new("dam", folder)).unwrap();
                }
                session
                    .put(&path(asset), Subtree::new("a.jpg", ASSET).with_child(content))
                    .unwrap();
                session.commit("put", SystemTime::UNIX_EPOCH).unwrap();
                repository.snapshot().unwrap()
            };
            let before = put("/dam/a.jpg", b"one");
            let own = Some(path("/dam/a.jpg.width-640.webp"));
            let read = read_for(path("/dam/a.jpg"), own);
            let other = put("/dam/b.jpg", b"other");
            let between = |before, after| Touched::between(before, after).unwrap();
            assert!(!between(&before, &other).concerns(&read), "{folder}");
            assert!(between(&other, &put("/dam/a.jpg", b"two")).concerns(&read), "{folder}");
        }
    }

    #[test]
    fn shapes_that_anybody_may_ask_for() {
        for (shape, expected) in [
            (Shape::Width(640), true),
            (Shape::Width(641), false),
            (Shape::Crop(640, 360), true),
            (Shape::Crop(640, 480), true),
            (Shape::Crop(640, 640), true),
            (Shape::Crop(640, 361), false),
            (Shape::Crop(777, 777), false),
        ] {
            assert_eq!(is_listed(shape, &WIDTHS), expected, "{shape}");
        }
    }
}
