//! `tympan activate` and `tympan deactivate`: publish and unpublish content of a running author.

use std::process::ExitCode;

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::args::{ActivateArgs, DeactivateArgs, RemoteInstanceArgs};
use crate::command::remote_instance::{json_list, json_member, json_text, send_form, send_json};
use crate::command::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome};
use crate::say;

/// Runs `tympan activate`.
pub(crate) fn run_activate(wanted: &ActivateArgs) -> CommandOutcome {
    let ActivateArgs { paths, deep, companions, dry_run, remote } = wanted;
    if *dry_run {
        return list_companions(paths, *deep, remote);
    }
    let body = json!({
        "action": "activate",
        "paths": paths,
        "deep": deep,
        "companions": companions,
    });
    send_replication_request(&body, "activated", remote)
}

/// Runs `tympan deactivate`.
pub(crate) fn run_deactivate(wanted: &DeactivateArgs) -> CommandOutcome {
    let body = json!({ "action": "deactivate", "paths": wanted.paths });
    send_replication_request(&body, "deactivated", &wanted.remote)
}

/// Sends a replication request; exits with 1 if a companion could not be replicated.
fn send_replication_request(
    body: &Value,
    word: &str,
    remote: &RemoteInstanceArgs,
) -> CommandOutcome {
    let answer = send_json(remote, Method::POST, "/api/v1/replication", body)?;
    if remote.json {
        say!("{answer}");
    } else {
        for path in json_list(&answer, "paths").filter_map(Value::as_str) {
            say!("{word} {path}");
        }
        for path in json_list(&answer, "left").filter_map(Value::as_str) {
            say!("left {path}: you may not activate it");
        }
    }
    let is_whole = json_list(&answer, "left").next().is_none();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

/// Lists the companions that would be replicated as well.
fn list_companions(paths: &[String], is_deep: bool, remote: &RemoteInstanceArgs) -> CommandOutcome {
    let mut answers = Vec::new();
    for path in paths {
        let encoded = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let query = format!("/api/v1/replication/companions?path={encoded}&deep={is_deep}");
        let answer: Result<Value, CommandFault> = send_form(remote, Method::GET, &query, "");
        answers.push((path, answer?));
    }
    for (path, answer) in &answers {
        if remote.json {
            say!("{}", json!({ "path": path, "companions": json_member(answer, "companions") }));
            continue;
        }
        say!("{path}");
        for companion in json_list(answer, "companions") {
            let is_ticked = *json_member(companion, "ticked") == Value::Bool(true);
            say!(
                "  {} {} {}, {}",
                if is_ticked { "along" } else { "stays" },
                json_text(companion, "kind"),
                json_text(companion, "path"),
                json_text(companion, "status")
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}
