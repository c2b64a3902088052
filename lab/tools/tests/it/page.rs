//! Pages with all their parts: what is fetched, and what is told about it.

use tympan_lab_tools::visit::{PageVisitOptions, visit_pages};
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

fn visits(origin: &OriginServer, path: &str) -> PageVisitOptions {
    PageVisitOptions {
        urls: vec![format!("http://{}{path}", origin.addr())],
        headers: vec![("X-Own".to_owned(), "1".to_owned())],
        visits_per_page: 1,
        reuses_cache: false,
        goals: Vec::new(),
    }
}

fn site() -> OriginServer {
    OriginServer::start(|seen| {
        match seen.target.as_str() {
        "/old" => OriginResponse::with_status(302).with_header("Location", "/en/page.html"),
        "/en/page.html" => OriginResponse::html(
            "<link rel=stylesheet href=style.css><script src='/js/a.js'></script><img src=a.png><img src=a.png><img src=/gone.png>",
        )
        .with_header("Server-Timing", "render;dur=12.5")
        .with_header("ETag", "\"1\""),
        "/en/style.css" => OriginResponse::with_status(200)
            .with_header("Content-Type", "text/css")
            .with_header("Cache-Control", "max-age=600")
            .with_body("@import 'more.css'; a { background: url(\"../bg.png\") }"),
        "/en/more.css" => OriginResponse::with_status(200).with_header("Content-Type", "text/css").with_body("b{}"),
        "/gone.png" => OriginResponse::with_status(404),
        _ => OriginResponse::with_status(200).with_header("Content-Type", "image/png").with_header("X-Cache", "HIT").with_body("p"),
    }
    })
}

#[test]
fn a_page_is_fetched_with_everything_it_needs() {
    let origin = site();
    let sheet = visit_pages(&visits(&origin, "/old")).unwrap();
    let mut targets: Vec<String> =
        origin.requests().iter().map(|seen| seen.target.clone()).collect();
    assert_eq!(targets[..2], ["/old", "/en/page.html"]);
    targets.sort();
    assert_eq!(
        targets,
        [
            "/bg.png",
            "/en/a.png",
            "/en/more.css",
            "/en/page.html",
            "/en/style.css",
            "/gone.png",
            "/js/a.js",
            "/old"
        ]
    );
    assert!(origin.requests().iter().all(|seen| seen.header("x-own") == Some("1")));
    let page = &sheet.json_result["pages"][0];
    assert_eq!(page["requests"], 8);
    // Of eight requests three pictures and scripts came from a cache.
    assert_eq!(page["cached_share"], 3.0 / 8.0);
    assert!(
        sheet.has_bad_result() && sheet.to_plain_text().contains("/gone.png (status 404)"),
        "{}",
        sheet.to_plain_text()
    );
    assert!(sheet.to_plain_text().contains("render") && sheet.to_plain_text().contains("12.50 ms"));
    assert!(sheet.to_html().contains("Waterfall"));
}

#[test]
fn credentials_are_sent_to_no_other_server() {
    let other = OriginServer::start(|seen| match seen.target.as_str() {
        "/style.css" => OriginResponse::with_status(200)
            .with_header("Content-Type", "text/css")
            .with_body("b{}"),
        _ => {
            OriginResponse::with_status(200).with_header("Content-Type", "image/png").with_body("p")
        }
    });
    let place = format!("http://{}", other.addr());
    let origin = OriginServer::start(move |seen| match seen.target.as_str() {
        "/" => OriginResponse::html(format!(
            "<link rel=stylesheet href={place}/style.css><img src=/own.png><img src=/moved.png>"
        )),
        "/moved.png" => {
            OriginResponse::with_status(302).with_header("Location", &format!("{place}/moved.png"))
        }
        _ => {
            OriginResponse::with_status(200).with_header("Content-Type", "image/png").with_body("p")
        }
    });
    let secrets = ["Authorization", "Cookie"];
    let mut visits = visits(&origin, "/");
    visits.headers.extend(secrets.map(|name| (name.to_owned(), "x".to_owned())));
    visits.headers.push(("Host".to_owned(), "site.example".to_owned()));
    visit_pages(&visits).unwrap();
    let (home, away) = (origin.requests(), other.requests());
    assert_eq!((home.len(), away.len()), (3, 2));
    for seen in &home {
        assert!(secrets.iter().all(|name| seen.header(name) == Some("x")), "{seen:?}");
        assert_eq!(seen.header("host"), Some("site.example"));
    }
    for seen in &away {
        assert!(secrets.iter().all(|name| seen.header(name).is_none()), "{seen:?}");
        assert_eq!(seen.header("host"), Some(other.addr().to_string().as_str()));
        assert_eq!(seen.header("x-own"), Some("1"));
    }
}

#[test]
fn a_warm_visit_asks_only_for_what_is_not_fresh() {
    let origin = site();
    let visits = PageVisitOptions {
        visits_per_page: 2,
        reuses_cache: true,
        ..visits(&origin, "/en/page.html")
    };
    let sheet = visit_pages(&visits).unwrap();
    assert_eq!(origin.request_count_for("/en/style.css"), 1);
    assert_eq!(origin.request_count_for("/en/page.html"), 2);
    assert_eq!(
        origin
            .requests()
            .iter()
            .filter(|seen| seen.header("if-none-match") == Some("\"1\""))
            .count(),
        1
    );
    assert_eq!(sheet.json_result["pages"][0]["browser_cached"], 1);
}

#[test]
fn six_requests_at_a_time_go_to_a_host() {
    let gate = OriginGate::default();
    let behind = gate.clone();
    let origin = OriginServer::start(move |seen| {
        if seen.target == "/" {
            let images: String = (0..9).map(|at| format!("<img src=/{at}.png>")).collect();
            return OriginResponse::html(images);
        }
        behind.wait_open();
        OriginResponse::with_status(200).with_body("x")
    });
    let visits = visits(&origin, "/");
    let sheet = std::thread::scope(|scope| {
        let running = scope.spawn(|| visit_pages(&visits).unwrap());
        origin.wait_for_requests(7);
        // Nobody has been answered: the page and six parts are all that may have come.
        let before = origin.request_count();
        gate.open();
        assert_eq!(before, 7);
        running.join().unwrap()
    });
    assert_eq!(origin.request_count(), 10);
    assert_eq!(sheet.json_result["pages"][0]["requests"], 10);
}

#[test]
fn pages_have_goals_by_their_addresses() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let url = format!("http://{}/a.html", origin.addr());
    let text = format!("[goal.\"{url}\"]\nmax = \"60s\"\nmean = \"0us\"\n");
    let goals = tympan_lab_plan::goal::parse_goals(&text, "g").unwrap();
    let sheet =
        visit_pages(&PageVisitOptions { visits_per_page: 3, goals, ..visits(&origin, "/a.html") })
            .unwrap();
    assert_eq!(
        sheet.judged_goals.iter().map(|goal| goal.is_met).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(origin.request_count(), 3);
}

#[test]
fn a_page_that_does_not_answer_is_not_measured() {
    let closed = tympan_testkit::origin_server::refusing_addr();
    let visits = PageVisitOptions {
        urls: vec![format!("http://{closed}/")],
        headers: Vec::new(),
        visits_per_page: 1,
        reuses_cache: false,
        goals: Vec::new(),
    };
    let sheet = visit_pages(&visits).unwrap();
    assert!(
        sheet.is_doubtful() && sheet.to_plain_text().contains("never responded"),
        "{}",
        sheet.to_plain_text()
    );
}
