//! Bundles: what a jar says about itself in its manifest and in the descriptions of its components. Byte code is not read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde::Serialize;
use zip::ZipArchive;

/// The maximum size of the manifest and of a description.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;
/// The maximum number of descriptions and classes that are listed.
const MAX_LISTED_ENTRIES: usize = 20_000;
/// The symbolic names of bundles whose classes this program has itself.
const NATIVE_BUNDLES: [&str; 2] =
    ["com.adobe.cq.core.wcm.components.core", "core.wcm.components.core"];
/// Properties of components that say what they serve.
const SERVING_PROPERTIES: [&str; 12] = [
    "sling.servlet.paths",
    "sling.servlet.resourceTypes",
    "sling.servlet.methods",
    "sling.servlet.selectors",
    "sling.servlet.extensions",
    "sling.filter.scope",
    "sling.filter.pattern",
    "process.label",
    "scheduler.expression",
    "job.topics",
    "event.topics",
    "resource.paths",
];

/// A jar with Java code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// Where it was found.
    pub origin: String,
    /// The symbolic name; of a jar that is no bundle, its file name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The packages or classes with Sling Models.
    pub models: Vec<String>,
    /// Its declared components, by class.
    pub components: Vec<BundleComponent>,
    /// Content that the bundle would create (`Sling-Initial-Content`).
    pub initial_content: Option<String>,
    /// The names of its classes.
    #[serde(skip)]
    pub(super) classes: BTreeSet<String>,
}

/// A declared component of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct BundleComponent {
    /// The class.
    pub class: String,
    /// The kind: servlet, filter, workflow process, job consumer, scheduled task, listener or service.
    pub kind: &'static str,
    /// What it serves, such as paths, resource types and topics.
    pub serves: Vec<String>,
}

impl Bundle {
    /// Reads a jar; `origin` names it.
    ///
    /// # Errors
    /// A message if it is damaged.
    pub(super) fn read(origin: &str, bytes: Vec<u8>) -> Result<Self, String> {
        let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| error.to_string())?;
        let manifest = read_text(&mut archive, "META-INF/MANIFEST.MF").unwrap_or_default();
        let headers = parse_manifest(&manifest);
        let header = |name: &str| headers.get(name).map(String::as_str).unwrap_or_default();
        let names: Vec<String> =
            archive.file_names().flatten().take(MAX_LISTED_ENTRIES).map(Cow::into_owned).collect();
        let mut components = BTreeSet::new();
        for name in
            names.iter().filter(|name| name.starts_with("OSGI-INF/") && name.ends_with(".xml"))
        {
            if let Some(text) = read_text(&mut archive, name) {
                components.extend(parse_components(&text));
            }
        }
        let classes = names.iter().filter_map(|name| name.strip_suffix(".class"));
        let file_name = origin.rsplit(['/', '!']).next().unwrap_or(origin);
        let symbolic_name =
            header("Bundle-SymbolicName").split(';').next().unwrap_or_default().trim();
        let name = if symbolic_name.is_empty() { file_name } else { symbolic_name };
        let models = [header("Sling-Model-Packages"), header("Sling-Model-Classes")];
        let models = models.iter().flat_map(|list| list.split(','));
        let models = models.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        let initial_content = headers.get("Sling-Initial-Content").cloned();
        Ok(Self {
            origin: origin.to_owned(),
            name: name.to_owned(),
            version: header("Bundle-Version").to_owned(),
            models: models.collect(),
            components: components.into_iter().collect(),
            initial_content,
            classes: classes.map(|name| name.replace('/', ".")).collect(),
        })
    }

    /// Returns true if this program has the bundle's classes itself.
    pub(super) fn is_native(&self) -> bool {
        NATIVE_BUNDLES.contains(&self.name.as_str())
    }
}

/// Reads an entry as text; `None` if it is absent, damaged or too large.
fn read_text(archive: &mut ZipArchive<Cursor<Vec<u8>>>, name: &str) -> Option<String> {
    let entry = archive.by_name(name).ok()?;
    let mut bytes = Vec::new();
    entry.take(MAX_DESCRIPTION_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_DESCRIPTION_BYTES)
        .then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses the main section of a manifest. A line that begins with a blank continues the one before it.
fn parse_manifest(text: &str) -> BTreeMap<String, String> {
    let main = text.replace("\r\n", "\n").replace("\n ", "");
    let lines = main.lines().take_while(|line| !line.is_empty());
    let headers = lines.filter_map(|line| line.split_once(':'));
    headers.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

/// The description of one component while it is read.
#[derive(Default)]
struct ComponentDescription {
    class: String,
    interfaces: Vec<String>,
    serves: Vec<String>,
    /// The property whose values are the text that follows.
    open_property: Option<String>,
}

/// Parses a description by OSGi's component runtime; what is malformed ends it.
fn parse_components(text: &str) -> Vec<BundleComponent> {
    let mut components = Vec::new();
    let mut description = ComponentDescription::default();
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event() {
            Ok(Event::Start(element)) => description.open(&element, false),
            Ok(Event::Empty(element)) => description.open(&element, true),
            Ok(Event::Text(value)) => {
                if let Some(name) = &description.open_property {
                    let values: Vec<&str> = value.split_whitespace().collect();
                    if !values.is_empty() {
                        description.serves.push(format!("{name}={}", values.join(",")));
                    }
                }
            }
            Ok(Event::End(element)) => match element.local_name().into_inner() {
                "property" => description.open_property = None,
                "component" => {
                    let finished = std::mem::take(&mut description);
                    if !finished.class.is_empty() {
                        components.push(finished.into_component());
                    }
                }
                _ => {}
            },
            Ok(Event::Eof) | Err(_) => return components,
            Ok(_) => {}
        }
    }
}

impl ComponentDescription {
    fn open(&mut self, element: &BytesStart<'_>, is_empty: bool) {
        let attribute = |name: &str| {
            let attribute = element.try_get_attribute(name).ok().flatten()?;
            Some(attribute.value.into_owned())
        };
        match element.local_name().into_inner() {
            "implementation" => self.class = attribute("class").unwrap_or_default(),
            "provide" => self.interfaces.extend(attribute("interface")),
            "property" => {
                let name = attribute("name").filter(|name| SERVING_PROPERTIES.contains(&&**name));
                match (name, attribute("value")) {
                    (Some(name), Some(value)) => self.serves.push(format!("{name}={value}")),
                    (name, None) if !is_empty => self.open_property = name,
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn into_component(self) -> BundleComponent {
        let kind = self.interfaces.iter().find_map(|interface| component_kind(interface));
        BundleComponent { class: self.class, kind: kind.unwrap_or("service"), serves: self.serves }
    }
}

/// Returns the kind of a component by an interface that it provides.
fn component_kind(interface: &str) -> Option<&'static str> {
    Some(match interface {
        "javax.servlet.Servlet" | "jakarta.servlet.Servlet" => "servlet",
        "javax.servlet.Filter" | "jakarta.servlet.Filter" => "filter",
        "com.adobe.granite.workflow.exec.WorkflowProcess"
        | "com.day.cq.workflow.exec.WorkflowProcess" => "workflow process",
        "org.apache.sling.event.jobs.consumer.JobConsumer"
        | "org.apache.sling.event.jobs.consumer.JobExecutor" => "job consumer",
        "java.lang.Runnable" => "scheduled task",
        "org.osgi.service.event.EventHandler"
        | "org.apache.sling.api.resource.observation.ResourceChangeListener" => "listener",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_name_class_kind_and_what_is_served() {
        let text = r#"<?xml version="1.0"?>
            <components xmlns:scr="http://www.osgi.org/xmlns/scr/v1.3.0">
              <scr:component name="a"><implementation class="com.shop.Search"/>
                <service><provide interface="javax.servlet.Servlet"/></service>
                <property name="sling.servlet.paths" value="/bin/search"/>
                <property name="service.ranking" value="1"/>
                <property name="sling.servlet.methods">GET
                POST</property></scr:component>
              <scr:component name="b"><implementation class="com.shop.Prices"/></scr:component>
            </components>"#;
        let described: Vec<_> = parse_components(text)
            .into_iter()
            .map(|found| format!("{} {} {}", found.kind, found.class, found.serves.join(" ")))
            .collect();
        assert_eq!(
            described,
            [
                "servlet com.shop.Search sling.servlet.paths=/bin/search sling.servlet.methods=GET,POST",
                "service com.shop.Prices ",
            ]
        );
        assert!(parse_components("<a><b").is_empty());
    }

    #[test]
    fn long_lines_of_manifests_are_joined() {
        let text = "Bundle-SymbolicName: com.shop.c\r\n ore;singleton:=true\r\nA: b\r\n\r\nName: x\r\nB: c\r\n";
        let headers = parse_manifest(text);
        assert_eq!(headers["Bundle-SymbolicName"], "com.shop.core;singleton:=true");
        assert_eq!(headers.len(), 2);
    }
}
