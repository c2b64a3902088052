//! Assets as template objects.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use tympan_content::{Node, Property, Value as Stored};

use super::scope::Scope;
use crate::file::StoredFile;
use crate::link::encode_path;

/// An asset or file, as `asset(path)` gives it.
struct AssetObject {
    scope: Arc<Scope>,
    node: Node,
}

/// Makes the value of an asset's node.
pub(super) fn asset_value(scope: &Arc<Scope>, node: Node) -> Value {
    Value::from_object(AssetObject { scope: Arc::clone(scope), node })
}

impl AssetObject {
    /// Returns the first of the named properties of the metadata that has a value.
    fn metadata(&self, names: &[&str]) -> Option<Stored> {
        let metadata = self.scope.reader.find(&self.node, "jcr:content/metadata")?;
        let values = names.iter().filter_map(|name| metadata.property(name)?.first().cloned());
        values.into_iter().find(|value| !value.to_text().is_empty())
    }

    /// Returns a text of the metadata.
    fn text(&self, names: &[&str]) -> Option<String> {
        self.metadata(names).map(|value| value.to_text().into_owned())
    }

    /// Returns a number of the metadata, also one stored as text.
    fn number(&self, names: &[&str]) -> Option<Value> {
        self.metadata(names)?.to_text().trim().parse::<i64>().ok().map(Value::from)
    }

    /// Returns the original.
    fn original(&self) -> Option<StoredFile> {
        StoredFile::of(&self.node).ok().flatten()
    }
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
                let own = || self.node.property("jcr:title").as_ref().and_then(first_text);
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

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node.path())
    }
}

impl fmt::Debug for AssetObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asset {}", self.node.path())
    }
}

/// Returns the first value of a property as text.
fn first_text(property: &Property) -> Option<String> {
    property.first().map(|value| value.to_text().into_owned())
}
