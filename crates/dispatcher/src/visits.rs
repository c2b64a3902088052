//! At which address pages were asked for, so that they are fetched again as their visitors see them.
//!
//! In: the visits for which pages were stored. Out: what a page that a flush lists is asked for with: host, scheme and
//! port, as they decide about mapped addresses and absolute links.
//!
//! Invariants
//! * Only what a page was stored for counts. Other pages do not take from it what a visitor says about proxies in
//!   front, nor, where the farm's host is written out, another host, or a port at which nobody comes in.
//! * Memory stays below [`MAX_BYTES`]; the least used pages go first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::config::read_host;
use crate::request::RequestView;

/// What the visits of one document root may take.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// What an entry and its visit take beside texts.
const ENTRY_BYTES: u64 = 328;
/// What a header of a visit takes beside its value.
const HEADER_BYTES: usize = 64;
/// A longer header tells of no address.
const MAX_VALUE_BYTES: usize = 256;
/// Pages below so many folders belong to one site, as a rule.
const SITE_DEPTH: usize = 2;

const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
/// What proxies say about the address that a visitor sees.
const FORWARDED: [HeaderName; 4] = [
    HeaderName::from_static("x-forwarded-host"),
    FORWARDED_PORT,
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-ssl"),
];

/// Where visitors come in: the listeners of a dispatcher.
#[derive(Debug, Default)]
pub(crate) struct Doors(Mutex<Vec<Door>>);

#[derive(Debug, Clone, Copy)]
struct Door {
    port: u16,
    is_tls: bool,
}

impl Doors {
    /// Adds a listener.
    pub(crate) fn add(&self, port: u16, is_tls: bool) {
        self.0.lock().push(Door { port, is_tls });
    }

    fn have_port(&self, port: &str) -> bool {
        let port: Option<u16> = port.parse().ok();
        self.0.lock().iter().any(|door| Some(door.port) == port)
    }

    /// Tells whether nobody comes in but by TLS.
    pub(crate) fn are_encrypted(&self) -> bool {
        let doors = self.0.lock();
        !doors.is_empty() && doors.iter().all(|door| door.is_tls)
    }
}

/// The address at which a page was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Visit {
    host: HeaderValue,
    is_tls: bool,
    is_proxied: bool,
    forwarded: HeaderMap,
}

impl Visit {
    /// Returns the address of a request; nothing if it names no host.
    pub(crate) fn of(view: &RequestView) -> Option<Self> {
        let is_short = |value: &&HeaderValue| value.len() <= MAX_VALUE_BYTES;
        let host = view.headers.get(header::HOST).filter(is_short)?.clone();
        let mut forwarded = HeaderMap::new();
        for name in FORWARDED {
            if let Some(value) = view.headers.get(&name).filter(is_short) {
                forwarded.insert(name, value.clone());
            }
        }
        let (is_tls, is_proxied) = (view.is_tls, view.is_proxied);
        (!host.is_empty()).then_some(Self { host, is_tls, is_proxied, forwarded })
    }

    /// Makes up the address of a visitor who comes to `host` without a proxy.
    pub(crate) fn plain(host: HeaderValue, is_tls: bool) -> Self {
        Self { host, is_tls, is_proxied: false, forwarded: HeaderMap::new() }
    }

    fn name_and_port(&self) -> (String, Option<&str>) {
        read_host(self.host.to_str().unwrap_or_default())
    }

    /// Tells whether the visitor came to the farm's `own` address. The port in `Host` is what a visitor writes, so it
    /// counts only if somebody else tells it, too.
    pub(crate) fn is_at(&self, own: &Self, doors: &Doors) -> bool {
        let ((name, port), (own_name, own_port)) = (self.name_and_port(), own.name_and_port());
        let is_told = |port: &str| {
            let by_proxy = self.forwarded.get(&FORWARDED_PORT).filter(|_| self.is_proxied);
            by_proxy.is_some_and(|told| told.as_bytes() == port.as_bytes()) || doors.have_port(port)
        };
        name == own_name && (port == own_port || own_port.is_none() && port.is_none_or(is_told))
    }

    /// Returns the visit as one to the farm's `own` name, which a visitor may have written in another way.
    pub(crate) fn named_as(self: Arc<Self>, own: &Self) -> Arc<Self> {
        let ((name, _), (_, port)) = (own.name_and_port(), self.name_and_port());
        let host = port.map_or_else(|| name.clone(), |port| format!("{name}:{port}"));
        match HeaderValue::from_str(&host) {
            Ok(host) if host != self.host => Arc::new(Self { host, ..Self::clone(&self) }),
            _ => self,
        }
    }

    /// Returns what counts for other pages, too: not what a visitor says about proxies in front.
    fn shared(visit: Arc<Self>) -> Arc<Self> {
        if visit.is_proxied || visit.forwarded.is_empty() {
            return visit;
        }
        Arc::new(Self { forwarded: HeaderMap::new(), ..Self::clone(&visit) })
    }

    /// Makes `view` a request for the same page at this address.
    pub(crate) fn apply(&self, view: &mut RequestView) {
        let (host, port) = self.name_and_port();
        view.host = host;
        view.port = port.map(str::to_owned);
        view.headers.insert(header::HOST, self.host.clone());
        for (name, value) in &self.forwarded {
            view.headers.insert(name.clone(), value.clone());
        }
        view.is_tls = self.is_tls;
        view.scheme = if self.is_tls { "https" } else { "http" };
        view.is_proxied = self.is_proxied;
    }
}

#[derive(Debug, Clone)]
struct Weight;

impl Weighter<PathBuf, Arc<Visit>> for Weight {
    fn weight(&self, path: &PathBuf, visit: &Arc<Visit>) -> u64 {
        let values = visit.forwarded.values();
        let forwarded: usize = values.map(|value| value.len() + HEADER_BYTES).sum();
        (path.as_os_str().len() + visit.host.len() + forwarded) as u64 + ENTRY_BYTES
    }
}

/// The visits of one document root.
#[derive(Debug)]
pub(crate) struct Visits {
    /// By the files and by the first folders of the pages.
    known: Cache<PathBuf, Arc<Visit>, Weight>,
    last: Mutex<Option<Arc<Visit>>>,
}

impl Default for Visits {
    fn default() -> Self {
        let likely = usize::try_from(MAX_BYTES / ENTRY_BYTES / 2).unwrap_or(1024);
        Self { known: Cache::with_weighter(likely, MAX_BYTES, Weight), last: Mutex::default() }
    }
}

impl Visits {
    /// Notes for which visit the page at `file` was stored.
    pub(crate) fn note(&self, file: &Path, visit: &Visit) {
        let mut last = self.last.lock();
        // Most pages are asked for at one address, which is kept once.
        let visit = match &*last {
            Some(last) if **last == *visit => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::new(visit.clone()))),
        };
        drop(last);
        // The first one stays, so that no later visitor decides for the site.
        if let Some(site) = site_of(file)
            && self.known.get(&site).is_none()
        {
            self.known.insert(site, Arc::clone(&visit));
        }
        self.known.insert(file.to_owned(), visit);
    }

    /// Returns the visit for which the page at `file` was stored last.
    pub(crate) fn find(&self, file: &Path) -> Option<Arc<Visit>> {
        self.known.get(file)
    }

    /// Returns the visit for which the first page of the same site was stored.
    pub(crate) fn find_site(&self, file: &Path) -> Option<Arc<Visit>> {
        self.known.get(&site_of(file)?).map(Visit::shared)
    }

    /// Returns the visit for which any page was stored last.
    pub(crate) fn last(&self) -> Option<Arc<Visit>> {
        self.last.lock().clone().map(Visit::shared)
    }
}

/// Returns the first folders of a file below them.
fn site_of(file: &Path) -> Option<PathBuf> {
    let site: PathBuf = file.parent()?.iter().take(SITE_DEPTH).collect();
    (site.iter().count() == SITE_DEPTH).then_some(site)
}

#[cfg(test)]
mod tests {
    use super::{Doors, Visit, Visits, Weight};
    use http::HeaderValue;
    use quick_cache::Weighter;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    #[test]
    fn a_page_is_known_by_itself_or_by_its_site() {
        let visits = Visits::default();
        let visit = |host| Visit::plain(HeaderValue::from_static(host), false);
        let host = |file: &str| {
            let file = Path::new(file);
            let found = visits.find(file).or_else(|| visits.find_site(file))?;
            Some(found.host.to_str().unwrap().to_owned())
        };
        assert!(visits.last().is_none());
        for (file, name) in [
            ("content/a/en.html", "a.example.com"),
            ("content/b/en.html", "b.example.com"),
            ("content/a/de.html", "de.example.com"),
            ("content/c.html", "c.example.com"),
            ("d.html", "c.example.com"),
        ] {
            visits.note(Path::new(file), &visit(name));
        }
        for (file, expected) in [
            ("content/a/en.html", Some("a.example.com")),
            ("content/a/de.html", Some("de.example.com")),
            ("content/a/new/page.html", Some("a.example.com")),
            ("content/b/new.html", Some("b.example.com")),
            ("content/d/new.html", None),
            ("content/new.html", None),
            ("d.html", Some("c.example.com")),
        ] {
            assert_eq!(host(file).as_deref(), expected, "{file}");
        }
        let last = visits.last().unwrap();
        assert!(Arc::ptr_eq(&last, &visits.find(Path::new("content/c.html")).unwrap()));
    }

    #[test]
    fn a_port_counts_that_not_only_the_visitor_tells() {
        let doors = Doors::default();
        doors.add(8080, false);
        let check = |host: &'static str, proxy: Option<&'static str>, own: &'static str| {
            let mut visit = Visit::plain(HeaderValue::from_static(host), false);
            if let Some(port) = proxy {
                visit.forwarded.insert("x-forwarded-port", HeaderValue::from_static(port));
            }
            let believed = Visit { is_proxied: true, ..visit.clone() };
            let own = Visit::plain(HeaderValue::from_static(own), false);
            (visit.is_at(&own, &doors), believed.is_at(&own, &doors))
        };
        assert_eq!(check("a", None, "a"), (true, true));
        assert_eq!(check("A:8080", None, "a"), (true, true));
        assert_eq!(check("b:8080", None, "a"), (false, false));
        assert_eq!(check("a:6666", None, "a"), (false, false));
        assert_eq!(check("a:8443", Some("8443"), "a"), (false, true));
        assert_eq!(check("a:8443", Some("443"), "a"), (false, false));
        assert_eq!(check("a:81", None, "a:81"), (true, true));
        assert_eq!(check("a:8080", None, "a:81"), (false, false));
        assert_eq!(check("a", None, "a:81"), (false, false));
    }

    #[test]
    fn a_name_is_written_as_the_farm_writes_it() {
        let plain = |host| Visit::plain(HeaderValue::from_static(host), false);
        for (host, expected) in [
            ("www.example.com", "www.example.com"),
            ("WWW.example.com.", "www.example.com"),
            ("www.Example.com.:8080", "www.example.com:8080"),
        ] {
            let named = Arc::new(plain(host)).named_as(&plain("www.example.com:81"));
            assert_eq!(named.host, expected);
        }
    }

    #[test]
    fn a_dispatcher_is_encrypted_if_all_its_doors_are() {
        let doors = Doors::default();
        assert!(!doors.are_encrypted());
        doors.add(443, true);
        assert!(doors.are_encrypted());
        doors.add(80, false);
        assert!(!doors.are_encrypted());
    }

    #[test]
    fn memory_counts_what_visits_hold() {
        let weight = |visit: Visit| Weight.weight(&PathBuf::from("a.html"), &Arc::new(visit));
        let mut visit = Visit::plain(HeaderValue::from_static("a.example.com"), false);
        let plain = weight(visit.clone());
        assert!(plain >= 219, "{plain}");
        visit.forwarded.insert("x-forwarded-host", HeaderValue::from_static("b.example.com"));
        assert!(weight(visit) >= plain + 13);
    }
}
