//! The table of modes, cell by cell: node there or not, covered or not, property there or not, lists of children.

use proptest::prelude::*;
use tympan_content::{NodePath, Subtree};
use tympan_content_package::PackageFilter;

use crate::package_modes::{document, filter, tree};
use crate::package_target::{Memory, install, package};

const MODES: [&str; 5] = ["replace", "merge", "update", "merge_properties", "update_properties"];

fn installed(filters: &str, there: &str, brought: &str) -> Subtree {
    let mut target = Memory::with(tree(there));
    let text = document(&tree(brought));
    let entries = [("META-INF/vault/filter.xml", filter(filters)), ("jcr_root/.content.xml", text)];
    let entries = entries.each_ref().map(|(name, text)| (*name, text.as_str()));
    install(&mut package(&entries).unwrap(), &mut target).unwrap();
    target.root
}

/// Shows, for each mode, what becomes of a property: `name=value`, or `-`.
fn row(there: &str, brought: &str, rule: &str, node: &str, name: &str) -> String {
    let cell = |mode: &&str| {
        let root = installed(
            &format!("<filter root=\"/x\" mode=\"{mode}\">{rule}</filter>"),
            there,
            brought,
        );
        match root.find_descendant(node) {
            None => "no node".to_owned(),
            Some(node) => node.text(name).unwrap_or("-").to_owned(),
        }
    };
    MODES.iter().map(cell).collect::<Vec<_>>().join(" | ")
}

#[test]
fn properties_meet_as_the_table_says() {
    const NONE: &str = "";
    let check = |there: &str, brought: &str, rule: &str, name: &str, expected: &str| {
        assert_eq!(
            row(there, brought, rule, "/x/a", name),
            expected,
            "{name} of {there} and {brought} with {rule}"
        );
    };
    //     there        brought      rule                                                    replace | merge | update | merge_p | update_p
    check("/x/a p=old", "/x/a p=new", NONE, "p", "new | old | new | old | new");
    check("/x/a p=old", "/x/a q=new", NONE, "p", "- | old | old | old | old");
    check("/x/a q=old", "/x/a p=new", NONE, "p", "new | - | new | new | new");
    check("/x", "/x/a p=new", NONE, "p", "new | new | new | new | new");
    check("/x/a p=old", "/x", NONE, "p", "no node | old | old | old | old");
    // The node is left out by a pattern.
    const OUT: &str = "<exclude pattern=\"/x/a\"/>";
    check("/x/a p=old", "/x/a p=new", OUT, "p", "old | old | old | old | old");
    check("/x/a p=old", "/x", OUT, "p", "old | old | old | old | old");
    check("/x", "/x/a p=new", OUT, "p", "no node | no node | no node | no node | no node");
    // The property is left out by a pattern: it is as if neither side had it.
    const NOT_P: &str = "<exclude pattern=\"/x/a/p\" matchProperties=\"true\"/>";
    check("/x/a p=old", "/x/a p=new", NOT_P, "p", "old | old | old | old | old");
    check("/x/a p=old", "/x/a q=new", NOT_P, "p", "old | old | old | old | old");
    check("/x/a q=old", "/x/a p=new", NOT_P, "p", "- | - | - | - | -");
    check("/x", "/x/a p=new", NOT_P, "p", "- | - | - | - | -");
    check("/x/a q=old", "/x/a q=new", NOT_P, "q", "new | old | new | old | new");
    // With an include first, all others are left out.
    const ONLY_P: &str = "<include pattern=\"/x/.*/p\" matchProperties=\"true\"/>";
    check("/x/a p=old q=old", "/x/a p=new q=new", ONLY_P, "p", "new | old | new | old | new");
    check("/x/a p=old q=old", "/x/a p=new q=new", ONLY_P, "q", "old | old | old | old | old");
    // The last pattern that matches decides.
    const BACK_IN: &str = "<exclude pattern=\"/x/.*\" matchProperties=\"true\"/><include pattern=\"/x/a/p\" matchProperties=\"true\"/>";
    check("/x/a p=old q=old", "/x/a p=new q=new", BACK_IN, "p", "new | old | new | old | new");
    check("/x/a p=old q=old", "/x/a p=new q=new", BACK_IN, "q", "old | old | old | old | old");
}

#[test]
fn lists_of_children_meet_as_the_table_says() {
    let names = |root: &Subtree| {
        let node = root.find_descendant("/x").unwrap();
        node.children.iter().map(|child| child.name.clone()).collect::<Vec<_>>().join(" ")
    };
    let check = |there: &str, brought: &str, expected: [&str; 5]| {
        let tree = |children: &str| {
            let nodes: Vec<_> =
                children.split_whitespace().map(|name| format!("/x/{name} p=1")).collect();
            format!("/x p=1\n{}", nodes.join("\n"))
        };
        for (mode, expected) in MODES.iter().zip(expected) {
            let filters = format!("<filter root=\"/x\" mode=\"{mode}\"/>");
            let root = installed(&filters, &tree(there), &tree(brought));
            assert_eq!(names(&root), expected, "{mode}: {there} and {brought}");
        }
    };
    //     there      brought    replace   merge        update       merge_properties  update_properties
    check("a b", "b a", ["b a", "a b", "b a", "a b", "b a"]);
    check("x a b", "b new a", ["b new a", "x a b new", "x b new a", "x a b new", "x b new a"]);
    check("a b", "a b c", ["a b c"; 5]);
    check("a b c", "a c", ["a c", "a b c", "a b c", "a b c", "a b c"]);
    check("", "a b", ["a b"; 5]);
    check("a b", "", ["", "a b", "a b", "a b", "a b"]);
}

#[test]
fn the_default_of_patterns_is_the_opposite_of_the_first() {
    let check = |rules: &str, expected: [bool; 3]| {
        let filters = format!("<filter root=\"/x\">{rules}</filter>");
        let root = installed(&filters, "/x", "/x/a\n/x/b\n/x/b/c");
        assert_eq!(
            ["/x/a", "/x/b", "/x/b/c"].map(|node| root.find_descendant(node).is_some()),
            expected,
            "{rules}"
        );
    };
    check("", [true, true, true]);
    check("<include pattern=\"/x/b\"/>", [false, true, false]);
    check("<exclude pattern=\"/x/b\"/>", [true, true, true]);
    check("<exclude pattern=\"/x/b(/.*)?\"/>", [true, false, false]);
    check("<exclude pattern=\"/x/b(/.*)?\"/><include pattern=\"/x/b/c\"/>", [true, true, true]);
    check("<include pattern=\"/x/b(/.*)?\"/><exclude pattern=\"/x/b/c\"/>", [false, true, false]);
    // A pattern matches the whole path.
    check("<include pattern=\"/x/\"/>", [false, false, false]);
    check("<include pattern=\".*b\"/>", [false, true, false]);
    check("<include pattern=\"/\\w/[\\Wab](/\\Qc\\E)?\"/>", [true, true, true]);
    check("<include pattern=\"/\\w/[^\\w\\d]\"/>", [false, false, false]);
}

/// Java's classes hold ASCII characters only.
#[test]
fn patterns_mean_what_they_mean_in_java() {
    let check = |pattern: &str, path: &str, is_match: bool| {
        let rule = format!("<filter root=\"/x\"><include pattern=\"{pattern}\"/></filter>");
        let parsed = PackageFilter::parse("f", filter(&rule).as_bytes()).unwrap();
        let coverage = parsed.coverage(&NodePath::new(path).unwrap());
        let expected = if is_match { "Contained(Replace)" } else { "Excluded" };
        assert_eq!(format!("{coverage:?}"), expected, "{pattern} {path}");
    };
    check(r"/x/\w+", "/x/a_9", true);
    check(r"/x/\w+", "/x/ä", false);
    check(r"/x/\W", "/x/ä", true);
    check(r"/x/[^\d]", "/x/٣", true);
    check(r"/x/\d", "/x/٣", false);
    check(r"/x/\S+", "/x/a\u{a0}b", true);
    check(r"/x/\Qa.b\E", "/x/a.b", true);
    check(r"/x/\Qa.b", "/x/axb", false);
    check(r"/x/a\\\.b", "/x/a.b", false);
    check(r"/x/.", "/x/ä", true);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The first filter whose root covers a path decides, against asking one after the other.
    #[test]
    fn filters_are_found_as_if_asked_in_order(
        roots in prop::collection::vec(("(/[ab]){1,3}|/", 0..5_usize, any::<bool>()), 1..6),
        path in "(/[ab]){1,4}|/",
    ) {
        let elements: String = roots.iter().map(|(root, mode, is_out)| {
            let rule = if *is_out { "<exclude pattern=\".*/b\"/>" } else { "" };
            format!("<filter root=\"{root}\" mode=\"{}\">{rule}</filter>", MODES[*mode])
        }).collect();
        let parsed = PackageFilter::parse("f", filter(&elements).as_bytes()).unwrap();
        let node = NodePath::new(&path).unwrap();
        let is_below = |path: &str, root: &str| {
            root == "/" || path == root || path.starts_with(&format!("{root}/"))
        };
        let is_above = roots.iter().any(|(root, ..)| *root != path && is_below(root, &path));
        let covering = roots.iter().find(|(root, ..)| is_below(&path, root));
        let expected = match covering {
            Some((_, mode, is_out)) if !is_out || !path.ends_with("/b") => {
                format!("Contained({:?})", parsed.roots()[roots.iter().position(|one| one.1 == *mode).unwrap()].mode)
            }
            _ if is_above => "Ancestor".to_owned(),
            Some(_) => "Excluded".to_owned(),
            None => "Outside".to_owned(),
        };
        prop_assert_eq!(format!("{:?}", parsed.coverage(&node)), expected);
    }
}
