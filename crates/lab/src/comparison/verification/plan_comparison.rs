//! Runs a whole plan against both sites, through a proxy that records every exchange.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{
    ComparedResponse, ComparisonRules, DifferenceAspect, ResponseDifference, SiteComparison,
    SiteComparisonResult, is_repeatable, response_differences,
};
use crate::load::probe_client::ProbeResponse;
use crate::net::AbsoluteUrl;
use crate::plan::{RunOptions, TestPlan};
use crate::recording::recording_proxy::{ProxyExchange, RecordingProxy};
use crate::{Error, Result};

/// Runs `plan` against both sites of `verify` and compares their responses.
///
/// Requests are paired by method, path and body, in the order in which each pair was sent, so a plan with several
/// threads can be compared. A request that only one site received is a difference: the plan took another path. If
/// anything differs, the plan runs once more against each site, to find unstable differences.
///
/// # Errors
/// As [`TestPlan::run`]; [`Error::UnusableInput`] if the plan sent nothing.
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
    let one = run_plan_on_site(verify, &before, (plan, run), &mut verdict.plan_faults)?;
    let two = run_plan_on_site(verify, &after, (plan, run), &mut verdict.plan_faults)?;
    if one.is_empty() && two.is_empty() {
        if verdict.plan_faults.is_empty() {
            return Err(Error::UnusableInput(
                "the plan sent nothing; has it enabled samplers?".to_owned(),
            ));
        }
        return Ok(verdict);
    }
    let found = compare_plan_responses(&one, &two, &verify.rules, &mut verdict);
    if found.is_empty() {
        return Ok(verdict);
    }
    let mut varying = BTreeMap::new();
    for (site, first) in [(&before, &one), (&after, &two)] {
        // An error in the repetition alone does not concern the compared responses.
        let again = run_plan_on_site(verify, site, (plan, run), &mut Vec::new())?;
        for (place, found) in compare_plan_responses(
            first,
            &again,
            &verify.rules,
            &mut SiteComparisonResult::default(),
        ) {
            varying.entry(place).or_insert_with(Vec::new).extend(found);
        }
    }
    for (place, found) in found {
        let varying = varying.get(&place).filter(|_| is_repeatable(&place.0.0));
        verdict.classify_differences(found, varying.map_or(&[], Vec::as_slice));
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
    one: &PlanResponses,
    two: &PlanResponses,
    rules: &ComparisonRules,
    verdict: &mut SiteComparisonResult,
) -> BTreeMap<PlanRequestOccurrence, Vec<ResponseDifference>> {
    let mut all = BTreeMap::new();
    let mut keys: Vec<&PlanRequestKey> = one.keys().chain(two.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let request = format!("{} {}", key.0, key.1);
        let (ones, twos) = (one.get(key), two.get(key));
        let (ones, twos) =
            (ones.map_or(&[][..], Vec::as_slice), twos.map_or(&[][..], Vec::as_slice));
        for (number, pair) in ones.iter().zip(twos).enumerate() {
            let (one, two) = match pair {
                (Ok(one), Ok(two)) => (one, two),
                (Err(failure), _) | (_, Err(failure)) => {
                    verdict.unanswered_requests.push(format!("{request}: {failure}"));
                    continue;
                }
            };
            verdict.compared_count += 1;
            let found = response_differences(&request, one, two, rules);
            if !found.is_empty() {
                all.insert((key.clone(), number), found);
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
        diff: format!("{sign} asked for on the site of --{site} only, or more often there"),
    }
}

fn run_plan_on_site(
    verify: &SiteComparison,
    site: &PlanRunSite<'_>,
    (plan, run): (&TestPlan, &RunOptions),
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
    faults.extend(plan.run(&run, &mut |_| {})?.errors);
    let mut answers = PlanResponses::new();
    for exchange in proxy.exchanges() {
        let key = (exchange.method.clone(), exchange.target.clone(), exchange.body.clone());
        let answer = match &exchange.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(compared_response_of(exchange, &site.authority)),
        };
        answers.entry(key).or_default().push(answer);
    }
    Ok(answers)
}

fn site_authority(site: &str) -> Result<String> {
    let url = AbsoluteUrl::parse(site)?;
    Ok(format!("{}:{}", url.host, url.port))
}

fn compared_response_of(exchange: ProxyExchange, site: &str) -> ComparedResponse {
    let answer = ProbeResponse {
        status: exchange.status,
        headers: exchange.response_headers,
        body: exchange.response_body,
        elapsed: exchange.elapsed,
    };
    super::compared_response(answer, site.to_owned())
}
