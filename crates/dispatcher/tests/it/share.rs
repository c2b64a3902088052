//! A farm for a share of the visitors.

use std::collections::HashMap;

use tympan_testkit::origin_server::{OriginResponse, OriginServer, exchange_bytes};

use crate::front::{Front, Reply};

/// Two farms for one host: the site, and the new one for a share.
fn start(old: &OriginServer, new: &OriginServer, share: &str) -> Front {
    let farm = |name: &str, origin: &OriginServer, more: &str| {
        let port = origin.addr().port();
        format!(
            "/{name} {{ /virtualhosts {{ \"*\" }} /clientheaders {{ \"*\" }} {more}
                /renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }} }}"
        )
    };
    let (old, new) = (farm("old", old, ""), farm("new", new, share));
    Front::start_text(&format!("/farms {{ {old} {new} }}"))
}

fn lot_of(reply: &Reply) -> Option<String> {
    let cookie = reply.header("set-cookie")?;
    cookie.split(';').next().map(str::to_owned)
}

/// Asks as `count` new visitors, on one connection; returns the lot that each got, and what it saw.
fn visit(front: &Front, count: usize) -> Vec<(String, String)> {
    let request = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let last = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let bytes = format!("{}{last}", request.repeat(count - 1));
    let answers = String::from_utf8(exchange_bytes(front.addr, bytes.as_bytes())).unwrap();
    let answers = answers.split("HTTP/1.1 ").skip(1);
    let read = |answer: &str| Reply::parse(format!("HTTP/1.1 {answer}").as_bytes(), false);
    answers.map(read).map(|reply| (lot_of(&reply).unwrap(), reply.body)).collect()
}

#[test]
fn ten_percent_of_ten_thousand_visitors_see_the_new_site_and_stay() {
    let (old, new) = (
        OriginServer::start_constant(OriginResponse::html("old")),
        OriginServer::start_constant(OriginResponse::html("new")),
    );
    let front = start(&old, &new, "/x-share { /percent \"10\" }");
    let mut visitors: HashMap<String, String> = HashMap::new();
    for _ in 0..100 {
        visitors.extend(visit(&front, 100));
    }
    assert_eq!(visitors.len(), 10_000, "everyone has an own lot");
    let in_share = visitors.values().filter(|body| *body == "new").count();
    assert!((9_900..=10_100).contains(&(in_share * 10)), "{in_share}");
    for (cookie, body) in visitors.iter().take(200) {
        let again = front.send("GET", "/b", &[("Cookie", cookie)], "");
        assert_eq!((again.body.as_str(), lot_of(&again)), (body.as_str(), None));
    }
    // A larger share takes others in and sends nobody back.
    assert!(front.dispatcher.set_share("new", 50.0));
    for (cookie, body) in visitors.iter().filter(|(_, body)| *body == "new").take(50) {
        assert_eq!(front.send("GET", "/c", &[("Cookie", cookie)], "").body, *body);
    }
    assert!(front.dispatcher.set_share("new", 0.0));
    assert_eq!(front.get("/d").body, "old");
    assert!(!front.dispatcher.set_share("old", 5.0) && !front.dispatcher.set_share("none", 5.0));
}

#[test]
fn addresses_belong_to_the_share_in_any_case() {
    let (old, new) = (
        OriginServer::start_constant(OriginResponse::html("old")),
        OriginServer::start_constant(OriginResponse::html("new")),
    );
    let share =
        "/x-share { /percent \"0\" /addresses { /0 { /type \"allow\" /glob \"127.0.0.*\" } } }";
    assert_eq!(start(&old, &new, share).get("/a").body, "new");
    let share = "/x-share { /percent \"0\" /addresses { /0 { /type \"allow\" /glob \"10.*\" } } }";
    assert_eq!(start(&old, &new, share).get("/a").body, "old");
}

#[test]
fn forged_lots_are_replaced() {
    let (old, new) = (
        OriginServer::start_constant(OriginResponse::html("old")),
        OriginServer::start_constant(OriginResponse::html("new")),
    );
    let front = start(&old, &new, "/x-share { /percent \"10\" }");
    for forged in ["tympan-lot=10000", "tympan-lot=-1", "tympan-lot=x"] {
        assert!(lot_of(&front.send("GET", "/a", &[("Cookie", forged)], "")).is_some(), "{forged}");
    }
    let broken = crate::front::load("/farms { /f { /x-share { /percent \"200\" } } }");
    assert!(broken.has_errors());
}
