//! A response of the dispatcher on its way to a visitor, with the permission to store it in the response memory.
//!
//! Invariants
//! * Only a response built from a cache file has the permission.
//! * Every method that changes a response takes the permission away, so a step that fills in, replaces or adds something
//!   for one visitor cannot leave it there. [`DispatcherResponse::shared_headers_mut`] alone keeps it.
//! * Only the response memory can take the permission out.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};

use crate::edge::response_body::ResponseBody;

use super::cached_response::{CachedBody, ResponseSource};

/// A response of the dispatcher to a visitor.
#[derive(Debug)]
pub(crate) struct DispatcherResponse {
    response: Response<ResponseBody>,
    origin: ResponseOrigin,
}

/// The origin of a response, which decides what may be done with it.
#[derive(Debug)]
enum ResponseOrigin {
    /// The unchanged content of a cache file, which may be stored in memory.
    CacheFile(CacheFileContent),
    /// The dispatcher itself. An error document always replaces such an error.
    Dispatcher,
    /// A render, or several sources.
    Other,
}

/// The cache file that a response was built from. The file is valid, or is served while a newer one is fetched.
#[derive(Debug)]
pub(crate) struct CacheFileContent {
    pub(crate) source: Arc<ResponseSource>,
    pub(crate) body: CachedBody,
}

impl From<Response<ResponseBody>> for DispatcherResponse {
    /// Wraps a response that must not be stored in memory.
    fn from(response: Response<ResponseBody>) -> Self {
        Self { response, origin: ResponseOrigin::Other }
    }
}

impl DispatcherResponse {
    /// Wraps a response that the memory may store: `content` in whole or in part, or only its head.
    pub(crate) fn from_cache_file(
        response: Response<ResponseBody>,
        content: CacheFileContent,
    ) -> Self {
        Self { response, origin: ResponseOrigin::CacheFile(content) }
    }

    /// Wraps an error or redirect that the dispatcher itself created.
    pub(crate) fn created_by_dispatcher(response: Response<ResponseBody>) -> Self {
        Self { response, origin: ResponseOrigin::Dispatcher }
    }

    /// Returns true if the dispatcher itself created the response.
    pub(crate) fn is_created_by_dispatcher(&self) -> bool {
        matches!(self.origin, ResponseOrigin::Dispatcher)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Returns the headers for a change that is the same for all requests with the same
    /// [`ResponseKey`](super::ResponseKey).
    pub(crate) fn shared_headers_mut(&mut self) -> &mut HeaderMap {
        self.response.headers_mut()
    }

    /// Returns the headers for any change.
    pub(crate) fn headers_mut(&mut self) -> &mut HeaderMap {
        self.forbid_storing();
        self.response.headers_mut()
    }

    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.forbid_storing();
        *self.response.status_mut() = status;
    }

    /// Replaces the body and returns the previous one.
    pub(crate) fn replace_body(&mut self, body: ResponseBody) -> ResponseBody {
        self.forbid_storing();
        std::mem::replace(self.response.body_mut(), body)
    }

    /// Takes away the permission to store the response in memory.
    pub(crate) fn forbid_storing(&mut self) {
        if let ResponseOrigin::CacheFile(_) = self.origin {
            self.origin = ResponseOrigin::Other;
        }
    }

    /// Returns the response to be sent, and the cache file's content if the response may be stored.
    pub(super) fn into_parts(self) -> (Response<ResponseBody>, Option<CacheFileContent>) {
        let content = match self.origin {
            ResponseOrigin::CacheFile(content) => Some(content),
            ResponseOrigin::Dispatcher | ResponseOrigin::Other => None,
        };
        (self.response, content)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use http::{HeaderValue, Response, StatusCode};

    use super::{CacheFileContent, CachedBody, DispatcherResponse, ResponseSource};
    use crate::cache::{CacheFileLookup, Docroot};
    use crate::config::DispatcherConfig;
    use crate::config::any_syntax::ConfigSources;
    use crate::edge::response_body::{empty_body, full_body};
    use crate::{Dispatcher, DispatcherRuntime};

    fn response_from_cache_file() -> DispatcherResponse {
        let text =
            "/farms { /site { /virtualhosts { \"*\" } /renders { /0 { /hostname \"h\" } } } }";
        let sources = ConfigSources::default();
        let loaded = DispatcherConfig::parse(text.as_bytes(), Path::new("test.any"), &sources);
        let dispatcher = Dispatcher::new(loaded.config, DispatcherRuntime::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.html"), "page").unwrap();
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        let CacheFileLookup::File(file) = docroot.look_up_file(Path::new("a.html"), false).unwrap()
        else {
            panic!("the file is not in the document root");
        };
        let source = ResponseSource {
            farm: Arc::clone(&dispatcher.current_state().parts.farms[0]),
            config_serial: 0,
            file: Path::new("a.html").into(),
            path: "/a.html".into(),
            length: file.length,
            file_stamp: file.stamp,
            fetch_time: file.fetched_at,
            initial_age: Duration::ZERO,
            has_own_date: false,
            etag: HeaderValue::from_static("\"x\""),
            modification_time: file.fetched_at,
            warning: None,
            is_stale: false,
        };
        let body = CachedBody::Memory(Bytes::from_static(b"page"));
        let content = CacheFileContent { source: Arc::new(source), body };
        DispatcherResponse::from_cache_file(Response::new(full_body("page")), content)
    }

    fn may_be_stored_after(change: fn(&mut DispatcherResponse)) -> bool {
        let mut response = response_from_cache_file();
        change(&mut response);
        response.into_parts().1.is_some()
    }

    #[test]
    fn a_changed_response_may_not_be_stored() {
        assert!(!may_be_stored_after(|response| {
            response.headers_mut().insert("set-cookie", HeaderValue::from_static("user=anna"));
        }));
        assert!(!may_be_stored_after(|response| response.set_status(StatusCode::NOT_FOUND)));
        assert!(!may_be_stored_after(|response| {
            response.replace_body(full_body("page of anna"));
        }));
        assert!(!may_be_stored_after(|response| {
            // The same body put back.
            let body = response.replace_body(empty_body());
            response.replace_body(body);
        }));
        assert!(!may_be_stored_after(DispatcherResponse::forbid_storing));
    }

    #[test]
    fn a_response_with_headers_for_everyone_may_be_stored() {
        assert!(may_be_stored_after(|_response| {}));
        assert!(may_be_stored_after(|response| {
            response.shared_headers_mut().insert("x-host", HeaderValue::from_static("a"));
        }));
    }

    #[test]
    fn only_the_content_of_a_cache_file_may_be_stored() {
        let response = DispatcherResponse::from(Response::new(full_body("page")));
        assert!(response.into_parts().1.is_none());
        let error = DispatcherResponse::created_by_dispatcher(Response::new(empty_body()));
        assert!(error.is_created_by_dispatcher());
        assert!(error.into_parts().1.is_none());
    }
}
