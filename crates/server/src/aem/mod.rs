//! AEM's own addresses, as scripts and integrations use them: `/bin/replicate.json`, `/bin/wcmcommand`,
//! `/libs/granite/…`, `/api/assets`, GraphQL, the console below `/system/console`, and workflow instances.
//!
//! In: the forms and methods that AEM documents. Out: AEM's statuses and response formats.
//!
//! Invariants
//! * A request is converted to calls of the JSON API (`api::call_endpoint`) or of Sling's protocol, so that rights, limits
//!   and checks are the same as there.
//! * Each request needs a login, except one for the CSRF token and redirects; a write also needs the CSRF token if a
//!   cookie proves the login.
//! * What is not there is answered with 404 or 501 and one sentence.
//!
//! `docs/compat/aem-addresses.md` lists the addresses and the differences.

mod aem_request;
mod asset_command;
mod asset_siren;
mod console_page;
mod console_setting;
mod current_user;
mod graphql_endpoint;
mod job_console;
mod page_command;
mod refusal;
mod replicate_command;
mod workflow_command;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Redirect};
use axum::routing::{any, get};
use http::StatusCode;

use self::aem_request::{AemRequest, PendingAemResponse, aem_route};
use self::current_user::{serve_csrf_token, serve_current_user};
use crate::Instance;
use crate::failure::RequestFailure;

/// Returns the routes of AEM's addresses at an author.
pub(crate) fn author_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/bin/replicate", aem_route(replicate_command::replicate))
        .route("/bin/replicate.json", aem_route(replicate_command::replicate))
        .route(
            "/etc/replication/treeactivation.html",
            any(replicate_command::serve_tree_activation),
        )
        .route(
            "/libs/replication/treeactivation.html",
            any(replicate_command::serve_tree_activation),
        )
        .route("/bin/wcmcommand", aem_route(page_command::run_page_command))
        .route("/api.json", aem_route(asset_siren::describe_service))
        .route("/api/assets", any(asset_command::serve_assets))
        .route("/api/assets.json", any(asset_command::serve_assets))
        .route("/api/assets/{*path}", any(asset_command::serve_assets))
        .route("/system/console", get(|| async { Redirect::to("/system/console/slingevent") }))
        .route("/system/console/slingevent", aem_route(job_console::serve_jobs))
        .route("/system/console/slingevent.json", aem_route(job_console::serve_jobs))
        .route("/system/console/configMgr", aem_route(console_setting::serve_settings))
        .route("/system/console/configMgr/{*pid}", aem_route(console_setting::serve_settings))
        .route("/system/console/{*page}", aem_route(refuse_console_page))
        .route("/etc/workflow/{list}", any(workflow_command::serve_list))
        .route("/etc/workflow/instances/{*id}", any(workflow_command::serve_instance))
        .route("/bin/workflow/inbox", aem_route(workflow_command::serve_inbox))
        .route("/bin/workflow/inbox.json", aem_route(workflow_command::serve_inbox))
        .route("/graphql/persist.json/{*address}", any(graphql_endpoint::serve_persist))
        .route("/graphql/list.json", any(graphql_endpoint::serve_list))
        .route("/graphql/list.json/{site}", any(graphql_endpoint::serve_list))
        .route("/libs/cq/workflow/content/console.html", get(redirect_to_workflows))
        .route("/libs/cq/workflow/content/inbox.html", get(redirect_to_workflows))
        .route("/libs/cq/workflow/admin/console/content/{page}", get(redirect_to_workflows))
        .merge(user_routes())
}

/// Returns the routes that authors and publishers have: GraphQL, who the user is, and the CSRF token.
pub(crate) fn user_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/content/_cq_graphql/{site}/endpoint.json", any(graphql_endpoint::serve_endpoint))
        .route("/content/cq:graphql/{site}/endpoint.json", any(graphql_endpoint::serve_endpoint))
        .route("/libs/granite/csrf/token.json", get(serve_csrf_token))
        .route("/libs/granite/security/currentuser.json", get(serve_current_user))
}

async fn redirect_to_workflows(_: Request) -> axum::response::Response {
    Redirect::to("/workflows.html").into_response()
}

fn refuse_console_page(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        let message = format!(
            "there is no page `{}`; this console has `slingevent` and `configMgr`",
            request.path()
        );
        Err(RequestFailure::new(StatusCode::NOT_FOUND, message))
    })
}
