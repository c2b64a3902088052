//! Converted rules and sections beside a plain model of what httpd does with them.

use std::path::Path;

use http::{HeaderMap, Method};
use proptest::prelude::*;

use super::convert;
use crate::request::RequestView;
use crate::route::Routed;
use crate::settings::Settings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    None,
    Last,
    PassThrough,
    Redirect,
    Forbidden,
}

/// `RewriteRule ^FROM(/.*)?$ TO$1 [FLAG]`, with `-` for `TO` if there is none.
#[derive(Debug, Clone)]
struct Rewrite {
    from: String,
    to: Option<String>,
    flag: Flag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    Files,
    Location,
}

/// `<Location ARGUMENT>` or a relative, with `Require all granted` or `denied`.
#[derive(Debug, Clone)]
struct Part {
    kind: Kind,
    argument: String,
    is_open: bool,
}

/// A `<VirtualHost>` with the document root `/r`.
#[derive(Debug, Clone)]
struct Vhost {
    rewrites: Vec<Rewrite>,
    /// Paths that `Redirect` sends elsewhere.
    redirects: Vec<String>,
    parts: Vec<Part>,
}

impl Vhost {
    fn text(&self) -> String {
        let mut text = String::from("<VirtualHost *:80>\nDocumentRoot /r\nRewriteEngine On\n");
        for Rewrite { from, to, flag } in &self.rewrites {
            let to = to.as_ref().map_or("-".to_owned(), |to| format!("{to}$1"));
            let flags = match flag {
                Flag::None => "",
                Flag::Last => " [L]",
                Flag::PassThrough => " [PT]",
                Flag::Redirect => " [R]",
                Flag::Forbidden => " [F]",
            };
            text += &format!("RewriteRule ^{from}(/.*)?$ {to}{flags}\n");
        }
        for from in &self.redirects {
            text += &format!("Redirect {from} /elsewhere\n");
        }
        for Part { kind, argument, is_open } in &self.parts {
            let verdict = if *is_open { "granted" } else { "denied" };
            let (name, argument) = match kind {
                Kind::Directory => ("Directory", format!("/r{argument}")),
                Kind::Files => ("Files", argument.trim_start_matches('/').to_owned()),
                Kind::Location => ("Location", argument.clone()),
            };
            text += &format!("<{name} \"{argument}\">\nRequire all {verdict}\n</{name}>\n");
        }
        text + "</VirtualHost>\n"
    }

    /// Returns the status, or the path that is looked up, as httpd has it: translate_name, then the directory, file and
    /// location walks, of which the last section with requirements decides.
    fn answer(&self, sent: &str) -> Result<String, u16> {
        let (mut uri, mut file) = (sent.to_owned(), sent.to_owned());
        let mut is_mapped = false;
        for rule in &self.rewrites {
            let Some(rest) = within(&file, &rule.from) else { continue };
            match rule.flag {
                Flag::Forbidden => return Err(403),
                // Without another path it is the own one, so that the visitor is sent there.
                Flag::Redirect => return Err(302),
                Flag::None | Flag::Last | Flag::PassThrough => {}
            }
            if let Some(to) = &rule.to {
                file = format!("{to}{rest}");
                is_mapped = true;
            }
            if rule.flag == Flag::PassThrough {
                uri.clone_from(&file);
                is_mapped = false;
            }
            if rule.flag != Flag::None {
                break;
            }
        }
        if !is_mapped && self.redirects.iter().any(|from| within(&uri, from).is_some()) {
            return Err(302);
        }
        let mut is_open = true;
        let of = |kind| self.parts.iter().filter(move |part| part.kind == kind);
        let mut folders: Vec<&Part> = of(Kind::Directory).collect();
        folders.sort_by_key(|part| part.argument.matches('/').count());
        let name = file.rsplit('/').next().unwrap_or_default().to_owned();
        let folders = folders.into_iter().filter(|part| within(&file, &part.argument).is_some());
        let files = of(Kind::Files).filter(|part| part.argument.trim_start_matches('/') == name);
        let places = of(Kind::Location).filter(|part| within(&uri, &part.argument).is_some());
        for part in folders.chain(files).chain(places) {
            is_open = part.is_open;
        }
        if is_open { Ok(file) } else { Err(403) }
    }
}

/// Returns what of `path` stands below `folder`, in whole segments.
fn within<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    path.strip_prefix(folder).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn converted(vhost: &Vhost, sent: &str) -> Result<String, u16> {
    let converted = convert(&[(Path::new("a.vhost"), &vhost.text())], None);
    assert!(converted.diagnostics.is_empty(), "{:?}", converted.diagnostics);
    let on = converted.toml.replace("use_processed_url = false", "use_processed_url = true");
    let section = on.replace("[dispatcher]\n", "").replace("[[dispatcher.", "[[");
    let settings: Settings = toml::from_str(&section).unwrap();
    let view = RequestView::from_url(Method::GET, sent, HeaderMap::new()).unwrap();
    match settings.switches().unwrap().routes.apply(&view) {
        Routed::Serve(led) => Ok(led.map_or(view.path, |led| led.path).as_str().to_owned()),
        Routed::Redirect(status, _) | Routed::Answer(status) => Err(status.as_u16()),
        Routed::Proxy(_) => unreachable!("no rule proxies"),
    }
}

/// Few paths, so that what one rule makes meets another one.
fn path() -> impl Strategy<Value = String> {
    prop_oneof![2 => "/[ab]", 1 => "/[ab]/[ab]"]
}

fn vhost() -> impl Strategy<Value = Vhost> {
    let flag = prop_oneof![
        2 => Just(Flag::None),
        3 => Just(Flag::Last),
        3 => Just(Flag::PassThrough),
        1 => Just(Flag::Redirect),
        1 => Just(Flag::Forbidden),
    ];
    let rewrite = (path(), prop::option::weighted(0.8, path()), flag)
        .prop_map(|(from, to, flag)| Rewrite { from, to, flag })
        .prop_filter("a redirect leads somewhere", |rule| {
            rule.flag != Flag::Redirect || rule.to.is_some()
        });
    let kind = prop_oneof![Just(Kind::Directory), Just(Kind::Files), Just(Kind::Location)];
    let part = (kind, path(), any::<bool>())
        .prop_map(|(kind, argument, is_open)| Part { kind, argument, is_open })
        .prop_filter("a file has one name", |part| {
            part.kind != Kind::Files || part.argument.matches('/').count() == 1
        });
    (
        prop::collection::vec(rewrite, 0..4),
        prop::option::weighted(0.3, path()),
        prop::collection::vec(part, 1..6),
    )
        .prop_map(|(rewrites, redirect, parts)| Vhost {
            rewrites,
            redirects: redirect.into_iter().collect(),
            parts,
        })
}

proptest! {
    #[test]
    fn a_converted_host_answers_as_httpd_does(
        vhost in vhost(),
        sent in prop_oneof!["/[ab]", "/[ab]/[ab]", "/[ab]/[ab]/[ab]"],
    ) {
        prop_assert_eq!(converted(&vhost, &sent), vhost.answer(&sent), "{}", vhost.text());
    }
}
