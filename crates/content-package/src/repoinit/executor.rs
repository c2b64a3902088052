//! Carries out statements of repository initialization in a session.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tympan_content::node_type::write_cnd;
use tympan_content::{
    AccountKind, Error as ContentError, MIXIN_TYPES, NodePath, Privileges, Property, Session,
    Subtree, Value, ValueType, is_restriction_property,
};

use super::policy_editor::{PolicyKind, PolicyLocation, add_policy_entry, remove_policy_entries};
use super::statement::{
    EntryTemplate, InitialNode, PolicyTarget, PropertyAssignment, RepoinitOperation, RepoinitPath,
};
use super::statement_parser::parse_repoinit;
use crate::{Error, Result};

/// What became of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoinitOutcome {
    /// The line in the script, counted from 1.
    pub line: u32,
    /// The statement; of a block, its head and one line.
    pub statement: String,
    /// Whether it was carried out.
    pub result: RepoinitResult,
    /// Why it was skipped, or which part of it was.
    pub note: Option<String>,
}

/// Whether a statement was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepoinitResult {
    /// It changed content.
    Changed,
    /// Everything was as it asks already.
    Unchanged,
    /// It was not carried out.
    Skipped,
}

/// Principals that need no account.
const BUILT_IN_PRINCIPALS: [&str; 2] = ["everyone", "anonymous"];
/// Properties that a script does not set: they make a node what it is, or are the system's.
const PROTECTED_PROPERTIES: [&str; 3] = ["jcr:primaryType", "jcr:mixinTypes", "jcr:uuid"];
const USERS_PATH: &str = "/home/users";
const GROUPS_PATH: &str = "/home/groups";

/// Carries out a script, as pending edits of a session that sees everything. The caller commits if the session has
/// changes.
///
/// # Errors
/// If content cannot be read or written. A statement that content refuses is skipped.
pub fn run_repoinit(session: &mut Session, text: &str) -> Result<Vec<RepoinitOutcome>> {
    let mut executor = RepoinitExecutor { session, created_accounts: BTreeMap::new() };
    let mut outcomes = Vec::new();
    for statement in parse_repoinit(text) {
        let mut progress = StatementProgress::default();
        let done = executor.execute(&statement.operation, &mut progress);
        if let Err(error) = done {
            progress.notes.push(refusal(error)?);
        }
        let result = match (progress.is_changed, progress.is_met) {
            (true, _) => RepoinitResult::Changed,
            (false, true) => RepoinitResult::Unchanged,
            (false, false) => RepoinitResult::Skipped,
        };
        let note = (!progress.notes.is_empty()).then(|| progress.notes.join("; "));
        let (line, statement) = (statement.line, statement.text);
        outcomes.push(RepoinitOutcome { line, statement, result, note });
    }
    Ok(outcomes)
}

/// Returns the reason why content refuses a statement.
///
/// # Errors
/// The error, if it has another cause.
fn refusal(error: Error) -> Result<String> {
    use ContentError::{
        ConstraintViolations, InvalidEdit, InvalidName, InvalidNamespace, InvalidNodeTypes,
        NodeExists, NodeMissing, ValueFormat,
    };
    match error {
        Error::Content(
            error @ (InvalidEdit { .. }
            | InvalidName { .. }
            | InvalidNamespace { .. }
            | InvalidNodeTypes(_)
            | ConstraintViolations(_)
            | NodeExists(_)
            | NodeMissing(_)
            | ValueFormat { .. }),
        ) => Ok(error.to_string()),
        error => Err(error),
    }
}

/// The progress of one statement.
#[derive(Debug, Default)]
struct StatementProgress {
    is_changed: bool,
    /// True if at least a part of the statement was carried out, or was true before.
    is_met: bool,
    notes: Vec<String>,
}

impl StatementProgress {
    fn record(&mut self, is_changed: bool) {
        self.is_met = true;
        self.is_changed |= is_changed;
    }

    fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

struct RepoinitExecutor<'a> {
    session: &'a mut Session,
    /// The accounts that the script created, which the repository does not know before the commit.
    created_accounts: BTreeMap<String, NodePath>,
}

impl RepoinitExecutor<'_> {
    fn execute(
        &mut self,
        operation: &RepoinitOperation,
        progress: &mut StatementProgress,
    ) -> Result<()> {
        match operation {
            RepoinitOperation::CreateNodes(nodes) => {
                nodes.iter().try_for_each(|node| self.create_node(node, progress))
            }
            RepoinitOperation::CreateAccounts { kind, names, folder, has_password } => {
                for name in names {
                    self.create_account(*kind, name, folder.as_deref(), progress)?;
                }
                if *has_password && progress.is_changed {
                    progress
                        .note("the password is not taken over; set one with `tympan user passwd`");
                }
                Ok(())
            }
            RepoinitOperation::AddMembers { members, group } => {
                self.add_members(members, group, progress)
            }
            RepoinitOperation::DisableUser { name, reason } => {
                self.disable_user(name, reason, progress)
            }
            RepoinitOperation::AddEntry { target, entry } => {
                self.add_entries(target, entry, progress)
            }
            RepoinitOperation::RemoveEntries(target) => {
                for principal in &target.principals {
                    for location in self.policy_locations(target, principal, progress)? {
                        let principals = std::slice::from_ref(principal);
                        progress.record(remove_policy_entries(
                            self.session,
                            &location,
                            principals,
                        )?);
                    }
                }
                Ok(())
            }
            RepoinitOperation::SetProperty { targets, property } => {
                targets.iter().try_for_each(|target| self.set_property(target, property, progress))
            }
            RepoinitOperation::RegisterNodeTypes(cnd) => {
                let before = self.registered_types()?;
                self.session.types().install_types(cnd)?;
                progress.record(self.registered_types()? != before);
                Ok(())
            }
            RepoinitOperation::RegisterNamespace { prefix, uri } => {
                let before = self.registered_types()?;
                self.session.types().install_namespace(prefix, uri)?;
                progress.record(self.registered_types()? != before);
                Ok(())
            }
            RepoinitOperation::Skip(reason) => {
                progress.note(reason.as_str());
                Ok(())
            }
        }
    }

    /// Returns the node types and namespaces as CND, pending edits included.
    fn registered_types(&mut self) -> Result<String> {
        let snapshot = self.session.snapshot()?;
        let types = snapshot.node_types()?;
        let definitions: Vec<_> = types.custom_definitions().cloned().collect();
        let namespaces = snapshot.namespaces()?;
        let namespaces =
            namespaces.iter().map(|(prefix, uri)| (prefix.to_owned(), uri.to_owned())).collect();
        Ok(write_cnd(&definitions, &namespaces))
    }

    fn create_node(&mut self, node: &InitialNode, progress: &mut StatementProgress) -> Result<()> {
        let path = NodePath::new(&node.path)?;
        if self.session.node(&path)?.is_some() {
            progress.record(false);
            return Ok(());
        }
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let parent_type = self.session.node(&parent)?.map(|node| node.primary_type().to_owned());
        let kind = match (&node.primary_type, parent_type.as_deref()) {
            (Some(kind), _) => kind.as_str(),
            (None, Some(kind @ ("nt:folder" | "sling:Folder" | "sling:OrderedFolder"))) => kind,
            (None, _) => "nt:unstructured",
        };
        let mut tree = Subtree::new(path.name(), kind);
        if !node.mixins.is_empty() {
            let mixins = node.mixins.iter().map(String::as_str);
            tree.properties
                .insert(MIXIN_TYPES.to_owned(), Property::parse_list(ValueType::Name, mixins)?);
        }
        self.session.put_node(&path, tree)?;
        progress.record(true);
        Ok(())
    }

    fn create_account(
        &mut self,
        kind: AccountKind,
        name: &str,
        folder: Option<&str>,
        progress: &mut StatementProgress,
    ) -> Result<()> {
        if self.find_account(name)?.is_some() {
            progress.record(false);
            return Ok(());
        }
        let root = if kind == AccountKind::Group { GROUPS_PATH } else { USERS_PATH };
        let default = if kind == AccountKind::SystemUser { "system" } else { "" };
        let folder = folder.unwrap_or(default);
        let folder = folder.strip_prefix(root).unwrap_or(folder);
        let path = self.session.accounts().add_account_in(kind, folder, name)?;
        self.created_accounts.insert(name.to_owned(), path);
        progress.record(true);
        Ok(())
    }

    /// Returns the path of an account, if it exists.
    fn find_account(&mut self, name: &str) -> Result<Option<NodePath>> {
        if let Some(path) = self.created_accounts.get(name) {
            return Ok(Some(path.clone()));
        }
        match self.session.accounts().account_path(name) {
            Ok(path) => Ok(Some(path)),
            Err(ContentError::NodeMissing(_) | ContentError::InvalidName { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn add_members(
        &mut self,
        members: &[String],
        group: &str,
        progress: &mut StatementProgress,
    ) -> Result<()> {
        let Some(group_path) = self.find_account(group)? else {
            progress.note(format!("there is no group `{group}`"));
            return Ok(());
        };
        for member in members {
            match self.find_account(member)? {
                Some(path) => {
                    let is_new = self.session.accounts().add_member_at(&group_path, &path)?;
                    progress.record(is_new);
                }
                None => progress.note(format!("there is no user or group `{member}`")),
            }
        }
        Ok(())
    }

    fn disable_user(
        &mut self,
        name: &str,
        reason: &str,
        progress: &mut StatementProgress,
    ) -> Result<()> {
        let Some(path) = self.find_account(name)? else {
            progress.note(format!("there is no user `{name}`"));
            return Ok(());
        };
        let stored = self.session.read_property(&path, "rep:disabled")?;
        if stored.is_none() {
            self.session.set_property(&path, "rep:disabled", Property::text(reason))?;
        }
        progress.record(stored.is_none());
        Ok(())
    }

    fn add_entries(
        &mut self,
        target: &PolicyTarget,
        entry: &EntryTemplate,
        progress: &mut StatementProgress,
    ) -> Result<()> {
        let (privileges, unknown): (Vec<String>, Vec<String>) =
            entry.privileges.iter().cloned().partition(|name| Privileges::find(name).is_some());
        for name in unknown {
            progress.note(format!("there is no privilege `{name}`"));
        }
        let unknown = entry.restrictions.iter().find(|(name, _)| !is_restriction_property(name));
        if let Some((name, _)) = unknown {
            progress.note(format!("there is no restriction `{name}`"));
            return Ok(());
        }
        if privileges.is_empty() {
            return Ok(());
        }
        if target.is_principal_based && !entry.is_grant {
            progress.note("a policy of a service user only allows");
            return Ok(());
        }
        let entry = EntryTemplate { privileges, ..entry.clone() };
        for principal in &target.principals {
            let is_known = BUILT_IN_PRINCIPALS.contains(&principal.as_str())
                || self.find_account(principal)?.is_some();
            if !is_known {
                progress.note(format!("there is no user or group `{principal}`"));
                continue;
            }
            for location in self.policy_locations(target, principal, progress)? {
                progress.record(add_policy_entry(self.session, &location, principal, &entry)?);
            }
        }
        Ok(())
    }

    /// Returns the policies that a line changes for one principal.
    fn policy_locations(
        &mut self,
        target: &PolicyTarget,
        principal: &str,
        progress: &mut StatementProgress,
    ) -> Result<Vec<PolicyLocation>> {
        let mut locations = Vec::new();
        for path in &target.paths {
            if target.is_principal_based {
                let account = self.find_account(principal)?;
                let account_node = match &account {
                    Some(path) => self.session.node(path)?,
                    None => None,
                };
                let is_service_user =
                    account_node.is_some_and(|node| node.primary_type() == "rep:SystemUser");
                let Some(owner) = account.filter(|_| is_service_user) else {
                    progress.note(format!("`{principal}` is not a service user"));
                    continue;
                };
                let effective = match path {
                    RepoinitPath::Repository => String::new(),
                    path => match self.resolve_path(path, progress)? {
                        Some(path) => path.as_str().to_owned(),
                        None => continue,
                    },
                };
                locations.push(PolicyLocation { owner, kind: PolicyKind::Principal(effective) });
            } else if *path == RepoinitPath::Repository {
                locations
                    .push(PolicyLocation { owner: NodePath::root(), kind: PolicyKind::Repository });
            } else if let Some(owner) = self.resolve_path(path, progress)? {
                locations.push(PolicyLocation { owner, kind: PolicyKind::Node });
            }
        }
        Ok(locations)
    }

    /// Returns the path of an existing node.
    fn resolve_path(
        &mut self,
        path: &RepoinitPath,
        progress: &mut StatementProgress,
    ) -> Result<Option<NodePath>> {
        let resolved = match path {
            RepoinitPath::Node(path) => Some(NodePath::new(path)?),
            RepoinitPath::Account(name, rest) => match self.find_account(name)? {
                Some(account) => Some(NodePath::new(&format!("{account}{rest}"))?),
                None => None,
            },
            RepoinitPath::Repository => None,
        };
        if let Some(node_path) = resolved
            && self.session.node(&node_path)?.is_some()
        {
            return Ok(Some(node_path));
        }
        progress.note(format!("there is no node `{path}`"));
        Ok(None)
    }

    fn set_property(
        &mut self,
        target: &RepoinitPath,
        assignment: &PropertyAssignment,
        progress: &mut StatementProgress,
    ) -> Result<()> {
        let PropertyAssignment { name, type_name, is_list, values, is_default } = assignment;
        if PROTECTED_PROPERTIES.contains(&name.as_str()) || name.starts_with("rep:") {
            progress.note(format!("`{name}` cannot be set"));
            return Ok(());
        }
        let Some(value_type) = ValueType::find(type_name) else {
            progress.note(format!("there is no type `{type_name}`"));
            return Ok(());
        };
        let Some(path) = self.resolve_path(target, progress)? else { return Ok(()) };
        let texts = values.iter().map(String::as_str);
        let property = match values.first() {
            Some(value) if !is_list => Property::Single(Value::parse(value_type, value)?),
            _ => Property::parse_list(value_type, texts)?,
        };
        let stored = self.session.read_property(&path, name)?;
        let is_met = stored.as_ref().is_some_and(|stored| *is_default || *stored == property);
        if !is_met {
            self.session.set_property(&path, name, property)?;
        }
        progress.record(!is_met);
        Ok(())
    }
}
