//! What visitors try at a farm with the usual filter: each request, whether a render sees it, and the status.

use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, Setup};

/// The filter of the demo, without its portal.
pub(crate) const FARM: &str = "
    /filter {
      /0001 { /type \"deny\" /glob \"*\" }
      /0010 { /type \"allow\" /method \"GET\" /path \"/content/*\" /extension '(html|jpe?g|png|pdf|json|txt|xml)' }
      /0011 { /type \"allow\" /method \"HEAD\" /path \"/content/*\" /extension '(html|jpe?g|png|pdf)' }
      /0012 { /type \"allow\" /method \"GET\" /url \"/content/*.html/*\" }
      /0020 { /type \"allow\" /method \"GET\" /url \"/etc.clientlibs/*\" }
      /0021 { /type \"allow\" /method \"GET\" /url \"/\" }
      /0024 { /type \"allow\" /method \"POST\" /url \"/portal*\" }
      /0030 { /type \"deny\" /extension '(json|xml|txt)' }
      /0031 { /type \"deny\" /url \"*jcr:content*\" }
    }";
pub(crate) const CACHE: &str = "
    /x-flushToken \"a token that nobody has\"
    /allowedClients { /0 { /type \"deny\" /glob \"*\" } /1 { /type \"allow\" /glob \"192.0.2.1\" } }
    /ignoreUrlParams { /0 { /type \"deny\" /glob \"*\" } /1 { /type \"allow\" /glob \"utm_*\" } }";

/// Method and target, headers, the status, and the target that the render sees.
pub(crate) type Row =
    (&'static str, &'static [(&'static str, &'static str)], u16, Option<&'static str>);

pub(crate) const ROWS: &[Row] = &[
    // What visitors may have.
    ("GET /content/a.html", &[], 200, Some("/content/a.html")),
    ("HEAD /content/a-head.html", &[], 200, Some("/content/a-head.html")),
    ("GET /etc.clientlibs/a.css", &[], 200, Some("/etc.clientlibs/a.css")),
    ("POST /portal", &[], 200, Some("/portal")),
    // Spellings of what they may not have; escaped separators separate nothing, so that some are pages.
    ("GET /content/a.json", &[], 404, None),
    ("GET /content/a.infinity.json", &[], 404, None),
    ("GET /content/a.%6ason", &[], 404, None),
    ("GET /content/a%2ejson", &[], 404, None),
    ("GET /content/a.json/b.html", &[], 404, None),
    ("GET /content/a.html/b.json", &[], 404, None),
    ("GET /content/a.html/b.infinity.json", &[], 404, None),
    ("GET /content/a.json;x=b.html", &[], 404, None),
    ("GET /content/a.html;x=b.json", &[], 404, None),
    ("GET /content/a.html%3bx=b.json", &[], 404, None),
    ("GET /content/a;x=b.json", &[], 404, None),
    ("GET /content/a;x='.html'.json", &[], 404, None),
    ("GET /content/a.json?x=b.html", &[], 404, None),
    ("GET /content/a.json%3fb.html", &[], 200, Some("/content/a.json%3fb.html")),
    ("GET /content/a.json%23b.html", &[], 200, Some("/content/a.json%23b.html")),
    ("GET /content/a.json%0d%0ab.html", &[], 200, Some("/content/a.json%0d%0ab.html")),
    ("GET /content/a.json%00.html", &[], 400, None),
    ("GET /content/a.json%2f.html", &[], 404, None),
    ("GET /content/a.json%5c.html", &[], 200, Some("/content/a.json%5c.html")),
    ("GET /content/../apps/a.html", &[], 404, None),
    ("GET /content/%2e%2e/apps/a.html", &[], 404, None),
    ("GET /content/.%2e/apps/a.html", &[], 404, None),
    ("GET /content/..;/apps/a.html", &[], 400, None),
    ("GET /content/..%3b/apps/a.html", &[], 400, None),
    ("GET /content/..%2fapps/a.html", &[], 404, None),
    ("GET /content/..%252fapps/a.html", &[], 404, None),
    ("GET //apps/a.html", &[], 404, None),
    ("GET /./apps/a.html", &[], 404, None),
    ("GET /CONTENT/a.html", &[], 404, None),
    ("GET /content/a.HTML", &[], 404, None),
    ("GET /content/a/_jcr_content.html", &[], 404, None),
    ("GET /content/a/jcr:content.html", &[], 404, None),
    ("GET /content/a/%6acr%3acontent.html", &[], 404, None),
    ("GET /content/a/%5fjcr_content.html", &[], 404, None),
    ("GET /etc.clientlibs/a.json", &[], 404, None),
    ("GET /etc.clientlibs/a/b.json", &[], 404, None),
    ("GET /etc.clientlibs/../content/a.json", &[], 404, None),
    ("GET /portal", &[], 404, None),
    ("GET /.stat", &[], 404, None),
    ("GET /content/.stat", &[], 404, None),
    ("GET /content/a.html.h", &[], 404, None),
    ("GET /content/a.q~.x=1.html", &[], 200, Some("/content/a.q~.x=1.html")),
    // Methods, and headers that name other ones.
    ("POST /content/a.html", &[], 404, None),
    ("PUT /content/a.html", &[], 404, None),
    ("DELETE /content/a.html", &[], 404, None),
    ("OPTIONS /content/a.html", &[], 404, None),
    ("TRACE /content/a.html", &[], 404, None),
    ("PROPFIND /content/a.html", &[], 404, None),
    ("GET /content/a.json", &[("X-HTTP-Method-Override", "HEAD")], 404, None),
    ("POST /content/a.html", &[("X-HTTP-Method-Override", "GET")], 404, None),
    ("GET /content/a.json", &[("X-Original-URL", "/content/a.html")], 404, None),
    ("GET /content/a.json", &[("X-Rewrite-URL", "/content/a.html")], 404, None),
    // What belongs to the farm's own machines.
    ("PURGE /content/a.html", &[], 403, None),
    ("PURGE /content/a.html", &[("Authorization", "Bearer guessed")], 403, None),
    ("PURGE /content/a.html", &[("X-Forwarded-For", "192.0.2.1")], 403, None),
    (
        "POST /dispatcher/invalidate.cache",
        &[("CQ-Action", "Delete"), ("CQ-Handle", "/content")],
        403,
        None,
    ),
    ("GET /content/a.html", &[("CQ-Action", "Delete"), ("CQ-Handle", "/content")], 403, None),
    ("GET /content/a.html", &[("CQ-Action", "Test"), ("CQ-Handle", "/")], 403, None),
    (
        "GET /",
        &[("CQ-Action", "Activate"), ("CQ-Handle", "/"), ("X-Real-IP", "192.0.2.1")],
        403,
        None,
    ),
    ("POST /dispatcher/invalidate.cache", &[("Surrogate-Key", "a")], 403, None),
    ("POST /dispatcher/invalidate.cache", &[], 404, None),
    ("GET /content/a.html", &[("X-Tympan-Sibling", "1")], 403, None),
    ("GET /content/a.html", &[("X-Tympan-Sibling", "a token that nobody knows")], 403, None),
    ("GET /content/other.html", &[("X-Tympan-Sibling", "1")], 403, None),
    ("GET /content/a.json", &[("X-Tympan-Sibling", "1")], 404, None),
    ("POST /portal", &[("X-Tympan-Sibling", "1")], 404, None),
    // What is shown from the cache to everyone is not what one asked for.
    ("GET /content/a.html", &[("Range", "bytes=0-0,2-3,5-6")], 200, None),
    ("GET /content/a.html", &[("Range", "bytes=99999-")], 416, None),
    (
        "GET /content/a.html",
        &[("Range", "bytes=18446744073709551615-18446744073709551616")],
        416,
        None,
    ),
    ("GET /content/a.html", &[("If-None-Match", "\"x\", *")], 304, None),
    ("GET /content/a.html", &[("Accept-Encoding", "br;q=0, *;q=0")], 200, None),
    ("GET /content/a.html?utm_x=1", &[], 200, None),
    // What is no request, or is more than one.
    ("GET content/a.html", &[], 400, None),
    ("GET ftp://www.example.com/content/a.html", &[], 400, None),
    ("GET /content/a.html", &[("Host", "a.example, b.example")], 400, None),
    ("GET /content/a.html", &[("Host", "user@www.example.com")], 400, None),
    ("GET /content/a.html", &[("Host", "www.example.com:99999")], 400, None),
    ("POST /portal", &[("Transfer-Encoding", "gzip, chunked")], 501, None),
    ("POST /portal", &[("Transfer-Encoding", "identity")], 400, None),
    ("POST /portal", &[("Content-Length", "3"), ("Content-Length", "4")], 400, None),
    ("POST /portal", &[("Content-Length", "+3")], 400, None),
    ("POST /portal", &[("Content-Length", "3, 3")], 400, None),
    (
        "GET /content/a.html",
        &[(
            "Via",
            "1.1 a (dispatcher), 1.1 a (dispatcher), 1.1 a (dispatcher), 1.1 a (dispatcher), 1.1 a (dispatcher), 1.1 a (dispatcher), 1.1 a (dispatcher), 1.1 a (dispatcher)",
        )],
        508,
        None,
    ),
];

#[test]
fn a_visitor_gets_no_further_than_the_filter_says() {
    let origin = OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)));
    let front = Front::start(&Setup {
        farm: FARM,
        cache: CACHE,
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    let mut faults = Vec::new();
    for (line, headers, status, seen) in ROWS {
        let (method, target) = line.split_once(' ').unwrap();
        let before = origin.request_count();
        let reply = front.send(method, target, headers, "");
        let reached = origin.requests().get(before..).unwrap_or_default().to_vec();
        let targets: Vec<&str> = reached.iter().map(|request| request.target.as_str()).collect();
        if reply.status != *status || targets.first().copied() != *seen {
            faults.push(format!(
                "{line} {headers:?}: {} and {targets:?}, not {status} and {seen:?}",
                reply.status
            ));
        }
        for (name, value) in
            headers.iter().filter(|(name, value)| name.starts_with('X') && value.len() > 4)
        {
            if reply.headers.iter().any(|(_, own)| own == value) || reply.body.contains(value) {
                faults.push(format!("{line}: {name} comes back"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    // Nothing of it took away what is cached.
    assert!(front.get("/content/a.html").is_hit());
    assert_eq!(front.get("/content/a.html").body, "page /content/a.html");
}

#[test]
fn a_render_is_told_by_the_dispatcher_and_not_by_the_visitor() {
    let origin = OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)));
    let front = Front::start(&Setup {
        farm: FARM,
        cache: CACHE,
        renders: vec![origin.addr()],
        settings: "[front]\ntrusted_proxies = [\"192.0.2.9\"]\n".to_owned(),
        ..Setup::default()
    });
    let forged = [
        ("X-Tympan-Refused-Readings", "7"),
        ("Surrogate-Capability", "evil=\"SSI/1.0\""),
        ("Server-Agent", "evil"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Ssl", "on"),
        ("X-Forwarded-Ssl-Client-Cert", "evil"),
        ("X-Forwarded-For", "203.0.113.5"),
        ("Forwarded", "for=203.0.113.5"),
        ("X-Real-IP", "203.0.113.5"),
        ("Connection", "close, Host, X-Kept"),
        ("Proxy-Authorization", "evil"),
        ("TE", "trailers, evil"),
        ("Upgrade", "h2c"),
    ];
    for (name, value) in forged {
        let target = format!("/content/forged-{}.html", name.to_ascii_lowercase());
        let reply = front.send("GET", &target, &[(name, value)], "");
        assert_eq!(reply.status, 200, "{name}");
        let seen = origin.requests().into_iter().find(|seen| seen.target == target).unwrap();
        let lower = name.to_ascii_lowercase();
        let own = seen.header(&lower).unwrap_or_default().to_owned();
        assert!(
            !own.contains("evil") && !own.contains("203.0.113.5") && own != value,
            "{name}: {own}"
        );
        assert_eq!(seen.header("host"), Some("www.example.com"), "{name}");
    }
}
