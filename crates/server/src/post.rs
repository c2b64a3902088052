//! Sling's POST protocol: forms that create, change, move, copy, delete, upload and activate.
//!
//! The order of work is Sling's: node, `@Delete`, `@MoveFrom`, `@CopyFrom`, properties, files, order. One request is
//! one commit. `docs/compat/sling.md` lists differences.

mod content;
mod duplicate;
mod fields;
mod import;
mod respond;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use tympan_content::{Depth, NodePath, Viewer};
use tympan_replicate::{Action, Wish, require_replicate};
use tympan_web::limit::BodyLimit;

use crate::api::Condition;
use crate::failure::{Failure, Result};
use crate::form;
use crate::login::{CSRF_HEADER, Identity, check_csrf, check_origin};
use crate::metrics::count;
pub(crate) use crate::post::content::refuse_service_address;
pub(crate) use crate::post::duplicate::CREATE_ASSET_PID;
pub(crate) use crate::post::fields::Fields;
use crate::post::respond::Wanted;
use crate::wishes::{AccompaniedWishes, with_companions, with_wishes};
use crate::{Instance, Role, api, own_agent};

/// What a request did, for its answer.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The node that the request was about.
    pub(crate) path: String,
    /// Whether it was created.
    pub(crate) is_create: bool,
    /// The status to answer with, where the request names it.
    pub(crate) status: Option<StatusCode>,
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
    let (parts, body) = request.into_parts();
    let identity = api::require_user(instance, &parts).await?;
    check_origin(&identity, &parts.headers)?;
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
    let condition = Condition::of(&parts.headers);
    if condition != Condition::None && Action::find(&operation).is_some() {
        return Err(Failure::bad_request("activating takes no condition: send no `If-Match`"));
    }
    let (asked, viewer) = (path.clone(), instance.viewer_of(Some(&identity))?);
    let asking = viewer.clone();
    if instance.role == Role::Publish {
        own_agent::check(instance, &viewer, (&path, &operation), &fields)?;
    }
    let (fields, AccompaniedWishes { wishes, companions, left }) = instance
        .work(move |instance| {
            let wishes = wishes_of(instance, &asked, &fields, &asking)?;
            Ok((fields, wishes))
        })
        .await?;
    let done = match Action::find(&operation) {
        Some(action) => {
            let mut done = activated(action, &wishes, &left);
            done.path =
                wishes.get(companions).map(|wish| wish.path.to_string()).unwrap_or_default();
            let work = move |instance: &Instance, wishes: &[Wish], now| {
                Ok((done, instance.mark(wishes, now)?))
            };
            let done = with_wishes(instance, wishes, work).await?;
            count(&instance.metrics.activations);
            done
        }
        None => {
            let work = move |instance: &Instance| {
                let by = (&viewer, &condition);
                content::carry_out(instance, &operation, &path, &fields, by)
            };
            let done = instance.work(work).await?;
            count(&instance.metrics.commits);
            done
        }
    };
    Ok((done, identity))
}

/// Returns what a request activates or deactivates.
///
/// # Errors
/// If the viewer lacks `crx:replicate` for one of them, or for what goes along with it.
fn wishes_of(
    instance: &Instance,
    path: &str,
    fields: &Fields,
    viewer: &Viewer,
) -> Result<AccompaniedWishes> {
    let seen = instance.repository.snapshot()?.seen_by(viewer);
    let operation = fields.command(":operation").unwrap_or_default();
    let is_deep = fields.command(":deep") == Some("true");
    let depth = if is_deep { Depth::Subtree } else { Depth::Document };
    let wish = |action, path, depth| {
        let wish = Wish { action, path, depth, user: viewer.name().to_owned() };
        require_replicate(&seen, &wish)?;
        Ok::<_, Failure>(wish)
    };
    let mut wishes = Vec::new();
    if let Some(action) = Action::find(operation) {
        for path in content::targets_of(&seen, path, fields, action == Action::Deactivate)? {
            wishes.push(wish(action, NodePath::new(&path)?, depth)?);
        }
    }
    match fields.command(":companions") == Some("true") {
        true => with_companions(&seen, wishes),
        false => Ok(AccompaniedWishes::alone(wishes)),
    }
}

/// Describes activations for the answer.
fn activated(action: Action, wishes: &[Wish], left: &[NodePath]) -> Done {
    let word = if action == Action::Activate { "activated" } else { "deactivated" };
    let done = wishes.iter().map(|wish| (word, vec![wish.path.to_string()]));
    let left = left.iter().map(|path| ("left", vec![path.to_string()]));
    Done { changes: done.chain(left).collect(), ..Done::default() }
}
