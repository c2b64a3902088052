//! `tympan index`: what indexes there are, building them anew, how a query is run, and which were slow.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tympan_content::query::{BuilderQuery, Query, QueryEngine, Request, parse_sql2, parse_xpath};
use tympan_content::{Date, IndexState, IndexStatus};

use crate::args::{Index, Place, Remote};
use crate::command::instance::close;
use crate::command::remote::{ask, list, part, text};
use crate::command::{Fault, Outcome};
use crate::home::{Home, chain};
use crate::say;

/// Runs the command.
pub(crate) fn run(index: &Index) -> Outcome {
    match index {
        Index::Status { place } => status(place),
        Index::Rebuild { name, place } => rebuild(name.as_deref(), place),
        Index::Explain { query, language, analyze, place } => {
            explain(query, language, *analyze, place)
        }
        Index::Slow { place } => slow(place),
    }
}

/// Returns the instance that the arguments name, if they name one.
fn remote(place: &Place) -> Option<Remote> {
    let (url, token) = (place.url.clone()?, place.token.clone());
    Some(Remote { url, token, json: place.json })
}

fn open(place: &Place) -> Result<Home, Fault> {
    let home = place.home.as_deref().unwrap_or(Path::new("."));
    Home::open_existing(home)
}

fn failed(error: &tympan_content::Error) -> Fault {
    Fault::cannot_run(chain(error))
}

fn status(place: &Place) -> Outcome {
    let answer = match remote(place) {
        Some(remote) => ask(&remote, Method::GET, "/api/v1/indexes", "")?,
        None => {
            let home = open(place)?;
            let statuses = home.repository.index_statuses().map_err(|error| failed(&error))?;
            close(&home)?;
            json!({ "indexes": statuses.iter().map(as_json).collect::<Vec<_>>() })
        }
    };
    if place.json {
        say!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    for index in list(&answer, "indexes") {
        let detail = part(index, "detail");
        let detail = match text(index, "state") {
            "ready" => format!("{} entries", part(detail, "entries")),
            "building" => {
                format!("{} of {} documents", part(detail, "done"), part(detail, "total"))
            }
            "failed" => text(detail, "reason").to_owned(),
            _ => String::new(),
        };
        let (name, property, state) =
            (text(index, "name"), text(index, "property"), text(index, "state"));
        say!("{name} [{property}] {state} {detail}");
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(status: &IndexStatus) -> Value {
    let (state, detail) = match &status.state {
        IndexState::Ready { entries } => ("ready", json!({ "entries": entries })),
        IndexState::Waiting => ("waiting", json!({})),
        IndexState::Building { done, total } => {
            ("building", json!({ "done": done, "total": total }))
        }
        IndexState::Failed { reason } => ("failed", json!({ "reason": reason })),
    };
    json!({ "name": status.name, "property": status.property, "state": state, "detail": detail })
}

fn rebuild(name: Option<&str>, place: &Place) -> Outcome {
    if let Some(remote) = remote(place) {
        let path = match name {
            Some(name) => format!("/api/v1/indexes/rebuild?name={}", encoded(name)),
            None => "/api/v1/indexes/rebuild".to_owned(),
        };
        let answer = ask(&remote, Method::POST, &path, "")?;
        if *part(&answer, "dropped") == json!(0) {
            return Err(none_of_that_name(name));
        }
        say!("{} maps are being built anew", part(&answer, "dropped"));
        return Ok(ExitCode::SUCCESS);
    }
    let home = open(place)?;
    let dropped = home.repository.drop_indexes(name).map_err(|error| failed(&error))?;
    let built = home.repository.build_indexes().map_err(|error| failed(&error))?;
    close(&home)?;
    if dropped == 0 {
        return Err(none_of_that_name(name));
    }
    say!("{built} maps built");
    Ok(ExitCode::SUCCESS)
}

fn none_of_that_name(name: Option<&str>) -> Fault {
    Fault::usage(format!(
        "there is no index `{}`; `tympan index status` lists them",
        name.unwrap_or_default()
    ))
}

fn explain(query: &str, language: &str, analyze: bool, place: &Place) -> Outcome {
    let answer = match remote(place) {
        Some(remote) => {
            let mode = if analyze { "analyze" } else { "plan" };
            let statement = encoded(query);
            let path =
                format!("/api/v1/query?language={language}&explain={mode}&statement={statement}");
            ask(&remote, Method::GET, &path, "")?
        }
        None => {
            let query = parse(query, language)?;
            let home = open(place)?;
            let snapshot = home.repository.snapshot().map_err(|error| failed(&error))?;
            let engine = QueryEngine::default();
            let explanation = engine
                .explain(&snapshot, &Request::new(query), analyze)
                .map_err(|error| failed(&error))?;
            let mut answer = serde_json::to_value(&explanation).unwrap_or_default();
            if let Some(answer) = answer.as_object_mut() {
                answer.insert("text".to_owned(), explanation.to_string().into());
            }
            drop(snapshot);
            close(&home)?;
            answer
        }
    };
    if place.json {
        say!("{answer}");
    } else {
        say!("{}", text(&answer, "text").trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a query; a map of predicates is written as parameters of a URL.
fn parse(query: &str, language: &str) -> Result<Query, Fault> {
    let parsed = match language {
        "xpath" => parse_xpath(query),
        "querybuilder" => {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let map = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let now = Date::from_system_time(SystemTime::now());
            BuilderQuery::parse(&map, now).map(|built| built.query)
        }
        _ => parse_sql2(query),
    };
    parsed.map_err(|error| Fault::usage(format!("the query is not valid at {error}")))
}

fn slow(place: &Place) -> Outcome {
    let Some(remote) = remote(place) else {
        return Err(Fault::usage(
            "slow statements are kept in memory by the running instance; ask it with --url",
        ));
    };
    let answer = ask(&remote, Method::GET, "/api/v1/query/slow", "")?;
    if place.json {
        say!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    for one in list(&answer, "statements") {
        say!(
            "{} times, {:.1} ms in all, {:.1} ms at most, by {}, asked by {}: {}",
            part(one, "count"),
            part(one, "total_ms").as_f64().unwrap_or(0.0),
            part(one, "max_ms").as_f64().unwrap_or(0.0),
            text(one, "plan"),
            text(one, "component"),
            text(one, "statement")
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
