//! Renders the application map as SVG: boxes in columns, lines between them, and colors that show the measurements.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tympan_notation::escape_xml;

use super::performance_project::{MapElement, PerformanceProject};

const BOX_WIDTH: usize = 150;
const BOX_HEIGHT: usize = 52;
const COLUMN_GAP: usize = 70;
const ROW_GAP: usize = 26;
const MAP_MARGIN: usize = 12;

/// Returns the map as SVG. Its colors are classes of the page's style sheet, with colors of its own for standalone use.
#[must_use]
pub fn render_map_svg(project: &PerformanceProject) -> String {
    let columns = element_columns(project);
    let mut rows: BTreeMap<usize, usize> = BTreeMap::new();
    let mut positions: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (element, column) in project.elements.iter().zip(&columns) {
        let row = rows.entry(*column).or_default();
        let at = (
            MAP_MARGIN + column * (BOX_WIDTH + COLUMN_GAP),
            MAP_MARGIN + *row * (BOX_HEIGHT + ROW_GAP),
        );
        positions.insert(&element.name, at);
        *row += 1;
    }
    let wide = columns.iter().max().map_or(1, |column| column + 1);
    let high = rows.values().max().copied().unwrap_or(1);
    let (width, height) = (
        2 * MAP_MARGIN + wide * BOX_WIDTH + wide.saturating_sub(1) * COLUMN_GAP,
        2 * MAP_MARGIN + high * BOX_HEIGHT + high.saturating_sub(1) * ROW_GAP,
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"map\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#888\"/></marker></defs>",
        escape_xml(&format!("Application map of {}", project.title))
    );
    for edge in &project.edges {
        if let (Some(&from), Some(&to)) =
            (positions.get(edge.from.as_str()), positions.get(edge.to.as_str()))
        {
            write_map_edge(&mut out, from, to, &edge.text);
        }
    }
    for element in &project.elements {
        if let Some(&(x, y)) = positions.get(element.name.as_str()) {
            write_map_box(&mut out, project, element, x, y);
        }
    }
    out.push_str("</svg>");
    out
}

/// Returns the column of each element: the given column, or the one after the last element that leads to it.
fn element_columns(project: &PerformanceProject) -> Vec<usize> {
    let mut columns: Vec<usize> =
        project.elements.iter().map(|element| element.column.unwrap_or(0)).collect();
    // As many rounds as there are elements suffice; further rounds would only follow a cycle of edges.
    for _ in 0..project.elements.len() {
        let before = columns.clone();
        for edge in &project.edges {
            let find =
                |name: &str| project.elements.iter().position(|candidate| candidate.name == name);
            let (Some(from), Some(to)) = (find(&edge.from), find(&edge.to)) else { continue };
            let is_free =
                project.elements.get(to).is_some_and(|candidate| candidate.column.is_none());
            let after = before.get(from).copied().unwrap_or(0) + 1;
            if let Some(column) = columns.get_mut(to)
                && is_free
                && after < project.elements.len()
            {
                *column = (*column).max(after);
            }
        }
        if columns == before {
            break;
        }
    }
    columns
}

fn write_map_edge(out: &mut String, from: (usize, usize), to: (usize, usize), text: &str) {
    let right = to.0 >= from.0;
    let x1 = if right { from.0 + BOX_WIDTH } else { from.0 };
    let x2 = if right { to.0 } else { to.0 + BOX_WIDTH };
    let (y1, y2) = (from.1 + BOX_HEIGHT / 2, to.1 + BOX_HEIGHT / 2);
    // Writing to a string cannot fail.
    write!(
        out,
        "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#888\" stroke-width=\"1.5\" marker-end=\"url(#tip)\"/>"
    )
    .ok();
    if !text.is_empty() {
        write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#888\" font-size=\"11\">{}</text>",
            usize::midpoint(x1, x2),
            usize::midpoint(y1, y2).saturating_sub(4),
            escape_xml(text)
        )
        .ok();
    }
}

fn write_map_box(
    out: &mut String,
    project: &PerformanceProject,
    element: &MapElement,
    x: usize,
    y: usize,
) {
    let color = project.element_color(element);
    let (fill, label) = match color {
        super::TargetColor::Grey => ("#8b929a", "not measured"),
        super::TargetColor::Green => ("#18794e", "met"),
        super::TargetColor::Amber => ("#b35900", "peak missed"),
        super::TargetColor::Red => ("#c4264e", "missed"),
    };
    let short = |text: &str, most: usize| -> String {
        if text.chars().count() <= most {
            return escape_xml(text);
        }
        let text: String = text.chars().take(most - 1).collect();
        escape_xml(&format!("{text}\u{2026}"))
    };
    // The color is also given as text, for readers who cannot see it.
    write!(
        out,
        "<g class=\"{}\"><title>{}: {label}</title><rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"7\" fill=\"{fill}\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" style=\"fill:#fff\" font-weight=\"600\">{}</text>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" style=\"fill:#fff\" font-size=\"10\">{} \u{b7} {label}</text></g>",
        color.name(),
        escape_xml(&element.name),
        x + BOX_WIDTH / 2,
        y + 22,
        short(&element.name, 20),
        x + BOX_WIDTH / 2,
        y + 39,
        short(&element.kind, 12),
    )
    .ok();
}
