//! References to content: images, documents, pages and fragments, as members of the union `Reference`.

use std::sync::Arc;

use async_graphql::dynamic::{Field, FieldValue, Object, SchemaBuilder, TypeRef, Union};
use async_graphql::{Result, Value};
use tympan_content::{Node, NodePath};

use super::answer_context::{AnswerContext, resolve_now, text_value};
use crate::content_fragment::ContentFragment;
use crate::fragment_content::FragmentContent;
use crate::fragment_model::SiteModels;

/// The union of all that a reference may lead to.
pub(super) const REFERENCE: &str = "Reference";

/// The types of references that are no fragments, with the value of their field `type`.
const REFERENCE_TYPES: [(&str, &str); 5] = [
    ("ImageRef", "image"),
    ("DocumentRef", "document"),
    ("MultimediaRef", "multimedia"),
    ("ArchiveRef", "archive"),
    ("PageRef", "page"),
];

/// A page or an asset.
struct ContentTarget {
    node: Node,
    /// The value of the field `type`.
    kind: &'static str,
}

/// Registers the types of references, and their union.
pub(super) fn register_references(
    mut builder: SchemaBuilder,
    models: &SiteModels,
) -> SchemaBuilder {
    let mut union = Union::new(REFERENCE);
    for (name, _) in REFERENCE_TYPES {
        let mut object = Object::new(name)
            .field(target_field("_path", TypeRef::ID, |_, target| {
                Some(target.node.path().to_string())
            }))
            .field(target_field("_authorUrl", TypeRef::STRING, |_, target| Some(target.address())))
            .field(target_field("_publishUrl", TypeRef::STRING, |_, target| Some(target.address())))
            .field(target_field("type", TypeRef::STRING, |_, target| Some(target.kind.to_owned())));
        match name {
            "ImageRef" => {
                object = object
                    .field(target_field("_dynamicUrl", TypeRef::STRING, |_, _| None))
                    .field(target_field("mimeType", TypeRef::STRING, |reader, target| {
                        media_type(reader, &target.node)
                    }))
                    .field(number_field("width", &["tiff:ImageWidth", "exif:PixelXDimension"]))
                    .field(number_field("height", &["tiff:ImageLength", "exif:PixelYDimension"]));
            }
            "PageRef" => {
                object = object.field(target_field("title", TypeRef::STRING, |reader, target| {
                    let content = reader.child(&target.node, "jcr:content")?;
                    let title = reader.property(&content, "jcr:title")?;
                    Some(title.first()?.to_text().into_owned())
                }));
            }
            _ => {
                for field in ["format", "mimeType"] {
                    object =
                        object.field(target_field(field, TypeRef::STRING, |reader, target| {
                            media_type(reader, &target.node)
                        }));
                }
            }
        }
        union = union.possible_type(name);
        builder = builder.register(object);
    }
    for model in &models.models {
        union = union.possible_type(&model.type_name);
    }
    builder.register(union)
}

impl ContentTarget {
    fn address(&self) -> String {
        match self.kind {
            "page" => format!("{}.html", self.node.path()),
            _ => self.node.path().to_string(),
        }
    }
}

fn target_field(
    name: &str,
    kind: &str,
    value: fn(&dyn FragmentContent, &ContentTarget) -> Option<String>,
) -> Field {
    Field::new(name, TypeRef::named(kind), move |context| {
        resolve_now(&context, |answer, context| {
            let target = context.parent_value.try_downcast_ref::<ContentTarget>()?;
            match value(&*answer.content, target) {
                Some(text) => text_value(answer, text),
                None => Ok(None),
            }
        })
    })
}

fn number_field(name: &str, sources: &'static [&'static str]) -> Field {
    Field::new(name, TypeRef::named(TypeRef::INT), move |context| {
        resolve_now(&context, |answer, context| {
            let target = context.parent_value.try_downcast_ref::<ContentTarget>()?;
            let reader = &*answer.content;
            let Some(metadata) = metadata_node(reader, &target.node) else { return Ok(None) };
            let number = sources.iter().find_map(|name| {
                reader.property(&metadata, name)?.first()?.to_text().parse::<i64>().ok()
            });
            Ok(number.map(|number| FieldValue::value(Value::from(number))))
        })
    })
}

fn metadata_node(reader: &dyn FragmentContent, asset: &Node) -> Option<Node> {
    reader.child(&reader.child(asset, "jcr:content")?, "metadata")
}

/// Returns the media type of an asset: that of its metadata, else that of its original.
fn media_type(reader: &dyn FragmentContent, asset: &Node) -> Option<String> {
    let text = |node: &Node, name: &str| {
        let property = reader.property(node, name)?;
        Some(property.first()?.to_text().into_owned()).filter(|text| !text.is_empty())
    };
    let of_metadata = metadata_node(reader, asset).and_then(|metadata| {
        text(&metadata, "dam:MIMEtype").or_else(|| text(&metadata, "dc:format"))
    });
    of_metadata.or_else(|| {
        let content = reader.child(asset, "jcr:content")?;
        let original = reader.child(&reader.child(&content, "renditions")?, "original")?;
        text(&reader.child(&original, "jcr:content")?, "jcr:mimeType")
    })
}

/// Returns the type of an asset by its media type, or by the end of its name.
fn asset_type(media_type: Option<&str>, name: &str) -> (&'static str, &'static str) {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    let family = media_type.and_then(|kind| kind.split('/').next()).unwrap_or_default();
    let is_archive = media_type.is_some_and(|kind| {
        ["zip", "x-tar", "x-7z-compressed", "gzip", "x-rar-compressed"]
            .iter()
            .any(|archive| kind.strip_prefix("application/") == Some(archive))
    });
    match (family, ending.as_deref()) {
        ("image", _)
        | ("", Some("jpg" | "jpeg" | "png" | "gif" | "webp" | "svg" | "tif" | "tiff")) => {
            ("ImageRef", "image")
        }
        ("video" | "audio", _) | ("", Some("mp4" | "mov" | "mp3" | "webm")) => {
            ("MultimediaRef", "multimedia")
        }
        _ if is_archive || ending.as_deref() == Some("zip") => ("ArchiveRef", "archive"),
        _ => ("DocumentRef", "document"),
    }
}

/// Returns what a path leads to, as a member of [`REFERENCE`]; `None` if the user sees nothing there.
pub(super) fn reference_value<'a>(
    answer: &AnswerContext,
    path: &str,
    variation: Option<&str>,
) -> Result<Option<FieldValue<'a>>> {
    let Ok(path) = NodePath::new(path) else { return Ok(None) };
    answer.take_reference()?;
    if let Some((fragment, type_name)) = find_fragment(answer, &path, variation) {
        return Ok(Some(FieldValue::owned_any(fragment).with_type(type_name)));
    }
    let reader = &*answer.content;
    let Some(node) = reader.node(&path) else { return Ok(None) };
    let (type_name, kind) = match node.primary_type() {
        "cq:Page" => ("PageRef", "page"),
        "dam:Asset" | "nt:file" => asset_type(media_type(reader, &node).as_deref(), node.name()),
        _ => return Ok(None),
    };
    Ok(Some(FieldValue::owned_any(ContentTarget { node, kind }).with_type(type_name)))
}

/// Finds a fragment of a known model, with the name of its type.
pub(super) fn find_fragment(
    answer: &AnswerContext,
    path: &NodePath,
    variation: Option<&str>,
) -> Option<(SelectedFragment, String)> {
    let fragment = ContentFragment::find(&*answer.content, path, variation)?;
    let type_name = answer.models.model_at(fragment.model())?.type_name.clone();
    let requested_variation = variation.map(Arc::from);
    Some((SelectedFragment { fragment, requested_variation }, type_name))
}

/// A fragment in an answer, with the variation that its query requested.
pub(super) struct SelectedFragment {
    pub fragment: ContentFragment,
    pub requested_variation: Option<Arc<str>>,
}
