//! What one component sees: the variables of its template, made when they are asked for.

use std::fmt;
use std::sync::{Arc, OnceLock};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr};
use minijinja::{State, Value};
use tympan_content::{Node, NodePath};

use super::failure::{Failure, wrong_call};
use super::object::{ResourceObject, properties};
use super::page::{NavEntry, PageObject};
use super::scope::{Asked, Handover, Scope};
use crate::dynamic::{self, Dynamic, DynamicChildren};
use crate::engine::Mode;
use crate::fragment::Hole;
use crate::library::Libraries;
use crate::page;
use crate::policy::relative;
use crate::reads::Facts;
use crate::request::Parameters;
use crate::resource::{Resource, Types};
use crate::script::Resolution;

/// The name under which functions find the frame; no template can spell it.
const FRAME: &str = "tympan frame";

/// The names of the variables, for error messages.
const VARIABLES: [&str; 5] = ["resource", "properties", "page", "request", "edit"];

/// The variables of one component.
pub(crate) struct Frame {
    pub scope: Arc<Scope>,
    pub resource: Resource,
    /// The selectors that includes of this component inherit.
    pub selectors: Arc<[String]>,
    /// The variable `properties`, once it was asked for.
    properties: OnceLock<Value>,
}

impl Object for Frame {
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        Some(match key {
            "properties" => {
                let make = || properties(&self.scope, Some(&self.resource));
                self.properties.get_or_init(make).clone()
            }
            "resource" => Value::from_object(ResourceObject {
                scope: Arc::clone(&self.scope),
                resource: self.resource.clone(),
            }),
            "page" => PageObject::maybe(&self.scope, self.scope.page().cloned()),
            "request" => Value::from_object(RequestObject(Arc::clone(&self.scope))),
            "edit" => {
                self.scope.reader.note_fact(Facts::EDIT);
                Value::from(self.scope.request.edit)
            }
            "error" => {
                self.scope.reader.note_fact(Facts::FAULT);
                error(&self.scope.request)
            }
            FRAME => Value::from_dyn_object(DynObject::new(Arc::clone(self))),
            _ => return None,
        })
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&VARIABLES)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {}", self.resource.path())
    }
}

/// Makes the variable `error` of error pages.
fn error(request: &Asked) -> Value {
    match &request.error {
        Some((status, message)) => Value::from_pairs([
            ("status", Value::from(status.as_str())),
            ("message", Value::from(message.as_str())),
        ]),
        None => Value::UNDEFINED,
    }
}

impl Frame {
    /// Makes the variables of a component.
    pub(super) fn new(scope: Arc<Scope>, resource: Resource, selectors: Arc<[String]>) -> Self {
        Self { scope, resource, selectors, properties: OnceLock::new() }
    }

    /// Returns the frame of the component whose template calls a function.
    pub(super) fn of(state: &State<'_, '_>) -> Result<Arc<Self>, minijinja::Error> {
        let frame = state.lookup(FRAME).and_then(|value| value.downcast_object::<Self>());
        frame.ok_or_else(|| wrong_call("this function works in components only"))
    }

    /// Resolves what a template gave as a place: an object of a node or a path, absolute or relative.
    pub(super) fn path_of(&self, value: &Value) -> Option<NodePath> {
        if let Some(node) = node_of(value) {
            return Some(node.path().clone());
        }
        let text = value.as_str().filter(|text| !text.is_empty())?;
        self.resource.path().resolve(text).ok()
    }

    /// Finds the node that a template means.
    pub(super) fn find_node(&self, value: &Value) -> Option<Node> {
        node_of(value).cloned().or_else(|| self.scope.reader.node(&self.path_of(value)?))
    }

    /// Finds the node that a template means, of which existence and type matter.
    pub(super) fn glance(&self, value: &Value) -> Option<Node> {
        node_of(value).cloned().or_else(|| self.scope.reader.glance(&self.path_of(value)?))
    }

    /// Draws a resource inside this component; a failure leaves its placeholder.
    pub(super) fn include(&self, target: &Value, change: Change) -> String {
        let selectors = change.selectors.unwrap_or_else(|| Arc::clone(&self.selectors));
        let forced = change.resource_type;
        let path = self.path_of(target);
        let find = || self.find_resource((target, path.as_ref()), forced.clone());
        match path.clone() {
            Some(path) => {
                let (forced, around) = (forced.clone(), self.around());
                let hole = Hole { path, forced, selectors, is_itself: false, around };
                self.include_hole(hole, find, target)
            }
            None => match find() {
                Ok(resource) => {
                    let found = self.scope.resolve(resource.types(), &selectors);
                    self.include_resource(&resource, found, selectors)
                }
                Err(failure) => self.place_failure(&failure, &target.to_string()),
            },
        }
    }

    /// Draws what belongs at a place, or takes what was kept of it.
    fn include_hole(
        &self,
        hole: Hole,
        find: impl FnOnce() -> Result<Resource, Failure>,
        target: &Value,
    ) -> String {
        let draw = |resource: &Resource| {
            // The address of a part is that of its node, which tells nothing of another type.
            let around = hole.around.as_deref();
            let types = resource.types();
            let found = self.scope.resolve(types, &hole.selectors);
            let part = match hole.forced {
                None => self.leave_to_visitor(resource, types, (around, found.dynamic)),
                Some(_) => None,
            };
            let selectors = Arc::clone(&hole.selectors);
            Ok(part.unwrap_or_else(|| self.include_resource(resource, found, selectors)))
        };
        let drawn = self.scope.draw_kept(&hole, find, draw);
        let text =
            drawn.unwrap_or_else(|failure| self.place_failure(&failure, &target.to_string()));
        self.scope.mark(hole, text)
    }

    /// Returns what this component says of those that it includes.
    fn around(&self) -> Option<Arc<DynamicChildren>> {
        let scripts = &self.scope.scripts;
        if !scripts.has_dynamic_children() {
            return None;
        }
        let (resource_type, super_type) =
            (self.resource.resource_type(), self.resource.super_type());
        scripts.dynamic_children(resource_type, super_type)
    }

    /// Draws a resource with the script that was found for it.
    fn include_resource(
        &self,
        resource: &Resource,
        found: Resolution,
        selectors: Arc<[String]>,
    ) -> String {
        let scope = &self.scope;
        let path = resource.path().as_str();
        let drawn = match scope.note_resolved(resource, found) {
            Some(script) => scope.draw(resource, &script, selectors),
            None => Err(Failure::NoScript(resource.resource_type().to_owned())),
        };
        let text = drawn.unwrap_or_else(|failure| self.place_failure(&failure, path));
        if !scope.request.edit || self.is_hidden(resource.resource_type()) {
            return text;
        }
        let path = super::escape::escape(path);
        let resource_type = super::escape::escape(resource.resource_type());
        format!(
            "<div data-tympan-path=\"{path}\" data-tympan-type=\"{resource_type}\">{text}</div>"
        )
    }

    /// Returns what stands for a component that is drawn for each visitor; nothing if it is to be drawn here. The component
    /// around it may say how it is put into the page, or its own type.
    fn leave_to_visitor(
        &self,
        resource: &Resource,
        (resource_type, super_type): Types<'_>,
        (around, own): (Option<&DynamicChildren>, Option<Dynamic>),
    ) -> Option<String> {
        let scope = &self.scope;
        let said = around.and_then(|around| around.get(relative(resource_type)).copied());
        let dynamic = said.or(own)?;
        let is_page = matches!(scope.request.method.as_str(), "GET" | "HEAD");
        if scope.mode == Mode::Author || !is_page || scope.request.error.is_some() {
            return None;
        }
        scope.scripts.note_types(&scope.reader, resource_type, super_type);
        let node = resource.node()?;
        scope.reader.note_type(node);
        let address = dynamic::address_of(node.path().as_str());
        let dynamic = if scope.request.becomes_file { Dynamic::Ajax } else { dynamic };
        if dynamic == Dynamic::Include {
            scope.note_capability();
        }
        match dynamic {
            Dynamic::Include if scope.request.fills_includes => {
                scope.note_included(&address);
                Some(dynamic::include_tag(&address))
            }
            Dynamic::Include => None,
            Dynamic::Ajax => {
                let libraries =
                    Libraries { scripts: &scope.table, joined: scope.scripts.libraries() };
                let script = scope
                    .wants_fetcher()
                    .then(|| libraries.url(&scope.reader, dynamic::FETCHER_NAME));
                Some(dynamic::place(&address, script.as_deref()))
            }
        }
    }

    /// Tells whether a component is a part of others that authors do not choose: its group is `.hidden`. Such parts
    /// may stand where a wrapper would break the page, as in its head.
    fn is_hidden(&self, resource_type: &str) -> bool {
        let reader = &self.scope.reader;
        let component = ["/apps/", "/libs/"].iter().find_map(|root| {
            reader.node_at(&format!("{root}{}", resource_type.trim_start_matches('/')))
        });
        let component = component.or_else(|| reader.node_at(resource_type));
        component.and_then(|component| component.text("componentGroup")).as_deref()
            == Some(".hidden")
    }

    /// Draws the children of a node that are components.
    pub(super) fn include_children(&self, target: &Value) -> String {
        let node = if target.is_undefined() { None } else { self.glance(target) };
        let Some(node) = node else {
            return String::new();
        };
        let components = self.scope.reader.glance_children(&node).into_iter();
        let components = components.filter(|child| child.property("sling:resourceType").is_some());
        let around = self.around();
        components
            .map(|child| {
                let (path, selectors) = (child.path().clone(), Arc::clone(&self.selectors));
                let target = Value::from(path.as_shared());
                let around = around.clone();
                let hole = Hole { path, forced: None, selectors, is_itself: true, around };
                self.include_hole(hole, || Ok(Resource::of(child)), &target)
            })
            .collect()
    }

    /// Finds what to include, and where that is, if known: pages stand for their content.
    fn find_resource(
        &self,
        (target, path): (&Value, Option<&NodePath>),
        forced: Option<String>,
    ) -> Result<Resource, Failure> {
        if target.is_undefined() || target.is_none() {
            return Err(Failure::NoTarget);
        }
        let described = || Failure::NoResource(target.to_string());
        let resource = match target.downcast_object_ref::<ResourceObject>() {
            Some(object) => object.resource.clone(),
            None => {
                let found = node_of(target).cloned();
                match found.or_else(|| self.scope.reader.glance(path?)) {
                    Some(node) => Resource::of(node),
                    None => Resource::missing(path.cloned().ok_or_else(described)?),
                }
            }
        };
        let resource = match (resource.node(), forced) {
            (_, Some(forced)) => return Ok(resource.with_type(forced)),
            (None, None) => return Err(described()),
            (Some(node), None) if node.is_page() => {
                page::content(&self.scope.reader, node).map(Resource::of)
            }
            (Some(_), None) => Some(resource),
        };
        resource.ok_or_else(described)
    }

    /// Counts a failure and returns what stands in its place.
    fn place_failure(&self, failure: &Failure, path: &str) -> String {
        self.scope.note_failure(failure, path);
        failure.placeholder(self.scope.mode, path)
    }

    /// Notes what the script wants to be answered.
    pub(super) fn hand_over(&self, handover: Handover) {
        self.scope.hand_over(handover);
    }
}

/// Draws what belongs in a hole of a kept drawing.
pub(super) fn fill(scope: &Arc<Scope>, hole: &Hole) -> String {
    let (scope, selectors) = (Arc::clone(scope), Arc::clone(&hole.selectors));
    let frame = Frame::new(scope, Resource::missing(hole.path.clone()), selectors);
    let target = Value::from(hole.path.as_shared());
    let find = || match frame.scope.reader.glance(&hole.path) {
        Some(node) if hole.is_itself => Ok(Resource::of(node)),
        _ => frame.find_resource((&target, Some(&hole.path)), hole.forced.clone()),
    };
    frame.include_hole(hole.clone(), find, &target)
}

/// How an include differs from the resource's own drawing.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub resource_type: Option<String>,
    pub selectors: Option<Arc<[String]>>,
}

/// Returns the node of an object, without a look-up.
fn node_of(value: &Value) -> Option<&Node> {
    if let Some(object) = value.downcast_object_ref::<ResourceObject>() {
        return object.resource.node();
    }
    if let Some(object) = value.downcast_object_ref::<PageObject>() {
        return Some(&object.page);
    }
    value.downcast_object_ref::<NavEntry>().map(|entry| &entry.page.page)
}

/// The request, as `request` in templates.
struct RequestObject(Arc<Scope>);

/// Returns parameters: one value as text, several as a list.
fn pairs_of(parameters: &Parameters) -> Value {
    Value::from_pairs(parameters.names().map(|name| {
        let value = match parameters.values(name).unwrap_or_default() {
            [one] => Value::from(one.as_str()),
            many => many.iter().map(|one| Value::from(one.as_str())).collect::<Vec<_>>().into(),
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
        self.0.reader.note_fact(match key {
            "path" => Facts::PAGE,
            "parameters" => Facts::PARAMETERS,
            "user" | "form" => Facts::USER,
            "url" => Facts::URL.and(Facts::PAGE).and(Facts::PARAMETERS),
            _ => Facts::URL,
        });
        Some(match key {
            "path" => Value::from(request.url.path.as_str()),
            "selectors" => request
                .url
                .selectors
                .iter()
                .map(|one| Value::from(one.as_str()))
                .collect::<Vec<_>>()
                .into(),
            "selector_string" => Value::from(request.url.selector_string()),
            "extension" => Value::from(request.url.extension.as_deref()?),
            "suffix" => Value::from(request.url.suffix.as_deref()?),
            "parameters" => pairs_of(&request.parameters),
            "form" => pairs_of(&request.form),
            "user" if request.user.is_empty() => return None,
            "user" => Value::from(request.user.as_str()),
            "url" => Value::from(request.raw.as_str()),
            "method" => Value::from(request.method.as_str()),
            "mode" => Value::from(match self.0.mode {
                Mode::Author => "author",
                Mode::Publish => "publish",
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
        f.write_str(&self.0.request.raw)
    }
}
