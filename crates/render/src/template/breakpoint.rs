//! Breakpoints: the maximum widths of a site's layouts for kinds of devices, as stored by editors of AEM.
//!
//! Input: `cq:responsive/breakpoints` below the content of the page, of its template, or of the nearest ancestor page;
//! each child has a `title` and a `width` in pixels. Output: the breakpoints, narrowest first.

use minijinja::Value;
use tympan_content::{Node, Property};

use crate::dependency::content_reader::ContentReader;
use crate::page;

/// The path of breakpoints, relative to content.
const BREAKPOINTS_FOLDER: &str = "cq:responsive/breakpoints";
/// The parts of a template that may contain breakpoints for its pages.
const TEMPLATE_PARTS: [&str; 4] =
    ["", "structure/jcr:content/", "initial/jcr:content/", "jcr:content/"];

/// One breakpoint.
struct LayoutBreakpoint {
    name: String,
    title: String,
    width: i64,
}

/// Returns the breakpoints of a page as template values: `.name`, `.title`, `.width`, `.from` and `.media`.
pub(super) fn breakpoint_values(reader: &ContentReader, page: &Node) -> Value {
    let breakpoints = find_breakpoints(reader, page);
    let from = std::iter::once(0).chain(breakpoints.iter().map(|breakpoint| breakpoint.width + 1));
    let values = breakpoints.iter().zip(from).map(|(breakpoint, from)| {
        Value::from_pairs([
            ("name", Value::from(breakpoint.name.as_str())),
            ("title", Value::from(breakpoint.title.as_str())),
            ("width", Value::from(breakpoint.width)),
            ("from", Value::from(from)),
            ("media", Value::from(format!("(max-width: {}px)", breakpoint.width))),
        ])
    });
    values.collect::<Vec<_>>().into()
}

/// Finds the nearest node with breakpoints.
fn find_breakpoints(reader: &ContentReader, page: &Node) -> Vec<LayoutBreakpoint> {
    let mut next = Some(page.clone());
    while let Some(page) = next {
        if let Some(content) = page::page_content(reader, &page) {
            let own = reader.descendant_existence(&content, BREAKPOINTS_FOLDER);
            let folder = own.or_else(|| template_breakpoints(reader, &content));
            let breakpoints =
                folder.map(|folder| read_breakpoints(reader, &folder)).unwrap_or_default();
            if !breakpoints.is_empty() {
                return breakpoints;
            }
        }
        next = page.path().parent().and_then(|above| page::containing_page(reader, &above));
    }
    Vec::new()
}

/// Finds the breakpoints of a page's template.
fn template_breakpoints(reader: &ContentReader, content: &Node) -> Option<Node> {
    let template = reader.text_property(content, "cq:template")?;
    reader.open_template(&template);
    TEMPLATE_PARTS.iter().find_map(|part| {
        reader.node_existence_at(&format!("{template}/{part}{BREAKPOINTS_FOLDER}"))
    })
}

/// Reads the breakpoints; ignores those without a width.
fn read_breakpoints(reader: &ContentReader, folder: &Node) -> Vec<LayoutBreakpoint> {
    let read = |node: &Node| {
        let width = node.property("width")?;
        let width = width.first().map(|width| width.to_text().trim().parse().ok())??;
        let title = node
            .property("title")
            .as_ref()
            .and_then(Property::first)
            .map(|title| title.to_text().into_owned());
        let name = node.name().to_owned();
        (width > 0).then(|| LayoutBreakpoint {
            title: title.unwrap_or_else(|| name.clone()),
            name,
            width,
        })
    };
    let mut breakpoints: Vec<LayoutBreakpoint> =
        reader.children(folder).iter().filter_map(read).collect();
    breakpoints.sort_by(|left, right| (left.width, &left.name).cmp(&(right.width, &right.name)));
    breakpoints
}
