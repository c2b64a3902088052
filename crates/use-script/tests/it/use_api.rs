//! The Use-API: values, parameters, dependencies, variables, errors.

use tympan_htl::HtlValue;

use crate::test_host::{TestHost, run, run_with, show};

#[track_caller]
fn check(source: &str, expected: &str) {
    let (realm, _) = TestHost::new().realm();
    assert_eq!(show(&run(&realm, source)), expected, "{source}");
}

#[test]
fn values_become_values_of_expressions() {
    check(
        "use(function () { return { a: 1, b: 1.5, c: 'x', d: true, e: null }; });",
        "{a: 1, b: 1.5, c: 'x', d: true, e: null}",
    );
    check("use(function () { return [1, [2], 'x']; });", "[1, [2], 'x']");
    check("use(() => ({ list: [{ a: 1 }] }))", "{list: [{a: 1}]}");
    check("use(() => 'text')", "'text'");
    check("use(() => undefined)", "null");
    check("use(() => NaN)", "NaN");
    check("use(() => 1e300)", "1.0E300");
    check("use(() => new Date(0))", "1970-01-01T00:00:00.000+00:00");
    check("use(() => new String('boxed'))", "'boxed'");
    check("use(() => '\\ud800')", "'\u{fffd}'");
    check("use(() => Symbol('x'))", "null");
    check("var a = 1;", "null");
}

#[test]
fn functions_are_called_as_methods() {
    check("use(() => ({ n: 2, twice() { return this.n * 2; } }))", "{n: 2, twice: 4}");
    check("use(() => () => 'called')", "'called'");
    check("use(() => [() => 1, () => 2])", "[1, 2]");
    check(
        "class A { get x() { return 5; } } use(() => { const a = new A(); a.y = 1; return a; })",
        "{y: 1}",
    );
    let (realm, _) = TestHost::new().realm();
    let value =
        run(&realm, "class A { get x() { return 5; } m() { return 6; } } use(() => new A())")
            .unwrap();
    let HtlValue::Object(object) = value else { panic!("{value:?}") };
    assert_eq!(object.property("x").unwrap().unwrap().to_text(), "5");
    assert_eq!(object.property("m").unwrap().unwrap().to_text(), "6");
    assert!(object.property("none").unwrap().is_none());
}

#[test]
fn parameters_are_properties_of_this() {
    let (realm, _) = TestHost::new().realm();
    let list = HtlValue::list([1.into(), "x".into()]);
    let options = [("text", HtlValue::from("hello")), ("list", list), ("none", HtlValue::Null)];
    let value = run_with(
        &realm,
        "use(function () { return [this.text, this.list.length, this.none, this.other]; })",
        options,
    );
    assert_eq!(show(&value), "['hello', 2, null, null]");
    // An object of a script that is passed to another one is the same object.
    let first = run(&realm, "use(() => ({ n: 1 }))").unwrap();
    let value = run_with(
        &realm,
        "use(function () { this.first.n += 1; return this.first; })",
        [("first", first)],
    );
    assert_eq!(show(&value), "{n: 2}");
}

#[test]
fn dependencies_are_passed_in_their_order() {
    let host = TestHost::new()
        .with_script("a.js", "use(function () { return { name: 'a', param: this.text }; });")
        .with_script("b.js", "module.exports.twice = function (x) { return 2 * x; };")
        .with_script("c.js", "use('a.js', function (a) { return a.name + '!'; });")
        .with_script("loop.js", "use('loop.js', function (a) { return a; });");
    let (realm, trace) = host.realm();
    let source = "use(['a.js', 'b.js'], function (a, b) { return { name: a.name, param: a.param, two: b.twice(1) }; });";
    let value = run_with(&realm, source, [("text", "of the outer script".into())]);
    assert_eq!(show(&value), "{name: 'a', param: null, two: 2}");
    assert_eq!(show(&run(&realm, "use('c.js', function (c) { return c; })")), "'a!'");
    assert!(trace.borrow().contains(&"script a.js from /apps/c.js".to_owned()), "{trace:?}");
    let value = run(&realm, "use('x.js', function (a) { return a; })");
    assert_eq!(show(&value), "ERROR /apps/test.js:1:1: Error: there is no script `x.js`");
    let value = run(&realm, "use('x.html', function (a) { return a; })");
    assert_eq!(
        show(&value),
        "ERROR /apps/test.js:1:1: Error: only scripts with the suffix `.js` can be used: `x.html`"
    );
    let value = run(&realm, "use('loop.js', function (a) { return a; })");
    assert!(show(&value).contains("the script `/apps/loop.js` depends on itself"), "{value:?}");
}

#[test]
fn variables_of_two_scripts_are_their_own() {
    let host = TestHost::new().with_script("a.js", "const x = 1; use(() => x);");
    let (realm, _) = host.realm();
    let source = "use('a.js', a => [a, x, typeof y]); const x = 2; function f() {}";
    assert_eq!(show(&run(&realm, source)), "[1, 2, 'undefined']");
}

#[test]
fn a_script_reads_only_what_it_asks_for() {
    let (realm, trace) = TestHost::new().realm();
    let value = run(&realm, "use(() => properties.title + properties.tags.join('+'))");
    assert_eq!(show(&value), "'A & Bred+blue'");
    let expected = ["variable properties", "read properties.title", "read properties.tags"];
    assert_eq!(*trace.borrow(), expected);
}

#[test]
fn objects_of_the_host_are_objects_with_methods() {
    check(
        "use(() => [properties['title'], properties.getTitle(), properties.none])",
        "['A & B', 'A & B', null]",
    );
    check(
        "use(() => [properties.getText('title'), properties.getText('none', 'else')])",
        "['A & B', 'else']",
    );
    check("use(() => Object.keys(properties))", "['count', 'tags', 'title']");
    check(
        "use(() => { const all = []; for (const key in properties) all.push(key); return all; })",
        "['count', 'tags', 'title']",
    );
    check("use(() => ['title' in properties, 'x' in properties])", "[true, false]");
    check(
        "use(() => JSON.stringify(properties))",
        r#"'{"count":3,"tags":["red","blue"],"title":"A & B"}'"#,
    );
    check("use(() => properties.tags.size() + properties.tags.get(1))", "'2blue'");
    check(
        "use(() => { const i = properties.tags; const all = []; while (i.hasNext()) all.push(i.next()); return all; })",
        "['red', 'blue']",
    );
    check("use(() => { properties.title = 'changed'; return properties.title; })", "'A & B'");
    check(
        "use(() => resource)",
        "{path: '/content/a', resourceType: 'test/text', valueMap: {title: 'Title of /content/a'}}",
    );
    check(
        "use(() => typeof java + typeof Packages + typeof setTimeout)",
        "'undefinedundefinedundefined'",
    );
}

#[test]
fn the_cross_platform_resource_has_promises() {
    check(
        "use(() => [granite.resource.path, granite.resource.name, granite.resource.properties.title])",
        "['/content/a', 'a', 'Title of /content/a']",
    );
    check("use(() => granite.resource.resolve('b').then(r => r.path))", "'/content/a/b'");
    check(
        "use(() => granite.resource.resolve('/x/missing').then(r => r.path, e => e.message))",
        "'there is no resource at `/x/missing`'",
    );
    check("use(() => granite.resource.resolve('/x/missing').fail(() => 'failed'))", "'failed'");
    check(
        "use(['/libs/sightly/js/3rd-party/q.js'], Q => { const d = Q.defer(); d.resolve(5); return { value: d.promise }; })",
        "{value: 5}",
    );
    check("use(async () => { await null; return 'later'; })", "'later'");
    check("use(() => new Promise(() => {}))", "null");
    check(
        "use(() => Promise.reject(new Error('refused')))",
        "ERROR /apps/test.js:1:30: Error: refused",
    );
}

#[test]
fn the_clock_and_random_numbers_are_those_of_the_host() {
    check(
        "use(() => [Date.now(), new Date().getTime(), new Date(5).getTime()])",
        "[1700000000000, 1700000000000, 5]",
    );
    check("use(() => new Date() instanceof Date && new Date(0).constructor === Date)", "true");
    let (first, _) = TestHost::new().realm();
    let (second, _) = TestHost::new().realm();
    let source = "use(() => [Math.random(), Math.random()].join())";
    let value = show(&run(&first, source));
    assert_eq!(value, show(&run(&second, source)));
    assert_ne!(value, show(&run(&first, source)));
}

#[test]
fn messages_reach_the_log() {
    let (realm, trace) = TestHost::new().realm();
    run(&realm, "use(() => { log.info('a {} c', 'b'); console.error('x', 1); log.debug('d'); })")
        .unwrap();
    let expected = ["Info /apps/test.js a b c", "Error /apps/test.js x 1", "Debug /apps/test.js d"];
    assert_eq!(*trace.borrow(), expected);
}

#[test]
fn errors_name_script_line_and_column() {
    check(
        "use(function () {\n  return nothing.x;\n});",
        "ERROR /apps/test.js:2:10: ReferenceError: nothing is not defined",
    );
    check(
        "use(function () { return null.x; });",
        "ERROR /apps/test.js:1:1: TypeError: cannot read property 'x' of null",
    );
    check(
        "use(function () {\n  return (;\n});",
        "ERROR /apps/test.js:2:11: SyntaxError: unexpected token in expression: ';'",
    );
    check("throw 'text'", "ERROR /apps/test.js:1:1: text");
    check("use()", "ERROR /apps/test.js:1:1: TypeError: `use` takes a function");
    check(
        "use(() => properties.broken)",
        "ERROR /apps/test.js:1:11: Error: the store does not answer",
    );
    let host = TestHost::new()
        .with_script("a.js", "\n\nuse(function () { throw new RangeError('deep'); });");
    let (realm, _) = host.realm();
    let value = run(&realm, "use('a.js', function (a) {})");
    assert_eq!(show(&value), "ERROR /apps/a.js:3:29: RangeError: deep");
    // A property that fails, fails when it is read.
    check(
        "use(() => ({ a: 1, get b() { throw new Error('no'); } }))",
        "{a: 1, b: ERROR /apps/test.js:1:40: Error: no}",
    );
}
