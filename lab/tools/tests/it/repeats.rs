//! Requests on kept connections that the server closes without an answer: what may have been received is not sent twice.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::measurement::RunResults;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_engine::report::RunReport;
use tympan_lab_plan::TestPlan;
use tympan_lab_tools::ab::AbOptions;
use tympan_testkit::jmeter_plan::{defaults, plan, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer, ResponseDelivery};

/// An origin that hangs up on the first, third, fifth... request for `/order` and answers everything else.
fn unreliable() -> OriginServer {
    let orders = AtomicUsize::new(0);
    OriginServer::start(move |seen| {
        let is_lost =
            seen.target == "/order" && orders.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        let delivery = if is_lost { ResponseDelivery::Hangup } else { ResponseDelivery::Complete };
        OriginResponse::html("ok").with_delivery(delivery)
    })
}

/// Runs a plan that warms the connection and orders, three times; returns the results and how many orders arrived.
fn order_by_plan(method: &str) -> (RunResults, usize) {
    let origin = unreliable();
    let order = sampler("/order", "").replace(">GET<", &format!(">{method}<"));
    let text = plan("3", "1", &format!("{}{}{order}", defaults(&origin), sampler("/warm", "")));
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    let outcome = run_plan(&plan, &RunOptions::default(), &mut |_| ()).unwrap();
    (outcome.results, origin.request_count_for("/order"))
}

#[test]
fn a_plan_never_repeats_a_request_that_may_have_been_received() {
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let (results, arrived) = order_by_plan(method);
        let total = results.total_stats();
        assert_eq!((arrived, total.count(), total.error_count), (3, 6, 2), "{method}");
        assert_eq!(results.generator.repeated_requests, 0, "{method}");
    }
}

#[test]
fn a_repeated_request_is_sent_once_more_and_counted() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let (results, arrived) = order_by_plan(method);
        let total = results.total_stats();
        assert_eq!((arrived, total.count(), total.error_count), (6, 6, 0), "{method}");
        assert_eq!(results.generator.repeated_requests, 3, "{method}");
        let notes =
            RunReport { title: "t", results: &results, judged_goals: &[], is_own_load: true }
                .notes();
        assert!(notes[0].starts_with("3 requests were sent a second time"), "{notes:?}");
    }
}

/// A request that was lost twice has failed, however many kept connections there are.
#[test]
fn a_request_is_repeated_only_once() {
    let origin = OriginServer::start(|seen| {
        let is_lost = seen.target == "/order";
        let delivery = if is_lost { ResponseDelivery::Hangup } else { ResponseDelivery::Complete };
        OriginResponse::html("ok").with_delivery(delivery)
    });
    let text = plan(
        "3",
        "1",
        &format!("{}{}{}", defaults(&origin), sampler("/warm", ""), sampler("/order", "")),
    );
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    let outcome = run_plan(&plan, &RunOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(
        (origin.request_count_for("/order"), outcome.results.total_stats().error_count),
        (6, 3)
    );
}

#[test]
fn get_and_ab_do_not_repeat_a_post() {
    let origin = unreliable();
    let urls = ["/warm", "/order"].map(|path| format!("http://{}{path}", origin.addr()));
    let load = GetLoad {
        method: "POST".to_owned(),
        body: b"pay=100".to_vec(),
        urls: urls.to_vec(),
        users: 1,
        workers: 1,
        requests: Some(8),
        ..GetLoad::default()
    };
    let results = load.run().unwrap();
    assert_eq!((results.total_stats().count(), results.total_stats().error_count), (8, 2));
    assert_eq!(origin.request_count_for("/order"), 4);

    let origin = unreliable();
    let load = AbOptions {
        url: format!("http://{}/order", origin.addr()),
        requests: 7,
        concurrency: 1,
        keep_alive: true,
        method: "POST".to_owned(),
        body: b"pay=100".to_vec(),
        ..AbOptions::default()
    };
    load.run().unwrap();
    assert_eq!(origin.request_count_for("/order"), 7);
}
