//! The benchmark pages: one description is expanded to a thousand pages, the same ones that peers are measured with.

use serde::Deserialize;
use serde_json::{Map, Value};
use tympan_content::{NodePath, PRIMARY_TYPE, Property, Session, Subtree};

use crate::error::{Error, Result};

/// `site/bench/bench.json`; `README.md` next to it explains the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BenchSiteSpec {
    root: String,
    folders: usize,
    pages: usize,
    folder: Map<String, Value>,
    /// Page templates, used in rotation by the page's number.
    page: Vec<Map<String, Value>>,
}

/// Creates the benchmark pages in a session.
///
/// # Errors
/// If the description is malformed or content refuses the pages.
pub(crate) fn import_bench_pages(session: &mut Session, json: &str) -> Result<()> {
    let malformed = |error: serde_json::Error| {
        Error::Refused(format!("bench.json:{}:{}: {error}", error.line(), error.column()))
    };
    let bench: BenchSiteSpec = serde_json::from_str(json).map_err(malformed)?;
    let failed = |error| Error::Import(Box::new(error));
    let root = NodePath::new(&bench.root).map_err(failed)?;
    if session.node(&root).map_err(failed)?.is_none() {
        session.add_node(&root, "sling:Folder").map_err(failed)?;
        let is_strict = Property::Single(tympan_content::Value::Boolean(true));
        session.set_property(&root, "strictUrls", is_strict).map_err(failed)?;
    }
    for folder in 0..bench.folders {
        let name = format!("f{folder}");
        let mut tree = bench_node(&name, &bench.folder, folder);
        for number in folder * bench.pages..(folder + 1) * bench.pages {
            let template = bench.page.get(number % bench.page.len().max(1));
            let template = template.ok_or_else(|| {
                Error::Refused("bench.json: `page` contains no template".to_owned())
            })?;
            tree.children.push(bench_node(&format!("p{number}"), template, number));
        }
        session.put_node(&root.child(&name).map_err(failed)?, tree).map_err(failed)?;
    }
    Ok(())
}

/// Creates a node from a template in Sling's import form: objects are children, strings are properties.
fn bench_node(name: &str, template: &Map<String, Value>, number: usize) -> Subtree {
    let mut node = Subtree { name: name.to_owned(), ..Subtree::default() };
    for (name, value) in template {
        match value {
            Value::Object(child) => node.put_child(self::bench_node(name, child, number)),
            value => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let text = text.replace("{n}", &number.to_string());
                let property =
                    if name == PRIMARY_TYPE { Property::name(text) } else { Property::text(text) };
                node.properties.insert(name.clone(), property);
            }
        }
    }
    node
}
