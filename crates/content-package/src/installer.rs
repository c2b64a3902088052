//! Installs a package: merges its nodes into existing content.
//!
//! In: a package that was checked, and an [`InstallTarget`]. Out: the changed target, and a report.
//!
//! Invariants
//! * Content that no filter contains is never changed or removed; missing nodes above the roots of filters are created.
//! * A node is removed only if a filter of mode replace contains it and everything below it.
//! * Content that the system maintains is not installed. That content, the stored packages and the administrator are
//!   never removed because a package lacks them.
//! * Only differences are written, so that the cost is proportional to the package and not to the target.
//!
//! On failure: the target holds a part of the package; the caller must discard its uncommitted edits.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};

use tympan_content::{
    ADMIN_USER, BlobId, Error as ContentError, JCR_CONTENT, MIXIN_TYPES, NodePath, PRIMARY_TYPE,
    Property, Subtree, Value, ValueType, is_replication_stamp,
};

use crate::account;
use crate::archive::PackageArchive;
use crate::content_package::{ContentPackage, RESOURCE_NODE_TYPES, is_nested_package};
use crate::filter::{FilterCoverage, ImportMode, PackageFilter};
use crate::identifier::{AssignedIdentifier, UUID_PROPERTY};
use crate::import_node::{ImportNode, ImportNodeKind, ImportProperty};
use crate::install_options::InstallOptions;
use crate::install_report::{InstallReport, SkipReason, SkippedPackageItem};
use crate::install_target::{ExistingNode, InstallProgress, InstallTarget};
use crate::nested_package;
use crate::package_id::PACKAGES_PATH;
use crate::package_properties::AccessControlHandling;
use crate::permissive_type;
use crate::policy::{self, is_policy_name};
use crate::{Error, Result};

impl<R: Read + Seek> ContentPackage<R> {
    /// Installs the package, and then its nested packages.
    ///
    /// # Errors
    /// Errors of the target; [`crate::Error::InvalidPackage`] if a file in the package is damaged. The target then
    /// holds a part of the package, and its edits must be discarded.
    pub fn install(
        &mut self,
        target: &mut dyn InstallTarget,
        progress: &mut dyn FnMut(InstallProgress<'_>),
    ) -> Result<InstallReport> {
        self.install_with_options(target, &InstallOptions::default(), progress)
    }

    /// Installs the package, and then its nested packages, with options.
    ///
    /// # Errors
    /// As [`ContentPackage::install`].
    pub fn install_with_options(
        &mut self,
        target: &mut dyn InstallTarget,
        options: &InstallOptions,
        progress: &mut dyn FnMut(InstallProgress<'_>),
    ) -> Result<InstallReport> {
        let mut report = self.new_report();
        self.register_types_and_namespaces(target, &mut report)?;
        let filter = options.mode.map(|mode| self.filter.with_mode(mode));
        let access_control = options.access_control.unwrap_or(self.properties.access_control);
        let (accounts, protected) = if self.has_content {
            (
                account::find_relocated_accounts(&self.root, target)?,
                find_protected_paths(&self.filter, target)?,
            )
        } else {
            Default::default()
        };
        let mut installer = PackageInstaller {
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
            done_nodes: 0,
            total_nodes: self.root.count_nodes(),
            stored_files: BTreeSet::new(),
            relocated_accounts: accounts,
            protected_paths: protected,
            deferred_accounts: Vec::new(),
            assigned_identifiers: Vec::new(),
        };
        if self.has_content {
            installer.install_node(&self.root, &NodePath::root(), "")?;
            installer.install_deferred_accounts()?;
            installer.remove_missing_roots(&self.root)?;
            installer.resolve_identifier_conflicts(options.identifier_rule)?;
        }
        let stored = installer.stored_files;
        let within = nested_package::install_nested(self, &stored, target, options, progress)?;
        report.nested = within.reports;
        report.warnings.extend(within.warnings);
        Ok(report)
    }

    /// Adds to an error the positions in the package of the nodes that violate rules.
    pub(crate) fn with_rule_locations(&self, error: Error) -> Error {
        let Error::Content(ContentError::ConstraintViolations(mut violations)) = error else {
            return error;
        };
        for violation in &mut violations {
            let mut at = Some(violation.path.clone());
            while let Some(path) = at {
                if let Some(node) =
                    self.root.find_descendant(&path).filter(|node| node.location().line() > 0)
                {
                    let (file, line) = (node.location().file_name(), node.location().line());
                    let location = format!("{file}:{line}");
                    violation.detail = match violation.detail.as_str() {
                        "" => location,
                        detail => format!("{detail}; {location}"),
                    };
                    break;
                }
                at = path.parent();
            }
        }
        ContentError::ConstraintViolations(violations).into()
    }

    /// Registers the node types and namespaces of the package. Faults are only warnings: content with unknown types is
    /// refused later, with its path.
    fn register_types_and_namespaces(
        &self,
        target: &mut dyn InstallTarget,
        report: &mut InstallReport,
    ) -> Result<()> {
        let mut outcomes = Vec::new();
        for (file, text) in &self.node_types {
            outcomes
                .push((format!("the node types in `{file}`"), target.register_node_types(text)));
        }
        for (prefix, uri) in &self.namespaces {
            outcomes
                .push((format!("the prefix `{prefix}`"), target.register_namespace(prefix, uri)));
        }
        for open in permissive_type::find_permissive_types(&self.root, &self.namespaces, target)? {
            report.warnings.push(format!(
                "{}: the type `{}` is not defined; it is registered as a type that allows any content",
                open.first_mention, open.name
            ));
            outcomes
                .push((format!("the type `{}`", open.name), target.register_node_types(&open.cnd)));
        }
        for (subject, outcome) in outcomes {
            match outcome {
                Ok(()) => {}
                Err(
                    error @ Error::Content(
                        ContentError::InvalidNodeTypes(_) | ContentError::InvalidNamespace { .. },
                    ),
                ) => {
                    report.warnings.push(format!("cannot register {subject}: {error}"));
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
        if !self.junk_entries.is_empty() {
            warnings.push(format!(
                "{} files left behind by tools are not stored",
                self.junk_entries.len()
            ));
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

/// Properties that the system maintains: unless the package contains them, the existing ones stay.
const SYSTEM_KEPT_PROPERTIES: [&str; 7] = [
    "jcr:uuid",
    "jcr:created",
    "jcr:createdBy",
    "jcr:versionHistory",
    "jcr:baseVersion",
    "jcr:predecessors",
    IS_CHECKED_OUT_PROPERTY,
];

const IS_CHECKED_OUT_PROPERTY: &str = "jcr:isCheckedOut";

/// Maintained by the system itself.
const SYSTEM_PATH: &str = "/jcr:system";

/// Returns the paths that are never removed although filters contain them and the package lacks them. Without the
/// stored packages, this one among them, nothing could be uninstalled; without the administrator, nobody could
/// uninstall it.
fn find_protected_paths(
    filter: &PackageFilter,
    target: &mut dyn InstallTarget,
) -> Result<Vec<NodePath>> {
    let mut protected = vec![NodePath::new(SYSTEM_PATH)?];
    let packages = NodePath::new(PACKAGES_PATH)?;
    if filter.covers(&packages) {
        protected.push(packages);
    }
    let home = NodePath::new("/home")?;
    if filter.covers(&home) || filter.roots().iter().any(|set| set.root.is_within(&home)) {
        protected.extend(target.accounts()?.remove(ADMIN_USER));
    }
    Ok(protected)
}

/// An installation in progress. Paths are those in the package; [`PackageInstaller::stored_path`] returns the stored
/// path of a node.
pub(crate) struct PackageInstaller<'a, R> {
    archive: &'a mut PackageArchive<R>,
    pub(crate) filter: &'a PackageFilter,
    access_control: AccessControlHandling,
    closed_user_groups: AccessControlHandling,
    pub(crate) target: &'a mut dyn InstallTarget,
    progress: &'a mut dyn FnMut(InstallProgress<'_>),
    pub(crate) report: &'a mut InstallReport,
    done_nodes: usize,
    total_nodes: usize,
    /// Files below `/etc/packages` that are stored as the package contains them.
    stored_files: BTreeSet<NodePath>,
    /// Accounts whose existing path differs from that in the package.
    pub(crate) relocated_accounts: BTreeMap<NodePath, NodePath>,
    /// Paths that are not removed although the package lacks them.
    protected_paths: Vec<NodePath>,
    /// Relocated accounts whose parent in the package is created as a whole; they are processed afterwards.
    deferred_accounts: Vec<(&'a ImportNode, NodePath)>,
    /// Nodes that received an identifier which they did not have before.
    pub(crate) assigned_identifiers: Vec<AssignedIdentifier<'a>>,
}

impl<'a, R: Read + Seek> PackageInstaller<'a, R> {
    fn install_node(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        parent_type: &str,
    ) -> Result<()> {
        if is_policy_name(node.name()) {
            return self.install_policy(node, path);
        }
        if path.as_str() == SYSTEM_PATH {
            self.skip_subtree(node, path, SkipReason::System);
            return Ok(());
        }
        let stored_path = self.stored_path(path);
        match self.target.read_node(&stored_path)? {
            Some(existing) => self.merge_into_existing(node, path, &existing),
            None => match self.build_subtree(node, path, parent_type)? {
                Some(subtree) => self.target.put(&stored_path, subtree),
                None => Ok(()),
            },
        }
    }

    fn install_deferred_accounts(&mut self) -> Result<()> {
        for (node, path) in std::mem::take(&mut self.deferred_accounts) {
            self.install_node(node, &path, "")?;
        }
        Ok(())
    }

    /// Merges a node of the package into the existing node.
    fn merge_into_existing(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
    ) -> Result<()> {
        self.report_progress(path);
        let mode = match self.filter.coverage(path) {
            FilterCoverage::Contained(mode) => Some(mode),
            _ => None,
        };
        match mode {
            Some(mode) if node.kind() == ImportNodeKind::Content => {
                self.merge_properties(node, path, existing, mode)?;
            }
            Some(_) => {}
            None => self.skip_node(node, path, self.skip_reason_for_existing(path)),
        }
        let own_type = primary_type_of(&existing.properties);
        for child in node.children() {
            self.install_node(child, &path.child_unchecked(child.name()), own_type)?;
        }
        match mode {
            Some(ImportMode::Replace) if node.kind() != ImportNodeKind::OrderOnly => {
                for name in existing.children.iter().filter(|name| node.child(name).is_none()) {
                    self.remove_extra_child(&path.child_unchecked(name), name)?;
                }
                self.apply_child_order(node, path)
            }
            Some(mode) => {
                self.remove_other_policies(node, path, existing)?;
                let is_ordered = matches!(mode, ImportMode::Update | ImportMode::UpdateProperties);
                if is_ordered { self.apply_child_order(node, path) } else { Ok(()) }
            }
            None => Ok(()),
        }
    }

    fn merge_properties(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
        mode: ImportMode,
    ) -> Result<()> {
        let merged = self.merged_properties(node, path, existing, mode)?;
        let is_same = merged == existing.properties;
        if mode == ImportMode::Merge && is_same {
            self.skip_node(node, path, SkipReason::ExistsInMergeMode);
            return Ok(());
        }
        self.record_stored_file(node, path);
        if is_same {
            self.report.nodes_unchanged += 1;
            return Ok(());
        }
        self.report.nodes_changed += 1;
        if merged.get(UUID_PROPERTY) != existing.properties.get(UUID_PROPERTY) {
            self.record_identifier(node, path, &merged);
        }
        let stored_path = self.stored_path(path);
        self.target.set_properties(&stored_path, merged)
    }

    fn merged_properties(
        &mut self,
        node: &ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
        mode: ImportMode,
    ) -> Result<BTreeMap<String, Property>> {
        let old = &existing.properties;
        if mode == ImportMode::Merge {
            return account::merge_member_list(node, old, &self.stored_path(path), self.target);
        }
        let mut merged = match mode {
            ImportMode::Replace => self.preserved_properties(node, path, existing),
            _ => old.clone(),
        };
        for (name, property) in node.properties() {
            let is_admitted = name == PRIMARY_TYPE || self.filter.includes_property(path, name);
            let is_settled = old.contains_key(name)
                && (mode == ImportMode::MergeProperties
                    || (mode == ImportMode::Update && name == PRIMARY_TYPE)
                    || is_checked_in(old, name));
            if !is_admitted || (is_settled && name != MIXIN_TYPES) {
                continue;
            }
            let Some(incoming) = self.resolve_property(property, path, name)? else {
                if let Some(there) = old.get(name) {
                    merged.insert(name.clone(), there.clone());
                }
                continue;
            };
            let joined = match merged.get(name) {
                Some(there) if name == MIXIN_TYPES => {
                    policy::union_values(Some(there), Some(&incoming))
                }
                _ => Some(incoming),
            };
            merged.extend(joined.map(|joined| (name.clone(), joined)));
        }
        Ok(merged)
    }

    /// Returns the properties that stay although the node is replaced.
    fn preserved_properties(
        &self,
        node: &ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
    ) -> BTreeMap<String, Property> {
        let is_kept = |name: &String| {
            (SYSTEM_KEPT_PROPERTIES.contains(&name.as_str())
                && !node.properties().contains_key(name))
                || is_checked_in(&existing.properties, name)
                || is_replication_stamp(name)
                || (name == PRIMARY_TYPE && node.primary_type().is_none())
                || !self.filter.includes_property(path, name)
        };
        let mut preserved: BTreeMap<String, Property> = existing
            .properties
            .iter()
            .filter(|(name, _)| is_kept(name))
            .map(|(name, property)| (name.clone(), property.clone()))
            .collect();
        // A preserved policy needs its mixin.
        if let Some(mixins) = existing.properties.get(MIXIN_TYPES)
            && existing.children.iter().any(|name| is_policy_name(name))
        {
            let is_for_policy = |mixin: &&Value| mixin.to_text().starts_with("rep:");
            let mixins: Vec<Value> =
                mixins.values().iter().filter(is_for_policy).cloned().collect();
            if !mixins.is_empty() {
                preserved.insert(MIXIN_TYPES.to_owned(), Property::List(ValueType::Name, mixins));
            }
        }
        preserved
    }

    /// Builds the subtree of a missing node from the content that the filter contains.
    fn build_subtree(
        &mut self,
        node: &'a ImportNode,
        path: &NodePath,
        parent_type: &str,
    ) -> Result<Option<Subtree>> {
        if let Some(reason) = self.skip_reason_for_missing(node) {
            self.skip_subtree(node, path, reason);
            return Ok(None);
        }
        self.report_progress(path);
        let own_type =
            node.primary_type().unwrap_or_else(|| default_primary_type(parent_type, node));
        let mut children = Vec::with_capacity(node.children().len());
        for child in node.children() {
            let path = path.child_unchecked(child.name());
            if self.relocated_accounts.contains_key(&path) {
                self.deferred_accounts.push((child, path));
            } else {
                children.extend(self.build_subtree(child, &path, own_type)?);
            }
        }
        let coverage = self.filter.coverage(path);
        let is_wanted = match coverage {
            FilterCoverage::Contained(_) | FilterCoverage::Unfiltered => true,
            FilterCoverage::Ancestor => {
                node.kind() == ImportNodeKind::Content || !children.is_empty()
            }
            FilterCoverage::Excluded | FilterCoverage::Outside => !children.is_empty(),
        };
        if !is_wanted {
            self.skip_node(node, path, self.skip_reason_for_existing(path));
            return Ok(None);
        }
        let mut subtree = Subtree::new(node.name(), own_type);
        for (name, property) in node.properties() {
            let is_admitted = name != PRIMARY_TYPE
                && (!matches!(coverage, FilterCoverage::Contained(_))
                    || self.filter.includes_property(path, name));
            if is_admitted && let Some(property) = self.resolve_property(property, path, name)? {
                subtree.properties.insert(name.clone(), property);
            }
        }
        subtree.children = children.into();
        policy::move_restrictions_to_node(&mut subtree);
        policy::add_policy_mixins(&mut subtree);
        self.record_identifier(node, path, &subtree.properties);
        self.report.nodes_created += 1;
        self.record_stored_file(node, path);
        Ok(Some(subtree))
    }

    /// Returns the reason for which a missing node is not created with everything below it; `None` if it is created.
    fn skip_reason_for_missing(&self, node: &ImportNode) -> Option<SkipReason> {
        let handling = self.policy_handling(node.name());
        let ignores =
            matches!(handling, AccessControlHandling::Ignore | AccessControlHandling::Clear);
        if is_policy_name(node.name()) && ignores {
            Some(SkipReason::AccessControl)
        } else if node.kind() == ImportNodeKind::OrderOnly {
            Some(SkipReason::ParentMissing)
        } else if node.primary_type() == Some("rep:Cache") {
            Some(SkipReason::Cache)
        } else if is_file_without_bytes(node) {
            Some(SkipReason::NoBytes)
        } else {
            None
        }
    }

    /// Returns the handling of a policy of this name.
    fn policy_handling(&self, name: &str) -> AccessControlHandling {
        if name == policy::CUG_POLICY_NODE { self.closed_user_groups } else { self.access_control }
    }

    fn install_policy(&mut self, node: &'a ImportNode, path: &NodePath) -> Result<()> {
        if node.kind() == ImportNodeKind::OrderOnly {
            return Ok(());
        }
        if !matches!(
            self.filter.coverage(path),
            FilterCoverage::Contained(_) | FilterCoverage::Unfiltered
        ) {
            self.skip_subtree(node, path, self.skip_reason_for_existing(path));
            return Ok(());
        }
        let (stored_path, handling) = (self.stored_path(path), self.policy_handling(node.name()));
        let existing = self.target.read_subtree(&stored_path)?;
        if handling == AccessControlHandling::Clear && existing.is_some() {
            self.report.subtrees_removed += 1;
            self.target.remove(&stored_path)?;
        }
        let created_before = self.report.nodes_created;
        let Some(package) = self.build_subtree(node, path, "")? else {
            return Ok(());
        };
        let Some(existing) = existing else {
            self.target.put(&stored_path, package)?;
            return policy::require_policy_mixin(self.target, &stored_path);
        };
        let merged = match handling {
            AccessControlHandling::Merge | AccessControlHandling::MergePreserve => {
                policy::merge_policy(existing.clone(), package, handling)
            }
            AccessControlHandling::Ignore
            | AccessControlHandling::Clear
            | AccessControlHandling::Overwrite => package,
        };
        let met = self.report.nodes_created - created_before;
        self.report.nodes_created = created_before;
        if merged == existing {
            self.report.nodes_unchanged += met;
            return Ok(());
        }
        self.report.nodes_changed += met;
        self.target.put(&stored_path, merged)
    }

    /// Removes the policies of a node that the package lacks, if the package defines the policies; the filter's mode
    /// does not apply to them.
    fn remove_other_policies(
        &mut self,
        node: &ImportNode,
        path: &NodePath,
        existing: &ExistingNode,
    ) -> Result<()> {
        let policies = existing.children.iter().filter(|name| is_policy_name(name));
        for name in policies.filter(|name| node.child(name).is_none()) {
            let policy = path.child_unchecked(name);
            let is_covered = matches!(self.filter.coverage(&policy), FilterCoverage::Contained(_));
            if node.kind() == ImportNodeKind::Content
                && is_covered
                && !self.preserves_policies(name)
            {
                self.report.subtrees_removed += 1;
                let policy_path = self.stored_path(&policy);
                self.target.remove(&policy_path)?;
            }
        }
        Ok(())
    }

    /// Returns true if existing policies of this name stay when the package has none.
    fn preserves_policies(&self, name: &str) -> bool {
        !matches!(
            self.policy_handling(name),
            AccessControlHandling::Overwrite | AccessControlHandling::Clear
        )
    }

    /// Removes a child that the package lacks, if its filter requires it.
    fn remove_extra_child(&mut self, path: &NodePath, name: &str) -> Result<()> {
        if is_policy_name(name) && self.preserves_policies(name) {
            return Ok(());
        }
        self.remove_covered_nodes(path).map(|_| ())
    }

    /// Removes the content at and below a path that filters of mode replace contain. Returns true if nothing is left
    /// there.
    fn remove_covered_nodes(&mut self, path: &NodePath) -> Result<bool> {
        if self.filter.coverage(path) != FilterCoverage::Contained(ImportMode::Replace) {
            return Ok(false);
        }
        // An account with another path in the package keeps its own path.
        let stored_path = self.stored_path(path);
        let retained_paths = || self.relocated_accounts.values().chain(&self.protected_paths);
        if retained_paths().any(|retained_path| *retained_path == stored_path) {
            return Ok(false);
        }
        let has_kept_below =
            retained_paths().any(|retained_path| retained_path.is_within(&stored_path));
        let mut is_empty = true;
        if has_kept_below || !self.filter.is_uniform_below(path) {
            let Some(existing) = self.target.read_node(&stored_path)? else {
                return Ok(true);
            };
            for name in &existing.children {
                is_empty &= self.remove_covered_nodes(&path.child_unchecked(name))?;
            }
        }
        if is_empty {
            self.report.subtrees_removed += 1;
            self.target.remove(&stored_path)?;
        }
        Ok(is_empty)
    }

    /// Removes the roots of filters that the package lacks.
    fn remove_missing_roots(&mut self, package: &ImportNode) -> Result<()> {
        for set in self.filter.roots() {
            let is_missing = package.find_descendant(&set.root).is_none();
            let stored_path = self.stored_path(&set.root);
            if is_missing && !set.root.is_root() && self.target.read_node(&stored_path)?.is_some() {
                self.remove_covered_nodes(&set.root)?;
            }
        }
        Ok(())
    }

    /// Sorts children in the order of the package if the common children are in another order. Children that the
    /// package lacks come first, in their old order.
    fn apply_child_order(&mut self, node: &ImportNode, path: &NodePath) -> Result<()> {
        if node.children().len() < 2 {
            return Ok(());
        }
        let stored_path = self.stored_path(path);
        let Some(current) = self.target.read_node(&stored_path)? else {
            return Ok(());
        };
        let names: BTreeSet<&str> = current.children.iter().map(String::as_str).collect();
        let package_order: Vec<&str> = node
            .children()
            .iter()
            .map(ImportNode::name)
            .filter(|name| names.contains(name))
            .collect();
        let (common_names, others): (Vec<&String>, Vec<&String>) =
            current.children.iter().partition(|name| node.child(name).is_some());
        if common_names == package_order {
            return Ok(());
        }
        let order: Vec<String> = others
            .into_iter()
            .cloned()
            .chain(package_order.into_iter().map(str::to_owned))
            .collect();
        self.target.order_children(&stored_path, &order)
    }

    /// Returns the value of a property, with its bytes stored; `None` if the existing value stays.
    fn resolve_property(
        &mut self,
        property: &ImportProperty,
        path: &NodePath,
        name: &str,
    ) -> Result<Option<Property>> {
        if is_replication_stamp(name) {
            // The activation status belongs to the path in this repository, not to the one where the package was built.
            return Ok(None);
        }
        match property {
            ImportProperty::Value(property) => Ok(Some(property.clone())),
            ImportProperty::Preserved => {
                let stored_path = self.stored_path(path);
                let has_value = self
                    .target
                    .read_node(&stored_path)?
                    .is_some_and(|existing| existing.properties.contains_key(name));
                if !has_value {
                    self.report
                        .warnings
                        .push(format!("`{path}/{name}` has no data in the package and is not set"));
                }
                Ok(None)
            }
            ImportProperty::Binary(entry) => {
                Ok(Some(Property::Single(Value::Binary(self.store_entry_blob(*entry)?))))
            }
            ImportProperty::InlineBinary { values, is_list } => {
                let values: Vec<Value> = values
                    .iter()
                    .map(|bytes| self.target.put_blob(&mut bytes.as_slice()).map(Value::Binary))
                    .collect::<Result<_>>()?;
                Ok(Some(match (*is_list, values.first()) {
                    (false, Some(value)) => Property::Single(value.clone()),
                    _ => Property::List(ValueType::Binary, values),
                }))
            }
            ImportProperty::BinaryList(entries) => {
                let values = entries
                    .values()
                    .map(|entry| self.store_entry_blob(*entry).map(Value::Binary))
                    .collect::<Result<_>>()?;
                Ok(Some(Property::List(ValueType::Binary, values)))
            }
        }
    }

    fn store_entry_blob(&mut self, entry: usize) -> Result<BlobId> {
        let size = self.archive.entries.get(entry).map_or(0, |entry| entry.size);
        let mut reader = self.archive.open_entry(entry)?;
        let stored = self.target.put_blob(&mut reader);
        if let Some(damage) = reader.take_damage_error() {
            return Err(damage);
        }
        self.report.blobs += 1;
        self.report.blob_bytes += size;
        stored
    }

    fn report_progress(&mut self, path: &NodePath) {
        self.done_nodes += 1;
        (self.progress)(InstallProgress {
            node_path: path,
            done_nodes: self.done_nodes,
            total_nodes: self.total_nodes,
        });
    }

    fn record_stored_file(&mut self, node: &ImportNode, path: &NodePath) {
        if node.is_element() {
            self.report.elements_stored += 1;
        }
        if is_nested_package(path) {
            self.stored_files.insert(path.clone());
        }
    }

    fn skip_reason_for_existing(&self, path: &NodePath) -> SkipReason {
        match self.filter.coverage(path) {
            FilterCoverage::Ancestor => SkipReason::AncestorExists,
            FilterCoverage::Excluded => SkipReason::ExcludedByPattern,
            FilterCoverage::Unfiltered => SkipReason::ExistsWithoutFilter,
            FilterCoverage::Outside | FilterCoverage::Contained(_) => {
                SkipReason::OutsideEveryFilter
            }
        }
    }

    fn skip_subtree(&mut self, node: &ImportNode, path: &NodePath, reason: SkipReason) {
        self.report_progress(path);
        self.skip_node(node, path, reason);
        for child in node.children() {
            self.skip_subtree(child, &path.child_unchecked(child.name()), reason);
        }
    }

    fn skip_node(&mut self, node: &ImportNode, path: &NodePath, reason: SkipReason) {
        let is_file = node.primary_type() == Some("nt:file");
        if node.is_element() || is_file {
            self.report.skipped.push(SkippedPackageItem {
                path: path.clone(),
                file: node.location().file_name(),
                line: node.location().line(),
                is_element: node.is_element(),
                reason,
            });
        }
    }
}

/// Returns true if this property marks a node as checked in. The mark stays, because a package does not check the node
/// out.
fn is_checked_in(properties: &BTreeMap<String, Property>, name: &str) -> bool {
    let is_out = properties.get(name).and_then(Property::first);
    name == IS_CHECKED_OUT_PROPERTY && matches!(is_out, Some(Value::Boolean(false)))
}

pub(crate) fn primary_type_of(properties: &BTreeMap<String, Property>) -> &str {
    properties.get(PRIMARY_TYPE).and_then(Property::first).and_then(Value::as_str).unwrap_or("")
}

/// Returns true if a node is a file, and the package has no bytes for it: they are mandatory, so that the file cannot be
/// created. Projects keep the descriptions of large files beside their sources, and the bytes elsewhere.
fn is_file_without_bytes(node: &ImportNode) -> bool {
    let content = node.child(JCR_CONTENT).filter(|_| node.primary_type() == Some("nt:file"));
    content.is_some_and(|content| {
        content.primary_type().is_some_and(|name| RESOURCE_NODE_TYPES.contains(&name))
            && !content.properties().contains_key("jcr:data")
    })
}

/// Returns the type of a node for which the package names none: the default of its parent's type.
fn default_primary_type<'a>(parent_type: &'a str, node: &ImportNode) -> &'a str {
    match (parent_type, node.kind()) {
        (
            "sling:Folder"
            | "sling:OrderedFolder"
            | "nt:unstructured"
            | "oak:Unstructured"
            | "rep:AuthorizableFolder",
            _,
        ) => parent_type,
        (_, ImportNodeKind::Content) => "nt:unstructured",
        // In the source systems of packages the folders below the root are Sling folders, except the one of users.
        ("" | "rep:root", _) if node.name() == "home" => "rep:AuthorizableFolder",
        ("" | "rep:root", _) => "sling:Folder",
        _ => "nt:folder",
    }
}
