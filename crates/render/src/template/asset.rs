//! Assets as template objects.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use tympan_content::{Node, Property, Value as Stored};

use super::failure::invalid_call;
use super::scope::RenderScope;
use crate::image_address::{ImageAddress, ImageFormatExtension, ImageShape, MAX_IMAGE_SIDE};
use crate::page::link::encode_path;
use crate::response::stored_file::StoredFile;

/// An asset or file, as returned by `asset(path)`.
struct AssetObject {
    scope: Arc<RenderScope>,
    node: Node,
}

/// Creates the template value of an asset's node.
pub(super) fn asset_value(scope: &Arc<RenderScope>, node: Node) -> Value {
    Value::from_object(AssetObject { scope: Arc::clone(scope), node })
}

impl AssetObject {
    /// Returns the first of the named metadata properties that has a value.
    fn metadata(&self, names: &[&str]) -> Option<Stored> {
        let metadata = self.scope.reader.descendant(&self.node, "jcr:content/metadata")?;
        let values = names.iter().filter_map(|name| metadata.property(name)?.first().cloned());
        values.into_iter().find(|value| !value.to_text().is_empty())
    }

    /// Returns a text from the metadata.
    fn text(&self, names: &[&str]) -> Option<String> {
        self.metadata(names).map(|value| value.to_text().into_owned())
    }

    /// Returns a number from the metadata, also if it is stored as text.
    fn number(&self, names: &[&str]) -> Option<Value> {
        self.metadata(names)?.to_text().trim().parse::<i64>().ok().map(Value::from)
    }

    /// Returns a side of the original, in pixels.
    fn original_side(&self, names: &[&str]) -> Option<u32> {
        u32::try_from(self.number(names)?.as_i64()?).ok()
    }

    /// Returns the stored renditions that show the whole image, narrowest first.
    fn renditions(&self) -> Vec<StoredRendition> {
        let Some(folder) = self.scope.reader.descendant(&self.node, "jcr:content/renditions")
        else {
            return Vec::new();
        };
        let own = self
            .original_side(&["tiff:ImageWidth", "exif:PixelXDimension"])
            .zip(self.original_side(&["tiff:ImageLength", "exif:PixelYDimension"]));
        let children = self.scope.reader.children(&folder);
        let mut renditions: Vec<StoredRendition> =
            children.iter().filter_map(|child| StoredRendition::from_node(child, own)).collect();
        renditions.sort_by(|left, right| (left.width, &left.name).cmp(&(right.width, &right.name)));
        renditions
    }

    /// Formats the stored renditions of a format as a `srcset`; by default those of the most frequent format.
    fn stored_srcset(&self, format: Option<&str>) -> String {
        let all = self.renditions();
        let formats = all.iter().map(|rendition| rendition.format.as_str());
        let count =
            |format: &str| all.iter().filter(|rendition| rendition.format == format).count();
        let most = formats.rev().max_by_key(|format| count(format)).unwrap_or_default();
        let target_format = match format {
            Some("jpg") => "jpeg",
            Some(format) => format,
            None => most,
        };
        let mut selected: Vec<&StoredRendition> =
            all.iter().filter(|rendition| rendition.format == target_format).collect();
        selected.dedup_by_key(|rendition| rendition.width);
        let candidate_text =
            |rendition: &&StoredRendition| format!("{} {}w", rendition.url, rendition.width);
        selected.iter().map(candidate_text).collect::<Vec<_>>().join(", ")
    }

    /// Returns the original.
    fn original(&self) -> Option<StoredFile> {
        StoredFile::from_node(&self.node).ok().flatten()
    }

    /// Returns the URL of an image in a shape: with the hash of the original, so that it may be cached forever, and
    /// signed, so that it may have any size.
    fn image_url(&self, shape: ImageShape, ending: ImageFormatExtension) -> String {
        let hash = self.original().map(|file| format!("{:.16}", hex::encode(file.blob.digest())));
        let asset = self.node.path().as_str().to_owned();
        let address = ImageAddress { asset, shape, extension: ending, hash, signature: None };
        match &self.scope.image_key {
            Some(key) => address.sign(key).to_url(),
            None => address.to_url(),
        }
    }

    /// `image(width=640, format="webp")`, or `image(crop="640x360")`.
    fn image(&self, options: &Kwargs) -> Result<Value, Error> {
        let shape = match (text_option(options, "width")?, text_option(options, "crop")?) {
            (Some(width), None) => ImageShape::Width(parse_side(&width)?),
            (None, Some(crop)) => {
                let (width, height) = crop.split_once('x').unwrap_or((&crop, ""));
                ImageShape::Crop(parse_side(width)?, parse_side(height)?)
            }
            _ => return Err(invalid_call("`image` takes `width=640` or `crop=\"640x360\"`")),
        };
        let ending = image_ending(options)?;
        options.assert_all_used()?;
        Ok(Value::from(self.image_url(shape, ending)))
    }

    /// `srcset(widths=[320, 640], format="webp")`: only widths up to that of the original, or its own if all are
    /// larger. Without widths, the stored renditions.
    fn srcset(&self, options: &Kwargs) -> Result<Value, Error> {
        let widths: Option<Value> = options.get("widths")?;
        let Some(widths) = widths.filter(|widths| !widths.is_none() && !widths.is_undefined())
        else {
            let format = text_option(options, "format")?;
            options.assert_all_used()?;
            return Ok(Value::from(self.stored_srcset(format.as_deref())));
        };
        let ending = image_ending(options)?;
        options.assert_all_used()?;
        let own = self
            .original_side(&["tiff:ImageWidth", "exif:PixelXDimension"])
            .unwrap_or(MAX_IMAGE_SIDE);
        let mut sizes = Vec::new();
        for width in widths.try_iter()? {
            sizes.push(parse_side(&width.to_string())?.min(own));
        }
        sizes.sort_unstable();
        sizes.dedup();
        let candidate_text =
            |width: &u32| format!("{} {width}w", self.image_url(ImageShape::Width(*width), ending));
        let all: Vec<String> = sizes.iter().map(candidate_text).collect();
        Ok(Value::from(all.join(", ")))
    }
}

/// A stored rendition that shows the whole image.
struct StoredRendition {
    name: String,
    url: String,
    /// The extension of its name; `jpeg` also for `jpg`.
    format: String,
    width: u32,
}

impl StoredRendition {
    /// Parses the name of a rendition: `cq5dam.width.640.webp`, or `cq5dam.web.1280.1280.jpeg`, which fits into a box.
    /// Others, such as thumbnails, may show only a part. Neither is wider than the original.
    fn from_node(node: &Node, own: Option<(u32, u32)>) -> Option<Self> {
        let parts: Vec<&str> = node.name().split('.').collect();
        let (width, ending) = match parts.as_slice() {
            ["cq5dam", "width", width, ending] => {
                let width = parse_side(width).ok()?;
                (own.map_or(width, |(own, _)| width.min(own)), ending)
            }
            ["cq5dam", "web", width, height, ending] => {
                (fitted_width((parse_side(width).ok()?, parse_side(height).ok()?), own?)?, ending)
            }
            _ => return None,
        };
        let ending = ending.to_ascii_lowercase();
        Some(Self {
            name: node.name().to_owned(),
            url: encode_path(node.path().as_str()),
            format: if ending == "jpg" { "jpeg".to_owned() } else { ending },
            width,
        })
    }

    fn to_value(&self) -> Value {
        Value::from_pairs([
            ("name", Value::from(self.name.as_str())),
            ("url", Value::from(self.url.as_str())),
            ("format", Value::from(self.format.as_str())),
            ("width", Value::from(self.width)),
        ])
    }
}

/// Returns the width of an image scaled down to fit into a box.
fn fitted_width((box_width, box_height): (u32, u32), (width, height): (u32, u32)) -> Option<u32> {
    let by_height = u64::from(width) * u64::from(box_height) / u64::from(height.max(1));
    let fitted = u64::from(width.min(box_width)).min(by_height).max(1);
    u32::try_from(fitted).ok()
}

impl Object for AssetObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        Some(match key {
            "url" => Value::from(encode_path(self.node.path().as_str())),
            "path" => Value::from(self.node.path().as_str()),
            "name" => Value::from(self.node.name()),
            "title" => {
                let own = || self.node.property("jcr:title").as_ref().and_then(first_text_value);
                Value::from(
                    self.text(&["dc:title", "jcr:title"])
                        .or_else(own)
                        .unwrap_or_else(|| self.node.name().to_owned()),
                )
            }
            "alt" => Value::from(self.text(&["alt", "dc:description"])?),
            "width" => self.number(&["tiff:ImageWidth", "exif:PixelXDimension"])?,
            "height" => self.number(&["tiff:ImageLength", "exif:PixelYDimension"])?,
            "mime" => {
                let original = || self.original().map(|file| file.media_type);
                Value::from(self.text(&["dam:MIMEtype", "dc:format"]).or_else(original)?)
            }
            "renditions" => {
                self.renditions().iter().map(StoredRendition::to_value).collect::<Vec<_>>().into()
            }
            "size" => match self.original() {
                Some(file) => Value::from(file.blob.length()),
                None => self.number(&["dam:size"])?,
            },
            _ => return None,
        })
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let (options,): (Kwargs,) = from_args(args)?;
        match method {
            "image" => self.image(&options),
            "srcset" => self.srcset(&options),
            _ => Err(Error::new(
                ErrorKind::UnknownMethod,
                format!("an asset has no method `{method}`; it has `image` and `srcset`"),
            )),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node.path())
    }
}

impl fmt::Debug for AssetObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asset {}", self.node.path())
    }
}

/// Returns a named argument as text; `none` counts as missing.
fn text_option(options: &Kwargs, name: &str) -> Result<Option<String>, Error> {
    let value: Option<Value> = options.get(name)?;
    let value = value.filter(|value| !value.is_none() && !value.is_undefined());
    Ok(value.map(|value| value.to_string()))
}

fn image_ending(options: &Kwargs) -> Result<ImageFormatExtension, Error> {
    let Some(name) = text_option(options, "format")? else { return Ok(ImageFormatExtension::WebP) };
    ImageFormatExtension::parse(&name)
        .ok_or_else(|| invalid_call(format!("`format` is `{name}`; it must be webp, jpeg or png")))
}

fn parse_side(text: &str) -> Result<u32, Error> {
    let side = text.trim().parse().ok().filter(|side| (1..=MAX_IMAGE_SIDE).contains(side));
    side.ok_or_else(|| {
        invalid_call(format!("`{text}` is not a valid image side; use 1 to {MAX_IMAGE_SIDE}"))
    })
}

/// Returns the first value of a property as text.
fn first_text_value(property: &Property) -> Option<String> {
    property.first().map(|value| value.to_text().into_owned())
}
