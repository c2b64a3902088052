//! Several renders, failures, and what reaches them (`LB`).

use std::sync::atomic::{AtomicUsize, Ordering};

use tympan_testkit::origin_server::{
    OriginGate, OriginResponse, OriginServer, ResponseDelivery, refusing_addr,
};

use crate::front::{Front, Setup};

fn named(name: &'static str) -> OriginServer {
    OriginServer::start_constant(OriginResponse::html(name))
}

fn before(renders: &[&OriginServer], farm: &'static str) -> Front {
    Front::start(&Setup {
        farm,
        renders: renders.iter().map(|origin| origin.addr()).collect(),
        ..Setup::default()
    })
}

#[test]
fn lb122_a_dead_render_costs_no_visitor_anything() {
    let living = named("living");
    let front =
        Front::start(&Setup { renders: vec![refusing_addr(), living.addr()], ..Setup::default() });
    for number in 0..10 {
        assert_eq!(front.get(&format!("/{number}.html")).body, "living");
    }
    assert_eq!(living.request_count(), 10);
}

#[test]
fn lb123_when_all_are_dead_every_round_asks_each() {
    // Hangs up on every connection, so that attempts can be counted.
    let refusing = OriginServer::start_constant(
        OriginResponse::html("").with_delivery(ResponseDelivery::Hangup),
    );
    let front = Front::start(&Setup {
        farm: "/retryDelay 0 /numberOfRetries 3",
        renders: vec![refusing_addr(), refusing.addr()],
        ..Setup::default()
    });
    assert_eq!(front.get("/a.html").status, 502);
    // Each attempt is made twice, since the first may have met a pooled connection on its way out.
    assert_eq!(refusing.request_count(), 6);
    assert_eq!(front.metric("render_failures_total"), 1);
}

#[test]
fn lb124_a_cookie_keeps_a_visitor_at_one_render() {
    let (first, second) = (named("first"), named("second"));
    let front =
        before(&[&first, &second], "/stickyConnections { /paths { \"/shop\" } /httpOnly 1 }");
    let reply = front.get("/shop/cart");
    let expected = match reply.body.as_str() {
        "first" => "renderid=r0; Path=/; HttpOnly",
        _ => "renderid=r1; Path=/; HttpOnly",
    };
    assert_eq!(reply.header("set-cookie"), Some(expected));
    for _ in 0..5 {
        let again = front.send("GET", "/shop/cart", &[("Cookie", "a=b; renderid=r1")], "");
        assert_eq!(again.body, "second");
        assert_eq!(again.header("set-cookie"), None);
    }
    assert_eq!(front.get("/shopping").header("set-cookie"), None);
    assert_eq!(front.get("/other").header("set-cookie"), None);
    let metrics = front.dispatcher.prometheus_metrics();
    for (render, count) in [("r0", 0), ("r1", 5)] {
        let line = format!(
            "tympan_dispatcher_render_sticky_requests_total{{farm=\"site\",render=\"{render}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
}

#[test]
fn lb124_a_cookie_for_an_unknown_render_is_ignored() {
    let only = named("only");
    let front = before(&[&only], "");
    let reply = front.send("GET", "/a", &[("Cookie", "renderid=gone")], "");
    assert_eq!(reply.body, "only");
}

#[test]
fn lb125_failover() {
    let check = |farm: &'static str, status: u16, health: u16, expected: (u16, &str)| {
        let ill = OriginServer::start(move |seen| match seen.target.as_str() {
            "/health.html" => OriginResponse::with_status(health),
            _ => OriginResponse::with_status(status).with_body("ill"),
        });
        let well = named("well");
        let front = before(&[&ill, &well], farm);
        let reply = front.get("/a");
        assert_eq!((reply.status, reply.body.as_str()), expected, "{farm} {status} {health}");
    };
    let failover = "/failover 1 /health_check { /url \"/health.html\" }";
    check(failover, 503, 200, (200, "well"));
    check(failover, 500, 500, (200, "well"));
    check(failover, 500, 200, (500, "ill"));
    check(failover, 404, 500, (404, "ill"));
    check("", 503, 500, (503, "ill"));
}

#[test]
fn lb125_when_all_fail_over_the_last_answer_counts() {
    let ill = OriginServer::start_constant(OriginResponse::with_status(503).with_body("ill"));
    let front = before(&[&ill], "/failover 1");
    let reply = front.get("/a");
    assert_eq!((reply.status, reply.body.as_str()), (503, "ill"));
}

#[test]
fn lb126_silence_is_a_gateway_timeout_and_a_stop_in_the_middle_stores_nothing() {
    let origin = OriginServer::start(|seen| {
        let delivery = match seen.target.as_str() {
            "/silent.html" => ResponseDelivery::NoResponse,
            _ => ResponseDelivery::StallAfter(5),
        };
        OriginResponse::html("0123456789").with_delivery(delivery)
    });
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        render: "/receiveTimeout 1500",
        ..Setup::default()
    });
    assert_eq!(front.get("/silent.html").status, 504);
    assert_eq!(front.get("/middle.html").status, 502);
    let passed = front.get("/middle.html?uncached=1");
    assert_eq!((passed.status, passed.body.as_str(), passed.is_complete), (200, "01234", false));
    assert_eq!(front.files(), Vec::<String>::new());
}

#[test]
fn lb127_a_name_is_resolved_for_each_connection_and_all_its_addresses_are_tried() {
    let origin = named("a");
    let port = origin.addr().port();
    for keys in ["", "/always-resolve 1", "/ipv4 1", "/always-resolve 1 /ipv4 1"] {
        // The name stands for an IPv6 address too, on which nobody listens.
        let text = Setup { renders: vec![origin.addr()], ..Setup::default() }
            .text("/".as_ref())
            .replace("/docroot \"/\"", "")
            .replace("/hostname \"127.0.0.1\"", &format!("/hostname \"localhost\" {keys}"));
        assert!(text.contains(&format!("localhost\" {keys} /port \"{port}\"")), "{text}");
        let front = Front::start_text(&text);
        assert_eq!(front.get("/a.html").status, 200, "{keys}");
    }
    assert_eq!(origin.request_count(), 4);
    let unknown = Front::start_text(
        &Setup { renders: vec![origin.addr()], ..Setup::default() }
            .text("/".as_ref())
            .replace("/docroot \"/\"", "")
            .replace("/hostname \"127.0.0.1\"", "/hostname \"nowhere.invalid\""),
    );
    assert_eq!(unknown.get("/a.html").status, 502);
}

#[test]
fn lb128_a_body_is_sent_to_a_second_render_only_if_the_first_did_not_get_it() {
    let echo = OriginServer::start(|seen| OriginResponse::html(seen.body.clone()));
    let front =
        Front::start(&Setup { renders: vec![refusing_addr(), echo.addr()], ..Setup::default() });
    for _ in 0..3 {
        assert_eq!(front.send("POST", "/a", &[], "text").body, "text");
    }
    let count = AtomicUsize::new(0);
    let breaking = OriginServer::start(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        OriginResponse::html("").with_delivery(ResponseDelivery::Hangup)
    });
    let other = named("other");
    let front = before(&[&breaking, &other], "");
    let statuses: Vec<u16> = (0..2).map(|_| front.send("POST", "/a", &[], "text").status).collect();
    assert!(statuses.contains(&502), "{statuses:?}");
    assert_eq!(breaking.request_count(), 1);
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let origin = OriginServer::start(|seen| OriginResponse::html(seen.body.len().to_string()));
    let front = before(&[&origin], "");
    let head =
        "POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 99999999\r\n\r\n";
    let answer = tympan_testkit::origin_server::exchange_bytes(front.addr, head.as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 413"));
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn renders_learn_who_asks_and_through_what() {
    let origin = named("x");
    let front =
        before(&[&origin], "/clientheaders { \"Host\" \"X-Wanted\" \"X-Hop\" \"Connection\" }");
    let headers = [
        ("Host", "www.example.com:8080"),
        ("X-Wanted", "1"),
        ("X-Unwanted", "1"),
        ("X-Forwarded-For", "10.1.1.1"),
        ("Keep-Alive", "timeout=5"),
        ("Connection", "close, X-Hop, Host"),
        ("X-Hop", "1"),
    ];
    front.send("GET", "/a%2b%20b?c=%2b", &headers, "");
    let seen = &origin.requests()[0];
    let check =
        |name: &str, expected: Option<&str>| assert_eq!(seen.header(name), expected, "{name}");
    assert_eq!(seen.target, "/a%2b%20b?c=%2b");
    check("host", Some("www.example.com:8080"));
    check("x-wanted", Some("1"));
    check("x-unwanted", None);
    check("x-hop", None);
    check("keep-alive", None);
    check("x-forwarded-for", Some("10.1.1.1, 127.0.0.1"));
    check("x-forwarded-port", Some("8080"));
    check("server-agent", Some("Communique-Dispatcher"));
    check("via", Some("1.1 www.example.com:8080 (dispatcher)"));
}

#[test]
fn a_request_that_goes_in_a_circle_is_stopped() {
    let origin = named("x");
    let front = before(&[&origin], "");
    let via = ["1.1 h (dispatcher)"; 8].join(", ");
    assert_eq!(front.send("GET", "/a", &[("Via", &via)], "").status, 508);
    assert_eq!(front.send("GET", "/a", &[("Via", "1.1 h (dispatcher)")], "").status, 200);
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn a_busy_render_gets_no_more_than_it_can_take_and_the_queue_is_bounded() {
    let gate = OriginGate::default();
    let inner = gate.clone();
    let origin = OriginServer::start(move |seen| {
        inner.wait_open();
        OriginResponse::html(seen.target.clone())
    });
    let front = std::sync::Arc::new(Front::start(&Setup {
        renders: vec![origin.addr()],
        render: "/x-maxConcurrent 2 /x-maxQueue 1",
        ..Setup::default()
    }));
    let ask = |path: &'static str| {
        let front = std::sync::Arc::clone(&front);
        std::thread::spawn(move || front.get(path))
    };
    let mut visitors = vec![ask("/a"), ask("/b")];
    origin.wait_for_requests(2);
    visitors.push(ask("/c"));
    front.wait_for("render_queue", 1);
    assert_eq!(front.get("/d").status, 503);
    assert_eq!(origin.request_count(), 2);
    gate.open();
    assert!(visitors.into_iter().all(|visitor| visitor.join().unwrap().status == 200));
    assert_eq!(front.get("/e").status, 200);
    assert_eq!(front.metric("render_queue"), 0);
}

#[test]
fn a_render_with_a_bad_health_page_is_asked_last_until_it_is_well() {
    let status = std::sync::Arc::new(AtomicUsize::new(500));
    let health = std::sync::Arc::clone(&status);
    let ill = OriginServer::start(move |seen| match seen.target.as_str() {
        "/health" => {
            OriginResponse::with_status(u16::try_from(health.load(Ordering::SeqCst)).unwrap())
        }
        _ => OriginResponse::html("ill"),
    });
    let well = OriginServer::start_constant(OriginResponse::html("well"));
    let front =
        before(&[&ill, &well], "/health_check { /url \"/health\" /x-interval 1 /x-failures 1 }");
    front.wait_for("renders_ejected", 1);
    for _ in 0..20 {
        assert_eq!(front.get("/a").body, "well");
    }
    drop(well);
    assert_eq!(front.get("/a").body, "ill", "better than nobody");
    front.wait_for("renders_ejected", 2);
    status.store(200, Ordering::SeqCst);
    front.wait_for("renders_ejected", 1);
}
