//! Runs a whole plan against both sites, through a proxy that records every exchange.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use tympan_lab_engine::load::probe_client::ProbeResponse;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::{AbsoluteUrl, TestPlan};

use super::comparison_rule::ComparisonRules;
use super::difference::{
    ComparedResponse, DifferenceAspect, ResponseDifference, response_differences,
};
use super::site_comparison::{
    SiteComparison, SiteComparisonResult, compared_response, is_repeatable,
};
use crate::recording::recording_proxy::{ProxyExchange, RecordingProxy};
use crate::{Error, Result};

/// Runs `plan` against both sites of `verify` and compares their responses.
///
/// Requests are paired by method, path and body, in the order in which each pair was sent, so a plan with several
/// threads can be compared. A request that only one site received is a difference: the plan took another path. If
/// anything differs, the plan runs once more against each site, to find unstable differences.
///
/// # Errors
/// As `TestPlan::run`; [`Error::UnusableInput`] if the plan sent nothing.
pub fn compare_plan_runs(
    verify: &SiteComparison,
    plan: &TestPlan,
    run: &RunOptions,
) -> Result<SiteComparisonResult> {
    let before = PlanRunSite {
        base_url: &verify.before_url,
        authority: site_authority(&verify.before_url)?,
    };
    let after =
        PlanRunSite { base_url: &verify.after_url, authority: site_authority(&verify.after_url)? };
    let mut verdict = SiteComparisonResult::default();
    let before_responses = run_plan_on_site(verify, &before, plan, run, &mut verdict.plan_faults)?;
    let after_responses = run_plan_on_site(verify, &after, plan, run, &mut verdict.plan_faults)?;
    if before_responses.is_empty() && after_responses.is_empty() {
        if verdict.plan_faults.is_empty() {
            return Err(Error::UnusableInput(
                "the plan sent no requests; does it have enabled samplers?".to_owned(),
            ));
        }
        return Ok(verdict);
    }
    let differences =
        compare_plan_responses(&before_responses, &after_responses, &verify.rules, &mut verdict);
    if differences.is_empty() {
        return Ok(verdict);
    }
    let mut varying = BTreeMap::new();
    for (site, first) in [(&before, &before_responses), (&after, &after_responses)] {
        // An error in the repetition alone does not concern the compared responses.
        let again = run_plan_on_site(verify, site, plan, run, &mut Vec::new())?;
        for (occurrence, repeat_differences) in compare_plan_responses(
            first,
            &again,
            &verify.rules,
            &mut SiteComparisonResult::default(),
        ) {
            varying.entry(occurrence).or_insert_with(Vec::new).extend(repeat_differences);
        }
    }
    for (occurrence, request_differences) in differences {
        let varying = varying.get(&occurrence).filter(|_| is_repeatable(&occurrence.0.0));
        verdict.classify_differences(request_differences, varying.map_or(&[], Vec::as_slice));
    }
    Ok(verdict)
}

/// The destination of a request, and its identity.
struct PlanRunSite<'a> {
    base_url: &'a str,
    authority: String,
}

type PlanRequestKey = (String, String, Vec<u8>);
/// A request and its occurrence number. Differences in the number of occurrences sort after the last of them.
type PlanRequestOccurrence = (PlanRequestKey, usize);
/// The responses in the order of sending, or the reason why there is none.
type PlanResponses = BTreeMap<PlanRequestKey, Vec<Result<ComparedResponse, String>>>;

/// Compares two runs of a plan. Records the number of compared responses and the missing ones in `verdict`.
fn compare_plan_responses(
    before: &PlanResponses,
    after: &PlanResponses,
    rules: &ComparisonRules,
    verdict: &mut SiteComparisonResult,
) -> BTreeMap<PlanRequestOccurrence, Vec<ResponseDifference>> {
    let mut all = BTreeMap::new();
    let mut keys: Vec<&PlanRequestKey> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let request = format!("{} {}", key.0, key.1);
        let (ones, twos) = (before.get(key), after.get(key));
        let (ones, twos) =
            (ones.map_or(&[][..], Vec::as_slice), twos.map_or(&[][..], Vec::as_slice));
        for (number, pair) in ones.iter().zip(twos).enumerate() {
            let (before_response, after_response) = match pair {
                (Ok(before_response), Ok(after_response)) => (before_response, after_response),
                (Err(failure), _) | (_, Err(failure)) => {
                    verdict.unanswered_requests.push(format!("{request}: {failure}"));
                    continue;
                }
            };
            verdict.compared_count += 1;
            let differences =
                response_differences(&request, before_response, after_response, rules);
            if !differences.is_empty() {
                all.insert((key.clone(), number), differences);
            }
        }
        let only = match ones.len().cmp(&twos.len()) {
            Ordering::Equal => continue,
            Ordering::Greater => one_sided_difference(&request, "-", "before"),
            Ordering::Less => one_sided_difference(&request, "+", "after"),
        };
        all.insert((key.clone(), usize::MAX), vec![only]);
    }
    all
}

fn one_sided_difference(request: &str, sign: &str, site: &str) -> ResponseDifference {
    ResponseDifference {
        request_line: request.to_owned(),
        aspect: DifferenceAspect::Sequence,
        diff: format!("{sign} requested only on the site of --{site}, or more often there"),
    }
}

fn run_plan_on_site(
    verify: &SiteComparison,
    site: &PlanRunSite<'_>,
    plan: &TestPlan,
    run: &RunOptions,
    faults: &mut Vec<String>,
) -> Result<PlanResponses> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy = RecordingProxy::start(listen, Some(site.base_url), verify.timeout, |_| {})?;
    let run = RunOptions {
        proxy_address: Some(proxy.address()),
        without_listeners: true,
        result_file: None,
        worker_count: 1,
        ..run.clone()
    };
    plan.rewind();
    faults.extend(run_plan(plan, &run, &mut |_| {})?.errors);
    let mut responses = PlanResponses::new();
    for exchange in proxy.exchanges() {
        let key = (exchange.method.clone(), exchange.target.clone(), exchange.body.clone());
        let response = match &exchange.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(compared_response_of(exchange, &site.authority)),
        };
        responses.entry(key).or_default().push(response);
    }
    Ok(responses)
}

fn site_authority(site: &str) -> Result<String> {
    let url = AbsoluteUrl::parse(site)?;
    Ok(format!("{}:{}", url.host, url.port))
}

fn compared_response_of(exchange: ProxyExchange, site: &str) -> ComparedResponse {
    let response = ProbeResponse {
        status: exchange.status,
        headers: exchange.response_headers,
        body: exchange.response_body,
        elapsed: exchange.elapsed,
    };
    compared_response(response, site.to_owned())
}
