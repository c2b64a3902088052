//! Rules of `tympan.toml`: what happens to a request before the cache is asked.

use tympan_dispatcher::{Dispatcher, DispatcherRuntime, DispatcherSettings};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, Reply, Setup, load};

fn echo() -> OriginServer {
    OriginServer::start(|seen| OriginResponse::html(format!("render {}", seen.target)))
}

fn start(origin: &OriginServer, settings: &str) -> Front {
    Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: settings.to_owned(),
        ..Setup::default()
    })
}

/// What a visitor of `www.example.com` sees: the status and the body, or where a redirect leads.
fn seen(reply: &Reply) -> String {
    match reply.header("location") {
        Some(location) => format!("{} -> {location}", reply.status),
        None => format!("{} {}", reply.status, reply.body),
    }
}

#[test]
fn rewrites_change_what_is_looked_up_and_asked_for() {
    let origin = echo();
    let front = start(
        &origin,
        r#"
        [[host]]
        names = ["other.example.com"]
        rule = [{ match = '^/a', answer = 410 }]
        [[host]]
        names = ["*.example.com"]
        [[host.rule]]
        match = '^/old/(.*)$'
        rewrite = "/new/$1"
        [[host.rule]]
        match = '^/(new/.*)$'
        rewrite = "/content/$1"
        last = true
        [[host.rule]]
        match = '^/content/new/never\.html$'
        answer = 403
        [[host.rule]]
        match = '^/page/([0-9]+)$'
        rewrite = "/content/page.html?number=$1"
        query = "append"
        [[host.rule]]
        match = '^/climb/(.*)$'
        rewrite = "/../../$1"
        "#,
    );
    assert_eq!(seen(&front.get("/old/a.html")), "200 render /content/new/a.html");
    assert!(front.has("content/new/a.html"), "{:?}", front.files());
    assert!(front.get("/new/a.html").is_hit());
    assert!(front.get("/content/new/a.html").is_hit());
    assert_eq!(seen(&front.get("/old/never.html")), "200 render /content/new/never.html");
    assert_eq!(seen(&front.get("/page/7?x=y")), "200 render /content/page.html?number=7&x=y");
    assert_eq!(seen(&front.get("/old/b%20c%25.html")), "200 render /content/new/b%20c%25.html");
    assert!(front.has("content/new/b c%.html"), "{:?}", front.files());
    assert_eq!(seen(&front.get("/old/b%3Fc=d.html")), "200 render /content/new/b%3Fc=d.html");
    assert_eq!(seen(&front.get("/old/b%3Fc.html?e=f")), "200 render /content/new/b%3Fc.html?e=f");
    assert_eq!(front.get("/climb/etc/passwd").status, 400);
    assert_eq!(front.send("GET", "/a", &[("Host", "other.example.com")], "").status, 410);
    assert_eq!(front.send("GET", "/a", &[("Host", "elsewhere")], "").status, 200);
}

#[test]
fn access_is_asked_of_the_url_and_of_what_it_leads_to() {
    let origin = echo();
    let portal = OriginServer::start_constant(OriginResponse::html("portal"));
    let front = start(
        &origin,
        &format!(
            r#"
            [[host]]
            rule = [
                {{ match = '^/by-url/(.*)$', rewrite = "/files/$1", pass_through = true }},
                {{ match = '^/by-file/(.*)$', rewrite = "/files/$1", last = true }},
                {{ match = '^/by-both/(.*)$', rewrite = "/closed/$1", last = true }},
                {{ match = '^/closed/open/(.*)$', rewrite = "/$1", last = true }},
                {{ match = '^/closed/moved$', redirect = "/new.html" }},
                {{ match = '^/files/portal', proxy = "http://{}/", of_url = true }},
                {{ match = '^/files/old', redirect = "/new.html", of_url = true }},
            ]
            access = [
                {{ match = '^/closed(?:/|$)' }},
                {{ of = "url", match = '^/files/a', when = [{{ test = "%{{REQUEST_METHOD}}", match = '^HEAD$', negate = true }}] }},
                {{ of = "file", match = '^/files/(b|portal)', when = [{{ test = "%{{REQUEST_URI}}", match = '^/by-file/bc', negate = true }}] }},
            ]
            "#,
            portal.addr()
        ),
    );
    for (target, expected) in [
        ("/closed", "403"),
        ("/%63losed//x.html", "403"),
        ("/closeds.html", "200 render /closeds.html"),
        ("/by-both/x.html", "403"),
        ("/closed/open/x.html", "403"),
        ("/closed/moved", "302 -> http://www.example.com/new.html"),
        ("/files/a.html", "403"),
        ("/by-url/a.html", "403"),
        ("/by-file/a.html", "200 render /files/a.html"),
        ("/files/b.html", "403"),
        ("/by-url/bc.html", "403"),
        ("/by-file/b.html", "403"),
        ("/by-file/bc.html", "200 render /files/bc.html"),
        ("/files/portal", "200 portal"),
        ("/by-url/portal", "200 portal"),
        ("/by-file/portal", "403"),
        ("/by-url/old", "302 -> http://www.example.com/new.html"),
        ("/by-file/old", "200 render /files/old"),
    ] {
        let seen = seen(&front.get(target));
        assert!(seen.starts_with(expected), "{target}: {seen}");
    }
    assert_eq!(front.send("HEAD", "/files/a.html", &[], "").status, 200);
}

/// What farms look up is what was sent, so that is what may be closed, wherever rules led.
#[test]
fn no_rule_leads_away_from_what_is_closed_where_farms_look_up_what_was_sent() {
    let origin = echo();
    for (of, expected) in [
        ("", ["403", "403", "200 render /open/x"]),
        ("of = \"sent\", ", ["403", "403", "200 render /open/x"]),
        ("of = \"url\", ", ["200 render /passed/x", "403", "200 render /open/x"]),
    ] {
        let front = start(
            &origin,
            &format!(
                "use_processed_url = false\n[[host]]\nrule = [\
                 {{ match = '^/passed(/.*)$', rewrite = \"/open$1\", pass_through = true }},\
                 {{ match = '^/closed(/.*)$', rewrite = \"/open$1\", last = true }}]\n\
                 access = [{{ {of}match = '^/(passed|closed)' }}]"
            ),
        );
        let asked = ["/passed/x", "/closed/x", "/open/x"].map(|path| seen(&front.get(path)));
        for (seen, expected) in asked.iter().zip(expected) {
            assert!(seen.starts_with(expected), "{of}: {asked:?}");
        }
    }
    // Where they look up what rules made of it, the path that was sent is closed by its own word alone.
    let rule = "rule = [{ match = '^/closed(/.*)$', rewrite = \"/open$1\", pass_through = true }]";
    for (of, expected) in [("", "200 render /open/x"), ("of = \"sent\", ", "403")] {
        let closed = format!("[[host]]\n{rule}\naccess = [{{ {of}match = '^/closed' }}]");
        let front = start(&origin, &closed);
        let seen = seen(&front.get("/closed/x"));
        assert!(seen.starts_with(expected), "{of}: {seen}");
    }
}

#[test]
fn a_dot_behind_a_name_leads_to_the_same_rules() {
    let origin = echo();
    let closed = "[[host]]\nnames = [\"www.example.com.\"]\n\
                  access = [{ match = '^/closed', when = [{ test = \"%{REMOTE_ADDR}\", match = '127' }] }]";
    let front = start(&origin, closed);
    for host in ["www.example.com", "www.example.com.", "WWW.example.com.:80"] {
        let ask = |path| front.send("GET", path, &[("Host", host)], "").status;
        assert_eq!([ask("/closed"), ask("/open"), ask("/open")], [403, 200, 200], "{host}");
        assert_eq!(front.metric("memory_responses"), 0, "{host}");
    }
    assert_eq!(front.send("GET", "/closed", &[("Host", "www.example.com..")], "").status, 400);
}

#[test]
fn responses_are_not_cached_for_all_where_access_depends_on_the_viewer() {
    let origin = echo();
    for (test, kept) in [("%{REMOTE_ADDR}", 0), ("%{HTTPS}", 1)] {
        let access =
            format!("[[host]]\naccess = [{{ when = [{{ test = \"{test}\", match = 'no' }}] }}]");
        let front = start(&origin, &access);
        assert_eq!(front.get("/a.html").status, 200);
        assert_eq!(front.get("/a.html").status, 200);
        assert_eq!(front.metric("memory_responses"), kept, "{test}");
    }
}

#[test]
fn redirects_name_the_host_and_are_escaped() {
    let origin = echo();
    let front = start(
        &origin,
        r#"
        [[host]]
        [[host.rule]]
        match = '^/$'
        redirect = "/content/en.html"
        [[host.rule]]
        match = '^/moved/(.*)$'
        redirect = "https://new.example.com/$1"
        status = 301
        [[host.rule]]
        match = '^/drop/(.*)$'
        redirect = "/x/$1"
        query = "drop"
        [[host.rule]]
        match = '^/part$'
        redirect = "/content/en.html#part"
        no_escape = true
        [[host.rule]]
        match = '^/secret'
        when = [{ test = "%{REMOTE_ADDR}", match = '^10\.', negate = true }]
        answer = 403
        [[host.rule]]
        match = '^/lang$'
        when = [
            { test = "%{HTTP:Accept-Language}", match = '^(de|fr)', ignore_case = true, or = true },
            { test = "%{QUERY_STRING}", match = '(?:^|&)lang=(\w+)' },
        ]
        redirect = "/content/%1.html?"
        query = "drop"
        "#,
    );
    assert_eq!(seen(&front.get("/")), "302 -> http://www.example.com/content/en.html");
    assert_eq!(seen(&front.get("/moved/a%20b?x=1")), "301 -> https://new.example.com/a%20b?x=1");
    assert_eq!(seen(&front.get("/drop/a?x=1")), "302 -> http://www.example.com/x/a");
    let part = front.get("/part?x=1");
    assert_eq!(seen(&part), "302 -> http://www.example.com/content/en.html?x=1#part");
    // As in httpd, a dot stands for no line break, so this rule does not match.
    assert_eq!(front.get("/drop/a%0d%0aSet-Cookie:x").header("set-cookie"), None);
    assert_eq!(front.get("/secret/a").status, 403);
    let german = front.send("GET", "/lang", &[("Accept-Language", "DE-ch")], "");
    assert_eq!(seen(&german), "302 -> http://www.example.com/content/DE.html");
    let by_query = front.get("/lang?lang=it");
    assert_eq!(seen(&by_query), "302 -> http://www.example.com/content/it.html");
    assert_eq!(seen(&front.get("/lang")), "200 render /lang");
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn another_server_answers_behind_a_proxy_rule_and_its_redirects_come_back() {
    let render = echo();
    let portal = OriginServer::start(|seen| match seen.target.as_str() {
        target if target.ends_with("/away") => {
            let host = seen.header("host").unwrap();
            OriginResponse::with_status(302)
                .with_header("Location", &format!("http://{host}/portal/login"))
        }
        target => {
            let body = String::from_utf8_lossy(&seen.body).into_owned();
            OriginResponse::html(format!("portal {} {target} {body}", seen.method))
        }
    });
    let port = portal.addr().port();
    let front = start(
        &render,
        &format!(
            r#"
            [[host]]
            headers = {{ "X-Frame-Options" = "SAMEORIGIN" }}
            [[host.rule]]
            match = '^/app/static/'
            pass = true
            [[host.rule]]
            match = '^/app/(.*)$'
            proxy = "http://127.0.0.1:{port}/portal/$1"
            [[host.rule]]
            match = '^/any(.*)$'
            proxy = "http://127.0.0.1:{port}$1"
            "#
        ),
    );
    assert_eq!(seen(&front.get("/app/a.html?q=1")), "200 portal GET /portal/a.html?q=1 ");
    let post = front.send("POST", "/app/form", &[], "a=b");
    assert_eq!(seen(&post), "200 portal POST /portal/form a=b");
    assert_eq!(seen(&front.get("/app/away")), "302 -> /app/login");
    assert_eq!(seen(&front.get("/app/static/a.css")), "200 render /app/static/a.css");
    let odd = seen(&front.get("/app/x%3Fadmin=1?q=1"));
    assert_eq!(odd, "200 portal GET /portal/x%3Fadmin=1?q=1 ", "what was sent as a path stays one");
    assert_eq!(front.get("/any@evil.example/").status, 400, "the path must not choose the server");
    assert_eq!(front.get("/app/a.html").header("x-frame-options"), Some("SAMEORIGIN"));
    assert!(front.has("app/static/a.css") && !front.has("app/a.html"), "{:?}", front.files());
    assert_eq!(front.metric("proxied_total"), 5);
}

#[test]
fn a_proxied_server_gets_the_host_of_its_visitor() {
    let render = echo();
    let portal = OriginServer::start(|seen| {
        let host = seen.header("host").unwrap_or("-");
        OriginResponse::html(format!(
            "{host} for {}",
            seen.header("x-forwarded-host").unwrap_or("-")
        ))
    });
    let own = portal.addr().to_string();
    let ask = |front: &str, target: &str, forwarded: Option<&str>| {
        let rules = format!(
            "{front}\n[[host]]\nrule = [{{ match = '^/keep', proxy = \"http://{own}/\", keep_host = true }}, \
             {{ proxy = \"http://{own}/\" }}]"
        );
        let forwarded = forwarded.map(|host| ("X-Forwarded-Host", host));
        let headers: Vec<_> = forwarded.into_iter().collect();
        start(&render, &rules).send("GET", target, &headers, "").body
    };
    assert_eq!(ask("", "/a", None), format!("{own} for www.example.com"));
    assert_eq!(ask("", "/keep", None), "www.example.com for www.example.com");
    assert_eq!(ask("", "/a", Some("evil")), format!("{own} for www.example.com"));
    let trusting = "[front]\ntrusted_proxies = [\"127.0.0.1\"]";
    let both = format!("{own} for shop.example.com, www.example.com");
    assert_eq!(ask(trusting, "/a", Some("shop.example.com")), both);
    for (directive, is_kept) in
        [("", false), ("ProxyPreserveHost On", true), ("ProxyPreserveHost off", false)]
    {
        let vhost = format!(
            "<VirtualHost *:80>\nProxyPass /portal/ http://{own}/\nRedirect /a /b\n{directive}\n</VirtualHost>\n"
        );
        let converted =
            tympan_dispatcher::convert_httpd_config(&[("a.vhost".as_ref(), vhost.as_str())], None)
                .toml;
        let kept = converted.matches("keep_host = true").count();
        assert_eq!(kept, usize::from(is_kept), "{converted}");
    }
}

#[test]
fn errors_get_their_documents() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/errors/404.html" => OriginResponse::html("the page is lost"),
        "/errors/500.html" => OriginResponse::with_status(500).with_body("ill too"),
        target if target.contains("500") => OriginResponse::with_status(500).with_body("ill"),
        _ => OriginResponse::with_status(404).with_body("render says no"),
    });
    let documents = r#"
        error_documents = { 404 = "/errors/404.html", 500 = "/errors/500.html", 403 = "<b>no</b>" }
        [[host]]
        rule = [{ match = '^/no', answer = 403 }]
        "#;
    let with = |pass: &str| {
        Front::start(&Setup {
            farm: "/filter { /0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/content/*\" } }",
            renders: vec![origin.addr()],
            settings: format!("pass_error = \"{pass}\"\n{documents}"),
            ..Setup::default()
        })
    };
    let kept = with("0");
    assert_eq!(seen(&kept.get("/content/a.html")), "404 render says no");
    assert_eq!(
        seen(&kept.get("/refused.html")),
        "404 the page is lost",
        "the dispatcher's own error"
    );
    assert!(kept.has("errors/404.html"), "the document is cached");
    assert_eq!(kept.get("/refused.html").header("etag"), None);
    let ranged = kept.send("GET", "/refused.html", &[("Range", "bytes=0-2")], "");
    assert_eq!(seen(&ranged), "404 the page is lost");
    let replaced = with("404,500-599");
    assert_eq!(seen(&replaced.get("/content/a.html")), "404 the page is lost");
    assert_eq!(seen(&replaced.get("/content/500.html")), "500 ill", "its document fails too");
    assert_eq!(replaced.get("/no").status, 403);
}

#[test]
fn the_root_can_be_declined() {
    let origin = echo();
    assert_eq!(start(&origin, "").get("/").status, 200);
    assert_eq!(start(&origin, "decline_root = true").get("/").status, 404);
    let rule = "[[host]]\nrule = [{ match = '^/$', redirect = \"/en.html\" }]";
    let front = start(&origin, &format!("decline_root = true\n{rule}"));
    assert_eq!(front.get("/").status, 302);
}

#[test]
fn without_the_processed_url_rules_only_end_requests() {
    let origin = echo();
    let rules = "[[host]]\nrule = [{ match = '^/a', rewrite = \"/b.html\" }, { match = '^/b', answer = 410 }]";
    let front = start(&origin, &format!("use_processed_url = false\n{rules}"));
    assert_eq!(front.get("/a.html").status, 410);
    let rules = "[[host]]\nrule = [{ match = '^/a', rewrite = \"/b.html\" }]";
    let front = start(&origin, &format!("use_processed_url = false\n{rules}"));
    assert_eq!(seen(&front.get("/a.html")), "200 render /a.html");
}

#[test]
fn the_forwarded_host_chooses_farm_and_rules_only_where_it_is_trusted() {
    let origin = echo();
    let rules = "[[host]]\nnames = [\"shop.example.com\"]\nrule = [{ match = '^/', answer = 410 }]";
    let headers = [("X-Forwarded-Host", "Shop.example.com:443, edge.example.net")];
    let deaf = start(&origin, rules);
    assert_eq!(deaf.send("GET", "/a.html", &headers, "").status, 200);
    let trusting = start(&origin, &format!("use_forwarded_host = true\n{rules}"));
    assert_eq!(trusting.send("GET", "/a.html", &headers, "").status, 410);
    assert_eq!(trusting.get("/a.html").status, 200);
}

#[test]
fn renders_get_the_sent_path_where_they_need_it() {
    let origin = echo();
    assert_eq!(seen(&start(&origin, "").get("/a//b/./c.html")), "200 render /a/b/c.html");
    let raw = start(&origin, "no_canon_url = true");
    assert_eq!(seen(&raw.get("/a//b/./c.html")), "200 render /a//b/./c.html");
    assert!(raw.get("/a/b/c.html").is_hit());
}

#[test]
fn expiry_stays_off_what_is_not_stored() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("x").with_header("Cache-Control", "max-age=60"),
    );
    let open = start(&origin, "");
    assert_eq!(open.get("/a.html?x=1").header("cache-control"), Some("max-age=60"));
    let strict = start(&origin, "restrict_uncacheable_content = true");
    assert_eq!(strict.get("/a.html?x=1").header("cache-control"), None);
    assert_eq!(strict.get("/b.html").header("cache-control"), Some("max-age=60"));
}

#[test]
fn a_flush_is_not_rewritten() {
    let origin = echo();
    let rules = "[[host]]\nrule = [{ match = '^/', answer = 410 }]";
    let front = start(&origin, rules);
    assert_eq!(front.flush("Activate", "/a", &[]).status, 200);
    assert_eq!(front.get("/a.html").status, 410);
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let check = |settings: &str, expected: &str| {
        let settings: DispatcherSettings = toml::from_str(settings).unwrap();
        let config = load(&Setup::default().text("/".as_ref())).config;
        let error =
            Dispatcher::with_settings(config, &settings, DispatcherRuntime::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(
        "[[host]]\nrule = [{ match = '(' , answer = 403 }]",
        "cannot read the regular expression '('",
    );
    check("[[host]]\nrule = [{ match = 'x' }]", "a rule must have one of");
    check("[[host]]\nrule = [{ rewrite = \"/x\", pass = true }]", "not 2");
    check("[[host]]\nrule = [{ answer = 42 }]", "status 42");
    check("[[host]]\nrule = [{ answer = 403, pass_through = true }]", "`host.rule.pass_through`");
    check(
        "[[host]]\naccess = [{ of = \"folder\" }]",
        "`folder` is not one of `url`, `file` and `sent`",
    );
    check("[[host]]\nrule = [{ proxy = \"ftp://x\" }]", "does not begin with `http://` or `ws://`");
    check(
        "[[host]]\nrule = [{ pass = true, when = [{ test = \"x\" }] }]",
        "a condition must have either",
    );
    check("error_documents = { 200 = \"/x\" }", "`200` is not a status");
    check("[[host]]\nheaders = { \"a b\" = \"x\" }", "cannot be sent as a header");
    assert!(toml::from_str::<DispatcherSettings>("keep_alive_timeout = \"60\"").is_err());
    assert!(toml::from_str::<DispatcherSettings>("pass_eror = \"1\"").is_err());
}

/// What does not come to an end is ended, and so is what a visitor wrote into a server's address.
#[test]
fn rules_that_begin_again_come_to_an_end() {
    let origin = echo();
    let front = start(
        &origin,
        r#"
        [[host]]
        rule = [
            { match = '^/loop/(.*)$', rewrite = "/loop/$1", again = true },
            { match = '^/(.*)x(.*)$', rewrite = "/$1$2", again = true },
        ]
        "#,
    );
    assert_eq!(front.get("/loop/a.html").status, 500);
    assert_eq!(seen(&front.get("/axxbxc.html")), "200 render /abc.html");
}

/// Groups that are escaped reach another server as they were sent.
#[test]
fn escaped_groups_are_not_escaped_twice() {
    let (origin, other) = (echo(), echo());
    let settings = format!(
        "[[host]]
        rule = [
            {{ match = '^/p/(.*)$', proxy = \"http://{0}/$1\", escape_groups = \"path\" }},
            {{ match = '^/q/(.*)$', proxy = \"http://{0}/?a=$1\", escape_groups = \"query\" }},
        ]",
        other.addr()
    );
    let front = start(&origin, &settings);
    assert_eq!(seen(&front.get("/p/a%20b%26%25c")), "200 render /a%20b%26%25c");
    assert_eq!(seen(&front.get("/q/a%20b%26c")), "200 render /?a=a+b%26c");
}

#[test]
fn encoded_slashes_are_treated_as_configured() {
    let check = |setting: &str, target: &str, expected: &str| {
        let origin = echo();
        let setup = Setup {
            farm: "/filter { /0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/c*\" } \
                   /2 { /type \"deny\" /url \"/c/private*\" } }",
            renders: vec![origin.addr()],
            settings: setting.to_owned(),
            ..Setup::default()
        };
        let front = Front::start(&setup);
        let reply = front.get(target);
        let text = if reply.status == 200 { reply.body } else { reply.status.to_string() };
        assert_eq!(text, expected, "{setting} {target}");
        let files = front.files();
        assert_eq!(files.is_empty(), target.contains("keep") || expected.len() == 3, "{files:?}");
    };
    for off in ["", "encoded_slashes = \"off\""] {
        check(off, "/c%2Fa.html", "404");
    }
    let on = "encoded_slashes = \"on\"";
    check(on, "/c%2fa.html", "render /c/a.html");
    check(on, "/c%2Fprivate/a.html", "404");
    check(on, "/c/..%2F..%2Fa.html", "400");
    let kept = "encoded_slashes = \"no_decode\"";
    check(kept, "/c%2fkeep.html", "render /c%2Fkeep.html");
    check(kept, "/c%2Fprivate/a.html", "404");
    check(kept, "/c%2F..%2Flibs/a.html", "404");
    check(kept, "/c%252Fa.html", "404");
    let moved = "encoded_slashes = \"no_decode\"\n[[host]]\nrule = [{ match = '^/old/(.*)$', rewrite = \"/c/$1\" }]";
    check(moved, "/old/x%2Fkeep.html", "render /c/x%2Fkeep.html");
}
