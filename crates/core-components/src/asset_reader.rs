//! Assets of the DAM as models see them: metadata, media type, modification, and their entry in the data layer.

use std::sync::Arc;

use crate::component_context::ComponentContext;
use crate::content_value::{ContentDate, ContentValue};
use crate::model_value::{ModelMap, ModelValue};
use crate::tag_reader::tag_title;

/// One asset.
#[derive(Clone, Debug)]
pub(crate) struct AssetReader<'a> {
    context: &'a dyn ComponentContext,
    path: String,
}

impl<'a> AssetReader<'a> {
    /// Returns the asset at a path.
    pub(crate) fn find(context: &'a dyn ComponentContext, path: &str) -> Option<AssetReader<'a>> {
        let primary_type = context.property(path, "jcr:primaryType")?.to_text()?;
        (&*primary_type == "dam:Asset").then(|| AssetReader { context, path: path.to_owned() })
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns a value of the metadata.
    pub(crate) fn metadata(&self, name: &str) -> Option<ContentValue> {
        self.context.property(&format!("{}/jcr:content/metadata", self.path), name)
    }

    /// Returns a text of the metadata that is not empty.
    pub(crate) fn metadata_text(&self, name: &str) -> Option<Arc<str>> {
        self.metadata(name)?.to_text().filter(|text| !text.is_empty())
    }

    /// Returns the media type: that of the metadata, else that of the original.
    pub(crate) fn media_type(&self) -> Option<Arc<str>> {
        self.metadata_text("dc:format").or_else(|| {
            let original = format!("{}/jcr:content/renditions/original/jcr:content", self.path);
            self.context.property(&original, "jcr:mimeType")?.to_text()
        })
    }

    /// Returns the identifier of the node.
    pub(crate) fn identifier(&self) -> Option<Arc<str>> {
        self.context.property(&self.path, "jcr:uuid")?.to_text()
    }

    /// Returns when the asset changed.
    pub(crate) fn modified(&self) -> Option<ContentDate> {
        self.context.property(&format!("{}/jcr:content", self.path), "jcr:lastModified")?.to_date()
    }

    /// Returns the number of bytes of the original.
    pub(crate) fn size(&self) -> Option<i64> {
        self.metadata("dam:size").and_then(|size| size.to_long()).or_else(|| {
            let original = format!("{}/jcr:content/renditions/original/jcr:content", self.path);
            match self.context.property(&original, "jcr:data")? {
                ContentValue::Binary(length) => i64::try_from(length).ok(),
                _ => None,
            }
        })
    }

    /// Returns the fields that the data layer has for the asset.
    pub(crate) fn data(&self) -> ModelMap {
        let mut fields = ModelMap::new();
        fields.insert_present("repo:id", self.identifier());
        // AEM gives the beginning of 1970 for an asset without a date.
        let modified = self.modified().unwrap_or(ContentDate { epoch_ms: 0, offset_minutes: 0 });
        fields.insert("repo:modifyDate", modified.to_utc_text());
        fields.insert_present("@type", self.media_type());
        fields.insert("repo:path", self.path.as_str());
        let tags = self.metadata("cq:tags").map(|value| value.to_texts()).unwrap_or_default();
        if !tags.is_empty() {
            let titles = tags.iter().map(|tag| tag_title(self.context, tag));
            fields.insert("xdm:tags", ModelValue::texts(titles));
        }
        let smart_tags = self.smart_tags();
        if !smart_tags.is_empty() {
            fields.insert("xdm:smartTags", smart_tags);
        }
        fields
    }

    /// Returns the tags that a machine found, with their confidence.
    fn smart_tags(&self) -> ModelMap {
        let folder = format!("{}/jcr:content/metadata/predictedTags", self.path);
        let mut tags = ModelMap::new();
        for name in self.context.child_names(&folder) {
            let node = format!("{folder}/{name}");
            let confidence = self.context.property(&node, "confidence");
            if let Some(confidence) = confidence.and_then(|value| value.to_double()) {
                let title = self.context.property(&node, "name").and_then(|value| value.to_text());
                tags.insert(title.unwrap_or_else(|| name.into()), confidence);
            }
        }
        tags
    }
}
