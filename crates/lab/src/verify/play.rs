//! Plays a whole plan against both sites, through a proxy that sees every exchange.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{Aspect, Difference, Rules, Side, Verdict, Verify, differences, is_repeatable};
use crate::client::Answer;
use crate::net::Url;
use crate::plan::{Plan, Run};
use crate::proxy::{Exchange, Proxy};
use crate::{Error, Result};

/// Plays `plan` against both sites of `verify` and compares what they answered.
///
/// Requests are paired by method, path and body, in the order in which each pair was asked; so a plan with several
/// threads is compared too. A request that only one site was asked for is a difference: the plan took another way.
/// Where anything differs, the plan is played once more against each site, to tell what differs by itself.
///
/// # Errors
/// As [`Plan::run`]; [`Error::Input`] if the plan sent nothing.
pub fn plan(verify: &Verify, plan: &Plan, run: &Run) -> Result<Verdict> {
    let before = Site { url: &verify.before, authority: authority(&verify.before)? };
    let after = Site { url: &verify.after, authority: authority(&verify.after)? };
    let mut verdict = Verdict::default();
    let one = play(verify, &before, (plan, run), &mut verdict.faults)?;
    let two = play(verify, &after, (plan, run), &mut verdict.faults)?;
    if one.is_empty() && two.is_empty() {
        if verdict.faults.is_empty() {
            return Err(Error::Input("the plan sent nothing; has it enabled samplers?".to_owned()));
        }
        return Ok(verdict);
    }
    let found = compare(&one, &two, &verify.rules, &mut verdict);
    if found.is_empty() {
        return Ok(verdict);
    }
    let mut varying = BTreeMap::new();
    for (site, first) in [(&before, &one), (&after, &two)] {
        // A fault of the repeat alone says nothing about the answers that are compared.
        let again = play(verify, site, (plan, run), &mut Vec::new())?;
        for (place, found) in compare(first, &again, &verify.rules, &mut Verdict::default()) {
            varying.entry(place).or_insert_with(Vec::new).extend(found);
        }
    }
    for (place, found) in found {
        let varying = varying.get(&place).filter(|_| is_repeatable(&place.0.0));
        verdict.judge(found, varying.map_or(&[], Vec::as_slice));
    }
    Ok(verdict)
}

/// Where a request goes, and what it is told apart by.
struct Site<'a> {
    url: &'a str,
    authority: String,
}

type Key = (String, String, Vec<u8>);
/// A request, and which of its kind; differences in how often it was sent stand behind the last of them.
type Place = (Key, usize);
/// What was answered, in the order of sending; or why nothing was.
type Answers = BTreeMap<Key, Vec<Result<Side, String>>>;

/// Compares two plays of a plan; notes in `verdict` how many answers were compared, and which are missing.
fn compare(
    one: &Answers,
    two: &Answers,
    rules: &Rules,
    verdict: &mut Verdict,
) -> BTreeMap<Place, Vec<Difference>> {
    let mut all = BTreeMap::new();
    let mut keys: Vec<&Key> = one.keys().chain(two.keys()).collect();
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
                    verdict.unanswered.push(format!("{request}: {failure}"));
                    continue;
                }
            };
            verdict.compared += 1;
            let found = differences(&request, one, two, rules);
            if !found.is_empty() {
                all.insert((key.clone(), number), found);
            }
        }
        let only = match ones.len().cmp(&twos.len()) {
            Ordering::Equal => continue,
            Ordering::Greater => only(&request, "-", "before"),
            Ordering::Less => only(&request, "+", "after"),
        };
        all.insert((key.clone(), usize::MAX), vec![only]);
    }
    all
}

fn only(request: &str, sign: &str, site: &str) -> Difference {
    Difference {
        request: request.to_owned(),
        aspect: Aspect::Sequence,
        diff: format!("{sign} asked for on the site of --{site} only, or more often there"),
    }
}

fn play(
    verify: &Verify,
    site: &Site<'_>,
    (plan, run): (&Plan, &Run),
    faults: &mut Vec<String>,
) -> Result<Answers> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy = Proxy::start(listen, Some(site.url), verify.timeout, |_| {})?;
    let run = Run {
        detour: Some(proxy.address()),
        without_listeners: true,
        rows: None,
        workers: 1,
        ..run.clone()
    };
    plan.rewind();
    faults.extend(plan.run(&run, &mut |_| {})?.faults);
    let mut answers = Answers::new();
    for exchange in proxy.exchanges() {
        let key = (exchange.method.clone(), exchange.target.clone(), exchange.body.clone());
        let answer = match &exchange.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(side(exchange, &site.authority)),
        };
        answers.entry(key).or_default().push(answer);
    }
    Ok(answers)
}

fn authority(site: &str) -> Result<String> {
    let url = Url::parse(site)?;
    Ok(format!("{}:{}", url.host, url.port))
}

fn side(exchange: Exchange, site: &str) -> Side {
    let answer = Answer {
        status: exchange.status,
        headers: exchange.answer_headers,
        body: exchange.answer,
        elapsed: exchange.elapsed,
    };
    super::side(answer, site.to_owned())
}
