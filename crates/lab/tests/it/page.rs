//! Pages with all their parts: what is fetched, and what is told about it.

use tympan_lab::goal;
use tympan_lab::page::{Visits, run};
use tympan_testkit::origin::{Answer, Gate, Origin};

fn visits(origin: &Origin, path: &str) -> Visits {
    Visits {
        urls: vec![format!("http://{}{path}", origin.addr())],
        headers: vec![("X-Own".to_owned(), "1".to_owned())],
        count: 1,
        is_warm: false,
        goals: Vec::new(),
    }
}

fn site() -> Origin {
    Origin::start(|seen| {
        match seen.target.as_str() {
        "/old" => Answer::status(302).header("Location", "/en/page.html"),
        "/en/page.html" => Answer::html(
            "<link rel=stylesheet href=style.css><script src='/js/a.js'></script><img src=a.png><img src=a.png><img src=/gone.png>",
        )
        .header("Server-Timing", "render;dur=12.5")
        .header("ETag", "\"1\""),
        "/en/style.css" => Answer::status(200)
            .header("Content-Type", "text/css")
            .header("Cache-Control", "max-age=600")
            .body("@import 'more.css'; a { background: url(\"../bg.png\") }"),
        "/en/more.css" => Answer::status(200).header("Content-Type", "text/css").body("b{}"),
        "/gone.png" => Answer::status(404),
        _ => Answer::status(200).header("Content-Type", "image/png").header("X-Cache", "HIT").body("p"),
    }
    })
}

#[test]
fn a_page_is_fetched_with_everything_it_needs() {
    let origin = site();
    let sheet = run(&visits(&origin, "/old")).unwrap();
    let mut targets: Vec<String> = origin.seen().iter().map(|seen| seen.target.clone()).collect();
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
    assert!(origin.seen().iter().all(|seen| seen.header("x-own") == Some("1")));
    let page = &sheet.json["pages"][0];
    assert_eq!(page["requests"], 8);
    // Of eight requests three pictures and scripts came from a cache.
    assert_eq!(page["cached_share"], 3.0 / 8.0);
    assert!(
        sheet.is_bad() && sheet.plain().contains("/gone.png (status 404)"),
        "{}",
        sheet.plain()
    );
    assert!(sheet.plain().contains("render") && sheet.plain().contains("12.50 ms"));
    assert!(sheet.html().contains("Waterfall"));
}

#[test]
fn credentials_are_told_to_no_other_server() {
    let other = Origin::start(|seen| match seen.target.as_str() {
        "/style.css" => Answer::status(200).header("Content-Type", "text/css").body("b{}"),
        _ => Answer::status(200).header("Content-Type", "image/png").body("p"),
    });
    let place = format!("http://{}", other.addr());
    let origin = Origin::start(move |seen| match seen.target.as_str() {
        "/" => Answer::html(format!(
            "<link rel=stylesheet href={place}/style.css><img src=/own.png><img src=/moved.png>"
        )),
        "/moved.png" => Answer::status(302).header("Location", &format!("{place}/moved.png")),
        _ => Answer::status(200).header("Content-Type", "image/png").body("p"),
    });
    let secrets = ["Authorization", "Cookie"];
    let mut visits = visits(&origin, "/");
    visits.headers.extend(secrets.map(|name| (name.to_owned(), "x".to_owned())));
    visits.headers.push(("Host".to_owned(), "site.example".to_owned()));
    run(&visits).unwrap();
    let (home, away) = (origin.seen(), other.seen());
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
    let visits = Visits { count: 2, is_warm: true, ..visits(&origin, "/en/page.html") };
    let sheet = run(&visits).unwrap();
    assert_eq!(origin.requests_for("/en/style.css"), 1);
    assert_eq!(origin.requests_for("/en/page.html"), 2);
    assert_eq!(
        origin.seen().iter().filter(|seen| seen.header("if-none-match") == Some("\"1\"")).count(),
        1
    );
    assert_eq!(sheet.json["pages"][0]["kept_by_browser"], 1);
}

#[test]
fn six_requests_at_a_time_go_to_a_host() {
    let gate = Gate::default();
    let behind = gate.clone();
    let origin = Origin::start(move |seen| {
        if seen.target == "/" {
            let images: String = (0..9).map(|at| format!("<img src=/{at}.png>")).collect();
            return Answer::html(images);
        }
        behind.pass();
        Answer::status(200).body("x")
    });
    let visits = visits(&origin, "/");
    let sheet = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&visits).unwrap());
        origin.wait_for(7);
        // Nobody has been answered: the page and six parts are all that may have come.
        let before = origin.requests();
        gate.open();
        assert_eq!(before, 7);
        running.join().unwrap()
    });
    assert_eq!(origin.requests(), 10);
    assert_eq!(sheet.json["pages"][0]["requests"], 10);
}

#[test]
fn pages_have_goals_by_their_addresses() {
    let origin = Origin::always(Answer::html("x"));
    let url = format!("http://{}/a.html", origin.addr());
    let text = format!("[goal.\"{url}\"]\nmax = \"60s\"\nmean = \"0us\"\n");
    let goals = goal::parse(&text, "g").unwrap();
    let sheet = run(&Visits { count: 3, goals, ..visits(&origin, "/a.html") }).unwrap();
    assert_eq!(sheet.goals.iter().map(|goal| goal.is_met).collect::<Vec<_>>(), [true, false]);
    assert_eq!(origin.requests(), 3);
}

#[test]
fn a_page_that_does_not_answer_is_not_measured() {
    let closed = tympan_testkit::origin::dead_addr();
    let visits = Visits {
        urls: vec![format!("http://{closed}/")],
        headers: Vec::new(),
        count: 1,
        is_warm: false,
        goals: Vec::new(),
    };
    let sheet = run(&visits).unwrap();
    assert!(sheet.is_doubtful() && sheet.plain().contains("never answered"), "{}", sheet.plain());
}
