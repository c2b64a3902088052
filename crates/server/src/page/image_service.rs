//! The picture renderer of an instance: its limits, its cache of rendered pictures, and the sizes that URLs may request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;
use tympan_assets::{AssetCounters, DecoderProcessPool, ProcessingLimits};
use tympan_content::BlobId;
use tympan_render::{ImageAddress, ImageFormatExtension, ImageShape, ImageSigningKey};

use crate::observe::pool::PoolState;

/// Default list of widths that can be requested without a signature.
const DEFAULT_IMAGE_WIDTHS: [u32; 10] = [160, 320, 480, 640, 768, 1024, 1280, 1600, 1920, 2048];
/// Memory for the cache of rendered pictures, in bytes.
const IMAGE_CACHE_BYTES: u64 = 64 << 20;
/// Maximum number of waiting requests per parallel rendering.
const MAX_WAITING_PER_RENDER: usize = 32;

/// Options for the picture rendering of an instance.
#[derive(Debug)]
pub struct ImageOptions {
    /// The processes that render pictures. They run at the priority of the server, because visitors wait for them.
    pub decoder_pool: Arc<DecoderProcessPool>,
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
    pub(super) decoder_pool: Arc<DecoderProcessPool>,
    pub(super) limits: ProcessingLimits,
    widths: Vec<u32>,
    pub(super) signing_key: ImageSigningKey,
    pub(super) rendered_images: Cache<RenderedImageKey, Arc<RenderedImage>, RenderedImageWeigher>,
    pub(super) render_permits: Arc<Semaphore>,
    /// Number of requests that are rendering or waiting.
    active_requests: AtomicUsize,
    max_active_requests: usize,
    pub(super) asset_counters: Option<Arc<AssetCounters>>,
}

/// The original, the requested shape and format, and the focal point.
pub(super) type RenderedImageKey = (BlobId, ImageShape, ImageFormatExtension, (u64, u64));

/// A rendered picture.
#[derive(Debug)]
pub(super) struct RenderedImage {
    pub(super) media_type: String,
    pub(super) bytes: bytes::Bytes,
}

/// Weighs pictures by their memory.
#[derive(Debug, Clone)]
pub(super) struct RenderedImageWeigher;

impl<K> Weighter<K, Arc<RenderedImage>> for RenderedImageWeigher {
    fn weight(&self, _: &K, picture: &Arc<RenderedImage>) -> u64 {
        picture.bytes.len() as u64 + 256
    }
}

impl ImageService {
    /// Creates the renderer with the key that signs the addresses of the instance.
    pub(super) fn new(options: ImageOptions, signing_key: ImageSigningKey) -> Self {
        let parallel = options.max_parallel_renders.max(1);
        Self {
            decoder_pool: options.decoder_pool,
            limits: options.limits,
            widths: listed_widths(options.widths),
            signing_key,
            rendered_images: Cache::with_weighter(2048, IMAGE_CACHE_BYTES, RenderedImageWeigher),
            render_permits: Arc::new(Semaphore::new(parallel)),
            active_requests: AtomicUsize::new(0),
            max_active_requests: parallel * (1 + MAX_WAITING_PER_RENDER),
            asset_counters: options.asset_counters,
        }
    }

    /// Returns true if an address is allowed, by its size or by its signature.
    pub(super) fn allows_address(&self, address: &ImageAddress) -> bool {
        is_address_allowed(address, &self.widths, &self.signing_key)
    }

    /// Returns the numbers of pictures being rendered and waiting; `refused` is the number of refused requests.
    pub(super) fn pool_state(&self, refused: u64) -> PoolState {
        let free = self.render_permits.available_permits();
        let limit = self.max_active_requests / (1 + MAX_WAITING_PER_RENDER);
        let (in_use, busy) =
            (limit.saturating_sub(free), self.active_requests.load(Ordering::Relaxed));
        PoolState {
            name: "pictures".to_owned(),
            in_use: in_use as u64,
            idle: free as u64,
            limit: limit as u64,
            waiting: busy.saturating_sub(in_use) as u64,
            timeouts: 0,
            refused,
        }
    }
}

/// Returns the widths that can be requested without a signature.
pub(super) fn listed_widths(configured_widths: Option<Vec<u32>>) -> Vec<u32> {
    configured_widths.unwrap_or_else(|| DEFAULT_IMAGE_WIDTHS.to_vec())
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
pub(super) fn is_address_allowed(
    address: &ImageAddress,
    widths: &[u32],
    key: &ImageSigningKey,
) -> bool {
    is_listed_shape(address.shape, widths) || address.is_signed_by(key)
}

/// Counts a request that is rendering or waiting.
pub(super) struct ImageRequestPermit<'a>(&'a ImageService);

impl<'a> ImageRequestPermit<'a> {
    /// Counts a request; `None` if there are too many.
    pub(super) fn try_acquire(images: &'a ImageService) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
