//! `tympan activate` and `tympan deactivate`: what visitors are to see of a running author's content.

use std::process::ExitCode;

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::args::{Activate, Deactivate, Remote};
use crate::command::remote::{ask, ask_json, list, part, text};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

/// Runs `tympan activate`.
pub(crate) fn activate(wanted: &Activate) -> Outcome {
    let Activate { paths, deep, companions, dry_run, remote } = wanted;
    if *dry_run {
        return list_companions(paths, *deep, remote);
    }
    let body = json!({
        "action": "activate",
        "paths": paths,
        "deep": deep,
        "companions": companions,
    });
    replicate(&body, "activated", remote)
}

/// Runs `tympan deactivate`.
pub(crate) fn deactivate(wanted: &Deactivate) -> Outcome {
    let body = json!({ "action": "deactivate", "paths": wanted.paths });
    replicate(&body, "deactivated", &wanted.remote)
}

/// Sends a wish; exits with 1 if something that was to go along could not.
fn replicate(body: &Value, word: &str, remote: &Remote) -> Outcome {
    let answer = ask_json(remote, Method::POST, "/api/v1/replication", body)?;
    if remote.json {
        say!("{answer}");
    } else {
        for path in list(&answer, "paths").filter_map(Value::as_str) {
            say!("{word} {path}");
        }
        for path in list(&answer, "left").filter_map(Value::as_str) {
            say!("left {path}: you may not activate it");
        }
    }
    let is_whole = list(&answer, "left").next().is_none();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

/// Lists what would go along.
fn list_companions(paths: &[String], is_deep: bool, remote: &Remote) -> Outcome {
    let mut answers = Vec::new();
    for path in paths {
        let encoded = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let query = format!("/api/v1/replication/companions?path={encoded}&deep={is_deep}");
        let answer: Result<Value, Fault> = ask(remote, Method::GET, &query, "");
        answers.push((path, answer?));
    }
    for (path, answer) in &answers {
        if remote.json {
            say!("{}", json!({ "path": path, "companions": part(answer, "companions") }));
            continue;
        }
        say!("{path}");
        for companion in list(answer, "companions") {
            let is_ticked = *part(companion, "ticked") == Value::Bool(true);
            say!(
                "  {} {} {}, {}",
                if is_ticked { "along" } else { "stays" },
                text(companion, "kind"),
                text(companion, "path"),
                text(companion, "status")
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}
