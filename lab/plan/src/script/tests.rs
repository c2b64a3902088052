use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::sample_response::SampleResponse;
use crate::template::TextTemplate;
use crate::variable_scope::{RunContext, VariableScope};

fn scope() -> VariableScope {
    let mut scope = VariableScope::new(Arc::new(RunContext::default()));
    scope.set_variable("x", "5");
    scope.set_variable("name", "page");
    scope
}

fn script(text: &str, dialect: ScriptDialect) -> Result<PlanScript, String> {
    PlanScript::new(dialect, TextTemplate::literal(text), TextTemplate::literal("one two"))
}

/// Runs a script and returns its value, and the value of the variable `out`.
fn run(text: &str, dialect: ScriptDialect) -> (String, String) {
    let mut scope = scope();
    let script = script(text, dialect).unwrap_or_else(|fault| panic!("{text}: {fault}"));
    let value = script.run_to_value(&mut scope, &mut ScriptSampleContext::default());
    let value = value.map_or_else(|fault| fault, |value| value.to_string());
    (value, scope.variable("out").unwrap_or_default().to_owned())
}

#[track_caller]
fn groovy(text: &str, expected: &str) {
    assert_eq!(run(text, ScriptDialect::Groovy).0, expected, "{text}");
}

#[track_caller]
fn java(text: &str, expected: &str) {
    assert_eq!(run(text, ScriptDialect::Java).1, expected, "{text}");
}

#[test]
fn a_script_of_a_public_plan_chooses_a_node() {
    let text = "String deploymentType = vars.get(\"name\");\nint numOfNodes = Integer.parseInt(vars.get(\"x\"));\n\
        int x = 12;\nint y = x - (x/numOfNodes)*numOfNodes;\n\n\
        if (y == 0 || \"active-passive\".equals(deploymentType)) {\n    vars.put(\"out\", \"node1\");\n\
        } else if (y == 1) {\n    vars.put(\"out\", \"node2\");\n} else if (y == 2) {\n\
            vars.put(\"out\", \"node3\");\n} else {\n    vars.put(\"out\", \"node4\");\n}";
    java(text, "node3");
}

#[test]
fn statements_do_what_they_do_in_java() {
    java("for (int i = 0; i < 3; i++) { vars.put(\"out\", vars.get(\"out\") + i); }", "null012");
    java(
        "int i = 7; while (true) { i -= 2; if (i < 3) break; } vars.put(\"out\", \"\" + i / 2);",
        "0",
    );
    java(
        "String[] parts = \"a,b,,\".split(\",\"); vars.put(\"out\", parts[1] + parts.length);",
        "b2",
    );
    java(
        "try { Integer.parseInt(\"x\"); } catch (Exception e) { vars.put(\"out\", e.getMessage()); }",
        "For input string: \"x\"",
    );
    java("vars.put(\"out\", args[1] + Parameters.length());", "two7");
    java("double d = 7 / 2; vars.put(\"out\", String.valueOf((int) 3.9) + d + 7.0 / 2);", "333.5");
    java(
        "import java.util.*;\nList l = new ArrayList(); l.add(\"q\"); l.add(2);\nvars.put(\"out\", l.toString());",
        "[q, 2]",
    );
    java("vars.put(\"out\", \"a-b\".replaceAll(\"(\\\\w)-(\\\\w)\", \"$2x$1\"));", "bxa");
    java("vars.put(\"out\", String.format(\"%05d|%.2f|%s\", 42, 1.5, \"z\"));", "00042|1.50|z");
}

#[test]
fn values_of_groovy_scripts() {
    groovy("def n = vars.get('x').toInteger()\nn * 2", "10");
    groovy("return \"${1 + 1}-$name\"".replace("$name", "${vars.get('name')}").as_str(), "2-page");
    groovy("vars['name'] == 'page' ? 'yes' : 'no'", "yes");
    groovy("7 / 2", "3.5");
    groovy("6 / 2", "3");
    groovy("def s = ''\nfor (c in ['a', 'b']) {\n  s += c\n}\ns", "ab");
    groovy("vars.get('missing') ?: 'default'", "default");
    groovy("'page 17' =~ /* a comment */ '[0-9]+' ? 1 : 2 // the end", "1");
    groovy("if (vars.get('x') == '5')\n  return 'a'\nelse\n  return 'b'", "a");
    groovy("[1, 2, 3][-1]", "3");
    groovy(
        "vars.missing.length()",
        "java.lang.NullPointerException: Cannot invoke method length() on null object",
    );
    groovy("'abc'\n  .substring(1)\n  .toUpperCase()", "BC");
}

#[test]
fn samples_are_seen_and_judged() {
    let response = SampleResponse {
        code: "404".to_owned(),
        body: "gone".to_owned(),
        ..SampleResponse::default()
    };
    let mut sample_context = ScriptSampleContext::new(response, false);
    let judging_script = "if (prev.getResponseCode().equals('404')) {\n  prev.setSuccessful(true)\n  AssertionResult.setFailure(true)\n  AssertionResult.setFailureMessage('body ' + prev.getResponseDataAsString())\n}";
    script(judging_script, ScriptDialect::Groovy)
        .unwrap()
        .run(&mut scope(), &mut sample_context)
        .unwrap();
    assert!(sample_context.is_ok);
    assert_eq!(sample_context.failure.as_deref(), Some("body gone"));
    let mut sample_context = ScriptSampleContext::new(SampleResponse::default(), true);
    let judging_script = "Failure = !SampleResult.isSuccessful() || true; FailureMessage = \"no\";";
    script(judging_script, ScriptDialect::Java)
        .unwrap()
        .run(&mut scope(), &mut sample_context)
        .unwrap();
    assert_eq!(sample_context.failure.as_deref(), Some("no"));
}

#[test]
fn json_is_read_into_maps_and_lists() {
    let json = |text: &str| {
        format!(
            "def j = new groovy.json.JsonSlurper().parseText('{{\"id\":42,\"d\":1.5,\"n\":null,\"list\":[{{\"a\":\"x\"}},{{\"a\":\"y\"}}]}}')\n{text}"
        )
    };
    for (text, expected) in [
        ("j.id + 1", "43"),
        ("j.list[1].a", "y"),
        ("j['list'][-1].a.toUpperCase()", "Y"),
        ("j.list.a", "[x, y]"),
        ("j.list.size() + j.list.a.join('-')", "2x-y"),
        ("j.n", "null"),
        ("j.n?.x?.y ?: 'none'", "none"),
        ("j.n?.trim() ?: 'none'", "none"),
        ("j.n.x", "java.lang.NullPointerException: Cannot get property 'x' on null object"),
        ("def s = ''\nfor (e in j.list) { s += e.a }\ns", "xy"),
        ("def k = j.list\nk.first().a", "x"),
        ("j.keySet().toString()", "[id, d, n, list]"),
        ("j.toString()", "{id=42, d=1.5, n=null, list=[{a=x}, {a=y}]}"),
        ("groovy.json.JsonOutput.toJson(j.list)", "[{\"a\":\"x\"},{\"a\":\"y\"}]"),
        ("j.containsKey('id') && !j.containsKey('q')", "true"),
    ] {
        groovy(&json(text), expected);
    }
    let result = run("new groovy.json.JsonSlurper().parseText('{')", ScriptDialect::Groovy).0;
    assert!(result.starts_with("groovy.json.JsonException"), "{result}");
}

#[test]
fn bytes_digests_and_random_texts_of_java() {
    groovy("'x'.bytes.encodeBase64().toString()", "eA==");
    groovy("Base64.getEncoder().encodeToString('a b'.getBytes('UTF-8'))", "YSBi");
    groovy("new String(Base64.getDecoder().decode('YSBi'))", "a b");
    groovy("new String(java.util.Base64.getUrlEncoder().encodeToString('??>'.bytes))", "Pz8-");
    java(
        "import org.apache.commons.codec.binary.Base64;\nbyte[] b = Base64.encodeBase64(\"u:p\".getBytes()); vars.put(\"out\", new String(b));",
        "dTpw",
    );
    groovy("'abc'.md5()", "900150983cd24fb0d6963f7d28e17f72");
    groovy(
        "java.security.MessageDigest.getInstance('MD5').digest('a'.bytes).encodeHex().toString()",
        "0cc175b9c0f1b6a831c399e269772661",
    );
    groovy(
        "import javax.crypto.Mac\nimport javax.crypto.spec.SecretKeySpec\nMac mac = Mac.getInstance('HmacSHA256')\nmac.init(new SecretKeySpec('key'.getBytes(), 'HmacSHA256'))\nmac.doFinal('The quick brown fox jumps over the lazy dog'.bytes).encodeHex().toString()",
        "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8",
    );
    groovy(
        "org.apache.commons.lang3.RandomStringUtils.randomNumeric(7).matches('[0-9]{7}')",
        "true",
    );
    groovy("RandomStringUtils.random(5, true, false).matches('[A-Za-z]{5}')", "true");
    groovy("URLDecoder.decode('a+b%C3%BC', 'UTF-8')", "a bü");
    groovy(
        "StringUtils.substringBetween('a[b]c', '[', ']') + StringUtils.leftPad('7', 3, '0')",
        "b007",
    );
}

#[test]
fn dates_of_java_are_moved_and_written() {
    groovy("java.time.LocalDate.of(2024, 2, 28).plusDays(2).toString()", "2024-03-01");
    groovy(
        "LocalDate.of(2024, 1, 31).plusMonths(1).format(DateTimeFormatter.ofPattern('dd.MM.yyyy'))",
        "29.02.2024",
    );
    groovy("new Date(0).getTime()", "0");
    groovy("(new Date(0) + 1).time", "86400000");
    groovy("new Date().format('yyyy').length()", "4");
    groovy(
        "import java.text.SimpleDateFormat\nnew SimpleDateFormat('yyyy').format(new Date()).length()",
        "4",
    );
    groovy("new SimpleDateFormat('yyyy-MM-dd').parse('2024-02-29').format('dd/MM/yy')", "29/02/24");
    groovy("LocalDate.of(2024, 1, 1).isBefore(LocalDate.of(2024, 1, 2))", "true");
    let result = run("LocalDate.of(2024, 13, 1)", ScriptDialect::Groovy).0;
    assert!(result.contains("DateTimeException"), "{result}");
}

#[test]
fn variables_take_texts_only_and_properties_are_read_and_set_by_name() {
    let result = run("vars.put('out', 5)", ScriptDialect::Groovy);
    assert!(result.0.contains("MissingMethodException") && result.1.is_empty(), "{result:?}");
    let response = SampleResponse { code: "404".to_owned(), ..SampleResponse::default() };
    let mut sample_context = ScriptSampleContext::new(response, false);
    let judging_script = "if (prev.responseCode == '404') {\n  prev.successful = true\n  AssertionResult.failure = true\n  AssertionResult.failureMessage = \"code ${prev.responseCode}\"\n}\nlog.info 'seen'\nprintln 'seen'";
    script(judging_script, ScriptDialect::Groovy)
        .unwrap()
        .run(&mut scope(), &mut sample_context)
        .unwrap();
    assert!(sample_context.is_ok);
    assert_eq!(sample_context.failure.as_deref(), Some("code 404"));
    java(
        "vars.put(\"out\", new String(prev.getResponseData()) + ctx.getPreviousResult().getResponseCode());",
        "",
    );
    groovy("try { throw new Exception('e') } catch (Exception e) { return e.message }", "e");
    groovy("[3, 1, 2].sort().toString() + [1, 2, 3].sum() + [3, 1].max()", "[1, 2, 3]63");
    groovy("'abc'.reverse() + 'abc'.capitalize() + 'a,b'.tokenize(',').last()", "cbaAbcb");
}

#[test]
fn a_list_that_holds_itself_is_shown_within_bounds() {
    let (result, _) = run(
        "def l = [1]\nfor (i in [1, 2, 3, 4]) { l.add(l) }\nl.toString().length() < 3000000",
        ScriptDialect::Groovy,
    );
    assert_eq!(result, "true");
    let (result, _) =
        run("def l = []\nl.add(l)\ngroovy.json.JsonOutput.toJson(l)", ScriptDialect::Groovy);
    assert!(result.contains("StackOverflowError"), "{result}");
}

#[test]
fn what_is_not_in_the_list_is_reported_with_its_name() {
    for (text, expected) in [
        ("ctx.getEngine()", "line 1: script calls `ctx.getEngine()` (not supported)"),
        ("\nnew File('/etc/passwd')", "line 2: script calls `new File` (not supported)"),
        ("'ls'.execute()", "line 1: script calls `execute()` (not supported)"),
        ("System.exit(1)", "line 1: script calls `System.exit` (not supported)"),
        ("java.lang.Runtime.getRuntime()", "line 1: script uses `Runtime` (not supported)"),
        ("x = y", "line 1: script uses `y` (not supported)"),
        ("foo(1)", "line 1: script calls `foo` (not supported)"),
        ("def f = { it + 1 }", "line 1: expected a value, not `{`"),
        ("switch (1) {}", "line 1: expected a supported statement, not `switch`"),
        ("'never ends", "unterminated string"),
    ] {
        let fault = script(text, ScriptDialect::Groovy).unwrap_err();
        assert_eq!(fault, expected, "{text}");
    }
}

#[test]
fn scripts_end() {
    let (result, _) = run("while (true) { x = 1 }", ScriptDialect::Groovy);
    assert!(result.contains("was stopped after"), "{result}");
    let (result, _) =
        run("def s = 'xxxxxxxxxxxxxxxx'\nwhile (true) { s = s + s }", ScriptDialect::Groovy);
    assert!(result.contains("OutOfMemoryError"), "{result}");
    let deep = format!("{}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(script(&deep, ScriptDialect::Groovy).is_err());
}

proptest! {
    #[test]
    fn any_text_is_run_or_refused(text in "[-a-z0-9(){}\\[\\]\"'$.;=+*/!<>?:,&|\\n ]{0,60}") {
        for dialect in [ScriptDialect::Groovy, ScriptDialect::Java] {
            if let Ok(script) = script(&text, dialect) {
                script.run(&mut scope(), &mut ScriptSampleContext::default()).ok();
            }
        }
    }
}
