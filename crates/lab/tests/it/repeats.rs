//! Requests on kept connections that the server closes without an answer: what may have been received is not sent twice.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use tympan_lab::ab::Ab;
use tympan_lab::get::Get;
use tympan_lab::plan::{Plan, Run};
use tympan_lab::record::Results;
use tympan_lab::report::Report;
use tympan_testkit::origin::{Answer, Delivery, Origin};

use super::plan::{defaults, plan, sampler};

/// An origin that hangs up on the first, third, fifth... request for `/order` and answers everything else.
fn unreliable() -> Origin {
    let orders = AtomicUsize::new(0);
    Origin::start(move |seen| {
        let is_lost =
            seen.target == "/order" && orders.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        let delivery = if is_lost { Delivery::Hangup } else { Delivery::Whole };
        Answer::html("ok").deliver(delivery)
    })
}

/// Runs a plan that warms the connection and orders, three times; returns the results and how many orders arrived.
fn order_by_plan(method: &str) -> (Results, usize) {
    let origin = unreliable();
    let order = sampler("/order", "").replace(">GET<", &format!(">{method}<"));
    let text = plan("3", "1", &format!("{}{}{order}", defaults(&origin), sampler("/warm", "")));
    let plan = Plan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    let outcome = plan.run(&Run::default(), &mut |_| ()).unwrap();
    (outcome.results, origin.requests_for("/order"))
}

#[test]
fn a_plan_never_repeats_a_request_that_may_have_been_received() {
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let (results, arrived) = order_by_plan(method);
        let total = results.total();
        assert_eq!((arrived, total.count(), total.errors), (3, 6, 2), "{method}");
        assert_eq!(results.generator.repeated, 0, "{method}");
    }
}

#[test]
fn a_repeated_request_is_sent_once_more_and_counted() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let (results, arrived) = order_by_plan(method);
        let total = results.total();
        assert_eq!((arrived, total.count(), total.errors), (6, 6, 0), "{method}");
        assert_eq!(results.generator.repeated, 3, "{method}");
        let notes = Report { title: "t", results: &results, goals: &[], is_own: true }.notes();
        assert!(notes[0].starts_with("3 requests were sent a second time"), "{notes:?}");
    }
}

/// A request that was lost twice has failed, however many kept connections there are.
#[test]
fn a_request_is_repeated_only_once() {
    let origin = Origin::start(|seen| {
        let is_lost = seen.target == "/order";
        let delivery = if is_lost { Delivery::Hangup } else { Delivery::Whole };
        Answer::html("ok").deliver(delivery)
    });
    let text = plan(
        "3",
        "1",
        &format!("{}{}{}", defaults(&origin), sampler("/warm", ""), sampler("/order", "")),
    );
    let plan = Plan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    let outcome = plan.run(&Run::default(), &mut |_| ()).unwrap();
    assert_eq!((origin.requests_for("/order"), outcome.results.total().errors), (6, 3));
}

#[test]
fn get_and_ab_do_not_repeat_a_post() {
    let origin = unreliable();
    let urls = ["/warm", "/order"].map(|path| format!("http://{}{path}", origin.addr()));
    let load = Get {
        method: "POST".to_owned(),
        body: b"pay=100".to_vec(),
        urls: urls.to_vec(),
        users: 1,
        workers: 1,
        requests: Some(8),
        ..Get::default()
    };
    let results = load.run().unwrap();
    assert_eq!((results.total().count(), results.total().errors), (8, 2));
    assert_eq!(origin.requests_for("/order"), 4);

    let origin = unreliable();
    let load = Ab {
        url: format!("http://{}/order", origin.addr()),
        requests: 7,
        concurrency: 1,
        keep_alive: true,
        method: "POST".to_owned(),
        body: b"pay=100".to_vec(),
        ..Ab::default()
    };
    load.run().unwrap();
    assert_eq!(origin.requests_for("/order"), 7);
}
