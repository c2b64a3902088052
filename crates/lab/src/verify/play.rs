//! Plays a whole plan against both sites, through a proxy that sees every exchange.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::{Aspect, Difference, Side, Verdict, Verify, differences};
use crate::client::Answer;
use crate::net::Url;
use crate::plan::{Plan, Run};
use crate::proxy::{Exchange, Proxy};
use crate::{Error, Result};

/// Plays `plan` against both sites of `verify` and compares what they answered.
///
/// Requests are paired by method, path and body, in the order in which each pair was asked; so a plan with several
/// threads is compared too. A request that only one site was asked for is a difference: the plan took another way.
///
/// # Errors
/// As [`Plan::run`]; [`Error::Input`] if the plan sent nothing.
pub fn plan(verify: &Verify, plan: &Plan, run: &Run) -> Result<Verdict> {
    let one = play(verify, &verify.before, plan, run)?;
    let two = play(verify, &verify.after, plan, run)?;
    if one.is_empty() && two.is_empty() {
        return Err(Error::Input("the plan sent nothing; has it enabled samplers?".to_owned()));
    }
    let sites = (authority(&verify.before)?, authority(&verify.after)?);
    let mut left = by_request(two);
    let mut verdict = Verdict::default();
    for (key, exchanges) in by_request(one) {
        let mut others = left.remove(&key).unwrap_or_default();
        let request = format!("{} {}", key.0, key.1);
        for exchange in exchanges {
            let Some(other) = others.pop_front() else {
                verdict.changes.push(only(&request, "-", "before"));
                break;
            };
            if let Some(failure) = exchange.failure.as_ref().or(other.failure.as_ref()) {
                verdict.unanswered.push(format!("{request}: {failure}"));
                continue;
            }
            verdict.compared += 1;
            let (one, two) = (side(exchange, &sites.0), side(other, &sites.1));
            verdict.changes.extend(differences(&request, &one, &two, &verify.rules));
        }
        if !others.is_empty() {
            left.insert(key, others);
        }
    }
    for (method, target, _) in left.into_keys() {
        verdict.changes.push(only(&format!("{method} {target}"), "+", "after"));
    }
    Ok(verdict)
}

fn only(request: &str, sign: &str, site: &str) -> Difference {
    Difference {
        request: request.to_owned(),
        aspect: Aspect::Sequence,
        diff: format!("{sign} asked for on the site of --{site} only, or more often there"),
    }
}

fn play(verify: &Verify, site: &str, plan: &Plan, run: &Run) -> Result<Vec<Exchange>> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy = Proxy::start(listen, Some(site), verify.timeout, |_| {})?;
    let run = Run {
        detour: Some(proxy.address()),
        without_listeners: true,
        rows: None,
        workers: 1,
        ..run.clone()
    };
    plan.run(&run, &mut |_| {})?;
    Ok(proxy.exchanges())
}

fn authority(site: &str) -> Result<String> {
    let url = Url::parse(site)?;
    Ok(format!("{}:{}", url.host, url.port))
}

type Key = (String, String, Vec<u8>);

fn by_request(exchanges: Vec<Exchange>) -> BTreeMap<Key, VecDeque<Exchange>> {
    let mut by: BTreeMap<Key, VecDeque<Exchange>> = BTreeMap::new();
    for exchange in exchanges {
        let key = (exchange.method.clone(), exchange.target.clone(), exchange.body.clone());
        by.entry(key).or_default().push_back(exchange);
    }
    by
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
