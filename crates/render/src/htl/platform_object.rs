//! Objects of AEM itself that scripts ask for by class name: the structure of pages, and the responsive grid.

use tympan_core_components::{ComponentContext, ComponentResource, find_model};
use tympan_htl::{HtlUseRequest, HtlValue};

use super::component_host::HtlComponentHost;
use super::responsive_grid::{column_classes, grid_classes, grid_columns, read_layout};
use super::site_access::SiteAccess;
use super::site_object::ResourceView;
use crate::page::template_structure::{StructureResource, TemplateStructure};

const TEMPLATED_CONTAINER: &str = "com.day.cq.wcm.foundation.TemplatedContainer";
const RESPONSIVE_GRID: &str = "com.day.cq.wcm.foundation.model.responsivegrid.ResponsiveGrid";
const ALLOWED_COMPONENT_LIST: &str = "com.day.cq.wcm.foundation.AllowedComponentList";

/// Returns true if scripts get an object for a class: one of the Core Components, or one of AEM that is known here.
#[must_use]
pub fn is_native_class(class_name: &str) -> bool {
    [TEMPLATED_CONTAINER, RESPONSIVE_GRID, ALLOWED_COMPONENT_LIST].contains(&class_name)
        || find_model(class_name).is_some()
}

/// Returns the object of a class of AEM; `None` if the class is not known here.
pub(super) fn make_object(
    host: &mut HtlComponentHost,
    request: &HtlUseRequest<'_>,
) -> Option<HtlValue> {
    Some(match request.name {
        TEMPLATED_CONTAINER => templated_container(host),
        RESPONSIVE_GRID => responsive_grid(host),
        // Components that a template's author may choose are drawn only in AEM's template editor.
        ALLOWED_COMPONENT_LIST => HtlValue::map([
            ("applicable", HtlValue::Boolean(false)),
            ("isApplicable", HtlValue::Boolean(false)),
            ("cssClass", HtlValue::from("")),
            ("title", HtlValue::Null),
            ("components", HtlValue::list([])),
        ]),
        _ => return None,
    })
}

/// Returns the components in a container: those of the editable template's structure if the container belongs to it,
/// else the container's own.
fn container_components(host: &HtlComponentHost) -> Vec<ComponentResource> {
    let context = &host.access.context;
    let reader = &host.access.scope.reader;
    let container = host.frame.resource.path();
    let in_structure = context.structure().and_then(|structure| {
        if structure.page_content() == container {
            Some(structure.top_resources(reader))
        } else if structure.contains(container) || is_own_structure(structure, host) {
            structure.resources_in(reader, container)
        } else {
            None
        }
    });
    match in_structure {
        Some(resources) => resources.into_iter().map(model_resource).collect(),
        None => {
            let path = container.as_str();
            let names = context.child_names(path).into_iter();
            let children = names.map(|name| format!("{path}/{name}"));
            children
                .filter(|child| context.property(child, "sling:resourceType").is_some())
                .map(ComponentResource::new)
                .collect()
        }
    }
}

/// Returns true while a template's structure is drawn as a page of its own.
fn is_own_structure(structure: &TemplateStructure, host: &HtlComponentHost) -> bool {
    host.frame.resource.path().is_within(structure.page_content())
        && structure.is_of_template_itself()
}

/// Converts a component of a structure to the form that models take.
fn model_resource(resource: StructureResource) -> ComponentResource {
    match resource {
        StructureResource::Existing(node) => ComponentResource::new(node.path().as_str()),
        StructureResource::Missing(path, resource_type) => {
            ComponentResource::new(path.as_str()).with_type(resource_type)
        }
    }
}

/// Returns the components at the top of the page that contains the resource.
fn templated_container(host: &HtlComponentHost) -> HtlValue {
    let access = &host.access;
    let resources = container_components(host);
    HtlValue::map([
        (
            "structureResources",
            HtlValue::list(resources.into_iter().map(|resource| {
                HtlValue::object(ResourceView::of_model(access.clone(), resource))
            })),
        ),
        ("hasStructureSupport", HtlValue::Boolean(access.context.structure().is_some())),
    ])
}

/// Returns the grid of a container: its classes, and its components with theirs.
fn responsive_grid(host: &HtlComponentHost) -> HtlValue {
    let context = &host.access.context;
    let own = ComponentResource::new(host.frame.resource.path().as_str());
    let columns = grid_columns(&read_layout(context, &own));
    let paragraphs = container_components(host).into_iter().map(|resource| {
        let classes = column_classes(&columns, &read_layout(context, &resource));
        paragraph(&host.access, resource, classes)
    });
    HtlValue::map([
        ("cssClass", HtlValue::from(grid_classes(&columns))),
        ("paragraphs", HtlValue::list(paragraphs)),
        ("id", HtlValue::Null),
    ])
}

/// Returns one component of a grid.
fn paragraph(access: &SiteAccess, resource: ComponentResource, classes: String) -> HtlValue {
    let resource_type = resource.resource_type(&*access.context);
    HtlValue::map([
        ("path", HtlValue::from(resource.path())),
        ("resourceType", HtlValue::from(resource_type)),
        ("cssClass", HtlValue::from(classes)),
        ("resource", HtlValue::object(ResourceView::of_model(access.clone(), resource))),
    ])
}
