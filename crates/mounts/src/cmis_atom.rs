//! The AtomPub binding of CMIS 1.0 and 1.1, the only one that older servers support, LiveLink's and Documentum's among
//! them.
//!
//! In: responses in XML. Out: the repositories of a service, and the objects of a folder with the addresses of their
//! children and content.

use std::io::Read;

use serde_json::{Map, Value as Json};

use crate::mount_source::MountSourceError;
use crate::source_http::escape_url_part;
use crate::xml_reader::{self, XmlEvent};

/// A repository in the service document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CmisWorkspace {
    pub(crate) repository: String,
    /// Address of the list of the root folder's children.
    pub(crate) root_children_url: String,
    /// Template for the address of a folder by its path, which contains `{path}`.
    path_url_template: String,
}

/// An object of a feed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CmisFeedObject {
    pub(crate) properties: Map<String, Json>,
    /// Address of the list of its children; empty for a document.
    pub(crate) children_url: String,
    /// Address of its content; empty for a folder, or a document without content.
    pub(crate) content_url: String,
}

impl CmisWorkspace {
    /// Returns the address of the folder with the given path names.
    pub(crate) fn folder_url(&self, names: &[String]) -> String {
        let path = format!("/{}", names.join("/"));
        let mut address =
            self.path_url_template.replace("{path}", &escape_url_part(path.as_bytes()));
        // The server chooses the values of the template's other fields.
        while let Some((before, rest)) = address.split_once('{') {
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            address = format!("{before}{after}");
        }
        address
    }
}

/// Reads a service document.
pub(crate) fn read_service_document(
    response: impl Read,
    location: &str,
) -> Result<Vec<CmisWorkspace>, MountSourceError> {
    let mut all = Vec::new();
    let (mut now, mut href, mut template) =
        (CmisWorkspace::default(), String::new(), String::new());
    xml_reader::read_xml_events(response, location, |piece| {
        match piece {
            XmlEvent::Start(name, attributes) => match &*name {
                "workspace" => now = CmisWorkspace::default(),
                "collection" => href = attributes.get("href"),
                _ => {}
            },
            XmlEvent::End(name, text) => match &*name {
                "collectionType" if text == "root" => now.root_children_url.clone_from(&href),
                "repositoryId" => now.repository = text,
                "template" => template = text,
                "type" if text == "objectbypath" => now.path_url_template.clone_from(&template),
                "workspace" => all.push(std::mem::take(&mut now)),
                _ => {}
            },
        }
        Ok(())
    })?;
    Ok(all)
}

/// Reads a feed, or a single entry, and reports each object. Returns the address of the feed's next page.
pub(crate) fn read_atom_feed(
    response: impl Read,
    location: &str,
    mut with: impl FnMut(CmisFeedObject) -> Result<(), MountSourceError>,
) -> Result<Option<String>, MountSourceError> {
    let (mut next, mut now, mut is_entry) = (None, CmisFeedObject::default(), false);
    // The name and type of the property whose value follows.
    let mut property: Option<(String, String)> = None;
    xml_reader::read_xml_events(response, location, |piece| {
        match piece {
            XmlEvent::Start(name, attributes) => match &*name {
                "entry" => (now, is_entry) = (CmisFeedObject::default(), true),
                "link" if is_entry => {
                    let is_feed = attributes.get("type").replace(' ', "").contains("type=feed");
                    match &*attributes.get("rel") {
                        "down" if is_feed || now.children_url.is_empty() => {
                            now.children_url = attributes.get("href");
                        }
                        "edit-media" | "enclosure" if now.content_url.is_empty() => {
                            now.content_url = attributes.get("href");
                        }
                        _ => {}
                    }
                }
                "link" if attributes.get("rel") == "next" => next = Some(attributes.get("href")),
                "content" if is_entry && !attributes.get("src").is_empty() => {
                    now.content_url = attributes.get("src");
                }
                kind if kind.starts_with("property") => {
                    let id = attributes.get("propertyDefinitionId");
                    now.properties.insert(id.clone(), Json::Null);
                    property = Some((id, name));
                }
                _ => {}
            },
            XmlEvent::End(name, text) => match &*name {
                "value" => {
                    // Of several values the first is used.
                    if let Some((id, kind)) = property.take() {
                        now.properties.insert(id, parse_typed_value(&kind, text));
                    }
                }
                "entry" => {
                    is_entry = false;
                    return with(std::mem::take(&mut now));
                }
                kind if kind.starts_with("property") => property = None,
                _ => {}
            },
        }
        Ok(())
    })?;
    Ok(next)
}

/// Parses a value to the JSON that the browser binding would return.
fn parse_typed_value(kind: &str, text: String) -> Json {
    match kind {
        "propertyInteger" => text.parse::<i64>().map_or(Json::Null, Json::from),
        "propertyBoolean" => Json::Bool(text == "true" || text == "1"),
        _ => Json::String(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled() {
        let workspace = |by_path: &str| CmisWorkspace {
            path_url_template: by_path.to_owned(),
            ..CmisWorkspace::default()
        };
        let names = ["a b".to_owned(), "ü".to_owned()];
        for (template, expected) in [
            (
                "http://a/path?path={path}&filter={filter}",
                "http://a/path?path=%2Fa%20b%2F%C3%BC&filter=",
            ),
            ("http://a/{path", "http://a/"),
            ("", ""),
        ] {
            assert_eq!(workspace(template).folder_url(&names), expected);
        }
    }

    #[test]
    fn feeds_of_other_servers() {
        let feed = r#"<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom" xmlns:cmisra="r" xmlns:cmis="c">
            <author><name>x</name></author><link rel="self" href="http://a/1"/><link rel="next" href="http://a/2?x=1&amp;y=2"/>
            <entry><author><name>eve</name></author><link rel="down" type="application/cmistree+xml" href="http://a/tree"/>
            <link rel="down" type="application/atom+xml; type=feed" href="http://a/down"/>
            <cmisra:object><cmis:properties><cmis:propertyId propertyDefinitionId="cmis:objectId"><cmis:value>7</cmis:value>
            </cmis:propertyId><cmis:propertyInteger propertyDefinitionId="cmis:contentStreamLength"/>
            <cmis:propertyBoolean propertyDefinitionId="b"><cmis:value>true</cmis:value></cmis:propertyBoolean>
            <cmis:propertyString propertyDefinitionId="m"><cmis:value>1</cmis:value><cmis:value>2</cmis:value>
            </cmis:propertyString></cmis:properties></cmisra:object></entry></feed>"#;
        let mut objects = Vec::new();
        let next = read_atom_feed(feed.as_bytes(), "a", |object| {
            objects.push(object);
            Ok(())
        });
        assert_eq!(next.unwrap().as_deref(), Some("http://a/2?x=1&y=2"));
        let [object] = &*objects else { panic!("{objects:?}") };
        assert_eq!((&*object.children_url, &*object.content_url), ("http://a/down", ""));
        let expected = serde_json::json!({
            "cmis:objectId": "7", "cmis:contentStreamLength": null, "b": true, "m": "1"
        });
        assert_eq!(Json::Object(object.properties.clone()), expected);
    }
}
