//! Converted rules and sections compared with a simple model of httpd.

use std::path::Path;

use http::{HeaderMap, Method};
use proptest::prelude::*;

use super::convert_httpd_config;
use crate::config::settings::DispatcherSettings;
use crate::request::host_routing::RouteOutcome;
use crate::request::view::RequestView;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GeneratedRewriteFlag {
    None,
    Last,
    PassThrough,
    Redirect,
    Forbidden,
}

/// `RewriteRule ^FROM(/.*)?$ TO$1 [FLAG]`, with `-` for `TO` if there is none.
#[derive(Debug, Clone)]
struct GeneratedRewrite {
    from: String,
    to: Option<String>,
    flag: GeneratedRewriteFlag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GeneratedSectionKind {
    Directory,
    Files,
    Location,
}

/// `<Location ARGUMENT>` or a similar section, with `Require all granted` or `denied`.
#[derive(Debug, Clone)]
struct GeneratedSection {
    kind: GeneratedSectionKind,
    argument: String,
    is_open: bool,
}

/// A `<VirtualHost>` with the document root `/r`.
#[derive(Debug, Clone)]
struct GeneratedVirtualHost {
    rewrites: Vec<GeneratedRewrite>,
    /// The paths that `Redirect` redirects.
    redirects: Vec<String>,
    sections: Vec<GeneratedSection>,
}

impl GeneratedVirtualHost {
    fn text(&self) -> String {
        let mut text = String::from("<VirtualHost *:80>\nDocumentRoot /r\nRewriteEngine On\n");
        for GeneratedRewrite { from, to, flag } in &self.rewrites {
            let to = to.as_ref().map_or("-".to_owned(), |to| format!("{to}$1"));
            let flags = match flag {
                GeneratedRewriteFlag::None => "",
                GeneratedRewriteFlag::Last => " [L]",
                GeneratedRewriteFlag::PassThrough => " [PT]",
                GeneratedRewriteFlag::Redirect => " [R]",
                GeneratedRewriteFlag::Forbidden => " [F]",
            };
            text += &format!("RewriteRule ^{from}(/.*)?$ {to}{flags}\n");
        }
        for from in &self.redirects {
            text += &format!("Redirect {from} /elsewhere\n");
        }
        for GeneratedSection { kind, argument, is_open } in &self.sections {
            let verdict = if *is_open { "granted" } else { "denied" };
            let (name, argument) = match kind {
                GeneratedSectionKind::Directory => ("Directory", format!("/r{argument}")),
                GeneratedSectionKind::Files => {
                    ("Files", argument.trim_start_matches('/').to_owned())
                }
                GeneratedSectionKind::Location => ("Location", argument.clone()),
            };
            text += &format!("<{name} \"{argument}\">\nRequire all {verdict}\n</{name}>\n");
        }
        text + "</VirtualHost>\n"
    }

    /// Returns the status, or the path that is looked up, as in httpd: translate_name, then the directory, file and
    /// location walks, of which the last section with requirements decides.
    fn answer(&self, sent: &str) -> Result<String, u16> {
        let (mut uri, mut file) = (sent.to_owned(), sent.to_owned());
        let mut is_mapped = false;
        for rule in &self.rewrites {
            let Some(rest) = within(&file, &rule.from) else { continue };
            match rule.flag {
                GeneratedRewriteFlag::Forbidden => return Err(403),
                // Without a target the visitor is redirected to the same path.
                GeneratedRewriteFlag::Redirect => return Err(302),
                GeneratedRewriteFlag::None
                | GeneratedRewriteFlag::Last
                | GeneratedRewriteFlag::PassThrough => {}
            }
            if let Some(to) = &rule.to {
                file = format!("{to}{rest}");
                is_mapped = true;
            }
            if rule.flag == GeneratedRewriteFlag::PassThrough {
                uri.clone_from(&file);
                is_mapped = false;
            }
            if rule.flag != GeneratedRewriteFlag::None {
                break;
            }
        }
        if !is_mapped && self.redirects.iter().any(|from| within(&uri, from).is_some()) {
            return Err(302);
        }
        let mut is_open = true;
        let of = |kind| self.sections.iter().filter(move |part| part.kind == kind);
        let mut folders: Vec<&GeneratedSection> = of(GeneratedSectionKind::Directory).collect();
        folders.sort_by_key(|part| part.argument.matches('/').count());
        let name = file.rsplit('/').next().unwrap_or_default().to_owned();
        let folders = folders.into_iter().filter(|part| within(&file, &part.argument).is_some());
        let files = of(GeneratedSectionKind::Files)
            .filter(|part| part.argument.trim_start_matches('/') == name);
        let locations = of(GeneratedSectionKind::Location)
            .filter(|part| within(&uri, &part.argument).is_some());
        for part in folders.chain(files).chain(locations) {
            is_open = part.is_open;
        }
        if is_open { Ok(file) } else { Err(403) }
    }
}

/// Returns the part of `path` below `folder`, in whole segments.
fn within<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    path.strip_prefix(folder).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn converted(vhost: &GeneratedVirtualHost, sent: &str) -> Result<String, u16> {
    let converted = convert_httpd_config(&[(Path::new("a.vhost"), &vhost.text())], None);
    assert!(converted.diagnostics.is_empty(), "{:?}", converted.diagnostics);
    let on = converted.toml.replace("use_processed_url = false", "use_processed_url = true");
    let section = on.replace("[dispatcher]\n", "").replace("[[dispatcher.", "[[");
    let settings: DispatcherSettings = toml::from_str(&section).unwrap();
    let view = RequestView::from_url(Method::GET, sent, HeaderMap::new()).unwrap();
    match settings.compile_settings().unwrap().routes.route_request(&view) {
        RouteOutcome::Serve(led) => Ok(led.map_or(view.path, |led| led.path).as_str().to_owned()),
        RouteOutcome::Redirect(status, _) | RouteOutcome::Respond(status) => Err(status.as_u16()),
        RouteOutcome::Proxy(_) => unreachable!("no rule proxies"),
    }
}

/// A small set of paths, so that the result of one rule often matches another.
fn path() -> impl Strategy<Value = String> {
    prop_oneof![2 => "/[ab]", 1 => "/[ab]/[ab]"]
}

fn vhost() -> impl Strategy<Value = GeneratedVirtualHost> {
    let flag = prop_oneof![
        2 => Just(GeneratedRewriteFlag::None),
        3 => Just(GeneratedRewriteFlag::Last),
        3 => Just(GeneratedRewriteFlag::PassThrough),
        1 => Just(GeneratedRewriteFlag::Redirect),
        1 => Just(GeneratedRewriteFlag::Forbidden),
    ];
    let rewrite = (path(), prop::option::weighted(0.8, path()), flag)
        .prop_map(|(from, to, flag)| GeneratedRewrite { from, to, flag })
        .prop_filter("a redirect leads somewhere", |rule| {
            rule.flag != GeneratedRewriteFlag::Redirect || rule.to.is_some()
        });
    let kind = prop_oneof![
        Just(GeneratedSectionKind::Directory),
        Just(GeneratedSectionKind::Files),
        Just(GeneratedSectionKind::Location)
    ];
    let part = (kind, path(), any::<bool>())
        .prop_map(|(kind, argument, is_open)| GeneratedSection { kind, argument, is_open })
        .prop_filter("a file has one name", |part| {
            part.kind != GeneratedSectionKind::Files || part.argument.matches('/').count() == 1
        });
    (
        prop::collection::vec(rewrite, 0..4),
        prop::option::weighted(0.3, path()),
        prop::collection::vec(part, 1..6),
    )
        .prop_map(|(rewrites, redirect, parts)| GeneratedVirtualHost {
            rewrites,
            redirects: redirect.into_iter().collect(),
            sections: parts,
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
