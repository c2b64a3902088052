//! The merge of several states of one resource: trees in, a tree out.
//!
//! Input: the trees of one resource, the underlying one first. Output: one tree, in which each tree changed what those
//! before it have.
//!
//! The rules are those of Sling's documentation ("Resource Merger"):
//! * A property of an upper tree replaces that of the lower ones. `sling:hideProperties` removes properties by name,
//!   those of its own tree too; `*` removes those of the lower trees only.
//! * `sling:hideChildren` does the same with children, and `sling:hideResource` with a whole resource.
//! * A list of names that begins with a negated one (`!name`) hides everything of the lower trees except these names.
//!   Half of the leading `!` are removed from a name, so that `!!name` means a name that begins with one.
//! * The children of lower trees come first; a child in several trees has its position from the highest one.
//!   `sling:orderBefore` names the sibling that follows.
//! * These properties are not in the result.
//!
//! Not here: which trees are merged (`merge_layer`).

use tympan_content::{Property, Subtree, Value};

pub(super) const HIDE_RESOURCE: &str = "sling:hideResource";
pub(super) const HIDE_CHILDREN: &str = "sling:hideChildren";
const HIDE_PROPERTIES: &str = "sling:hideProperties";
const ORDER_BEFORE: &str = "sling:orderBefore";

/// Merges the trees of one resource, the underlying one first; `None` if there is none, or the last says that it is
/// hidden. The result has the name of the last one.
pub(crate) fn merge_trees(mut trees: Vec<Subtree>) -> Option<Subtree> {
    if let Some(hiding) =
        trees.iter().rposition(|tree| is_hiding(tree.properties.get(HIDE_RESOURCE)))
    {
        trees.drain(..=hiding);
    }
    let mut merged = Subtree { name: trees.last()?.name.clone(), ..Subtree::default() };
    let mut children: Vec<ChildTrees> = Vec::new();
    for (position, tree) in trees.into_iter().enumerate() {
        // The lowest tree has nothing below it that it could hide, and its own is what it says.
        let (hidden_properties, hidden_children) = match position {
            0 => (HiddenNames::default(), HiddenNames::default()),
            _ => (
                HiddenNames::from_property(tree.properties.get(HIDE_PROPERTIES)),
                HiddenNames::from_property(tree.properties.get(HIDE_CHILDREN)),
            ),
        };
        merged.properties.retain(|name, _| !hidden_properties.hides_underlying(name));
        children.retain(|child| !hidden_children.hides_underlying(&child.name));
        let is_kept = |name: &str| !is_merge_property(name) && !hidden_properties.hides_own(name);
        merged.properties.extend(tree.properties.into_iter().filter(|(name, _)| is_kept(name)));
        let own = tree.children.into_iter().filter(|child| !hidden_children.hides_own(&child.name));
        place_children(&mut children, own);
    }
    merged.children = children.into_iter().filter_map(|child| merge_trees(child.trees)).collect();
    Some(merged)
}

/// The trees of one child, the underlying one first.
struct ChildTrees {
    name: String,
    trees: Vec<Subtree>,
}

/// Adds the children of an upper tree to those of the lower ones, at the positions that they have in it.
fn place_children(children: &mut Vec<ChildTrees>, own: impl Iterator<Item = Subtree>) {
    // The child of the upper tree after which the next one is placed; none as long as all have kept their positions.
    let mut previous: Option<String> = None;
    for tree in own {
        let name = tree.name.clone();
        let before = tree.text(ORDER_BEFORE).filter(|sibling| *sibling != name).map(str::to_owned);
        let current = position_of(children, &name);
        let mut child = match current {
            Some(position) => children.remove(position),
            None => ChildTrees { name: name.clone(), trees: Vec::new() },
        };
        child.trees.push(tree);
        let follower = before.and_then(|sibling| position_of(children, &sibling));
        let after = previous.as_deref().and_then(|sibling| position_of(children, sibling));
        let position = match (follower, after, current) {
            (Some(follower), ..) => follower,
            (None, Some(after), _) => after + 1,
            (None, None, Some(current)) => current,
            (None, None, None) => children.len(),
        };
        children.insert(position, child);
        if follower.is_none() && (current.is_none() || after.is_some()) {
            previous = Some(name);
        }
    }
}

fn position_of(children: &[ChildTrees], name: &str) -> Option<usize> {
    children.iter().position(|child| child.name == name)
}

/// Returns true if a value of `sling:hideResource` hides the resource.
pub(super) fn is_hiding(value: Option<&Property>) -> bool {
    value.and_then(Property::first).is_some_and(|value| value.to_text() == "true")
}

/// Returns true for the properties that direct the merge.
fn is_merge_property(name: &str) -> bool {
    [HIDE_RESOURCE, HIDE_CHILDREN, HIDE_PROPERTIES, ORDER_BEFORE].contains(&name)
}

/// The value of `sling:hideProperties` or `sling:hideChildren`.
#[derive(Debug, Default)]
pub(super) struct HiddenNames {
    names: Vec<String>,
    /// True if the names are those that stay.
    is_negated: bool,
    /// True if everything of the lower trees is hidden.
    has_wildcard: bool,
}

impl HiddenNames {
    pub(super) fn from_property(property: Option<&Property>) -> Self {
        let mut hidden = Self::default();
        let values = property.map(Property::values).unwrap_or_default();
        for (name, is_negated) in
            values.iter().map(Value::to_text).filter_map(|text| match &*text {
                "*" => {
                    hidden.has_wildcard = true;
                    None
                }
                text => Some(unescape_name(text)),
            })
        {
            if hidden.names.is_empty() {
                hidden.is_negated = is_negated;
            }
            // The first name decides; names of the other kind are skipped.
            if hidden.is_negated == is_negated {
                hidden.names.push(name);
            }
        }
        hidden
    }

    /// Returns true if an item of the lower trees is hidden.
    pub(super) fn hides_underlying(&self, name: &str) -> bool {
        match self.names.iter().any(|listed| listed == name) {
            true => !self.is_negated,
            false => self.is_negated || self.has_wildcard,
        }
    }

    /// Returns true if an item of the tree that has the list is hidden.
    pub(super) fn hides_own(&self, name: &str) -> bool {
        !self.is_negated && self.names.iter().any(|listed| listed == name)
    }
}

/// Returns a listed name without its escapes, and true if it is negated.
fn unescape_name(text: &str) -> (String, bool) {
    let name = text.trim_start_matches('!');
    let marks = text.len() - name.len();
    (format!("{}{name}", "!".repeat(marks / 2)), marks % 2 == 1)
}

#[cfg(test)]
mod tests {
    use tympan_content::ValueType;

    use super::*;

    /// Parses a tree from indented lines: `name key=value key=[a,b]`.
    fn tree(text: &str) -> Subtree {
        fn read(
            lines: &mut std::iter::Peekable<std::str::Lines<'_>>,
            depth: usize,
        ) -> Vec<Subtree> {
            let mut nodes = Vec::new();
            let indent = |line: &str| line.len() - line.trim_start().len();
            while let Some(line) = lines.next_if(|line| indent(line) >= depth) {
                let depth = indent(line);
                let mut words = line.split_whitespace();
                let mut node = Subtree { name: words.next().unwrap().into(), ..Subtree::default() };
                for (name, value) in words.map(|word| word.split_once('=').unwrap()) {
                    let list = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
                    let text = |text: &str| Value::String(text.to_owned());
                    let property = match list {
                        Some(list) => {
                            Property::List(ValueType::String, list.split(',').map(text).collect())
                        }
                        None => Property::Single(text(value)),
                    };
                    node = node.with_property(name.replace('~', "sling:"), property);
                }
                node.children = read(lines, depth + 1).into();
                nodes.push(node);
            }
            nodes
        }
        read(&mut text.trim_end().lines().peekable(), 0).remove(0)
    }

    /// Writes a tree as it is parsed.
    fn text(tree: &Subtree) -> String {
        let mut words = vec![tree.name.clone()];
        words.extend(tree.properties.iter().map(|(name, property)| {
            let values: Vec<_> = property.values().iter().map(Value::to_text).collect();
            format!("{name}={}", values.join(","))
        }));
        let children: Vec<String> = tree.children.iter().map(text).collect();
        let below = match children.is_empty() {
            true => String::new(),
            false => format!(" ({})", children.join(" ")),
        };
        format!("{}{below}", words.join(" "))
    }

    fn check(trees: &[&str], expected: &str) {
        let merged = merge_trees(trees.iter().map(|text| tree(text)).collect());
        assert_eq!(merged.as_ref().map_or("hidden".to_owned(), text), expected, "{trees:?}");
    }

    #[test]
    fn upper_trees_change_and_add_properties_and_children() {
        check(
            &["r a=1 b=1\n x p=1", "r b=2 c=2\n y", "r c=3\n x q=3"],
            "r a=1 b=2 c=3 (x p=1 q=3 y)",
        );
        check(&["r a=1"], "r a=1");
        check(&[], "hidden");
    }

    #[test]
    fn a_resource_is_hidden_with_all_below_and_may_be_defined_again() {
        check(&["r\n x p=1\n y", "r\n x ~hideResource=true"], "r (y)");
        check(&["r\n x p=1", "r\n x ~hideResource=true", "r\n x q=3"], "r (x q=3)");
        check(&["r a=1", "r ~hideResource=true"], "hidden");
        check(&["r\n x p=1", "r\n x ~hideResource=false q=2"], "r (x p=1 q=2)");
    }

    #[test]
    fn properties_are_hidden_by_name_or_all_those_below() {
        check(&["r a=1 b=1", "r ~hideProperties=a c=2"], "r b=1 c=2");
        check(&["r a=1 b=1", "r ~hideProperties=[a,c] a=2 c=2"], "r b=1");
        check(&["r a=1 b=1", "r ~hideProperties=* a=2"], "r a=2");
        check(&["r a=1 b=1 c=1", "r ~hideProperties=!b c=2"], "r b=1 c=2");
        check(&["r a=1", "r ~hideProperties=[]", "r b=3"], "r a=1 b=3");
    }

    #[test]
    fn children_are_hidden_by_name_or_all_those_below() {
        let base = "r\n child1 p=base\n  g q=base\n child2";
        check(
            &[base, "r ~hideChildren=*\n child1 p=own\n  h\n child3"],
            "r (child1 p=own (h) child3)",
        );
        check(&[base, "r ~hideChildren=child1\n child1 p=own\n child3"], "r (child2 child3)");
        check(&[base, "r ~hideChildren=[!child2,*]\n expert"], "r (child2 expert)");
        check(&[base, "r ~hideChildren=!child2\n expert"], "r (child2 expert)");
        check(&[base, "r ~hideChildren=[child1,!child2]"], "r (child2)");
        check(&["r\n a\n b", "r ~hideChildren=a", "r\n a p=3"], "r (b a p=3)");
    }

    #[test]
    fn names_with_exclamation_marks_are_escaped() {
        check(&["r\n !a\n b", "r ~hideChildren=!!a"], "r (b)");
        check(&["r\n !a\n b", "r ~hideChildren=!!!a"], "r (!a)");
        for (listed, name, is_negated) in [
            ("!name", "name", true),
            ("name", "name", false),
            ("!!name", "!name", false),
            ("!!!name", "!name", true),
            ("!!!!name!test", "!!name!test", false),
        ] {
            assert_eq!(unescape_name(listed), (name.to_owned(), is_negated), "{listed}");
        }
    }

    #[test]
    fn the_lists_of_the_lowest_tree_hide_nothing_and_vanish() {
        check(&["r a=1 ~hideProperties=a ~hideChildren=x\n x ~orderBefore=y", "r"], "r a=1 (x)");
    }

    /// The cases are those of Sling's documentation and of its issues SLING-4915 and SLING-6956.
    #[test]
    fn children_have_the_position_from_the_highest_tree() {
        check(&["r\n 1\n 3\n 5", "r\n 2\n 3\n 4"], "r (1 5 2 3 4)");
        check(&["r\n 1\n 2\n 3", "r\n 4\n 2\n 3"], "r (1 4 2 3)");
        check(&["r\n 1\n 3\n 5", "r\n 2\n 3\n 4\n 1"], "r (5 2 3 4 1)");
        check(&["r\n 1\n 2", "r\n 3\n 4"], "r (1 2 3 4)");
        check(&["r\n 1\n 2\n 3", "r\n 2"], "r (1 2 3)");
        check(&["r\n 1\n 2\n 3", "r\n 3\n 2"], "r (1 2 3)");
    }

    #[test]
    fn a_child_is_placed_before_the_sibling_that_it_names() {
        check(
            &[
                "r\n 1\n 2\n 3\n 4",
                "r\n 5 ~orderBefore=2\n 6 ~orderBefore=2\n 7 ~orderBefore=4\n 8 ~orderBefore=3\n \
                 9 ~orderBefore=3\n 10\n 3",
            ],
            "r (1 5 6 2 8 9 7 4 10 3)",
        );
        check(&["r\n 1\n 2", "r\n 1\n 3 ~orderBefore=2\n 2"], "r (1 3 2)");
        check(&["r\n 1\n 2\n 3", "r\n 3 ~orderBefore=1"], "r (3 1 2)");
        check(&["r\n 1\n 2\n 3", "r\n 1 ~orderBefore=3"], "r (2 1 3)");
        check(&["r\n 1\n 2", "r\n 2 ~orderBefore=none"], "r (1 2)");
        check(&["r\n 1\n 2", "r\n 2 ~orderBefore=2"], "r (1 2)");
    }
}
