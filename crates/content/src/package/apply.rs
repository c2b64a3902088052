//! Installing a package: how its nodes meet what is there.
//!
//! In: a package that was checked, and an [`InstallTarget`]. Out: the target changed, and a report.
//!
//! Invariants
//! * What no filter contains is never changed or removed; missing nodes above the roots of filters are created.
//! * A node is removed only with everything below it contained in a filter of mode replace.
//! * What the system itself keeps is not installed, and neither that, nor the stored packages, nor the administrator is
//!   removed because a package lacks them.
//! * Only what differs is written, so that the work is in proportion to the package and not to the target.
//!
//! On failure: the target holds a part of the package; the caller throws its uncommitted edits away.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};

use super::archive::Archive;
use super::filter::{Coverage, Filter, Mode};
use super::identifiers::{Identified, UUID};
use super::options::InstallOptions;
use super::policy::{self, is_policy};
use super::properties::{AccessControl, PACKAGES};
use super::report::{InstallReport, SkipReason, Skipped};
use super::target::{ExistingNode, InstallTarget, Progress};
use super::tree::{ImportNode, ImportProperty, Kind};
use super::{Package, accounts, nested, open_types};
use crate::access::ADMIN;
use crate::withdrawal;
use crate::{
    BlobId, Error, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Result, Subtree, Value, ValueType,
};

impl<R: Read + Seek> Package<R> {
    /// Installs the package, and then the packages within it.
    ///
    /// # Errors
    /// Those of the target; [`crate::Error::Package`] if a file in the package turns out to be damaged. The target
    /// holds a part of the package then, so that its edits must be thrown away.
    pub fn install(
        &mut self,
        target: &mut dyn InstallTarget,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<InstallReport> {
        self.install_with(target, &InstallOptions::default(), progress)
    }

    /// Installs the package, and then the packages within it, as the options say.
    ///
    /// # Errors
    /// As [`Package::install`].
    pub fn install_with(
        &mut self,
        target: &mut dyn InstallTarget,
        options: &InstallOptions,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<InstallReport> {
        let mut report = self.new_report();
        self.register(target, &mut report)?;
        let filter = options.mode.map(|mode| self.filter.with_mode(mode));
        let access_control = options.access_control.unwrap_or(self.properties.access_control);
        let (accounts, protected) = if self.has_content {
            (accounts::elsewhere(&self.root, target)?, protected(&self.filter, target)?)
        } else {
            Default::default()
        };
        let mut installer = Installer {
            archive: &mut self.archive,
            filter: filter.as_ref().unwrap_or(&self.filter),
            access_control,
            closed_user_groups: options
                .closed_user_groups
                .or(self.properties.closed_user_groups)
                .unwrap_or(access_control),
            target: &mut *target,
            progress: &mut *progress,
            report: &mut report,
            done: 0,
            total: self.root.count(),
            stored: BTreeSet::new(),
            accounts,
            protected,
            put_off: Vec::new(),
            identified: Vec::new(),
        };
        if self.has_content {
            installer.visit(&self.root, &NodePath::root(), "")?;
            installer.visit_put_off()?;
            installer.remove_what_is_missing(&self.root)?;
            installer.settle_identifiers(options.identifiers)?;
        }
        let stored = installer.stored;
        let within = nested::install(self, &stored, target, options, progress)?;
        report.nested = within.reports;
        report.warnings.extend(within.warnings);
        Ok(report)
    }

    /// Says where in the package the nodes are described that break rules.
    pub(super) fn located(&self, error: Error) -> Error {
        let Error::Constraint(mut violations) = error else { return error };
        for violation in &mut violations {
            let mut at = Some(violation.path.clone());
            while let Some(path) = at {
                if let Some(node) = self.root.find(&path).filter(|node| node.source().line() > 0) {
                    let (file, line) = (node.source().file(), node.source().line());
                    let place = format!("{file}:{line}");
                    violation.detail = match violation.detail.as_str() {
                        "" => place,
                        detail => format!("{detail}; {place}"),
                    };
                    break;
                }
                at = path.parent();
            }
        }
        Error::Constraint(violations)
    }

    /// Makes the node types and namespaces of the package known. What is wrong with them is a warning: content of types
    /// that nobody knows is refused with its path later.
    fn register(&self, target: &mut dyn InstallTarget, report: &mut InstallReport) -> Result<()> {
        let mut outcomes = Vec::new();
        for (file, text) in &self.node_types {
            outcomes.push((format!("the node types in `{file}`"), target.add_types(text)));
        }
        for (prefix, uri) in &self.namespaces {
            outcomes.push((format!("the prefix `{prefix}`"), target.add_namespace(prefix, uri)));
        }
        for open in open_types::of(&self.root, &self.namespaces, target)? {
            report.warnings.push(format!(
                "{}: nothing here says what the type `{}` is; it is taken as one that holds anything",
                open.place, open.name
            ));
            outcomes.push((format!("the type `{}`", open.name), target.add_types(&open.cnd)));
        }
        for (what, outcome) in outcomes {
            match outcome {
                Ok(()) => {}
                Err(error @ (Error::NodeTypes(_) | Error::Namespace { .. })) => {
                    report.warnings.push(format!("cannot register {what}: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn new_report(&self) -> InstallReport {
        let mut warnings = self.warnings.clone();
        if !self.has_content && !self.filter.roots().is_empty() {
            warnings.push("the package has no `jcr_root`; there is nothing to install".into());
        }
        if !self.junk.is_empty() {
            warnings
                .push(format!("{} files that tools left behind are not stored", self.junk.len()));
        }
        InstallReport {
            package: self.id.clone(),
            elements: self.counts.elements,
            attributes: self.counts.attributes,
            files: self.counts.files,
            pages: self.counts.pages,
            assets: self.counts.assets,
            skipped: self.superseded.clone(),
            warnings,
            ..InstallReport::default()
        }
    }
}

/// Properties that the system keeps: where the package does not give them, those that are there stay.
const KEPT: [&str; 7] = [
    "jcr:uuid",
    "jcr:created",
    "jcr:createdBy",
    "jcr:versionHistory",
    "jcr:baseVersion",
    "jcr:predecessors",
    IS_CHECKED_OUT,
];

const IS_CHECKED_OUT: &str = "jcr:isCheckedOut";

/// Kept by the system itself.
const SYSTEM: &str = "/jcr:system";

/// Returns what stays although filters contain it and the package lacks it: without the stored packages, this one among
/// them, nothing could be taken back, and without the administrator by nobody.
fn protected(filter: &Filter, target: &mut dyn InstallTarget) -> Result<Vec<NodePath>> {
    let mut protected = vec![NodePath::new(SYSTEM)?];
    let packages = NodePath::new(PACKAGES)?;
    if filter.covers(&packages) {
        protected.push(packages);
    }
    let home = NodePath::new("/home")?;
    if filter.covers(&home) || filter.roots().iter().any(|set| set.root.is_within(&home)) {
        protected.extend(target.accounts()?.remove(ADMIN));
    }
    Ok(protected)
}

/// An installation under way. Paths are those in the package; [`Installer::place`] tells where a node is stored.
pub(super) struct Installer<'a, R> {
    archive: &'a mut Archive<R>,
    pub(super) filter: &'a Filter,
    access_control: AccessControl,
    closed_user_groups: AccessControl,
    pub(super) target: &'a mut dyn InstallTarget,
    progress: &'a mut dyn FnMut(Progress<'_>),
    pub(super) report: &'a mut InstallReport,
    done: usize,
    total: usize,
    /// Files below `/etc/packages` that are stored as the package wants them.
    stored: BTreeSet<NodePath>,
    /// Accounts that exist at another path than in the package.
    pub(super) accounts: BTreeMap<NodePath, NodePath>,
    /// What is not removed although the package lacks it.
    protected: Vec<NodePath>,
    /// Such accounts whose parent in the package is created as a whole; they are visited afterwards.
    put_off: Vec<(&'a ImportNode, NodePath)>,
    /// Where identifiers were stored that were not there before.
    pub(super) identified: Vec<Identified<'a>>,
}

impl<'a, R: Read + Seek> Installer<'a, R> {
    fn visit(&mut self, node: &'a ImportNode, path: &NodePath, parent_type: &str) -> Result<()> {
        if is_policy(node.name()) {
            return self.visit_policy(node, path);
        }
        if path.as_str() == SYSTEM {
            self.skip_all(node, path, SkipReason::System);
            return Ok(());
        }
        let place = self.place(path);
        match self.target.node(&place)? {
            Some(existing) => self.meet(node, path, &existing),
            None => match self.build(node, path, parent_type)? {
                Some(subtree) => self.target.put(&place, subtree),
                None => Ok(()),
            },
        }
    }

    fn visit_put_off(&mut self) -> Result<()> {
        for (node, path) in std::mem::take(&mut self.put_off) {
            self.visit(node, &path, "")?;
        }
        Ok(())
    }

    /// Brings a node of the package together with the node that is there.
    fn meet(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
    ) -> Result<()> {
        self.advance(path);
        let mode = match self.filter.coverage(path) {
            Coverage::Contained(mode) => Some(mode),
            _ => None,
        };
        match mode {
            Some(mode) if node.kind() == Kind::Content => {
                self.meet_properties(node, path, existing, mode)?;
            }
            Some(_) => {}
            None => self.skip(node, path, self.reason_why_kept(path)),
        }
        let own_type = type_of(&existing.properties);
        for child in node.children() {
            self.visit(child, &path.child_unchecked(child.name()), own_type)?;
        }
        match mode {
            Some(Mode::Replace) if node.kind() != Kind::OrderOnly => {
                for name in existing.children.iter().filter(|name| node.child(name).is_none()) {
                    self.remove_extra(&path.child_unchecked(name), name)?;
                }
                self.order(node, path)
            }
            Some(mode) => {
                self.remove_other_policies(node, path, existing)?;
                let is_ordered = matches!(mode, Mode::Update | Mode::UpdateProperties);
                if is_ordered { self.order(node, path) } else { Ok(()) }
            }
            None => Ok(()),
        }
    }

    fn meet_properties(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
        mode: Mode,
    ) -> Result<()> {
        let merged = self.merged_properties(node, path, existing, mode)?;
        let is_same = merged == existing.properties;
        if mode == Mode::Merge && is_same {
            self.skip(node, path, SkipReason::ExistsInMergeMode);
            return Ok(());
        }
        self.note_stored(node, path);
        if is_same {
            self.report.nodes_unchanged += 1;
            return Ok(());
        }
        self.report.nodes_changed += 1;
        if merged.get(UUID) != existing.properties.get(UUID) {
            self.note_identifier(node, path, &merged);
        }
        let place = self.place(path);
        self.target.set_properties(&place, merged)
    }

    fn merged_properties(
        &mut self,
        node: &ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
        mode: Mode,
    ) -> Result<BTreeMap<String, Property>> {
        let old = &existing.properties;
        if mode == Mode::Merge {
            return accounts::with_members(node, old, &self.place(path), self.target);
        }
        let mut merged = match mode {
            Mode::Replace => self.kept_properties(node, path, existing),
            _ => old.clone(),
        };
        for (name, property) in node.properties() {
            let is_admitted = name == PRIMARY_TYPE || self.filter.admits_property(path, name);
            let is_settled = old.contains_key(name)
                && (mode == Mode::MergeProperties
                    || (mode == Mode::Update && name == PRIMARY_TYPE)
                    || is_closed(old, name));
            if !is_admitted || (is_settled && name != MIXIN_TYPES) {
                continue;
            }
            let Some(incoming) = self.resolve(property, path, name)? else {
                if let Some(there) = old.get(name) {
                    merged.insert(name.clone(), there.clone());
                }
                continue;
            };
            let joined = match merged.get(name) {
                Some(there) if name == MIXIN_TYPES => policy::union(Some(there), Some(&incoming)),
                _ => Some(incoming),
            };
            merged.extend(joined.map(|joined| (name.clone(), joined)));
        }
        Ok(merged)
    }

    /// Returns the properties that stay although the node is replaced.
    fn kept_properties(
        &self,
        node: &ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
    ) -> BTreeMap<String, Property> {
        let is_kept = |name: &String| {
            (KEPT.contains(&name.as_str()) && !node.properties().contains_key(name))
                || is_closed(&existing.properties, name)
                || withdrawal::is_stamp(name)
                || (name == PRIMARY_TYPE && node.primary_type().is_none())
                || !self.filter.admits_property(path, name)
        };
        let mut kept: BTreeMap<String, Property> = existing
            .properties
            .iter()
            .filter(|(name, _)| is_kept(name))
            .map(|(name, property)| (name.clone(), property.clone()))
            .collect();
        // A policy that stays needs the mixin that allows it.
        if let Some(mixins) = existing.properties.get(MIXIN_TYPES)
            && existing.children.iter().any(|name| is_policy(name))
        {
            let is_for_policy = |mixin: &&Value| mixin.to_text().starts_with("rep:");
            let mixins: Vec<Value> =
                mixins.values().iter().filter(is_for_policy).cloned().collect();
            if !mixins.is_empty() {
                kept.insert(MIXIN_TYPES.to_owned(), Property::List(ValueType::Name, mixins));
            }
        }
        kept
    }

    /// Makes the subtree of a node that is missing, of what the filter contains.
    fn build(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        parent_type: &str,
    ) -> Result<Option<Subtree>> {
        if let Some(reason) = self.reason_to_leave(node) {
            self.skip_all(node, path, reason);
            return Ok(None);
        }
        self.advance(path);
        let own_type = node.primary_type().unwrap_or_else(|| default_type(parent_type, node));
        let mut children = Vec::with_capacity(node.children().len());
        for child in node.children() {
            let path = path.child_unchecked(child.name());
            if self.accounts.contains_key(&path) {
                self.put_off.push((child, path));
            } else {
                children.extend(self.build(child, &path, own_type)?);
            }
        }
        let coverage = self.filter.coverage(path);
        let is_wanted = match coverage {
            Coverage::Contained(_) | Coverage::Unfiltered => true,
            Coverage::Ancestor => node.kind() == Kind::Content || !children.is_empty(),
            Coverage::Excluded | Coverage::Outside => !children.is_empty(),
        };
        if !is_wanted {
            self.skip(node, path, self.reason_why_kept(path));
            return Ok(None);
        }
        let mut subtree = Subtree::new(node.name(), own_type);
        for (name, property) in node.properties() {
            let is_admitted = name != PRIMARY_TYPE
                && (!matches!(coverage, Coverage::Contained(_))
                    || self.filter.admits_property(path, name));
            if is_admitted && let Some(property) = self.resolve(property, path, name)? {
                subtree.properties.insert(name.clone(), property);
            }
        }
        subtree.children = children;
        policy::gather_restrictions(&mut subtree);
        policy::add_mixins(&mut subtree);
        self.note_identifier(node, path, &subtree.properties);
        self.report.nodes_created += 1;
        self.note_stored(node, path);
        Ok(Some(subtree))
    }

    /// Returns why a missing node is not created with everything below it, if so.
    fn reason_to_leave(&self, node: &ImportNode) -> Option<SkipReason> {
        let handling = self.handling(node.name());
        let ignores = matches!(handling, AccessControl::Ignore | AccessControl::Clear);
        if is_policy(node.name()) && ignores {
            Some(SkipReason::AccessControl)
        } else if node.kind() == Kind::OrderOnly {
            Some(SkipReason::ParentMissing)
        } else if node.primary_type() == Some("rep:Cache") {
            Some(SkipReason::Cache)
        } else {
            None
        }
    }

    /// Returns the rule for a policy of this name.
    fn handling(&self, name: &str) -> AccessControl {
        if name == policy::CLOSED_USER_GROUP {
            self.closed_user_groups
        } else {
            self.access_control
        }
    }

    fn visit_policy(&mut self, node: &'a ImportNode, path: &NodePath) -> Result<()> {
        if node.kind() == Kind::OrderOnly {
            return Ok(());
        }
        if !matches!(self.filter.coverage(path), Coverage::Contained(_) | Coverage::Unfiltered) {
            self.skip_all(node, path, self.reason_why_kept(path));
            return Ok(());
        }
        let (place, handling) = (self.place(path), self.handling(node.name()));
        let existing = self.target.read(&place)?;
        if handling == AccessControl::Clear && existing.is_some() {
            self.report.subtrees_removed += 1;
            self.target.remove(&place)?;
        }
        let created_before = self.report.nodes_created;
        let Some(package) = self.build(node, path, "")? else {
            return Ok(());
        };
        let Some(existing) = existing else {
            self.target.put(&place, package)?;
            return policy::require_mixin(self.target, &place);
        };
        let merged = match handling {
            AccessControl::Merge | AccessControl::MergePreserve => {
                policy::merged(existing.clone(), package, handling)
            }
            AccessControl::Ignore | AccessControl::Clear | AccessControl::Overwrite => package,
        };
        let met = self.report.nodes_created - created_before;
        self.report.nodes_created = created_before;
        if merged == existing {
            self.report.nodes_unchanged += met;
            return Ok(());
        }
        self.report.nodes_changed += met;
        self.target.put(&place, merged)
    }

    /// Removes the policies of a node that the package lacks, if they are to be those of the package: the filter's mode
    /// does not rule them.
    fn remove_other_policies(
        &mut self,
        node: &ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
    ) -> Result<()> {
        let policies = existing.children.iter().filter(|name| is_policy(name));
        for name in policies.filter(|name| node.child(name).is_none()) {
            let policy = path.child_unchecked(name);
            let is_covered = matches!(self.filter.coverage(&policy), Coverage::Contained(_));
            if node.kind() == Kind::Content && is_covered && !self.keeps_policies(name) {
                self.report.subtrees_removed += 1;
                let place = self.place(&policy);
                self.target.remove(&place)?;
            }
        }
        Ok(())
    }

    /// Tells whether policies of this name stay where the package has none.
    fn keeps_policies(&self, name: &str) -> bool {
        !matches!(self.handling(name), AccessControl::Overwrite | AccessControl::Clear)
    }

    /// Removes a child that the package lacks, if its filter says so.
    fn remove_extra(&mut self, path: &NodePath, name: &str) -> Result<()> {
        if is_policy(name) && self.keeps_policies(name) {
            return Ok(());
        }
        self.remove_covered(path).map(|_| ())
    }

    /// Removes what filters of mode replace contain at and below a path. Returns whether nothing is left there.
    fn remove_covered(&mut self, path: &NodePath) -> Result<bool> {
        if self.filter.coverage(path) != Coverage::Contained(Mode::Replace) {
            return Ok(false);
        }
        // An account that the package has at another path stays where it is.
        let place = self.place(path);
        let kept = || self.accounts.values().chain(&self.protected);
        if kept().any(|kept| *kept == place) {
            return Ok(false);
        }
        let has_kept_below = kept().any(|kept| kept.is_within(&place));
        let mut is_empty = true;
        if has_kept_below || !self.filter.covers_all_below(path) {
            let Some(existing) = self.target.node(&place)? else {
                return Ok(true);
            };
            for name in &existing.children {
                is_empty &= self.remove_covered(&path.child_unchecked(name))?;
            }
        }
        if is_empty {
            self.report.subtrees_removed += 1;
            self.target.remove(&place)?;
        }
        Ok(is_empty)
    }

    /// Removes the roots of filters that the package does not hold.
    fn remove_what_is_missing(&mut self, package: &ImportNode) -> Result<()> {
        for set in self.filter.roots() {
            let is_missing = package.find(&set.root).is_none();
            let place = self.place(&set.root);
            if is_missing && !set.root.is_root() && self.target.node(&place)?.is_some() {
                self.remove_covered(&set.root)?;
            }
        }
        Ok(())
    }

    /// Brings children into the order of the package, where those that both sides know stand otherwise. Children
    /// that the package does not know come first then, as they did.
    fn order(&mut self, node: &ImportNode, path: &NodePath) -> Result<()> {
        if node.children().len() < 2 {
            return Ok(());
        }
        let place = self.place(path);
        let Some(current) = self.target.node(&place)? else {
            return Ok(());
        };
        let names: BTreeSet<&str> = current.children.iter().map(String::as_str).collect();
        let wanted: Vec<&str> = node
            .children()
            .iter()
            .map(ImportNode::name)
            .filter(|name| names.contains(name))
            .collect();
        let (known, others): (Vec<&String>, Vec<&String>) =
            current.children.iter().partition(|name| node.child(name).is_some());
        if known == wanted {
            return Ok(());
        }
        let order: Vec<String> =
            others.into_iter().cloned().chain(wanted.into_iter().map(str::to_owned)).collect();
        self.target.order_children(&place, &order)
    }

    /// Returns the value of a property, its bytes stored; nothing if what is there is to stay.
    fn resolve(
        &mut self,
        property: &ImportProperty,
        path: &NodePath,
        name: &str,
    ) -> Result<Option<Property>> {
        if withdrawal::is_stamp(name) {
            // Whether visitors have a document is a fact about its address here, not about where the package was built.
            return Ok(None);
        }
        match property {
            ImportProperty::Value(property) => Ok(Some(property.clone())),
            ImportProperty::Kept => {
                let place = self.place(path);
                let has_value = self
                    .target
                    .node(&place)?
                    .is_some_and(|existing| existing.properties.contains_key(name));
                if !has_value {
                    self.report.warnings.push(format!(
                        "`{path}/{name}` has no bytes in the package and is not set"
                    ));
                }
                Ok(None)
            }
            ImportProperty::Bytes(entry) => {
                Ok(Some(Property::Single(Value::Binary(self.store(*entry)?))))
            }
            ImportProperty::Inline { values, is_list } => {
                let values: Vec<Value> = values
                    .iter()
                    .map(|bytes| self.target.put_blob(&mut bytes.as_slice()).map(Value::Binary))
                    .collect::<Result<_>>()?;
                Ok(Some(match (*is_list, values.first()) {
                    (false, Some(value)) => Property::Single(value.clone()),
                    _ => Property::List(ValueType::Binary, values),
                }))
            }
            ImportProperty::ByteList(entries) => {
                let values = entries
                    .values()
                    .map(|entry| self.store(*entry).map(Value::Binary))
                    .collect::<Result<_>>()?;
                Ok(Some(Property::List(ValueType::Binary, values)))
            }
        }
    }

    fn store(&mut self, entry: usize) -> Result<BlobId> {
        let size = self.archive.entries.get(entry).map_or(0, |entry| entry.size);
        let mut reader = self.archive.open_entry(entry)?;
        let stored = self.target.put_blob(&mut reader);
        if let Some(damage) = reader.explain() {
            return Err(damage);
        }
        self.report.blobs += 1;
        self.report.blob_bytes += size;
        stored
    }

    fn advance(&mut self, path: &NodePath) {
        self.done += 1;
        (self.progress)(Progress { path, done: self.done, total: self.total });
    }

    fn note_stored(&mut self, node: &ImportNode, path: &NodePath) {
        if node.is_element() {
            self.report.elements_stored += 1;
        }
        if super::is_nested_package(path) {
            self.stored.insert(path.clone());
        }
    }

    fn reason_why_kept(&self, path: &NodePath) -> SkipReason {
        match self.filter.coverage(path) {
            Coverage::Ancestor => SkipReason::AncestorExists,
            Coverage::Excluded => SkipReason::ExcludedByPattern,
            Coverage::Unfiltered => SkipReason::ExistsWithoutFilter,
            Coverage::Outside | Coverage::Contained(_) => SkipReason::OutsideEveryFilter,
        }
    }

    fn skip_all(&mut self, node: &ImportNode, path: &NodePath, reason: SkipReason) {
        self.advance(path);
        self.skip(node, path, reason);
        for child in node.children() {
            self.skip_all(child, &path.child_unchecked(child.name()), reason);
        }
    }

    fn skip(&mut self, node: &ImportNode, path: &NodePath, reason: SkipReason) {
        let is_file = node.primary_type() == Some("nt:file");
        if node.is_element() || is_file {
            self.report.skipped.push(Skipped {
                path: path.clone(),
                file: node.source().file(),
                line: node.source().line(),
                is_element: node.is_element(),
                reason,
            });
        }
    }
}

/// Tells whether this is the property that says that a node is checked in: the node stays so, as a package does not check
/// it out.
fn is_closed(properties: &BTreeMap<String, Property>, name: &str) -> bool {
    let is_out = properties.get(name).and_then(Property::first);
    name == IS_CHECKED_OUT && matches!(is_out, Some(Value::Boolean(false)))
}

pub(super) fn type_of(properties: &BTreeMap<String, Property>) -> &str {
    properties.get(PRIMARY_TYPE).and_then(Property::first).and_then(Value::as_str).unwrap_or("")
}

/// Returns the type of a node for which the package names none: what its parent's type says of children.
fn default_type<'a>(parent_type: &'a str, node: &ImportNode) -> &'a str {
    match (parent_type, node.kind()) {
        (
            "sling:Folder"
            | "sling:OrderedFolder"
            | "nt:unstructured"
            | "oak:Unstructured"
            | "rep:AuthorizableFolder",
            _,
        ) => parent_type,
        (_, Kind::Content) => "nt:unstructured",
        // The folders below the root are Sling's in the systems where packages come from, but for that of users.
        ("" | "rep:root", _) if node.name() == "home" => "rep:AuthorizableFolder",
        ("" | "rep:root", _) => "sling:Folder",
        _ => "nt:folder",
    }
}
