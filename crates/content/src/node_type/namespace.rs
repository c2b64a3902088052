//! Namespaces: the URIs of name prefixes.
//!
//! Names are stored with their prefixes, so a prefix stands for one URI for as long as it is used. The standard ones
//! are compiled in; those that a site registers are properties of `/jcr:system/rep:namespaces`.

use std::collections::BTreeMap;

/// The prefixes of every repository.
const STANDARD_PREFIXES: [(&str, &str); 40] = [
    ("", ""),
    ("jcr", "http://www.jcp.org/jcr/1.0"),
    ("nt", "http://www.jcp.org/jcr/nt/1.0"),
    ("mix", "http://www.jcp.org/jcr/mix/1.0"),
    ("sv", "http://www.jcp.org/jcr/sv/1.0"),
    ("xml", "http://www.w3.org/XML/1998/namespace"),
    ("rep", "internal"),
    ("oak", "http://jackrabbit.apache.org/oak/ns/1.0"),
    ("sling", "http://sling.apache.org/jcr/sling/1.0"),
    ("cq", "http://www.day.com/jcr/cq/1.0"),
    ("dam", "http://www.day.com/dam/1.0"),
    ("vlt", "http://www.day.com/jcr/vault/1.0"),
    ("crx", "http://www.day.com/crx/1.0"),
    ("granite", "http://www.adobe.com/jcr/granite/1.0"),
    ("social", "http://www.adobe.com/social/1.0"),
    ("wiki", "http://www.day.com/jcr/wiki/1.0"),
    ("mp", "http://www.adobe.com/mp/1.0"),
    ("fd", "http://www.adobe.com/aemfd/fd/1.0"),
    ("slingevent", "http://sling.apache.org/jcr/event/1.0"),
    ("dc", "http://purl.org/dc/elements/1.1/"),
    ("xmp", "http://ns.adobe.com/xap/1.0/"),
    ("xmpMM", "http://ns.adobe.com/xap/1.0/mm/"),
    ("xmpRights", "http://ns.adobe.com/xap/1.0/rights/"),
    ("xmpTPg", "http://ns.adobe.com/xap/1.0/t/pg/"),
    ("xmpDM", "http://ns.adobe.com/xmp/1.0/DynamicMedia/"),
    ("xmpG", "http://ns.adobe.com/xap/1.0/g/"),
    ("xmpNote", "http://ns.adobe.com/xmp/note/"),
    ("stEvt", "http://ns.adobe.com/xap/1.0/sType/ResourceEvent#"),
    ("stRef", "http://ns.adobe.com/xap/1.0/sType/ResourceRef#"),
    ("stDim", "http://ns.adobe.com/xap/1.0/sType/Dimensions#"),
    ("stFnt", "http://ns.adobe.com/xap/1.0/sType/Font#"),
    ("tiff", "http://ns.adobe.com/tiff/1.0/"),
    ("exif", "http://ns.adobe.com/exif/1.0/"),
    ("aux", "http://ns.adobe.com/exif/1.0/aux/"),
    ("crs", "http://ns.adobe.com/camera-raw-settings/1.0/"),
    ("pdf", "http://ns.adobe.com/pdf/1.3/"),
    ("pdfx", "http://ns.adobe.com/pdfx/1.3/"),
    ("photoshop", "http://ns.adobe.com/photoshop/1.0/"),
    ("illustrator", "http://ns.adobe.com/illustrator/1.0/"),
    ("Iptc4xmpCore", "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"),
];

/// The prefixes of one state of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceRegistry {
    uris: BTreeMap<String, String>,
}

impl Default for NamespaceRegistry {
    fn default() -> Self {
        let uris = STANDARD_PREFIXES.map(|(prefix, uri)| (prefix.to_owned(), uri.to_owned()));
        Self { uris: uris.into() }
    }
}

impl NamespaceRegistry {
    /// Returns the URI of a prefix.
    #[must_use]
    pub fn uri(&self, prefix: &str) -> Option<&str> {
        self.uris.get(prefix).map(String::as_str)
    }

    /// Returns the prefix of a URI.
    #[must_use]
    pub fn prefix(&self, uri: &str) -> Option<&str> {
        self.uris
            .iter()
            .find(|(_, namespace_uri)| *namespace_uri == uri)
            .map(|(prefix, _)| prefix.as_str())
    }

    /// Returns all prefixes with their URIs, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.uris.iter().map(|(prefix, uri)| (prefix.as_str(), uri.as_str()))
    }

    /// Returns the prefix of a name if it has no namespace.
    pub(crate) fn unknown_prefix<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (prefix, _) = name.split_once(':')?;
        (!self.uris.contains_key(prefix)).then_some(prefix)
    }

    /// Adds a stored mapping.
    pub(crate) fn add_mapping(&mut self, prefix: &str, uri: &str) {
        self.uris.entry(prefix.to_owned()).or_insert_with(|| uri.to_owned());
    }

    /// Checks a mapping before it is stored. Returns true if it is new.
    ///
    /// # Errors
    /// The reason for which it is not allowed, with Oak's name for it.
    pub(crate) fn check_mapping(&self, prefix: &str, uri: &str) -> Result<bool, &'static str> {
        if self.uri(prefix) == Some(uri) {
            return Ok(false);
        }
        if prefix.to_ascii_lowercase().starts_with("xml") {
            return Err("OakNamespace0003: prefixes that begin with `xml` are reserved");
        }
        if prefix.is_empty() || crate::check_item_name(prefix).is_err() || prefix.contains(':') {
            return Err("OakNamespace0004: the prefix is not valid");
        }
        if self.uris.contains_key(prefix) {
            return Err("OakNamespace0001: the prefix is already mapped to another namespace");
        }
        if uri.is_empty() || self.prefix(uri).is_some() {
            return Err("OakNamespace0005: the namespace is already mapped to another prefix");
        }
        Ok(true)
    }
}
