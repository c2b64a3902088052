//! The classes of the responsive grid: the columns of a container and of the components in it, at each breakpoint.
//!
//! A component stores its width, offset and behavior at a breakpoint in `cq:responsive/<breakpoint>`. The columns of a
//! container are its own width at the breakpoint; without one, all twelve.

use std::collections::BTreeMap;

use tympan_core_components::{ComponentContext, ComponentResource};

use super::model_context::SiteModelContext;

/// Number of columns of a grid that has no width of its own.
const DEFAULT_COLUMNS: i64 = 12;

/// The name of the breakpoint that applies where no other does.
const DEFAULT_BREAKPOINT: &str = "default";

/// The layout of a component at one breakpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BreakpointLayout {
    pub width: Option<i64>,
    pub offset: Option<i64>,
    pub behavior: Option<String>,
}

/// The layouts of a component by breakpoint.
pub(super) type ResponsiveLayout = BTreeMap<String, BreakpointLayout>;

/// Reads the layouts of a component.
pub(super) fn read_layout(
    context: &SiteModelContext,
    resource: &ComponentResource,
) -> ResponsiveLayout {
    let folder = format!("{}/cq:responsive", resource.path());
    let names = context.child_names(&folder).into_iter().filter(|name| name != "breakpoints");
    names
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
        .map(|name| {
            let node = format!("{folder}/{name}");
            let number = |property: &str| {
                context.property(&node, property).and_then(|value| value.to_long())
            };
            let behavior = context.property(&node, "behavior").and_then(|value| value.to_text());
            let behavior = behavior
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_alphanumeric()))
                .map(|text| text.to_string());
            (name, BreakpointLayout { width: number("width"), offset: number("offset"), behavior })
        })
        .collect()
}

/// Returns the number of columns of a container at each breakpoint.
pub(super) fn grid_columns(layout: &ResponsiveLayout) -> BTreeMap<String, i64> {
    let widths = layout.iter().filter_map(|(name, layout)| Some((name.clone(), layout.width?)));
    let mut columns: BTreeMap<String, i64> = widths.collect();
    columns.entry(DEFAULT_BREAKPOINT.to_owned()).or_insert(DEFAULT_COLUMNS);
    columns
}

/// Returns the classes of a container.
pub(super) fn grid_classes(columns: &BTreeMap<String, i64>) -> String {
    let default = columns.get(DEFAULT_BREAKPOINT).copied().unwrap_or(DEFAULT_COLUMNS);
    let mut classes = format!("aem-Grid aem-Grid--{default}");
    for (breakpoint, width) in columns {
        classes.push_str(&format!(" aem-Grid--{breakpoint}--{width}"));
    }
    classes
}

/// Returns the classes of a component in a container with these columns.
pub(super) fn column_classes(columns: &BTreeMap<String, i64>, layout: &ResponsiveLayout) -> String {
    let mut classes = "aem-GridColumn".to_owned();
    let breakpoints =
        columns.keys().chain(layout.keys().filter(|name| !columns.contains_key(*name)));
    for breakpoint in breakpoints {
        let own = layout.get(breakpoint).cloned().unwrap_or_default();
        let default = columns.get(DEFAULT_BREAKPOINT).copied().unwrap_or(DEFAULT_COLUMNS);
        let full = columns.get(breakpoint).copied().unwrap_or(default);
        classes.push_str(&format!(" aem-GridColumn--{breakpoint}--{}", own.width.unwrap_or(full)));
        if let Some(offset) = own.offset {
            classes.push_str(&format!(" aem-GridColumn--offset--{breakpoint}--{offset}"));
        }
        if let Some(behavior) = &own.behavior {
            classes.push_str(&format!(" aem-GridColumn--{breakpoint}--{behavior}"));
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of a component, its width, its offset and its behavior.
    type Entry<'a> = (&'a str, Option<i64>, Option<i64>, Option<&'a str>);

    fn layout(entries: &[Entry<'_>]) -> ResponsiveLayout {
        let layouts = entries.iter().map(|(name, width, offset, behavior)| {
            let behavior = behavior.map(str::to_owned);
            let layout = BreakpointLayout { width: *width, offset: *offset, behavior };
            ((*name).to_owned(), layout)
        });
        layouts.collect()
    }

    #[test]
    fn components_fill_their_container_unless_they_have_a_width() {
        let columns = grid_columns(&layout(&[]));
        assert_eq!(grid_classes(&columns), "aem-Grid aem-Grid--12 aem-Grid--default--12");
        assert_eq!(
            column_classes(&columns, &layout(&[])),
            "aem-GridColumn aem-GridColumn--default--12"
        );
        let own = layout(&[
            ("default", Some(8), Some(2), Some("none")),
            ("phone", Some(12), Some(0), Some("newline")),
        ]);
        assert_eq!(
            column_classes(&columns, &own),
            "aem-GridColumn aem-GridColumn--default--8 aem-GridColumn--offset--default--2 \
             aem-GridColumn--default--none aem-GridColumn--phone--12 aem-GridColumn--offset--phone--0 \
             aem-GridColumn--phone--newline"
        );
    }

    #[test]
    fn a_narrow_container_has_as_many_columns_as_its_width() {
        let columns = grid_columns(&layout(&[
            ("default", Some(8), None, None),
            ("tablet", Some(6), Some(1), None),
            ("phone", None, Some(0), None),
        ]));
        assert_eq!(
            grid_classes(&columns),
            "aem-Grid aem-Grid--8 aem-Grid--default--8 aem-Grid--tablet--6"
        );
        assert_eq!(
            column_classes(&columns, &layout(&[])),
            "aem-GridColumn aem-GridColumn--default--8 aem-GridColumn--tablet--6"
        );
    }
}
