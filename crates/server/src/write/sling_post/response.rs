//! The response to a POST: JSON, Sling's status page, or a redirect.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::json;
use tympan_notation::escape_html;

use crate::failure::RequestFailure;
use crate::write::sling_post::PostOutcome;
use crate::write::sling_post::form_field::PostFields;

/// The response format requested by the client.
#[derive(Debug, Default)]
pub(crate) struct PostResponseOptions {
    is_json: bool,
    referer: Option<String>,
    redirect: Option<String>,
    /// Extension appended to the redirect target.
    extension: Option<String>,
    error_page: Option<String>,
    always_ok: bool,
    /// True if a failure is sent as an error response of the server instead of a description of the request.
    sends_error: bool,
}

/// Returns true if an `Accept` header lists JSON before HTML.
fn prefers_json(accept: &str) -> bool {
    let position_of = |name: &str| accept.find(name);
    match (position_of("application/json"), position_of("text/html")) {
        (Some(json), Some(html)) => json < html,
        (json, _) => json.is_some(),
    }
}

impl PostResponseOptions {
    /// Reads the options from the request headers.
    pub(crate) fn from_headers(accept: &str, referer: Option<String>) -> Self {
        Self { is_json: prefers_json(accept), referer, ..Self::default() }
    }

    /// Reads the commands that control the response.
    pub(crate) fn read_commands(&mut self, fields: &PostFields) {
        if let Some(accept) = fields.command_value(":http-equiv-accept") {
            self.is_json = prefers_json(accept);
        }
        self.redirect = fields.command_value(":redirect").map(str::to_owned);
        let command = |name: &str| fields.command_value(name).map(str::to_owned);
        self.extension = command(":displayExtension").filter(|extension| !extension.is_empty());
        self.error_page = command(":errorpage").filter(|page| !page.is_empty());
        self.sends_error = fields.command_value(":sendError") == Some("true");
        self.always_ok = fields.command_value(":status") == Some("browser");
    }
}

/// Returns the response to a successful request.
pub(crate) fn success_response(options: &PostResponseOptions, done: &PostOutcome) -> Response {
    if let Some(target) =
        options.redirect.as_deref().and_then(|target| resolve_redirect(target, done))
    {
        return redirect_response(&with_display_extension(target, options.extension.as_deref()));
    }
    let usual = if done.is_created { StatusCode::CREATED } else { StatusCode::OK };
    let status = done.status.unwrap_or(usual);
    let reason = status.canonical_reason().unwrap_or("OK");
    let message = done.message.as_deref().unwrap_or(reason);
    let mut response = outcome_response(options, done, status, message);
    if done.is_created
        && let Ok(location) = header::HeaderValue::from_str(&done.path)
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn redirect_response(target: &str) -> Response {
    (StatusCode::FOUND, [(header::LOCATION, target.to_owned())]).into_response()
}

/// Appends `:displayExtension` to the redirect target.
fn with_display_extension(target: String, extension: Option<&str>) -> String {
    match extension {
        Some(extension) if extension.chars().all(|letter| letter.is_ascii_graphic()) => {
            let dot = if extension.starts_with('.') { "" } else { "." };
            format!("{target}{dot}{extension}")
        }
        _ => target,
    }
}

/// Resolves `:redirect`. `*` stands for the name of the new node, which is also appended after a trailing slash. Only
/// targets on this server are allowed.
fn resolve_redirect(target: &str, done: &PostOutcome) -> Option<String> {
    let name = done.path.rsplit('/').next().unwrap_or_default();
    let mut target = target.replace('*', name);
    if target.ends_with('/') {
        target.push_str(name);
    }
    // Browsers drop control characters, which could change the target of a path.
    if !target.chars().all(|character| character.is_ascii_graphic()) {
        return None;
    }
    if !target.starts_with('/') {
        if target.contains(':') {
            return None;
        }
        let folder = done.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        target = format!("{folder}/{target}");
    }
    // Browsers read `//` and `/\` as the beginning of a host.
    let is_own = target.starts_with('/') && !target.starts_with("//") && !target.contains('\\');
    is_own.then_some(target)
}

/// Returns the response to a failed request.
pub(crate) fn failure_response(
    options: &PostResponseOptions,
    path: &str,
    failure: RequestFailure,
) -> Response {
    let here = PostOutcome { path: path.to_owned(), ..PostOutcome::default() };
    if let Some(page) = options.error_page.as_deref().and_then(|page| resolve_redirect(page, &here))
    {
        return redirect_response(&page);
    }
    if options.sends_error {
        return failure.into_response();
    }
    if options.is_json
        || matches!(
            failure.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS
        )
    {
        return failure.into_response();
    }
    outcome_response(options, &here, failure.status, &failure.message)
}

fn outcome_response(
    options: &PostResponseOptions,
    done: &PostOutcome,
    status: StatusCode,
    message: &str,
) -> Response {
    let http_status = if options.always_ok { StatusCode::OK } else { status };
    let parent = done.path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let title =
        format!("Content {} {}", if done.is_created { "created" } else { "modified" }, done.path);
    if options.is_json {
        let change = |(keyword, arguments): &(&str, Vec<String>)| match arguments.as_slice() {
            [argument] => json!({ "type": keyword, "argument": argument }),
            several => json!({ "type": keyword, "argument": several }),
        };
        let body = json!({
            "changes": done.changes.iter().map(change).collect::<Vec<_>>(),
            "isCreate": done.is_created,
            "location": done.path,
            "parentLocation": parent,
            "path": done.path,
            "referer": options.referer.as_deref().unwrap_or_default(),
            "status.code": status.as_u16(),
            "status.message": message,
            "title": title,
        });
        return (http_status, axum::Json(body)).into_response();
    }
    let mut rows = String::new();
    for (keyword, arguments) in &done.changes {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| escape_html(&format!("\"{argument}\""))).collect();
        rows.push_str(&format!("{keyword}({});<br/>", arguments.join(", ")));
    }
    let row = |name: &str, id: &str, value: &str| {
        format!("<tr><td>{name}</td><td><div id=\"{id}\">{value}</div></td></tr>\n")
    };
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n<body>\n\
         <h1>{title}</h1>\n<table>\n{}{}{}{}{}{}</table>\n</body>\n</html>\n",
        row("Status", "Status", &status.as_u16().to_string()),
        row("Message", "Message", &escape_html(message)),
        row("Location", "Location", &escape_html(&done.path)),
        row("Parent Location", "ParentLocation", &escape_html(parent)),
        row("Path", "Path", &escape_html(&done.path)),
        row("ChangeLog", "ChangeLog", &rows),
        title = escape_html(&title),
    );
    (http_status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_this_server() {
        let done = PostOutcome { path: "/content/a/new".to_owned(), ..PostOutcome::default() };
        let target = |text: &str| resolve_redirect(text, &done);
        assert_eq!(target("/content/*.html").as_deref(), Some("/content/new.html"));
        assert_eq!(target("*.html").as_deref(), Some("/content/a/new.html"));
        assert_eq!(target("/content/list/").as_deref(), Some("/content/list/new"));
        assert_eq!(with_display_extension("/a/new".to_owned(), Some("html")), "/a/new.html");
        assert_eq!(with_display_extension("/a/new".to_owned(), Some(".html")), "/a/new.html");
        assert_eq!(with_display_extension("/a/new".to_owned(), Some("h\r\nX: y")), "/a/new");
        for bad in [
            "https://example.org/",
            "//example.org/",
            "javascript:alert(1)",
            "/\\example.org",
            "/\t/example.org",
            "/a\r\nX: y",
        ] {
            assert_eq!(target(bad), None, "{bad}");
        }
        // The path of a request may begin as a host, too.
        let done = PostOutcome { path: "//example.org/new".to_owned(), ..PostOutcome::default() };
        assert_eq!(resolve_redirect("thanks.html", &done), None);
    }

    #[test]
    fn json_is_preferred_where_it_comes_first() {
        assert!(prefers_json("application/json"));
        assert!(prefers_json("application/json, text/html"));
        assert!(!prefers_json("text/html,application/json"));
        assert!(!prefers_json("*/*"));
    }
}
