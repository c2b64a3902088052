//! Rendering of a picture: its original, its shape and its focal point; also for a static export.

use std::sync::Arc;

use http::StatusCode;
use tympan_assets::{
    ASSET_NODE_TYPE, AssetProcessingRequest, DecoderProcessPool, FocalPoint, ImageSize,
    ProcessingLimits, RenditionEncoding, RenditionSpec, ResizeMode,
};
use tympan_content::{BlobContent, BlobId, Node, NodePath, Repository, Snapshot, Value};
use tympan_render::{
    ImageAddress, ImageFormatExtension, ImageShape, ImageSigningKey, MAX_IMAGE_SIDE,
};
use tympan_render_export::ExportImageSource;

use crate::failure::{RequestFailure, Result};
use crate::page::image_service::{
    ImageOptions, RenderedImageKey, is_address_allowed, listed_widths,
};

const JPEG_QUALITY: u8 = 82;

/// A picture that the requesting user may read.
pub(super) struct ImageRenderRequest {
    pub(super) address: ImageAddress,
    pub(super) blob: BlobId,
    focus: FocalPoint,
    /// True if the picture is not public.
    pub(super) is_private: bool,
}

impl ImageRenderRequest {
    /// Determines the picture to render for an allowed address.
    pub(super) fn resolve(address: &ImageAddress, asset: &Node) -> Result<Self> {
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

    /// Returns the key of the rendered picture.
    pub(super) fn cache_key(&self) -> RenderedImageKey {
        let spot = (self.focus.x.to_bits(), self.focus.y.to_bits());
        (self.blob, self.address.shape, self.address.extension, spot)
    }

    /// Returns the quoted entity tag of the rendered picture.
    pub(super) fn entity_tag(&self) -> String {
        let (blob, shape, ending, spot) = self.cache_key();
        let spot = spot.0 ^ spot.1.rotate_left(1);
        format!("\"{}-{shape}-{}-{spot:x}\"", short_blob_id(&blob), ending.name())
    }

    /// Returns the request to render the picture.
    pub(super) fn processing_request(&self, limits: ProcessingLimits) -> AssetProcessingRequest {
        processing_request_of(&self.address, self.focus, limits)
    }
}

/// Returns the request to render an address.
fn processing_request_of(
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

/// Opens an original.
pub(super) fn open_blob(repository: &Repository, blob: &BlobId) -> std::io::Result<BlobContent> {
    let opened = repository.blobs().open(blob);
    let opened =
        opened.map_err(|error| std::io::Error::other(tympan_content::Error::from(error)))?;
    opened.ok_or_else(|| std::io::Error::other(tympan_content::Error::BlobMissing(*blob)))
}

/// Renders pictures for a static export, with the sizes and signatures that URLs of an instance may have.
#[derive(Debug)]
pub struct ExportImageRenderer {
    repository: Repository,
    decoder_pool: Arc<DecoderProcessPool>,
    limits: ProcessingLimits,
    widths: Vec<u32>,
    signing_key: ImageSigningKey,
}

impl ExportImageRenderer {
    /// Creates a renderer from the image options of an instance and the key that signs its addresses.
    #[must_use]
    pub fn new(repository: Repository, options: ImageOptions, replication_key: &str) -> Self {
        let ImageOptions { decoder_pool, limits, widths, .. } = options;
        Self {
            repository,
            decoder_pool,
            limits,
            widths: listed_widths(widths),
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
        let request = render_request.processing_request(self.limits);
        let output = self
            .decoder_pool
            .render_file(&|| open_blob(&self.repository, &render_request.blob), &request);
        let output = output.map_err(|error| error.to_string())?;
        let rendition = output.renditions.into_iter().next();
        Ok(Some(rendition.ok_or("cannot render an image of this asset")?.bytes.into()))
    }
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
    let message = format!("cannot render an image of this asset: {reason}");
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
