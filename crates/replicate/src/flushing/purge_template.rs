//! Purges in the words of a content delivery network: the request is a template that the agent has.
//!
//! In: the keys or URLs that a change affects, and a [`PurgeTemplate`](crate::PurgeTemplate). Out: requests, each for at most one batch.
//!
//! | placeholder | stands for |
//! |---|---|
//! | `{keys}`, `{keys_csv}`, `{keys_json}` | the keys of the batch: separated by spaces, by commas, as a JSON array |
//! | `{urls}`, `{urls_json}` | the addresses of the batch: separated by spaces, as a JSON array |
//! | `{url}` | one address; each is a request of its own |
//! | `{path}`, `{action}` | those of the change |
//!
//! A template with `{url}`, `{urls}` or `{urls_json}` gets addresses, any other one keys. Other text in braces stays.
//!
//! Not here: the URLs and keys themselves, retries and order (`flush`).

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::Full;

use super::url_path::encode_url_path;
use crate::agent::ReplicationAgent;

/// The key that every response carries.
pub const PURGE_ALL_KEY: &str = "all";

/// The content of one purge request.
pub(crate) struct PurgeBatch<'a> {
    /// The action and the path of the change.
    pub(crate) action: &'a str,
    pub(crate) path: &'a str,
    /// The keys, or the paths of the URLs.
    pub(crate) items: &'a [String],
    /// True if everything is to be dropped.
    pub(crate) is_all: bool,
}

/// Returns true if a template is filled with addresses and not with keys.
pub(crate) fn takes_urls(agent: &ReplicationAgent) -> bool {
    texts(agent)
        .any(|text| ["{url}", "{urls}", "{urls_json}"].iter().any(|name| text.contains(name)))
}

/// Returns the number of items that one request of an agent takes.
pub(crate) fn batch_size(agent: &ReplicationAgent) -> usize {
    let takes_one = texts(agent).any(|text| text.contains("{url}"));
    if takes_one { 1 } else { agent.template.batch_size.max(1) }
}

fn texts(agent: &ReplicationAgent) -> impl Iterator<Item = &str> {
    let headers = agent.headers.iter().map(|(_, value)| value.as_str());
    headers.chain([agent.target.as_str(), agent.template.body.as_str()])
}

/// Builds the request for one batch.
///
/// # Errors
/// With the part of the template that yields no valid request.
pub(crate) fn build_template_request(
    agent: &ReplicationAgent,
    batch: &PurgeBatch<'_>,
) -> Result<Request<Full<Bytes>>, String> {
    let fill = |text: &str| fill_template(text, agent, batch);
    let body = match &agent.template.all_body {
        Some(all) if batch.is_all => fill(all),
        _ => fill(&agent.template.body),
    };
    let method = agent.method.as_deref().unwrap_or("POST");
    let method = Method::from_bytes(method.as_bytes()).map_err(|fault| fault.to_string())?;
    let uri: http::Uri = fill(&agent.target).parse().map_err(|fault| format!("{fault}"))?;
    let host = uri.authority().ok_or("`transportUri` has no host")?.to_string();
    let mut request = Request::new(Full::new(Bytes::from(body)));
    (*request.method_mut(), *request.uri_mut()) = (method, uri);
    let headers = request.headers_mut();
    let value = |text: &str| HeaderValue::from_str(text).map_err(|fault| fault.to_string());
    headers.insert(header::HOST, value(&host)?);
    for (name, text) in &agent.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|fault| fault.to_string())?;
        headers.insert(name, value(&fill(text))?);
    }
    Ok(request)
}

/// Replaces the placeholders of a text in one pass, so that nothing in a value is taken for one.
fn fill_template(text: &str, agent: &ReplicationAgent, batch: &PurgeBatch<'_>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        filled.push_str(before);
        let value = behind
            .split_once('}')
            .and_then(|(name, after)| Some((placeholder_value(name, agent, batch)?, after)));
        match value {
            Some((value, after)) => {
                filled.push_str(&value);
                rest = after;
            }
            None => {
                filled.push('{');
                rest = behind;
            }
        }
    }
    filled.push_str(rest);
    filled
}

fn placeholder_value(
    name: &str,
    agent: &ReplicationAgent,
    batch: &PurgeBatch<'_>,
) -> Option<String> {
    let urls = || -> Vec<String> {
        let public = agent.template.public_url.trim_end_matches('/');
        batch.items.iter().map(|path| format!("{public}{}", encode_url_path(path))).collect()
    };
    Some(match name {
        "action" => batch.action.to_owned(),
        "path" => encode_url_path(batch.path),
        "keys" => batch.items.join(" "),
        "keys_csv" => batch.items.join(","),
        "keys_json" => serde_json::Value::from(batch.items.to_vec()).to_string(),
        "url" | "urls" => urls().join(" "),
        "urls_json" => serde_json::Value::from(urls()).to_string(),
        _ => return None,
    })
}

/// Returns the key of a URL or path. Some networks separate keys by commas.
#[must_use]
pub fn surrogate_key_of(url: &str) -> String {
    url.replace(',', "%2C")
}

/// Returns the batches of a list of items.
pub(crate) fn batches<'a>(
    items: &'a [String],
    size: usize,
    (action, path): (&'a str, &'a str),
) -> impl Iterator<Item = PurgeBatch<'a>> {
    items.chunks(size.max(1)).map(move |items| PurgeBatch {
        action,
        path,
        items,
        is_all: items.iter().any(|key| key == PURGE_ALL_KEY),
    })
}

#[cfg(test)]
mod tests {
    use super::{PurgeBatch, build_template_request, takes_urls};
    use crate::{PurgeTemplate, ReplicationAgent, ReplicationAgentKind};
    use http_body_util::BodyExt;

    fn agent(target: &str, headers: &[(&str, &str)], body: &str) -> ReplicationAgent {
        ReplicationAgent {
            name: "cdn".to_owned(),
            title: String::new(),
            kind: ReplicationAgentKind::PurgeTemplate,
            target: target.to_owned(),
            is_enabled: true,
            paths: Vec::new(),
            user: None,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            method: None,
            template: PurgeTemplate {
                body: body.to_owned(),
                public_url: "https://www.example.com/".to_owned(),
                ..PurgeTemplate::default()
            },
            config_error: None,
        }
    }

    async fn sent(agent: &ReplicationAgent, items: &[&str]) -> String {
        let items: Vec<String> = items.iter().map(|item| (*item).to_owned()).collect();
        let batch =
            PurgeBatch { action: "Activate", path: "/content/a", items: &items, is_all: false };
        let request = build_template_request(agent, &batch).unwrap();
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut headers: Vec<String> = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        headers.sort();
        format!(
            "{} {} | {} | {}",
            head.method,
            head.uri,
            headers.join(" "),
            String::from_utf8_lossy(&body)
        )
    }

    #[tokio::test]
    async fn each_part_of_a_request_is_a_template() {
        let keys = agent(
            "https://api.example/service/x/purge",
            &[("Surrogate-Key", "{keys}"), ("X-Other", "{action} {unknown} {")],
            "{\"tags\": {keys_json}, \"csv\": \"{keys_csv}\", \"of\": \"{path}\"}",
        );
        assert!(!takes_urls(&keys));
        assert_eq!(
            sent(&keys, &["/a.html", "/{path}", "say\"it"]).await,
            "POST https://api.example/service/x/purge | host: api.example surrogate-key: /a.html /{path} say\"it \
             x-other: Activate {unknown} { | {\"tags\": [\"/a.html\",\"/{path}\",\"say\\\"it\"], \
             \"csv\": \"/a.html,/{path},say\"it\", \"of\": \"/content/a\"}"
        );
        let urls = agent("https://api.example/purge", &[], "{\"files\":{urls_json}}");
        assert!(takes_urls(&urls));
        assert_eq!(
            sent(&urls, &["/a.html", "/ä b.html"]).await,
            "POST https://api.example/purge | host: api.example | {\"files\":[\"https://www.example.com/a.html\",\
             \"https://www.example.com/%C3%A4%20b.html\"]}"
        );
        let one = agent("{url}", &[], "");
        assert_eq!(super::batch_size(&one), 1);
        assert_eq!(
            sent(&one, &["/a.html"]).await,
            "POST https://www.example.com/a.html | host: www.example.com | "
        );
    }

    #[test]
    fn templates_that_yield_no_request_say_so() {
        let items = ["/a".to_owned()];
        let batch = PurgeBatch { action: "Activate", path: "/a", items: &items, is_all: false };
        let fault = |agent: &ReplicationAgent| build_template_request(agent, &batch).err();
        assert!(fault(&agent("/purge", &[], "")).is_some_and(|fault| fault.contains("no host")));
        assert!(fault(&agent("https://a/", &[("a b", "x")], "")).is_some());
        let mut odd = agent("https://a/", &[], "");
        odd.method = Some("a b".to_owned());
        assert!(fault(&odd).is_some());
    }
}
