//! The template variables of one component, created on demand.

use std::fmt;
use std::sync::{Arc, OnceLock};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr};
use minijinja::{State, Value};
use tympan_content::{Node, NodePath};
use tympan_notation::escape_html;

use super::failure::{ComponentFailure, invalid_call};
use super::page_object::{NavigationEntry, PageObject};
use super::resource_object::{ResourceObject, properties_value};
use super::scope::{RenderScope, ResponseOverride, TemplateRequest};
use crate::client_library::client_library_file::ClientLibraryResolver;
use crate::dependency::content_reader::RequestFacts;
use crate::dynamic_inclusion::{self, DynamicChildInclusions, DynamicInclusion};
use crate::fragment::FragmentHole;
use crate::page;
use crate::page::container_policy::relative_resource_type;
use crate::render_options::RenderMode;
use crate::request::RequestParameters;
use crate::resource::{ContentResource, ResourceTypes};
use crate::script::ScriptResolution;

/// The name under which functions find the frame; no template can write it.
const FRAME_VARIABLE: &str = "tympan frame";

/// The names of the variables, for error messages.
const VARIABLE_NAMES: [&str; 5] = ["resource", "properties", "page", "request", "edit"];

/// The variables of one component.
pub(crate) struct ComponentFrame {
    pub scope: Arc<RenderScope>,
    pub resource: ContentResource,
    /// The selectors that this component's includes inherit.
    pub selectors: Arc<[String]>,
    /// The variable `properties`, once it was used.
    properties: OnceLock<Value>,
}

impl Object for ComponentFrame {
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        Some(match key {
            "properties" => {
                let make = || properties_value(&self.scope, Some(&self.resource));
                self.properties.get_or_init(make).clone()
            }
            "resource" => Value::from_object(ResourceObject {
                scope: Arc::clone(&self.scope),
                resource: self.resource.clone(),
            }),
            "page" => {
                PageObject::to_optional_value(&self.scope, self.scope.requested_page().cloned())
            }
            "request" => Value::from_object(RequestObject(Arc::clone(&self.scope))),
            "edit" => {
                self.scope.reader.record_fact(RequestFacts::EDIT);
                Value::from(self.scope.request.is_edit_mode)
            }
            "error" => {
                self.scope.reader.record_fact(RequestFacts::FAULT);
                error_value(&self.scope.request)
            }
            FRAME_VARIABLE => Value::from_dyn_object(DynObject::new(Arc::clone(self))),
            _ => return None,
        })
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&VARIABLE_NAMES)
    }
}

impl fmt::Debug for ComponentFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {}", self.resource.path())
    }
}

/// Creates the variable `error` of error pages.
fn error_value(request: &TemplateRequest) -> Value {
    match &request.error {
        Some((status, message)) => Value::from_pairs([
            ("status", Value::from(status.as_str())),
            ("message", Value::from(message.as_str())),
        ]),
        None => Value::UNDEFINED,
    }
}

impl ComponentFrame {
    /// Creates the variables of a component.
    pub(crate) fn new(
        scope: Arc<RenderScope>,
        resource: ContentResource,
        selectors: Arc<[String]>,
    ) -> Self {
        Self { scope, resource, selectors, properties: OnceLock::new() }
    }

    /// Returns the frame of the component whose template calls a function.
    pub(super) fn from_state(state: &State<'_, '_>) -> Result<Arc<Self>, minijinja::Error> {
        let frame = state.lookup(FRAME_VARIABLE).and_then(|value| value.downcast_object::<Self>());
        frame.ok_or_else(|| invalid_call("this function works only in components"))
    }

    /// Resolves a path from a template value: an object of a node or a path, absolute or relative.
    pub(super) fn resolve_path(&self, value: &Value) -> Option<NodePath> {
        if let Some(node) = node_of_value(value) {
            return Some(node.path().clone());
        }
        let text = value.as_str().filter(|text| !text.is_empty())?;
        self.resource.path().resolve(text).ok()
    }

    /// Finds the node of a template value; records all its properties.
    pub(super) fn find_node(&self, value: &Value) -> Option<Node> {
        node_of_value(value).cloned().or_else(|| self.scope.reader.node(&self.resolve_path(value)?))
    }

    /// Finds the node of a template value; records only existence and type.
    pub(super) fn find_node_existence(&self, value: &Value) -> Option<Node> {
        node_of_value(value)
            .cloned()
            .or_else(|| self.scope.reader.node_existence(&self.resolve_path(value)?))
    }

    /// Renders a resource inside this component; a failure leaves its placeholder.
    pub(super) fn include(&self, target: &Value, change: IncludeOverrides) -> String {
        let selectors = change.selectors.unwrap_or_else(|| Arc::clone(&self.selectors));
        let forced = change.resource_type;
        let path = self.resolve_path(target);
        let find = || self.find_resource(target, path.as_ref(), forced.clone());
        match path.clone() {
            Some(path) => {
                let (forced, around) = (forced.clone(), self.dynamic_children());
                let hole = FragmentHole {
                    path,
                    forced_type: forced,
                    selectors,
                    renders_node_itself: false,
                    child_inclusions: around,
                };
                self.include_hole(hole, find, target)
            }
            None => match find() {
                Ok(resource) => {
                    let resolution = self.scope.resolve_script(resource.types(), &selectors);
                    self.include_resource(&resource, resolution, selectors)
                }
                Err(failure) => self.render_failure(&failure, &target.to_string()),
            },
        }
    }

    /// Renders an included component, or uses its cached fragment.
    fn include_hole(
        &self,
        hole: FragmentHole,
        find: impl FnOnce() -> Result<ContentResource, ComponentFailure>,
        target: &Value,
    ) -> String {
        let draw = |resource: &ContentResource| {
            // The address of a part is that of its node, which says nothing about a forced type.
            let around = hole.child_inclusions.as_deref();
            let types = resource.types();
            let resolution = self.scope.resolve_script(types, &hole.selectors);
            let part = match hole.forced_type {
                None => self.dynamic_include(resource, types, around, resolution.dynamic),
                Some(_) => None,
            };
            let selectors = Arc::clone(&hole.selectors);
            Ok(part.unwrap_or_else(|| self.include_resource(resource, resolution, selectors)))
        };
        let result = self.scope.render_cached(&hole, find, draw);
        let text =
            result.unwrap_or_else(|failure| self.render_failure(&failure, &target.to_string()));
        self.scope.mark_include(hole, text)
    }

    /// Returns the inclusions that this component declares for its children.
    pub(crate) fn dynamic_children(&self) -> Option<Arc<DynamicChildInclusions>> {
        let scripts = &self.scope.scripts;
        if !scripts.has_dynamic_children() {
            return None;
        }
        let (resource_type, super_type) =
            (self.resource.resource_type(), self.resource.super_type());
        scripts.dynamic_children(resource_type, super_type)
    }

    /// Renders a resource with its resolved script.
    fn include_resource(
        &self,
        resource: &ContentResource,
        resolution: ScriptResolution,
        selectors: Arc<[String]>,
    ) -> String {
        let scope = &self.scope;
        let path = resource.path().as_str();
        let result = match scope.record_resolution(resource, resolution) {
            Some(script) => scope.render_resource(resource, &script, selectors),
            None => Err(ComponentFailure::NoScript(resource.resource_type().to_owned())),
        };
        let text = result.unwrap_or_else(|failure| self.render_failure(&failure, path));
        if !scope.request.is_edit_mode || self.is_hidden_component(resource.resource_type()) {
            return text;
        }
        let path = escape_html(path);
        let resource_type = escape_html(resource.resource_type());
        format!(
            "<div data-tympan-path=\"{path}\" data-tympan-type=\"{resource_type}\">{text}</div>"
        )
    }

    /// Returns the placeholder of a component that is rendered for each visitor; `None` if it is to be rendered here.
    /// The enclosing component or its own type may declare the inclusion.
    pub(crate) fn dynamic_include(
        &self,
        resource: &ContentResource,
        (resource_type, super_type): ResourceTypes<'_>,
        around: Option<&DynamicChildInclusions>,
        own: Option<DynamicInclusion>,
    ) -> Option<String> {
        let scope = &self.scope;
        let parent_choice =
            around.and_then(|around| around.get(relative_resource_type(resource_type)).copied());
        let dynamic = parent_choice.or(own)?;
        let is_page = matches!(scope.request.method.as_str(), "GET" | "HEAD");
        if scope.mode == RenderMode::Author || !is_page || scope.request.error.is_some() {
            return None;
        }
        scope.scripts.record_script_folders(&scope.reader, resource_type, super_type);
        let node = resource.node()?;
        scope.reader.record_type(node);
        let address = dynamic_inclusion::component_address(node.path().as_str());
        let dynamic = if scope.request.is_static_export { DynamicInclusion::Ajax } else { dynamic };
        if dynamic == DynamicInclusion::Include {
            scope.record_include_support_use();
        }
        match dynamic {
            DynamicInclusion::Include if scope.request.supports_includes => {
                scope.record_included_url(&address);
                Some(dynamic_inclusion::ssi_include_tag(&address))
            }
            DynamicInclusion::Include => None,
            DynamicInclusion::Ajax => {
                let libraries = ClientLibraryResolver {
                    script_cache: &scope.script_cache,
                    joined_libraries: scope.scripts.client_libraries(),
                };
                let script = scope.claim_fetch_script().then(|| {
                    libraries.library_url(&scope.reader, dynamic_inclusion::INCLUDE_SCRIPT_NAME)
                });
                Some(dynamic_inclusion::placeholder_element(&address, script.as_deref()))
            }
        }
    }

    /// Returns true if a component is a part of others that authors do not choose: its group is `.hidden`. Such parts
    /// may occur where a wrapper would break the page, as in its head.
    pub(crate) fn is_hidden_component(&self, resource_type: &str) -> bool {
        let reader = &self.scope.reader;
        let component = ["/apps/", "/libs/"].iter().find_map(|root| {
            reader.node_at(&format!("{root}{}", resource_type.trim_start_matches('/')))
        });
        let component = component.or_else(|| reader.node_at(resource_type));
        component.and_then(|component| component.text("componentGroup")).as_deref()
            == Some(".hidden")
    }

    /// Renders the children of a node that are components.
    pub(super) fn include_children(&self, target: &Value) -> String {
        let node = if target.is_undefined() { None } else { self.find_node_existence(target) };
        let Some(node) = node else {
            return String::new();
        };
        let components = self.scope.reader.children_existence(&node).into_iter();
        let components = components.filter(|child| child.property("sling:resourceType").is_some());
        let around = self.dynamic_children();
        components
            .map(|child| {
                let (path, selectors) = (child.path().clone(), Arc::clone(&self.selectors));
                let target = Value::from(path.as_arc());
                let around = around.clone();
                let hole = FragmentHole {
                    path,
                    forced_type: None,
                    selectors,
                    renders_node_itself: true,
                    child_inclusions: around,
                };
                self.include_hole(hole, || Ok(ContentResource::from_node(child)), &target)
            })
            .collect()
    }

    /// Finds the resource to include, and its path if known: pages are replaced by their content.
    fn find_resource(
        &self,
        target: &Value,
        path: Option<&NodePath>,
        forced: Option<String>,
    ) -> Result<ContentResource, ComponentFailure> {
        if target.is_undefined() || target.is_none() {
            return Err(ComponentFailure::NoTarget);
        }
        let described = || ComponentFailure::NoResource(target.to_string());
        let resource = match target.downcast_object_ref::<ResourceObject>() {
            Some(object) => object.resource.clone(),
            None => {
                let target_node = node_of_value(target).cloned();
                match target_node.or_else(|| self.scope.reader.node_existence(path?)) {
                    Some(node) => ContentResource::from_node(node),
                    None => ContentResource::missing(path.cloned().ok_or_else(described)?),
                }
            }
        };
        let resource = match (resource.node(), forced) {
            (_, Some(forced)) => return Ok(resource.with_type(forced)),
            (None, None) => return Err(described()),
            (Some(node), None) if node.is_page() => {
                page::page_content(&self.scope.reader, node).map(ContentResource::from_node)
            }
            (Some(_), None) => Some(resource),
        };
        resource.ok_or_else(described)
    }

    /// Counts a failure and returns its placeholder.
    pub(crate) fn render_failure(&self, failure: &ComponentFailure, path: &str) -> String {
        self.scope.record_failure(failure, path);
        failure.placeholder(self.scope.mode, path)
    }

    /// Records the response that the script requested.
    pub(super) fn override_response(&self, handover: ResponseOverride) {
        self.scope.override_response(handover);
    }
}

/// Renders the content of a hole in a cached fragment.
pub(super) fn render_hole(scope: &Arc<RenderScope>, hole: &FragmentHole) -> String {
    let (scope, selectors) = (Arc::clone(scope), Arc::clone(&hole.selectors));
    let frame = ComponentFrame::new(scope, ContentResource::missing(hole.path.clone()), selectors);
    let target = Value::from(hole.path.as_arc());
    let find = || match frame.scope.reader.node_existence(&hole.path) {
        Some(node) if hole.renders_node_itself => Ok(ContentResource::from_node(node)),
        _ => frame.find_resource(&target, Some(&hole.path), hole.forced_type.clone()),
    };
    frame.include_hole(hole.clone(), find, &target)
}

/// The overrides of an include.
#[derive(Debug, Default)]
pub(super) struct IncludeOverrides {
    pub resource_type: Option<String>,
    pub selectors: Option<Arc<[String]>>,
}

/// Returns the node of an object, without a lookup.
fn node_of_value(value: &Value) -> Option<&Node> {
    if let Some(object) = value.downcast_object_ref::<ResourceObject>() {
        return object.resource.node();
    }
    if let Some(object) = value.downcast_object_ref::<PageObject>() {
        return Some(&object.page);
    }
    value.downcast_object_ref::<NavigationEntry>().map(|entry| &entry.page.page)
}

/// The request, as `request` in templates.
struct RequestObject(Arc<RenderScope>);

/// Returns the parameters as template values: one value as text, several as a list.
fn parameters_value(parameters: &RequestParameters) -> Value {
    Value::from_pairs(parameters.names().map(|name| {
        let value = match parameters.values(name).unwrap_or_default() {
            [parameter_value] => Value::from(parameter_value.as_str()),
            many => many
                .iter()
                .map(|parameter_value| Value::from(parameter_value.as_str()))
                .collect::<Vec<_>>()
                .into(),
        };
        (name, value)
    }))
}

impl Object for RequestObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let request = &self.0.request;
        self.0.reader.record_fact(match key {
            "path" => RequestFacts::PAGE,
            "parameters" => RequestFacts::PARAMETERS,
            "user" | "form" => RequestFacts::USER,
            "url" => {
                RequestFacts::URL.combine(RequestFacts::PAGE).combine(RequestFacts::PARAMETERS)
            }
            _ => RequestFacts::URL,
        });
        Some(match key {
            "path" => Value::from(request.url.path.as_str()),
            "selectors" => request
                .url
                .selectors
                .iter()
                .map(|value| Value::from(value.as_str()))
                .collect::<Vec<_>>()
                .into(),
            "selector_string" => Value::from(request.url.selector_string()),
            "extension" => Value::from(request.url.extension.as_deref()?),
            "suffix" => Value::from(request.url.suffix.as_deref()?),
            "parameters" => parameters_value(&request.parameters),
            "form" => parameters_value(&request.form),
            "user" if request.user.is_empty() => return None,
            "user" => Value::from(request.user.as_str()),
            "url" => Value::from(request.raw_url.as_str()),
            "method" => Value::from(request.method.as_str()),
            "mode" => Value::from(match self.0.mode {
                RenderMode::Author => "author",
                RenderMode::Publish => "publish",
            }),
            _ => return None,
        })
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }
}

impl fmt::Debug for RequestObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.request.raw_url)
    }
}
