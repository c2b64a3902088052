//! A farm for a share of the visitors.

use std::collections::HashMap;

use tympan_testkit::origin::{Answer, Origin};

use crate::front::Front;

/// Two farms for one host: the site, and the new one for a share.
fn start(old: &Origin, new: &Origin, share: &str) -> Front {
    let farm = |name: &str, origin: &Origin, more: &str| {
        let port = origin.addr().port();
        format!(
            "/{name} {{ /virtualhosts {{ \"*\" }} /clientheaders {{ \"*\" }} {more}
                /renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }} }}"
        )
    };
    let (old, new) = (farm("old", old, ""), farm("new", new, share));
    Front::start_text(&format!("/farms {{ {old} {new} }}"))
}

fn lot_of(reply: &crate::front::Reply) -> Option<String> {
    let cookie = reply.header("set-cookie")?;
    cookie.split(';').next().map(str::to_owned)
}

#[test]
fn ten_percent_of_ten_thousand_visitors_see_the_new_site_and_stay() {
    let (old, new) = (Origin::always(Answer::html("old")), Origin::always(Answer::html("new")));
    let front = start(&old, &new, "/x-share { /percent \"10\" }");
    // Lots are dealt in turn, so a tenth of the visitors over the network stands for all of them.
    let mut visitors: HashMap<String, String> = HashMap::new();
    for _ in 0..1000 {
        let reply = front.get("/a");
        visitors.insert(lot_of(&reply).unwrap(), reply.body);
    }
    assert_eq!(visitors.len(), 1000, "everyone has an own lot");
    let in_share = visitors.values().filter(|body| *body == "new").count();
    assert!((90..=110).contains(&in_share), "{in_share}");
    for (cookie, body) in visitors.iter().take(100) {
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
    let (old, new) = (Origin::always(Answer::html("old")), Origin::always(Answer::html("new")));
    let share =
        "/x-share { /percent \"0\" /addresses { /0 { /type \"allow\" /glob \"127.0.0.*\" } } }";
    assert_eq!(start(&old, &new, share).get("/a").body, "new");
    let share = "/x-share { /percent \"0\" /addresses { /0 { /type \"allow\" /glob \"10.*\" } } }";
    assert_eq!(start(&old, &new, share).get("/a").body, "old");
}

#[test]
fn forged_lots_are_replaced() {
    let (old, new) = (Origin::always(Answer::html("old")), Origin::always(Answer::html("new")));
    let front = start(&old, &new, "/x-share { /percent \"10\" }");
    for forged in ["tympan-lot=10000", "tympan-lot=-1", "tympan-lot=x"] {
        assert!(lot_of(&front.send("GET", "/a", &[("Cookie", forged)], "")).is_some(), "{forged}");
    }
    let broken = crate::front::load("/farms { /f { /x-share { /percent \"200\" } } }");
    assert!(broken.has_errors());
}
