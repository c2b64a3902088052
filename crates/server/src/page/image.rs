//! Pictures in the size that a URL requests: `/content/dam/a.jpg.width-640.webp`; `tympan_render::ImageAddress` defines
//! the syntax of these URLs.
//!
//! Invariants
//! * Clients cannot make an instance render arbitrary sizes: a size that is not listed needs a signature.
//! * A user who may not read the asset receives the response for the asset itself.
//! * A picture is rendered once, even if several requests arrive for it at the same time.
//! * Rendering a picture takes no permit of page rendering; the numbers of parallel and waiting renderings are bounded.

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
    ASSET_NODE_TYPE, AssetCounters, AssetProcessingRequest, FocalPoint, ImageSize,
    ProcessingLimits, RenditionEncoding, RenditionError, RenditionProcessPool, RenditionSpec,
    ResizeMode,
};
use tympan_render::export::ExportImageSource;
use tympan_render::ledger::{DependencyLedger, RecordOutcome};
use tympan_render::url::SlingUrl;
use tympan_render::{
    DependencySet, ImageAddress, ImageFormatExtension, ImageShape, ImageSigningKey, MAX_IMAGE_SIDE,
    PathAspects,
};

use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;
use crate::observe::pool::PoolState;
use crate::page::surrogate_key::add_surrogate_keys;
use crate::{Instance, InstanceRole, page};

/// Default list of widths that can be requested without a signature.
const DEFAULT_IMAGE_WIDTHS: [u32; 10] = [160, 320, 480, 640, 768, 1024, 1280, 1600, 1920, 2048];
/// Memory for the cache of rendered pictures, in bytes.
const IMAGE_CACHE_BYTES: u64 = 64 << 20;
/// Maximum number of waiting requests per parallel rendering.
const MAX_WAITING_PER_RENDER: usize = 32;
/// Cache lifetime of a picture whose URL contains no hash.
const UNHASHED_CACHE_CONTROL: &str = "max-age=300";
const HASHED_CACHE_CONTROL: &str = "public, max-age=31536000, immutable";
const JPEG_QUALITY: u8 = 82;

/// Options for the picture rendering of an instance.
#[derive(Debug)]
pub struct ImageOptions {
    /// The processes that render pictures. They run at the priority of the server, because visitors wait for them.
    pub rendition_pool: Arc<RenditionProcessPool>,
    /// Resource limits of one picture.
    pub limits: ProcessingLimits,
    /// Widths that can be requested without a signature; the default list if `None`.
    pub widths: Option<Vec<u32>>,
    /// Maximum number of pictures rendered in parallel.
    pub max_parallel_renders: usize,
    /// The counters of asset processing, if this instance processes assets.
    pub asset_counters: Option<Arc<AssetCounters>>,
}

/// The picture renderer of an instance and its cache.
#[derive(Debug)]
pub(crate) struct ImageService {
    rendition_pool: Arc<RenditionProcessPool>,
    limits: ProcessingLimits,
    widths: Vec<u32>,
    signing_key: ImageSigningKey,
    rendered_images: Cache<RenderedImageKey, Arc<RenderedImage>, RenderedImageWeigher>,
    render_permits: Arc<Semaphore>,
    /// Number of requests that are rendering or waiting.
    active_requests: AtomicUsize,
    max_active_requests: usize,
    asset_counters: Option<Arc<AssetCounters>>,
}

/// The original, the requested shape and format, and the focal point.
type RenderedImageKey = (BlobId, ImageShape, ImageFormatExtension, (u64, u64));

#[derive(Debug)]
struct RenderedImage {
    media_type: String,
    bytes: bytes::Bytes,
}

#[derive(Debug, Clone)]
struct RenderedImageWeigher;

impl<K> Weighter<K, Arc<RenderedImage>> for RenderedImageWeigher {
    fn weight(&self, _: &K, picture: &Arc<RenderedImage>) -> u64 {
        picture.bytes.len() as u64 + 256
    }
}

impl Instance {
    /// Enables picture rendering for all assets; without it, URLs with sizes are not found.
    pub fn set_image_options(&self, options: ImageOptions) {
        let parallel = options.max_parallel_renders.max(1);
        let images = ImageService {
            rendition_pool: options.rendition_pool,
            limits: options.limits,
            widths: options.widths.unwrap_or_else(|| DEFAULT_IMAGE_WIDTHS.to_vec()),
            signing_key: ImageSigningKey::from_secret(&self.replication_key),
            rendered_images: Cache::with_weighter(2048, IMAGE_CACHE_BYTES, RenderedImageWeigher),
            render_permits: Arc::new(Semaphore::new(parallel)),
            active_requests: AtomicUsize::new(0),
            max_active_requests: parallel * (1 + MAX_WAITING_PER_RENDER),
            asset_counters: options.asset_counters,
        };
        // Set once, when the instance starts; later calls are ignored.
        self.image_service.set(images).ok();
    }
}

/// Returns true if a shape can be requested without a signature: a listed width, or one of the usual shapes of a listed
/// width.
fn is_listed_shape(shape: ImageShape, widths: &[u32]) -> bool {
    match shape {
        ImageShape::Width(width) => widths.contains(&width),
        ImageShape::Crop(width, height) => {
            let is_ratio = |across: u32, down: u32| width * down == height * across;
            widths.contains(&width)
                && (is_ratio(1, 1) || is_ratio(4, 3) || is_ratio(3, 2) || is_ratio(16, 9))
        }
    }
}

/// Returns true if an address is allowed, by its size or by its signature.
fn is_address_allowed(address: &ImageAddress, widths: &[u32], key: &ImageSigningKey) -> bool {
    is_listed_shape(address.shape, widths) || address.is_signed_by(key)
}

fn render_order_of(
    address: &ImageAddress,
    focus: FocalPoint,
    limits: ProcessingLimits,
) -> AssetProcessingRequest {
    let (within, fit) = match address.shape {
        // The height follows from the width.
        ImageShape::Width(width) => {
            (ImageSize { width, height: 4 * MAX_IMAGE_SIDE }, ResizeMode::Inside)
        }
        ImageShape::Crop(width, height) => (ImageSize { width, height }, ResizeMode::Cover(focus)),
    };
    let encoding = match address.extension {
        ImageFormatExtension::Jpeg => RenditionEncoding::Jpeg(JPEG_QUALITY),
        ImageFormatExtension::Png => RenditionEncoding::Png,
        ImageFormatExtension::WebP => RenditionEncoding::WebP(JPEG_QUALITY),
    };
    let rendition = RenditionSpec { name: String::new(), within, fit, encoding };
    AssetProcessingRequest {
        renditions: vec![rendition],
        metadata: false,
        declared: "image/".to_owned(),
        limits,
    }
}

/// Serves a URL with a size; falls back to the other meaning of the URL.
pub(crate) async fn get_image(
    instance: Arc<Instance>,
    request: Request,
    address: ImageAddress,
) -> Response {
    let (parts, body) = request.into_parts();
    match serve_image(&instance, &parts, address).await {
        Ok(Some(response)) => response,
        // Not an asset; the name may belong to a page.
        Ok(None) => page::get_page(State(instance), Request::from_parts(parts, body)).await,
        Err(failure) => failure.into_response(),
    }
}

async fn serve_image(
    instance: &Arc<Instance>,
    parts: &Parts,
    address: ImageAddress,
) -> Result<Option<Response>> {
    let Some(images) = instance.image_service.get() else { return Ok(None) };
    // A filter checked the text of the path. If it refuses the decoded path, report it as not found.
    let extension = Some(String::new());
    let reading = SlingUrl { path: address.asset.clone(), extension, ..SlingUrl::default() };
    if reading.is_refused_by(&parts.headers) {
        return Err(RequestFailure::new(StatusCode::NOT_FOUND, "there is nothing here"));
    }
    let identity = instance.identify(parts).await?;
    if instance.role == InstanceRole::Author && identity.is_none() {
        return Ok(None);
    }
    let viewer = instance.viewer_of(identity.as_ref())?;
    let anonymous = instance.viewer_of(None)?;
    let path =
        percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8_lossy().into_owned();
    let (requested_address, url) = (address.clone(), parts.uri.path().to_owned());
    let render_request = instance
        .run_work(move |instance| {
            let ticket = instance.dependency_ledger.as_ref().map(DependencyLedger::begin_rendering);
            let snapshot = instance.repository.snapshot()?.as_viewer(&viewer);
            // A node with exactly this name takes precedence.
            let own = NodePath::new(&path).ok();
            if own.as_ref().is_some_and(|own| snapshot.node(own).is_ok_and(|node| node.is_some())) {
                return Ok(None);
            }
            let Ok(path) = NodePath::new(&requested_address.asset) else { return Ok(None) };
            let Some(asset) =
                snapshot.node(&path)?.filter(|node| node.primary_type() == ASSET_NODE_TYPE)
            else {
                return Ok(None);
            };
            let mut render_request =
                ImageRenderRequest::resolve_visible(instance, &requested_address, &asset)?;
            if viewer != anonymous {
                let anonymous_snapshot = instance.repository.snapshot()?.as_viewer(&anonymous);
                render_request.is_private = anonymous_snapshot.node(&path)?.is_none();
            }
            let (Some(ledger), Some(ticket)) = (&instance.dependency_ledger, ticket) else {
                return Ok(Some((render_request, RecordOutcome::Recorded)));
            };
            let when = (ticket, snapshot.visible_root_id());
            Ok(Some((render_request, ledger.record(when, &url, &image_dependencies(path, own)))))
        })
        .await?;
    let Some((render_request, recorded)) = render_request else { return Ok(None) };
    let is_private = render_request.is_private;
    let mut response = image_response(instance, images, parts, &render_request).await?;
    add_surrogate_keys(instance, parts.uri.path(), response.headers_mut());
    if is_private && instance.role == InstanceRole::Publish {
        response = page::with_private_cache(response);
    }
    if recorded != RecordOutcome::Recorded {
        response = page::with_no_store(response);
    }
    if let Some(identity) = identity {
        response.extensions_mut().insert(identity);
    }
    Ok(Some(response))
}

/// Returns the dependencies of a picture: any part of the asset, which may belong to a larger document, and the absence
/// of a node with exactly the requested name.
fn image_dependencies(asset: NodePath, own: Option<NodePath>) -> DependencySet {
    let mut read = vec![(asset, PathAspects::EXISTENCE.combine(PathAspects::SUBTREE))];
    read.extend(own.map(|own| (own, PathAspects::EXISTENCE)));
    DependencySet::from_recorded(&read)
}

/// A picture that the requesting user may read.
struct ImageRenderRequest {
    address: ImageAddress,
    blob: BlobId,
    focus: FocalPoint,
    /// True if the picture is not public.
    is_private: bool,
}

impl ImageRenderRequest {
    /// Determines the picture to render.
    ///
    /// # Errors
    /// If the size is refused, or there is nothing to render.
    fn resolve_visible(instance: &Instance, address: &ImageAddress, asset: &Node) -> Result<Self> {
        let images = instance.image_service.get();
        let may_ask = images
            .is_some_and(|images| is_address_allowed(address, &images.widths, &images.signing_key));
        if !may_ask {
            increment(&instance.metrics.images_refused);
            let message = "this size is not one that URLs may ask for; `url_widths` in tympan.toml lists them";
            return Err(RequestFailure::new(StatusCode::FORBIDDEN, message));
        }
        Self::resolve(address, asset)
    }

    /// Determines the picture to render for an allowed address.
    fn resolve(address: &ImageAddress, asset: &Node) -> Result<Self> {
        let original = asset.find_descendant("jcr:content/renditions/original/jcr:content")?;
        let data = original.and_then(|original| original.property("jcr:data"));
        let Some(Value::Binary(blob)) = data.as_ref().and_then(|data| data.first()) else {
            return Err(RequestFailure::new(StatusCode::NOT_FOUND, "the asset has no original"));
        };
        refuse_failed_original(asset, blob)?;
        Ok(Self {
            address: address.clone(),
            blob: *blob,
            focus: read_focus(asset)?,
            is_private: false,
        })
    }

    fn cache_key(&self) -> RenderedImageKey {
        let spot = (self.focus.x.to_bits(), self.focus.y.to_bits());
        (self.blob, self.address.shape, self.address.extension, spot)
    }

    fn entity_tag(&self) -> String {
        let (blob, shape, ending, spot) = self.cache_key();
        let spot = spot.0 ^ spot.1.rotate_left(1);
        format!("\"{}-{shape}-{}-{spot:x}\"", short_blob_id(&blob), ending.name())
    }
}

async fn image_response(
    instance: &Arc<Instance>,
    images: &ImageService,
    parts: &Parts,
    render_request: &ImageRenderRequest,
) -> Result<Response> {
    let tag = render_request.entity_tag();
    let condition = parts.headers.get(header::IF_NONE_MATCH);
    let mut response = if condition.is_some_and(|condition| condition.as_bytes() == tag.as_bytes())
    {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let picture = find_or_render_image(instance, images, render_request).await?;
        let mut response = match parts.method == Method::HEAD {
            true => StatusCode::OK.into_response(),
            false => picture.bytes.clone().into_response(),
        };
        set_header(&mut response, header::CONTENT_TYPE, &picture.media_type);
        set_header(&mut response, header::CONTENT_LENGTH, &picture.bytes.len().to_string());
        response
    };
    // A URL with the hash of another original shows the current one, and is not cached permanently.
    let hash = render_request.address.hash.as_deref();
    let is_fixed = hash.is_some_and(|hash| render_request.blob.to_string().starts_with(hash));
    let control = match (is_fixed, instance.role) {
        (true, InstanceRole::Publish) => HASHED_CACHE_CONTROL,
        (false, InstanceRole::Publish) => UNHASHED_CACHE_CONTROL,
        // An author's response depends on the user.
        (_, InstanceRole::Author) => "private, no-cache",
    };
    set_header(&mut response, header::CACHE_CONTROL, control);
    // Clients can invent hashes and signatures, and each one would add a file to caches.
    let is_made_up = (hash.is_some() && !is_fixed)
        || (render_request.address.signature.is_some()
            && !render_request.address.is_signed_by(&images.signing_key));
    if is_made_up {
        response.headers_mut().insert("dispatcher", HeaderValue::from_static("no-cache"));
    }
    set_header(&mut response, header::ETAG, &tag);
    set_header(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    Ok(response)
}

/// Returns the picture. If it is not cached, it is rendered once, and concurrent requests for it wait for the result.
async fn find_or_render_image(
    instance: &Arc<Instance>,
    images: &ImageService,
    render_request: &ImageRenderRequest,
) -> Result<Arc<RenderedImage>> {
    let key = render_request.cache_key();
    if let Some(picture) = images.rendered_images.get(&key) {
        increment(&instance.metrics.image_hits);
        return Ok(picture);
    }
    let _busy = ImageRequestPermit::try_acquire(images).ok_or_else(|| {
        increment(&instance.metrics.images_put_off);
        let message = "too many pictures are being drawn; try again in a moment";
        RequestFailure {
            retry_after_seconds: Some(1),
            ..RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    })?;
    images
        .rendered_images
        .get_or_insert_async(&key, render_image(instance, images, render_request))
        .await
}

/// Counts a request that is rendering or waiting.
struct ImageRequestPermit<'a>(&'a ImageService);

impl<'a> ImageRequestPermit<'a> {
    /// Counts a request; `None` if there are too many.
    fn try_acquire(images: &'a ImageService) -> Option<Self> {
        let before = images.active_requests.fetch_add(1, Ordering::Relaxed);
        let entered = Self(images);
        (before < images.max_active_requests).then_some(entered)
    }
}

impl Drop for ImageRequestPermit<'_> {
    fn drop(&mut self) {
        self.0.active_requests.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn render_image(
    instance: &Arc<Instance>,
    images: &ImageService,
    render_request: &ImageRenderRequest,
) -> Result<Arc<RenderedImage>> {
    let closed = || RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops");
    let permit = Arc::clone(&images.render_permits).acquire_owned().await.map_err(|_| closed())?;
    let (blob, studio) = (render_request.blob, Arc::clone(&images.rendition_pool));
    let order = render_order_of(&render_request.address, render_request.focus, images.limits);
    let reader = Arc::clone(instance);
    let output = tokio::task::spawn_blocking(move || {
        let output = studio.process_file(&|| open_blob(&reader.repository, &blob), &order);
        drop(permit);
        output
    })
    .await?;
    increment(&instance.metrics.images_drawn);
    let nothing = |reason: &str| {
        increment(&instance.metrics.images_failed);
        RequestFailure::new(
            StatusCode::NOT_FOUND,
            format!("there is no picture of this asset{reason}"),
        )
    };
    let output = output.map_err(|error| match &error {
        RenditionError::File(reason) => nothing(&format!(": {reason}")),
        other => match repair_hint(other) {
            Some(hint) => RequestFailure::damaged_data(hint),
            None => RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, other.to_string()),
        },
    })?;
    let rendition = output.renditions.into_iter().next().ok_or_else(|| nothing(""))?;
    Ok(Arc::new(RenderedImage { media_type: rendition.media_type, bytes: rendition.bytes.into() }))
}

/// Returns the numbers of pictures being rendered and waiting.
pub(crate) fn image_pool_state(instance: &Instance) -> Option<PoolState> {
    let images = instance.image_service.get()?;
    let free = images.render_permits.available_permits();
    let limit = images.max_active_requests / (1 + MAX_WAITING_PER_RENDER);
    let (in_use, busy) =
        (limit.saturating_sub(free), images.active_requests.load(Ordering::Relaxed));
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

fn open_blob(repository: &Repository, blob: &BlobId) -> std::io::Result<BlobContent> {
    let opened = repository.blobs().open(blob);
    let opened =
        opened.map_err(|error| std::io::Error::other(tympan_content::Error::from(error)))?;
    opened.ok_or_else(|| std::io::Error::other(tympan_content::Error::BlobMissing(*blob)))
}

/// Returns a repair hint if the stored original is damaged or missing.
fn repair_hint(error: &RenditionError) -> Option<&'static str> {
    let RenditionError::System { source, .. } = error else { return None };
    source.get_ref()?.downcast_ref::<tympan_content::Error>()?.repair_hint()
}

/// Renders pictures for a static export, with the sizes and signatures that URLs of an instance may have.
#[derive(Debug)]
pub struct ExportImageRenderer {
    repository: Repository,
    rendition_pool: Arc<RenditionProcessPool>,
    limits: ProcessingLimits,
    widths: Vec<u32>,
    signing_key: ImageSigningKey,
}

impl ExportImageRenderer {
    /// Creates a renderer from the image options of an instance and the key that signs its addresses.
    #[must_use]
    pub fn new(repository: Repository, options: ImageOptions, replication_key: &str) -> Self {
        let ImageOptions { rendition_pool: studio, limits, widths, .. } = options;
        let widths = widths.unwrap_or_else(|| DEFAULT_IMAGE_WIDTHS.to_vec());
        Self {
            repository,
            rendition_pool: studio,
            limits,
            widths,
            signing_key: ImageSigningKey::from_secret(replication_key),
        }
    }
}

impl ExportImageSource for ExportImageRenderer {
    fn render_image(
        &self,
        snapshot: &Snapshot,
        address: &ImageAddress,
    ) -> Result<Option<bytes::Bytes>, String> {
        let path = NodePath::new(&address.asset).map_err(|error| error.to_string())?;
        let asset = snapshot.node(&path).map_err(|error| error.to_string())?;
        let Some(asset) = asset.filter(|node| node.primary_type() == ASSET_NODE_TYPE) else {
            return Ok(None);
        };
        if !is_address_allowed(address, &self.widths, &self.signing_key) {
            return Ok(None);
        }
        let render_request =
            ImageRenderRequest::resolve(address, &asset).map_err(|failure| failure.message)?;
        let order = render_order_of(address, render_request.focus, self.limits);
        let output = self
            .rendition_pool
            .process_file(&|| open_blob(&self.repository, &render_request.blob), &order);
        let output = output.map_err(|error| error.to_string())?;
        let rendition = output.renditions.into_iter().next();
        Ok(Some(rendition.ok_or("there is no picture of this asset")?.bytes.into()))
    }
}

/// Writes the results of asset processing in this process as Prometheus text.
pub(crate) fn image_metrics(instance: &Instance, role: &str) -> String {
    let mut text = String::new();
    let assets = instance.image_service.get().and_then(|images| images.asset_counters.as_ref());
    for (name, about, value) in assets.map(|counters| counters.all()).unwrap_or_default() {
        text.push_str(&format!(
            "# HELP tympan_assets_{name}_total {about}\n# TYPE tympan_assets_{name}_total counter\n\
             tympan_assets_{name}_total{{role=\"{role}\"}} {value}\n"
        ));
    }
    text
}

/// Refuses an original that is known to be unrenderable: each new attempt would cost as much as the first.
fn refuse_failed_original(asset: &Node, blob: &BlobId) -> Result<()> {
    let Some(content) = asset.content_node()? else { return Ok(()) };
    let is_failed = content.text("dam:assetState").as_deref() == Some("failed")
        && content.text("dam:processedOriginal").is_some_and(|of| of == blob.to_string());
    if !is_failed {
        return Ok(());
    }
    let reason = content.text("dam:failureReason").unwrap_or_default();
    let message = format!("there is no picture of this asset: {reason}");
    Err(RequestFailure::new(StatusCode::NOT_FOUND, message))
}

/// Returns the focal point of an asset; the center if none is set.
fn read_focus(asset: &Node) -> Result<FocalPoint> {
    let metadata = asset.find_descendant("jcr:content/metadata")?;
    let share = |name: &str| {
        let property = metadata.as_ref()?.property(name)?;
        let share: f64 = property.first()?.to_text().parse().ok()?;
        (0.0..=1.0).contains(&share).then_some(share)
    };
    Ok(FocalPoint { x: share("dam:focalX").unwrap_or(0.5), y: share("dam:focalY").unwrap_or(0.5) })
}

fn short_blob_id(blob: &BlobId) -> String {
    blob.to_string().chars().take(16).collect()
}

fn set_header(response: &mut Response, name: header::HeaderName, value: &str) {
    // No value can contain characters that are invalid in a header.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tympan_content::{Property, Subtree};
    use tympan_render::ChangedAspects;

    use super::*;

    /// A folder of any type is a document that includes its whole content.
    #[test]
    fn another_original_concerns_the_pictures_of_an_asset_wherever_it_lies() {
        let path = |text: &str| NodePath::new(text).unwrap();
        for folder in ["sling:Folder", "nt:unstructured"] {
            let repository = Repository::in_memory().unwrap();
            let put = |asset: &str, bytes: &[u8]| {
                let blob = repository.blobs().put(&mut std::io::Cursor::new(bytes)).unwrap();
                let data = Property::Single(Value::Binary(blob));
                let holder =
                    Subtree::new("jcr:content", "nt:resource").with_property("jcr:data", data);
                let original = Subtree::new("original", "nt:file").with_child(holder);
                let renditions = Subtree::new("renditions", "nt:folder").with_child(original);
                let content =
                    Subtree::new("jcr:content", "dam:AssetContent").with_child(renditions);
                let mut session = repository.session("test").unwrap();
                if session.node(&path("/dam")).unwrap().is_none() {
                    session.put_node(&path("/dam"), Subtree::new("dam", folder)).unwrap();
                }
                session
                    .put_node(
                        &path(asset),
                        Subtree::new("a.jpg", ASSET_NODE_TYPE).with_child(content),
                    )
                    .unwrap();
                session.commit("put", SystemTime::UNIX_EPOCH).unwrap();
                repository.snapshot().unwrap()
            };
            let before = put("/dam/a.jpg", b"one");
            let own = Some(path("/dam/a.jpg.width-640.webp"));
            let read = image_dependencies(path("/dam/a.jpg"), own);
            let other_state = put("/dam/b.jpg", b"other");
            let between = |before, after| ChangedAspects::between_snapshots(before, after).unwrap();
            assert!(!between(&before, &other_state).affects(&read), "{folder}");
            assert!(between(&other_state, &put("/dam/a.jpg", b"two")).affects(&read), "{folder}");
        }
    }

    #[test]
    fn shapes_that_anybody_may_ask_for() {
        for (shape, expected) in [
            (ImageShape::Width(640), true),
            (ImageShape::Width(641), false),
            (ImageShape::Crop(640, 360), true),
            (ImageShape::Crop(640, 480), true),
            (ImageShape::Crop(640, 640), true),
            (ImageShape::Crop(640, 361), false),
            (ImageShape::Crop(777, 777), false),
        ] {
            assert_eq!(is_listed_shape(shape, &DEFAULT_IMAGE_WIDTHS), expected, "{shape}");
        }
    }
}
