//! Containers: the layout container (`container`, v1), the responsive grid, and the structure of a template.

use std::sync::Arc;

use crate::child_components::{child_components, components_below, export_children};
use crate::component_context::{AuthoringMode, ComponentResource};
use crate::component_core::{ComponentCore, component_model};
use crate::model_registry::ModelRequest;
use crate::model_value::{ComponentModel, ModelMap, ModelValue};

/// Columns of a grid without other settings.
const DEFAULT_COLUMNS: i64 = 12;

/// The model of a layout container.
#[derive(Debug)]
pub(crate) struct LayoutContainerModel {
    core: ComponentCore,
}

/// The model of a responsive grid.
#[derive(Debug)]
pub(crate) struct ResponsiveGridModel {
    core: ComponentCore,
}

/// A component in a grid, with the classes of its column.
#[derive(Debug)]
struct GridParagraph {
    resource: ComponentResource,
    resource_type: Arc<str>,
    classes: String,
}

/// The model of a page's structure: the components that its template has directly below the page.
#[derive(Debug)]
pub(crate) struct TemplatedContainerModel {
    core: ComponentCore,
}

/// The model of the components that a container allows, which only the template editor draws.
#[derive(Debug)]
pub(crate) struct AllowedComponentsModel {
    core: ComponentCore,
}

/// Makes the model of a layout container.
pub(crate) fn create_layout(request: &ModelRequest) -> ModelValue {
    ModelValue::model(LayoutContainerModel { core: ComponentCore::new(request) })
}

/// Makes the model of a responsive grid.
pub(crate) fn create_grid(request: &ModelRequest) -> ModelValue {
    ModelValue::model(ResponsiveGridModel { core: ComponentCore::new(request) })
}

/// Makes the model of a page's structure.
pub(crate) fn create_templated(request: &ModelRequest) -> ModelValue {
    ModelValue::model(TemplatedContainerModel { core: ComponentCore::new(request) })
}

/// Makes the model of the allowed components.
pub(crate) fn create_allowed(request: &ModelRequest) -> ModelValue {
    ModelValue::model(AllowedComponentsModel { core: ComponentCore::new(request) })
}

impl LayoutContainerModel {
    fn layout(&self) -> ModelValue {
        let layout = self.core.value_or_policy("layout").and_then(|value| value.to_text());
        match layout.as_deref() {
            Some("responsiveGrid") => {
                ModelValue::Constant { name: "RESPONSIVE_GRID", value: "responsiveGrid" }
            }
            _ => ModelValue::Constant { name: "SIMPLE", value: "simple" },
        }
    }

    fn background_style(&self) -> Option<String> {
        let mut style = String::new();
        let image = self.core.filled_text("backgroundImageReference");
        if let Some(image) = image.filter(|_| self.core.is_policy_set("backgroundImageEnabled")) {
            let path = self.core.context().map_path(&image).replace(' ', "%20");
            style.push_str("background-image:url(");
            style.push_str(&crate::link::with_context_path(self.core.context(), &path));
            style.push_str(");background-size:cover;background-repeat:no-repeat;");
        }
        let color = self.core.filled_text("backgroundColor");
        if let Some(color) = color.filter(|_| self.core.is_policy_set("backgroundColorEnabled")) {
            style.push_str(&format!("background-color:{color};"));
        }
        (!style.is_empty()).then_some(style)
    }

    fn accessibility_label(&self) -> Option<Arc<str>> {
        self.core.text("accessibilityLabel")
    }

    fn role(&self) -> Option<Arc<str>> {
        self.core.text("roleAttribute")
    }

    fn items(&self) -> Vec<ModelValue> {
        child_components(&self.core).into_iter().map(|child| paragraph(&self.core, child)).collect()
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("layout", self.layout());
        map.insert_present("backgroundStyle", self.background_style());
        map.insert_present("roleAttribute", self.role());
        map.insert_present("accessibilityLabel", self.accessibility_label());
        export_children(&self.core, &child_components(&self.core), &|_, _| {}, &mut map);
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl ResponsiveGridModel {
    fn columns(&self) -> i64 {
        let columns = self.core.value_or_policy("columns").and_then(|value| value.to_long());
        columns.filter(|columns| *columns > 0).unwrap_or(DEFAULT_COLUMNS)
    }

    fn css_class(&self) -> String {
        let columns = self.columns();
        let mut classes = format!("aem-Grid aem-Grid--{columns} aem-Grid--default--{columns}");
        for (breakpoint, width) in breakpoint_widths(&self.core, self.core.path()) {
            if breakpoint != "default" {
                classes.push_str(&format!(" aem-Grid--{breakpoint}--{width}"));
            }
        }
        classes
    }

    fn paragraphs(&self) -> Vec<ModelValue> {
        child_components(&self.core)
            .into_iter()
            .map(|child| {
                let classes = column_classes(&self.core, child.path(), self.columns());
                grid_paragraph(&self.core, child, classes)
            })
            .collect()
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        export_children(&self.core, &child_components(&self.core), &|_, _| {}, &mut map);
        self.core.export_end(&mut map, None);
        map
    }
}

/// Returns the widths that a component has at breakpoints, from its node `cq:responsive`.
fn breakpoint_widths(core: &ComponentCore, path: &str) -> Vec<(String, i64)> {
    let context = core.context();
    let folder = format!("{path}/cq:responsive");
    context
        .child_names(&folder)
        .into_iter()
        .filter_map(|name| {
            let width = context.property(&format!("{folder}/{name}"), "width")?.to_long()?;
            Some((name, width))
        })
        .collect()
}

/// Returns the classes of a column at each breakpoint.
fn column_classes(core: &ComponentCore, path: &str, columns: i64) -> String {
    let context = core.context();
    let mut classes = "aem-GridColumn".to_owned();
    let widths = breakpoint_widths(core, path);
    for (breakpoint, width) in &widths {
        let node = format!("{path}/cq:responsive/{breakpoint}");
        classes.push_str(&format!(" aem-GridColumn--{breakpoint}--{width}"));
        let offset = context.property(&node, "offset").and_then(|value| value.to_long());
        if let Some(offset) = offset {
            classes.push_str(&format!(" aem-GridColumn--offset--{breakpoint}--{offset}"));
        }
        let behavior = context.property(&node, "behavior").and_then(|value| value.to_text());
        if let Some(behavior) = behavior {
            classes.push_str(&format!(" aem-GridColumn--{breakpoint}--{behavior}"));
        }
    }
    if widths.iter().all(|(breakpoint, _)| breakpoint != "default") {
        classes.push_str(&format!(" aem-GridColumn--default--{columns}"));
    }
    classes
}

/// Returns a component of a container without column classes.
fn paragraph(core: &ComponentCore, resource: ComponentResource) -> ModelValue {
    grid_paragraph(core, resource, String::new())
}

fn grid_paragraph(
    core: &ComponentCore,
    resource: ComponentResource,
    classes: String,
) -> ModelValue {
    let resource_type = resource.resource_type(core.context()).unwrap_or_else(|| "".into());
    ModelValue::model(GridParagraph { resource, resource_type, classes })
}

impl TemplatedContainerModel {
    /// Returns the components directly below the content of the page. A page without any shows those of the structure
    /// of its template.
    fn structure_resources(&self) -> Vec<ModelValue> {
        let mut children = child_components(&self.core);
        if children.is_empty()
            && let Some(page) = self.core.current_page()
            && let Some(template) = self.core.pages().text(&page, "cq:template")
        {
            children = components_below(&self.core, &format!("{template}/structure/jcr:content"));
        }
        children.into_iter().map(|child| paragraph(&self.core, child)).collect()
    }

    fn export_map(&self) -> ModelMap {
        ModelMap::new()
    }
}

impl AllowedComponentsModel {
    /// Whether the template editor shows what a container allows. Only a page in the template editor does, which is not
    /// a page of a site.
    fn is_applicable(&self) -> bool {
        let is_structure = self.core.path().contains("/structure/jcr:content");
        is_structure
            && self.core.context().request().wcm_mode == AuthoringMode::Edit
            && self.core.is_set("editable")
    }

    fn title(&self) -> String {
        self.core.context().translate("Allowed Components", None)
    }

    fn css_class(&self) -> &'static str {
        if self.is_applicable() { "aem-AllowedComponent--list" } else { "" }
    }

    /// Returns the components that the policy allows by path; groups of components need a list of all components.
    fn components(&self) -> Vec<ModelValue> {
        let allowed = self.core.policy_value("components").map(|value| value.to_texts());
        allowed
            .unwrap_or_default()
            .into_iter()
            .filter(|path| path.starts_with('/') && self.core.context().node_exists(path))
            .map(|path| {
                let resource_type: Arc<str> = crate::model_registry::relative_type(&path).into();
                ModelValue::model(GridParagraph {
                    resource: ComponentResource::new(path),
                    resource_type,
                    classes: "aem-AllowedComponent--component".to_owned(),
                })
            })
            .collect()
    }

    fn export_map(&self) -> ModelMap {
        ModelMap::new()
    }
}

component_model!(LayoutContainerModel {
    "layout" => layout,
    "backgroundStyle" => background_style,
    "accessibilityLabel" => accessibility_label,
    "roleAttribute" => role,
    "items" => items,
    "children" => items,
});

component_model!(ResponsiveGridModel {
    "cssClass" => css_class,
    "gridClassNames" => css_class,
    "columnCount" => columns,
    "paragraphs" => paragraphs,
});

component_model!(TemplatedContainerModel { "structureResources" => structure_resources });

component_model!(AllowedComponentsModel {
    "isApplicable" => is_applicable,
    "title" => title,
    "cssClass" => css_class,
    "components" => components,
});

impl ComponentModel for GridParagraph {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "path" => self.resource.path().into(),
            "name" => self.resource.name().into(),
            "resource" => ModelValue::Resource(self.resource.clone()),
            "resourceType" => Arc::clone(&self.resource_type).into(),
            "cssClass" => self.classes.as_str().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["path", "name", "resource", "resourceType", "cssClass"]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("path", self.resource.path());
        map.insert(":type", Arc::clone(&self.resource_type));
        map
    }
}
