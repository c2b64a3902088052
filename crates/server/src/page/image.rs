//! Pictures in the size that a URL requests: `/content/dam/a.jpg.width-640.webp`; `tympan_render::ImageAddress` defines
//! the syntax of these URLs.
//!
//! Invariants
//! * Clients cannot make an instance render arbitrary sizes: a size that is not listed needs a signature.
//! * A user who may not read the asset receives the response for the asset itself.
//! * A picture is rendered once, even if several requests arrive for it at the same time.
//! * Rendering a picture takes no permit of page rendering; the numbers of parallel and waiting renderings are bounded.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use tympan_assets::{ASSET_NODE_TYPE, RenditionError};
use tympan_content::{Node, NodePath, Snapshot, Viewer};
use tympan_render::ledger::{DependencyLedger, RecordOutcome};
use tympan_render::url::SlingUrl;
use tympan_render::{DependencySet, ImageAddress, ImageSigningKey, PathAspects};

use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;
use crate::observe::metrics::increment;
use crate::observe::pool::PoolState;
use crate::page::image_render::{ImageRenderRequest, open_blob};
use crate::page::image_service::{ImageOptions, ImageRequestPermit, ImageService, RenderedImage};
use crate::page::surrogate_key::add_surrogate_keys;
use crate::{Instance, InstanceRole, page};

/// Cache lifetime of a picture whose URL contains no hash.
const UNHASHED_CACHE_CONTROL: &str = "max-age=300";
const HASHED_CACHE_CONTROL: &str = "public, max-age=31536000, immutable";

impl Instance {
    /// Enables picture rendering for all assets; without it, URLs with sizes are not found.
    pub fn set_image_options(&self, options: ImageOptions) {
        let signing_key = ImageSigningKey::from_secret(&self.replication_key);
        let images = ImageService::new(options, signing_key);
        // Set once, when the instance starts; later calls are ignored.
        self.image_service.set(images).ok();
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
    let viewer = identity.as_ref().map_or_else(Viewer::anonymous, RequestIdentity::viewer);
    let anonymous = Viewer::anonymous();
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
            let mut render_request = resolve_visible_image(instance, &requested_address, &asset)?;
            if viewer != anonymous {
                let anonymous_snapshot = instance.repository.snapshot()?.as_viewer(&anonymous);
                render_request.is_private =
                    !is_image_visible(&anonymous_snapshot, &path, &render_request)?;
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

/// Gives a page's response, which is a picture, its bytes and their headers.
///
/// # Errors
/// If the picture cannot be made, or the viewer may not read its original.
pub(super) async fn with_image(
    instance: &Arc<Instance>,
    parts: &Parts,
    viewer: Viewer,
    (address, response): (ImageAddress, Response),
) -> Result<Response> {
    let nothing = || RequestFailure::new(StatusCode::NOT_FOUND, "there is no image here");
    let images = instance.image_service.get().ok_or_else(nothing)?;
    let render_request = instance
        .run_work(move |instance| {
            let snapshot = instance.repository.snapshot()?.as_viewer(&viewer);
            let path = NodePath::new(&address.asset).map_err(|_| nothing())?;
            let asset = snapshot.node(&path)?.ok_or_else(nothing)?;
            resolve_visible_image(instance, &address, &asset)
        })
        .await?;
    let mut sent = image_response(instance, images, parts, &render_request).await?;
    // The page knows who may store it, and for how long.
    sent.headers_mut().remove(header::CACHE_CONTROL);
    for (name, value) in response.headers() {
        if !matches!(*name, header::CONTENT_LENGTH | header::CONTENT_TYPE | header::ETAG) {
            sent.headers_mut().append(name, value.clone());
        }
    }
    Ok(sent)
}

/// Returns the dependencies of a picture: any part of the asset, which may belong to a larger document, and the absence
/// of a node with exactly the requested name.
fn image_dependencies(asset: NodePath, own: Option<NodePath>) -> DependencySet {
    let mut read = vec![(asset, PathAspects::EXISTENCE.combine(PathAspects::SUBTREE))];
    read.extend(own.map(|own| (own, PathAspects::EXISTENCE)));
    DependencySet::from_recorded(&read)
}

/// Returns true if the viewer of a snapshot gets the same picture of an asset. The original may be closed in an asset
/// that is open.
fn is_image_visible(
    snapshot: &Snapshot,
    asset: &NodePath,
    render_request: &ImageRenderRequest,
) -> Result<bool> {
    let Some(asset) = snapshot.node(asset)? else { return Ok(false) };
    let own = ImageRenderRequest::resolve(&render_request.address, &asset);
    Ok(own.is_ok_and(|own| own.cache_key() == render_request.cache_key()))
}

/// Determines the picture to render.
///
/// # Errors
/// If the size is refused, or there is nothing to render.
fn resolve_visible_image(
    instance: &Instance,
    address: &ImageAddress,
    asset: &Node,
) -> Result<ImageRenderRequest> {
    let images = instance.image_service.get();
    if !images.is_some_and(|images| images.allows_address(address)) {
        increment(&instance.metrics.images_refused);
        let message = "this image size is not allowed in URLs; see `url_widths` in tympan.toml";
        return Err(RequestFailure::new(StatusCode::FORBIDDEN, message));
    }
    ImageRenderRequest::resolve(address, asset)
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
        increment(&instance.metrics.image_cache_hits);
        return Ok(picture);
    }
    let _busy = ImageRequestPermit::try_acquire(images).ok_or_else(|| {
        increment(&instance.metrics.image_overload_rejections);
        let message = "too many images are being rendered; try again in a moment";
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

async fn render_image(
    instance: &Arc<Instance>,
    images: &ImageService,
    render_request: &ImageRenderRequest,
) -> Result<Arc<RenderedImage>> {
    let closed =
        || RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down");
    let permit = Arc::clone(&images.render_permits).acquire_owned().await.map_err(|_| closed())?;
    let (blob, decoder_pool) = (render_request.blob, Arc::clone(&images.decoder_pool));
    let request = render_request.processing_request(images.limits);
    let reader = Arc::clone(instance);
    let output = tokio::task::spawn_blocking(move || {
        let output = decoder_pool.render_file(&|| open_blob(&reader.repository, &blob), &request);
        drop(permit);
        output
    })
    .await?;
    increment(&instance.metrics.images_rendered);
    let nothing = |reason: &str| {
        increment(&instance.metrics.images_failed);
        RequestFailure::new(
            StatusCode::NOT_FOUND,
            format!("cannot render an image of this asset{reason}"),
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

/// Returns a repair hint if the stored original is damaged or missing.
fn repair_hint(error: &RenditionError) -> Option<&'static str> {
    let RenditionError::System { source, .. } = error else { return None };
    source.get_ref()?.downcast_ref::<tympan_content::Error>()?.repair_hint()
}

/// Returns the numbers of pictures being rendered and waiting.
pub(crate) fn image_pool_state(instance: &Instance) -> Option<PoolState> {
    let images = instance.image_service.get()?;
    Some(images.pool_state(instance.metrics.image_overload_rejections.load(Ordering::Relaxed)))
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

fn set_header(response: &mut Response, name: header::HeaderName, value: &str) {
    // No value can contain characters that are invalid in a header.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tympan_content::{Property, Repository, Subtree, Value, ValueType};
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

    /// Returns a policy by which everyone is granted or denied reading.
    fn reading_policy(kind: &str) -> Subtree {
        let read = Property::parse_list(ValueType::Name, ["jcr:read"]).unwrap();
        let entry = Subtree::new("entry", kind)
            .with_property("rep:principalName", "everyone")
            .with_property("rep:privileges", read);
        Subtree::new("rep:policy", "rep:ACL").with_child(entry)
    }

    #[test]
    fn a_picture_is_private_if_only_its_original_is_closed() {
        let repository = Repository::in_memory().unwrap();
        let asset = NodePath::new("/dam/a.jpg").unwrap();
        let blob = repository.blobs().put(&mut std::io::Cursor::new(b"one")).unwrap();
        let data = Property::Single(Value::Binary(blob));
        let resource = Subtree::new("jcr:content", "nt:resource").with_property("jcr:data", data);
        let original = Subtree::new("original", "nt:file").with_child(resource);
        let mixins = Property::parse_list(ValueType::Name, ["rep:AccessControllable"]).unwrap();
        let renditions = Subtree::new("renditions", "nt:folder")
            .with_property("jcr:mixinTypes", mixins)
            .with_child(original);
        let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(renditions);
        let tree = Subtree::new("a.jpg", ASSET_NODE_TYPE).with_child(content);
        let folder = Subtree::new("dam", "sling:Folder")
            .with_child(tree)
            .with_child(reading_policy("rep:GrantACE"));
        let mut session = repository.session("test").unwrap();
        session.put_node(&NodePath::new("/dam").unwrap(), folder).unwrap();
        session.commit("put", SystemTime::UNIX_EPOCH).unwrap();
        let address = ImageAddress::parse("/dam/a.jpg.width-640.webp").unwrap();
        let is_visible = || {
            let snapshot = repository.snapshot().unwrap();
            let node = snapshot.node(&asset).unwrap().unwrap();
            let request = ImageRenderRequest::resolve(&address, &node).unwrap();
            let anonymous = Viewer::anonymous();
            is_image_visible(&snapshot.as_viewer(&anonymous), &asset, &request).unwrap()
        };
        assert!(is_visible());
        let closed = asset.resolve("jcr:content/renditions/rep:policy").unwrap();
        session.put_node(&closed, reading_policy("rep:DenyACE")).unwrap();
        session.commit("close", SystemTime::UNIX_EPOCH).unwrap();
        assert!(!is_visible());
    }
}
