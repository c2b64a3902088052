//! Carrying out a POST in one session and one commit.
//!
//! Here are the operations, and what they do with nodes. `target` finds which nodes are meant, `property` writes values,
//! `upload` files and assets, `version` checks in and out.

mod property;
mod target;
mod upload;
mod version;

use std::io::BufReader;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use tympan_content::{
    Date, Error, NodePath, PRIMARY_TYPE, Place, Referrer, Session, Snapshot, Viewer,
};

use self::target::{cut, existing};
pub(crate) use self::target::{targets, targets_of};
use crate::Instance;
use crate::api::Condition;
use crate::arrived::require_write;
use crate::failure::{Failure, Result};
use crate::post::fields::Fields;
use crate::post::import::{self, Form, Merging};
use crate::post::{Done, duplicate};
use crate::settable::{SetProperties, Way};
use crate::touch::touch_pages;

/// The word for a reference that a move left as it is, with the reason.
const KEPT: &str = "kept";
/// How often a name is chosen for a new node, where others take it at the same time.
const MOST_NAMES: usize = 50;
/// What others commit is not seen before it is stored.
const LONGEST_PAUSE_MS: u64 = 20;

/// Carries out everything but activation, if the condition on the node that is asked for holds.
pub(crate) fn carry_out(
    instance: &Instance,
    operation: &str,
    path: &str,
    fields: &Fields,
    by: (&Viewer, &Condition),
) -> Result<Done> {
    let mut taken = Vec::new();
    while taken.len() < MOST_NAMES {
        match attempt(instance, (operation, path), fields, by, &taken)? {
            Outcome::Done(done) => return Ok(done),
            Outcome::Taken(name) => taken.push(name),
        }
        // The next name may do at once; where all of a document stands in one place, others have to be through first.
        let pause_ms = (taken.len() as u64 - 1).min(LONGEST_PAUSE_MS);
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    let message = "others took each name that was chosen; say one with `:name`, or try again";
    Err(Failure::new(StatusCode::CONFLICT, message))
}

/// What became of a request.
enum Outcome {
    Done(Done),
    /// Somebody else made a node of the name that was chosen for the new one, or changed the document that it was for.
    Taken(NodePath),
}

/// Carries it out once. Names in `taken` are not chosen.
fn attempt(
    instance: &Instance,
    (operation, path): (&str, &str),
    fields: &Fields,
    (viewer, condition): (&Viewer, &Condition),
    taken: &[NodePath],
) -> Result<Outcome> {
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
        taken,
        chosen: None,
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
    if let Some(chosen) = &work.chosen {
        work.session.expect_new(chosen)?;
    }
    let committed = work.session.commit(&format!("{message} {}", work.done.path), work.now);
    match (committed, work.chosen) {
        // A condition that no longer holds is not tried again.
        (Err(Error::Stale(_)), Some(chosen)) if *condition == Condition::None => {
            Ok(Outcome::Taken(chosen))
        }
        (committed, _) => {
            committed?;
            Ok(Outcome::Done(work.done))
        }
    }
}

/// One request's session and what it has done.
struct Work<'a> {
    session: Session,
    /// The state before the request.
    begun: Snapshot,
    /// The properties that the request names.
    set: SetProperties,
    user: &'a str,
    now: SystemTime,
    taken: &'a [NodePath],
    /// The new node, where its name was chosen here.
    chosen: Option<NodePath>,
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
        for (name, spec) in &fields.properties {
            self.write_property(&path, name, spec, fields.source_of(spec))?;
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

    /// Imports structured content below a node, or at it if no name is given.
    fn import(&mut self, path: &str, fields: &Fields) -> Result<()> {
        let kind = fields.command(":contentType").unwrap_or_default();
        let form = Form::find(kind).ok_or_else(|| {
            let message = format!("`:contentType` is json, xml, jcr.xml, jar or zip, not `{kind}`");
            Failure::bad_request(message)
        })?;
        let place = NodePath::new(cut(path.trim_end_matches("/*").trim_end_matches('/')))?;
        require_write(&self.session.snapshot()?, &place)?;
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

    /// Creates a node with the parents that it lacks.
    fn create(&mut self, path: &NodePath, primary_type: Option<&str>) -> Result<()> {
        refuse_service_address(path)?;
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
        if way == Way::Move && fields.command(":rewrite") == Some("true") {
            self.rewrite_references(&from, &to)?;
        }
        if let Some(order) = commands_order(fields) {
            self.order(&to, order)?;
        }
        Ok(())
    }

    /// Lets references elsewhere mean the new path of a node.
    fn rewrite_references(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        let references = self.session.rewrite_references(from, to)?;
        let place = |referrer: &Referrer| format!("{}/{}", referrer.path, referrer.property);
        let rewritten = references.rewritten.iter();
        self.done.changes.extend(rewritten.map(|one| ("modified", vec![place(one)])));
        let kept = references.kept.iter();
        let kept = kept.map(|one| (KEPT, vec![place(&one.referrer), one.reason.to_owned()]));
        self.done.changes.extend(kept);
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

    /// Notes on each page whose content changed who changed it and when.
    fn touch_pages(&mut self) -> Result<()> {
        // What a move or copy carried along is unchanged in itself.
        let changes = self.done.changes.iter();
        let changes = changes.filter(|(word, _)| !matches!(*word, "moved" | "copied" | KEPT));
        let paths = changes.filter_map(|(_, paths)| paths.first().cloned());
        touch_pages(&mut self.session, paths.collect::<Vec<_>>(), self.user, self.now)
    }
}

/// The folders in whose place services of a server are addressed.
const SERVICE_FOLDERS: [&str; 5] = ["/bin", "/api", "/system", "/crx", "/login"];

/// Refuses to make a node where services are addressed: a form that was sent to one that is not here, such as a servlet of
/// AEM, was not meant to become content.
///
/// # Errors
/// Not found.
pub(crate) fn refuse_service_address(path: &NodePath) -> Result<()> {
    let is_service = SERVICE_FOLDERS.iter().any(|folder| {
        path.as_str()
            .strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('.'))
    });
    match is_service {
        true => {
            let message = format!("no service answers at `{path}`, and nothing is stored there");
            Err(Failure::new(StatusCode::NOT_FOUND, message))
        }
        false => Ok(()),
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
