//! Content fragments: assets whose content is `jcr:content/data`, with one node for each variation.
//!
//! In: the path of a fragment, and the name of a variation. Out: the values of that variation; those of `master` if it
//! does not exist.
//!
//! Not here: selecting fragments ([`crate::fragment_list`]), checking values ([`crate::field_validation`]).

use std::fmt;

use tympan_content::{Node, NodePath, Property};

use crate::fragment_content::FragmentContent;
use crate::fragment_record::MASTER;

/// The end of the name of the property that has the media type of a text.
const CONTENT_TYPE_SUFFIX: &str = "@ContentType";

/// A variation of a fragment.
#[derive(Clone)]
pub struct ContentFragment {
    /// The asset.
    asset: Node,
    /// `jcr:content`.
    content: Node,
    /// `jcr:content/data`.
    data: Node,
    /// The node of the variation.
    variation: Node,
    model: String,
}

impl ContentFragment {
    /// Finds a fragment, and selects a variation, or `master`.
    #[must_use]
    pub fn find(
        reader: &dyn FragmentContent,
        path: &NodePath,
        variation: Option<&str>,
    ) -> Option<Self> {
        let asset = reader.node(path)?;
        let content = reader.child(&asset, "jcr:content")?;
        let data = reader.child(&content, "data")?;
        let model = reader.property(&data, "cq:model")?.first()?.to_text().into_owned();
        let variation = variation
            .filter(|name| *name != MASTER)
            .and_then(|name| reader.child(&data, name))
            .or_else(|| reader.child(&data, MASTER))?;
        Some(Self { asset, content, data, variation, model })
    }

    /// Returns the path of the fragment.
    #[must_use]
    pub fn path(&self) -> &NodePath {
        self.asset.path()
    }

    /// Returns the path of the fragment's model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the name of the variation.
    #[must_use]
    pub fn variation_name(&self) -> &str {
        self.variation.name()
    }

    /// Returns the names of the variations other than `master`.
    #[must_use]
    pub fn variation_names(&self, reader: &dyn FragmentContent) -> Vec<String> {
        let variations = reader.children(&self.data).into_iter();
        variations.map(|node| node.name().to_owned()).filter(|name| name != MASTER).collect()
    }

    /// Returns a value of the variation.
    #[must_use]
    pub fn value(&self, reader: &dyn FragmentContent, name: &str) -> Option<Property> {
        reader.property(&self.variation, name)
    }

    /// Returns the media type of a text of the variation, if it is noted.
    #[must_use]
    pub fn text_type(&self, reader: &dyn FragmentContent, name: &str) -> Option<String> {
        let property = reader.property(&self.variation, &format!("{name}{CONTENT_TYPE_SUFFIX}"))?;
        Some(property.first()?.to_text().into_owned())
    }

    /// Returns the tags: those of the variation's node, else for `master` those of the metadata.
    #[must_use]
    pub fn tags(&self, reader: &dyn FragmentContent) -> Vec<String> {
        let own = reader.property(&self.variation, "cq:tags");
        let tags = own.or_else(|| {
            let metadata = reader.child(&self.content, "metadata")?;
            reader.property(&metadata, "cq:tags").filter(|_| self.variation_name() == MASTER)
        });
        tags.map_or_else(Vec::new, |tags| {
            tags.values().iter().map(|tag| tag.to_text().into_owned()).collect()
        })
    }

    /// Returns the metadata of the fragment: title, description, and the properties of `metadata`, sorted by name.
    #[must_use]
    pub fn metadata(&self, reader: &dyn FragmentContent) -> Vec<(String, Property)> {
        let head = [("title", "jcr:title"), ("description", "jcr:description")];
        let mut values: Vec<(String, Property)> = head
            .iter()
            .filter_map(|(name, source)| {
                Some(((*name).to_owned(), reader.property(&self.content, source)?))
            })
            .collect();
        let metadata = reader.child(&self.content, "metadata");
        let properties = metadata.map(|node| reader.properties(&node)).unwrap_or_default();
        let is_shown = |name: &str| name != "jcr:primaryType" && name != "jcr:mixinTypes";
        values.extend(properties.into_iter().filter(|(name, _)| is_shown(name)));
        values.sort_by(|left, right| left.0.cmp(&right.0));
        values
    }

    /// Returns the identifier of the fragment; its path if it has none.
    #[must_use]
    pub fn identifier(&self, reader: &dyn FragmentContent) -> String {
        let identifier = reader.property(&self.asset, "jcr:uuid");
        identifier
            .and_then(|property| Some(property.first()?.to_text().into_owned()))
            .unwrap_or_else(|| self.path().to_string())
    }
}

impl fmt::Debug for ContentFragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentFragment({} {})", self.path(), self.variation_name())
    }
}
