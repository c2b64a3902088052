//! Requests for content: pages, files and Sling's protocol, at every address that is no service.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};

use crate::failure::RequestFailure;
use crate::page::{self, visitor_form};
use crate::replication::publish_agent;
use crate::write::resource_put as sling_put;
use crate::write::sling_post;
use crate::{Instance, InstanceRole};

/// Handles all requests for content.
pub(crate) async fn serve_resource(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD => {
            match tympan_render::ImageAddress::parse(request.uri().path()) {
                Some(address) => crate::page::image::get_image(instance, request, address).await,
                None if crate::export::is_export_request(&instance, request.uri()) => {
                    crate::export::handle_missing_file(State(instance), request)
                        .await
                        .into_response()
                }
                None => page::get_page(State(instance), request).await,
            }
        }
        Method::POST
            if instance.role == InstanceRole::Publish
                && !publish_agent::is_agent_address(request.uri().path()) =>
        {
            visitor_form::serve_visitor_form(&instance, request).await
        }
        Method::POST => sling_post::serve_post(State(instance), request).await.into_response(),
        Method::PUT => sling_put::serve_put(State(instance), request).await,
        _ => RequestFailure::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this server supports only GET, HEAD, POST and PUT",
        )
        .into_response(),
    }
}
