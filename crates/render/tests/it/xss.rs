//! Every position times every hostile value, drawn and opened in a browser: no script runs.
//!
//! Positions are opened some at a time, each followed by a mark. `xss.mjs` opens such a page in a frame, tells whether `alert` was called, clicks what would run, and looks for
//! handlers, addresses that run, and scripts or missing marks that a harmless value does not bring.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tympan_content::NodePath;
use tympan_render::RenderOutcome;

use crate::site::{Site, body_text, component};

/// Templates in which `@@` is put out.
const ESCAPED: [&str; 76] = [
    "<p>@@</p>",
    "<title>@@</title>",
    "<textarea>@@</textarea>",
    "<!-- @@ -->",
    "<!--@@--><b>@@</b>",
    "<p title=\"@@\">x</p>",
    "<p title='@@'>x</p>",
    "<img alt=\"@@\">",
    "<p class=\"a @@ b\" id=\"@@\">x</p>",
    "<input value=\"@@\" name=\"@@\" placeholder='@@' type=\"@@\">",
    "<p data-x=\"@@\" aria-label='@@'>x</p>",
    "<p data-url=\"@@\">x</p>",
    "<p data-x='{{ [properties.v, 1]|tojson }}'>x</p>",
    "<a href=\"@@\">x</a>",
    "<a href='@@'>x</a>",
    "<a HREF = \"@@\">x</a>",
    "<a href=\" @@\">x</a>",
    "<a href=\"/@@\">x</a>",
    "<a href=\"/a/@@/b\">x</a>",
    "<a href=\"?q=@@&r=@@\">x</a>",
    "<a href=\"#@@\">x</a>",
    "<a href=\"java@@\">x</a>",
    "<a href=\"j@@:alert(1)\">x</a>",
    "<a href=\"@@@@\">x</a>",
    "<a href=\"@@.html\">x</a>",
    "<a href=\"{% if properties.v %}@@{% else %}/x{% endif %}\">x</a>",
    "<a href=\"{{ link(properties.v) }}\">x</a>",
    "<area href=\"@@\"><map name=x></map>",
    "<img src=\"@@\">",
    "<img srcset=\"@@\">",
    "<img srcset=\"/a 1x, @@ 2x\" src='/a'>",
    "<img srcset=\"/a @@\">",
    "<iframe src=\"@@\"></iframe>",
    "<form action=\"@@\"><button formaction=\"@@\">x</button></form>",
    "<video poster=\"@@\" src=\"@@\"></video>",
    "<object data=\"@@\"></object>",
    "<embed src=\"@@\">",
    "<script src=\"@@\"></script>",
    "<script src=\"/etc.clientlibs/@@\"></script>",
    "<script src=\"/etc.clientlibs/@@/@@.js\"></script>",
    "<script src=\"lib@@\"></script>",
    "<link rel=\"stylesheet\" href=\"@@\">",
    "<link rel=\"@@\" href=\"@@\">",
    "<link rel=\"canonical\" href=\"@@\">",
    "<svg><a xlink:href=\"@@\"><text>x</text></a><use href=\"@@\"></use></svg>",
    "<svg><a><set attributeName=\"href\" to=\"@@\"></set><animate attributeName=\"href\" from=\"@@\" to='@@'></animate></a></svg>",
    "<math><a href=\"@@\">x</a></math>",
    "<svg><title>@@</title><style>a { color: @@ }</style></svg>",
    "<p style=\"color: @@; width: @@\">x</p>",
    "<p style=\"background: url('@@')\">x</p>",
    "<p style=\"background: url(@@)\">x</p>",
    "<style>a { color: @@ } b::after { content: '@@' } /* @@ */ i { background: url(@@) }</style>",
    "<script>var a = @@, b = [@@];</script>",
    "<script>var a = '@@', b = \"@@\";</script>",
    "<script>var a = `@@ ${'x'}`;</script>",
    "<script>// @@\nvar a = 1; /* @@ */</script>",
    "<script>var a = /@@/, b = 4 / 2 / @@;</script>",
    "<script>if (1) /'/.test('@@'); var a = \"'\" + @@;</script>",
    "<script>var a = {{ properties.v|tojson }}, b = {{ {\"a\": properties.v}|tojson }}, c = {{ [properties.v] }};</script>",
    "<script type=\"application/json\">{\"a\": @@, \"b\": \"@@\"}</script>",
    "<script type=\"application/ld+json\">{\"@type\": @@}</script>",
    "<script type=\"module\">const a = @@;</script>",
    "<svg><script>var a = '@@'</script></svg>",
    "<h@@>x</h@@>",
    "<@@ class=\"x\">x</@@>",
    "<input @@>",
    "<p data-@@=\"x\">x</p>",
    "<noscript><p title=\"@@\">@@</p></noscript>",
    "<noscript>{{ properties.v|richtext }}</noscript>",
    "<meta name=\"description\" content=\"@@\">",
    "{% set x %}<b title=\"@@\">@@</b>{% endset %}<p title=\"{{ x }}\">{{ x }}</p><a href=\"{{ x }}\">y</a><script>var a = {{ x }}</script>",
    "{% set x %}@@{% endset %}<a href=\"{{ x }}\">x</a><img src='{{ x }}'>",
    "{% macro m(a) %}<a href=\"{{ a }}\" title='{{ a }}'>{{ a }}</a>{% endmacro %}{{ m(properties.v) }}<p title=\"{{ m(properties.v) }}\">x</p>",
    "<div>{{ properties.v|richtext }}</div><p title=\"{{ properties.v|richtext }}\">x</p><script>var a = {{ properties.v|richtext }}</script>",
    "<div>{{ properties.v|safe }}</div>{{ (properties.v|safe)|split(\" \")|first }}{{ properties.v|richtext|replace(\"title\", \"onclick\") }}",
    // Last, as all later addresses depend on it.
    "<base href=\"@@\"><script src=\"x.js\"></script>",
];

/// How many positions share a page.
const GROUP: usize = 8;

/// Templates that are refused.
const REFUSED: [&str; 14] = [
    "<p onclick=\"@@\">x</p>",
    "<p onclick='f(\"@@\")'>x</p>",
    "<p @click=\"{{ properties.v }}\">x</p>",
    "<p class=@@>x</p>",
    "<a href=@@>x</a>",
    "<iframe srcdoc=\"@@\"></iframe>",
    "<a href=\"javascript:f('@@')\">x</a>",
    "<script type=\"text/template\">@@</script>",
    "<script src=\"https://@@/x.js\"></script>",
    "<meta http-equiv=\"refresh\" content=\"0;url=@@\">",
    "<p {{ properties.v }}=\"{{ properties.v }}\">x</p>",
    "<![CDATA[@@]]>",
    "<!DOCTYPE @@>",
    "{% autoescape false %}@@{% endautoescape %}",
];

/// What authors may type. `HOST` is the browser's server, which answers `evil.js` with a script.
const HOSTILE: [&str; 46] = [
    "<script>alert(1)</script>",
    "<ScRiPt/x>alert(1)</sCrIpT >",
    "</script><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea><img src=x onerror=alert(1)>",
    "</style><script>alert(1)</script>",
    "</noscript><img src=x onerror=alert(1)>",
    "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
    "--><img src=x onerror=alert(1)>",
    "--!><img src=x onerror=alert(1)><!--",
    "><img src=x onerror=alert(1)>",
    "\"><img src=x onerror=alert(1)>",
    "'><img src=x onerror=alert(1)>",
    "\" autofocus onfocus=alert(1) x=\"",
    "' autofocus onfocus=alert(1) x='",
    " onload=alert(1) ",
    "x onmouseover=alert(1)",
    "`-alert(1)-`",
    "${alert(1)}",
    "';alert(1)//",
    "\";alert(1)//",
    "\\';alert(1)//",
    "\\\";alert(1)//",
    "*/alert(1)/*",
    "\nalert(1)\n//",
    "\u{2028}alert(1)//",
    "/;alert(1);/",
    "1;alert(1)",
    "-alert(1)-",
    "]}alert(1)//",
    "javascript:alert(1)",
    " JavaScript:alert(1)//",
    "java\tscript:alert(1)",
    "java\nscript:alert(1)",
    "\u{1}javascript:alert(1)",
    "java&#115;cript:alert(1)",
    "javascript&colon;alert(1)",
    "script:alert(1)",
    "data:text/html,<script>top.ran('data')</script>",
    "data:text/javascript,alert(1)",
    "//HOST/evil.js",
    "http://HOST/evil.js",
    "../content/dam/evil.js",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s></svg>",
    "<svg><style><img src=x onerror=alert(1)></style></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=x onerror=alert(1)&gt;\">",
];

/// Draws all cases and puts them together: address to document. The value `x` is the harmless one that others are compared with.
fn draw_all(host: &str) -> BTreeMap<String, String> {
    let site = Site::empty();
    let values: Vec<String> = std::iter::once("x".to_owned())
        .chain(HOSTILE.iter().map(|value| value.replace("HOST", host)))
        .collect();
    for (number, template) in ESCAPED.iter().chain(&REFUSED).enumerate() {
        let template = template.replace("@@", "{{ properties.v }}");
        site.script(&format!("/apps/t/p{number}/p{number}.html.j2"), &template);
    }
    let positions = ESCAPED.len() + REFUSED.len();
    site.edit(|session| {
        for position in 0..positions {
            for (at, value) in values.iter().enumerate() {
                let name = format!("p{position}v{at}");
                let node =
                    component(&name, &format!("t/p{position}")).with_property("v", value.as_str());
                session.put_node(&NodePath::new(&format!("/{name}")).unwrap(), node).unwrap();
            }
        }
    });
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    for position in 0..positions {
        for at in 0..values.len() {
            let response = site.get(&format!("/p{position}v{at}.html"));
            let expected =
                if position < ESCAPED.len() { RenderOutcome::Ok } else { RenderOutcome::Error };
            let template = ESCAPED.iter().chain(&REFUSED).nth(position).unwrap();
            assert_eq!(response.outcome, expected, "{template}");
            let page = pages.entry(format!("/g{}v{at}.html", position / GROUP)).or_default();
            let body = body_text(&response);
            writeln!(page, "<section>{body}</section><hr>").unwrap();
        }
    }
    pages
}

/// Answers the browser until the test ends.
fn serve(listener: TcpListener, pages: Arc<BTreeMap<String, String>>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let pages = Arc::clone(&pages);
            std::thread::spawn(move || drop(answer(&stream, &pages)));
        }
    });
}

fn answer(mut stream: &TcpStream, pages: &BTreeMap<String, String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first)?;
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let is_evil = ["/evil.js", "/content/dam/evil.js"].contains(&path);
    let (status, media_type, body) = if is_evil {
        ("200 OK", "text/javascript", "top.ran('evil.js')".to_owned())
    } else if let Some(page) = pages.get(path) {
        let head = "<!DOCTYPE html><script>window.alert = () => top.ran('alert')</script>";
        ("200 OK", "text/html", format!("{head}{page}"))
    } else if path == "/" {
        ("200 OK", "text/html", "<!DOCTYPE html><title>Suite</title>".to_owned())
    } else {
        ("404 Not Found", "text/plain", String::new())
    };
    let mut head = String::new();
    write!(head, "HTTP/1.1 {status}\r\ncontent-type: {media_type}; charset=utf-8\r\n").unwrap();
    write!(head, "content-length: {}\r\nconnection: close\r\n\r\n", body.len()).unwrap();
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[test]
fn no_script_runs_in_a_browser() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let pages = Arc::new(draw_all(&host));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
    let interface = root.join("../../ui");
    if !Path::new(&chromium).exists() || !interface.join("node_modules").is_dir() {
        eprintln!(
            "skipped: no chromium at `{chromium}` or no node modules in `ui`; `make test` installs both"
        );
        return;
    }
    serve(listener, Arc::clone(&pages));
    let output = Command::new("node")
        .arg(root.join("tests/xss.mjs"))
        .env("CHROMIUM", &chromium)
        .env("INTERFACE", interface.canonicalize().unwrap())
        .env("ORIGIN", format!("http://{host}"))
        .env("GROUPS", (ESCAPED.len() + REFUSED.len()).div_ceil(GROUP).to_string())
        .env("VALUES", (HOSTILE.len() + 1).to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let mut told = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    for line in said.lines() {
        let address = line.split_whitespace().next().unwrap_or_default();
        if let Some(page) = pages.get(address) {
            writeln!(told, "{address}: {page}").unwrap();
        }
    }
    assert!(output.status.success(), "{told}");
}
