//! Stores content in an author over HTTP, as forms of the Sling POST protocol.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tympan_lab_engine::load::asset_request::build_upload_form;
use tympan_lab_engine::load::probe_client::{ProbeClient, ProbeRequest};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_plan::AbsoluteUrl;

use super::content_item::{ContentItem, ContentSink};
use super::image;
use crate::{Error, Result};

/// An author that content is stored in over HTTP.
#[derive(Debug)]
pub struct AuthorContentSink {
    base_url: AbsoluteUrl,
    client: ProbeClient,
    authorization: RequestAuthorization,
}

const MULTIPART_BOUNDARY: &str = "tympan-lab-boundary-7d1f0c4a92";

impl AuthorContentSink {
    /// Creates a sink for the author at `url`.
    ///
    /// # Errors
    /// `Error::InvalidUrl`.
    pub fn new(url: &str, authorization: RequestAuthorization, timeout: Duration) -> Result<Self> {
        Ok(Self {
            base_url: AbsoluteUrl::parse(url)?,
            client: ProbeClient::new(timeout),
            authorization,
        })
    }

    fn post(&mut self, path: &str, media_type: &str, body: &[u8]) -> Result<()> {
        let prefix = self.base_url.path_and_query.trim_end_matches('/');
        let url =
            AbsoluteUrl { path_and_query: format!("{prefix}{path}"), ..self.base_url.clone() };
        let headers =
            [self.authorization.to_header(), ("Content-Type".to_owned(), media_type.to_owned())];
        let question = ProbeRequest { method: "POST", url: &url, headers: &headers, body };
        let response = self.client.send(&question)?;
        if (200..300).contains(&response.status) {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&response.body);
        let text: String =
            text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
        Err(Error::NoResponse {
            url: url.to_string(),
            reason: format!("it returned status {}: {text}", response.status),
        })
    }

    fn post_form(&mut self, path: &str, fields: &[(&str, &str)]) -> Result<()> {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let path = path.replace(':', "%3A");
        self.post(&path, "application/x-www-form-urlencoded", pairs.join("&").as_bytes())
    }
}

impl ContentSink for AuthorContentSink {
    fn store(&mut self, item: &ContentItem, seed: u64) -> Result<()> {
        match item {
            ContentItem::Folder { path } => {
                self.post_form(path, &[("./jcr:primaryType", "sling:OrderedFolder")])
            }
            ContentItem::Tag { path, title } => {
                self.post_form(path, &[("./jcr:primaryType", "cq:Tag"), ("./jcr:title", title)])
            }
            ContentItem::Page { path, title, properties, tags } => {
                let mut fields = vec![
                    ("./jcr:primaryType", "cq:Page"),
                    ("./jcr:content/jcr:primaryType", "cq:PageContent"),
                    ("./jcr:content/jcr:title", title),
                    ("./jcr:content/cq:tags@TypeHint", "String[]"),
                ];
                let named: Vec<(String, &String)> = properties
                    .iter()
                    .map(|(name, value)| (format!("./jcr:content/{name}"), value))
                    .collect();
                fields.extend(named.iter().map(|(name, value)| (name.as_str(), value.as_str())));
                fields.extend(tags.iter().map(|tag| ("./jcr:content/cq:tags", tag.as_str())));
                self.post_form(path, &fields)
            }
            ContentItem::Image { folder, name, unique_file } => {
                let bytes = image::generate_png(seed, *unique_file);
                let (media_type, body) =
                    build_upload_form((name, "image/png"), MULTIPART_BOUNDARY, &[&bytes]);
                self.post(folder, &media_type, &body)
            }
        }
    }
}
