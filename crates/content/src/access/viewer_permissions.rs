//! The permissions of one viewer, compiled from all policies.
//!
//! In: the viewer's principals and the policies of a state. Out: the privileges granted for a node or property.
//!
//! The tree is cut into *scopes*. A scope begins at every node where something changes for the viewer (a policy that
//! names one of its principals, a closed user group, the node that a path in a restriction names) and ends where the
//! next one begins. The same rules apply to all nodes of a scope, so that usually one evaluation decides for all of
//! them.
//!
//! The first rule that names a privilege decides. Order of rules: entries for the user before entries for groups; in
//! each class the deepest policy first; in one policy the last entry first.
//!
//! Invariants
//! * Without a rule, a privilege is denied.
//! * A scope is uniform for reading only if no node in it can be decided differently.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tympan_store::ChunkId;

use crate::NodePath;
use crate::access::policy::{
    AccessControlDocument, AccessControlEntry, AccessPolicy, is_policy_path,
};
use crate::access::principal::ViewerPrincipals;
use crate::access::privilege::Privileges;
use crate::access::restriction::{AccessedItem, RestrictionMatch, ScopePart};

/// The permissions of one viewer.
#[derive(Debug)]
pub(crate) enum ViewerPermissions {
    /// Everything except reading password hashes.
    Unrestricted,
    /// The privileges that rules grant.
    Restricted(Box<PermissionRules>),
}

/// The rules of one viewer, by scope.
#[derive(Debug)]
pub(crate) struct PermissionRules {
    /// The nodes at which scopes begin, and their ancestors; the first is the root.
    nodes: Vec<ScopeNode>,
    scopes: Vec<PermissionScope>,
    /// The rules for the repository as a whole.
    repository_scope: PermissionScope,
    /// A digest of all fields above.
    digest: ChunkId,
    /// Identifies the rules within this process.
    rule_number: u64,
}

/// The number of unrestricted permissions. Restricted ones have higher numbers; 0 is not used.
const UNRESTRICTED_NUMBER: u64 = 1;
static NEXT_RULE_NUMBER: AtomicU64 = AtomicU64::new(UNRESTRICTED_NUMBER + 1);

/// The digest of unrestricted permissions.
static UNRESTRICTED_DIGEST: LazyLock<ChunkId> = LazyLock::new(|| ChunkId::hash_of(b"unbound"));

/// A node at which a scope begins, or an ancestor of one.
#[derive(Debug)]
struct ScopeNode {
    children: HashMap<Box<str>, usize>,
    /// The scope of the node.
    own_scope: usize,
    /// The scope of the descendants that are neither scope nodes nor ancestors of one.
    descendant_scope: usize,
}

/// Rules that apply to the same nodes.
#[derive(Debug, Default)]
struct PermissionScope {
    rules: Vec<PermissionRule>,
    /// The part of `jcr:read` that is granted, if it is the same for all nodes and properties.
    uniform_read: Option<Privileges>,
    /// Set when a closed user group denies all reading to the viewer.
    is_closed_to_viewer: bool,
}

/// An entry that may apply in a scope.
#[derive(Debug, Clone)]
pub(crate) struct PermissionRule {
    pub(crate) entry: Arc<AccessControlEntry>,
    /// The path of its policy.
    pub(crate) policy_path: NodePath,
    /// Its number in the policy, counted from 1.
    pub(crate) entry_number: usize,
    /// True if it applies to all nodes of the scope.
    is_unconditional: bool,
}

/// The visibility of the children of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChildVisibility {
    /// The same for all children except the named ones.
    Uniform { is_visible: bool, exceptions: BTreeMap<String, bool> },
    /// Decided for each child.
    Individual,
}

impl ViewerPermissions {
    /// Compiles the permissions that the policies in documents, by the key of their record, grant to principals.
    pub(crate) fn new(
        principals: ViewerPrincipals,
        documents: &BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    ) -> Self {
        if principals.is_admin {
            return Self::Unrestricted;
        }
        Self::Restricted(Box::new(PermissionCompiler::new(principals, documents).compile()))
    }

    /// Returns a digest of all decisions: permissions with equal digests, of the same policies, decide alike.
    pub(crate) fn digest(&self) -> ChunkId {
        match self {
            Self::Unrestricted => *UNRESTRICTED_DIGEST,
            Self::Restricted(rules) => rules.digest,
        }
    }

    /// Returns a number that is unique to these rules.
    pub(crate) fn rule_number(&self) -> u64 {
        match self {
            Self::Unrestricted => UNRESTRICTED_NUMBER,
            Self::Restricted(rules) => rules.rule_number,
        }
    }

    /// Returns which of the wanted privileges are granted for an item.
    pub(crate) fn granted_privileges(
        &self,
        item: &AccessedItem<'_>,
        privileges: Privileges,
    ) -> Privileges {
        match self {
            Self::Unrestricted => privileges,
            Self::Restricted(rules) => rules.granted_privileges(item, privileges),
        }
    }

    /// Returns which of the wanted privileges are granted for the repository as a whole.
    pub(crate) fn granted_in_repository(&self, privileges: Privileges) -> Privileges {
        let item = AccessedItem { path: "", property: None, primary_type: "" };
        match self {
            Self::Unrestricted => privileges,
            Self::Restricted(rules) => rules.repository_scope.granted_privileges(&item, privileges),
        }
    }

    /// Returns true if a node is visible.
    pub(crate) fn can_see(&self, path: &str, primary_type: &str) -> bool {
        let Self::Restricted(rules) = self else { return true };
        if is_policy_path(path) {
            return rules.can_see_policy(path, primary_type);
        }
        let scope = rules.scope_of(path);
        match scope.uniform_read {
            Some(plain) => plain.contains(Privileges::READ_NODES),
            None => {
                let item = AccessedItem { path, property: None, primary_type };
                !scope.granted_privileges(&item, Privileges::READ_NODES).is_empty()
            }
        }
    }

    /// Returns true if a property is visible to a viewer that sees its node.
    pub(crate) fn can_see_property(&self, path: &str, primary_type: &str, property: &str) -> bool {
        let Self::Restricted(rules) = self else { return true };
        if is_policy_path(path) {
            return rules.can_see_policy(path, primary_type);
        }
        let item = AccessedItem { path, property: Some(property), primary_type };
        !rules.scope_of(path).granted_privileges(&item, Privileges::READ_PROPERTIES).is_empty()
    }

    /// Returns the visibility of the children of a node, except policies.
    pub(crate) fn child_visibility(&self, path: &str) -> ChildVisibility {
        let Self::Restricted(rules) = self else {
            return ChildVisibility::Uniform { is_visible: true, exceptions: BTreeMap::new() };
        };
        if is_policy_path(path) {
            return ChildVisibility::Individual;
        }
        rules.child_visibility(path)
    }

    /// Returns true if the whole subtree at a path is visible, except policies in it. Returns `false` in doubt.
    pub(crate) fn can_see_subtree(&self, path: &str) -> bool {
        let Self::Restricted(rules) = self else { return true };
        let (mark, is_exact) = rules.locate_scope_node(path);
        let is_whole = |scope: usize| rules.scope_at(scope).uniform_read == Some(Privileges::READ);
        let Some(mark) = rules.nodes.get(mark) else { return false };
        let is_end = !is_exact || mark.children.is_empty();
        is_end
            && is_whole(mark.descendant_scope)
            && (!is_exact || is_whole(mark.own_scope))
            && !is_policy_path(path)
    }

    /// Returns true if a node and all of its properties are visible. Returns `false` in doubt.
    pub(crate) fn can_see_whole_node(&self, path: &str) -> bool {
        let Self::Restricted(rules) = self else { return true };
        rules.scope_of(path).uniform_read == Some(Privileges::READ) && !is_policy_path(path)
    }

    /// Returns the rules that may apply to a node, in order of evaluation, and true if a closed user group excludes the
    /// viewer; `None` if the viewer is unrestricted.
    pub(crate) fn rules_at(&self, path: &str) -> Option<(&[PermissionRule], bool)> {
        let Self::Restricted(rules) = self else { return None };
        let scope = rules.scope_of(path);
        Some((&scope.rules, scope.is_closed_to_viewer))
    }
}

impl PermissionRule {
    /// Returns true if the rule applies to an item.
    pub(crate) fn matches(&self, item: &AccessedItem<'_>) -> bool {
        self.is_unconditional
            || self
                .entry
                .restrictions
                .as_ref()
                .is_none_or(|restrictions| restrictions.matches(item, self.entry.is_grant))
    }
}

impl PermissionScope {
    fn new(rules: Vec<PermissionRule>, is_closed: bool) -> Self {
        let plain = if is_closed { Some(Privileges::NONE) } else { uniform_read(&rules) };
        Self { rules, uniform_read: plain, is_closed_to_viewer: is_closed }
    }

    fn granted_privileges(&self, item: &AccessedItem<'_>, privileges: Privileges) -> Privileges {
        let mut open =
            if self.is_closed_to_viewer { privileges & !Privileges::READ } else { privileges };
        let mut granted = Privileges::NONE;
        for rule in &self.rules {
            let named = rule.entry.privileges & open;
            if !named.is_empty() && rule.matches(item) {
                if rule.entry.is_grant {
                    granted = granted | named;
                }
                open = open & !named;
            }
            if open.is_empty() {
                break;
            }
        }
        granted
    }
}

/// Returns the part of `jcr:read` that the rules grant wherever they apply; `None` if that depends on the item.
fn uniform_read(rules: &[PermissionRule]) -> Option<Privileges> {
    let mut open = Privileges::READ;
    let mut granted = Privileges::NONE;
    for rule in rules {
        let named = rule.entry.privileges & open;
        if named.is_empty() {
            continue;
        }
        if !rule.is_unconditional {
            return None;
        }
        if rule.entry.is_grant {
            granted = granted | named;
        }
        open = open & !named;
    }
    Some(granted)
}

impl PermissionScope {
    /// Writes everything that affects decisions in the scope.
    fn write_digest_text(&self, text: &mut String) {
        let Self { rules, uniform_read, is_closed_to_viewer } = self;
        // Writing to a string cannot fail.
        writeln!(text, "{is_closed_to_viewer} {uniform_read:?}").ok();
        for PermissionRule {
            entry,
            policy_path: policy,
            entry_number: number,
            is_unconditional: is_always,
        } in rules
        {
            writeln!(text, "{:?} {number} {is_always} {entry:?}", policy.as_str()).ok();
        }
    }
}

impl PermissionRules {
    /// Returns a digest of everything that affects decisions: the scopes of the nodes, and the rules of each scope in
    /// order.
    fn compute_digest(&self) -> ChunkId {
        let name_of = |scope: &PermissionScope| {
            let mut text = String::new();
            scope.write_digest_text(&mut text);
            ChunkId::hash_of(text.as_bytes())
        };
        let scopes: Vec<ChunkId> = self.scopes.iter().map(name_of).collect();
        let repository = name_of(&self.repository_scope);
        let mut text = repository.to_string();
        // Traverses from the root, children in the order of their names, because scope nodes are numbered in order of
        // creation.
        let mut waiting = vec![0];
        while let Some(at) = waiting.pop() {
            let Some(mark) = self.nodes.get(at) else { continue };
            for scope in [mark.own_scope, mark.descendant_scope] {
                write!(text, " {}", scopes.get(scope).unwrap_or(&repository)).ok();
            }
            let mut children: Vec<_> = mark.children.iter().collect();
            children.sort_unstable();
            for (name, child) in &children {
                write!(text, "/{}:{name}", name.len()).ok();
                waiting.push(**child);
            }
            text.push('\n');
        }
        ChunkId::hash_of(text.as_bytes())
    }

    /// Finds the deepest scope node at or above a path, and returns true with it if it is at the path.
    fn locate_scope_node(&self, path: &str) -> (usize, bool) {
        let mut at = 0;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.nodes.get(at).and_then(|mark| mark.children.get(name)) {
                Some(child) => at = *child,
                None => return (at, false),
            }
        }
        (at, true)
    }

    fn scope_of(&self, path: &str) -> &PermissionScope {
        let (at, is_exact) = self.locate_scope_node(path);
        match self.nodes.get(at) {
            Some(mark) if is_exact => self.scope_at(mark.own_scope),
            Some(mark) => self.scope_at(mark.descendant_scope),
            None => &self.repository_scope,
        }
    }

    fn scope_at(&self, at: usize) -> &PermissionScope {
        self.scopes.get(at).unwrap_or(&self.repository_scope)
    }

    fn granted_privileges(&self, item: &AccessedItem<'_>, privileges: Privileges) -> Privileges {
        self.scope_of(item.path).granted_privileges(item, privileges)
    }

    fn can_see_policy(&self, path: &str, primary_type: &str) -> bool {
        let item = AccessedItem { path, property: None, primary_type };
        !self.granted_privileges(&item, Privileges::READ_ACCESS_CONTROL).is_empty()
    }

    fn child_visibility(&self, path: &str) -> ChildVisibility {
        let (at, is_exact) = self.locate_scope_node(path);
        let Some(mark) = self.nodes.get(at) else { return ChildVisibility::Individual };
        let visible = |scope: usize| {
            self.scope_at(scope).uniform_read.map(|plain| plain.contains(Privileges::READ_NODES))
        };
        let Some(is_visible) = visible(mark.descendant_scope) else {
            return ChildVisibility::Individual;
        };
        let mut others = BTreeMap::new();
        if is_exact {
            for (name, child) in &mark.children {
                let own = self.nodes.get(*child).and_then(|child| visible(child.own_scope));
                match own {
                    Some(own) if own == is_visible => {}
                    Some(own) => drop(others.insert(name.to_string(), own)),
                    None => return ChildVisibility::Individual,
                }
            }
        }
        ChildVisibility::Uniform { is_visible, exceptions: others }
    }
}

/// Builds the rules of one viewer.
struct PermissionCompiler<'a> {
    principals: ViewerPrincipals,
    /// The policies with entries for the viewer, by controlled node.
    policies: BTreeMap<String, Vec<&'a AccessPolicy>>,
    /// True for each node whose closed user group excludes the viewer.
    is_excluded_by_cug: BTreeMap<String, bool>,
    scope_paths: Vec<String>,
    repository_policies: Vec<&'a AccessPolicy>,
    rules: PermissionRules,
}

impl<'a> PermissionCompiler<'a> {
    fn new(
        principals: ViewerPrincipals,
        documents: &'a BTreeMap<Vec<u8>, Arc<AccessControlDocument>>,
    ) -> Self {
        let is_own = |name: &str| {
            principals.user.as_deref() == Some(name)
                || principals.groups.iter().any(|(group, _)| group == name)
        };
        let mut by_node: BTreeMap<String, Vec<&AccessPolicy>> = BTreeMap::new();
        let mut repository = Vec::new();
        let mut points = vec!["/".to_owned()];
        for policy in documents.values().flat_map(|document| &document.policies) {
            let mut own = policy.entries.iter().filter(|entry| is_own(&entry.principal)).peekable();
            if own.peek().is_none() {
                continue;
            }
            let Some(node) = &policy.controlled_node else {
                repository.push(policy);
                continue;
            };
            points.push(node.to_string());
            for restrictions in own.filter_map(|entry| entry.restrictions.as_ref()) {
                restrictions.add_boundary_paths(&mut points);
            }
            by_node.entry(node.to_string()).or_default().push(policy);
        }
        let mut cugs = BTreeMap::new();
        for cug in documents.values().flat_map(|document| &document.closed_user_groups) {
            points.push(cug.node.to_string());
            cugs.insert(cug.node.to_string(), !cug.principals.iter().any(|name| is_own(name)));
        }
        points.sort_unstable();
        points.dedup();
        let (marks, scopes) = (Vec::new(), Vec::new());
        let digest = ChunkId::hash_of(&[]);
        let number = NEXT_RULE_NUMBER.fetch_add(1, Ordering::Relaxed);
        let rules = PermissionRules {
            nodes: marks,
            scopes,
            repository_scope: PermissionScope::default(),
            digest,
            rule_number: number,
        };
        Self {
            principals,
            policies: by_node,
            is_excluded_by_cug: cugs,
            scope_paths: points,
            repository_policies: repository,
            rules,
        }
    }

    fn compile(mut self) -> PermissionRules {
        let whole = self
            .ordered_entries(&self.repository_policies)
            .filter(|(_, entry, _)| entry.restrictions.is_none());
        let whole =
            whole.map(|(policy, entry, number)| build_rule(policy, entry, number, true)).collect();
        self.rules.repository_scope = PermissionScope::new(whole, false);
        // In the order of paths, parents come before their children.
        for point in std::mem::take(&mut self.scope_paths) {
            self.add_scope_path(&point);
        }
        self.rules.digest = self.rules.compute_digest();
        self.rules
    }

    /// Creates the scope nodes up to a path, and its scopes.
    fn add_scope_path(&mut self, point: &str) {
        let [own, below] = self.build_scopes(point);
        if point == "/" {
            self.rules.nodes.push(ScopeNode {
                children: HashMap::new(),
                own_scope: own,
                descendant_scope: below,
            });
            return;
        }
        let mut at = 0;
        for name in point.split('/').filter(|name| !name.is_empty()) {
            let Some(mark) = self.rules.nodes.get(at) else { return };
            at = match mark.children.get(name) {
                Some(child) => *child,
                None => {
                    let (next, inherited) = (self.rules.nodes.len(), mark.descendant_scope);
                    let child = ScopeNode {
                        children: HashMap::new(),
                        own_scope: inherited,
                        descendant_scope: inherited,
                    };
                    self.rules.nodes.push(child);
                    if let Some(mark) = self.rules.nodes.get_mut(at) {
                        mark.children.insert(name.into(), next);
                    }
                    next
                }
            };
        }
        if let Some(mark) = self.rules.nodes.get_mut(at) {
            (mark.own_scope, mark.descendant_scope) = (own, below);
        }
    }

    /// Creates the scopes of a path: that of the node and that of its descendants.
    fn build_scopes(&mut self, point: &str) -> [usize; 2] {
        let above = self_and_ancestors(point);
        let policies: Vec<&AccessPolicy> =
            above.iter().filter_map(|node| self.policies.get(*node)).flatten().copied().collect();
        let is_closed = above
            .iter()
            .find_map(|node| self.is_excluded_by_cug.get(*node))
            .copied()
            .unwrap_or(false);
        let scopes = [ScopePart::ScopeRoot, ScopePart::Descendants].map(|part| {
            let mut rules = Vec::new();
            for (policy, entry, number) in self.ordered_entries(&policies) {
                let fit =
                    entry.restrictions.as_ref().map_or(RestrictionMatch::Always, |restrictions| {
                        restrictions.match_scope(point, part, entry.is_grant)
                    });
                if fit != RestrictionMatch::Never {
                    let is_unconditional = fit == RestrictionMatch::Always;
                    rules.push(build_rule(policy, entry, number, is_unconditional));
                }
            }
            PermissionScope::new(without_unreachable_rules(rules), is_closed)
        });
        scopes.map(|scope| {
            self.rules.scopes.push(scope);
            self.rules.scopes.len() - 1
        })
    }

    /// Returns the viewer's entries of policies, deepest first, in order of evaluation.
    fn ordered_entries<'p>(
        &'p self,
        policies: &'p [&'a AccessPolicy],
    ) -> impl Iterator<Item = (&'a AccessPolicy, &'a Arc<AccessControlEntry>, usize)> + 'p {
        let user = self.principals.user.as_deref();
        let is_user = move |entry: &AccessControlEntry| user == Some(entry.principal.as_str());
        let is_group = |entry: &AccessControlEntry| {
            self.principals.groups.iter().any(|(group, _)| *group == entry.principal)
        };
        let entries = |policy: &&'a AccessPolicy| {
            let policy: &'a AccessPolicy = policy;
            policy.entries.iter().enumerate().rev().map(move |(at, entry)| (policy, entry, at + 1))
        };
        let users = policies.iter().flat_map(entries).filter(move |(_, entry, _)| is_user(entry));
        let groups = policies.iter().flat_map(entries);
        users.chain(groups.filter(move |(_, entry, _)| !is_user(entry) && is_group(entry)))
    }
}

fn build_rule(
    policy: &AccessPolicy,
    entry: &Arc<AccessControlEntry>,
    entry_number: usize,
    is_unconditional: bool,
) -> PermissionRule {
    PermissionRule {
        entry: Arc::clone(entry),
        policy_path: policy.stored_path.clone(),
        entry_number,
        is_unconditional,
    }
}

/// Removes the rules that follow one which decides everything they name.
fn without_unreachable_rules(rules: Vec<PermissionRule>) -> Vec<PermissionRule> {
    let mut open = Privileges::ALL;
    let mut reachable_rules = Vec::new();
    for rule in rules {
        if (rule.entry.privileges & open).is_empty() {
            continue;
        }
        if rule.is_unconditional {
            open = open & !rule.entry.privileges;
        }
        reachable_rules.push(rule);
    }
    reachable_rules
}

/// Returns a path and its ancestors, the deepest first.
fn self_and_ancestors(path: &str) -> Vec<&str> {
    let mut paths = vec![path];
    let mut rest = path;
    while let Some((parent, _)) = rest.rsplit_once('/').filter(|_| rest != "/") {
        rest = if parent.is_empty() { "/" } else { parent };
        paths.push(rest);
    }
    paths
}
