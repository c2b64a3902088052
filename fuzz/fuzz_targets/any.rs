//! The brace language of dispatcher.any: any text gives a configuration, and every configuration decides.
#![no_main]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use http::Request;
use libfuzzer_sys::fuzz_target;
use tympan_dispatcher::any_syntax::ConfigSources;
use tympan_dispatcher::config::DispatcherConfig;
use tympan_dispatcher::{RequestView, decide_request};
use tympan_web::listen::ConnectionPeer;

const REQUESTS: [(&str, &str); 4] = [
    ("GET", "/content/site/en.html"),
    ("GET", "/content/site/en.print.a4.html/suffix?q=1"),
    ("POST", "/bin/login"),
    ("HEAD", "/"),
];

fuzz_target!(|text: &[u8]| {
    // Includes of absolute paths find nothing below a root that does not exist.
    let root = Path::new("/nonexistent");
    let sources = ConfigSources { root: Some(root.to_owned()), ..ConfigSources::default() };
    let loaded = DispatcherConfig::parse(text, &root.join("dispatcher.any"), &sources);
    for finding in &loaded.diagnostics {
        assert!(!finding.to_string().is_empty());
    }
    if loaded.has_errors() {
        return;
    }
    let peer = ConnectionPeer::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), false);
    for (method, uri) in REQUESTS {
        let request =
            Request::builder().method(method).uri(uri).header("host", "www.example.org").body(());
        let Ok(request) = request else { continue };
        if let Ok(view) = RequestView::from_head(&request.into_parts().0, peer) {
            drop(decide_request(&loaded.config, &view));
        }
    }
});
