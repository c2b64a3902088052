//! `tympan index`: lists and rebuilds indexes, explains queries, and lists slow ones.

use std::process::ExitCode;
use std::time::SystemTime;

use http::Method;
use serde_json::{Value, json};
use tympan_content::{IndexState, IndexStatus, JcrDate};
use tympan_content_query::{
    BuilderQuery, ContentQuery, QueryEngine, QueryRequest, parse_sql2, parse_xpath,
};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::args::{HomeOrInstanceArgs, IndexCommand};
use crate::command::remote_instance::{
    json_list, json_member, json_text, open_stopped_home, percent_encode, print_response, send_form,
};
use crate::home::close_home;

/// Runs the command.
pub(crate) fn run_index_command(index: &IndexCommand) -> CommandOutcome {
    match index {
        IndexCommand::Status { place } => print_index_status(place),
        IndexCommand::Rebuild { name, place } => rebuild_indexes(name.as_deref(), place),
        IndexCommand::Explain { query, language, analyze, place } => {
            explain_query(query, language, *analyze, place)
        }
        IndexCommand::Slow { place } => print_slow_queries(place),
    }
}

fn index_fault(error: &dyn std::error::Error) -> CommandFault {
    CommandFault::cannot_run(error_chain_text(error))
}

fn print_index_status(location: &HomeOrInstanceArgs) -> CommandOutcome {
    let response = match location.remote() {
        Some(remote) => send_form(&remote, Method::GET, "/api/v1/indexes", "")?,
        None => {
            let home = open_stopped_home(&location.location)?;
            let statuses = home.repository.index_statuses().map_err(|error| index_fault(&error))?;
            close_home(&home)?;
            json!({ "indexes": statuses.iter().map(index_status_json).collect::<Vec<_>>() })
        }
    };
    print_response(location.json, &response, || {
        for index in json_list(&response, "indexes") {
            let detail = json_member(index, "detail");
            let detail = match json_text(index, "state") {
                "ready" => format!("{} entries", json_member(detail, "entries")),
                "building" => {
                    format!(
                        "{} of {} documents",
                        json_member(detail, "done"),
                        json_member(detail, "total")
                    )
                }
                "failed" => json_text(detail, "reason").to_owned(),
                _ => String::new(),
            };
            let (name, property, state) =
                (json_text(index, "name"), json_text(index, "property"), json_text(index, "state"));
            say!("{name} [{property}] {state} {detail}");
        }
    })
}

fn index_status_json(status: &IndexStatus) -> Value {
    let (state, detail) = match &status.state {
        IndexState::Ready { entries } => ("ready", json!({ "entries": entries })),
        IndexState::Waiting => ("waiting", json!({})),
        IndexState::Building { documents_done: done, documents_total: total } => {
            ("building", json!({ "done": done, "total": total }))
        }
        IndexState::Failed { reason } => ("failed", json!({ "reason": reason })),
    };
    json!({ "name": status.name, "property": status.property, "state": state, "detail": detail })
}

fn rebuild_indexes(name: Option<&str>, location: &HomeOrInstanceArgs) -> CommandOutcome {
    if let Some(remote) = location.remote() {
        let path = match name {
            Some(name) => format!("/api/v1/indexes/rebuild?name={}", percent_encode(name)),
            None => "/api/v1/indexes/rebuild".to_owned(),
        };
        let response = send_form(&remote, Method::POST, &path, "")?;
        if *json_member(&response, "dropped") == json!(0) {
            return Err(unknown_index_fault(name));
        }
        say!("{} maps are being rebuilt", json_member(&response, "dropped"));
        return Ok(ExitCode::SUCCESS);
    }
    let home = open_stopped_home(&location.location)?;
    let dropped = home.repository.drop_indexes(name).map_err(|error| index_fault(&error))?;
    let built = home.repository.build_indexes().map_err(|error| index_fault(&error))?;
    close_home(&home)?;
    if dropped == 0 {
        return Err(unknown_index_fault(name));
    }
    say!("{built} maps built");
    Ok(ExitCode::SUCCESS)
}

fn unknown_index_fault(name: Option<&str>) -> CommandFault {
    CommandFault::usage(format!(
        "there is no index `{}`; `tympan index status` lists them",
        name.unwrap_or_default()
    ))
}

fn explain_query(
    query: &str,
    language: &str,
    analyze: bool,
    location: &HomeOrInstanceArgs,
) -> CommandOutcome {
    let response = match location.remote() {
        Some(remote) => {
            let mode = if analyze { "analyze" } else { "plan" };
            let statement = percent_encode(query);
            let path =
                format!("/api/v1/query?language={language}&explain={mode}&statement={statement}");
            send_form(&remote, Method::GET, &path, "")?
        }
        None => {
            let query = parse_query(query, language)?;
            let home = open_stopped_home(&location.location)?;
            let snapshot = home.repository.snapshot().map_err(|error| index_fault(&error))?;
            let engine = QueryEngine::default();
            let explanation = engine
                .explain(&snapshot, &QueryRequest::new(query), analyze)
                .map_err(|error| index_fault(&error))?;
            let mut response = serde_json::to_value(&explanation).unwrap_or_default();
            if let Some(members) = response.as_object_mut() {
                members.insert("text".to_owned(), explanation.to_string().into());
            }
            drop(snapshot);
            close_home(&home)?;
            response
        }
    };
    print_response(location.json, &response, || {
        say!("{}", json_text(&response, "text").trim_end());
    })
}

/// Parses a query; a map of predicates is written as URL parameters.
fn parse_query(query: &str, language: &str) -> Result<ContentQuery, CommandFault> {
    let parsed = match language {
        "xpath" => parse_xpath(query),
        "querybuilder" => {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let map = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let now = JcrDate::from_system_time(SystemTime::now());
            BuilderQuery::parse(&map, now).map(|built| built.query)
        }
        _ => parse_sql2(query),
    };
    parsed.map_err(|error| CommandFault::usage(format!("the query is not valid at {error}")))
}

fn print_slow_queries(location: &HomeOrInstanceArgs) -> CommandOutcome {
    let Some(remote) = location.remote() else {
        return Err(CommandFault::usage(
            "slow statements are kept in memory by the running instance; query it with --url",
        ));
    };
    let response = send_form(&remote, Method::GET, "/api/v1/query/slow", "")?;
    print_response(location.json, &response, || {
        for statement in json_list(&response, "statements") {
            say!(
                "{} times, {:.1} ms in total, {:.1} ms at most, plan {}, component {}: {}",
                json_member(statement, "count"),
                json_member(statement, "total_ms").as_f64().unwrap_or(0.0),
                json_member(statement, "max_ms").as_f64().unwrap_or(0.0),
                json_text(statement, "plan"),
                json_text(statement, "component"),
                json_text(statement, "statement")
            );
        }
    })
}
