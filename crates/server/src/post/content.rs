//! Carrying out a POST in one session and one commit.

use std::io::{BufReader, Read};
use std::time::SystemTime;

use http::StatusCode;
use tympan_content::{
    After, BlobId, CheckIn, Date, JCR_CONTENT, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Place,
    Property, Session, Snapshot, Subtree, Value, ValueType, Viewer,
};

use crate::Instance;
use crate::api::Condition;
use crate::arrived::{Sha256, media_type, store, store_file};
use crate::failure::{Failure, Result};
use crate::form::Upload;
use crate::post::fields::{Chunk, Fields, Spec};
use crate::post::import::{self, Form, Merging};
use crate::post::{Done, duplicate};
use crate::settable::{SetProperties, Way, is_protected};
use crate::touch::touch_pages;

/// Carries out everything but activation, if the condition on the node that is asked for holds.
pub(crate) fn carry_out(
    instance: &Instance,
    operation: &str,
    path: &str,
    fields: &Fields,
    (viewer, condition): (&Viewer, &Condition),
) -> Result<Done> {
    let seen = instance.repository.snapshot()?.seen_by(viewer);
    let mut session = instance.repository.session_of(viewer)?;
    if *condition != Condition::None {
        let asked = NodePath::new(path)?;
        condition.check(instance, session.node(&asked)?.as_ref())?;
        session.expect_unchanged(&asked)?;
    }
    let mut work = Work {
        begun: session.snapshot()?,
        session,
        set: SetProperties::default(),
        user: viewer.name(),
        now: SystemTime::now(),
        done: Done::default(),
    };
    match operation {
        "" | "modify" => work.modify(path, fields)?,
        "delete" => {
            for path in targets(&seen, path, fields)? {
                work.delete(&path)?;
            }
        }
        "move" | "copy" => {
            let targets = targets(&seen, path, fields)?;
            let is_folder = fields.command(":dest").is_some_and(|dest| dest.ends_with('/'));
            if fields.has(":applyTo") && !is_folder {
                let message = "several nodes need a folder to go to: let `:dest` end with a slash";
                return Err(Failure::bad_request(message));
            }
            for path in targets {
                work.relocate(operation, &path, fields)?;
            }
        }
        "createasset" => {
            work.create_assets(path, fields)?;
            if duplicate::is_wanted(instance) {
                let folder = existing(&seen, path)?;
                work.done.changes.extend(duplicate::found(instance, &seen, &folder, fields)?);
            }
        }
        "import" => work.import(path, fields)?,
        "checkin" | "checkout" | "restore" => {
            for path in targets(&seen, path, fields)? {
                work.change_version(operation, &path, fields)?;
            }
        }
        "nop" => {
            cut(path).clone_into(&mut work.done.path);
            work.done.status = nop_status(fields)?;
        }
        other => {
            return Err(Failure::bad_request(format!(
                "`{other}` is no operation; try delete, move, copy, import, nop, checkin, checkout, restore, activate"
            )));
        }
    }
    work.set.check(&work.begun, &mut work.session)?;
    work.touch_pages()?;
    let message = if operation.is_empty() { "modify" } else { operation };
    work.session.commit(&format!("{message} {}", work.done.path), work.now)?;
    Ok(work.done)
}

/// Returns the paths that an operation is for, as [`targets`] does; a path where nothing is counts where that is allowed.
pub(crate) fn targets_of(
    snapshot: &Snapshot,
    path: &str,
    fields: &Fields,
    may_be_missing: bool,
) -> Result<Vec<String>> {
    match targets(snapshot, path, fields) {
        Err(failure) if may_be_missing && failure.status == StatusCode::NOT_FOUND => {
            Ok(vec![NodePath::new(cut(path))?.to_string()])
        }
        found => found,
    }
}

/// Returns the paths that an operation is for: those of `:applyTo`, or the request's own.
pub(crate) fn targets(snapshot: &Snapshot, path: &str, fields: &Fields) -> Result<Vec<String>> {
    let wanted = fields.commands(":applyTo");
    if wanted.is_empty() {
        return Ok(vec![existing(snapshot, path)?.to_string()]);
    }
    let base = NodePath::new(cut(path)).unwrap_or_else(|_| NodePath::root());
    let mut paths = Vec::new();
    for one in wanted {
        match one.strip_suffix("/*") {
            Some(folder) => {
                if let Some(node) = snapshot.node(&base.resolve(folder)?)? {
                    paths.extend(node.children()?.iter().map(|child| child.path().to_string()));
                }
            }
            // What is missing is passed over, as in Sling.
            None => {
                let path = base.resolve(one)?;
                if snapshot.node(&path)?.is_some() {
                    paths.push(path.to_string());
                }
            }
        }
    }
    Ok(paths)
}

/// Finds the node that a URL means: the path itself, or without its selectors and extension.
fn existing(snapshot: &Snapshot, path: &str) -> Result<NodePath> {
    for candidate in [path, cut(path)] {
        if let Ok(candidate) = NodePath::new(candidate)
            && snapshot.node(&candidate)?.is_some()
        {
            return Ok(candidate);
        }
    }
    Err(Failure::not_found(path))
}

/// Cuts selectors and extension off the last name.
fn cut(path: &str) -> &str {
    let from = path.rfind('/').map_or(0, |at| at + 1);
    match path.get(from..).and_then(|name| name.find('.')) {
        Some(0) | None => path,
        Some(dot) => path.get(..from + dot).unwrap_or(path),
    }
}

/// The node that holds the parts of a file that is still arriving.
const CHUNKS: &str = "sling:chunks";

/// One request's session and what it has done.
struct Work<'a> {
    session: Session,
    /// The state before the request.
    begun: Snapshot,
    /// The properties that the request names.
    set: SetProperties,
    user: &'a str,
    now: SystemTime,
    done: Done,
}

impl Work<'_> {
    /// Creates or changes a node.
    fn modify(&mut self, path: &str, fields: &Fields) -> Result<()> {
        let (path, is_new) = self.resolve_target(path, fields)?;
        path.as_str().clone_into(&mut self.done.path);
        if is_new {
            let primary_type = fields.value(PRIMARY_TYPE).map(str::to_owned);
            self.create(&path, primary_type.as_deref())?;
            self.done.is_create = true;
        }
        if !is_new && fields.command(":autoCheckout") == Some("true") {
            self.check_out(&path)?;
        }
        for (name, spec) in &fields.properties {
            if spec.hints.contains_key("Delete") {
                self.delete_item(&path, name)?;
            }
        }
        for (hint, is_move) in [("MoveFrom", true), ("CopyFrom", false)] {
            for (name, spec) in &fields.properties {
                if let Some(from) = spec.hint(hint) {
                    self.transfer(&path.resolve(from)?, &path.resolve(name)?, is_move)?;
                }
            }
        }
        let values = |name: &str| {
            let found =
                fields.properties.iter().find(|(known, _)| known == name.trim_start_matches("./"));
            found.map(|(_, spec)| spec.values.clone()).unwrap_or_default()
        };
        for (name, spec) in &fields.properties {
            let source = spec.hint("ValueFrom").map(&values);
            self.write_property(&path, name, spec, source)?;
        }
        for (name, upload) in fields.files.iter().filter(|(name, _)| !name.starts_with(':')) {
            self.store_file(&path, name, upload, fields)?;
        }
        if let Some(order) = commands_order(fields) {
            self.order(&path, order)?;
        }
        if fields.command(":checkinNewVersionableNodes") == Some("true") {
            self.check_in_created()?;
        }
        Ok(())
    }

    /// Checks a node in or out, or makes it as one of its versions holds it.
    fn change_version(&mut self, operation: &str, path: &str, fields: &Fields) -> Result<()> {
        path.clone_into(&mut self.done.path);
        let path = NodePath::new(path)?;
        match operation {
            "checkin" => self.check_in(&path)?,
            "checkout" => self.session.check_out(&path)?,
            _ => {
                let missing = || Failure::bad_request("say which version: `:version`");
                let version = fields.command(":version").ok_or_else(missing)?;
                self.session.restore(&path, version, self.now, After::CheckedOut)?;
            }
        }
        let word = match operation {
            "checkin" => "checkin",
            "checkout" => "checkout",
            _ => "restored",
        };
        self.done.changes.push((word, vec![path.to_string()]));
        Ok(())
    }

    fn check_in(&mut self, path: &NodePath) -> Result<()> {
        let how = CheckIn { comment: "", at: self.now, after: After::CheckedIn };
        self.session.check_in(path, &how)?;
        Ok(())
    }

    /// Checks a node out if it is versionable.
    fn check_out(&mut self, path: &NodePath) -> Result<()> {
        match self.session.check_out(path) {
            Ok(()) | Err(tympan_content::Error::Refused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks in what this request has made and what is versionable.
    fn check_in_created(&mut self) -> Result<()> {
        let created = self.done.changes.iter().filter(|(word, _)| *word == "created");
        let paths: Vec<String> = created.filter_map(|(_, paths)| paths.first().cloned()).collect();
        for path in paths {
            let path = NodePath::new(&path)?;
            let is_versionable = self.session.node(&path)?.is_some_and(|node| {
                let mixins = node.property(MIXIN_TYPES);
                let mixins = mixins.as_ref().map(Property::values).unwrap_or_default();
                mixins.iter().any(|mixin| mixin.as_str() == Some("mix:versionable"))
            });
            if is_versionable {
                self.check_in(&path)?;
                self.done.changes.push(("checkin", vec![path.to_string()]));
            }
        }
        Ok(())
    }

    /// Imports structured content below a node, or at it if no name is given.
    fn import(&mut self, path: &str, fields: &Fields) -> Result<()> {
        let kind = fields.command(":contentType").unwrap_or_default();
        let form = Form::find(kind).ok_or_else(|| {
            let message = format!("`:contentType` is json, xml, jcr.xml, jar or zip, not `{kind}`");
            Failure::bad_request(message)
        })?;
        let now = Date::from_system_time(self.now);
        let upload = fields.files.iter().find(|(name, _)| name == ":contentFile");
        let tree = match (upload, fields.command(":content")) {
            (Some((_, upload)), _) => {
                import::read(&mut self.session, form, BufReader::new(upload.file.reopen()?), now)?
            }
            (None, Some(content)) => {
                import::read(&mut self.session, form, import::text_reader(content), now)?
            }
            (None, None) => {
                return Err(Failure::bad_request("say what: `:content` or `:contentFile`"));
            }
        };
        let path = self.import_place(path, fields, &tree.name)?;
        path.as_str().clone_into(&mut self.done.path);
        if let Some(parent) = path.parent()
            && self.session.node(&parent)?.is_none()
        {
            self.create(&parent, None)?;
        }
        self.done.is_create = self.session.node(&path)?.is_none();
        if !self.done.is_create && fields.command(":autoCheckout") == Some("true") {
            self.check_out(&path)?;
        }
        let is_set = |name: &str| fields.command(name) == Some("true");
        let merging = Merging {
            replaces_nodes: is_set(":replace"),
            replaces_properties: is_set(":replaceProperties"),
        };
        // As Sling does, what the repository alone sets is passed over.
        let mut named = SetProperties::default();
        named.add_tree(&path, &tree, 0);
        let mut created = Vec::new();
        import::put(&mut self.session, &path, tree, merging, &mut created)?;
        named.take_back(&self.begun, &mut self.session)?;
        named.check_places(&self.begun, &mut self.session)?;
        self.done.changes.extend(created.into_iter().map(|path| ("created", vec![path])));
        if is_set(":checkin") { self.check_in_created() } else { Ok(()) }
    }

    /// Returns where imported content goes: below the node of the request under the name of `:name`, `:nameHint` or the
    /// content itself, or at the node.
    fn import_place(&mut self, path: &str, fields: &Fields, own: &str) -> Result<NodePath> {
        let folder = path.strip_suffix("/*").or_else(|| path.strip_suffix('/'));
        let at = match folder {
            Some("") => NodePath::root(),
            Some(folder) => NodePath::new(folder)?,
            None => {
                let snapshot = self.session.snapshot()?;
                existing(&snapshot, path)
                    .or_else(|_| Ok::<_, Failure>(NodePath::new(cut(path))?))?
            }
        };
        match (fields.command(":name"), fields.command(":nameHint")) {
            (Some(name), _) => Ok(at.child(name)?),
            (None, Some(_)) => Ok(at.child(&self.free_name(&at, fields)?)?),
            (None, None) if !own.is_empty() => Ok(at.child(own)?),
            (None, None) if folder.is_some() => Ok(at.child(&self.free_name(&at, fields)?)?),
            (None, None) => Ok(at),
        }
    }

    /// Finds the node to change, or the path of the node to create.
    fn resolve_target(&mut self, path: &str, fields: &Fields) -> Result<(NodePath, bool)> {
        if let Some(folder) = path.strip_suffix("/*").or_else(|| path.strip_suffix('/')) {
            let folder = if folder.is_empty() { NodePath::root() } else { NodePath::new(folder)? };
            let name = self.free_name(&folder, fields)?;
            return Ok((folder.child(&name)?, true));
        }
        let snapshot = self.session.snapshot()?;
        match existing(&snapshot, path) {
            Ok(path) => Ok((path, false)),
            Err(_) => Ok((NodePath::new(cut(path))?, true)),
        }
    }

    /// Chooses the name of a new node by Sling's rules.
    fn free_name(&mut self, folder: &NodePath, fields: &Fields) -> Result<String> {
        if let Some(name) = fields.command(":name") {
            return Ok(name.to_owned());
        }
        const SOURCES: [&str; 6] =
            ["title", "jcr:title", "name", "description", "jcr:description", "abstract"];
        let from_content = || {
            let content = SOURCES.iter().map(|name| format!("{JCR_CONTENT}/{name}"));
            let own = SOURCES.iter().map(|name| (*name).to_owned());
            own.chain(content).find_map(|name| fields.value(&name).map(str::to_owned))
        };
        let hint = fields.command(":nameHint").map(str::to_owned).or_else(from_content);
        let base = hint.map(|hint| filter_name(&hint)).filter(|name| !name.is_empty());
        let snapshot = self.session.snapshot()?;
        let is_taken =
            |name: &str| -> Result<bool> { Ok(snapshot.node(&folder.child(name)?)?.is_some()) };
        if let Some(base) = &base
            && !is_taken(base)?
        {
            return Ok(base.clone());
        }
        let base = base.unwrap_or_default();
        for number in 0..10_000 {
            let name =
                if base.is_empty() { format!("{number}") } else { format!("{base}_{number}") };
            if !is_taken(&name)? {
                return Ok(name);
            }
        }
        Err(Failure::bad_request("no free name was found; say one with `:name`"))
    }

    /// Creates a node with the parents that it lacks.
    fn create(&mut self, path: &NodePath, primary_type: Option<&str>) -> Result<()> {
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let parent_type = match self.session.node(&parent)? {
            Some(node) => node.primary_type().to_owned(),
            None => {
                self.create(&parent, None)?;
                self.done.changes.push(("created", vec![parent.to_string()]));
                self.session
                    .node(&parent)?
                    .map(|node| node.primary_type().to_owned())
                    .unwrap_or_default()
            }
        };
        let default_type = match parent_type.as_str() {
            "nt:folder" | "sling:Folder" | "sling:OrderedFolder" => parent_type.as_str(),
            "rep:root" => "sling:Folder",
            _ => "nt:unstructured",
        };
        self.session.add_node(path, primary_type.unwrap_or(default_type))?;
        self.done.changes.push(("created", vec![path.to_string()]));
        Ok(())
    }

    /// Writes one property as its field and hints say.
    fn write_property(
        &mut self,
        base: &NodePath,
        name: &str,
        spec: &Spec,
        source: Option<Vec<String>>,
    ) -> Result<()> {
        let (path, name) = self.property_place(base, name)?;
        let mut values = source.unwrap_or_else(|| spec.values.clone());
        if spec.hint("IgnoreBlanks") == Some("true") {
            values.retain(|value| !value.is_empty());
        }
        let is_absent = !spec.is_given && spec.hint("ValueFrom").is_none();
        let is_blank = values.iter().all(String::is_empty);
        if let Some(default) = spec.hint("DefaultValue")
            && ((is_absent && spec.hint("UseDefaultWhenMissing") == Some("true"))
                || (!is_absent && is_blank))
        {
            values = vec![default.to_owned()];
        }
        if values.is_empty() && (is_absent || spec.hint("IgnoreBlanks") == Some("true")) {
            return Ok(());
        }
        let filled_in = self.filled_in(&name, &values);
        let is_filled_in = filled_in.is_some();
        let change = filled_in
            .map_or_else(|| self.typed(&path, &name, spec, &values), |auto| Ok(Some(auto)))?;
        let before = self.session.node(&path)?.and_then(|node| node.property(&name));
        let value = change.clone();
        match change {
            Some(property) if Some(&property) == before.as_ref() => return Ok(()),
            // The repository fills these in itself.
            Some(property) if is_filled_in && self.is_protected(&path, &name, &property)? => {
                return Ok(());
            }
            Some(property) => self.session.set_property(&path, &name, property)?,
            None if before.is_none() => return Ok(()),
            None => drop(self.session.remove_property(&path, &name)?),
        }
        self.set.add(&path, &name, value, 0);
        self.done.changes.push(("modified", vec![format!("{path}/{name}")]));
        Ok(())
    }

    /// Returns the value of the properties that Sling fills in when they are sent empty.
    fn filled_in(&self, name: &str, values: &[String]) -> Option<Property> {
        if values != [""] {
            return None;
        }
        match name.strip_prefix("jcr:").or_else(|| name.strip_prefix("cq:")).unwrap_or(name) {
            "created" | "lastModified" => {
                Some(Property::Single(Value::Date(Date::from_system_time(self.now))))
            }
            "createdBy" | "lastModifiedBy" => Some(Property::text(self.user)),
            _ => None,
        }
    }

    fn is_protected(&mut self, path: &NodePath, name: &str, property: &Property) -> Result<bool> {
        match self.session.node(path)? {
            Some(node) => is_protected(&node, name, property),
            None => Ok(false),
        }
    }

    /// Reads the values as the type that the hint, the stored property or nobody names; nothing removes the property.
    fn typed(
        &mut self,
        path: &NodePath,
        name: &str,
        spec: &Spec,
        values: &[String],
    ) -> Result<Option<Property>> {
        let stored = self.session.node(path)?.and_then(|node| node.property(name));
        let hint = spec.hint("TypeHint");
        let (type_name, is_list) = match hint {
            Some(hint) => (hint.trim_end_matches("[]"), hint.ends_with("[]")),
            None => ("", stored.as_ref().is_some_and(Property::is_list) || values.len() > 1),
        };
        let value_type = match ValueType::find(type_name) {
            Some(value_type) => value_type,
            None if name == PRIMARY_TYPE || name == "jcr:mixinTypes" => ValueType::Name,
            None => stored.as_ref().map_or(ValueType::String, Property::value_type),
        };
        let is_list = is_list || name == "jcr:mixinTypes";
        if spec.hint("Patch") == Some("true") {
            let stored = stored.map(|property| property.values().to_vec()).unwrap_or_default();
            return Ok(Some(patched(stored, value_type, values)?));
        }
        if is_list {
            let list = values
                .iter()
                .filter(|value| !value.is_empty())
                .map(|text| read_value(value_type, text));
            let list = list.collect::<Result<Vec<_>>>()?;
            return Ok(Some(Property::List(value_type, list)));
        }
        match values.first().map(String::as_str) {
            None | Some("") => Ok(None),
            Some(text) => Ok(Some(Property::Single(read_value(value_type, text)?))),
        }
    }

    /// Splits a property's path and makes the nodes on the way.
    fn property_place(&mut self, base: &NodePath, name: &str) -> Result<(NodePath, String)> {
        let full = if name.starts_with('/') { name.to_owned() } else { format!("{base}/{name}") };
        let (node, name) = full.rsplit_once('/').unwrap_or(("", &full));
        let node = NodePath::root().resolve(node)?;
        if self.session.node(&node)?.is_none() {
            self.create(&node, None)?;
        }
        Ok((node, name.to_owned()))
    }

    fn delete_item(&mut self, base: &NodePath, name: &str) -> Result<()> {
        let path = base.resolve(name)?;
        if self.session.node(&path)?.is_some() {
            self.session.remove(&path)?;
            self.done.changes.push(("deleted", vec![path.to_string()]));
            return Ok(());
        }
        let (Some(parent), name) = (path.parent(), path.name()) else { return Ok(()) };
        if self.session.node(&parent)?.is_some() && self.session.remove_property(&parent, name)? {
            self.set.add(&parent, name, None, 0);
            self.done.changes.push(("deleted", vec![path.to_string()]));
        }
        Ok(())
    }

    /// Moves or copies a node or property to another place.
    fn transfer(&mut self, from: &NodePath, to: &NodePath, is_move: bool) -> Result<()> {
        if self.session.node(from)?.is_some() {
            if self.session.node(to)?.is_some() {
                self.session.remove(to)?;
            }
            let way = if is_move { Way::Move } else { Way::Copy };
            match way {
                Way::Move => self.session.move_node(from, to)?,
                Way::Copy => self.session.copy_node(from, to)?,
            }
            self.set.relocated(from, to, way, 0);
        } else {
            let missing = || Failure::not_found(from.as_str());
            let parent = from.parent().ok_or_else(missing)?;
            let property = self
                .session
                .node(&parent)?
                .and_then(|node| node.property(from.name()))
                .ok_or_else(missing)?;
            let target = to.parent().ok_or_else(missing)?;
            self.set.add(&target, to.name(), Some(property.clone()), 0);
            self.session.set_property(&target, to.name(), property)?;
            if is_move {
                self.set.add(&parent, from.name(), None, 0);
                self.session.remove_property(&parent, from.name())?;
            }
        }
        let word = if is_move { "moved" } else { "copied" };
        self.done.changes.push((word, vec![from.to_string(), to.to_string()]));
        Ok(())
    }

    fn delete(&mut self, path: &str) -> Result<()> {
        path.clone_into(&mut self.done.path);
        self.session.remove(&NodePath::new(path)?)?;
        self.done.changes.push(("deleted", vec![path.to_owned()]));
        Ok(())
    }

    /// Moves or copies a node to `:dest`.
    fn relocate(&mut self, operation: &str, path: &str, fields: &Fields) -> Result<()> {
        let from = NodePath::new(path)?;
        let dest =
            fields.command(":dest").ok_or_else(|| Failure::bad_request("say where to: `:dest`"))?;
        let parent = from.parent().unwrap_or_else(NodePath::root);
        let to = match dest.strip_suffix('/') {
            Some(folder) => parent.resolve(folder)?.child(from.name())?,
            None => parent.resolve(dest)?,
        };
        if self.session.node(&to)?.is_some() {
            if fields.command(":replace") != Some("true") {
                return Err(tympan_content::Error::NodeExists(to).into());
            }
            self.session.remove(&to)?;
        }
        let way = if operation == "move" { Way::Move } else { Way::Copy };
        match way {
            Way::Move => self.session.move_node(&from, &to)?,
            Way::Copy => self.session.copy_node(&from, &to)?,
        }
        self.set.relocated(&from, &to, way, 0);
        to.as_str().clone_into(&mut self.done.path);
        let word = if way == Way::Move { "moved" } else { "copied" };
        self.done.changes.push((word, vec![from.to_string(), to.to_string()]));
        if let Some(order) = commands_order(fields) {
            self.order(&to, order)?;
        }
        Ok(())
    }

    fn order(&mut self, path: &NodePath, order: &str) -> Result<()> {
        let place = match order.split_once(' ') {
            None if order == "first" => Place::First,
            None if order == "last" => Place::Last,
            Some(("before", name)) => Place::Before(name.trim().to_owned()),
            Some(("after", name)) => Place::After(name.trim().to_owned()),
            _ => self.place_at(path, order)?,
        };
        self.session.order(path, &place)?;
        self.done.changes.push(("ordered", vec![path.to_string(), order.to_owned()]));
        Ok(())
    }

    /// Reads `:order=3`: the place among the siblings, counted from 0.
    fn place_at(&mut self, path: &NodePath, order: &str) -> Result<Place> {
        let number: usize = order.parse().map_err(|_| {
            Failure::bad_request("`:order` is first, last, before X, after X or a number")
        })?;
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let siblings = match self.session.node(&parent)? {
            Some(node) => node.children()?,
            None => Vec::new(),
        };
        let sibling = siblings.iter().filter(|node| node.path() != path).nth(number);
        Ok(sibling.map_or(Place::Last, |node| Place::Before(node.name().to_owned())))
    }

    /// Stores an uploaded file below a node: a file in a folder, a resource elsewhere, or what the type hint says.
    fn store_file(
        &mut self,
        base: &NodePath,
        field: &str,
        upload: &Upload,
        fields: &Fields,
    ) -> Result<()> {
        let (folder, name) = field.rsplit_once('/').unwrap_or(("", field));
        let name = if name == "*" { upload.name.as_str() } else { name };
        let folder = base.resolve(folder)?;
        let path = folder.child(name)?;
        if self.session.node(&folder)?.is_none() {
            self.create(&folder, None)?;
        }
        let digest = fields.digest(field)?;
        if let Some(chunk) = fields.chunk(field)? {
            let hint = fields.hint(field, "TypeHint");
            return self.store_chunk(&path, (upload, digest), &chunk, hint);
        }
        let resource = self.resource(upload, digest)?;
        self.put_file(&path, resource, fields.hint(field, "TypeHint"))
    }

    /// Puts a described file at its place.
    fn put_file(&mut self, path: &NodePath, resource: Subtree, hint: Option<&str>) -> Result<()> {
        let folder = path.parent().unwrap_or_else(NodePath::root);
        let folder = self.session.node(&folder)?;
        let is_folder = folder.is_some_and(|node| {
            matches!(
                node.primary_type(),
                "nt:folder" | "sling:Folder" | "sling:OrderedFolder" | "cq:Page" | "rep:root"
            )
        });
        let node = match hint {
            Some(hint @ ("nt:resource" | "oak:Resource")) => {
                Subtree { name: path.name().to_owned(), ..resource }
                    .with(PRIMARY_TYPE, Property::name(hint))
            }
            Some(hint) => Subtree::new(path.name(), hint).with_child(resource),
            None if is_folder => Subtree::new(path.name(), "nt:file").with_child(resource),
            None => resource,
        };
        let word = if self.session.node(path)?.is_none() { "created" } else { "modified" };
        self.session.put(path, node)?;
        self.done.changes.push((word, vec![path.to_string()]));
        Ok(())
    }

    /// Takes in a part of a file. Parts are kept below the file's node until the last one has come.
    fn store_chunk(
        &mut self,
        path: &NodePath,
        (upload, digest): (&Upload, Option<Sha256>),
        chunk: &Chunk,
        hint: Option<&str>,
    ) -> Result<()> {
        let parts = path.child(CHUNKS)?;
        if chunk.offset == 0 {
            // A new first part begins the file anew.
            if self.session.node(&parts)?.is_some() {
                self.session.remove(&parts)?;
            }
            if self.session.node(path)?.is_none() {
                self.create(path, Some(hint.unwrap_or("nt:unstructured")))?;
            }
            self.session.put(&parts, Subtree::new(CHUNKS, "nt:unstructured"))?;
        }
        let there = match self.session.node(&parts)? {
            Some(node) => node.children()?,
            None => {
                return Err(Failure::bad_request(
                    "there is no upload to go on with; begin with `@Offset` 0",
                ));
            }
        };
        let blob_of = |node: &tympan_content::Node| match node.property("jcr:data") {
            Some(Property::Single(Value::Binary(id))) => Some(id),
            _ => None,
        };
        let mut blobs: Vec<_> = there.iter().filter_map(blob_of).collect();
        drop(there);
        let begun: u64 = blobs.iter().map(|id| id.length()).sum();
        if begun != chunk.offset {
            let message =
                format!("the part begins at {}, but {begun} bytes are there", chunk.offset);
            return Err(Failure::bad_request(message));
        }
        let blob = store_file(&mut self.session, upload.file.reopen()?, None)?;
        blobs.push(blob);
        let end = begun + blob.length();
        let is_last = chunk.is_completed || chunk.length == Some(end);
        if chunk.length.is_some_and(|length| length < end) {
            return Err(Failure::bad_request("the parts are longer than `@Length` says"));
        }
        if !is_last {
            let part = Subtree::new(format!("{begun}"), "nt:unstructured")
                .with("jcr:data", Value::Binary(blob));
            self.session.put(&parts.child(&part.name)?, part)?;
            self.done.changes.push(("modified", vec![path.to_string()]));
            return Ok(());
        }
        let repository = self.session.repository().clone();
        let mut whole: Box<dyn Read> = Box::new(std::io::empty());
        for id in blobs {
            let content = repository.blobs().open(&id).map_err(tympan_content::Error::from)?;
            let content = content.ok_or(tympan_content::Error::BlobMissing(id))?;
            whole = Box::new(whole.chain(content.into_reader()));
        }
        // The parts stay as they are if they are not what they should be together.
        let named = digest.map(|digest| BlobId::new(digest, end));
        let blob = store(&mut self.session, &mut whole, named)?;
        self.session.remove(path)?;
        let resource = self.described(blob, upload)?;
        self.put_file(path, resource, hint)
    }

    /// Stores the bytes of an upload and describes them.
    fn resource(&mut self, upload: &Upload, digest: Option<Sha256>) -> Result<Subtree> {
        let blob = store_file(&mut self.session, upload.file.reopen()?, digest)?;
        self.described(blob, upload)
    }

    fn described(&self, blob: BlobId, upload: &Upload) -> Result<Subtree> {
        Ok(Subtree::new(JCR_CONTENT, "nt:resource")
            .with("jcr:data", Value::Binary(blob))
            .with("jcr:mimeType", Property::text(media_type_of(upload)?))
            .with("jcr:lastModified", Value::Date(Date::from_system_time(self.now)))
            .with("jcr:lastModifiedBy", Property::text(self.user)))
    }

    /// Stores uploads as assets, as AEM's `createasset` does.
    fn create_assets(&mut self, path: &str, fields: &Fields) -> Result<()> {
        let snapshot = self.session.snapshot()?;
        let folder = existing(&snapshot, path)?;
        if fields.files.is_empty() {
            return Err(Failure::bad_request("no file was sent"));
        }
        for (_, upload) in &fields.files {
            let path = folder.child(&upload.name)?;
            let original = self.resource(upload, None)?;
            let length = upload.file.as_file().metadata()?.len();
            let rendition = Subtree::new("original", "nt:file").with_child(original);
            let metadata = Subtree::new("metadata", "nt:unstructured")
                .with("dc:format", Property::text(media_type_of(upload)?))
                .with("dam:size", Value::Long(i64::try_from(length).unwrap_or(i64::MAX)));
            let content = Subtree::new(JCR_CONTENT, "dam:AssetContent")
                .with("jcr:lastModified", Value::Date(Date::from_system_time(self.now)))
                .with("jcr:lastModifiedBy", Property::text(self.user))
                .with_child(metadata)
                .with_child(Subtree::new("renditions", "nt:folder").with_child(rendition));
            self.session
                .put(&path, Subtree::new(&*upload.name, "dam:Asset").with_child(content))?;
            path.as_str().clone_into(&mut self.done.path);
            self.done.changes.push(("created", vec![path.to_string()]));
        }
        self.done.is_create = true;
        Ok(())
    }

    /// Notes on each page whose content changed who changed it and when.
    fn touch_pages(&mut self) -> Result<()> {
        // What a move or copy carried along is unchanged in itself.
        let changes = self.done.changes.iter();
        let changes = changes.filter(|(word, _)| !matches!(*word, "moved" | "copied"));
        let paths = changes.filter_map(|(_, paths)| paths.first().cloned());
        touch_pages(&mut self.session, paths.collect::<Vec<_>>(), self.user, self.now)
    }
}

/// Returns the status that a nop is told to answer with.
fn nop_status(fields: &Fields) -> Result<Option<StatusCode>> {
    let Some(text) = fields.command(":nopstatus") else { return Ok(None) };
    let status = text.parse().ok().filter(|number| (100..600).contains(number));
    let status = status.and_then(|number: u16| StatusCode::from_u16(number).ok());
    // Sling takes 100 to 999 and falls back to 200; a client cannot be sent what is no final answer.
    Ok(status.filter(|status| !status.is_informational()))
}

fn commands_order(fields: &Fields) -> Option<&str> {
    fields.command(":order").filter(|order| !order.is_empty())
}

/// Returns what the sender calls the file's type, or what its name or its bytes say.
fn media_type_of(upload: &Upload) -> Result<String> {
    Ok(media_type(upload.media_type.as_deref(), &upload.name, upload.file.as_file())?)
}

/// Adds and removes values: `+v` adds `v` unless it is there, `-v` removes every `v`.
fn patched(mut values: Vec<Value>, value_type: ValueType, steps: &[String]) -> Result<Property> {
    for step in steps {
        if let Some(text) = step.strip_prefix('+') {
            let value = read_value(value_type, text)?;
            if !values.contains(&value) {
                values.push(value);
            }
        } else if let Some(text) = step.strip_prefix('-') {
            let value = read_value(value_type, text)?;
            values.retain(|one| *one != value);
        }
    }
    Ok(Property::List(value_type, values))
}

/// Reads a value; dates in all the forms that Sling takes.
fn read_value(value_type: ValueType, text: &str) -> Result<Value> {
    if value_type != ValueType::Date {
        return Ok(Value::parse(value_type, text)?);
    }
    Ok(Value::Date(Date::parse_lenient(text)?))
}

/// Makes a node name of a text by Sling's filter: lower case, others than letters and digits to `_`, at most 20.
fn filter_name(hint: &str) -> String {
    let mut name = String::new();
    for character in hint.trim().to_lowercase().chars() {
        let character = if character.is_ascii_lowercase() || character.is_ascii_digit() {
            character
        } else {
            '_'
        };
        if name.is_empty() && character.is_ascii_digit() {
            name.push('_');
        }
        if character != '_' || !name.ends_with('_') {
            name.push(character);
        }
        if name.len() >= 20 {
            break;
        }
    }
    name.truncate(20);
    if name == "_" { String::new() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_slings_filter() {
        for (hint, expected) in [
            ("Hello World", "hello_world"),
            ("  A -- B  ", "a_b"),
            ("2026 plans", "_2026_plans"),
            ("ÄÖÜ", ""),
            ("a very long title that goes on", "a_very_long_title_th"),
        ] {
            assert_eq!(filter_name(hint), expected, "{hint}");
        }
    }

    #[test]
    fn selectors_and_extension_are_cut() {
        for (path, expected) in [
            ("/a/b.html", "/a/b"),
            ("/a/b.x.y.html", "/a/b"),
            ("/a.b/c", "/a.b/c"),
            ("/a/.hidden", "/a/.hidden"),
        ] {
            assert_eq!(cut(path), expected);
        }
    }

    #[test]
    fn patches_add_and_remove() {
        let start = vec![Value::String("a".into()), Value::String("b".into())];
        let steps = ["+c", "+a", "-b", "ignored"].map(str::to_owned);
        let expected = Property::parse_list(ValueType::String, ["a", "c"]).unwrap();
        assert_eq!(patched(start, ValueType::String, &steps).unwrap(), expected);
    }
}
