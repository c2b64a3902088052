//! The addresses at which pages were requested, so that they are re-fetched as their visitors see them.
//!
//! Input: the visits for which pages were stored. Output: the host, scheme and port for the re-fetch of a flushed page,
//! as they determine mapped addresses and absolute links.
//!
//! Invariants
//! * Only visits for which a page was stored count. For other pages, a visitor's statements about proxies in front are
//!   not used, nor, where the farm's host is configured literally, another host, or a port without a listener.
//! * Memory stays below [`MAX_VISIT_BYTES`]; the least used pages are evicted first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::config::parse_host;
use crate::request::view::RequestView;

/// The maximum memory for the visits of one document root, in bytes.
const MAX_VISIT_BYTES: u64 = 4 * 1024 * 1024;
/// The memory of an entry and its visit besides texts, in bytes.
const VISIT_OVERHEAD_BYTES: u64 = 328;
/// The memory of a header of a visit besides its value, in bytes.
const HEADER_OVERHEAD_BYTES: usize = 64;
/// The maximum length of a header value in bytes; a longer one is not an address.
const MAX_HEADER_VALUE_BYTES: usize = 256;
/// The folder depth that identifies a site: pages below the same folders usually belong to one site.
const SITE_DEPTH: usize = 2;

const FORWARDED_PORT_HEADER: HeaderName = HeaderName::from_static("x-forwarded-port");
/// The headers in which proxies state the address that a visitor sees.
const FORWARDED_ADDRESS_HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("x-forwarded-host"),
    FORWARDED_PORT_HEADER,
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-ssl"),
];

/// The listeners of a dispatcher on which visitors connect.
#[derive(Debug, Default)]
pub(crate) struct ListenerPorts(Mutex<Vec<ListenerPort>>);

#[derive(Debug, Clone, Copy)]
struct ListenerPort {
    port: u16,
    is_tls: bool,
}

impl ListenerPorts {
    /// Adds a listener.
    pub(crate) fn add(&self, port: u16, is_tls: bool) {
        self.0.lock().push(ListenerPort { port, is_tls });
    }

    fn has_port(&self, port: &str) -> bool {
        let port: Option<u16> = port.parse().ok();
        self.0.lock().iter().any(|listener_port| Some(listener_port.port) == port)
    }

    /// Returns true if visitors can connect only by TLS.
    pub(crate) fn is_tls_only(&self) -> bool {
        let ports = self.0.lock();
        !ports.is_empty() && ports.iter().all(|listener_port| listener_port.is_tls)
    }
}

/// The address at which a page was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VisitAddress {
    host: HeaderValue,
    is_tls: bool,
    is_proxied: bool,
    forwarded_headers: HeaderMap,
}

impl VisitAddress {
    /// Returns the address of a request; `None` if it names no host.
    pub(crate) fn from_request(view: &RequestView) -> Option<Self> {
        let is_short = |value: &&HeaderValue| value.len() <= MAX_HEADER_VALUE_BYTES;
        let host = view.headers.get(header::HOST).filter(is_short)?.clone();
        let mut forwarded = HeaderMap::new();
        for name in FORWARDED_ADDRESS_HEADERS {
            if let Some(value) = view.headers.get(&name).filter(is_short) {
                forwarded.insert(name, value.clone());
            }
        }
        let (is_tls, is_proxied) = (view.is_tls, view.is_proxied);
        (!host.is_empty()).then_some(Self {
            host,
            is_tls,
            is_proxied,
            forwarded_headers: forwarded,
        })
    }

    /// Creates the address of a visitor who connects to `host` without a proxy.
    pub(crate) fn direct(host: HeaderValue, is_tls: bool) -> Self {
        Self { host, is_tls, is_proxied: false, forwarded_headers: HeaderMap::new() }
    }

    fn name_and_port(&self) -> (String, Option<&str>) {
        parse_host(self.host.to_str().unwrap_or_default())
    }

    /// Returns true if the visitor used the farm's `own` address. The port in `Host` is chosen by the visitor, so
    /// it counts only if another source confirms it.
    pub(crate) fn is_at_address(&self, own: &Self, ports: &ListenerPorts) -> bool {
        let ((name, port), (own_name, own_port)) = (self.name_and_port(), own.name_and_port());
        let is_told = |port: &str| {
            let by_proxy =
                self.forwarded_headers.get(&FORWARDED_PORT_HEADER).filter(|_| self.is_proxied);
            by_proxy.is_some_and(|forwarded_port| forwarded_port.as_bytes() == port.as_bytes())
                || ports.has_port(port)
        };
        name == own_name && (port == own_port || own_port.is_none() && port.is_none_or(is_told))
    }

    /// Returns the visit with the farm's `own` name, which a visitor may have spelled differently.
    pub(crate) fn with_name_of(self: Arc<Self>, own: &Self) -> Arc<Self> {
        let ((name, _), (_, port)) = (own.name_and_port(), self.name_and_port());
        let host = port.map_or_else(|| name.clone(), |port| format!("{name}:{port}"));
        match HeaderValue::from_str(&host) {
            Ok(host) if host != self.host => Arc::new(Self { host, ..Self::clone(&self) }),
            _ => self,
        }
    }

    /// Returns the parts that are valid for other pages, too, without the visitor's statements about proxies in front.
    fn without_forwarded(visit: Arc<Self>) -> Arc<Self> {
        if visit.is_proxied || visit.forwarded_headers.is_empty() {
            return visit;
        }
        Arc::new(Self { forwarded_headers: HeaderMap::new(), ..Self::clone(&visit) })
    }

    /// Changes `view` to a request for the same page at this address.
    pub(crate) fn apply_to_request(&self, view: &mut RequestView) {
        let (host, port) = self.name_and_port();
        view.host = host;
        view.port = port.map(str::to_owned);
        view.headers.insert(header::HOST, self.host.clone());
        for (name, value) in &self.forwarded_headers {
            view.headers.insert(name.clone(), value.clone());
        }
        view.is_tls = self.is_tls;
        view.scheme = if self.is_tls { "https" } else { "http" };
        view.is_proxied = self.is_proxied;
    }
}

#[derive(Debug, Clone)]
struct VisitAddressWeight;

impl Weighter<PathBuf, Arc<VisitAddress>> for VisitAddressWeight {
    fn weight(&self, path: &PathBuf, visit: &Arc<VisitAddress>) -> u64 {
        let values = visit.forwarded_headers.values();
        let forwarded: usize = values.map(|value| value.len() + HEADER_OVERHEAD_BYTES).sum();
        (path.as_os_str().len() + visit.host.len() + forwarded) as u64 + VISIT_OVERHEAD_BYTES
    }
}

/// The visits of one document root.
#[derive(Debug)]
pub(crate) struct VisitAddresses {
    /// Keyed by files and by the first folders of pages.
    addresses: Cache<PathBuf, Arc<VisitAddress>, VisitAddressWeight>,
    last_address: Mutex<Option<Arc<VisitAddress>>>,
}

impl Default for VisitAddresses {
    fn default() -> Self {
        let likely = usize::try_from(MAX_VISIT_BYTES / VISIT_OVERHEAD_BYTES / 2).unwrap_or(1024);
        Self {
            addresses: Cache::with_weighter(likely, MAX_VISIT_BYTES, VisitAddressWeight),
            last_address: Mutex::default(),
        }
    }
}

impl VisitAddresses {
    /// Records the visit for which the page at `file` was stored.
    pub(crate) fn record_visit(&self, file: &Path, visit: &VisitAddress) {
        let mut last = self.last_address.lock();
        // Most pages are requested at one address, which is stored once.
        let visit = match &*last {
            Some(last) if **last == *visit => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::new(visit.clone()))),
        };
        drop(last);
        // The first visit is retained, so that later visitors cannot change the address of the site.
        if let Some(site) = site_folder(file)
            && self.addresses.get(&site).is_none()
        {
            self.addresses.insert(site, Arc::clone(&visit));
        }
        self.addresses.insert(file.to_owned(), visit);
    }

    /// Returns the last visit for which the page at `file` was stored.
    pub(crate) fn find_page_visit(&self, file: &Path) -> Option<Arc<VisitAddress>> {
        self.addresses.get(file)
    }

    /// Returns the visit for which the first page of the same site was stored.
    pub(crate) fn find_site_visit(&self, file: &Path) -> Option<Arc<VisitAddress>> {
        self.addresses.get(&site_folder(file)?).map(VisitAddress::without_forwarded)
    }

    /// Returns the last visit for which any page was stored.
    pub(crate) fn last_visit(&self) -> Option<Arc<VisitAddress>> {
        self.last_address.lock().clone().map(VisitAddress::without_forwarded)
    }
}

/// Returns the first folders of a file; `None` if it is not below that many folders.
fn site_folder(file: &Path) -> Option<PathBuf> {
    let site: PathBuf = file.parent()?.iter().take(SITE_DEPTH).collect();
    (site.iter().count() == SITE_DEPTH).then_some(site)
}

#[cfg(test)]
mod tests {
    use super::{ListenerPorts, VisitAddress, VisitAddressWeight, VisitAddresses};
    use http::HeaderValue;
    use quick_cache::Weighter;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    #[test]
    fn a_page_is_known_by_itself_or_by_its_site() {
        let visits = VisitAddresses::default();
        let visit = |host| VisitAddress::direct(HeaderValue::from_static(host), false);
        let host = |file: &str| {
            let file = Path::new(file);
            let visit_address =
                visits.find_page_visit(file).or_else(|| visits.find_site_visit(file))?;
            Some(visit_address.host.to_str().unwrap().to_owned())
        };
        assert!(visits.last_visit().is_none());
        for (file, name) in [
            ("content/a/en.html", "a.example.com"),
            ("content/b/en.html", "b.example.com"),
            ("content/a/de.html", "de.example.com"),
            ("content/c.html", "c.example.com"),
            ("d.html", "c.example.com"),
        ] {
            visits.record_visit(Path::new(file), &visit(name));
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
        let last = visits.last_visit().unwrap();
        assert!(Arc::ptr_eq(&last, &visits.find_page_visit(Path::new("content/c.html")).unwrap()));
    }

    #[test]
    fn a_port_counts_that_not_only_the_visitor_tells() {
        let ports = ListenerPorts::default();
        ports.add(8080, false);
        let check = |host: &'static str, proxy: Option<&'static str>, own: &'static str| {
            let mut visit = VisitAddress::direct(HeaderValue::from_static(host), false);
            if let Some(port) = proxy {
                visit.forwarded_headers.insert("x-forwarded-port", HeaderValue::from_static(port));
            }
            let believed = VisitAddress { is_proxied: true, ..visit.clone() };
            let own = VisitAddress::direct(HeaderValue::from_static(own), false);
            (visit.is_at_address(&own, &ports), believed.is_at_address(&own, &ports))
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
        let plain = |host| VisitAddress::direct(HeaderValue::from_static(host), false);
        for (host, expected) in [
            ("www.example.com", "www.example.com"),
            ("WWW.example.com.", "www.example.com"),
            ("www.Example.com.:8080", "www.example.com:8080"),
        ] {
            let named = Arc::new(plain(host)).with_name_of(&plain("www.example.com:81"));
            assert_eq!(named.host, expected);
        }
    }

    #[test]
    fn a_dispatcher_is_encrypted_if_all_its_listeners_are() {
        let ports = ListenerPorts::default();
        assert!(!ports.is_tls_only());
        ports.add(443, true);
        assert!(ports.is_tls_only());
        ports.add(80, false);
        assert!(!ports.is_tls_only());
    }

    #[test]
    fn memory_counts_what_visits_hold() {
        let weight = |visit: VisitAddress| {
            VisitAddressWeight.weight(&PathBuf::from("a.html"), &Arc::new(visit))
        };
        let mut visit = VisitAddress::direct(HeaderValue::from_static("a.example.com"), false);
        let plain = weight(visit.clone());
        assert!(plain >= 219, "{plain}");
        visit
            .forwarded_headers
            .insert("x-forwarded-host", HeaderValue::from_static("b.example.com"));
        assert!(weight(visit) >= plain + 13);
    }
}
