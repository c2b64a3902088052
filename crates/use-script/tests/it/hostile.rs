//! Scripts that try to take all or to reach what is not theirs: each ends, and the realm goes on or stays closed.

use crate::test_host::{TestHost, run, show};

/// Runs a script whose value is made by an expression.
fn value_of(expression: &str) -> String {
    let (realm, _) = TestHost::new().realm();
    show(&run(&realm, &format!("use(() => {{ {expression} }})")))
}

#[track_caller]
fn check_steps(expression: &str) {
    let value = value_of(expression);
    assert_eq!(
        value, "ERROR /apps/test.js:1:1: the limit of 100000 steps is exceeded",
        "{expression}"
    );
}

#[track_caller]
fn check_contains(expression: &str, expected: &str) {
    let value = value_of(expression);
    assert!(value.contains(expected), "{expression}: {value}");
}

#[test]
fn endless_loops_end() {
    check_steps("for (;;) {}");
    check_steps("for (;;) { try { for (;;) {} } catch (e) {} finally { for (;;) {} } }");
    check_steps("function f() { return f; } for (;;) f()");
    check_steps("return [...(function* () { for (;;) yield 1; })()]");
    check_steps("return (async () => { for (;;) await 0; })()");
    check_steps("for (;;) properties.title");
    check_steps("for (;;) { try { properties.title } catch (e) {} }");
    check_steps("new Proxy({}, { get() { for (;;) {} } }).x");
    check_steps("return { toString() { for (;;) {} } } + ''");
    check_steps("return { a: 1, get b() { for (;;) {} } }.b");
    check_steps("[1, 2].sort(() => { for (;;) {} })");
}

#[test]
fn a_property_that_never_ends_ends_and_closes_the_realm() {
    let (realm, _) = TestHost::new().realm();
    let value = run(&realm, "use(() => ({ a: 1, b() { for (;;) {} }, c: 2 }))");
    let limit = "ERROR /apps/test.js:1:1: the limit of 100000 steps is exceeded";
    assert_eq!(show(&value), format!("{{a: 1, b: {limit}, c: {limit}}}"));
    assert_eq!(show(&run(&realm, "use(() => 1)")), limit);
}

#[test]
fn deep_recursion_ends() {
    check_contains(
        "function f() { return f() + 1; } return f();",
        "Maximum call stack size exceeded",
    );
    check_contains(
        "function f() { try { return f() + 1; } catch (e) { return 0; } } return f() > 10;",
        "true",
    );
    check_contains(
        "let a = []; for (let i = 0; i < 3000; i++) a = [a]; return a;",
        "values within each other",
    );
    check_contains(
        "let a = []; for (let i = 0; i < 9000; i++) a = [a]; return JSON.stringify(a);",
        "Maximum call stack size exceeded",
    );
    check_contains("return JSON.parse('['.repeat(100000))", "Maximum call stack size exceeded");
    check_contains("const a = []; a.push(a); return a;", "values within each other");
    check_contains("const f = () => f; return f;", "ERROR");
    let (realm, _) = TestHost::new().realm();
    let source = format!("use(() => {}1{})", "(".repeat(50_000), ")".repeat(50_000));
    assert!(show(&run(&realm, &source)).contains("Maximum call stack size exceeded"));
    assert_eq!(show(&run(&realm, "use(() => 'still here')")), "'still here'");
}

#[test]
fn memory_ends() {
    check_contains("return 'x'.repeat(100000000)", "out of memory");
    check_contains("let s = 'x'; for (;;) s += s;", "ERROR");
    check_contains("return new Array(100000000).fill(1)", "ERROR");
    check_contains("return Array.from({ length: 4294967295 })", "ERROR");
    check_contains("return 'x'.padEnd(1073741824)", "ERROR");
    check_contains("return 'a'.repeat(100000).replaceAll('a', 'b'.repeat(100000))", "ERROR");
    check_contains(
        "const a = []; for (;;) { try { a.push(new Array(100000).fill(1)); } catch (e) {} }",
        "ERROR",
    );
    check_contains("const a = []; for (;;) a.push('y'.repeat(1000) + a.length);", "ERROR");
    check_contains("for (;;) { const a = {}; a.a = a; }", "the limit of 100000 steps is exceeded");
    check_contains(
        "const a = []; for (;;) { try { a.push({ n: a.length }); } catch (e) {} }",
        "the limit of 100000 steps is exceeded",
    );
    check_contains("return '\\u0344'.repeat(1000000).normalize('NFKD')", "ERROR");
    check_contains("return 2n ** (2n ** 100n)", "BigInt is too large");
}

#[test]
fn long_operations_of_the_engine_end() {
    for expression in [
        "Array.prototype.indexOf.call({ length: 2 ** 53 - 1 }, 1)",
        "Array.prototype.reverse.call({ length: 2 ** 53 - 1 })",
        "Array.prototype.join.call({ length: 2 ** 32 - 1 })",
        "Array.prototype.sort.call({ length: 2 ** 32 - 1 })",
        "Array.prototype.copyWithin.call({ length: 2 ** 53 - 1 }, 0, 5)",
        "Array.prototype.splice.call({ length: 2 ** 53 - 1 }, 0, 1)",
        "Array.prototype.unshift.call({ length: 2 ** 53 - 2 }, 0)",
        "const a = []; a.length = 4294967295; return a.flat()",
        "const a = []; a.length = 4294967295; a.forEach(x => x)",
        "const a = []; a.length = 4294967295; return a",
        "const s = 'x'.repeat(1e6); for (;;) s.indexOf('y')",
        "const s = 'a'.repeat(1e6), t = 'a'.repeat(5e5) + 'b'; return s.indexOf(t)",
        "const s = 'a'.repeat(1e6); for (;;) s.toUpperCase()",
        "const x = 2n ** 9000n; for (;;) String(x)",
        "const a = []; for (let i = 0; i < 30000; i++) a.push(i); for (;;) JSON.stringify(a)",
    ] {
        let value = value_of(expression);
        assert!(value.starts_with("ERROR"), "{expression}: {value}");
    }
}

#[test]
fn catastrophic_expressions_end() {
    check_steps("return /(a+)+$/.test('a'.repeat(40) + '!')");
    check_steps("return 'a'.repeat(60).replace(/^(([a-z])+.)+[A-Z]([a-z])+$/, '')");
    check_steps("return /a*a*a*a*a*b/y.test('a'.repeat(5000))");
    check_contains("return new RegExp('('.repeat(100000) + ')'.repeat(100000))", "ERROR");
}

#[test]
fn getters_and_proxies_that_throw_are_exceptions() {
    check_contains("return { get a() { throw new Error('from a getter'); } }.a", "from a getter");
    check_contains(
        "return new Proxy({}, { ownKeys() { throw new Error('from a trap'); } })",
        "from a trap",
    );
    check_contains(
        "throw new Proxy({}, { get() { throw new Error('again'); } })",
        "cannot be described",
    );
    check_contains("throw { get message() { throw 1; }, name: 'x' }", "cannot be described");
    check_contains(
        "const e = new Error('x'); Object.defineProperty(e, 'stack', { get() { for (;;) {} } }); throw e",
        "steps is exceeded",
    );
    check_contains(
        "Error.prepareStackTrace = () => { throw 5; }; throw new Error('kept')",
        "ERROR",
    );
    check_contains(
        "const { proxy, revoke } = Proxy.revocable({}, {}); revoke(); return proxy;",
        "ERROR",
    );
}

#[test]
fn no_trick_with_prototypes_reaches_the_host() {
    // What leads to a compiler in other engines.
    check_contains(
        "return (function () {}).constructor('return 1')()",
        "a text cannot be run as a script",
    );
    check_contains(
        "return (async () => {}).constructor('return 1')()",
        "a text cannot be run as a script",
    );
    check_contains(
        "return (function* () {}).constructor('yield 1')()",
        "a text cannot be run as a script",
    );
    check_contains("return new Function('return 1')()", "a text cannot be run as a script");
    check_contains(
        "return Reflect.construct(Function, ['return 1'])()",
        "a text cannot be run as a script",
    );
    check_contains("return eval('1')", "eval is not defined");
    check_contains("return (() => {}) instanceof Function", "true");
    // Objects of the host have no prototype and no owner.
    check_contains("return properties.constructor", "null");
    check_contains("return Object.getPrototypeOf(properties)", "null");
    check_contains("return Object.setPrototypeOf(properties, { x: 1 })", "ERROR");
    check_contains("return properties.__proto__", "null");
    check_contains("delete properties.title; return properties.title;", "'A & B'");
    check_contains("Object.freeze(properties)", "ERROR");
    // A script that changes what the bootstrap uses only harms itself.
    let tricks = [
        "WeakMap.prototype.get = () => ({ id: 1e9 }); return {};",
        "WeakMap.prototype.get = () => ({ id: -1 }); return {};",
        "WeakMap.prototype.get = () => ({ id: 'x' }); return {};",
        "Array.prototype.map = () => 5; return properties.tags;",
        "Array.isArray = () => true; return properties.title;",
        "Object.prototype.get = () => 'x'; Object.prototype.set = 1; return properties.title;",
        "Object.prototype.then = f => f('x'); return Promise.resolve(1);",
        "Promise.prototype.then = null; return (async () => 1)();",
        "Symbol.iterator = null; return [...properties.tags];",
        "globalThis.use = null; globalThis.properties = 1; return properties;",
        "Object.defineProperty(Object.prototype, '0', { set() { throw 1; } }); return properties.tags;",
        "Array.prototype[Symbol.iterator] = function* () { for (;;) yield 1; }; return properties.tags;",
        "String.prototype.replace = () => { throw 1; }; log.info('x');",
        "module.exports = properties; return null;",
    ];
    for trick in tricks {
        let (realm, _) = TestHost::new().realm();
        // Any value or error is fine, as long as there is one.
        assert!(!show(&run(&realm, &format!("use(() => {{ {trick} }})"))).is_empty(), "{trick}");
    }
}

#[test]
fn a_source_that_leaves_its_function_has_no_more_rights() {
    let (realm, _) = TestHost::new().realm();
    let value = run(
        &realm,
        "}); (function () { throw new Error(typeof host + typeof eval); })(); (function () {",
    );
    assert_eq!(show(&value), "ERROR /apps/test.js:1:57: Error: undefinedundefined");
    assert!(show(&run(&realm, "use(() => 1)\0")).starts_with("ERROR"));
    assert!(show(&run(&realm, "*/ `")).starts_with("ERROR"));
}
