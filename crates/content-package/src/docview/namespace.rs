//! Namespace prefixes and the namespaces that they stand for.
//!
//! Content names carry prefixes. A document may bind any prefix to a namespace; for a known namespace, names get its
//! usual prefix.

use std::collections::BTreeMap;

use crate::xml_reader::XmlElement;

const KNOWN_NAMESPACES: [(&str, &str); 26] = [
    ("Iptc4xmpCore", "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"),
    ("cq", "http://www.day.com/jcr/cq/1.0"),
    ("crx", "http://www.day.com/crx/1.0"),
    ("dam", "http://www.day.com/dam/1.0"),
    ("dc", "http://purl.org/dc/elements/1.1/"),
    ("exif", "http://ns.adobe.com/exif/1.0/"),
    ("fd", "http://www.adobe.com/aemfd/fd/1.0"),
    ("granite", "http://www.adobe.com/jcr/granite/1.0"),
    ("jcr", JCR_NAMESPACE),
    ("mix", "http://www.jcp.org/jcr/mix/1.0"),
    ("nt", "http://www.jcp.org/jcr/nt/1.0"),
    ("oak", "http://jackrabbit.apache.org/oak/ns/1.0"),
    ("pdf", "http://ns.adobe.com/pdf/1.3/"),
    ("photoshop", "http://ns.adobe.com/photoshop/1.0/"),
    ("rep", "internal"),
    ("sling", "http://sling.apache.org/jcr/sling/1.0"),
    ("stEvt", "http://ns.adobe.com/xap/1.0/sType/ResourceEvent#"),
    ("stRef", "http://ns.adobe.com/xap/1.0/sType/ResourceRef#"),
    ("sv", "http://www.jcp.org/jcr/sv/1.0"),
    ("tiff", "http://ns.adobe.com/tiff/1.0/"),
    ("vlt", "http://www.day.com/jcr/vault/1.0"),
    ("wcm", "http://www.adobe.com/wcm/1.0"),
    ("xml", "http://www.w3.org/XML/1998/namespace"),
    ("xmp", "http://ns.adobe.com/xap/1.0/"),
    ("xmpMM", "http://ns.adobe.com/xap/1.0/mm/"),
    ("xmpRights", "http://ns.adobe.com/xap/1.0/rights/"),
];

const JCR_NAMESPACE: &str = "http://www.jcp.org/jcr/1.0";

/// The namespace of each prefix, for writing documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocviewNamespaces(BTreeMap<String, String>);

impl Default for DocviewNamespaces {
    /// Returns the namespaces of JCR, Sling, CQ, DAM and XMP.
    fn default() -> Self {
        Self(
            KNOWN_NAMESPACES
                .iter()
                .map(|(prefix, uri)| ((*prefix).to_owned(), (*uri).to_owned()))
                .collect(),
        )
    }
}

impl DocviewNamespaces {
    /// Adds prefixes; existing ones keep their namespace.
    pub fn extend(&mut self, others: impl IntoIterator<Item = (String, String)>) {
        for (prefix, uri) in others {
            self.0.entry(prefix).or_insert(uri);
        }
    }

    /// Returns the namespace of a prefix; an invented one if it is unknown, because XML requires one.
    pub(crate) fn uri_of(&self, prefix: &str) -> String {
        self.0.get(prefix).cloned().unwrap_or_else(|| format!("urn:x-tympan:prefix:{prefix}"))
    }
}

/// The namespace declarations in scope at a position in a document.
#[derive(Debug, Default)]
pub(crate) struct NamespaceScopes {
    /// The number of declarations of each open element.
    declaration_counts: Vec<usize>,
    /// Prefix, namespace, and the prefix used in names.
    declarations: Vec<(String, String, String)>,
    used_namespaces: BTreeMap<String, String>,
}

impl NamespaceScopes {
    /// Maximum number of declarations in scope; each name is looked up among them.
    pub(crate) const MAX_DECLARATIONS: usize = 1000;

    /// Returns the number of declarations in scope.
    pub(crate) fn declaration_count(&self) -> usize {
        self.declarations.len()
    }

    /// Enters an element.
    pub(crate) fn enter_element(&mut self, element: &XmlElement) {
        let before = self.declarations.len();
        for attribute in &element.attributes {
            let Some(prefix) = attribute.name.strip_prefix("xmlns:") else {
                continue;
            };
            let uri = attribute.value.clone();
            let usual = KNOWN_NAMESPACES.iter().find(|(_, namespace)| *namespace == uri);
            let name = usual.map_or_else(|| prefix.to_owned(), |(usual, _)| (*usual).to_owned());
            self.declarations.push((prefix.to_owned(), uri, name));
        }
        self.declaration_counts.push(self.declarations.len() - before);
    }

    /// Leaves the innermost element.
    pub(crate) fn leave_element(&mut self) {
        let count = self.declaration_counts.pop().unwrap_or(0);
        self.declarations.truncate(self.declarations.len().saturating_sub(count));
    }

    /// Returns true if a qualified name is `jcr:root`, whatever its prefix.
    pub(crate) fn is_jcr_root_name(&self, qualified: &str) -> bool {
        let Some((prefix, "root")) = qualified.split_once(':') else {
            return false;
        };
        self.find_declaration(prefix).is_some_and(|(uri, _)| uri == JCR_NAMESPACE)
    }

    /// Returns a name with its usual prefix; `None` if its prefix is not declared.
    pub(crate) fn resolve_name(&mut self, qualified: &str) -> Option<String> {
        let Some((prefix, local)) = qualified.split_once(':') else {
            return Some(qualified.to_owned());
        };
        if prefix == "xml" {
            return Some(qualified.to_owned());
        }
        let (uri, name) = self.find_declaration(prefix)?;
        let resolved = format!("{name}:{local}");
        if !self.used_namespaces.contains_key(name) {
            let (uri, name) = (uri.to_owned(), name.to_owned());
            self.used_namespaces.insert(name, uri);
        }
        Some(resolved)
    }

    /// Returns the prefixes used in names, and their namespaces.
    pub(crate) fn into_used_namespaces(self) -> BTreeMap<String, String> {
        self.used_namespaces
    }

    fn find_declaration(&self, prefix: &str) -> Option<(&str, &str)> {
        let declaration =
            self.declarations.iter().rev().find(|(declared, _, _)| declared == prefix);
        declaration.map(|(_, uri, name)| (uri.as_str(), name.as_str()))
    }
}
