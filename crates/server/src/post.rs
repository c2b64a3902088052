//! Sling's POST protocol: forms that create, change, move, copy, delete, upload and activate.
//!
//! The order of work is Sling's: node, `@Delete`, `@MoveFrom`, `@CopyFrom`, properties, files, order. One request is
//! one commit. `docs/compat/sling.md` lists differences.

mod content;
mod fields;
mod respond;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use tympan_content::{Depth, NodePath};
use tympan_replicate::{Action, Wish, enqueue, mark};
use tympan_web::limit::BodyLimit;

use crate::failure::{Failure, Result};
use crate::form;
use crate::login::{CSRF_HEADER, Identity, check_csrf};
use crate::metrics::count;
use crate::post::fields::Fields;
use crate::post::respond::Wanted;
use crate::{Instance, Role, api};

/// What a request did, for its answer.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The node that the request was about.
    pub(crate) path: String,
    /// Whether it was created.
    pub(crate) is_create: bool,
    /// What changed: Sling's word and its arguments.
    pub(crate) changes: Vec<(&'static str, Vec<String>)>,
}

/// Answers a POST to a resource.
pub(crate) async fn post(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    let referer = request
        .headers()
        .get(http::header::REFERER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let accept = request
        .headers()
        .get(http::header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let mut wanted = Wanted::new(accept, referer);
    let path = request.uri().path().to_owned();
    match handle(&instance, request, &path, &mut wanted).await {
        Ok((done, identity)) => {
            let mut response = respond::success(&wanted, &done);
            response.extensions_mut().insert(identity);
            response
        }
        Err(failure) => respond::failure(&wanted, &path, failure),
    }
}

async fn handle(
    instance: &Arc<Instance>,
    request: Request,
    path: &str,
    wanted: &mut Wanted,
) -> Result<(Done, Identity)> {
    if instance.role == Role::Publish {
        return Err(Failure::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "publish instances take content from replication only",
        ));
    }
    let (parts, body) = request.into_parts();
    let identity = api::require_user(instance, &parts).await?;
    let limit = parts.extensions.get::<BodyLimit>().copied();
    let header =
        parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    // A wrong token in the header is refused before the body is read; a plain form carries it as a field.
    if header.is_some() {
        check_csrf(&identity, header.as_deref())?;
    }
    let fields = Fields::new(form::read(&parts.headers, body, limit, &instance.spool).await?);
    if header.is_none() {
        check_csrf(&identity, fields.command(":cq_csrf_token"))?;
    }
    wanted.read_from(&fields);
    let path = percent_encoding::percent_decode_str(path)
        .decode_utf8()
        .map_err(|_| Failure::bad_request("the path is not UTF-8"))?
        .into_owned();
    let operation = fields.command(":operation").unwrap_or_default().to_owned();
    let done = match Action::find(&operation) {
        Some(action) => activate(instance, action, &path, &fields, &identity.user).await?,
        None => {
            let user = identity.user.clone();
            let done = instance
                .work(move |instance| {
                    content::carry_out(instance, &operation, &path, &fields, &user)
                })
                .await?;
            count(&instance.metrics.commits);
            done
        }
    };
    Ok((done, identity))
}

/// Notes the wish in content, stores the jobs, and wakes the agents.
async fn activate(
    instance: &Arc<Instance>,
    action: Action,
    path: &str,
    fields: &Fields,
    user: &str,
) -> Result<Done> {
    let depth =
        if fields.command(":deep") == Some("true") { Depth::Subtree } else { Depth::Document };
    let mut done = Done { path: path.to_owned(), ..Done::default() };
    for path in content::targets(instance, path, fields)? {
        let path = NodePath::new(&path)?;
        let wish = Wish { action, path: path.clone(), depth, user: user.to_owned() };
        let now = SystemTime::now();
        let root = {
            let wish = wish.clone();
            instance.work(move |instance| Ok(mark(&instance.repository, &wish, now)?)).await?
        };
        enqueue(&instance.repository, &instance.queues, &wish, root, now).await?;
        count(&instance.metrics.activations);
        done.changes.push((
            if action == Action::Activate { "activated" } else { "deactivated" },
            vec![path.to_string()],
        ));
    }
    instance.replicator.ring();
    Ok(done)
}
