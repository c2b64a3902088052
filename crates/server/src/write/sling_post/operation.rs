//! Execution of a POST in one session and one commit.
//!
//! This module contains the operations on nodes. `target` resolves the target nodes, `property` writes values, `upload`
//! files and assets, `version` checks in and out.

mod property;
mod target;
mod upload;
mod version;

use std::io::BufReader;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use tympan_content::{
    Error, JcrDate, NodePath, PRIMARY_TYPE, Referrer, Session, SiblingPosition, Snapshot, Viewer,
};
use tympan_content_package::PackageLimits;

use self::target::{cut_selectors, find_url_node};
pub(crate) use self::target::{operation_targets, operation_targets_or_missing};
use crate::Instance;
use crate::api::WriteCondition;
use crate::failure::{RequestFailure, Result};
use crate::query::budget::ReadBudget;
use crate::write::bulk_edit_limits::viewer_bulk_edit_budget;
use crate::write::incoming_blob::require_write_access;
use crate::write::package_limits::viewer_package_limits;
use crate::write::page_modification::record_page_modification;
use crate::write::property_protection::{RelocationKind, RequestedProperties};
use crate::write::sling_post::form_field::PostFields;
use crate::write::sling_post::import::{self, ImportFormat, ImportMergePolicy};
use crate::write::sling_post::{PostOutcome, duplicate_upload};

/// The keyword for a reference that a move did not rewrite, with the reason.
const SKIPPED_REFERENCE_KEYWORD: &str = "kept";
/// Maximum number of attempts to choose a name for a new node, if concurrent requests use the same names.
const MAX_NAME_ATTEMPTS: usize = 50;
/// Maximum delay between attempts, in milliseconds; concurrent commits become visible only once they are stored.
const MAX_RETRY_DELAY_MS: u64 = 20;

/// Runs all operations except activation, if the precondition on the requested node holds.
pub(crate) fn run_post_operation(
    instance: &Instance,
    operation: &str,
    path: &str,
    fields: &PostFields,
    viewer: &Viewer,
    condition: &WriteCondition,
) -> Result<PostOutcome> {
    let mut rejected_paths = Vec::new();
    while rejected_paths.len() < MAX_NAME_ATTEMPTS {
        match attempt_post(instance, operation, path, fields, viewer, condition, &rejected_paths)? {
            PostAttempt::Completed(done) => return Ok(done),
            PostAttempt::Conflict(name) => rejected_paths.push(name),
        }
        // The next name may be free immediately; if all of a document is in one chunk, other commits have to finish
        // first.
        let pause_ms = (rejected_paths.len() as u64 - 1).min(MAX_RETRY_DELAY_MS);
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    let message =
        "other requests took every name that was tried; set a name with `:name`, or try again";
    Err(RequestFailure::new(StatusCode::CONFLICT, message))
}

/// The result of an attempt.
enum PostAttempt {
    Completed(PostOutcome),
    /// A concurrent request created a node with the name chosen for the new one, or changed the target document.
    Conflict(NodePath),
}

/// Runs the request once. Names in `rejected_paths` are not chosen.
fn attempt_post(
    instance: &Instance,
    operation: &str,
    path: &str,
    fields: &PostFields,
    viewer: &Viewer,
    condition: &WriteCondition,
    rejected_paths: &[NodePath],
) -> Result<PostAttempt> {
    let mut session = instance.repository.session_as(viewer)?;
    session.limit_bulk_edits(viewer_bulk_edit_budget(instance, viewer)?);
    let snapshot = session.snapshot()?;
    if *condition != WriteCondition::None {
        let requested_path = NodePath::new(path)?;
        condition.check_document(instance, session.node(&requested_path)?.as_ref())?;
        session.expect_unchanged(&requested_path)?;
    }
    let mut work = PostOperation {
        initial_snapshot: snapshot.clone(),
        session,
        requested_properties: RequestedProperties::default(),
        user: viewer.name(),
        now: SystemTime::now(),
        rejected_paths,
        chosen_path: None,
        outcome: PostOutcome::default(),
    };
    let target_budget = ReadBudget::for_memory(instance.query_engine_for(viewer)?.limits());
    match operation {
        "" | "modify" => work.modify_node(path, fields)?,
        "delete" => {
            for path in operation_targets(&snapshot, path, fields, target_budget)? {
                work.delete_node(&path)?;
            }
        }
        "move" | "copy" => {
            let targets = operation_targets(&snapshot, path, fields, target_budget)?;
            let is_folder = fields.command_value(":dest").is_some_and(|dest| dest.ends_with('/'));
            if fields.has_command(":applyTo") && !is_folder {
                let message = "moving or copying several nodes requires a destination folder: end `:dest` \
                    with a slash";
                return Err(RequestFailure::bad_request(message));
            }
            for path in targets {
                work.relocate_node(operation, &path, fields)?;
            }
        }
        "createasset" => {
            work.create_assets(path, fields)?;
            if duplicate_upload::is_detection_enabled(instance) {
                let folder = find_url_node(&snapshot, path)?;
                work.outcome.changes.extend(duplicate_upload::find_duplicates(
                    instance, &snapshot, &folder, fields,
                )?);
            }
        }
        "import" => {
            let limits = viewer_package_limits(instance, viewer)?;
            work.import_content(path, fields, &limits)?;
        }
        "checkin" | "checkout" | "restore" => {
            for path in operation_targets(&snapshot, path, fields, target_budget)? {
                work.change_version(operation, &path, fields)?;
            }
        }
        "nop" => {
            cut_selectors(path).clone_into(&mut work.outcome.path);
            work.outcome.status = nop_response_status(fields)?;
        }
        other => {
            return Err(RequestFailure::bad_request(format!(
                "`{other}` is not an operation; use delete, move, copy, import, nop, checkin, checkout, \
                 restore or activate"
            )));
        }
    }
    work.requested_properties.check_all(&work.initial_snapshot, &mut work.session)?;
    work.record_page_changes()?;
    let message = if operation.is_empty() { "modify" } else { operation };
    if let Some(chosen) = &work.chosen_path {
        work.session.expect_new(chosen)?;
    }
    let committed = work.session.commit(&format!("{message} {}", work.outcome.path), work.now);
    match (committed, work.chosen_path) {
        // A precondition that no longer holds is not retried.
        (Err(Error::DocumentChanged(_)), Some(chosen)) if *condition == WriteCondition::None => {
            Ok(PostAttempt::Conflict(chosen))
        }
        (committed, _) => {
            committed?;
            Ok(PostAttempt::Completed(work.outcome))
        }
    }
}

/// The session of one request and its results.
struct PostOperation<'a> {
    session: Session,
    /// The state before the request.
    initial_snapshot: Snapshot,
    /// The properties that the request names.
    requested_properties: RequestedProperties,
    user: &'a str,
    now: SystemTime,
    rejected_paths: &'a [NodePath],
    /// The path of the new node, if its name was chosen here.
    chosen_path: Option<NodePath>,
    outcome: PostOutcome,
}

impl PostOperation<'_> {
    /// Creates or changes a node.
    fn modify_node(&mut self, path: &str, fields: &PostFields) -> Result<()> {
        let (path, is_new) = self.resolve_target(path, fields)?;
        path.as_str().clone_into(&mut self.outcome.path);
        if is_new {
            let primary_type = fields.property_value(PRIMARY_TYPE).map(str::to_owned);
            self.create_with_parents(&path, primary_type.as_deref())?;
            self.outcome.is_created = true;
        }
        if !is_new && fields.command_value(":autoCheckout") == Some("true") {
            self.check_out(&path)?;
        }
        for (name, spec) in &fields.properties {
            if spec.hints.contains_key("Delete") {
                self.delete_item(&path, name)?;
            }
        }
        for (hint, is_move) in [("MoveFrom", true), ("CopyFrom", false)] {
            for (name, spec) in &fields.properties {
                if let Some(from) = spec.hint_value(hint) {
                    self.transfer_item(&path.resolve(from)?, &path.resolve(name)?, is_move)?;
                }
            }
        }
        for (name, spec) in &fields.properties {
            self.write_property(&path, name, spec, fields.source_values_of(spec))?;
        }
        for (name, upload) in fields.files.iter().filter(|(name, _)| !name.starts_with(':')) {
            self.store_upload(&path, name, upload, fields)?;
        }
        if let Some(order) = order_command(fields) {
            self.order_node(&path, order)?;
        }
        if fields.command_value(":checkinNewVersionableNodes") == Some("true") {
            self.check_in_created()?;
        }
        Ok(())
    }

    /// Imports structured content below a node, or at it if no name is given.
    fn import_content(
        &mut self,
        path: &str,
        fields: &PostFields,
        limits: &PackageLimits,
    ) -> Result<()> {
        let kind = fields.command_value(":contentType").unwrap_or_default();
        let form = ImportFormat::from_content_type(kind).ok_or_else(|| {
            let message =
                format!("`:contentType` must be json, xml, jcr.xml, jar or zip, not `{kind}`");
            RequestFailure::bad_request(message)
        })?;
        let target_path =
            NodePath::new(cut_selectors(path.trim_end_matches("/*").trim_end_matches('/')))?;
        require_write_access(&self.session.snapshot()?, &target_path)?;
        let now = JcrDate::from_system_time(self.now);
        let upload = fields.files.iter().find(|(name, _)| name == ":contentFile");
        let tree = match (upload, fields.command_value(":content")) {
            (Some((_, upload)), _) => import::import_subtree(
                &mut self.session,
                form,
                BufReader::new(upload.file.reopen()?),
                now,
                limits,
            )?,
            (None, Some(content)) => import::import_subtree(
                &mut self.session,
                form,
                import::text_reader(content),
                now,
                limits,
            )?,
            (None, None) => {
                return Err(RequestFailure::bad_request("`:content` or `:contentFile` is missing"));
            }
        };
        let path = self.import_path(path, fields, &tree.name)?;
        refuse_service_address(&path)?;
        path.as_str().clone_into(&mut self.outcome.path);
        if let Some(parent) = path.parent()
            && !self.session.has_node(&parent)?
        {
            self.create_with_parents(&parent, None)?;
        }
        self.outcome.is_created = !self.session.has_node(&path)?;
        if !self.outcome.is_created && fields.command_value(":autoCheckout") == Some("true") {
            self.check_out(&path)?;
        }
        let is_set = |name: &str| fields.command_value(name) == Some("true");
        let merging = ImportMergePolicy {
            replaces_nodes: is_set(":replace"),
            replaces_properties: is_set(":replaceProperties"),
        };
        // As in Sling, properties that only the repository sets are skipped.
        let mut named = RequestedProperties::default();
        named.add_tree(&path, &tree, 0);
        let mut created = Vec::new();
        import::put_imported_tree(&mut self.session, &path, tree, merging, &mut created)?;
        named.revert_protected(&self.initial_snapshot, &mut self.session)?;
        named.check_placements(&self.initial_snapshot, &mut self.session)?;
        self.outcome.changes.extend(created.into_iter().map(|path| ("created", vec![path])));
        if is_set(":checkin") { self.check_in_created() } else { Ok(()) }
    }

    /// Creates a node and its missing parents.
    fn create_with_parents(&mut self, path: &NodePath, primary_type: Option<&str>) -> Result<()> {
        refuse_service_address(path)?;
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let parent_type = match self.session.read_primary_type(&parent)? {
            Some(primary_type) => primary_type,
            None => {
                self.create_with_parents(&parent, None)?;
                self.outcome.changes.push(("created", vec![parent.to_string()]));
                self.session.read_primary_type(&parent)?.unwrap_or_default()
            }
        };
        let default_type = match parent_type.as_str() {
            "nt:folder" | "sling:Folder" | "sling:OrderedFolder" => parent_type.as_str(),
            "rep:root" => "sling:Folder",
            _ => "nt:unstructured",
        };
        self.session.add_node(path, primary_type.unwrap_or(default_type))?;
        self.outcome.changes.push(("created", vec![path.to_string()]));
        Ok(())
    }

    fn delete_item(&mut self, base: &NodePath, name: &str) -> Result<()> {
        let path = base.resolve(name)?;
        if self.session.has_node(&path)? {
            self.session.remove_node(&path)?;
            self.outcome.changes.push(("deleted", vec![path.to_string()]));
            return Ok(());
        }
        let (Some(parent), name) = (path.parent(), path.name()) else { return Ok(()) };
        if self.session.has_node(&parent)? && self.session.remove_property(&parent, name)? {
            self.requested_properties.add(&parent, name, None, 0);
            self.outcome.changes.push(("deleted", vec![path.to_string()]));
        }
        Ok(())
    }

    /// Moves or copies a node or property.
    fn transfer_item(&mut self, from: &NodePath, to: &NodePath, is_move: bool) -> Result<()> {
        if self.session.has_node(from)? {
            refuse_service_address(to)?;
            if self.session.has_node(to)? {
                self.session.remove_node(to)?;
            }
            let kind = if is_move { RelocationKind::Move } else { RelocationKind::Copy };
            match kind {
                RelocationKind::Move => self.session.move_node(from, to)?,
                RelocationKind::Copy => self.session.copy_node(from, to)?,
            }
            self.requested_properties.relocate(from, to, kind, 0);
        } else {
            let missing = || RequestFailure::not_found(from.as_str());
            let parent = from.parent().ok_or_else(missing)?;
            let property = self.session.read_property(&parent, from.name())?.ok_or_else(missing)?;
            let target = to.parent().ok_or_else(missing)?;
            self.requested_properties.add(&target, to.name(), Some(property.clone()), 0);
            self.session.set_property(&target, to.name(), property)?;
            if is_move {
                self.requested_properties.add(&parent, from.name(), None, 0);
                self.session.remove_property(&parent, from.name())?;
            }
        }
        let keyword = if is_move { "moved" } else { "copied" };
        self.outcome.changes.push((keyword, vec![from.to_string(), to.to_string()]));
        Ok(())
    }

    fn delete_node(&mut self, path: &str) -> Result<()> {
        path.clone_into(&mut self.outcome.path);
        self.session.remove_node(&NodePath::new(path)?)?;
        self.outcome.changes.push(("deleted", vec![path.to_owned()]));
        Ok(())
    }

    /// Moves or copies a node to `:dest`.
    fn relocate_node(&mut self, operation: &str, path: &str, fields: &PostFields) -> Result<()> {
        let from = NodePath::new(path)?;
        let dest = fields
            .command_value(":dest")
            .ok_or_else(|| RequestFailure::bad_request("`:dest` is missing"))?;
        let parent = from.parent().unwrap_or_else(NodePath::root);
        let to = match dest.strip_suffix('/') {
            Some(folder) => parent.resolve(folder)?.child(from.name())?,
            None => parent.resolve(dest)?,
        };
        refuse_service_address(&to)?;
        if self.session.has_node(&to)? {
            if fields.command_value(":replace") != Some("true") {
                return Err(tympan_content::Error::NodeExists(to).into());
            }
            self.session.remove_node(&to)?;
        }
        let kind = if operation == "move" { RelocationKind::Move } else { RelocationKind::Copy };
        match kind {
            RelocationKind::Move => self.session.move_node(&from, &to)?,
            RelocationKind::Copy => self.session.copy_node(&from, &to)?,
        }
        self.requested_properties.relocate(&from, &to, kind, 0);
        to.as_str().clone_into(&mut self.outcome.path);
        let keyword = if kind == RelocationKind::Move { "moved" } else { "copied" };
        self.outcome.changes.push((keyword, vec![from.to_string(), to.to_string()]));
        if kind == RelocationKind::Move && fields.command_value(":rewrite") == Some("true") {
            self.rewrite_references(&from, &to)?;
        }
        if let Some(order) = order_command(fields) {
            self.order_node(&to, order)?;
        }
        Ok(())
    }

    /// Rewrites references in other nodes to the new path of a node.
    fn rewrite_references(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        let references = self.session.rewrite_references(from, to)?;
        let property_path =
            |referrer: &Referrer| format!("{}/{}", referrer.path, referrer.property);
        let rewritten = references.rewritten_referrers.iter();
        self.outcome
            .changes
            .extend(rewritten.map(|referrer| ("modified", vec![property_path(referrer)])));
        let skipped = references.skipped_references.iter();
        let skipped = skipped.map(|reference| {
            (
                SKIPPED_REFERENCE_KEYWORD,
                vec![property_path(&reference.referrer), reference.reason.to_owned()],
            )
        });
        self.outcome.changes.extend(skipped);
        Ok(())
    }

    fn order_node(&mut self, path: &NodePath, order: &str) -> Result<()> {
        let position = match order.split_once(' ') {
            None if order == "first" => SiblingPosition::First,
            None if order == "last" => SiblingPosition::Last,
            Some(("before", name)) => SiblingPosition::Before(name.trim().to_owned()),
            Some(("after", name)) => SiblingPosition::After(name.trim().to_owned()),
            _ => self.position_at_index(path, order)?,
        };
        self.session.reorder_node(path, &position)?;
        self.outcome.changes.push(("ordered", vec![path.to_string(), order.to_owned()]));
        Ok(())
    }

    /// Parses `:order=3`: the index among the siblings, counted from 0.
    fn position_at_index(&mut self, path: &NodePath, order: &str) -> Result<SiblingPosition> {
        let number: usize = order.parse().map_err(|_| {
            RequestFailure::bad_request(
                "`:order` must be first, last, before X, after X or a number",
            )
        })?;
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let siblings = match self.session.node(&parent)? {
            Some(node) => node.children()?,
            None => Vec::new(),
        };
        let sibling = siblings.iter().filter(|node| node.path() != path).nth(number);
        Ok(sibling
            .map_or(SiblingPosition::Last, |node| SiblingPosition::Before(node.name().to_owned())))
    }

    /// Records the user and time of a change on each page whose content changed.
    fn record_page_changes(&mut self) -> Result<()> {
        // Nodes that a move or copy carried along are unchanged in themselves.
        let changes = self.outcome.changes.iter();
        let changes = changes.filter(|(keyword, _)| {
            !matches!(*keyword, "moved" | "copied" | SKIPPED_REFERENCE_KEYWORD)
        });
        let paths = changes.filter_map(|(_, paths)| paths.first().cloned());
        record_page_modification(&mut self.session, paths.collect::<Vec<_>>(), self.user, self.now)
    }
}

/// Folders whose paths are used as URLs of services.
const SERVICE_FOLDERS: [&str; 7] = ["/bin", "/libs", "/system", "/mnt", "/crx", "/api", "/login"];

/// Refuses to create a node at the URL of a service: a form sent to a service that does not exist here, such as a
/// servlet of AEM, was not meant to become content. The JSON API and packages name the node path itself and may create
/// nodes there, for those who have the right.
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
            let message = format!("there is no service at `{path}`, and nothing is stored there");
            Err(RequestFailure::new(StatusCode::NOT_FOUND, message))
        }
        false => Ok(()),
    }
}

/// Returns the response status requested for a nop.
fn nop_response_status(fields: &PostFields) -> Result<Option<StatusCode>> {
    let Some(text) = fields.command_value(":nopstatus") else { return Ok(None) };
    let status = text.parse().ok().filter(|number| (100..600).contains(number));
    let status = status.and_then(|number: u16| StatusCode::from_u16(number).ok());
    // Sling accepts 100 to 999 and falls back to 200; informational statuses are no final response.
    Ok(status.filter(|status| !status.is_informational()))
}

fn order_command(fields: &PostFields) -> Option<&str> {
    fields.command_value(":order").filter(|order| !order.is_empty())
}
