//! CND: what it says, what is wrong with it where, and that what is written reads back.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tympan_content::ValueType;
use tympan_content::node_type::{
    AvailableQueryOperator, ChildDefinition, ItemFlags, NodeTypeDefinition, NodeTypeFlags,
    NodeTypes, OnParentVersion, PropertyDefinition, PropertyQueryUse, parse_cnd, write_cnd,
};

/// Both texts say the same; the second is written as `write_cnd` does.
#[track_caller]
fn same(text: &str, written: &str) {
    let cnd = parse_cnd(text);
    assert_eq!(cnd.diagnostics, [], "{text}");
    assert_eq!(write_cnd(&cnd.types, &cnd.namespaces), written, "{text}");
}

#[test]
fn long_and_short_words_say_the_same() {
    let long = "[a:b] > c:d, e:f\n  abstract mixin orderable noquery primaryitem g\n";
    same("[a:b]>c:d,e:f abstract mixin orderable noquery primaryitem g", long);
    same("[a:b] > c:d, e:f abs mix ord nq ! g", long);
    same("[ 'a:b' ] > \"c:d\" , e:f o m a NQ PrimaryItem 'g'", long);
    let property = "[t]\n  - p (long) = '1', '2' multiple autocreated mandatory protected ignore \
                    queryops '=, LIKE' nofulltext noqueryorder < '[1,5]', '9'\n";
    same(
        "[t] - p (LONG) = '1', 2 mul aut man pro IGNORE qop '=, like' nof nqord < '[1,5]', '9'",
        property,
    );
    same(
        "[t] - p (long) = '1','2' * a m p ignore queryops \"=,LIKE,=\" nofulltext noqueryorder < '[1,5]','9'",
        property,
    );
    let child = "[t]\n  + * (a, b) = c autocreated mandatory protected version sns\n";
    same("[t] + * (a, b) = c autocreated mandatory protected VERSION sns", child);
    same("[t] +*(a,b)=c a m p version *", child);
    same("[t] + '*' (a,b) = c aut man pro version multiple", child);
}

#[test]
fn types_of_values_are_all_known() {
    for one in ValueType::ALL {
        let name = one.name();
        same(&format!("[t] - p ({name})"), &format!("[t]\n  - p ({})\n", name.to_lowercase()));
    }
    for open in ["", "(undefined)", "(UNDEFINED)", "(*)", "(?)"] {
        same(&format!("[t] - p {open}"), "[t]\n  - p (undefined)\n");
    }
}

#[test]
fn what_is_left_open_is_as_if_it_were_not_said() {
    same("[t] > ? orderable? mixin? abstract? primaryitem ?", "[t]\n");
    same("[t] - p (?) = ? m? a? p? * ? opv? qop? nof? nqord? < ?", "[t]\n  - p (undefined)\n");
    same("[t] + c (?) = ? m? a? p? sns? OPV?", "[t]\n  + c\n");
}

#[test]
fn comments_quotes_and_namespaces() {
    same(
        "// one\n<'a' = 'http://example.org/a'> /* two\n lines */ [a:b] // three\n  /** four */ - p",
        "<'a' = 'http://example.org/a'>\n\n[a:b]\n  - p (undefined)\n",
    );
    same(
        "<a='x'> [a:b] - p < 'y' <c='z'> [c:d]",
        "<'a' = 'x'>\n<'c' = 'z'>\n\n[a:b]\n  - p (undefined) < 'y'\n\n[c:d]\n",
    );
    same(
        r#"[t] - p = 'it\'s', "a\"b", 'c\\d', 'e\d'"#,
        "[t]\n  - p (undefined) = 'it\\'s', 'a\"b', 'c\\\\d', 'e\\\\d'\n",
    );
    same("[t] - 'a b' + 'it\u{2019}s'", "[t]\n  - 'a b' (undefined)\n  + it\u{2019}s\n");
    same("\u{feff}[t]\r\n  -\ta-b.c\r\n", "[t]\n  - a-b.c (undefined)\n");
    // Older texts name the primary item where it is defined.
    same(
        "[t] + jcr:content (nt:base) copy primary",
        "[t]\n  primaryitem jcr:content\n  + jcr:content (nt:base)\n",
    );
}

#[track_caller]
fn faults(text: &str, expected: &[&str]) {
    let cnd = parse_cnd(text);
    let found: Vec<String> = cnd.diagnostics.iter().map(ToString::to_string).collect();
    assert_eq!(found, expected, "{text}");
}

#[test]
fn faults_have_a_place() {
    faults("[t", &["1:2: expected `]`, found the end"]);
    faults(
        "[t]\n  - p (lang)",
        &[
            "2:8: `lang` is not a property type; use one of STRING, BINARY, LONG, DOUBLE, DATE, BOOLEAN, NAME, PATH, REFERENCE, WEAKREFERENCE, URI, DECIMAL, UNDEFINED",
        ],
    );
    faults("[t] - p (string", &["1:10: expected `)`, found the end"]);
    faults("[t] > , x", &["1:7: expected the name of a supertype, found `,`"]);
    faults(
        "[t] orderly",
        &["1:5: expected an attribute, `-`, `+` or the next type, found `orderly`"],
    );
    faults("[t] - p qop 'like, ~'", &["1:13: `~` is not an operator"]);
    faults("[t] - p = 'x", &["1:11: the string is not closed; add a '"]);
    faults("[t] /* x", &["1:5: the comment is not closed; add `*/`"]);
    faults("t", &["1:1: expected `[` of a type or `<` of a namespace, found `t`"]);
    faults("[t] [t]", &["1:5: `t` is defined twice"]);
    faults(
        "[a:b:c]",
        &["1:2: `a:b:c` is not a valid name: it contains a colon that does not end a prefix"],
    );
    faults("<a 'b'>", &["1:4: expected `=`, found `'b'`"]);
}

#[test]
fn reading_goes_on_behind_a_fault() {
    let cnd = parse_cnd("[a] - p (lang)\n[b]\n  + c =\n<'x' = 'y'>\n[d]");
    let names: Vec<&str> = cnd.types.iter().map(|one| one.name.as_str()).collect();
    assert_eq!((names, cnd.namespaces.len()), (vec!["d"], 1));
    let places: Vec<_> = cnd.diagnostics.iter().map(|one| (one.line, one.column)).collect();
    assert_eq!(places, [(1, 10), (4, 1)]);
}

#[test]
fn the_standard_set_reads_back() {
    let types: Vec<NodeTypeDefinition> =
        NodeTypes::standard().iter().map(|one| one.definition.clone()).collect();
    let cnd = parse_cnd(&write_cnd(&types, &BTreeMap::new()));
    assert_eq!((cnd.types, cnd.diagnostics), (types, vec![]));
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,4}(:[a-zA-Z0-9._-]{1,6})?",
        prop::sample::select(vec![
            "orderable",
            "mixin",
            "a",
            "m",
            "query",
            "copy",
            "sns",
            "it's",
            "a b",
            "a-b",
            "-x",
            "+",
            "x,y",
            "//",
            "a/"
        ])
        .prop_map(|name: &str| name.replace('/', "\u{2215}")),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,8}", "[\\\\'\"n\n?*<>\\[\\]{}/]{0,6}"]
}

fn flags() -> impl Strategy<Value = ItemFlags> {
    (any::<[bool; 3]>(), prop::sample::select(&OnParentVersion::ALL[..])).prop_map(
        |([is_mandatory, is_autocreated, is_protected], on_parent_version)| ItemFlags {
            is_mandatory,
            is_autocreated,
            is_protected,
            on_parent_version,
        },
    )
}

fn property() -> impl Strategy<Value = PropertyDefinition> {
    let value_type = prop::option::of(prop::sample::select(&ValueType::ALL[..]));
    let operators = prop::sample::subsequence(AvailableQueryOperator::ALL.to_vec(), 0..=7);
    let item = prop_oneof![3 => name(), 1 => Just("*".to_owned())];
    (
        (item, value_type, any::<[bool; 3]>(), flags(), operators),
        prop::collection::vec(text(), 0..3),
        prop::collection::vec(text(), 0..3),
    )
        .prop_map(|((name, value_type, on, flags, operators), default_values, constraints)| {
            let [is_multiple, is_full_text_searchable, is_orderable] = on;
            let query = PropertyQueryUse { operators, is_full_text_searchable, is_orderable };
            PropertyDefinition {
                name,
                value_type,
                is_multiple,
                flags,
                default_values,
                constraints,
                query_use: query,
            }
        })
}

fn child() -> impl Strategy<Value = ChildDefinition> {
    let item = prop_oneof![3 => name(), 1 => Just("*".to_owned())];
    (item, prop::collection::vec(name(), 0..3), prop::option::of(name()), any::<bool>(), flags())
        .prop_map(|(name, required_types, default_type, allows_same_names, flags)| {
            ChildDefinition { name, required_types, default_type, allows_same_names, flags }
        })
}

fn definition() -> impl Strategy<Value = NodeTypeDefinition> {
    (
        (prop::collection::vec(name(), 0..3), any::<[bool; 4]>(), prop::option::of(name())),
        prop::collection::vec(property(), 0..4),
        prop::collection::vec(child(), 0..4),
    )
        .prop_map(|((supertypes, on, primary_item), properties, children)| {
            let [is_abstract, is_mixin, has_orderable_children, is_queryable] = on;
            NodeTypeDefinition {
                name: String::new(),
                supertypes,
                flags: NodeTypeFlags {
                    is_abstract,
                    is_mixin,
                    has_orderable_children,
                    is_queryable,
                },
                primary_item,
                properties,
                children,
            }
        })
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        types in prop::collection::btree_map(name(), definition(), 0..4),
        namespaces in prop::collection::btree_map(text(), text(), 0..3),
    ) {
        let types: Vec<NodeTypeDefinition> =
            types.into_iter().map(|(name, one)| NodeTypeDefinition { name, ..one }).collect();
        let written = write_cnd(&types, &namespaces);
        let cnd = parse_cnd(&written);
        prop_assert_eq!(&cnd.diagnostics, &[], "{}", written);
        prop_assert_eq!(&cnd.types, &types, "{}", written);
        prop_assert_eq!(&cnd.namespaces, &namespaces, "{}", written);
        prop_assert_eq!(write_cnd(&cnd.types, &cnd.namespaces), written);
    }

    #[test]
    fn no_text_is_too_strange(text in "([\\[\\]<>(){}=,!?*+'\"/\\\\ \n-]|[a-c]|mixin|query|qop|string){0,60}") {
        let cnd = parse_cnd(&text);
        let again = parse_cnd(&write_cnd(&cnd.types, &cnd.namespaces));
        prop_assert_eq!((again.types, again.diagnostics), (cnd.types, vec![]));
    }
}
