//! Scripts that try to take all: each ends within its budget, with the place that it reached.

use std::fmt::Write;

use tympan_htl::{HtlLimits, HtlScript, HtlValue};

use crate::test_host::TestHost;

fn host() -> TestHost {
    let many = HtlValue::list((0..1_000).map(HtlValue::Integer));
    TestHost::with([("many", many)]).with_limits(HtlLimits {
        steps: 200_000,
        output_bytes: 100_000,
        depth: 100,
    })
}

fn check(source: &str, expected: &str) {
    let result = host().render(source);
    assert_eq!(result.get(..200).unwrap_or(&result), expected, "{source}");
}

#[test]
fn endless_recursion_ends() {
    let call = "<sly data-sly-call=\"${t}\"/>";
    check(
        &format!("<sly data-sly-template.t>{call}</sly>\n{call}"),
        "ERROR test.html:1:46: the limit of 100 nested calls of templates and scripts is exceeded",
    );
    let mut host = host().with_script("a.html", "<sly data-sly-include='a.html'/>");
    assert_eq!(
        host.render("<sly data-sly-include='a.html'/>"),
        "ERROR a.html:1:1: the limit of 100 nested calls of templates and scripts is exceeded"
    );
}

#[test]
fn loops_end() {
    let source = "<i data-sly-list=\"${many}\"><i data-sly-list=\"${many}\"><i data-sly-list=\"${many}\"></i></i></i>";
    check(source, "ERROR test.html:1:81: the limit of 200000 steps is exceeded");
}

#[test]
fn output_ends() {
    check(
        "<i data-sly-list=\"${many}\">${many}</i>",
        "ERROR test.html:1:28: the limit of 100000 bytes of output is exceeded",
    );
    let doubling = "<sly data-sly-set.a='${a || \"xxxxxxxxxxxxxxxx\"}'/><sly data-sly-list='${many}'><sly data-sly-set.a='${a}${a}'/></sly>";
    check(doubling, "ERROR test.html:1:101: the limit of 100000 bytes of output is exceeded");
    check(
        "<sly data-sly-list='${many}'><sly data-sly-set.a='${many @ join=\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}'/></sly>",
        "ERROR test.html:1:51: the limit of 200000 steps is exceeded",
    );
}

#[test]
fn nested_lists_end() {
    let source = "<sly data-sly-set.a='${[1]}'/><sly data-sly-list='${many}'><sly data-sly-set.a='${[a, a]}'/></sly>";
    check(source, "ERROR test.html:1:81: more than 64 lists within each other");
    let bushy = "<sly data-sly-set.a='${[1, 1]}'/><sly data-sly-list='${many @ end=50}'><sly data-sly-set.a='${[a, a]}'/></sly>${a}";
    check(bushy, "ERROR test.html:1:111: the limit of 100000 bytes of output is exceeded");
}

#[test]
fn deep_and_broken_markup_compiles() {
    let deep = format!(
        "{}x{}",
        "<div class='${\"a\"}' data-sly-unwrap='${x}'>".repeat(20_000),
        "</div>".repeat(20_000)
    );
    HtlScript::compile("deep.html", &deep).unwrap();
    let open = "<p data-sly-test='${a}'>".repeat(20_000);
    HtlScript::compile("open.html", &open).unwrap();
    for part in [
        "<a b='",
        "${'",
        "<a<",
        "</a",
        "<!--",
        "<!--/*",
        "<a b=${",
        "\\${",
        "</div>",
        "<![CDATA[",
        "<a b=\"${x\"",
    ] {
        let source = part.repeat(40_000);
        drop(HtlScript::compile("part.html", &source));
    }
    let mut attributes = String::from("<p");
    for number in 0..2_000 {
        write!(attributes, " a{number}='x' data-sly-attribute.b{number}='y'").unwrap();
    }
    attributes.push_str(" data-sly-attribute='${m}'>");
    HtlScript::compile("attributes.html", &attributes).unwrap();
}

#[test]
fn scripts_of_any_size_are_refused_or_compiled() {
    let huge = " ".repeat((8 << 20) + 1);
    let error = HtlScript::compile("huge.html", &huge).unwrap_err();
    assert_eq!(error.to_string(), "huge.html:1:1: the script has more than 8388608 bytes");
    let faulty = "${a b}".repeat(1_000);
    let error = HtlScript::compile("faulty.html", &faulty).unwrap_err();
    assert_eq!(error.faults().len(), 100);
}
