//! How many variants of one page clients may make renders draw (`/x-variantLimit`).

use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, Reply, Setup, load};

fn origin() -> OriginServer {
    OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)))
}

/// A front that believes who it is told to be asked by.
fn front(origin: &OriginServer, farm: &'static str, cache: &'static str) -> Front {
    Front::start(&setup(origin, farm, cache))
}

fn setup(origin: &OriginServer, farm: &'static str, cache: &'static str) -> Setup {
    let settings = "[front]\ntrusted_proxies = [\"127.0.0.1\"]\n".to_owned();
    Setup { farm, cache, settings, renders: vec![origin.addr()], ..Setup::default() }
}

fn get(front: &Front, client: &str, target: &str) -> Reply {
    front.send("GET", target, &[("X-Forwarded-For", client)], "")
}

/// Returns how often a page was not stored for want of room for another variant.
fn refused_by_reason(front: &Front) -> u64 {
    let text = front.dispatcher.prometheus_metrics();
    let name = "tympan_dispatcher_not_cached_total{farm=\"site\",reason=\"TooManyVariants\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn one_client_makes_so_many_variants_and_no_more() {
    let origin = origin();
    let front = front(
        &origin,
        "/x-cacheStatus \"1\" /x-variantLimit { /perClient \"3\" /window \"3600\" }",
        "",
    );
    let urls = ["/content/a.html?cb=1", "/content/a.big.html", "/content/a.html/x.html"];
    for url in urls {
        assert_eq!(get(&front, "192.0.2.1", url).status, 200, "{url}");
    }
    for url in
        ["/content/a.html?cb=2", "/content/a.small.html", "/content/a.html/y.html", "/content/a.x7"]
    {
        let reply = get(&front, "192.0.2.1", url);
        assert_eq!(reply.status, 429, "{url}");
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=1201).contains(&wait), "{wait}");
        assert_eq!(reply.info(), "not cacheable: too many variants of the page were requested");
        let told = "tympan; detail=\"too many variants of the page were requested\"";
        assert_eq!(reply.header("cache-status"), Some(told));
    }
    assert_eq!(origin.request_count(), 3);
    assert_eq!((front.metric("variants_refused_total"), refused_by_reason(&front)), (4, 4));
    // What was drawn for it, it may ask for again, from the cache or not.
    assert!(get(&front, "192.0.2.1", "/content/a.big.html").is_hit());
    assert_eq!(get(&front, "192.0.2.1", "/content/a.html?cb=1").status, 200);
    // The page itself, other pages and other clients are not concerned.
    for (client, url) in [
        ("192.0.2.1", "/content/a.html"),
        ("192.0.2.1", "/content/b.html?cb=2"),
        ("192.0.2.2", "/content/a.html?cb=2"),
        ("2001:db8::1", "/content/a.html?cb=3"),
    ] {
        assert_eq!(get(&front, client, url).status, 200, "{client} {url}");
    }
    // What changes something is no way around a cache.
    let posted =
        front.send("POST", "/content/a.html?cb=9", &[("X-Forwarded-For", "192.0.2.1")], "x");
    assert_eq!(posted.status, 200);
    let head = front.send("HEAD", "/content/a.html?cb=9", &[("X-Forwarded-For", "192.0.2.1")], "");
    assert_eq!(head.status, 429);
}

#[test]
fn all_clients_together_make_so_many() {
    let origin = origin();
    let front = front(&origin, "/x-variantLimit { /total \"3\" /window \"3600\" }", "");
    let statuses: Vec<u16> = (0..6)
        .map(|n| get(&front, &format!("192.0.2.{n}"), &format!("/content/a.{n}.html")).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
    // A variant that is in the cache is everyone's.
    assert!(get(&front, "192.0.2.9", "/content/a.1.html").is_hit());
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn the_page_stands_in_for_its_queries_where_that_is_wanted() {
    let origin = origin();
    let farm = "/x-variantLimit { /perClient \"1\" /window \"3600\" /over \"plain\" }
        /filter { /0 { /type \"allow\" /url \"*\" } /1 { /type \"deny\" /url \"/content/secret.html\" }
            /2 { /type \"allow\" /url \"/content/secret.html\" /query \"cb=*\" } }";
    let front = front(&origin, farm, "");
    let ask = |url: &str| get(&front, "192.0.2.1", url);
    assert_eq!(ask("/content/a.html?cb=1").body, "page /content/a.html?cb=1");
    assert_eq!(ask("/content/a.html?cb=2").status, 429, "the page is not in the cache");
    ask("/content/a.html");
    for number in 3..6 {
        let reply = ask(&format!("/content/a.html?cb={number}"));
        assert_eq!((reply.status, reply.body.as_str()), (200, "page /content/a.html"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    // Nobody keeps it under that name.
    assert_eq!(get(&front, "192.0.2.2", "/content/a.html?cb=3").body, "page /content/a.html?cb=3");
    // A page with selectors is another one.
    assert_eq!(ask("/content/a.big.html").status, 429);
    assert_eq!(
        (front.metric("variants_replaced_total"), front.metric("variants_refused_total")),
        (3, 2)
    );
    // Nor is shown what the filter refuses.
    front.write("content/secret.html", "secret");
    assert_eq!(ask("/content/secret.html").status, 404);
    assert_eq!(ask("/content/secret.html?cb=1").status, 200);
    assert_eq!(ask("/content/secret.html?cb=2").status, 429);
}

#[test]
fn what_is_cached_counts_once_and_old_variants_stay() {
    let origin = origin();
    let farm = "/x-variantLimit { /perClient \"2\" /window \"3600\" }";
    let cache = "/x-cacheKeyParams { /0 { /type \"allow\" /glob \"page\" } } /x-flushMode \"soft\"
        /ignoreUrlParams { /0 { /type \"allow\" /glob \"utm\" } }";
    let front = front(&origin, farm, cache);
    let ask = |url: &str| get(&front, "192.0.2.1", url);
    assert_eq!(ask("/content/a.html?page=1").status, 200);
    assert!((0..5).all(|n| ask(&format!("/content/a.html?page=1&utm={n}")).is_hit()));
    assert_eq!(ask("/content/a.html?page=2").status, 200);
    assert_eq!(ask("/content/a.html?page=3").status, 429);
    // Flushed, the old one is served and drawn anew, as before.
    front.advance(1);
    front.flush("Activate", "/content/a", &[]);
    front.advance(1);
    assert_eq!(ask("/content/a.html?page=1").body, "page /content/a.html?page=1");
    front.wait_for("fetches", 0);
    assert_eq!(origin.request_count_for("/content/a.html?page=1"), 2);
}

/// A farm that says nothing of it is bounded as well: what somebody makes up must not fill the disk.
#[test]
fn a_wide_bound_holds_without_any_setting() {
    let origin = origin();
    let cache = "/x-cacheKeyParams { /0 { /type \"allow\" /glob \"page\" } }";
    let made_up: [fn(usize) -> String; 5] = [
        |n| format!("/content/a.s{n}.html"),
        |n| format!("/content/a.html/s{n}.html"),
        |n| format!("/content/a.x{n}"),
        |n| format!("/content/a;v={n}.html"),
        |n| format!("/content/a.html?page={n}"),
    ];
    for url in made_up {
        let front = front(&origin, "", cache);
        let ask = |client: &str| (0..200).map(|n| get(&front, client, &url(n)).status).collect();
        let statuses: Vec<u16> = ask("192.0.2.1");
        assert_eq!(statuses[..100], [200; 100], "{}", url(0));
        assert!(statuses.contains(&429), "{}: {statuses:?}", url(0));
        let is_page = |name: &&String| !name.ends_with(".h");
        let pages = front.files().iter().filter(is_page).count();
        assert!(pages < 150, "{}: {pages} pages", url(0));
        // Other visitors, and other pages, go on.
        assert_eq!(get(&front, "192.0.2.2", &url(500)).status, 200);
        assert_eq!(get(&front, "192.0.2.1", "/content/b.s1.html").status, 200);
    }
    // Queries that make no file are not counted, nor files in folders whose names have dots.
    let front = front(&origin, "", cache);
    for n in 0..150 {
        for url in [format!("/content/a.json?q={n}"), format!("/etc.clientlibs/a/{n}.css")] {
            assert_eq!(get(&front, "192.0.2.1", &url).status, 200, "{url}");
        }
    }
    let front = self::front(&origin, "/x-variantLimit \"0\"", "");
    assert!((0..150).all(|n| get(&front, "192.0.2.1", &made_up[0](n)).status == 200));
}

#[test]
fn a_reload_forgets_nothing_but_what_changed() {
    let origin = origin();
    let farm = "/x-variantLimit { /perClient \"1\" /window \"3600\" }";
    let front = front(&origin, farm, "");
    get(&front, "192.0.2.1", "/content/a.html?1");
    front.reload(&setup(&origin, farm, "/statfileslevel 2"));
    assert_eq!(get(&front, "192.0.2.1", "/content/a.html?2").status, 429);
    front.reload(&setup(&origin, "/x-variantLimit { /perClient \"5\" }", ""));
    assert_eq!(get(&front, "192.0.2.1", "/content/a.html?2").status, 200);
    front.reload(&setup(&origin, "/x-variantLimit \"0\"", ""));
    assert!(
        (0..9).all(|n| get(&front, "192.0.2.1", &format!("/content/a.html?{n}")).status == 200)
    );
}

#[test]
fn parts_of_pages_are_not_their_visitors_variants() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        part if part.starts_with("/part") => OriginResponse::html(format!("[{part}]")),
        _ => OriginResponse::html(
            "<esi:include src=\"/part.html?1\"/><esi:include src=\"/part.html?2\"/>",
        )
        .with_header("X-Tympan-Include", "/part.html?1")
        .with_header("X-Tympan-Include", "/part.html?2"),
    });
    let front = front(&origin, "/x-variantLimit { /perClient \"1\" /window \"3600\" }", "");
    let body = get(&front, "192.0.2.1", "/content/a.html").body;
    assert_eq!(body, "[/part.html?1][/part.html?2]");
    assert_eq!(get(&front, "192.0.2.1", "/part.html?3").status, 200);
    assert_eq!(get(&front, "192.0.2.1", "/part.html?4").status, 429);
}

#[test]
fn values_that_make_no_sense_are_found() {
    let check = |text: &str, expected: &str| {
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /0 {{ /hostname \"h\" }} }} /x-variantLimit {{ {text} }} }} }}"
        );
        let found: Vec<String> =
            load(&text).diagnostics.iter().map(|finding| finding.to_string()).collect();
        let found = found.join("\n");
        assert!(
            if expected.is_empty() { found.is_empty() } else { found.contains(expected) },
            "{text}: {found}"
        );
    };
    check("/perClient \"20\" /total \"500\" /window \"60\" /over \"plain\"", "");
    check("/total 5 /over \"429\"", "");
    check("", "nothing is limited");
    check("/perClient \"many\"", "`/perClient` must be a number, not `many`");
    check("/perClient \"0\"", "`/perClient` must be at least 1");
    check("/perClient \"9\" /total \"8\"", "`/perClient` is above `/total`");
    check("/total \"5\" /window \"0\"", "`/window` must be a number of seconds from 1 to 86400");
    check("/total \"5\" /over \"none\"", "`/over` must be `429` or `plain`, not `none`");
    check("/total \"5\" /perclient \"1\"", "did you mean `/perClient`?");
}
