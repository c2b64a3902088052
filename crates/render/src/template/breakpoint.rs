//! Breakpoints: the widths up to which a site lays a page out for one kind of device, as editors of AEM keep them.
//!
//! In: `cq:responsive/breakpoints` below the content of the page, of its template, or of the nearest page above; each child
//! has a `title` and a `width` in pixels. Out: the breakpoints, narrowest first.

use minijinja::Value;
use tympan_content::{Node, NodePath, Property};

use crate::page;
use crate::reads::Reader;

/// Where breakpoints lie below content.
const FOLDER: &str = "cq:responsive/breakpoints";
/// Where a template may keep what its pages take over.
const PARTS: [&str; 4] = ["", "structure/jcr:content/", "initial/jcr:content/", "jcr:content/"];

/// One width.
struct Breakpoint {
    name: String,
    title: String,
    width: i64,
}

/// Returns the breakpoints of a page as template values: `.name`, `.title`, `.width`, `.from` and `.media`.
pub(super) fn values(reader: &Reader, page: &Node) -> Value {
    let found = find(reader, page);
    let from = std::iter::once(0).chain(found.iter().map(|one| one.width + 1));
    let values = found.iter().zip(from).map(|(one, from)| {
        Value::from_pairs([
            ("name", Value::from(one.name.as_str())),
            ("title", Value::from(one.title.as_str())),
            ("width", Value::from(one.width)),
            ("from", Value::from(from)),
            ("media", Value::from(format!("(max-width: {}px)", one.width))),
        ])
    });
    values.collect::<Vec<_>>().into()
}

/// Finds the nearest place that has breakpoints.
fn find(reader: &Reader, page: &Node) -> Vec<Breakpoint> {
    let mut next = Some(page.clone());
    while let Some(page) = next {
        if let Some(content) = page::content(reader, &page) {
            let own = reader.glance_below(&content, FOLDER);
            let folder = own.or_else(|| of_template(reader, &content));
            let found = folder.map(|folder| read(reader, &folder)).unwrap_or_default();
            if !found.is_empty() {
                return found;
            }
        }
        next = page.path().parent().and_then(|above| page::containing(reader, &above));
    }
    Vec::new()
}

/// Finds the breakpoints of a page's template.
fn of_template(reader: &Reader, content: &Node) -> Option<Node> {
    let template = NodePath::new(&reader.text(content, "cq:template")?).ok()?;
    let template = reader.glance(&template)?;
    PARTS.iter().find_map(|part| reader.glance_below(&template, &format!("{part}{FOLDER}")))
}

/// Reads breakpoints; one without a width is none.
fn read(reader: &Reader, folder: &Node) -> Vec<Breakpoint> {
    let read = |node: &Node| {
        let width = node.property("width")?;
        let width = width.first().map(|width| width.to_text().trim().parse().ok())??;
        let title = node
            .property("title")
            .as_ref()
            .and_then(Property::first)
            .map(|title| title.to_text().into_owned());
        let name = node.name().to_owned();
        (width > 0).then(|| Breakpoint {
            title: title.unwrap_or_else(|| name.clone()),
            name,
            width,
        })
    };
    let mut found: Vec<Breakpoint> = reader.children(folder).iter().filter_map(read).collect();
    found.sort_by(|left, right| (left.width, &left.name).cmp(&(right.width, &right.name)));
    found
}
