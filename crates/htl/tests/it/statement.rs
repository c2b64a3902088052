//! Block statements, alone and together, and markup that passes unchanged.

use tympan_htl::{HtlScript, HtlValue};

use crate::test_host::TestHost;

fn host() -> TestHost {
    let attributes = HtlValue::map([
        ("id", "foo".into()),
        ("class", "bar".into()),
        ("lang", "".into()),
        ("checked", true.into()),
        ("hidden", false.into()),
        ("onclick", "x".into()),
        ("a b", "x".into()),
        ("href", "javascript:x".into()),
    ]);
    TestHost::with([
        ("items", HtlValue::list(["a".into(), "b".into(), "c".into()])),
        ("attributes", attributes),
        ("map", HtlValue::map([("k", "v".into()), ("l", "w".into())])),
        ("yes", true.into()),
        ("no", false.into()),
        ("none", HtlValue::Null),
        ("resource", HtlValue::map([("path", "/content/a".into())])),
    ])
}

fn check(source: &str, expected: &str) {
    assert_eq!(host().render(source), expected, "{source}");
}

#[test]
fn markup_passes_unchanged() {
    for source in [
        "<!DOCTYPE html>\r\n<HTML lang = en>\n<BR><br/><br / ><p title='a\"b' class=x  checked >t</P\t>",
        "<!-- a --><!--[if IE]><p><![endif]--><![endif]--> <?php echo ?>",
        "<script type=\"a\">if (a<b && c>d) { '</p>' } // <!--\n</script><style>a > b { }</style>",
        "<textarea> <b>\n</textarea><title>a & b &amp; </title>",
        "</div><p><p></b>1 < 2 <3 $ { $x {} } \\$ <",
        "<svg viewBox='0 0 1 1'><path d=\"M0\"/></svg>",
        "<a b=\"c",
        "\u{feff}ä<ö>😀</ö>",
        "",
    ] {
        check(source, source);
    }
    check("a<!--/* ${x} <p data-sly-x> --> */-->b", "ab");
}

#[test]
fn test_set_and_use_take_effect_in_order() {
    check(
        "<p data-sly-test=\"${yes}\">a</p><p data-sly-test=\"${no}\">b</p><p data-sly-test>c</p>",
        "<p>a</p>",
    );
    check("<p data-sly-test.X=\"${'v'}\">${x}</p>${x}", "<p>v</p>v");
    check("${x}<p data-sly-set.x=\"${'v'}\" data-sly-test=\"${x}\">${x}</p>${x}", "<p>v</p>v");
    check("<p data-sly-test=\"${no}\" data-sly-set.x=\"a\">b</p>[${x}]", "[]");
    check("<p data-sly-set.x=\"a${yes}b\">${x}</p>", "<p>atrueb</p>");
    check("<sly data-sly-test.a='${no}'>${b}</sly><sly data-sly-test='${!a}'>else</sly>", "else");
    let mut host = host();
    host.objects.insert(
        "com.example.Model".to_owned(),
        Box::new(|options| {
            HtlValue::map([(
                "title",
                HtlValue::from(format!("T{}", options.text("n").unwrap_or_default())),
            )])
        }),
    );
    assert_eq!(
        host.render("<p data-sly-use.m=\"${'com.example.Model' @ n=1 + 0}\">"),
        "FAULT test.html:1:48: `+` has no meaning in an expression"
    );
    assert_eq!(
        host.render("<p data-sly-use.M=\"${'com.example.Model' @ n=1}\">${m.title}</p>"),
        "<p>T1</p>"
    );
    assert_eq!(
        host.render("<p data-sly-use=\"com.example.Model\">${useBean.title}</p>"),
        "<p>T</p>"
    );
    assert_eq!(
        host.render("<p data-sly-use.m=\"Nothing\">"),
        "ERROR test.html:1:20: there is no script `Nothing`"
    );
}

#[test]
fn text_element_and_unwrap() {
    check("<p data-sly-text=\"${'<b>'}\">x<i>${y}</i></p>", "<p>&lt;b&gt;</p>");
    check(
        "<p data-sly-text=\"${0}\"></p><p data-sly-text=\"${no}\"></p><p data-sly-text=\"${none}\"></p>",
        "<p>0</p><p>false</p><p></p>",
    );
    check("<div data-sly-element=\"${'h1'}\" class=\"a\">x</div>", "<h1 class=\"a\">x</h1>");
    check("<div data-sly-element=\"${'script'}\" class=\"a\">x</div>", "<div class=\"a\">x</div>");
    check("<div data-sly-element=\"${'br'}\"></div><div data-sly-element='p'/>", "<br><p></p>");
    check("<div data-sly-unwrap>x</div><div data-sly-unwrap=\"${no}\">y</div>", "x<div>y</div>");
    check("<div data-sly-unwrap.u=\"${yes}\">x</div>${u}", "xtrue");
    check("<div class=\"${'a'}\" data-sly-unwrap=\"${yes}\"><p>x</div>y", "<p>xy");
    check(
        "<sly>a<sly class=b>c</sly></sly><sly data-sly-unwrap=\"${no}\" id=x>d</sly></sly>",
        "ac<sly id=x>d</sly>",
    );
    check(
        "<SLY data-sly-test=\"${yes}\"/>a<br data-sly-test=\"${yes}\"><img data-sly-test=\"${no}\">",
        "a<br>",
    );
}

#[test]
fn attributes_are_shown_and_hidden() {
    check("<p lang=\"${''}\" title=\"${none}\" a=\"${no}\" b=\"${yes}\" c='${0}'>", "<p b c='0'>");
    check(
        "<p a=\"${'true'}\" b=\"${'false'}\" c=\"${[]}\" d=\"${['x', 'y']}\">",
        "<p a=\"true\" b=\"false\" d=\"x,y\">",
    );
    check("<p\n   a=\"x ${'y'}\"\n   b=${'z'}>", "<p\n   a=\"x y\"\n   b=\"z\">");
    check("<p a=\"${''}${none}\" b=\"x${none}\">", "<p b=\"x\">");
    check("<p lang='en' data-sly-attribute.lang></p>", "<p></p>");
    check("<p lang='en' data-sly-attribute.lang=\"${'de'}\" id=x></p>", "<p lang=\"de\" id=x></p>");
    check(
        "<p data-sly-attribute.title=\"${'a\"'}\" data-sly-attribute.checked=\"${yes}\"></p>",
        "<p title=\"a&#34;\" checked></p>",
    );
    check("<p data-sly-attribute.class='x' class='y'></p>", "<p class='y'></p>");
    check(
        "<p data-sly-attribute.style='x' data-sly-attribute.onclick='y' data-sly-attribute.href='${\"javascript:x\"}'></p>",
        "<p></p>",
    );
    check(
        "<p data-sly-attribute=\"${attributes}\"></p>",
        "<p id=\"foo\" class=\"bar\" checked></p>",
    );
    check(
        "<p title=\"\" class=\"x\" lang=\"en\" data-sly-attribute=\"${attributes}\"></p>",
        "<p title=\"\" class=\"bar\" lang=\"en\" id=\"foo\" checked></p>",
    );
    check(
        "<p class=\"bar1\" data-sly-attribute.class=\"bar2\" data-sly-attribute=\"${attributes}\"></p>",
        "<p class=\"bar\" id=\"foo\" checked></p>",
    );
    check(
        "<p data-sly-attribute=\"${attributes}\" data-sly-attribute.class=\"bar2\" id=\"foo2\"></p>",
        "<p id=\"foo2\" class=\"bar2\" checked></p>",
    );
    check(
        "<p data-sly-attribute.class=\"a\" data-sly-attribute.class=\"b\"></p>",
        "<p class=\"b\"></p>",
    );
}

#[test]
fn lists_repeat_content() {
    check(
        "<ul data-sly-list=\"${items}\"><li>${itemList.count}${item}</li></ul>",
        "<ul><li>1a</li><li>2b</li><li>3c</li></ul>",
    );
    check(
        "<ul data-sly-list.X=\"${items}\">${xList.index}${xList.first}${xlist.middle}${xlist.last}${xlist.odd}${xlist.even},</ul>",
        "<ul>0truefalsefalsetruefalse,1falsetruefalsefalsetrue,2falsefalsetruetruefalse,</ul>",
    );
    check(
        "<ul data-sly-list=\"${[]}\">x</ul><ul data-sly-list>y</ul><ul data-sly-list=\"${none}\">z</ul>",
        "",
    );
    check("<ul data-sly-list=\"${items @ begin=1}\">${item}</ul>", "<ul>bc</ul>");
    check("<ul data-sly-list=\"${items @ begin=0, step=2, end=9}\">${item}</ul>", "<ul>ac</ul>");
    check("<ul data-sly-list=\"${items @ begin=0, end=1}\">${item}</ul>", "<ul>ab</ul>");
    check(
        "<ul data-sly-list=\"${items @ begin=5}\">${item}</ul><ul data-sly-list=\"${items @ step=0}\">x</ul>",
        "",
    );
    check(
        "<ul data-sly-list=\"${items @ begin='x'}\"></ul>",
        "ERROR test.html:1:20: the option `begin` takes a number",
    );
    check("<dl data-sly-list.key=\"${map}\">${key}=${map[key]};</dl>", "<dl>k=v;l=w;</dl>");
    check(
        "<p data-sly-list=\"${'text'}\">${item}</p><p data-sly-list=\"${7}\">${item}</p>",
        "<p>text</p><p>7</p>",
    );
    check(
        "<ul data-sly-list=\"${items}\" data-sly-unwrap>${item}<b data-sly-list=\"${[1, 2]}\">${item}</b>${item} </ul>${item}",
        "a<b>12</b>a b<b>12</b>b c<b>12</b>c ",
    );
    check("<ul data-sly-list=\"${items}\" data-sly-text=\"x${item}\">y</ul>z", "<ul>x</ul>z");
}

#[test]
fn repeat_repeats_the_element() {
    check(
        "<p data-sly-repeat=\"${items}\" id=\"i${itemList.index}\" class=\"${item}\">${item}</p>${item}",
        "<p id=\"i0\" class=\"a\">a</p><p id=\"i1\" class=\"b\">b</p><p id=\"i2\" class=\"c\">c</p>",
    );
    check("<p data-sly-repeat=\"${items @ begin=1, end=1}\" data-sly-text=\"${item}\"/>", "<p/>b");
    check(
        "<sly data-sly-repeat=\"${[]}\">x</sly><sly data-sly-repeat=\"${map}\">${item}</sly>",
        "kl",
    );
    check(
        "<p data-sly-repeat.x=\"${items}\" data-sly-test=\"${!x}\" data-sly-attribute.id=\"${x}\"></p>",
        "<p id=\"a\"></p><p id=\"b\"></p><p id=\"c\"></p>",
    );
    check(
        "<i data-sly-repeat=\"${items}\"><b data-sly-test=\"${item == 'b'}\">${item}</b></i>",
        "<i></i><i><b>b</b></i><i></i>",
    );
}

#[test]
fn templates_are_called_with_parameters() {
    check(
        "<p data-sly-call=\"${one @ A='x'}\">y</p><template data-sly-template.One=\"${@ a, b='hint'}\"><i>${a}${b}${c}</i></template>",
        "<p><i>x</i></p>",
    );
    check(
        "<sly data-sly-set.v='out'/><sly data-sly-template.t>[${v}]<sly data-sly-set.v='in'/>${v}</sly><sly data-sly-call=\"${t}\"/>${v}",
        "[]inout",
    );
    check(
        "<sly data-sly-template.f=\"${@ n}\">${n.size}<sly data-sly-test=\"${n.size < 3}\" data-sly-call=\"${f @ n=[n, n, n]}\"/></sly><sly data-sly-call=\"${f @ n=[1]}\"/>",
        "13",
    );
    check(
        "<p data-sly-call=\"${nothing}\"></p>",
        "ERROR test.html:1:19: `data-sly-call` takes a template; there is none of this name",
    );
    check(
        "<p data-sly-call=\"text\"></p>",
        "ERROR test.html:1:19: `data-sly-call` takes a template; this value is none",
    );
    let library = "<template data-sly-template.a=\"${@ x}\"><b data-sly-call=\"${b @ y=x}\"></b></template><template data-sly-template.B=\"${@ y}\">${y}!</template>";
    let mut host = host().with_script("lib.html", library);
    assert_eq!(
        host.render("<sly data-sly-use.lib=\"lib.html\" data-sly-call=\"${lib.A @ x='v'}\"/>"),
        "<b>v!</b>"
    );
    assert_eq!(
        host.render("<sly data-sly-use.lib=\"lib.html\" data-sly-call=\"${lib.c}\"/>"),
        "ERROR test.html:1:49: `data-sly-call` takes a template; there is none of this name"
    );
    let script = HtlScript::compile("lib.html", library).unwrap();
    assert_eq!(script.template_names().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn includes_scripts_and_resources() {
    let mut host = host().with_script("/a/part.html", "<i>${x}${yes}</i>");
    assert_eq!(
        host.render("<p data-sly-set.x='1' data-sly-include=\"/a/part.html\">y</p>"),
        "<p><i>true</i></p>"
    );
    assert_eq!(
        host.render("<sly data-sly-include=\"${'part.html' @ prependPath='/a'}\"/>"),
        "<i>true</i>"
    );
    assert_eq!(host.render("<sly data-sly-include=\"${@ file='/a/part.html'}\"/>"), "<i>true</i>");
    assert_eq!(
        host.render("\n <sly data-sly-include=\"${''}\"/>"),
        "ERROR test.html:2:25: `data-sly-include` takes the path of a script; this one is empty"
    );
    check("<p data-sly-resource=\"a/b\">x</p>", "<p>[a/b one.two]</p>");
    check(
        "<sly data-sly-resource=\"${'a{0}' @ format=1, resourceType='x/y', selectors=['s', 't'], decorationTagName='div', wcmmode='disabled'}\"/>",
        "[a1 s.t resourceType=x/y selectors=s,t decorationTagName=div wcmmode=disabled]",
    );
    check(
        "<sly data-sly-resource=\"${resource.path @ appendPath='/*', addSelectors='x', removeSelectors='one'}\"/>",
        "[/content/a/* two.x appendPath=/* addSelectors=x removeSelectors=one]",
    );
    check(
        "<sly data-sly-resource=\"${@ path='a', removeSelectors}\"/>",
        "[a  path=a removeSelectors=]",
    );
}

#[test]
fn warnings_name_probable_mistakes() {
    let source = "<div data-sly-test='x'><p>${a @ other=1}</div><script>${b}</script><i data-sly-attribute.onclick='x'></i></sly>\n<b data-sly-set.c='1'>";
    let script = HtlScript::compile("w.html", source).unwrap();
    let warnings: Vec<String> = script.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "w.html:1:33: the option `other` has no effect here",
            "w.html:1:55: an expression in a script or style sheet writes nothing without the option `context`",
            "w.html:1:71: `data-sly-attribute` cannot write `onclick`; write the attribute with an expression that has a `context`",
            "w.html:1:106: the end tag `sly` has no start tag",
            "w.html:2:1: the element `b` has no end tag",
        ]
    );
}

#[test]
fn scripts_are_shared_by_threads() {
    fn assert_shared<T: Send + Sync>(_: &T) {}
    let script = HtlScript::compile("a.html", "<p>${a}</p>").unwrap();
    assert_shared(&script);
}
