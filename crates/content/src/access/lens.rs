//! What one viewer may do where, compiled from all policies.
//!
//! In: the viewer's principals and the policies of a state. Out: the privileges granted for a node or property.
//!
//! The tree is cut into *scopes*: a scope begins at every node where something changes for the viewer (a policy that
//! names one of its principals, a closed user group, the node that a path in a restriction names) and ends where the next
//! one begins. In a scope the same rules count for all nodes, so that mostly one look at it decides for all of them.
//!
//! Order of rules, the first that names a privilege decides: entries for the user before entries for groups; in each
//! class the deepest policy first; in one policy the last entry first.
//!
//! Invariants
//! * No rule, no privilege.
//! * A scope is plain for reading only if no node in it can be decided differently.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tympan_store::ChunkId;

use crate::NodePath;
use crate::access::policies::Policies;
use crate::access::policy::{Entry, Policy, is_policy_path};
use crate::access::principals::Principals;
use crate::access::privilege::Privileges;
use crate::access::restriction::{Fit, Item, Part};

/// What one viewer may do where.
#[derive(Debug)]
pub(crate) enum Lens {
    /// Everything, but for reading password hashes.
    All,
    /// What rules grant.
    Rules(Box<Rules>),
}

/// The rules of one viewer, by scope.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The nodes at which scopes begin, and those on the way to them; the first is the root.
    marks: Vec<Mark>,
    scopes: Vec<Scope>,
    /// What counts for the repository as a whole.
    repository: Scope,
    /// Names all of the above.
    digest: ChunkId,
    /// Tells them from all others of this process.
    number: u64,
}

/// The number of a lens that no rule binds, and the first of those that rules bind; none is 0.
const UNBOUND_NUMBER: u64 = 1;
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(UNBOUND_NUMBER + 1);

/// The digest of a lens that no rule binds.
static UNBOUND: LazyLock<ChunkId> = LazyLock::new(|| ChunkId::of(b"unbound"));

/// A node at which a scope begins, or that leads to one.
#[derive(Debug)]
struct Mark {
    children: HashMap<Box<str>, usize>,
    /// The scope of the node.
    own: usize,
    /// The scope of what is below and leads to no mark.
    below: usize,
}

/// Rules that count for the same nodes.
#[derive(Debug, Default)]
struct Scope {
    rules: Vec<Rule>,
    /// What is granted of `jcr:read`, if that is the same for all nodes and properties.
    plain: Option<Privileges>,
    /// A closed user group lets the viewer read nothing.
    is_closed: bool,
}

/// An entry that may count in a scope.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) entry: Arc<Entry>,
    /// Where its policy is stored.
    pub(crate) policy: NodePath,
    /// Its number in the policy, counted from 1.
    pub(crate) number: usize,
    /// Whether it counts for all nodes of the scope.
    is_always: bool,
}

/// How the children of a node are seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Children {
    /// All alike, but for those that are named.
    Alike { is_visible: bool, others: BTreeMap<String, bool> },
    /// Each has to be asked about.
    Each,
}

impl Lens {
    /// Compiles what policies grant to principals.
    pub(crate) fn new(principals: Principals, policies: &Policies) -> Self {
        if principals.is_admin {
            return Self::All;
        }
        Self::Rules(Box::new(Compiler::new(principals, policies).compile()))
    }

    /// Returns a name of all that is decided: lenses of equal ones, of the same policies, decide alike.
    pub(crate) fn digest(&self) -> ChunkId {
        match self {
            Self::All => *UNBOUND,
            Self::Rules(rules) => rules.digest,
        }
    }

    /// Returns a number that no lens of other rules ever has.
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::All => UNBOUND_NUMBER,
            Self::Rules(rules) => rules.number,
        }
    }

    /// Returns which of the wanted privileges are granted for an item.
    pub(crate) fn granted(&self, item: &Item<'_>, wanted: Privileges) -> Privileges {
        match self {
            Self::All => wanted,
            Self::Rules(rules) => rules.granted(item, wanted),
        }
    }

    /// Returns which of the wanted privileges are granted for the repository as a whole.
    pub(crate) fn granted_in_repository(&self, wanted: Privileges) -> Privileges {
        let item = Item { path: "", property: None, primary_type: "" };
        match self {
            Self::All => wanted,
            Self::Rules(rules) => rules.repository.granted(&item, wanted),
        }
    }

    /// Tells whether a node is to be seen.
    pub(crate) fn sees(&self, path: &str, primary_type: &str) -> bool {
        let Self::Rules(rules) = self else { return true };
        if is_policy_path(path) {
            return rules.sees_policy(path, primary_type);
        }
        let scope = rules.scope_of(path);
        match scope.plain {
            Some(plain) => plain.contains(Privileges::READ_NODES),
            None => {
                let item = Item { path, property: None, primary_type };
                !scope.granted(&item, Privileges::READ_NODES).is_empty()
            }
        }
    }

    /// Tells whether a property is to be seen by whoever sees its node.
    pub(crate) fn sees_property(&self, path: &str, primary_type: &str, property: &str) -> bool {
        let Self::Rules(rules) = self else { return true };
        if is_policy_path(path) {
            return rules.sees_policy(path, primary_type);
        }
        let item = Item { path, property: Some(property), primary_type };
        !rules.scope_of(path).granted(&item, Privileges::READ_PROPERTIES).is_empty()
    }

    /// Returns how the children of a node are seen, policies among them left out.
    pub(crate) fn children(&self, path: &str) -> Children {
        let Self::Rules(rules) = self else {
            return Children::Alike { is_visible: true, others: BTreeMap::new() };
        };
        if is_policy_path(path) {
            return Children::Each;
        }
        rules.children(path)
    }

    /// Tells whether the subtree at a path is to be seen whole, policies in it left out. Gives `false` in doubt.
    pub(crate) fn sees_all(&self, path: &str) -> bool {
        let Self::Rules(rules) = self else { return true };
        let (mark, is_exact) = rules.locate(path);
        let is_whole = |scope: usize| rules.scope(scope).plain == Some(Privileges::READ);
        let Some(mark) = rules.marks.get(mark) else { return false };
        let is_end = !is_exact || mark.children.is_empty();
        is_end && is_whole(mark.below) && (!is_exact || is_whole(mark.own)) && !is_policy_path(path)
    }

    /// Tells whether a node and all of its properties are to be seen. Gives `false` in doubt.
    pub(crate) fn sees_whole_node(&self, path: &str) -> bool {
        let Self::Rules(rules) = self else { return true };
        rules.scope_of(path).plain == Some(Privileges::READ) && !is_policy_path(path)
    }

    /// Returns the rules that may count for a node in the order in which they are asked, and whether a closed user
    /// group shuts the viewer out; nothing where no rules bind the viewer.
    pub(crate) fn rules_at(&self, path: &str) -> Option<(&[Rule], bool)> {
        let Self::Rules(rules) = self else { return None };
        let scope = rules.scope_of(path);
        Some((&scope.rules, scope.is_closed))
    }
}

impl Rule {
    /// Tells whether the rule counts for an item.
    pub(crate) fn matches(&self, item: &Item<'_>) -> bool {
        self.is_always
            || self
                .entry
                .restrictions
                .as_ref()
                .is_none_or(|restrictions| restrictions.matches(item, self.entry.grants))
    }
}

impl Scope {
    fn new(rules: Vec<Rule>, is_closed: bool) -> Self {
        let plain = if is_closed { Some(Privileges::NONE) } else { plain(&rules) };
        Self { rules, plain, is_closed }
    }

    fn granted(&self, item: &Item<'_>, wanted: Privileges) -> Privileges {
        let mut open = if self.is_closed { wanted & !Privileges::READ } else { wanted };
        let mut granted = Privileges::NONE;
        for rule in &self.rules {
            let named = rule.entry.privileges & open;
            if !named.is_empty() && rule.matches(item) {
                if rule.entry.grants {
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

/// Returns what rules grant of `jcr:read` wherever they count; nothing if that depends.
fn plain(rules: &[Rule]) -> Option<Privileges> {
    let mut open = Privileges::READ;
    let mut granted = Privileges::NONE;
    for rule in rules {
        let named = rule.entry.privileges & open;
        if named.is_empty() {
            continue;
        }
        if !rule.is_always {
            return None;
        }
        if rule.entry.grants {
            granted = granted | named;
        }
        open = open & !named;
    }
    Some(granted)
}

impl Scope {
    /// Writes all that decides in the scope.
    fn write(&self, text: &mut String) {
        let Self { rules, plain, is_closed } = self;
        // What a string takes in cannot fail.
        writeln!(text, "{is_closed} {plain:?}").ok();
        for Rule { entry, policy, number, is_always } in rules {
            writeln!(text, "{:?} {number} {is_always} {entry:?}", policy.as_str()).ok();
        }
    }
}

impl Rules {
    /// Returns a digest of all that decides: which nodes are in which scopes, and the rules of each in their order.
    fn name(&self) -> ChunkId {
        let name_of = |scope: &Scope| {
            let mut text = String::new();
            scope.write(&mut text);
            ChunkId::of(text.as_bytes())
        };
        let scopes: Vec<ChunkId> = self.scopes.iter().map(name_of).collect();
        let repository = name_of(&self.repository);
        let mut text = repository.to_string();
        // From the top, children in the order of their names; marks are numbered in the order in which they were made.
        let mut waiting = vec![0];
        while let Some(at) = waiting.pop() {
            let Some(mark) = self.marks.get(at) else { continue };
            for scope in [mark.own, mark.below] {
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
        ChunkId::of(text.as_bytes())
    }

    /// Finds the deepest mark at or above a path, and whether it is at the path.
    fn locate(&self, path: &str) -> (usize, bool) {
        let mut at = 0;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.marks.get(at).and_then(|mark| mark.children.get(name)) {
                Some(child) => at = *child,
                None => return (at, false),
            }
        }
        (at, true)
    }

    fn scope_of(&self, path: &str) -> &Scope {
        let (at, is_exact) = self.locate(path);
        match self.marks.get(at) {
            Some(mark) if is_exact => self.scope(mark.own),
            Some(mark) => self.scope(mark.below),
            None => &self.repository,
        }
    }

    fn scope(&self, at: usize) -> &Scope {
        self.scopes.get(at).unwrap_or(&self.repository)
    }

    fn granted(&self, item: &Item<'_>, wanted: Privileges) -> Privileges {
        self.scope_of(item.path).granted(item, wanted)
    }

    fn sees_policy(&self, path: &str, primary_type: &str) -> bool {
        let item = Item { path, property: None, primary_type };
        !self.granted(&item, Privileges::READ_ACCESS_CONTROL).is_empty()
    }

    fn children(&self, path: &str) -> Children {
        let (at, is_exact) = self.locate(path);
        let Some(mark) = self.marks.get(at) else { return Children::Each };
        let visible = |scope: usize| {
            self.scope(scope).plain.map(|plain| plain.contains(Privileges::READ_NODES))
        };
        let Some(is_visible) = visible(mark.below) else { return Children::Each };
        let mut others = BTreeMap::new();
        if is_exact {
            for (name, child) in &mark.children {
                let own = self.marks.get(*child).and_then(|child| visible(child.own));
                match own {
                    Some(own) if own == is_visible => {}
                    Some(own) => drop(others.insert(name.to_string(), own)),
                    None => return Children::Each,
                }
            }
        }
        Children::Alike { is_visible, others }
    }
}

/// Puts the rules of one viewer together.
struct Compiler<'a> {
    principals: Principals,
    /// The policies with entries for the viewer, by the node that they count from.
    policies: BTreeMap<String, Vec<&'a Policy>>,
    /// Whether the closed user group at a node shuts the viewer out.
    cugs: BTreeMap<String, bool>,
    points: Vec<String>,
    repository: Vec<&'a Policy>,
    rules: Rules,
}

impl<'a> Compiler<'a> {
    fn new(principals: Principals, policies: &'a Policies) -> Self {
        let is_own = |name: &str| {
            principals.user.as_deref() == Some(name)
                || principals.groups.iter().any(|(group, _)| group == name)
        };
        let mut by_node: BTreeMap<String, Vec<&Policy>> = BTreeMap::new();
        let mut repository = Vec::new();
        let mut points = vec!["/".to_owned()];
        for policy in policies.policies() {
            let mut own = policy.entries.iter().filter(|entry| is_own(&entry.principal)).peekable();
            if own.peek().is_none() {
                continue;
            }
            let Some(node) = &policy.node else {
                repository.push(policy);
                continue;
            };
            points.push(node.to_string());
            for restrictions in own.filter_map(|entry| entry.restrictions.as_ref()) {
                restrictions.add_points(&mut points);
            }
            by_node.entry(node.to_string()).or_default().push(policy);
        }
        let mut cugs = BTreeMap::new();
        for cug in policies.cugs() {
            points.push(cug.node.to_string());
            cugs.insert(cug.node.to_string(), !cug.principals.iter().any(|name| is_own(name)));
        }
        points.sort_unstable();
        points.dedup();
        let (marks, scopes) = (Vec::new(), Vec::new());
        let digest = ChunkId::of(&[]);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let rules = Rules { marks, scopes, repository: Scope::default(), digest, number };
        Self { principals, policies: by_node, cugs, points, repository, rules }
    }

    fn compile(mut self) -> Rules {
        let whole =
            self.ordered(&self.repository).filter(|(_, entry, _)| entry.restrictions.is_none());
        let whole = whole.map(|rule| self.rule(rule, true)).collect();
        self.rules.repository = Scope::new(whole, false);
        // In order of paths, parents come before their children.
        for point in std::mem::take(&mut self.points) {
            self.add(&point);
        }
        self.rules.digest = self.rules.name();
        self.rules
    }

    /// Makes the marks on the way to a point, and its scopes.
    fn add(&mut self, point: &str) {
        let [own, below] = self.scopes_of(point);
        if point == "/" {
            self.rules.marks.push(Mark { children: HashMap::new(), own, below });
            return;
        }
        let mut at = 0;
        for name in point.split('/').filter(|name| !name.is_empty()) {
            let Some(mark) = self.rules.marks.get(at) else { return };
            at = match mark.children.get(name) {
                Some(child) => *child,
                None => {
                    let (next, inherited) = (self.rules.marks.len(), mark.below);
                    let child = Mark { children: HashMap::new(), own: inherited, below: inherited };
                    self.rules.marks.push(child);
                    if let Some(mark) = self.rules.marks.get_mut(at) {
                        mark.children.insert(name.into(), next);
                    }
                    next
                }
            };
        }
        if let Some(mark) = self.rules.marks.get_mut(at) {
            (mark.own, mark.below) = (own, below);
        }
    }

    /// Makes the scopes of a point: its own and that of what is below it.
    fn scopes_of(&mut self, point: &str) -> [usize; 2] {
        let above = ancestors(point);
        let policies: Vec<&Policy> =
            above.iter().filter_map(|node| self.policies.get(*node)).flatten().copied().collect();
        let is_closed =
            above.iter().find_map(|node| self.cugs.get(*node)).copied().unwrap_or(false);
        let scopes = [Part::Own, Part::Below].map(|part| {
            let mut rules = Vec::new();
            for (policy, entry, number) in self.ordered(&policies) {
                let fit = entry
                    .restrictions
                    .as_ref()
                    .map_or(Fit::Always, |one| one.fit(point, part, entry.grants));
                if fit != Fit::Never {
                    rules.push(self.rule((policy, entry, number), fit == Fit::Always));
                }
            }
            Scope::new(without_dead(rules), is_closed)
        });
        scopes.map(|scope| {
            self.rules.scopes.push(scope);
            self.rules.scopes.len() - 1
        })
    }

    /// Returns the viewer's entries of policies, deepest first, in the order in which they are asked.
    fn ordered<'p>(
        &'p self,
        policies: &'p [&'a Policy],
    ) -> impl Iterator<Item = (&'a Policy, &'a Arc<Entry>, usize)> + 'p {
        let user = self.principals.user.as_deref();
        let is_user = move |entry: &Entry| user == Some(entry.principal.as_str());
        let is_group = |entry: &Entry| {
            self.principals.groups.iter().any(|(group, _)| *group == entry.principal)
        };
        let entries = |policy: &&'a Policy| {
            let policy: &'a Policy = policy;
            policy.entries.iter().enumerate().rev().map(move |(at, entry)| (policy, entry, at + 1))
        };
        let users = policies.iter().flat_map(entries).filter(move |(_, entry, _)| is_user(entry));
        let groups = policies.iter().flat_map(entries);
        users.chain(groups.filter(move |(_, entry, _)| !is_user(entry) && is_group(entry)))
    }

    fn rule(
        &self,
        (policy, entry, number): (&Policy, &Arc<Entry>, usize),
        is_always: bool,
    ) -> Rule {
        Rule { entry: entry.clone(), policy: policy.at.clone(), number, is_always }
    }
}

/// Leaves out the rules behind those that decide everything they name.
fn without_dead(rules: Vec<Rule>) -> Vec<Rule> {
    let mut open = Privileges::ALL;
    let mut kept = Vec::new();
    for rule in rules {
        if (rule.entry.privileges & open).is_empty() {
            continue;
        }
        if rule.is_always {
            open = open & !rule.entry.privileges;
        }
        kept.push(rule);
    }
    kept
}

/// Returns a path and those above it, the deepest first.
fn ancestors(path: &str) -> Vec<&str> {
    let mut found = vec![path];
    let mut rest = path;
    while let Some((parent, _)) = rest.rsplit_once('/').filter(|_| rest != "/") {
        rest = if parent.is_empty() { "/" } else { parent };
        found.push(rest);
    }
    found
}
