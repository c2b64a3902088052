//! Alternative names of pages: vanity paths, which replace a whole path, and aliases, which replace one name in it.

use std::collections::HashMap;

use tympan_content::{JCR_CONTENT, Node, NodePath};

use super::route_target::{RouteTarget, read_redirect_kind, text_values};
use crate::page::link::encode_path;
use crate::response::RedirectKind;

/// Folders below which vanity paths are ignored: they would hide the program.
const RESERVED_FOLDERS: [&str; 7] = ["/apps", "/libs", "/etc", "/api", "/bin", "/system", "/home"];

/// The targets of vanity paths, in order of precedence.
#[derive(Debug, Default)]
pub(super) struct VanityPaths(HashMap<String, Vec<VanityTarget>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct VanityTarget {
    target: NodePath,
    /// The kind of redirect; `None` if the page is shown at the vanity path.
    redirect: Option<RedirectKind>,
    order: i64,
}

impl VanityPaths {
    /// Reads the vanity paths of nodes; those of a page's content are the page's.
    pub(super) fn from_nodes(nodes: &[Node]) -> Self {
        let mut vanities = Self::default();
        for node in nodes {
            let Some(target) = owner_path(node) else {
                continue;
            };
            let is_redirect =
                text_values(node, "sling:redirect").first().is_some_and(|text| text == "true");
            let order =
                text_values(node, "sling:vanityOrder").first().and_then(|text| text.parse().ok());
            let vanity = VanityTarget {
                target,
                redirect: is_redirect.then(|| read_redirect_kind(node, "sling:redirectStatus")),
                order: order.unwrap_or(0),
            };
            for path in text_values(node, "sling:vanityPath") {
                vanities.add(&path, vanity.clone());
            }
        }
        vanities
    }

    fn add(&mut self, path: &str, vanity: VanityTarget) {
        let path = format!("/{}", path.trim().trim_matches('/'));
        let is_kept = RESERVED_FOLDERS.iter().any(|reserved_folder| {
            path.strip_prefix(reserved_folder)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
        });
        if is_kept || path == "/" {
            return;
        }
        let targets = self.0.entry(path).or_default();
        targets.push(vanity);
        targets.sort_by(|left, right| {
            right
                .order
                .cmp(&left.order)
                .then_with(|| left.target.as_str().cmp(right.target.as_str()))
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Resolves a path that begins with a vanity path, optionally followed by selectors, extension and suffix.
    pub(super) fn resolve(
        &self,
        path: &str,
        sees: impl Fn(&NodePath) -> bool,
    ) -> Option<RouteTarget> {
        if self.is_empty() {
            return None;
        }
        let whole = std::iter::once((path.trim_end_matches('/'), ""));
        // The vanity path may end at any dot, the longest first.
        let dots = path.rmatch_indices('.').map(|(at, _)| path.split_at(at));
        whole.chain(dots).find_map(|(name, rest)| {
            let vanity = self.0.get(name)?.iter().find(|vanity| sees(&vanity.target))?;
            // Without an extension in the request or the target, the target is shown, or redirected to, as a page.
            let own = || {
                let last = name.rfind('/').map_or(0, |at| at + 1);
                name.rfind('.').filter(|at| *at >= last).and_then(|at| name.get(at..))
            };
            let rest = if rest.is_empty() { own().unwrap_or(".html") } else { rest };
            let target = format!("{}{rest}", vanity.target);
            Some(match vanity.redirect {
                Some(kind) => RouteTarget::Redirect { location: encode_path(&target), kind },
                None => RouteTarget::Internal(target),
            })
        })
    }
}

/// The aliases of children, by the path of their parent.
#[derive(Debug, Default)]
pub(super) struct PathAliases(HashMap<String, HashMap<String, String>>);

impl PathAliases {
    /// Reads the aliases of nodes; those of a page's content are the page's.
    pub(super) fn from_nodes(nodes: &[Node]) -> Self {
        let mut aliases = Self::default();
        for node in nodes {
            let Some(target) = owner_path(node) else {
                continue;
            };
            let Some(parent) = target.parent() else {
                continue;
            };
            for alias in text_values(node, "sling:alias") {
                let alias = alias.trim();
                if alias.is_empty() || alias.contains('/') || alias.starts_with('.') {
                    continue;
                }
                let names = aliases.0.entry(parent.as_str().to_owned()).or_default();
                // If several nodes claim a name, the first by path gets it.
                let name =
                    names.entry(alias.to_owned()).or_insert_with(|| target.name().to_owned());
                if target.name() < name.as_str() {
                    target.name().clone_into(name);
                }
            }
        }
        aliases
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.values().map(HashMap::len).sum()
    }

    /// Replaces the aliases in a path by names; `None` if it has none.
    pub(super) fn resolve(&self, path: &str) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let mut resolved = String::new();
        let mut is_changed = false;
        let mut rest = path.strip_prefix('/')?;
        loop {
            let (segment, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let names = self.0.get(if resolved.is_empty() { "/" } else { &resolved });
            // The alias may end at any dot, the longest first.
            let cuts = segment.rmatch_indices('.').map(|(at, _)| at);
            let alias_match = names.and_then(|names| {
                std::iter::once(segment.len()).chain(cuts).find_map(|at| {
                    let (alias, extension) = segment.split_at(at);
                    Some((names.get(alias)?, extension))
                })
            });
            resolved.push('/');
            match alias_match {
                Some((name, extension)) => {
                    resolved.push_str(name);
                    resolved.push_str(extension);
                    is_changed = true;
                }
                None => resolved.push_str(segment),
            }
            match after.strip_prefix('/') {
                Some(next) => rest = next,
                None => break,
            }
        }
        is_changed.then_some(resolved)
    }
}

/// Returns the path of the page that a content node belongs to, or the node's own path.
fn owner_path(node: &Node) -> Option<NodePath> {
    if node.name() == JCR_CONTENT { node.path().parent() } else { Some(node.path().clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::new(text).unwrap()
    }

    fn vanities() -> VanityPaths {
        let mut vanities = VanityPaths::default();
        for (name, target, order, redirect) in [
            ("/sale", "/content/a", 0, None),
            ("sale", "/content/b", 5, None),
            ("/hidden", "/content/hidden", 9, None),
            ("/hidden", "/content/c", 0, None),
            ("/old/way", "/content/d", 0, Some(RedirectKind::Moved)),
            ("/start.html", "/content/e", 0, None),
            ("/v1", "/content/one", 0, None),
            ("/v1.2", "/content/two", 0, None),
            ("/apps/x", "/content/f", 0, None),
            ("/", "/content/f", 0, None),
        ] {
            vanities.add(name, VanityTarget { target: path(target), redirect, order });
        }
        vanities
    }

    #[track_caller]
    fn check(requested_path: &str, expected: &str) {
        let outcome = vanities().resolve(requested_path, |target| target.name() != "hidden");
        let outcome = match outcome {
            None => "-".to_owned(),
            Some(RouteTarget::Internal(path)) => path,
            Some(RouteTarget::Redirect { location, kind }) => format!("{kind:?} {location}"),
        };
        assert_eq!(outcome, expected, "{requested_path}");
    }

    #[test]
    fn vanity_paths() {
        check("/sale", "/content/b.html");
        check("/sale/", "/content/b.html");
        check("/sale.html", "/content/b.html");
        check("/sale.print.html/x", "/content/b.print.html/x");
        check("/sales", "-");
        check("/sale/more", "-");
        check("/hidden", "/content/c.html");
        check("/old/way", "Moved /content/d.html");
        check("/start.html", "/content/e.html");
        check("/start", "-");
        check("/v1.html", "/content/one.html");
        check("/v1.3.html", "/content/one.3.html");
        check("/v1.2.html", "/content/two.html");
        check("/v1.2.print.html/x.y", "/content/two.print.html/x.y");
        check("/apps/x", "-");
        check("/", "-");
    }

    #[test]
    fn aliases() {
        let mut aliases = PathAliases::default();
        for (parent, alias, name) in [
            ("/content", "maison", "home"),
            ("/content/home", "nouvelles", "news"),
            ("/content", "v1.2", "one"),
        ] {
            let names = aliases.0.entry(parent.to_owned()).or_default();
            names.insert(alias.to_owned(), name.to_owned());
        }
        for (requested_path, expected) in [
            ("/content/maison.html", Some("/content/home.html")),
            ("/content/maison/nouvelles.print.html", Some("/content/home/news.print.html")),
            ("/content/home/nouvelles.html/x", Some("/content/home/news.html/x")),
            ("/content/v1.2.html", Some("/content/one.html")),
            ("/content/home/news.html", None),
            ("/nouvelles.html", None),
        ] {
            assert_eq!(aliases.resolve(requested_path).as_deref(), expected, "{requested_path}");
        }
    }
}
