//! `tympan activate` and `tympan deactivate`: publish and unpublish content of a running author.

use std::process::ExitCode;

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use crate::args::{ActivateArgs, DeactivateArgs, RemoteInstanceArgs};
use crate::command::remote_instance::{json_list, json_member, json_text, send_form, send_json};

/// Runs `tympan activate`.
pub(crate) fn run_activate(arguments: &ActivateArgs) -> CommandOutcome {
    let ActivateArgs { paths, deep, companions, dry_run, remote } = arguments;
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
pub(crate) fn run_deactivate(arguments: &DeactivateArgs) -> CommandOutcome {
    let body = json!({ "action": "deactivate", "paths": arguments.paths });
    send_replication_request(&body, "deactivated", &arguments.remote)
}

/// Sends a replication request; exits with 1 if a companion could not be replicated.
fn send_replication_request(
    body: &Value,
    verb: &str,
    remote: &RemoteInstanceArgs,
) -> CommandOutcome {
    let response = send_json(remote, Method::POST, "/api/v1/replication", body)?;
    if remote.json {
        say!("{response}");
    } else {
        for path in json_list(&response, "paths").filter_map(Value::as_str) {
            say!("{verb} {path}");
        }
        for path in json_list(&response, "left").filter_map(Value::as_str) {
            say!("skipped {path}: you may not activate it");
        }
    }
    let is_whole = json_list(&response, "left").next().is_none();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

/// Lists the companions that would be replicated as well.
fn list_companions(paths: &[String], is_deep: bool, remote: &RemoteInstanceArgs) -> CommandOutcome {
    let mut responses = Vec::new();
    for path in paths {
        let encoded = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let query = format!("/api/v1/replication/companions?path={encoded}&deep={is_deep}");
        let response: Result<Value, CommandFault> = send_form(remote, Method::GET, &query, "");
        responses.push((path, response?));
    }
    for (path, response) in &responses {
        if remote.json {
            say!("{}", json!({ "path": path, "companions": json_member(response, "companions") }));
            continue;
        }
        say!("{path}");
        for companion in json_list(response, "companions") {
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
