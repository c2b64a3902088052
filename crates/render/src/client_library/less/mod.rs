//! Style sheets in LESS, as older client libraries of AEM have them, compiled to CSS.
//!
//! In: the text of a file, and the other files of its library for `@import`. Out: CSS, or the reason why the file uses
//! something that is not supported.
//!
//! Supported: variables, nested rules with `&`, interpolation, mixins with parameters, defaults, guards and recursion,
//! namespaces, operations, imports, nested `@media` and `@supports`, escaped strings, and the functions on numbers and
//! colors of `less_function`.
//!
//! Not supported, and reported: detached rule sets, maps, `:extend`, plugins, JavaScript, loops with `each`.
//!
//! Invariant: compiling ends for any input: nesting, calls, the bytes of all computed values, and output are bounded.

mod less_evaluator;
mod less_fault;
mod less_function;
mod less_parser;
mod less_value;

use std::collections::BTreeMap;

use self::less_evaluator::evaluate_style_sheet;
pub(super) use self::less_fault::LessFault;
use self::less_parser::{LessStatement, LocatedStatement, parse_style_sheet};
use super::relative_path::{relative_folder, resolve_relative_path, rewrite_relative_urls};

/// Maximum number of imported files.
const MAX_IMPORTS: usize = 500;

/// Compiles the file at a path of a library.
///
/// # Errors
/// If a file does not exist, uses something that is not supported, or is too large.
pub(super) fn compile_less(
    files: &BTreeMap<String, String>,
    path: &str,
) -> Result<String, LessFault> {
    let fault = |reason| LessFault { file: path.to_owned(), line: 1, reason };
    let text = files.get(path).ok_or_else(|| fault(format!("there is no file `{path}`")))?;
    let statements = load_statements(files, path, text, &mut Vec::new())?;
    evaluate_style_sheet(path, &statements)
}

/// Parses a file and replaces its imports by the statements of the imported files, each once.
fn load_statements(
    files: &BTreeMap<String, String>,
    path: &str,
    text: &str,
    imported: &mut Vec<String>,
) -> Result<Vec<LocatedStatement>, LessFault> {
    imported.push(path.to_owned());
    let folder_of = |path: &str| path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
    let folder = folder_of(path);
    let way = relative_folder(&folder_of(imported.first().map_or(path, String::as_str)), &folder);
    // Addresses are relative to the file that has them, as with the option `rewriteUrls` of LESS.
    let parsed = match way.as_str() {
        "" => parse_style_sheet(path, text)?,
        way => {
            parse_style_sheet(path, &rewrite_relative_urls(text, |file| format!("{way}{file}")))?
        }
    };
    let mut statements = Vec::new();
    for located in parsed {
        let LessStatement::Import { target, is_optional, .. } = &located.statement else {
            statements.push(located);
            continue;
        };
        if target.contains("://") || target.starts_with("//") {
            statements.push(located);
            continue;
        }
        let fault = |reason| LessFault { file: path.to_owned(), line: located.line, reason };
        let relative = resolve_relative_path(&folder, target);
        let candidates = [relative.clone(), format!("{relative}.less"), format!("{relative}.css")];
        match candidates.iter().find_map(|candidate| files.get_key_value(candidate)) {
            Some((file, _)) if imported.contains(file) => {}
            Some(_) if imported.len() >= MAX_IMPORTS => {
                return Err(fault(format!("there are more than {MAX_IMPORTS} imports")));
            }
            Some((file, text)) => statements.extend(load_statements(files, file, text, imported)?),
            None if *is_optional => {}
            None => return Err(fault(format!("the imported file `{target}` does not exist"))),
        }
    }
    Ok(statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        let files = BTreeMap::from([("a.less".to_owned(), source.to_owned())]);
        let compact = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let compiled = compile_less(&files, "a.less").unwrap();
        assert_eq!(compact(&compiled), compact(expected), "{source}");
    }

    fn refusal(source: &str) -> String {
        let files = BTreeMap::from([("a.less".to_owned(), source.to_owned())]);
        compile_less(&files, "a.less").unwrap_err().reason
    }

    #[test]
    fn plain_css_stays_as_it_is() {
        check("a { color: red; } /* x */ // y\n", "a { color: red; }");
        check(
            "@media (max-width: 10px) { a { b: c; } }",
            "@media (max-width: 10px) { a { b: c; } }",
        );
        check(
            "@font-face { font-family: \"X; {\"; src: url(a;b.png) , url('c.woff'); }",
            "@font-face { font-family: \"X; {\"; src: url(a;b.png), url('c.woff'); }",
        );
        check(
            "@keyframes x { from { top: 0; } 50% { top: 1px; } }",
            "@keyframes x { from { top: 0; } 50% { top: 1px; } }",
        );
        check("a { font: 12px/1.5 Arial, sans-serif; }", "a { font: 12px/1.5 Arial, sans-serif; }");
        check("a { width: calc(100% - 2px); }", "a { width: calc(100% - 2px); }");
        check("a { margin: 0 -1px 0 auto !important; }", "a { margin: 0 -1px 0 auto !important; }");
        check("a { color: #FFf; b: U+0025-00FF; }", "a { color: #FFf; b: U+0025-00FF; }");
        check(
            "a:not(.b, [c=\"d{\"]) > e::after { content: '\\201C'; }",
            "a:not(.b, [c=\"d{\"]) > e::after { content: '\\201C'; }",
        );
    }

    #[test]
    fn rules_nest() {
        check(
            ".a, .b { x: y; &:hover { z: 1; } > c { d: e; } .f & { g: h; } &-i { j: k; } }",
            ".a, .b { x: y; } .a:hover, .b:hover { z: 1; } .a > c, .b > c { d: e; } .f .a, .f .b { g: h; } \
             .a-i, .b-i { j: k; }",
        );
        check(
            ".a { @media print { x: y; b { c: d; } } }",
            "@media print { .a { x: y; } .a b { c: d; } }",
        );
    }

    #[test]
    fn variables_are_lazy_and_scoped() {
        check("@a: @b; @b: 2px; x { y: @a; @b: 3px; z: @b; }", "x { y: 3px; z: 3px; }");
        check("@a: 1px; x { @a: 2px; b: @a; } y { b: @a; }", "x { b: 2px; } y { b: 1px; }");
        check(
            "@n: icon; .@{n}-b { @{n}-c: \"@{n}.png\"; d: ~\"e@{n}\"; }",
            ".icon-b { icon-c: \"icon.png\"; d: eicon; }",
        );
        check(
            "@p: 10px; @media (min-width: @p) { a { b: c; } }",
            "@media (min-width: 10px) { a { b: c; } }",
        );
        assert!(refusal("a { b: @none; }").contains("@none"));
        assert!(refusal("@a: @b; @b: @a; x { y: @a; }").contains("itself"));
    }

    #[test]
    fn operations_keep_units() {
        check(
            "@a: 10px; x { b: @a * 2; c: (@a + 5) / 2; d: -@a; e: @a - 4px; f: 2 * 1.5em; g: @a/4; }",
            "x { b: 20px; c: 7.5px; d: -10px; e: 6px; f: 3em; g: 2.5px; }",
        );
        check(
            "x { a: percentage(0.5); b: floor(1.7px); c: unit(5, em); d: round(1.25, 1); }",
            "x { a: 50%; b: 1px; c: 5em; d: 1.3; }",
        );
        check(
            "x { a: fade(#000, 20%); b: darken(#ff0000, 10%); c: lighten(black, 50%); d: mix(#000, #fff, 50%); }",
            "x { a: rgba(0, 0, 0, 0.2); b: #cc0000; c: #808080; d: #808080; }",
        );
        check(
            "x { a: rgba(1, 2, 3, 0.5); b: rgb(1, 2, 3); c: translate(-50%, 2px); }",
            "x { a: rgba(1, 2, 3, 0.5); b: rgb(1, 2, 3); c: translate(-50%, 2px); }",
        );
    }

    #[test]
    fn mixins_have_parameters_guards_and_recursion() {
        check(
            ".m(@a; @b: 2px) { x: @a; y: @b; } p { .m(1px); } q { .m(1px; 3px); } r { .m(@b: 5px, @a: 4px); }",
            "p { x: 1px; y: 2px; } q { x: 1px; y: 3px; } r { x: 4px; y: 5px; }",
        );
        check(
            ".m { x: y; b { c: d; } } p { .m(); } q { .m; }",
            ".m { x: y; } .m b { c: d; } p { x: y; } p b { c: d; } q { x: y; } q b { c: d; }",
        );
        check(".m() when (default()) { a: b; } x { .m() !important; }", "x { a: b !important; }");
        check(
            ".g(@n, @i: 1) when (@i =< @n) { .c-@{i} { width: (@i * 100% / @n); } .g(@n, @i + 1); } .g(2);",
            ".c-1 { width: 50%; } .c-2 { width: 100%; }",
        );
        check(
            ".m(@a) when (iscolor(@a)) { c: @a; } .m(@a) when not (iscolor(@a)) { n: @a; } x { .m(#fff); .m(1px); }",
            "x { c: #fff; n: 1px; }",
        );
        check("#ns { .m(@a) { b: @a; } } x { #ns > .m(1); #ns.m(2); }", "x { b: 1; b: 2; }");
        check(
            ".m(@rest...) { a: @rest; b: @arguments; } x { .m(1px, 2px); }",
            "x { a: 1px 2px; b: 1px 2px; }",
        );
        check(".inner() { a: @v; } .outer(@v) { .inner(); } x { .outer(1px); }", "x { a: 1px; }");
        assert!(refusal("x { .none(); }").contains(".none"));
        assert!(refusal(".m() { .m(); } x { .m(); }").contains("deep"));
        for (open, close) in [("(", ")"), ("f(", ")"), ("-(", ")")] {
            let deep = format!("x {{ a: {}1{}; }}", open.repeat(10_000), close.repeat(10_000));
            assert!(refusal(&deep).contains("deep"), "{open}");
        }
        assert!(
            refusal(&format!("{}{}", "a {".repeat(10_000), "}".repeat(10_000))).contains("deep")
        );
    }

    /// Variables of which each is twice as long as the one before it.
    fn doubled_variables(literal: &str) -> String {
        let mut source = format!("@a0: \"{literal}\";\n");
        for number in 1..=40 {
            let before = number - 1;
            source.push_str(&format!("@a{number}: \"@{{a{before}}}@{{a{before}}}\";\n"));
        }
        source
    }

    #[test]
    fn values_that_double_are_refused() {
        let variables = doubled_variables(&"x".repeat(64 * 1024));
        for user in [
            "b { c: @a40; }",
            "b { c: ~\"@{a40}\"; }",
            "b { c: e(@a40); }",
            "b { c: %(\"%s\", @a40); }",
            "b { c: replace(\"y\", \"y\", @a40); }",
            "b { c: url(@a40); d: calc(1px + @a40); }",
            "b { @{a40}: c; }",
            ".@{a40} { c: d; }",
            "@media @a40 { b { c: d; } }",
            ".m(@p) { c: @p; } b { .m(@a40); }",
            ".m(@p) { } b { .m(@p: @a40); }",
            ".m(@p: @a40) { c: @p; } b { .m(); }",
            ".m(@rest...) { c: @rest; } b { .m(1, @a40); }",
            ".m() when (@a40 = 1) { c: d; } b { .m(); }",
        ] {
            let reason = refusal(&format!("{variables}{user}"));
            assert!(reason.contains("larger than"), "{user}: {reason}");
        }
        // Variables that stay short are evaluated too often.
        let reason = refusal(&format!("{} b {{ c: @a40; }}", doubled_variables("")));
        assert!(reason.contains("steps"), "{reason}");
        // The blocks of variables are refused before anything evaluates them.
        assert!(
            refusal(&format!("{variables}@d: {{ c: @a40; }} b {{ @d(); }}")).contains("detached")
        );
        assert!(refusal(&format!("{variables}b {{ c: ~`@{{a40}}`; }}")).contains("JavaScript"));
    }

    #[test]
    fn values_that_add_up_are_refused() {
        let long = "x".repeat(512 * 1024);
        let calls = ".m(@a);".repeat(200);
        for source in [
            // No single value is too large, and none of them reaches the output.
            format!("@a: \"{long}\"; .m(@p) {{ @q: 1; }} b {{ {calls} }}"),
            format!("@a: \"{long}\"; {} b {{ .m(@a); }}", ".m(@p) { }".repeat(200)),
            format!("@a: \"{long}\"; b {{ {} }}", "c: red(@a, #000);".repeat(200)),
            format!("@a: \"{long}\"; b {{ c: f({}); }}", "@a, ".repeat(200)),
            format!("@a: \"{long}\"; .m() when (@a = 1) {{ }} b {{ {} }}", ".m();".repeat(200)),
            // A body that a mixin repeats.
            format!(
                ".m(@i) when (@i > 0) {{ @import url(//x/{long}); @import url(//y/{long}); .m(@i - 1); }} b {{ .m(80); }}"
            ),
            ".m(@i; @t) when (@i > 0) { .m(@i - 1; \"@{t}@{t}\"); } .m(30; x);".to_owned(),
            format!(".m(@i) when (@i > 0) {{ &-{long} {{ .m(@i - 1); }} }} b {{ .m(30); }}"),
            // Selectors that hold those around them several times.
            format!("{}c: d;{}", "&b & & & {".repeat(40), "}".repeat(40)).replacen('&', "a", 1),
        ] {
            let reason = refusal(&source);
            let start: String = source.chars().filter(|next| *next != 'x').take(200).collect();
            assert!(reason.contains("larger than"), "{start}: {reason}");
        }
    }

    #[test]
    fn imports_in_a_loop_add_nothing() {
        let files = [
            ("a.less", "@import 'b'; @import 'a'; x { y: @v; }"),
            ("b.less", "@import 'a.less'; @v: \"@{w}@{w}\"; @w: 1;"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        assert_eq!(compile_less(&files, "a.less").unwrap(), "x {\n  y: \"11\";\n}\n");
        let looped = doubled_variables(&"x".repeat(64 * 1024)) + "@import 'a'; b { c: @a40; }";
        assert!(refusal(&looped).contains("larger than"));
    }

    #[test]
    fn unsupported_parts_are_named() {
        for (source, part) in [
            ("@d: { a: b; }", "detached"),
            ("a { &:extend(.b); }", "extend"),
            ("@plugin \"x\";", "@plugin"),
            ("a { b: `x`; }", "JavaScript"),
            ("a { b: c; ", "`}`"),
            ("a { b: c; } }", "`}`"),
        ] {
            assert!(refusal(source).contains(part), "{source}: {}", refusal(source));
        }
    }

    #[test]
    fn imports_are_inlined_once() {
        let files = [
            (
                "css/a.less",
                "@import 'sub/b';\n@import (optional) 'none';\n@import 'sub/b.less'; x { y: @v; }",
            ),
            ("css/sub/b.less", "@import \"c.css\"; @v: 1px;"),
            ("css/sub/c.css", "c { d: e; }"),
            ("bad.less", "@import 'none';"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let compiled = compile_less(&files, "css/a.less").unwrap();
        assert_eq!(
            compiled.split_whitespace().collect::<Vec<_>>().join(" "),
            "c { d: e; } x { y: 1px; }"
        );
        assert!(compile_less(&files, "bad.less").unwrap_err().reason.contains("none"));
    }

    #[test]
    fn addresses_in_imported_files_stay_relative_to_these() {
        let files = [
            ("styles/a.less", "@import 'base/b'; a { b: url(c.svg); }"),
            (
                "styles/base/b.less",
                "@p: \"x\"; b { c: url('../../resources/d.woff?#e'); f: url(\"@{p}/g\"); h: url(/i); }",
            ),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let compiled = compile_less(&files, "styles/a.less").unwrap();
        let compiled = compiled.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            compiled,
            "b { c: url('base/../../resources/d.woff?#e'); f: url(\"x/g\"); h: url(/i); } a { b: url(c.svg); }"
        );
    }

    #[test]
    fn faults_have_their_file_and_line() {
        for (source, line) in [
            ("a { b: c; }\n\n/* x\n*/ d {\n  e: f;\n  g: @none;\n}", 6),
            ("// x\n.m(@p) {\n  a: @p + @none;\n}\nb {\n  .m(1);\n}", 3),
            ("a {\n  b: c;\n", 1),
            ("a {\n  b: c;\n}\n }", 4),
            ("a { b: c; }\n@d: {\n e: f;\n}\ng { h: i; }", 2),
            ("a { b: c; }\n@import 'none';", 2),
            ("@import 'part';\na {\n  b: c;\n  .missing();\n}", 4),
        ] {
            let files = [("a.less", source), ("part.less", "x {\n  y: z;\n}")];
            let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
            let fault = compile_less(&files, "a.less").unwrap_err();
            assert_eq!((fault.file.as_str(), fault.line), ("a.less", line), "{fault:?}");
        }
        let files = [("a.less", "@import 'sub/part';"), ("sub/part.less", "x {\n  y: @none;\n}")];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let fault = compile_less(&files, "a.less").unwrap_err();
        assert_eq!((fault.file.as_str(), fault.line), ("sub/part.less", 2), "{fault:?}");
    }
}
