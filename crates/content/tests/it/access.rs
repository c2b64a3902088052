//! Access control against a naive evaluator, and what its door lets through.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tympan_content::{
    ChunkId, Error, LookupIndex, Node, NodePath, PrivilegeCause, Privileges, Property, Repository,
    RevisionDetails, Session, SiblingPosition, Snapshot, Subtree, ValueType, Viewer,
};

const USERS: [&str; 3] = ["ann", "bob", "eve"];
const GROUPS: [&str; 3] = ["red", "blue", "green"];
const NAMES: [&str; 4] = ["a", "b", "cq:c", "jcr:content"];
const PROPERTIES: [&str; 3] = ["x", "cq:y", "a"];
const PRIVILEGES: [&str; 8] = [
    "jcr:read",
    "rep:readNodes",
    "rep:readProperties",
    "jcr:write",
    "rep:write",
    "jcr:addChildNodes",
    "jcr:readAccessControl",
    "jcr:all",
];

fn at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// One entry of a policy in the naive model.
#[derive(Debug, Clone)]
struct Entry {
    grants: bool,
    principal: String,
    privilege: &'static str,
    restrictions: Vec<(&'static str, Vec<String>)>,
}

/// A whole repository in the naive model.
#[derive(Debug, Clone)]
struct World {
    tree: Subtree,
    /// The members of each group: users and other groups, cycles included.
    members: BTreeMap<&'static str, BTreeSet<&'static str>>,
    /// By the number of the node among all nodes.
    policies: Vec<(prop::sample::Index, Vec<Entry>)>,
    cugs: Vec<(prop::sample::Index, Vec<String>)>,
}

fn node(depth: u32) -> BoxedStrategy<Subtree> {
    let kinds = ["sling:Folder", "sling:OrderedFolder", "cq:Page", "nt:unstructured", "dam:Asset"];
    let properties = prop::collection::btree_set(prop::sample::select(&PROPERTIES[..]), 0..3);
    let children = if depth == 0 {
        Just(Vec::new()).boxed()
    } else {
        let named = (prop::sample::select(&NAMES[..]), node(depth - 1));
        prop::collection::vec(named, 0..4).boxed()
    };
    (prop::sample::select(kinds.to_vec()), properties, children)
        .prop_map(|(kind, properties, children)| {
            let mut tree = Subtree::new("", kind);
            for name in properties {
                tree = tree.with_property(name, "value");
            }
            for (name, mut child) in children {
                name.clone_into(&mut child.name);
                tree.put_child(child);
            }
            tree
        })
        .boxed()
}

fn restriction() -> impl Strategy<Value = (&'static str, Vec<String>)> {
    let globs =
        vec!["", "/a", "/a/", "a", "/*", "/*/b", "*b", "*/a", "/a/*", "/cq:*", "/x", "/a/x", "/*x"];
    let glob = prop::sample::select(globs).prop_map(str::to_owned);
    let texts = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|one| (*one).to_owned()).collect();
        prop::collection::vec(prop::sample::select(list), 0..3)
    };
    prop_oneof![
        glob.clone().prop_map(|glob| ("rep:glob", vec![glob])),
        prop::collection::vec(glob, 0..3).prop_map(|globs| ("rep:globs", globs)),
        texts(&["cq:Page", "sling:Folder", "nt:unstructured"])
            .prop_map(|list| ("rep:ntNames", list)),
        texts(&["a", "b", "x", "cq:y"]).prop_map(|list| ("rep:itemNames", list)),
        texts(&["cq", "jcr", ""]).prop_map(|list| ("rep:prefixes", list)),
        texts(&["*", "x", "a"]).prop_map(|list| ("rep:current", list)),
        texts(&["/a", "/b/", "c", "/x"]).prop_map(|list| ("rep:subtrees", list)),
    ]
}

fn principal() -> impl Strategy<Value = String> {
    let names = USERS.iter().chain(&GROUPS).chain(&["everyone", "anonymous", "nobody"]).copied();
    prop::sample::select(names.map(str::to_owned).collect::<Vec<_>>())
}

fn world() -> impl Strategy<Value = World> {
    let entry = (
        prop::bool::weighted(0.7),
        principal(),
        prop::sample::select(&PRIVILEGES[..]),
        prop::collection::vec(restriction(), 0..2),
    )
        .prop_map(|(grants, principal, privilege, restrictions)| Entry {
            grants,
            principal,
            privilege,
            restrictions,
        });
    let policies = prop::collection::vec(
        (any::<prop::sample::Index>(), prop::collection::vec(entry, 1..4)),
        0..7,
    );
    let cug = (any::<prop::sample::Index>(), prop::collection::vec(principal(), 0..3));
    let all: Vec<&'static str> = USERS.iter().chain(&GROUPS).copied().collect();
    let members = prop::collection::vec(
        prop::collection::btree_set(prop::sample::select(all), 0..4),
        GROUPS.len(),
    );
    (node(4), members, policies, prop::collection::vec(cug, 0..2)).prop_map(
        |(tree, members, policies, cugs)| World {
            tree,
            members: GROUPS.into_iter().zip(members).collect(),
            policies,
            cugs,
        },
    )
}

/// A node of the world, as the naive evaluator needs it.
struct Known {
    path: String,
    primary_type: String,
    properties: Vec<String>,
}

fn collect(path: &str, node: &Subtree, known: &mut Vec<Known>) {
    known.push(Known {
        path: path.to_owned(),
        primary_type: node.primary_type().to_owned(),
        properties: node.properties.keys().cloned().collect(),
    });
    for child in &node.children {
        collect(&format!("{path}/{}", child.name), child, known);
    }
}

impl World {
    /// Builds the repository; `/content` is the top of the tree.
    fn build(&self, known: &[Known]) -> Repository {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("system").unwrap();
        for user in USERS {
            session.accounts().add_user(user, "hash").unwrap();
        }
        for group in GROUPS {
            session.accounts().add_group(group).unwrap();
        }
        for (group, members) in &self.members {
            for member in members {
                session.accounts().add_member(group, member).unwrap();
            }
        }
        session.put_node(&path("/content"), self.tree.clone()).unwrap();
        for (place, entries) in self.policies() {
            let mut policy = Subtree::new("rep:policy", "rep:ACL");
            for (number, entry) in entries.iter().enumerate() {
                policy.put_child(entry.to_subtree(number));
            }
            session
                .put_node(&path(&known[place].path).child("rep:policy").unwrap(), policy)
                .unwrap();
        }
        for (place, principals) in self.cugs(known) {
            let names =
                Property::parse_list(ValueType::String, principals.iter().map(|one| &**one));
            let cug = Subtree::new("rep:cugPolicy", "rep:CugPolicy")
                .with_property("rep:principalNames", names.unwrap());
            session
                .put_node(&path(&known[place].path).child("rep:cugPolicy").unwrap(), cug)
                .unwrap();
        }
        // The world is about policies: its nodes have properties that their types do not.
        session.mark_as_received();
        session.commit("build", at()).unwrap();
        repository
    }

    fn count(&self) -> usize {
        let mut known = Vec::new();
        collect("/content", &self.tree, &mut known);
        known.len()
    }

    /// Returns the policies by the number of their node; of two for one node the later counts.
    fn policies(&self) -> BTreeMap<usize, &Vec<Entry>> {
        let count = self.count();
        self.policies.iter().map(|(at, entries)| (at.index(count), entries)).collect()
    }

    fn cugs(&self, known: &[Known]) -> BTreeMap<usize, &Vec<String>> {
        self.cugs.iter().map(|(at, names)| (at.index(known.len()), names)).collect()
    }

    /// Returns the groups of a user, found by trying every group until nothing changes.
    fn groups_of(&self, user: Option<&str>) -> BTreeSet<String> {
        let mut groups = BTreeSet::from(["everyone".to_owned()]);
        let Some(user) = user else { return groups };
        loop {
            let before = groups.len();
            for (group, members) in &self.members {
                if members.contains(user) || members.iter().any(|one| groups.contains(*one)) {
                    groups.insert((*group).to_owned());
                }
            }
            if groups.len() == before {
                return groups;
            }
        }
    }

    /// Decides straight from the rules.
    fn is_granted(
        &self,
        known: &[Known],
        user: Option<&str>,
        (node, property): (&Known, Option<&str>),
        privilege: &str,
    ) -> bool {
        let groups = self.groups_of(user);
        let is_above = |above: &str| {
            node.path == above
                || node.path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
        };
        if matches!(privilege, "rep:readNodes" | "rep:readProperties") {
            let cugs = self.cugs(known);
            let nearest = cugs
                .iter()
                .filter(|(at, _)| is_above(&known[**at].path))
                .max_by_key(|(at, _)| known[**at].path.len());
            if let Some((_, names)) = nearest {
                let own = user.unwrap_or("anonymous");
                if !names.iter().any(|name| name == own || groups.contains(name)) {
                    return false;
                }
            }
        }
        let policies = self.policies();
        let mut above: Vec<_> =
            policies.iter().filter(|(at, _)| is_above(&known[**at].path)).collect();
        above.sort_by_key(|(at, _)| std::cmp::Reverse(known[**at].path.len()));
        for is_user_class in [true, false] {
            for (at, entries) in &above {
                for entry in entries.iter().rev() {
                    let is_meant = if is_user_class {
                        entry.principal == user.unwrap_or("anonymous")
                    } else {
                        groups.contains(&entry.principal)
                    };
                    let names = Privileges::find(entry.privilege).unwrap();
                    let base = &known[**at].path;
                    if is_meant
                        && names.contains(Privileges::find(privilege).unwrap())
                        && entry.restrictions.iter().all(|one| matches(one, base, node, property))
                    {
                        return entry.grants;
                    }
                }
            }
        }
        false
    }
}

impl Entry {
    fn to_subtree(&self, number: usize) -> Subtree {
        let kind = if self.grants { "rep:GrantACE" } else { "rep:DenyACE" };
        let mut restrictions = Subtree::new("rep:restrictions", "rep:Restrictions");
        for (name, values) in &self.restrictions {
            let texts = values.iter().map(|one| &**one);
            let property = match *name {
                "rep:glob" => Property::text(values[0].clone()),
                _ => Property::parse_list(ValueType::String, texts).unwrap(),
            };
            restrictions = restrictions.with_property(*name, property);
        }
        let privileges = Property::parse_list(ValueType::Name, [self.privilege]).unwrap();
        let entry = Subtree::new(format!("entry{number}"), kind)
            .with_property("rep:principalName", Property::text(self.principal.clone()))
            .with_property("rep:privileges", privileges);
        if self.restrictions.is_empty() { entry } else { entry.with_child(restrictions) }
    }
}

/// Matches one restriction, with regular expressions where the program has its own matcher.
fn matches(
    (name, values): &(&'static str, Vec<String>),
    base: &str,
    node: &Known,
    property: Option<&str>,
) -> bool {
    let item = match property {
        Some(property) => format!("{}/{property}", node.path),
        None => node.path.clone(),
    };
    let item_name = item.rsplit('/').next().unwrap();
    let glob = |glob: &String| {
        if glob.is_empty() {
            return item == base;
        }
        let pattern = format!("{base}{glob}");
        if pattern.contains('*') {
            let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
            return regex::Regex::new(&format!("^{}$", parts.join(".*"))).unwrap().is_match(&item);
        }
        item == pattern || item.starts_with(&format!("{}/", pattern.trim_end_matches('/')))
    };
    match *name {
        "rep:glob" | "rep:globs" => values.iter().any(glob),
        "rep:ntNames" => values.contains(&node.primary_type),
        "rep:itemNames" => values.iter().any(|one| one == item_name),
        "rep:prefixes" => {
            let prefix = item_name.split_once(':').map_or("", |(prefix, _)| prefix);
            values.iter().any(|one| one == prefix)
        }
        "rep:current" => {
            let is_meant = |property| values.iter().any(|one| one == "*" || one == property);
            node.path == base && property.is_none_or(is_meant)
        }
        "rep:subtrees" => {
            let below = &item[base.len()..];
            values.iter().any(|one| {
                let folder = if one.ends_with('/') { one.clone() } else { format!("{one}/") };
                below.contains(&folder) || !one.ends_with('/') && below.ends_with(&**one)
            })
        }
        other => panic!("{other}"),
    }
}

fn names_of(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.name().to_owned()).collect()
}

/// Checks that all ways to the children of a node show the same.
fn check_children(seen: &Snapshot, all: &Snapshot, at: &NodePath) {
    let (node, whole) = (seen.node(at).unwrap().unwrap(), all.node(at).unwrap().unwrap());
    let expected: Vec<String> = whole
        .children()
        .unwrap()
        .iter()
        .filter(|child| seen.node(child.path()).unwrap().is_some())
        .map(|child| child.name().to_owned())
        .collect();
    assert_eq!(names_of(&node.children().unwrap()), expected, "children of {at}");
    // Made anew, and from what the other viewers of this state left.
    for node in [&node, &seen.node(at).unwrap().unwrap()] {
        let list = node.child_list().unwrap();
        let reached: Vec<Node> = list.iter().collect();
        assert_eq!(names_of(&reached), expected, "list of {at}");
        let paths: Vec<&NodePath> = list.paths().collect();
        assert_eq!(paths, reached.iter().map(Node::path).collect::<Vec<_>>());
        assert_eq!((list.len(), list.is_empty()), (expected.len(), expected.is_empty()));
        assert!(list.get(expected.len()).is_none());
        for child in reached {
            let found = seen.node(child.path()).unwrap().unwrap();
            assert_eq!(child.properties(), found.properties(), "{}", child.path());
        }
    }
    let read: Vec<String> =
        node.read_subtree().unwrap().children.iter().map(|child| child.name.clone()).collect();
    assert_eq!(read, expected, "read of {at}");
    for child in whole.children().unwrap() {
        let is_seen = node.child(child.name()).unwrap().is_some();
        assert_eq!(is_seen, expected.iter().any(|name| name == child.name()));
    }
    let listed = names_of(&node.listed_children().unwrap());
    assert_eq!(node.count_listed_children().unwrap(), listed.len(), "count of {at}");
    assert_eq!(node.has_listed_children().unwrap(), !listed.is_empty(), "has children: {at}");
    for (offset, limit) in [(0, 1), (1, 1), (0, 100), (1, 2), (2, 100)] {
        let page = names_of(&node.listed_page(offset, limit).unwrap());
        let expected: Vec<_> = listed.iter().skip(offset).take(limit).cloned().collect();
        assert_eq!(page, expected, "page {offset},{limit} of {at}");
    }
}

/// How many worlds are tried: 250, or what `PROPTEST_CASES` says for a longer run.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(250)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn agrees_with_the_naive_evaluator(world in world()) {
        let mut known = Vec::new();
        collect("/content", &world.tree, &mut known);
        let repository = world.build(&known);
        let all = repository.snapshot().unwrap();
        for user in USERS.iter().copied().map(Some).chain([None]) {
            let viewer = Viewer::of_user(user);
            let seen = all.as_viewer(&viewer);
            for node in &known {
                let at = path(&node.path);
                let grants = |property: Option<&str>, privilege: &str| {
                    world.is_granted(&known, user, (node, property), privilege)
                };
                let found = seen.node(&at).unwrap();
                prop_assert_eq!(found.is_some(), grants(None, "rep:readNodes"), "{:?} {}", user, at);
                let privileges = seen.privileges(&at).unwrap();
                for name in Privileges::ALL.names() {
                    let is_granted = privileges.contains(Privileges::find(name).unwrap());
                    prop_assert_eq!(is_granted, grants(None, name), "{:?} {} {}", user, at, name);
                }
                let Some(found) = found else { continue };
                let shown: Vec<String> = found.properties().into_iter().map(|(name, _)| name).collect();
                let expected: Vec<String> = node
                    .properties
                    .iter()
                    .filter(|name| grants(Some(name), "rep:readProperties"))
                    .cloned()
                    .collect();
                prop_assert_eq!(&shown, &expected, "{:?} {}", user, at);
                let read: Vec<String> = found.read_subtree().unwrap().properties.into_keys().collect();
                prop_assert_eq!(&read, &expected);
                check_children(&seen, &all, &at);
                for reason in repository.explain_privileges(&viewer, &at, Privileges::READ).unwrap() {
                    prop_assert_eq!(reason.is_granted, grants(None, reason.privilege));
                }
            }
        }
    }
}

/// Tells all that a snapshot shows of a node, in as many ways as there are to read it.
fn shown(seen: &Snapshot, at: &NodePath) -> String {
    let Some(node) = seen.node(at).unwrap() else { return "nothing".to_owned() };
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        node.properties(),
        names_of(&node.children().unwrap()),
        names_of(&node.listed_children().unwrap()),
        node.has_listed_children().unwrap(),
        node.read_subtree().unwrap(),
        seen.privileges(at).unwrap(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// What was read beside another viewer without a difference, the other one reads alike; and who has an equal sight does
    /// so wherever it looks.
    #[test]
    fn what_was_seen_alike_is_the_same_for_both(world in world(), places in prop::collection::vec(any::<prop::sample::Index>(), 1..4)) {
        let mut known = Vec::new();
        collect("/content", &world.tree, &mut known);
        let repository = world.build(&known);
        let all = repository.snapshot().unwrap();
        let viewers: Vec<_> =
            USERS.iter().copied().map(Some).chain([None, Some("admin")]).map(Viewer::of_user).collect();
        for (own, other) in viewers.iter().flat_map(|own| viewers.iter().map(move |other| (own, other))) {
            let (plain, beside) = (all.as_viewer(other), all.as_viewer_compared(own, other));
            prop_assert_eq!(plain.is_seen_alike(), None);
            let mut is_same = true;
            for place in &places {
                let at = path(&place.get(&known).path);
                is_same &= shown(&beside, &at) == shown(&plain, &at);
                // A difference may be told where none shows, and never the other way round.
                prop_assert!(is_same || beside.is_seen_alike() == Some(false), "{:?} {:?} {}", own, other, at);
            }
            if own == other || all.as_viewer(own).access_fingerprint() == plain.access_fingerprint() {
                prop_assert_eq!(beside.is_seen_alike(), Some(true));
                for node in &known {
                    prop_assert_eq!(shown(&beside, &path(&node.path)), shown(&plain, &path(&node.path)));
                }
            }
        }
    }
}

#[test]
fn members_of_groups_that_no_policy_names_have_the_sight_of_everybody() {
    let repository = house();
    let sight = |user: Option<&str>| {
        let viewer = Viewer::of_user(user);
        repository.snapshot().unwrap().as_viewer(&viewer).access_fingerprint()
    };
    assert_eq!(sight(Some("bob")), sight(None));
    assert_ne!(sight(Some("ann")), sight(None), "an author");
    assert_eq!(repository.snapshot().unwrap().access_fingerprint(), None, "the program itself");
    let mut session = repository.session("system").unwrap();
    session.accounts().add_group("club").unwrap();
    session.accounts().add_member("club", "bob").unwrap();
    session.commit("join", at()).unwrap();
    assert_eq!(sight(Some("bob")), sight(None));
    put(&repository, "/content/closed/rep:policy", deny("club", &["jcr:read"]));
    assert_ne!(sight(Some("bob")), sight(None));
    // What is decided otherwise and never looked at makes no difference.
    let viewer = Viewer::of_user;
    let beside =
        repository.snapshot().unwrap().as_viewer_compared(&viewer(Some("bob")), &viewer(None));
    assert!(beside.node(&path("/content/open")).unwrap().is_some());
    assert_eq!(beside.is_seen_alike(), Some(true));
    assert!(beside.node(&path("/content/closed")).unwrap().is_none());
    assert_eq!(beside.is_seen_alike(), Some(false));
}

/// A repository with its initial policies and two users: `ann` may edit, `bob` may look at what is public.
fn house() -> Repository {
    let repository = Repository::in_memory().unwrap();
    assert!(repository.install_initial_policies(at()).unwrap());
    assert!(!repository.install_initial_policies(at()).unwrap());
    let mut session = repository.session("system").unwrap();
    for user in ["ann", "bob"] {
        session.accounts().add_user(user, "hash").unwrap();
    }
    session.accounts().add_member("content-authors", "ann").unwrap();
    let page = |name: &str, title: &str| {
        let content = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("jcr:title", Property::text(title))
            .with_child(Subtree::new("par", "nt:unstructured").with_property("text", "hello"));
        Subtree::new(name, "cq:Page").with_child(content)
    };
    let site = Subtree::new("content", "sling:OrderedFolder")
        .with_child(page("open", "Open"))
        .with_child(page("closed", "Closed"))
        .with_child(page("last", "Last"));
    session.put_node(&path("/content"), site).unwrap();
    session
        .put_node(&path("/etc"), Subtree::new("etc", "sling:Folder").with_property("secret", "x"))
        .unwrap();
    session.commit("build", at()).unwrap();
    repository
}

fn deny(principal: &str, privileges: &[&str]) -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, privileges.iter().copied()).unwrap();
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", Property::text(principal))
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

fn put(repository: &Repository, at_path: &str, tree: Subtree) {
    let mut session = repository.session("system").unwrap();
    session.put_node(&path(at_path), tree).unwrap();
    session.mark_as_received();
    session.commit("put", at()).unwrap();
}

fn is_seen(repository: &Repository, user: Option<&str>, at_path: &str) -> bool {
    let viewer = Viewer::of_user(user);
    repository.snapshot().unwrap().as_viewer(&viewer).node(&path(at_path)).unwrap().is_some()
}

#[test]
fn initial_policies_open_what_is_public() {
    let repository = house();
    for (user, at_path, expected) in [
        (None, "/", true),
        (None, "/content/open/jcr:content/par", true),
        (None, "/etc", false),
        (None, "/home", false),
        (None, "/rep:policy", false),
        (Some("ann"), "/etc", false),
        (Some("ann"), "/home/users/ann", false),
        (Some("admin"), "/home/users/ann", true),
        (Some("admin"), "/rep:policy", true),
    ] {
        assert_eq!(is_seen(&repository, user, at_path), expected, "{user:?} {at_path}");
    }
}

#[test]
fn hidden_content_shows_nowhere() {
    let repository = house();
    put(&repository, "/content/closed/rep:policy", deny("everyone", &["jcr:read"]));
    let viewer = Viewer::of_user(Some("bob"));
    let seen = repository.snapshot().unwrap().as_viewer(&viewer);
    let folder = seen.node(&path("/content")).unwrap().unwrap();
    assert_eq!(names_of(&folder.listed_children().unwrap()), ["open", "last"]);
    assert_eq!(names_of(&folder.listed_page(1, 1).unwrap()), ["last"]);
    assert_eq!(folder.count_listed_children().unwrap(), 2);
    assert!(!folder.listed_descendants().unwrap().iter().any(|node| node.name() == "closed"));
    let pages = seen.look_up_paths(LookupIndex::Type, "cq:Page").unwrap();
    assert_eq!(pages, [path("/content/last"), path("/content/open")]);
    assert!(seen.look_up_paths(LookupIndex::Type, "rep:ACL").unwrap().is_empty());
    assert!(seen.node(&path("/content/closed/jcr:content/par")).unwrap().is_none());
    assert!(!seen.can_see(&path("/content/closed/jcr:content/gone"), "nt:unstructured"));
}

#[test]
fn what_was_seen_of_the_past_is_not_seen_when_it_is_closed_since() {
    let repository = house();
    let past = repository.snapshot().unwrap();
    let viewer = Viewer::of_user(Some("bob"));
    let shown = |state: &Snapshot| {
        let seen = state.as_viewer(&viewer);
        let page = seen.node(&path("/content/closed")).unwrap();
        let title = page.as_ref().and_then(|page| page.summary()?.title().map(str::to_owned));
        let part = seen.node(&path("/content/closed/jcr:content/par")).unwrap();
        let folder = seen.node(&path("/content")).unwrap().unwrap();
        let listed = folder.child_list().unwrap().len();
        (title, part.and_then(|part| part.text("text")), listed)
    };
    let open = (Some("Closed".to_owned()), Some("hello".to_owned()), 3);
    assert_eq!(shown(&past), open);
    assert_eq!(shown(&past), open);
    put(&repository, "/content/closed/rep:policy", deny("bob", &["jcr:read"]));
    let newest = repository.snapshot().unwrap();
    assert_eq!(shown(&newest), (None, None, 2));
    assert_eq!(shown(&past), (None, None, 2));
    // Opened again, the past shows what it did; a state that has the policy itself does not.
    let mut session = repository.session("system").unwrap();
    session.remove_node(&path("/content/closed/rep:policy")).unwrap();
    session.commit("open", at()).unwrap();
    assert_eq!(shown(&past), open);
    assert_eq!(shown(&newest), (None, None, 2));
}

/// A page that `bob` may see at first.
fn late_page() -> Subtree {
    let content = Subtree::new("jcr:content", "nt:unstructured")
        .with_child(Subtree::new("par", "nt:unstructured"));
    Subtree::new("late", "cq:Page").with_child(content)
}

/// Returns true if a user sees the page `late` and its parts in a state.
fn is_late_page_seen(user: &str, state: &Snapshot) -> bool {
    let seen = state.as_viewer(&Viewer::of_user(Some(user)));
    let listed = seen.node(&path("/content")).unwrap().unwrap().listed_children().unwrap();
    let is_listed = names_of(&listed).contains(&"late".to_owned());
    let part = seen.node(&path("/content/late/jcr:content/par")).unwrap();
    assert_eq!(part.is_some(), is_listed);
    is_listed
}

fn edit(repository: &Repository, change: impl Fn(&mut Session)) {
    let mut session = repository.session("system").unwrap();
    change(&mut session);
    session.commit("edit", at()).unwrap();
}

const REVISING: RevisionDetails<'_> =
    RevisionDetails { user: "system", message: "revise", time: SystemTime::UNIX_EPOCH };

#[test]
fn what_was_closed_and_then_removed_is_not_seen_on_branches_and_in_the_past() {
    type Removal = fn(&Repository, ChunkId);
    let removals: [(&str, Removal); 5] = [
        ("removed", |repository, _| {
            edit(repository, |session| session.remove_node(&path("/content/late")).unwrap());
        }),
        ("removed with what is above", |repository, _| {
            edit(repository, |session| session.remove_node(&path("/content")).unwrap());
            put(repository, "/content", Subtree::new("content", "sling:OrderedFolder"));
        }),
        ("moved", |repository, _| {
            edit(repository, |session| {
                session.move_node(&path("/content/late"), &path("/content/moved")).unwrap();
            });
        }),
        ("removed by a merge", |repository, _| {
            repository.create_branch("work", REVISING).unwrap();
            edit(&repository.open_branch("work").unwrap(), |session| {
                session.remove_node(&path("/content/late")).unwrap();
            });
            repository.merge_branch("work", REVISING).unwrap();
        }),
        ("reverted", |repository, before| repository.revert_to_root(before, REVISING).unwrap()),
    ];
    for (name, remove) in removals {
        let repository = house();
        let before = repository.head_root().unwrap();
        put(&repository, "/content/late", late_page());
        let past = repository.snapshot().unwrap();
        repository.create_branch("early", REVISING).unwrap();
        put(&repository, "/content/late/rep:policy", deny("bob", &["jcr:read"]));
        remove(&repository, before);
        let early = repository.open_branch("early").unwrap();
        edit(&early, |session| {
            let page = path("/content/open/jcr:content");
            session.set_property(&page, "x", Property::text("x")).unwrap();
        });
        let states = [past, early.snapshot().unwrap()];
        let is_hidden = || {
            states.iter().all(|state| {
                assert!(is_late_page_seen("ann", state), "{name}");
                !is_late_page_seen("bob", state)
            })
        };
        assert!(is_hidden(), "{name}");
        // Another node at the path is judged by its own policies, also on branches that begin with it.
        put(&repository, "/content/late", late_page());
        assert!(is_late_page_seen("bob", &repository.snapshot().unwrap()), "{name}");
        assert!(is_hidden(), "{name}");
        let open = repository.snapshot().unwrap();
        edit(&repository, |session| session.remove_node(&path("/content/late")).unwrap());
        assert!(is_late_page_seen("bob", &open), "{name}");
        assert!(is_hidden(), "{name}");
    }
}

#[test]
fn what_was_opened_and_then_removed_is_seen_in_the_past() {
    let repository = house();
    put(&repository, "/content/late", late_page());
    let past = repository.snapshot().unwrap();
    put(&repository, "/content/late/rep:policy", deny("bob", &["jcr:read"]));
    edit(&repository, |session| session.remove_node(&path("/content/late/rep:policy")).unwrap());
    edit(&repository, |session| session.remove_node(&path("/content/late")).unwrap());
    assert!(is_late_page_seen("bob", &past));
}

#[test]
fn parts_of_documents_are_hidden_with_their_headers() {
    let repository = house();
    put(&repository, "/content/open/jcr:content/rep:policy", deny("bob", &["rep:readProperties"]));
    let viewer = Viewer::of_user(Some("bob"));
    let seen = repository.snapshot().unwrap().as_viewer(&viewer);
    let page = seen.node(&path("/content/open")).unwrap().unwrap();
    assert_eq!(page.summary().unwrap().title(), None);
    assert_eq!(page.content_node().unwrap().unwrap().properties(), []);
    assert_eq!(page.body_id(), None);
    let other = seen.node(&path("/content/last")).unwrap().unwrap();
    assert_eq!(other.summary().unwrap().title(), Some("Last"));
}

#[test]
fn a_document_is_fully_visible_unless_a_part_of_it_is_closed() {
    let repository = house();
    let is_whole = |user: &str, at_path: &str| {
        let viewer = Viewer::of_user(Some(user));
        let seen = repository.snapshot().unwrap().as_viewer(&viewer);
        seen.node(&path(at_path)).unwrap().unwrap().is_document_fully_visible().unwrap()
    };
    // A policy, which hardly anyone may read, closes nothing by itself.
    put(&repository, "/content/last/rep:policy", deny("ann", &["jcr:write"]));
    put(&repository, "/content/open/jcr:content/rep:policy", deny_property("bob", "jcr:title"));
    put(&repository, "/content/closed/jcr:content/par/rep:policy", deny("bob", &["jcr:read"]));
    for (user, at_path, expected) in [
        ("bob", "/content/last", true),
        ("bob", "/content/open", false),
        ("bob", "/content/closed", false),
        ("ann", "/content/open", true),
        ("admin", "/content/open", true),
    ] {
        assert_eq!(is_whole(user, at_path), expected, "{user} {at_path}");
    }
}

/// Denies the reading of one property.
fn deny_property(principal: &str, name: &str) -> Subtree {
    let mut policy = deny(principal, &["rep:readProperties"]);
    let names = Property::parse_list(ValueType::Name, [name]).unwrap();
    let restrictions =
        Subtree::new("rep:restrictions", "rep:Restrictions").with_property("rep:itemNames", names);
    policy.children[0].put_child(restrictions);
    policy
}

#[test]
fn a_property_that_may_not_be_read_refers_to_nothing() {
    const UUID: &str = "11111111-1111-4111-8111-111111111111";
    let repository = house();
    let mut session = repository.session("ann").unwrap();
    let (target, content) = (path("/content/last/jcr:content"), path("/content/open/jcr:content"));
    session
        .set_property(
            &target,
            "jcr:mixinTypes",
            Property::parse_list(ValueType::Name, ["mix:referenceable"]).unwrap(),
        )
        .unwrap();
    session.set_property(&target, "jcr:uuid", UUID.into()).unwrap();
    session
        .set_property(
            &content,
            "hidden",
            Property::Single(tympan_content::Value::Reference(UUID.into())),
        )
        .unwrap();
    session.set_property(&content, "link", "/content/last".into()).unwrap();
    session.commit("refer", at()).unwrap();
    put(&repository, "/content/open/rep:policy", deny_property("bob", "hidden"));
    let found = |user: Option<&str>| {
        let snapshot = repository.snapshot().unwrap();
        let seen = match user {
            Some(user) => snapshot.as_viewer(&Viewer::of_user(Some(user))),
            None => snapshot,
        };
        let names = |list: Vec<NodePath>| list.iter().map(NodePath::to_string).collect::<Vec<_>>();
        let referrers = seen.referrers(&path("/content/last")).unwrap();
        let referrers: Vec<String> = referrers.iter().map(|one| one.property.clone()).collect();
        let by_id = names(seen.look_up_paths(LookupIndex::Reference, UUID).unwrap());
        let by_path = names(seen.look_up_paths(LookupIndex::Reference, "/content/last").unwrap());
        (referrers.join(" "), by_id, by_path)
    };
    let open = vec!["/content/open/jcr:content".to_owned()];
    assert_eq!(found(None), ("hidden link".to_owned(), open.clone(), open.clone()));
    assert_eq!(found(Some("bob")), ("link".to_owned(), Vec::new(), open));
    // Who may remove a node is not told what else refers to it.
    put(
        &repository,
        "/content/rep:policy",
        Subtree::new("rep:policy", "rep:ACL").with_child(
            Subtree::new("allow", "rep:GrantACE")
                .with_property("rep:principalName", Property::text("bob"))
                .with_property(
                    "rep:privileges",
                    Property::parse_list(ValueType::Name, ["jcr:all"]).unwrap(),
                ),
        ),
    );
    let mut session = repository.session_as(&Viewer::of_user(Some("bob"))).unwrap();
    session.remove_node(&target).unwrap();
    let error = session.commit("remove", at()).unwrap_err().to_string();
    assert!(error.contains("OakIntegrity0001") && error.contains("you may not see"), "{error}");
    assert!(!error.contains("hidden") && !error.contains("/content/open"), "{error}");
}

#[test]
fn passwords_are_shown_to_nobody() {
    let repository = house();
    let viewer = Viewer::of_user(Some("admin"));
    let seen = repository.snapshot().unwrap().as_viewer(&viewer);
    let user = seen.node(&path("/home/users/ann")).unwrap().unwrap();
    assert_eq!(user.property("rep:password"), None);
    assert_eq!(user.text("rep:principalName").as_deref(), Some("ann"));
    assert!(!user.read_subtree().unwrap().properties.contains_key("rep:password"));
    let whole = repository.snapshot().unwrap().node(user.path()).unwrap().unwrap();
    assert!(whole.property("rep:password").is_some());
}

/// What an edit of a user needs, for a user who may do everything in `/content` but one thing.
fn check_edit(
    denied: &str,
    edit: impl Fn(&mut tympan_content::Session) -> tympan_content::Result<()>,
    expected: Option<(&str, &str)>,
) {
    let repository = house();
    put(&repository, "/content/rep:policy", deny("ann", &[denied]));
    let viewer = Viewer::of_user(Some("ann"));
    let mut session = repository.session_as(&viewer).unwrap();
    edit(&mut session).unwrap();
    let refused = match session.commit("edit", at()) {
        Ok(_) => None,
        Err(Error::AccessDenied { path, privilege }) => Some((path.to_string(), privilege)),
        Err(error) => panic!("{error}"),
    };
    let refused = refused.as_ref().map(|(path, privilege)| (&**path, *privilege));
    assert_eq!(refused, expected, "without {denied}");
}

#[test]
fn commits_need_exact_privileges() {
    let text = || Property::text("new");
    let content = || path("/content/open/jcr:content");
    let nothing = "jcr:lockManagement";
    for (denied, expected) in [
        ("rep:alterProperties", Some(("/content/open/jcr:content", "rep:alterProperties"))),
        ("rep:addProperties", None),
        (nothing, None),
    ] {
        check_edit(
            denied,
            |session| session.set_property(&content(), "jcr:title", text()),
            expected,
        );
    }
    check_edit(
        "rep:addProperties",
        |session| session.set_property(&content(), "more", text()),
        Some(("/content/open/jcr:content", "rep:addProperties")),
    );
    check_edit(
        "rep:removeProperties",
        |session| session.remove_property(&content(), "jcr:title").map(drop),
        Some(("/content/open/jcr:content", "rep:removeProperties")),
    );
    let add =
        |session: &mut tympan_content::Session| session.add_node(&path("/content/new"), "cq:Page");
    check_edit("jcr:addChildNodes", add, Some(("/content", "jcr:addChildNodes")));
    check_edit("jcr:nodeTypeManagement", add, None);
    let remove =
        |session: &mut tympan_content::Session| session.remove_node(&path("/content/open"));
    check_edit("jcr:removeNode", remove, Some(("/content/open", "jcr:removeNode")));
    check_edit("jcr:removeChildNodes", remove, Some(("/content", "jcr:removeChildNodes")));
    check_edit("jcr:addChildNodes", remove, None);
    let shift = |session: &mut tympan_content::Session| {
        session.move_node(&path("/content/open"), &path("/content/closed/moved"))
    };
    check_edit(
        "jcr:nodeTypeManagement",
        shift,
        Some(("/content/closed/moved", "jcr:nodeTypeManagement")),
    );
    check_edit("jcr:removeNode", shift, Some(("/content/open", "jcr:removeNode")));
    check_edit("rep:addProperties", shift, None);
    let order = |session: &mut tympan_content::Session| {
        session.reorder_node(&path("/content/last"), &SiblingPosition::First)
    };
    check_edit("jcr:removeChildNodes", order, Some(("/content", "jcr:removeChildNodes")));
    check_edit("rep:alterProperties", order, None);
    let mixin = |session: &mut tympan_content::Session| {
        let list = Property::parse_list(ValueType::Name, ["mix:title"]).unwrap();
        session.set_property(&content(), "jcr:mixinTypes", list)
    };
    check_edit(
        "jcr:nodeTypeManagement",
        mixin,
        Some(("/content/open/jcr:content", "jcr:nodeTypeManagement")),
    );
    check_edit("rep:addProperties", mixin, None);
    let policy = |session: &mut tympan_content::Session| {
        session.put_node(&path("/content/open/rep:policy"), deny("bob", &["jcr:read"]))
    };
    check_edit(nothing, policy, Some(("/content/open", "jcr:modifyAccessControl")));
    let user = |session: &mut tympan_content::Session| {
        session.put_node(&path("/content/open/jcr:content/u"), Subtree::new("u", "rep:User"))
    };
    check_edit(nothing, user, Some(("/content/open/jcr:content/u", "rep:userManagement")));
}

#[test]
fn what_is_not_seen_cannot_be_edited_or_copied_out() {
    let repository = house();
    put(&repository, "/content/open/jcr:content/par/rep:policy", deny("ann", &["jcr:read"]));
    let viewer = Viewer::of_user(Some("ann"));
    let mut session = repository.session_as(&viewer).unwrap();
    let hidden = path("/content/open/jcr:content/par");
    let edits = [
        session.set_property(&hidden, "text", Property::text("x")),
        session.remove_node(&hidden),
        session.move_node(&hidden, &path("/content/out")),
        session.copy_node(&hidden, &path("/content/out")),
    ];
    for edit in edits {
        assert!(matches!(edit, Err(Error::NodeMissing(_))), "{edit:?}");
    }
    session.copy_node(&path("/content/open"), &path("/content/copy")).unwrap();
    session.commit("copy", at()).unwrap();
    let copy = repository.snapshot().unwrap().node(&path("/content/copy/jcr:content")).unwrap();
    assert_eq!(copy.unwrap().children().unwrap().len(), 0);
    session.move_node(&path("/content/open"), &path("/content/moved")).unwrap();
    session.commit("move", at()).unwrap();
    let moved = repository.snapshot().unwrap();
    assert!(moved.node(&path("/content/moved/jcr:content/par/rep:policy")).unwrap().is_some());
}

#[test]
fn rights_follow_groups_and_end_with_them() {
    let repository = house();
    let viewer = Viewer::of_user(Some("bob"));
    let try_edit = || {
        let mut session = repository.session_as(&viewer).unwrap();
        let page = path("/content/open/jcr:content");
        session.set_property(&page, "by", Property::text("bob")).unwrap();
        session.commit("edit", at()).is_ok()
    };
    assert!(!try_edit());
    let change = |edit: &dyn Fn(&mut tympan_content::Session)| {
        let mut session = repository.session("system").unwrap();
        edit(&mut session);
        session.commit("change", at()).unwrap();
    };
    change(&|session| {
        session.accounts().add_group("interns").unwrap();
        session.accounts().add_member("content-authors", "interns").unwrap();
        session.accounts().add_member("interns", "content-authors").unwrap();
        session.accounts().add_member("interns", "bob").unwrap();
    });
    let groups = repository.groups_of_viewer(&viewer).unwrap();
    assert_eq!(groups, ["interns", "content-authors", "everyone"]);
    let reasons = repository
        .explain_privileges(&viewer, &path("/content/open"), Privileges::ADD_CHILD_NODES)
        .unwrap();
    let PrivilegeCause::Entry(entry) = &reasons[0].cause else { panic!("{reasons:?}") };
    assert_eq!((entry.entry_number, &*entry.principal), (4, "content-authors"));
    assert_eq!(entry.group_chain, ["interns"]);
    assert_eq!(entry.policy_path, path("/rep:policy"));
    let before = repository.snapshot().unwrap();
    put(
        &repository,
        "/content/open/jcr:content/par",
        Subtree::new("par", "nt:unstructured").with_property("by", "bob"),
    );
    change(&|session| session.accounts().set_disabled("bob", Some("left")).unwrap());
    assert!(!repository.can_log_in("bob").unwrap() && repository.can_log_in("ann").unwrap());
    assert!(!try_edit());
    put(&repository, "/content/closed/rep:policy", deny("everyone", &["jcr:read"]));
    // The past shows nothing that was closed since.
    assert!(before.as_viewer(&viewer).node(&path("/content/closed")).unwrap().is_none());
    change(&|session| session.remove_node(&path("/content/closed/rep:policy")).unwrap());
    assert!(before.as_viewer(&viewer).node(&path("/content/closed")).unwrap().is_some());
}

#[test]
fn closed_user_groups_let_their_members_read() {
    let repository = house();
    let names = Property::parse_list(ValueType::String, ["content-authors"]).unwrap();
    let cug = || {
        Subtree::new("rep:cugPolicy", "rep:CugPolicy")
            .with_property("rep:principalNames", names.clone())
    };
    put(&repository, "/content/closed/rep:cugPolicy", cug());
    put(&repository, "/etc/rep:cugPolicy", cug());
    assert!(is_seen(&repository, Some("ann"), "/content/closed/jcr:content"));
    assert!(!is_seen(&repository, Some("bob"), "/content/closed/jcr:content"));
    assert!(!is_seen(&repository, None, "/content/closed"));
    assert!(is_seen(&repository, Some("admin"), "/content/closed/rep:cugPolicy"));
    let bob = Viewer::of_user(Some("bob"));
    let reasons = repository
        .explain_privileges(&bob, &path("/content/closed"), Privileges::READ_NODES)
        .unwrap();
    assert_eq!(reasons[0].cause, PrivilegeCause::ClosedGroup(Some(path("/content/closed"))));
}

#[test]
fn service_users_have_their_own_policies() {
    let repository = house();
    let entry = Subtree::new("e", "rep:PrincipalEntry")
        .with_property("rep:effectivePath", "/etc")
        .with_property(
            "rep:privileges",
            Property::parse_list(ValueType::Name, ["jcr:read"]).unwrap(),
        );
    let policy = Subtree::new("rep:principalPolicy", "rep:PrincipalPolicy")
        .with_property("rep:principalName", "indexer")
        .with_child(entry);
    let user = Subtree::new("indexer", "rep:SystemUser").with_child(policy);
    let system = Subtree::new("system", "rep:AuthorizableFolder").with_child(user);
    put(&repository, "/home/users/system", system);
    assert!(is_seen(&repository, Some("indexer"), "/etc"));
    assert!(!is_seen(&repository, Some("ann"), "/etc"));
    assert!(!repository.can_log_in("indexer").unwrap());
}

#[test]
fn policies_are_read_again_only_where_they_changed() {
    let repository = house();
    for number in 0..20 {
        put(&repository, &format!("/content/open/p{number}"), Subtree::new("p", "cq:Page"));
        let at_path = format!("/content/open/p{number}/rep:policy");
        put(&repository, &at_path, deny("bob", &["jcr:read"]));
    }
    let look = || is_seen(&repository, Some("bob"), "/content/open/p3");
    assert!(!look());
    let before = repository.policy_documents_read();
    put(&repository, "/content/open/jcr:content/par", Subtree::new("par", "nt:unstructured"));
    assert!(!look());
    assert_eq!(repository.policy_documents_read(), before);
    put(&repository, "/content/open/p3/rep:policy", deny("eve", &["jcr:read"]));
    assert!(look());
    assert_eq!(repository.policy_documents_read(), before + 1);
    let mut session = repository.session("system").unwrap();
    session.move_node(&path("/content/open/p4"), &path("/content/open/q4")).unwrap();
    session.commit("move", at()).unwrap();
    assert!(!is_seen(&repository, Some("bob"), "/content/open/q4"));
    assert!(repository.policy_documents_read() <= before + 3);
}

#[test]
fn what_visitors_have_goes_only_with_the_right_to_replicate() {
    type Edit = fn(&mut tympan_content::Session) -> tympan_content::Result<()>;
    let page = || path("/content/open");
    let edits: [Edit; 5] = [
        |session| session.remove_node(&path("/content/open")),
        |session| session.move_node(&path("/content/open"), &path("/content/away")),
        |session| session.put_node(&path("/content/open"), Subtree::new("open", "sling:Folder")),
        |session| session.remove_node(&path("/content/open/jcr:content")),
        |session| {
            session.move_node(&path("/content/last"), &path("/content/away"))?;
            session.remove_node(&path("/content/open"))?;
            session.move_node(&path("/content/away"), &path("/content/open"))
        },
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        for is_live in [false, true] {
            let repository = house();
            if is_live {
                let mut session = repository.session("system").unwrap();
                session.record_replication(Vec::new());
                for name in ["open", "last"] {
                    let content = path(&format!("/content/{name}/jcr:content"));
                    session
                        .set_property(&content, "cq:lastReplicationAction", "Activate".into())
                        .unwrap();
                }
                session.commit("activate", at()).unwrap();
            }
            let try_as = |who: &str| {
                let viewer = Viewer::of_user(Some(who));
                let mut session = repository.session_as(&viewer).unwrap();
                edit(&mut session)?;
                session.commit("edit", at())
            };
            put(&repository, "/content/rep:policy", {
                let mut policy = deny("ann", &["crx:replicate"]);
                let all = Property::parse_list(ValueType::Name, ["rep:write"]).unwrap();
                policy.put_child(
                    Subtree::new("allow", "rep:GrantACE")
                        .with_property("rep:principalName", "ann")
                        .with_property("rep:privileges", all),
                );
                policy
            });
            let refused = try_as("ann");
            if is_live {
                let Err(Error::AccessDenied { privilege, .. }) = refused else {
                    panic!("{number}: {refused:?}")
                };
                assert_eq!(privilege, "crx:replicate", "{number}");
                assert!(repository.snapshot().unwrap().withdrawals(&page()).unwrap().is_empty());
                try_as("admin").unwrap();
                let left = repository.snapshot().unwrap().withdrawals(&page()).unwrap();
                // In the last case another page is live at the address as it was before.
                assert_eq!(left.len(), usize::from(number < 4), "{number}");
            } else {
                refused.unwrap_or_else(|error| panic!("{number}: {error}"));
                assert!(repository.snapshot().unwrap().withdrawals(&page()).unwrap().is_empty());
            }
        }
    }
}

#[test]
fn nobody_writes_an_activation_by_hand() {
    let repository = house();
    let content = path("/content/open/jcr:content");
    let mut session = repository.session("ann").unwrap();
    session.set_property(&content, "cq:lastReplicationAction", "Activate".into()).unwrap();
    session.set_property(&content, "jcr:title", "new".into()).unwrap();
    session.commit("edit", at()).unwrap();
    let node = repository.snapshot().unwrap().node(&content).unwrap().unwrap();
    assert_eq!(node.text("cq:lastReplicationAction"), None);
    assert_eq!(node.text("jcr:title").as_deref(), Some("new"));
}

#[test]
fn a_node_is_moved_away_only_by_who_may_remove_it() {
    // Something else takes the place, so that nothing is missing there.
    type Edit = fn(&mut tympan_content::Session, &str) -> tympan_content::Result<()>;
    let edits: [Edit; 3] = [
        |session, from| {
            session.move_node(&path(from), &path("/content/away"))?;
            session.add_node(&path(from), "cq:Page")
        },
        |session, from| {
            session.move_node(&path(from), &path("/content/away"))?;
            session.move_node(&path("/content/last"), &path(from))
        },
        |session, from| {
            session.move_node(&path(from), &path("/content/away"))?;
            session.copy_node(&path("/content/away"), &path(from))
        },
    ];
    for edit in edits {
        for (from, is_allowed) in [("/content/open", false), ("/content/closed", true)] {
            let repository = house();
            put(&repository, "/content/open/rep:policy", deny("ann", &["jcr:removeNode"]));
            let viewer = Viewer::of_user(Some("ann"));
            let mut session = repository.session_as(&viewer).unwrap();
            edit(&mut session, from).unwrap();
            let done = session.commit("move", at());
            match (&done, is_allowed) {
                (Ok(_), true) => {}
                (Err(Error::AccessDenied { path, privilege }), false) => {
                    assert_eq!((path.as_str(), *privilege), (from, "jcr:removeNode"));
                }
                _ => panic!("{from}: {done:?}"),
            }
        }
    }
    // Away and back is no move.
    let repository = house();
    put(&repository, "/content/open/rep:policy", deny("ann", &["jcr:removeNode"]));
    let viewer = Viewer::of_user(Some("ann"));
    let mut session = repository.session_as(&viewer).unwrap();
    session.move_node(&path("/content/open"), &path("/content/away")).unwrap();
    session.move_node(&path("/content/away"), &path("/content/open")).unwrap();
    session.commit("nothing", at()).unwrap();
}

#[test]
fn no_two_accounts_have_one_name() {
    let repository = house();
    let account = |kind: &str, id: &str, principal: &str| {
        Subtree::new("x", kind)
            .with_property("rep:authorizableId", id)
            .with_property("rep:principalName", principal)
    };
    let attempts = [
        account("rep:User", "bob", "bob"),
        account("rep:User", "eve", "content-authors"),
        account("rep:Group", "mine", "administrators"),
        account("rep:SystemUser", "ann", "fresh"),
    ];
    for (number, attempt) in attempts.into_iter().enumerate() {
        let mut session = repository.session("useradmin").unwrap();
        session.put_node(&path("/home/users/x"), attempt.clone()).unwrap();
        match session.commit("add", at()) {
            Err(Error::ConstraintViolations(violations)) => {
                assert_eq!(violations[0].kind.code(), "OakConstraint0030");
                assert_eq!(violations[0].conflicting_paths.len(), 1, "{violations:?}");
            }
            done => panic!("{number}: {done:?}"),
        }
    }
    // An account that moves or changes otherwise keeps its names, and one that is gone lets them go.
    let mut session = repository.session("useradmin").unwrap();
    session.move_node(&path("/home/users/bob"), &path("/home/users/moved")).unwrap();
    session.commit("move", at()).unwrap();
    session.accounts().set_disabled("bob", Some("left")).unwrap();
    session.commit("disable", at()).unwrap();
    session.accounts().remove_account("bob").unwrap();
    session.put_node(&path("/home/users/x"), account("rep:User", "bob", "bob")).unwrap();
    session.commit("again", at()).unwrap();
    let mut twice = repository.session("useradmin").unwrap();
    twice.put_node(&path("/home/users/one"), account("rep:User", "new", "new")).unwrap();
    twice.put_node(&path("/home/users/two"), account("rep:User", "new", "new")).unwrap();
    assert!(matches!(twice.commit("twice", at()), Err(Error::ConstraintViolations(_))));
}

#[test]
fn a_user_of_a_name_that_was_given_before_is_another_user() {
    let repository = house();
    let is_author = || {
        let viewer = Viewer::of_user(Some("ann"));
        repository.groups_of_viewer(&viewer).unwrap().contains(&"content-authors".to_owned())
    };
    assert!(is_author());
    for way in ["by name", "by path"] {
        let mut session = repository.session("system").unwrap();
        match way {
            "by name" => session.accounts().remove_account("ann").unwrap(),
            _ => session.remove_node(&path("/home/users/ann")).unwrap(),
        }
        session.commit("remove", at()).unwrap();
        session.accounts().add_user("ann", "hash").unwrap();
        session.commit("add", at()).unwrap();
        assert!(!is_author(), "{way}");
        let group = repository.snapshot().unwrap();
        let group = group.node(&path("/home/groups/content-authors")).unwrap().unwrap();
        let members = group.property("rep:members").unwrap();
        let left = if way == "by name" { 0 } else { 1 };
        assert_eq!(members.values().len(), left, "{way}");
        session.accounts().add_member("content-authors", "ann").unwrap();
        session.commit("join", at()).unwrap();
        assert!(is_author());
    }
}

#[test]
fn users_stand_in_folders_and_are_known_by_their_names_alone() {
    let repository = house();
    let mut session = repository.session("system").unwrap();
    let place = session.accounts().add_user_in("north/berlin", "zoe", "hash").unwrap();
    assert_eq!(place, path("/home/users/north/berlin/zoe"));
    session.accounts().add_member_path("content-authors", &place).unwrap();
    session.commit("add", at()).unwrap();
    assert_eq!(repository.account_path("zoe").unwrap(), Some(place));
    let group = repository.snapshot().unwrap();
    let group = group.node(&path("/home/groups/content-authors")).unwrap().unwrap();
    assert_eq!(group.property("rep:members").unwrap().values().len(), 2, "ann and zoe");
    // The name is taken, wherever the other one is to stand, and nobody stands below a user.
    for (folder, name) in
        [("", "zoe"), ("south", "zoe"), ("ann", "yves"), ("north/berlin/zoe", "yves")]
    {
        assert!(session.accounts().add_user_in(folder, name, "hash").is_err(), "{folder} {name}");
    }
    for folder in ["../..", "a/./b", "x[1]"] {
        assert!(session.accounts().add_user_in(folder, "yves", "hash").is_err(), "{folder}");
    }
    session.accounts().remove_account("zoe").unwrap();
    session.commit("remove", at()).unwrap();
    assert_eq!(repository.account_path("zoe").unwrap(), None);
}

#[test]
fn a_refused_commit_names_nothing_hidden() {
    let repository = house();
    let uuid = "6f1f6f5e-6c4e-4f1e-9d5e-0c8d8a2f4d11";
    let reference =
        Property::parse_list(ValueType::Reference, [uuid]).unwrap().first().unwrap().clone();
    let mixin = || Property::parse_list(ValueType::Name, ["mix:referenceable"]).unwrap();
    let mut session = repository.session("system").unwrap();
    let target = path("/content/open/jcr:content");
    session.set_property(&target, "jcr:mixinTypes", mixin()).unwrap();
    session.set_property(&target, "jcr:uuid", uuid.into()).unwrap();
    let referrer = path("/content/closed/jcr:content");
    session.set_property(&referrer, "refers", Property::Single(reference)).unwrap();
    session.commit("refer", at()).unwrap();
    let refusal = |edit: &dyn Fn(&mut tympan_content::Session)| {
        let viewer = Viewer::of_user(Some("ann"));
        let mut session = repository.session_as(&viewer).unwrap();
        edit(&mut session);
        let error = session.commit("edit", at()).unwrap_err();
        (format!("{error:?}"), error.to_string())
    };
    let remove = |session: &mut tympan_content::Session| {
        session.remove_node(&path("/content/open")).unwrap();
    };
    assert!(refusal(&remove).1.contains("by `refers` of /content/closed/jcr:content"));
    put(&repository, "/content/closed/rep:policy", deny("ann", &["jcr:read"]));
    let (all, text) = refusal(&remove);
    assert!(!all.contains("/content/closed"), "{all}");
    assert!(text.ends_with("is referenced by 1 that you may not see"), "{text}");
    // An identifier that a hidden node has.
    put(&repository, "/content/open/rep:policy", deny("ann", &["jcr:read"]));
    let take = |session: &mut tympan_content::Session| {
        let node = Subtree::new("new", "nt:unstructured").with_property("jcr:mixinTypes", mixin());
        session
            .put_node(&path("/content/last/jcr:content/new"), node.with_property("jcr:uuid", uuid))
            .unwrap();
    };
    let (all, text) = refusal(&take);
    assert!(!all.contains("/content/open"), "{all}");
    assert!(text.ends_with("is already in use; 1 that you may not see has it"), "{text}");
    // What somebody else set meanwhile, where the viewer may write and not read.
    let write_only = deny("ann", &["rep:readProperties"]);
    put(&repository, "/content/last/jcr:content/rep:policy", write_only);
    let clash = |session: &mut tympan_content::Session| {
        let mut other = repository.session("other").unwrap();
        let place = path("/content/last/jcr:content");
        other.set_property(&place, "jcr:title", "a secret".into()).unwrap();
        other.commit("other", at()).unwrap();
        session.set_property(&place, "jcr:title", "mine".into()).unwrap();
    };
    let (all, _) = refusal(&clash);
    assert!(all.contains("ChangeChangedProperty") && !all.contains("secret"), "{all}");
    assert!(!all.contains("Last"), "{all}");
}
