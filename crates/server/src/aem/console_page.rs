//! The pages of the console: plain HTML without scripts.

use axum::response::{IntoResponse, Response};
use http::header;
use tympan_notation::escape_html;

/// Forbids loading resources and running scripts; forms are sent to this server only.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;margin:2rem;max-width:80rem}\
    table{border-collapse:collapse;margin:.5rem 0 1.5rem}\
    th,td{border:1px solid #ccc;padding:.25rem .6rem;text-align:left;vertical-align:top}\
    form{display:inline}input[type=text]{width:32rem;max-width:100%}";

/// Returns a page with a title and a body, which is HTML.
pub(super) fn html_page(title: &str, body: &str) -> Response {
    let title = escape_html(title);
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n\
         <p><a href=\"/system/console/slingevent\">Jobs</a> · \
         <a href=\"/system/console/configMgr\">Configuration</a> · <a href=\"/workflows.html\">Workflows</a></p>\n\
         {body}</body>\n</html>\n"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    ];
    (headers, html).into_response()
}

/// Returns a table with a head and rows of HTML.
pub(super) fn html_table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: String = head.iter().map(|cell| format!("<th>{}</th>", escape_html(cell))).collect();
    let rows: String = rows
        .iter()
        .map(|row| {
            let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
            format!("<tr>{cells}</tr>\n")
        })
        .collect();
    format!("<table>\n<tr>{head}</tr>\n{rows}</table>\n")
}

/// Returns a form with hidden fields, the CSRF token among them, and further controls, which are HTML.
pub(super) fn html_form(
    action: &str,
    csrf_token: Option<&str>,
    hidden: &[(&str, &str)],
    controls: &str,
) -> String {
    let token = csrf_token.map(|token| (":cq_csrf_token", token));
    let hidden: String = hidden
        .iter()
        .copied()
        .chain(token)
        .map(|(name, value)| {
            format!(
                "<input type=\"hidden\" name=\"{}\" value=\"{}\">",
                escape_html(name),
                escape_html(value)
            )
        })
        .collect();
    format!("<form method=\"post\" action=\"{}\">{hidden}{controls}</form>", escape_html(action))
}
