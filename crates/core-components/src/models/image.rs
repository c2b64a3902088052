//! The image component (`image`, v1 to v3): a picture of the DAM, of the page, or of the component itself.
//!
//! The addresses have the selector `coreimg`, or `img` in v1; [`find_component_image`] gives what an answer to them needs.

use std::sync::{Arc, OnceLock};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::asset_reader::AssetReader;
use crate::component_context::{
    AuthoringMode, ComponentContext, ComponentResource, RemoteMediaSettings,
};
use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::content_value::ContentDate;
use crate::link::{ComponentLink, RedirectPolicy, with_context_path};
use crate::model_registry::{ModelRequest, component_version};
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::models::teaser::teaser_image;
use crate::page_reader::node_name;

/// The quality of JPEG pictures.
const DEFAULT_QUALITY: i64 = 82;
/// The width of a remote picture without other settings.
const REMOTE_WIDTH: i64 = 640;
/// The choice of a crop by the size of the element.
const AUTOMATIC_CROP: &str = "SmartCrop:Auto";
/// A transparent picture, for a browser that will ask for a crop.
const EMPTY_PICTURE: &str =
    "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==";
/// The parameter that names the component whose policy applies.
const POLICY_DELEGATE: &str = "contentPolicyDelegatePath";

/// Letters of a file name that are encoded in an address.
const FILE_NAME: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'(')
    .add(b')')
    .add(b'/')
    .add(b':')
    .add(b'\\');

/// The model of an image.
#[derive(Debug)]
pub(crate) struct ImageModel {
    core: ComponentCore,
    version: u8,
    source: OnceLock<Option<ImageSource>>,
}

/// Where the picture comes from.
#[derive(Debug)]
struct ImageSource {
    /// The path of the asset, or of the remote one.
    reference: Option<String>,
    /// The media type.
    media_type: Option<Arc<str>>,
    /// The name of the file without extension.
    name: Option<String>,
    /// The newest date of the component and its asset.
    modified: Option<ContentDate>,
    /// The picture that stands for a page, if it is that.
    featured: Option<String>,
}

/// An area of an image with a link.
#[derive(Debug, PartialEq)]
struct ImageMapArea {
    shape: String,
    coordinates: String,
    relative_coordinates: String,
    href: String,
    target: String,
    alt: String,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(ImageModel::new(request))
}

/// The picture of a component, and the parts of the addresses that its model writes for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentImage {
    /// The path of the asset, or of the node `file` in which the component holds a picture of its own.
    pub path: String,
    /// The selector of the addresses: `coreimg`, or `img` in v1.
    pub selector: &'static str,
    /// The extension of the addresses.
    pub extension: &'static str,
    /// What follows the extension, percent-encoded: the path inside a template, the date and the name.
    pub suffix: Option<String>,
    /// The widths that the policy allows, in pixels, in ascending order.
    pub widths: Vec<u32>,
    /// The quality in the addresses, from 0 to 100.
    pub quality: u32,
    /// The address without selectors and extension.
    base: String,
}

impl ComponentImage {
    /// Returns the address of the picture in a width, or in the default width.
    #[must_use]
    pub fn address(&self, width: Option<u32>) -> String {
        let Self { base, selector, extension, quality, .. } = self;
        let size = width.map(|width| format!(".{quality}.{width}")).unwrap_or_default();
        let suffix = self.suffix.as_deref().unwrap_or_default();
        format!("{base}.{selector}{size}.{extension}{suffix}")
    }
}

/// Returns the picture that an image component, or one with the picture of an image component, shows; `None` without
/// one, and for pictures that other servers deliver.
#[must_use]
pub fn find_component_image(
    context: &Arc<dyn ComponentContext>,
    resource: &ComponentResource,
) -> Option<ComponentImage> {
    if !context.node_exists(resource.path()) {
        return None;
    }
    let request = ModelRequest::new(Arc::clone(context), resource.clone());
    let model = match teaser_image(&request) {
        Some(image) => ImageModel::new(&ModelRequest::new(Arc::clone(context), image)),
        None => ImageModel::new(&request),
    };
    let source = model.source()?;
    let path = match source.reference.clone() {
        Some(reference) if is_remote(&reference) => return None,
        Some(reference) => reference,
        None => format!("{}/file", model.picture_node()?.0),
    };
    let (base, end) = model.servlet_address(source, true);
    let (base, selector) = base.rsplit_once('.')?;
    let extension = extension_of(source.media_type.as_deref());
    let end = end.split('?').next().unwrap_or_default();
    let suffix = end.strip_prefix('.')?.strip_prefix(extension)?;
    let widths = match model.allowed_widths() {
        widths if widths.is_empty() => model.resize_width().into_iter().collect(),
        widths => widths,
    };
    Some(ComponentImage {
        path,
        selector: if selector == "img" { "img" } else { "coreimg" },
        extension,
        suffix: (!suffix.is_empty()).then(|| suffix.to_owned()),
        widths: widths.into_iter().filter_map(|width| u32::try_from(width).ok()).collect(),
        quality: u32::try_from(model.quality()).unwrap_or_default(),
        base: base.to_owned(),
    })
}

impl ImageModel {
    fn new(request: &ModelRequest) -> Self {
        let core = ComponentCore::new(request);
        let version = component_version(core.context(), &core.resource_type(), "image", 3);
        Self { core, version, source: OnceLock::new() }
    }

    /// Returns the asset of a reference.
    fn asset(&self, reference: Option<&str>) -> Option<AssetReader<'_>> {
        AssetReader::find(self.core.context(), reference?)
    }

    /// Returns whether the component has a picture of its own.
    fn has_own_picture(&self) -> bool {
        self.core.filled_text("fileReference").is_some()
            || self.core.context().node_exists(&format!("{}/file", self.core.path()))
    }

    /// Returns whether the picture is that of a page: where an author says so, and in v3 without a picture of its own.
    fn inherits_picture(&self) -> bool {
        self.core
            .boolean("imageFromPageImage")
            .unwrap_or_else(|| self.version > 2 && !self.has_own_picture())
    }

    /// Returns the node of the picture, the component or the picture of a page, and whether it is the latter.
    fn picture_node(&self) -> Option<(String, bool)> {
        if !self.inherits_picture() {
            return self.has_own_picture().then(|| (self.core.path().to_owned(), false));
        }
        let image = format!("{}/jcr:content/cq:featuredimage", self.featured_page()?);
        self.core.context().node_exists(&image).then_some((image, true))
    }

    /// Returns the page whose picture is shown: the linked one, else the current one.
    fn featured_page(&self) -> Option<String> {
        if let Some(page) = self.core.filled_text("imagePage") {
            return Some(page.to_string());
        }
        match self.core.filled_text("linkURL") {
            Some(_) => self.component_link().page,
            None => self.core.current_page(),
        }
    }

    /// Returns where the picture comes from, read once.
    fn source(&self) -> Option<&ImageSource> {
        self.source.get_or_init(|| self.read_source()).as_ref()
    }

    fn read_source(&self) -> Option<ImageSource> {
        let context = self.core.context();
        let (node, is_featured) = self.picture_node()?;
        let text = |path: &str, name: &str| context.property(path, name)?.to_text();
        let reference = match is_featured {
            true => text(&node, "fileReference"),
            false => self.core.text("fileReference"),
        };
        let reference = reference.filter(|path| !path.is_empty()).map(|path| path.to_string());
        let featured = is_featured.then(|| node.clone());
        let own_date = self.own_date();
        if let Some(reference) = reference {
            if is_remote(&reference) {
                context.remote_media()?;
                return Some(ImageSource {
                    reference: Some(reference),
                    media_type: None,
                    name: None,
                    modified: own_date,
                    featured,
                });
            }
            if let Some(asset) = self.asset(Some(&reference)) {
                return Some(ImageSource {
                    media_type: asset.media_type(),
                    name: Some(base_name(node_name(&reference)).to_owned()),
                    modified: own_date.max(asset.modified()),
                    reference: Some(reference),
                    featured,
                });
            }
        }
        let file = format!("{node}/file/jcr:content");
        context.node_exists(&file).then(|| ImageSource {
            reference: None,
            media_type: text(&file, "jcr:mimeType"),
            name: text(&node, "fileName").map(|name| base_name(&name).to_owned()),
            modified: own_date
                .max(context.property(&file, "jcr:lastModified").and_then(|value| value.to_date())),
            featured,
        })
    }

    /// Returns when the component changed.
    fn own_date(&self) -> Option<ContentDate> {
        ["jcr:lastModified", "cq:lastModified"]
            .into_iter()
            .find_map(|name| self.core.value(name)?.to_date())
    }

    fn is_decorative(&self) -> bool {
        self.core.is_set_or_policy("isDecorative")
    }

    /// Returns a setting that is on unless the component or the policy switches it off.
    fn is_on(&self, name: &str) -> bool {
        self.core.value_or_policy(name).and_then(|value| value.to_boolean()).unwrap_or(true)
    }

    fn alt(&self) -> Option<Arc<str>> {
        if self.is_decorative() {
            return None;
        }
        let own = self.core.text("alt");
        if self.version == 1 {
            return own;
        }
        let Some(source) = self.source() else {
            return own.filter(|_| !self.inherits_picture());
        };
        let context = self.core.context();
        let (alt, is_from_asset) = match &source.featured {
            Some(_) if self.core.boolean("altValueFromPageImage") == Some(false) => (own, false),
            Some(node) => {
                let value = |name: &str| context.property(node, name);
                let is_from_asset = value("altValueFromDAM").and_then(|value| value.to_boolean());
                (value("alt").and_then(|value| value.to_text()), is_from_asset.unwrap_or(true))
            }
            None => (own, self.is_on("altValueFromDAM")),
        };
        let asset = self.asset(source.reference.as_deref()).filter(|_| is_from_asset);
        asset
            .and_then(|asset| {
                asset.metadata_text("dc:description").or_else(|| asset.metadata_text("dc:title"))
            })
            .or(alt)
    }

    fn title(&self) -> Option<Arc<str>> {
        let own = self.core.text("jcr:title");
        if self.version == 1 || !self.is_on("titleValueFromDAM") {
            return own;
        }
        let source = self.source().filter(|source| source.featured.is_none());
        source
            .and_then(|source| self.asset(source.reference.as_deref())?.metadata_text("dc:title"))
            .or(own)
    }

    fn shows_popup_title(&self) -> bool {
        self.is_on("displayPopupTitle")
    }

    fn component_link(&self) -> ComponentLink {
        let (context, resource) = (self.core.context(), self.core.resource());
        ComponentLink::of_resource(context, resource, RedirectPolicy::Follow)
    }

    /// Returns the link. A decoration has none, and neither has a page's picture that does not exist.
    fn image_link(&self) -> Option<ComponentLink> {
        if self.is_decorative() || (self.inherits_picture() && self.picture_node().is_none()) {
            return None;
        }
        self.component_link().valid()
    }

    fn link_url(&self) -> Option<String> {
        self.image_link()?.url
    }

    fn file_reference(&self) -> Option<String> {
        self.source()?.reference.clone()
    }

    fn uuid(&self) -> Option<Arc<str>> {
        if self.core.is_policy_set("uuidDisabled") {
            return None;
        }
        self.asset(self.source()?.reference.as_deref())?.identifier()
    }

    /// Returns the widths that the policy allows; a drawing needs none.
    fn allowed_widths(&self) -> Vec<i64> {
        let media_type = self.source().and_then(|source| source.media_type.as_deref());
        if media_type == Some("image/svg+xml") {
            return Vec::new();
        }
        let widths = self.core.policy_value("allowedRenditionWidths");
        let widths = widths.map(|value| value.to_texts()).unwrap_or_default();
        let mut widths: Vec<i64> = widths.iter().filter_map(|width| width.parse().ok()).collect();
        widths.retain(|width| *width > 0);
        widths.sort_unstable();
        widths
    }

    fn quality(&self) -> i64 {
        let quality = self.core.policy_value("jpegQuality").and_then(|value| value.to_long());
        quality.filter(|quality| (0..=100).contains(quality)).unwrap_or(DEFAULT_QUALITY)
    }

    fn resize_width(&self) -> Option<i64> {
        let width = self.core.policy_value("resizeWidth")?.to_long()?;
        (width > 0).then_some(width)
    }

    fn crop(&self) -> Option<Arc<str>> {
        let source = self.source()?;
        let is_remote = source.reference.as_deref().is_some_and(is_remote);
        (is_remote || self.dynamic_media(source).is_some())
            .then(|| self.core.filled_text("smartCropRendition"))
            .flatten()
    }

    /// Returns the address before and after the width, for the servlet of the component.
    fn servlet_address(&self, source: &ImageSource, is_encoded: bool) -> (String, String) {
        let selector = if self.version == 1 { "img" } else { "coreimg" };
        let (base, inner) = self.servlet_base(is_encoded);
        let extension = extension_of(source.media_type.as_deref());
        let mut end = format!(".{extension}{inner}");
        let mut has_suffix = !inner.is_empty();
        if let Some(date) = source.modified {
            end.push_str(&format!("/{}", date.epoch_ms));
            if let Some(name) = &source.name {
                end.push_str(&format!("/{}", search_friendly_name(name)));
            }
            has_suffix = true;
        }
        if has_suffix {
            end.push_str(&format!(".{extension}"));
        }
        if let Some(path) = self.core.context().request().parameter(POLICY_DELEGATE) {
            end.push_str(&format!("?{POLICY_DELEGATE}={path}"));
        }
        (format!("{base}.{selector}"), end)
    }

    /// Returns the path of the servlet's resource, and the suffix for a component of a template: the page answers for
    /// it, with the path inside the template.
    fn servlet_base(&self, is_encoded: bool) -> (String, String) {
        let context = self.core.context();
        let path = self.core.path();
        let inner = path.find("/structure/jcr:content").and_then(|start| path.get(start..));
        if let Some(inner) = inner
            && let Some(page) = self.core.current_page()
        {
            let inner = if is_encoded {
                inner.replace("jcr:content", "jcr%3acontent")
            } else {
                inner.to_owned()
            };
            return (with_context_path(context, &context.map_path(&page)), inner);
        }
        let mapped = without_namespaces(&context.map_path(path));
        (with_context_path(context, &mapped), String::new())
    }

    /// Returns the server and name under which Dynamic Media delivers the picture, if the policy switches that on.
    fn dynamic_media(&self, source: &ImageSource) -> Option<String> {
        let asset = self.asset(source.reference.as_deref())?;
        if !self.core.is_policy_set("enableDmFeatures") || self.version == 1 {
            return None;
        }
        asset.metadata_text("dam:scene7File")?;
        let is_animated =
            asset.metadata_text("dam:scene7Type").is_some_and(|kind| &*kind == "AnimatedGif");
        let delivery = self.core.context().dynamic_media(asset.path());
        let name = match &delivery {
            Some(delivery) => delivery.name.clone(),
            None => asset.metadata_text("dam:scene7File")?.to_string(),
        };
        let server = match self.core.context().request().wcm_mode {
            AuthoringMode::Disabled => delivery.map(|delivery| delivery.server).or_else(|| {
                asset.metadata_text("dam:scene7Domain").map(|server| server.to_string())
            })?,
            AuthoringMode::Edit | AuthoringMode::Preview | AuthoringMode::Design => String::new(),
        };
        let server = server.trim_end_matches('/');
        let folder = if is_animated { "content" } else { "image" };
        Some(format!("{server}/is/{folder}/{}", name.replace(' ', "%20")))
    }

    /// Returns the query of a Dynamic Media address, for a width.
    fn dynamic_media_query(&self, source: &ImageSource, width: Option<&str>) -> String {
        let crop = self.core.filled_text("smartCropRendition");
        let mut parts = Vec::new();
        if crop.is_none() && !self.allowed_widths().is_empty() {
            parts.push(format!("qlt={}", self.quality()));
            parts.extend(width.map(|width| format!("wid={width}")));
        }
        parts.extend(source.modified.map(|date| format!("ts={}", date.epoch_ms)));
        let preset = self.core.filled_text("imagePreset").filter(|_| crop.is_none());
        parts.extend(preset.map(|preset| format!("${preset}$")));
        let modifiers = self.core.filled_text("imageModifiers");
        parts.extend(modifiers.map(|modifiers| modifiers.trim_start_matches('&').to_owned()));
        parts.push(match (self.version, crop) {
            (2, Some(_)) => "dpr=on,{dpr}".to_owned(),
            _ => "dpr=off".to_owned(),
        });
        parts.join("&")
    }

    /// Returns the Dynamic Media address of a named crop, or of the whole picture.
    fn dynamic_media_address(
        &self,
        base: &str,
        source: &ImageSource,
        width: Option<&str>,
    ) -> String {
        let crop =
            self.core.filled_text("smartCropRendition").filter(|crop| &**crop != AUTOMATIC_CROP);
        let crop = crop.map(|crop| format!("%3A{crop}")).unwrap_or_default();
        format!("{base}{crop}?{}", self.dynamic_media_query(source, width))
    }

    fn src(&self) -> Option<String> {
        let source = self.source()?;
        if let Some(reference) = source.reference.as_deref().filter(|path| is_remote(path)) {
            return self.remote_address(reference);
        }
        let widths = self.allowed_widths();
        let single = match widths.as_slice() {
            [width] => Some(*width),
            _ => None,
        };
        if let Some(base) = self.dynamic_media(source) {
            let width = single.map(|width| width.to_string());
            return Some(self.dynamic_media_address(&base, source, width.as_deref()));
        }
        let (start, end) = self.servlet_address(source, true);
        Some(match single.or_else(|| self.resize_width().filter(|_| widths.is_empty())) {
            Some(width) => format!("{start}.{}.{width}{end}", self.quality()),
            None => format!("{start}{end}"),
        })
    }

    /// Returns the address with a placeholder for the width, of v2.
    fn uri_template(&self) -> Option<String> {
        let source = self.source()?;
        if self.version != 2 || source.reference.as_deref().is_some_and(is_remote) {
            return None;
        }
        let widths = self.allowed_widths();
        if let Some(base) = self.dynamic_media(source) {
            let crop = self.core.filled_text("smartCropRendition");
            return match crop.as_deref() {
                Some(AUTOMATIC_CROP) => {
                    Some(format!("{base}{{.width}}?{}", self.dynamic_media_query(source, None)))
                }
                Some(_) => None,
                None if widths.len() > 1 => {
                    Some(self.dynamic_media_address(&base, source, Some("%7B.width%7D")))
                }
                None => None,
            };
        }
        let (start, end) = self.servlet_address(source, false);
        let quality =
            if widths.is_empty() { String::new() } else { format!(".{}", self.quality()) };
        Some(format!("{start}{quality}{{.width}}{end}"))
    }

    /// Returns addresses with widths, of v3.
    fn srcset(&self) -> Option<String> {
        let source = self.source()?;
        if self.version < 3 {
            return None;
        }
        if let Some(reference) = source.reference.as_deref().filter(|path| is_remote(path)) {
            return self.remote_crops(reference);
        }
        let widths = self.allowed_widths();
        if widths.is_empty() {
            return None;
        }
        if let Some(base) = self.dynamic_media(source) {
            let crop = self.core.filled_text("smartCropRendition");
            return match crop.as_deref() {
                Some(AUTOMATIC_CROP) => Some(EMPTY_PICTURE.to_owned()),
                None if widths.len() > 1 => {
                    let addresses = widths.iter().map(|width| {
                        let text = width.to_string();
                        let address = self.dynamic_media_address(&base, source, Some(&text));
                        format!("{address} {width}w")
                    });
                    Some(addresses.collect::<Vec<_>>().join(","))
                }
                _ => None,
            };
        }
        let (start, end) = self.servlet_address(source, false);
        let quality = self.quality();
        let addresses =
            widths.iter().map(|width| format!("{start}.{quality}.{width}{end} {width}w"));
        Some(addresses.collect::<Vec<_>>().join(","))
    }

    /// Returns the address of a remote picture.
    fn remote_address(&self, reference: &str) -> Option<String> {
        let settings = self.core.context().remote_media()?;
        let width = self.resize_width().unwrap_or(REMOTE_WIDTH);
        let mut address =
            format!("{}?width={width}&preferwebp=true", delivery_address(&settings, reference));
        let crop =
            self.core.filled_text("smartCropRendition").filter(|crop| &**crop != AUTOMATIC_CROP);
        if let Some(crop) = crop {
            address.push_str(&format!("&smartcrop={crop}"));
        }
        if let Some(modifiers) = self.core.filled_text("imageModifiers") {
            address.push_str(&format!("&{}", modifiers.trim_start_matches('&')));
        }
        Some(address)
    }

    /// Returns the addresses of all crops of a remote picture.
    fn remote_crops(&self, reference: &str) -> Option<String> {
        if self.core.filled_text("smartCropRendition").as_deref() != Some(AUTOMATIC_CROP) {
            return None;
        }
        let context = self.core.context();
        let settings = context.remote_media()?;
        let (id, _) = remote_parts(reference);
        let path = settings.metadata_path.replace("{asset-id}", id);
        let metadata =
            context.remote_media_metadata(&format!("https://{}{path}", settings.repository))?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata).ok()?;
        let crops = crops_of(&metadata)?;
        let base = delivery_address(&settings, reference);
        let addresses: Vec<String> = crops
            .iter()
            .filter_map(|(name, crop)| {
                let width = crop.get("width")?;
                let width = width.as_i64().or_else(|| width.as_str()?.parse().ok())?;
                Some(format!("{base}?smartcrop={name}&preferwebp=true {width}w"))
            })
            .collect();
        (!addresses.is_empty()).then(|| addresses.join(","))
    }

    fn sizes(&self) -> Option<String> {
        self.src()?;
        let sizes = self.core.policy_value("sizes").map(|value| value.to_texts());
        Some(sizes.unwrap_or_default().join(", "))
    }

    /// Returns the width of a picture that the policy resizes.
    fn width(&self) -> Option<String> {
        self.resized().map(|(width, _)| width.to_string())
    }

    fn height(&self) -> Option<String> {
        self.resized().map(|(_, height)| height.to_string())
    }

    fn resized(&self) -> Option<(i64, i64)> {
        let width = self.resize_width()?;
        let source = self.source()?;
        let asset = self.asset(source.reference.as_deref())?;
        let natural = asset.metadata("tiff:ImageWidth")?.to_long().filter(|width| *width > 0)?;
        let natural_height = asset.metadata("tiff:ImageLength")?.to_long()?;
        if width >= natural {
            return Some((natural, natural_height));
        }
        Some((width, width.checked_mul(natural_height)? / natural))
    }

    fn widths(&self) -> ModelValue {
        ModelValue::list(self.allowed_widths().into_iter().map(ModelValue::Integer))
    }

    fn is_lazy(&self) -> bool {
        let disabled =
            self.core.policy_value("disableLazyLoading").and_then(|value| value.to_boolean());
        // The second version loads eagerly unless a policy says otherwise.
        !disabled.unwrap_or(self.version == 2)
    }

    fn lazy_threshold(&self) -> i64 {
        self.core.policy_value("lazyThreshold").and_then(|value| value.to_long()).unwrap_or(0)
    }

    fn is_dynamic_media(&self) -> bool {
        self.source().is_some_and(|source| self.dynamic_media(source).is_some())
    }

    /// Returns the areas with links, of v2.
    fn areas(&self) -> ModelValue {
        let Some(map) = self.core.filled_text("imageMap").filter(|_| self.version == 2) else {
            return ModelValue::Null;
        };
        let mut areas = image_map_areas(&map);
        for area in &mut areas {
            let link = ComponentLink::to(self.core.context(), &area.href, RedirectPolicy::Follow);
            area.href = link.url.unwrap_or_default();
        }
        match areas.is_empty() {
            true => ModelValue::Null,
            false => ModelValue::list(areas.into_iter().map(ModelValue::model)),
        }
    }

    /// Returns the settings that the script of v1 reads.
    fn settings_json(&self) -> Option<String> {
        let widths = self.allowed_widths();
        let source = self.source()?;
        let (start, end) = self.servlet_address(source, false);
        let quality = self.quality();
        let mut map = ModelMap::new();
        map.insert("smartSizes", self.widths());
        map.insert(
            "smartImages",
            ModelValue::texts(widths.iter().map(|width| format!("{start}.{quality}.{width}{end}"))),
        );
        map.insert("lazyEnabled", self.is_lazy());
        Some(ModelValue::from(map).to_json().to_string())
    }

    fn data(&self) -> Option<ComponentData> {
        let mut data =
            ComponentData { title: self.title(), link_url: self.link_url(), ..self.core.data()? };
        let source = self.source();
        if let Some(asset) = source.and_then(|source| self.asset(source.reference.as_deref())) {
            data.details.insert("image", asset.data());
        }
        Some(data)
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("alt", self.alt());
        map.insert_present("title", self.title());
        map.insert_present("src", self.src());
        if self.version > 1 {
            map.insert_present("smartCropRendition", self.crop());
            map.insert_present("uuid", self.uuid());
            map.insert("lazyEnabled", self.is_lazy());
        }
        match self.version {
            1 => map.insert_present("link", self.link_url()),
            2 => {
                map.insert_present("srcUriTemplate", self.uri_template());
                map.insert_present("areas", self.areas());
                map.insert("lazyThreshold", self.lazy_threshold());
                map.insert("dmImage", self.is_dynamic_media());
                map.insert("widths", self.widths());
                map.insert_present("link", self.link_url());
            }
            _ => {
                map.insert_present("srcset", self.srcset());
                map.insert_present("sizes", self.sizes());
                map.insert_present("imageLink", self.image_link());
            }
        }
        self.core.export_end(&mut map, self.data());
        map
    }
}

component_model!(ImageModel {
    "alt" => alt,
    "title" => title,
    "src" => src,
    "srcset" => srcset,
    "sizes" => sizes,
    "srcUriTemplate" => uri_template,
    "smartCropRendition" => crop,
    "uuid" => uuid,
    "link" => link_url,
    "imageLink" => image_link,
    "fileReference" => file_reference,
    "displayPopupTitle" => shows_popup_title,
    "decorative" => is_decorative,
    "areas" => areas,
    "widths" => widths,
    "width" => width,
    "height" => height,
    "lazyEnabled" => is_lazy,
    "lazyThreshold" => lazy_threshold,
    "dmImage" => is_dynamic_media,
    "json" => settings_json,
    "data" => data,
});

impl ComponentModel for ImageMapArea {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "shape" => self.shape.as_str().into(),
            "coordinates" => self.coordinates.as_str().into(),
            "relativeCoordinates" => self.relative_coordinates.as_str().into(),
            "href" => self.href.as_str().into(),
            "target" => self.target.as_str().into(),
            "alt" => self.alt.as_str().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["shape", "coordinates", "relativeCoordinates", "href", "target", "alt"]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        for name in self.property_names() {
            map.insert(name, self.property(name).unwrap_or_default());
        }
        map
    }
}

/// Returns whether a reference names a remote asset: `/urn:aaid:aem:.../name.png`.
fn is_remote(reference: &str) -> bool {
    reference.starts_with("/urn:")
}

/// Splits a remote reference into the identifier of the asset and its file name.
fn remote_parts(reference: &str) -> (&str, &str) {
    let reference = reference.trim_start_matches('/');
    reference.split_once('/').unwrap_or((reference, ""))
}

/// Returns the address of a remote asset without a query.
fn delivery_address(settings: &RemoteMediaSettings, reference: &str) -> String {
    let (id, file) = remote_parts(reference);
    let (name, format) = file.rsplit_once('.').unwrap_or((file, "jpg"));
    let path = settings
        .delivery_path
        .replace("{asset-id}", id)
        .replace("{seo-name}", name)
        .replace("{format}", format);
    format!("https://{}{path}", settings.repository)
}

/// Finds the crops in the metadata of a remote asset.
fn crops_of(metadata: &serde_json::Value) -> Option<&serde_json::Map<String, serde_json::Value>> {
    let members = metadata.as_object()?;
    match members.get("smartcrops") {
        Some(crops) => crops.as_object(),
        None => members.values().find_map(crops_of),
    }
}

/// Returns the extension of a picture's address: that of formats which browsers show, else `jpeg`.
fn extension_of(media_type: Option<&str>) -> &'static str {
    match media_type {
        Some("image/png") => "png",
        Some("image/gif") => "gif",
        Some("image/svg+xml") => "svg",
        Some("image/webp") => "webp",
        _ => "jpeg",
    }
}

/// Returns a file name without its extension.
fn base_name(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(base, _)| base)
}

/// Returns a file name as search engines like it: lower case, with hyphens between words.
fn search_friendly_name(name: &str) -> String {
    let name = name.to_lowercase().replace([' ', '_'], "-");
    utf8_percent_encode(&name, FILE_NAME).to_string()
}

/// Returns a path without colons after namespaces: `/jcr:content` as `/_jcr_content`.
fn without_namespaces(path: &str) -> String {
    let segments = path.split('/').map(|segment| match segment.split_once(':') {
        Some((prefix, name)) if !prefix.is_empty() && prefix.chars().all(char::is_alphanumeric) => {
            format!("_{prefix}_{name}")
        }
        _ => segment.to_owned(),
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Reads the areas of an image map: `[rect(0,0,9,9)"href"|"target"|"alt"|(0,0,1,1)]`.
fn image_map_areas(map: &str) -> Vec<ImageMapArea> {
    map.split('[').filter_map(|text| image_map_area(text.trim_end().strip_suffix(']')?)).collect()
}

fn image_map_area(text: &str) -> Option<ImageMapArea> {
    let (shape, rest) = text.split_once('(')?;
    let (coordinates, rest) = rest.split_once(')')?;
    let mut fields = rest.split('|');
    let mut quoted = || fields.next().map(|field| field.trim_matches('"').to_owned());
    let (href, target, alt) =
        (quoted()?, quoted().unwrap_or_default(), quoted().unwrap_or_default());
    let relative = fields.next().unwrap_or_default();
    Some(ImageMapArea {
        shape: shape.to_owned(),
        coordinates: coordinates.to_owned(),
        relative_coordinates: relative.trim_start_matches('(').trim_end_matches(')').to_owned(),
        href,
        target,
        alt,
    })
}
