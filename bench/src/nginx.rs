//! The peer nginx: files of one folder, or a cache in front of an origin.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::Outcome;
use crate::context::SERVER_CORE;
use crate::process::{Process, free_address, is_installed, pinned};

/// What nginx does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Duty<'a> {
    /// Sends the files of a folder.
    Files(&'a Path),
    /// Keeps answers of an origin.
    Cache(SocketAddr),
    /// Sends the files of a folder over TLS 1.3, with this certificate and key.
    Secure(&'a Path, [&'a Path; 2]),
}

/// A running nginx with one worker.
#[derive(Debug)]
pub(crate) struct Nginx {
    process: Process,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Nginx {
    /// Starts nginx with its own files in `folder`, its access log among them.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub(crate) fn start(duty: Duty<'_>, folder: &Path) -> Outcome<Self> {
        if !is_installed("nginx") {
            return Err("nginx is not installed".into());
        }
        let address = free_address()?;
        let config = folder.join("nginx.conf");
        std::fs::write(&config, text(duty, address, folder)?)?;
        let mut command = pinned(SERVER_CORE, "nginx");
        command
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(&config)
            .arg("-e")
            .arg(folder.join("errors.log"));
        let mut process = Process::start(command, folder)?;
        process.wait_for_port(address, Duration::from_secs(10))?;
        Ok(Self { process, address })
    }

    /// Returns the id of the master process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Writes the configuration: what nginx's own guides advise for this, and kept connections without end.
fn text(duty: Duty<'_>, address: SocketAddr, folder: &Path) -> Outcome<String> {
    let mut text = String::new();
    // A worker that gives up root could not read the run's private folder.
    if rustix::process::geteuid().is_root() {
        text.push_str("user root;\n");
    }
    let dir = folder.display();
    write!(
        text,
        "worker_processes 1; daemon off; pid {dir}/nginx.pid; worker_rlimit_nofile 20000;
events {{ worker_connections 8192; multi_accept on; }}
http {{
  access_log {dir}/access.log combined buffer=64k flush=1s; sendfile on; tcp_nopush off; tcp_nodelay on; etag on;
  keepalive_requests 100000000; keepalive_timeout 65;
  types {{ text/html html; image/jpeg jpg; application/octet-stream bin; application/json json; }}
  open_file_cache max=10000 inactive=60s; open_file_cache_valid 60s;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  proxy_cache_path {dir}/cache levels=1:2 keys_zone=pages:10m inactive=10h use_temp_path=off;
  server {{ listen {address} backlog=4096{}; ",
        if matches!(duty, Duty::Secure(..)) { " ssl http2" } else { "" }
    )?;
    match duty {
        Duty::Files(root) => writeln!(text, "root {}; }}\n}}", root.display())?,
        Duty::Secure(root, [chain, key]) => writeln!(
            text,
            "root {}; ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.3; \
             http2_max_concurrent_streams 128; }}\n}}",
            root.display(),
            chain.display(),
            key.display()
        )?,
        Duty::Cache(origin) => writeln!(
            text,
            "location / {{ proxy_pass http://{origin}; proxy_cache pages; proxy_cache_valid 200 10h; proxy_http_version 1.1; \
             proxy_set_header Connection ''; }} }}\n}}"
        )?,
    }
    Ok(text)
}
