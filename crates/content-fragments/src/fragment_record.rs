//! The values of fragments in memory, for filters and orders, which read many fragments and show few.

use tympan_content::{Node, NodePath, Property, Subtree};

/// The variation that every fragment has.
pub const MASTER: &str = "master";
/// Maximum length of the values of a field that are held. Titles and paths are shorter, texts of several lines longer.
const MAX_VALUE_BYTES: usize = 1024;

/// The values of a fragment in memory, with all its variations.
#[derive(Debug, Clone)]
pub struct FragmentRecord {
    /// The path of the fragment.
    pub path: NodePath,
    /// The identifier of the fragment; its path if it has none.
    pub identifier: String,
    /// The path of its model.
    pub model: String,
    /// The variations; `master` is the first.
    pub variations: Vec<VariationRecord>,
}

/// The values of one variation in memory.
#[derive(Debug, Clone)]
pub struct VariationRecord {
    /// The name.
    pub name: String,
    /// The properties of the fields, sorted by name.
    values: Vec<(Box<str>, Property)>,
    /// The names of the fields whose values are too long to be held.
    long_values: Vec<Box<str>>,
    /// The tags.
    pub tags: Vec<String>,
}

impl FragmentRecord {
    /// Reads a fragment from its document; `None` if it is none.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read(asset: &Node) -> tympan_content::Result<Option<Self>> {
        let Some(content) = asset.content_node()? else { return Ok(None) };
        let Some(data) = content.child("data")? else { return Ok(None) };
        let Some(model) = data.text("cq:model") else { return Ok(None) };
        let metadata = content.child("metadata")?;
        let texts = |node: &Node| {
            let tags = node.property("cq:tags")?;
            Some(tags.values().iter().map(|tag| tag.to_text().into_owned()).collect::<Vec<_>>())
        };
        let mut variations: Vec<VariationRecord> = data
            .children()?
            .iter()
            .map(|node| {
                let is_master = node.name() == MASTER;
                let metadata = metadata.as_ref().filter(|_| is_master);
                let fields = node.properties().into_iter();
                let fields = fields.filter(|(name, _)| !name.contains(['@', ':']));
                let (values, long_values) =
                    fields.partition::<Vec<_>, _>(|(_, value)| is_kept_in_memory(value));
                VariationRecord {
                    name: node.name().to_owned(),
                    values: values
                        .into_iter()
                        .map(|(name, value)| (name.into_boxed_str(), value))
                        .collect(),
                    long_values: long_values
                        .into_iter()
                        .map(|(name, _)| name.into_boxed_str())
                        .collect(),
                    tags: texts(node).or_else(|| metadata.and_then(texts)).unwrap_or_default(),
                }
            })
            .collect();
        if !variations.iter().any(|variation| variation.name == MASTER) {
            return Ok(None);
        }
        variations.sort_by_key(|variation| variation.name != MASTER);
        Ok(Some(Self {
            path: asset.path().clone(),
            identifier: asset.text("jcr:uuid").unwrap_or_else(|| asset.path().to_string()),
            model,
            variations,
        }))
    }

    /// Returns a variation, or `master`.
    #[must_use]
    pub fn variation_or_master(&self, name: Option<&str>) -> Option<&VariationRecord> {
        let named = self.variations.iter().find(|variation| Some(&*variation.name) == name);
        named.or_else(|| self.variations.first())
    }
}

impl VariationRecord {
    /// Returns true if the values of a field are not held.
    #[must_use]
    pub fn has_long_value(&self, name: &str) -> bool {
        self.long_values.iter().any(|own| **own == *name)
    }

    /// Returns the values of a field that are held; `None` if there are none.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&Property> {
        let at = self.values.binary_search_by(|(own, _)| (**own).cmp(name)).ok()?;
        self.values.get(at).map(|(_, value)| value)
    }

    /// Reads the values of a variation that is not stored yet, as a check before it is.
    #[must_use]
    pub fn from_subtree(variation: &Subtree) -> Self {
        let mut values: Vec<(Box<str>, Property)> = variation
            .properties
            .iter()
            .filter(|(name, _)| !name.contains(['@', ':']))
            .map(|(name, value)| (name.as_str().into(), value.clone()))
            .collect();
        values.sort_by(|left, right| left.0.cmp(&right.0));
        Self { name: variation.name.clone(), values, long_values: Vec::new(), tags: Vec::new() }
    }
}

fn is_kept_in_memory(property: &Property) -> bool {
    let lengths = property.values().iter().map(|value| value.to_text().len());
    lengths.sum::<usize>() <= MAX_VALUE_BYTES
}
