//! What looking through scripts finds, line by line.

use tympan_render::{ClientLibrarySource, ScriptSet, check_scripts};

#[track_caller]
fn findings(template: &str) -> Vec<String> {
    let mut set = ScriptSet::default();
    set.scripts.insert("/apps/t/t.html.j2".to_owned(), template.to_owned());
    set.scripts.insert("/apps/t/part.html.j2".to_owned(), "{{ v }}".to_owned());
    let found = check_scripts(&set).into_iter();
    found.map(|one| one.to_string().trim_start_matches("/apps/t/t.html.j2:").to_owned()).collect()
}

#[track_caller]
fn finds(template: &str, expected: &[&str]) {
    let found = findings(template);
    assert_eq!(found.len(), expected.len(), "{template}: {found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{template}: {found}");
    }
}

#[test]
fn sound_templates_pass() {
    finds("", &[]);
    finds(
        "<a href=\"{{ page.url }}\" title=\"{{ x|upper }}\">{{ link(x) if x is defined }}</a>",
        &[],
    );
    finds("{% macro m(f) %}{{ f(1) }}{% endmacro %}{{ m(range) }}{% set g = m %}{{ g(2) }}", &[]);
    finds(
        "{% from \"part.html.j2\" import a as b %}{{ b() }}<p class=\"{% include \"part.html.j2\" %}\">",
        &[],
    );
    finds("{% for p in search(\"/content\", request.suffix).hits %}{{ p }}{% endfor %}", &[]);
}

#[test]
fn faults_have_their_place() {
    finds("a\n{% if %}", &["2:7: syntax error"]);
    finds(
        "a\n <p onclick=\"{{ x }}\">",
        &["2:17: in a quoted value in `<p>`: this attribute runs"],
    );
    finds("<p>\n{{ nosuch(1) }}", &["2:4: there is no function `nosuch`"]);
    finds("{{ x|nosuch }}", &["1:6: there is no filter `nosuch`"]);
    finds("{{ x is nosuch }}", &["1:"]);
    finds("{% include x %}", &["1:4: an included template must be named by a string literal"]);
    finds("{% include \"list.txt.j2\" %}", &["1:4: `list.txt.j2` is in a different language"]);
    finds("{% extends \"list.txt.j2\" %}", &["1:4: `list.txt.j2` is in a different language"]);
    finds("<p title=\"", &["1:11: the template ends inside a quoted value in `<p>`"]);
    finds("{% if x %}<script>{% endif %}", &["1:30: the template ends inside a script"]);
    finds("{% set x %}<b{% endset %}", &["1:4: the captured text ends inside the name of a tag"]);
}

#[test]
fn queries_in_templates_that_display_are_warned_of() {
    finds(
        "<ul>\n{% for hit in search(\"/content\", \"news\").hits %}{{ hit.page.title }}{% endfor %}",
        &["2:15: warning: `search` runs a query on every rendering"],
    );
}

#[test]
fn javascripts_that_cannot_be_parsed_have_their_place() {
    let mut set = ScriptSet::default();
    for (path, source) in [
        ("/apps/t/sound.js", "use(function () { return undefinedName(); });"),
        ("/apps/t/broken.js", "use(function () {\n  var = 1;\n});"),
    ] {
        set.use_scripts.insert(path.to_owned(), source.to_owned());
    }
    let findings: Vec<_> = check_scripts(&set).iter().map(ToString::to_string).collect();
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert!(finding.starts_with("/apps/t/broken.js:2:"), "{finding}");
    assert!(finding.contains("SyntaxError"), "{finding}");
}

#[test]
fn style_sheets_that_do_not_compile_have_their_place() {
    let files =
        [("css.txt", "a.less\nb.less"), ("a.less", "a { b: c; }"), ("b.less", "a {\n  b: @c;\n}")];
    let library = ClientLibrarySource {
        categories: vec!["t".to_owned()],
        is_proxied: true,
        files: files.map(|(path, text)| (path.to_owned(), text.to_owned())).into(),
        ..ClientLibrarySource::default()
    };
    let mut set = ScriptSet::default();
    // The fault of an embedded library is found once.
    let outer = ClientLibrarySource {
        embeds: library.categories.clone(),
        is_proxied: true,
        ..ClientLibrarySource::default()
    };
    set.client_libraries.insert("/apps/t/outer".to_owned(), outer);
    set.client_libraries.insert("/apps/t/lib".to_owned(), library);
    let findings: Vec<_> = check_scripts(&set).iter().map(ToString::to_string).collect();
    assert_eq!(
        findings,
        ["/apps/t/lib/b.less:2:1: cannot compile the style sheet: there is no variable `@c`"]
    );
}
