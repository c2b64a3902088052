//! Stores content in an author over HTTP, as forms of Sling's POST protocol.

use std::time::Duration;

use base64::Engine as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Item, Sink, image};
use crate::asset::upload;
use crate::client::{Client, Question};
use crate::net::Url;
use crate::{Error, Result};

/// Who stores.
#[derive(Clone)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// An author that content is stored in.
#[derive(Debug)]
pub struct Author {
    base: Url,
    client: Client,
    authorization: String,
}

const BOUNDARY: &str = "tympan-lab-boundary-7d1f0c4a92";

impl Author {
    /// Prepares to store in the author at `url`.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn new(url: &str, login: &Login, timeout: Duration) -> Result<Self> {
        let pair = format!("{}:{}", login.user, login.password);
        let base64 = base64::engine::general_purpose::STANDARD.encode(pair);
        Ok(Self {
            base: Url::parse(url)?,
            client: Client::new(timeout),
            authorization: format!("Basic {base64}"),
        })
    }

    fn post(&mut self, path: &str, media_type: &str, body: &[u8]) -> Result<()> {
        let prefix = self.base.target.trim_end_matches('/');
        let url = Url { target: format!("{prefix}{path}"), ..self.base.clone() };
        let headers = [
            ("Authorization".to_owned(), self.authorization.clone()),
            ("Content-Type".to_owned(), media_type.to_owned()),
        ];
        let question = Question { method: "POST", url: &url, headers: &headers, body };
        let answer = self.client.ask(&question)?;
        if (200..300).contains(&answer.status) {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&answer.body);
        let text: String =
            text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
        Err(Error::Unanswered {
            url: url.to_string(),
            reason: format!("it refused with status {}: {text}", answer.status),
        })
    }

    fn form(&mut self, path: &str, fields: &[(&str, &str)]) -> Result<()> {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let path = path.replace(':', "%3A");
        self.post(&path, "application/x-www-form-urlencoded", pairs.join("&").as_bytes())
    }
}

impl Sink for Author {
    fn store(&mut self, item: &Item, seed: u64) -> Result<()> {
        match item {
            Item::Folder { path } => {
                self.form(path, &[("./jcr:primaryType", "sling:OrderedFolder")])
            }
            Item::Tag { path, title } => {
                self.form(path, &[("./jcr:primaryType", "cq:Tag"), ("./jcr:title", title)])
            }
            Item::Page { path, title, properties, tags } => {
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
                self.form(path, &fields)
            }
            Item::Image { folder, name, file } => {
                let bytes = image::png(seed, *file);
                let (media_type, body) = upload((name, "image/png"), BOUNDARY, &[&bytes]);
                self.post(folder, &media_type, &body)
            }
        }
    }
}
