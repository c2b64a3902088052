//! Expressions: operators, types, options, contexts.

use tympan_htl::{HostError, HtlDate, HtlObject, HtlValue};

use crate::test_host::TestHost;

/// An object with a name, as a constant of an enumeration.
#[derive(Debug)]
struct EnumConstant(&'static str);

impl HtlObject for EnumConstant {
    fn property(&self, _name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(None)
    }

    fn primitive(&self) -> Option<HtlValue> {
        Some(self.0.into())
    }
}

fn host() -> TestHost {
    let names = HtlValue::list(["a".into(), "b".into()]);
    TestHost::with([
        ("names", names.clone()),
        ("empty", HtlValue::list([])),
        ("map", HtlValue::map([("q", "x y".into()), ("list", names), ("zero", 0.into())])),
        ("html", "<b>\"x\"</b>".into()),
        ("date", HtlDate { millis: -1_612_137_600_000, offset_minutes: 60 }.into()),
        ("constant", HtlValue::object(EnumConstant("RED"))),
        ("currentPage", HtlValue::map([("title", "Title".into()), ("jcr:title", "JCR".into())])),
    ])
}

fn check(expression: &str, expected: &str) {
    assert_eq!(host().render(&format!("${{{expression}}}")), expected, "{expression}");
}

#[test]
fn evaluates_operators() {
    check("true && false", "false");
    check("'' || 'b'", "b");
    check("' ' || 'b'", "b");
    check("0 && 'a'", "0");
    check("!empty && 'a'", "a");
    check("1 < 2 ? 'x' : 'y'", "x");
    check("missing ? 'x' : 'y'", "y");
    check("'bc' in 'abc'", "true");
    check("'b' in names", "true");
    check("'c' in names", "false");
    check("'zero' in map", "true");
    check("2 in [1, 2.0]", "true");
    check("1 == 1.0", "true");
    check("null == missing", "true");
    check("null == ''", "false");
    check("constant == 'RED'", "true");
    check("constant != 'RED'", "false");
    check("constant", "RED");
}

#[test]
fn refuses_mixed_comparisons() {
    check("'1' == 1", "ERROR test.html:1:1: `==` and `!=` do not compare a text with a number");
    check("names == names", "ERROR test.html:1:1: `==` and `!=` do not compare a list with a list");
    check("missing == names", "ERROR test.html:1:1: `==` and `!=` do not compare null with a list");
    check(
        "'a' < 'b'",
        "ERROR test.html:1:1: only numbers have an order; these are a text and a text",
    );
    check(
        "missing > 1",
        "ERROR test.html:1:1: only numbers have an order; these are null and a number",
    );
}

#[test]
fn reads_properties() {
    check("currentpage.title", "Title");
    check("CURRENTPAGE['jcr:title']", "JCR");
    check("currentPage.jcr:title", "JCR");
    check("currentPage.Title", "");
    check("names[1]", "b");
    check("names[2]", "");
    check("names[-1]", "");
    check("names.size", "2");
    check("map.size", "3");
    check("'abc'.length", "3");
    check("missing.a.b['c']", "");
    check("map['list'][0]", "a");
}

#[test]
fn converts_to_text() {
    check("[1, true, 2.5, 'x', []]", "1,true,2.5,x,");
    check("1.0", "1.0");
    check("12345678.0", "1.2345678E7");
    check("map", "");
    check("date", "1918-12-01T01:00:00.000+01:00");
}

#[test]
fn joins_and_formats() {
    check("names @ join='; '", "a; b");
    check("map @ join='-'", "q-list-zero");
    check("'test' @ join=', '", "test");
    check("'{1} of {0}{2}' @ format=[1, 'x']", "x of 1");
    check("'{0}' @ format=names", "a");
    check("'no' @ format='x'", "no");
    check("'yyyy-MM-dd HH:mm' @ format=date", "1918-12-01 01:00");
    check(
        "'yyyy-MM-dd HH:mm z' @ format=date, timezone='Europe/Berlin'",
        "1918-12-01 01:00 GMT+01:00",
    );
    check("'HH:mm' @ format=date, timezone='nowhere'", "00:00");
    check("'EEEE' @ format=date, locale='de'", "Sonntag");
    check("'full' @ format=date, timezone='UTC'", "Sunday, December 1, 1918");
    check("'#,###.00' @ format=1000", "1,000.00");
    check("'#.00' @ format='42', type='number', locale='de'", "42,00");
    check("'yyyy' @ format='x', type='date'", "");
    check("'0b' @ format=date", "ERROR test.html:1:1: `b` has no meaning in a date pattern");
    check("' a ' @ format='', type='whitespace'", "a");
}

#[test]
fn translates() {
    let mut host = host();
    for (language, hint, word) in
        [("de", "", "Hallo"), ("de", "soft", "Hallöchen"), ("en", "", "Hi")]
    {
        let key = (language.to_owned(), "hello".to_owned(), hint.to_owned());
        host.translations.insert(key, word.to_owned());
    }
    let key = ("de".to_owned(), "{0} of {1}".to_owned(), String::new());
    host.translations.insert(key, "{0} von {1}".to_owned());
    assert_eq!(host.render("${'hello' @ i18n, locale='de'}"), "Hallo");
    assert_eq!(host.render("${'hello' @ i18n, locale='de', hint='soft'}"), "Hallöchen");
    assert_eq!(host.render("${'hello' @ i18n}"), "Hi");
    assert_eq!(host.render("${'other' @ i18n, locale='de'}"), "other");
    assert_eq!(host.render("${'{0} of {1}' @ i18n, locale='de', format=[3, 5]}"), "3 von 5");
}

#[test]
fn changes_addresses() {
    check("'/a/b.html' @ selectors=['x', 'y'], extension='json'", "/a/b.x.y.json");
    check("'/a' @ query=map, context='uri'", "/a?q=x+y&list=a&list=b&zero=0");
    check("'/a?x=1&y=2' @ removeQuery=['x']", "/a?y=2");
    check("'/a.b.html' @ selectors", "/a.html");
}

#[test]
fn escapes_by_position_and_context() {
    let mut host = host();
    for (source, expected) in [
        ("<p>${html}</p>", "<p>&lt;b&gt;&#34;x&#34;&lt;/b&gt;</p>"),
        ("<p title='${html}'>", "<p title='&lt;b>&#34;x&#34;&lt;/b>'>"),
        ("<!-- ${html} -->", "<!-- &lt;b&gt;&#34;x&#34;&lt;/b&gt; -->"),
        ("<a href=\"${'javascript:x'}\">", "<a>"),
        ("<a href=\"/x?${'a b'}\">", "<a href=\"/x?a%20b\">"),
        ("<script>var x = ${html};</script>", "<script>var x = ;</script>"),
        (
            "<script>var x = '${html @ context='scriptString'}';</script>",
            "<script>var x = '<b>\\x22x\\x22<\\/b>';</script>",
        ),
        (
            "<style><sly>${html}</sly> a{color:${'red' @ context='styleToken'}}</style>",
            "<style> a{color:red}</style>",
        ),
        ("<p style=\"color: ${'red'}\" onclick='${html}'>", "<p style=\"color: \">"),
        ("<p style=\"color: ${'red' @ context='styleToken'}\">", "<p style=\"color: red\">"),
        ("${html @ context='unsafe'}", "<b>\"x\"</b>"),
        ("${html @ context='html'}", "<b>\"x\"</b>"),
        ("${html @ context='weird'}${html @ context=missing}", ""),
        ("${'x' @ context='number'}${missing @ context='number'}", "00"),
        ("\\${html} ${'a'}", "${html} a"),
        ("<a title=\"\\${x}\">", "<a title=\"${x}\">"),
        ("<![CDATA[${html}]]>", "<![CDATA[&lt;b&gt;&#34;x&#34;&lt;/b&gt;]]>"),
    ] {
        assert_eq!(host.render(source), expected, "{source}");
    }
}

#[test]
fn asks_for_each_variable_once() {
    let mut host = host();
    assert_eq!(host.render("${A}${a}${b}${a}"), "");
    assert_eq!(host.asked, ["a", "b"]);
}

#[test]
fn reports_every_fault_with_its_place() {
    let mut host = host();
    assert_eq!(
        host.render("<p>${a b}</p>\n<i title=\"ö${a..b}\">\n${c"),
        "FAULT test.html:1:8: expected an operator, `@` or `}`, found `b`\n\
         test.html:2:16: expected the name of a property, found `.`\n\
         test.html:3:4: the expression has no closing `}`"
    );
    assert_eq!(
        host.render("<p data-sly-nothing title=\"ö\" data-sly-set='1'>"),
        "FAULT test.html:1:4: there is no statement `data-sly-nothing`\n\
         test.html:1:31: `data-sly-set` takes a name, as in `data-sly-set.name`"
    );
}
