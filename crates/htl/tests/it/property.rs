//! Properties: no input panics, and markup without expressions passes unchanged.

use proptest::prelude::*;
use tympan_htl::{HtlLimits, HtlScript, HtlValue};

use crate::test_host::TestHost;

fn host() -> TestHost {
    TestHost::with([
        ("a", HtlValue::list(["x".into(), 1.into(), HtlValue::Null])),
        ("b", HtlValue::map([("c", "<d>".into())])),
    ])
    .with_limits(HtlLimits { steps: 20_000, output_bytes: 20_000, depth: 20 })
}

/// Parts of scripts, which together are sometimes valid.
fn script() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "<div",
        "<sly",
        "<p>",
        "</p>",
        "</div>",
        "</sly>",
        "<br/>",
        "/>",
        ">",
        " ",
        "\n",
        "'",
        "\"",
        "=",
        "${",
        "}",
        "${a}",
        "${b.c @ context='html'}",
        "${a @ join='-'}",
        " data-sly-test='${a}'",
        " data-sly-list='${a}'",
        " data-sly-repeat.x='${b}'",
        " data-sly-attribute='${b}'",
        " data-sly-attribute.id='${a}'",
        " data-sly-element='${b.c}'",
        " data-sly-unwrap='${a}'",
        " data-sly-set.y='${x}'",
        " data-sly-template.t='${@ z}'",
        " data-sly-call='${t @ z=a}'",
        " data-sly-text='${itemList.count}'",
        " data-sly-resource='${a}'",
        " title='${a}x'",
        " class='y'",
        "<script>",
        "</script>",
        "<!--",
        "-->",
        "<!--/*",
        "*/-->",
        "<![CDATA[",
        "<style>",
        "\\${",
        "@",
        " && ",
        "==",
        "[",
        "]",
        "ä",
        "<img",
    ]);
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_script_panics(source in script()) {
        host().render(&source);
    }

    #[test]
    fn no_text_panics(source in any::<String>()) {
        host().render(&source);
        host().render(&format!("<p x=\"${{{source}}}\">${{{source}}}</p>"));
    }

    #[test]
    fn static_markup_is_unchanged(source in "[<>/=\"'a-c !ä\\-\\[\\]\n]{0,80}") {
        prop_assume!(!source.contains("<!--/*"));
        let script = HtlScript::compile("static.html", &source);
        prop_assert!(script.is_ok());
        prop_assert_eq!(host().render(&source), source);
    }
}
