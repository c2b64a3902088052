//! From vhost files to `tympan.toml`.

use std::path::Path;

use tympan_dispatcher::{
    ConvertedConfig, Dispatcher, DispatcherRuntime, DispatcherSettings, convert_httpd_config,
};
use tympan_testkit::fixture_folder::fixture_folder;
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::corpus::files_below;
use crate::front::{Front, Setup, load};

/// Converts one file, and checks that the result can be used.
fn converted(text: &str) -> (ConvertedConfig, String) {
    let converted = convert_httpd_config(&[(Path::new("site.vhost"), text)], None);
    let section = settings_of(&converted);
    (converted, section)
}

/// The section without its name, as tests of `DispatcherSettings` write it.
fn settings_of(converted: &ConvertedConfig) -> String {
    let section = converted.toml.replace("[dispatcher]\n", "").replace("[[dispatcher.", "[[");
    let settings: DispatcherSettings =
        toml::from_str(&section).unwrap_or_else(|error| panic!("{error} in {section}"));
    let config = load(&Setup::default().text("/".as_ref())).config;
    Dispatcher::with_settings(config, &settings, DispatcherRuntime::default())
        .unwrap_or_else(|error| panic!("{error} in {section}"));
    section
}

fn findings(converted: &ConvertedConfig) -> Vec<String> {
    converted.diagnostics.iter().map(ToString::to_string).collect()
}

/// The vhost of the OpenCms tuning article.
const OPENCMS: &str = r#"<VirtualHost *:80>
   <Directory "/usr/local/tomcat-staging/apache-tomcat-5.5.25/webapps/ROOT/">
       Options Indexes Includes FollowSymLinks MultiViews
       Order allow,deny
       Allow from all
   </Directory>
   ServerName dev1.local  # Change this to your  server name
   ServerAdmin webmaster@example.org
   DocumentRoot "@ROOT@"
   ErrorLog logs/error.log

   RewriteEngine on

   RewriteRule ^/(.*):SSL$ https://%{SERVER_NAME}/$1 [R,L]
   RewriteRule ^/(.*):NOSSL$ http://%{SERVER_NAME}/$1 [R,L]

   RewriteCond %{REQUEST_URI} ^/export/.*$
   RewriteCond "%{DOCUMENT_ROOT}%{REQUEST_FILENAME}" !-f
   RewriteCond "%{DOCUMENT_ROOT}%{REQUEST_FILENAME}/index_export.html" !-f
   RewriteRule .* /portal/handle404?exporturi=%{REQUEST_URI}&%{QUERY_STRING} [P,L]

   # Log only non-redirect requests in "normal" log file
   SetEnvIf Request_URI "\/opencms\/*" redirect
   CustomLog logs/localhost-access.log common env=!redirect

   RedirectMatch ^/$ /portal/

   ProxyPass         /resources/               !
   ProxyPass         /export/                  !

   ProxyPass         /portal/                  http://127.0.0.1:@PORT@/portal/
   ProxyPassReverse  /portal/                  http://127.0.0.1:@PORT@/portal/
</VirtualHost>
"#;

#[test]
fn the_vhost_of_the_opencms_article_works_as_it_did() {
    let tomcat =
        OriginServer::start(|seen| OriginResponse::html(format!("tomcat {}", seen.target)));
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("export/aunz")).unwrap();
    std::fs::write(folder.path().join("export/aunz/there.html"), "static").unwrap();
    let text = OPENCMS
        .replace("@PORT@", &tomcat.addr().port().to_string())
        .replace("@ROOT@", &folder.path().display().to_string());
    let (converted, section) = converted(&text);
    let found = findings(&converted);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].starts_with("site.vhost:23:4: warning: `SetEnvIf` is not converted"),
        "{found:?}"
    );
    let farm = OriginServer::start(|seen| OriginResponse::html(format!("farm {}", seen.target)));
    let setup = Setup { renders: vec![farm.addr()], settings: section, ..Setup::default() };
    let front = Front::start(&setup);
    let ask = |target: &str| front.send("GET", target, &[("Host", "dev1.local")], "");
    assert_eq!(ask("/").header("location"), Some("http://dev1.local/portal/"));
    assert_eq!(ask("/a.html:SSL").header("location"), Some("https://dev1.local/a.html"));
    assert_eq!(ask("/portal/x.html?y=z").body, "tomcat /portal/x.html?y=z");
    let missing = ask("/export/aunz/missing.html?a=b").body;
    assert_eq!(missing, "tomcat /portal/handle404?exporturi=/export/aunz/missing.html&a=b");
    assert_eq!(ask("/export/aunz/there.html").body, "farm /export/aunz/there.html");
    assert_eq!(ask("/resources/a.css").body, "farm /resources/a.css");
}

#[test]
fn switches_variables_and_error_documents() {
    let (converted, section) = converted(
        r#"
Define HOST www.example.com
Define ROOT /var/www/html
DispatcherConfig conf.dispatcher.d/dispatcher.any
DispatcherDeclineRoot Off
DispatcherUseProcessedURL 1
DispatcherPassError 400-404
DispatcherKeepAliveTimeout 30
<VirtualHost *:80>
    ServerName "http://${HOST}:8080"
    ServerAlias *.example.com ${UNKNOWN}
    DocumentRoot "${ROOT}"
    <IfModule mod_headers.c>
        Header always set X-Frame-Options "SAMEORIGIN"
        Header append Vary User-Agent env=!dont-vary
    </IfModule>
    DirectorySlash Off
    ErrorDocument 404 /errors/404.html
    ErrorDocument 500 "sorry, \"we\" failed"
    RewriteEngine On
    RewriteCond %{HTTP_HOST} !^www [NC]
    RewriteCond %{REQUEST_METHOD} =GET [OR]
    RewriteCond %{REQUEST_METHOD} =HEAD
    RewriteRule ^(/content)?/(en|de)/(.*)$ /content/site/$2/$3 \
        [PT,L,QSA]
    RewriteRule ^/gone - [G]
    RewriteRule ^/no - [F]
    RewriteCond %{TIME_HOUR} >12
    RewriteRule ^/evening /x [L]
    RewriteRule ^/chain /x [C]
    Redirect 301 /old http://www.example.com/new
    Redirect permanent /older/ http://www.example.com/newer/
    Redirect gone /never
    <Location /server-status>
        SetHandler server-status
        ProxyPass http://elsewhere/status
    </Location>
</VirtualHost>
"#,
    );
    for expected in [
        "# Farms: --config conf.dispatcher.d/dispatcher.any",
        "use_processed_url = true",
        "pass_error = \"400-404\"",
        "keep_alive_timeout = \"30s\"",
        "decline_root = false",
        // The first host is also the one for all other names.
        "names = [\"www.example.com\", \"*.example.com\", \"${unknown}\", \"*\"]",
        "document_root = \"/var/www/html\"",
        "\"404\" = \"/errors/404.html\"",
        "\"500\" = 'sorry, \"we\" failed'",
        "\"X-Frame-Options\" = \"SAMEORIGIN\"",
        "{ test = \"%{REQUEST_METHOD}\", match = \"^GET$\", or = true }",
        "{ test = \"%{HTTP_HOST}\", match = \"^www\", negate = true, ignore_case = true }",
        "rewrite = \"/content/site/$2/$3\"\npass_through = true\nquery = \"append\"",
        "match = \"^/gone\"\nanswer = 410",
        "match = \"^/old(/.*)?$\"\nredirect = \"http://www.example.com/new$1\"\nstatus = 301",
        "match = '^/server\\-status(/.*)?$'\nproxy = \"http://elsewhere/status$1\"",
    ] {
        assert!(section.contains(expected), "{expected} in {section}");
    }
    assert!(!section.contains("evening") && !section.contains("chain"), "{section}");
    let found = findings(&converted);
    let at = |line: u32, text: &str| {
        let place = format!("site.vhost:{line}:");
        assert!(
            found.iter().any(|found| found.starts_with(&place) && found.contains(text)),
            "{found:#?}"
        );
    };
    at(15, "`Header` is not converted");
    at(28, "error: `RewriteCond` is not converted: the variable `%{TIME_HOUR}`");
    at(30, "error: `RewriteRule` is not converted: the flags `C`");
    at(11, "warning: the variable `UNKNOWN` is not set");
    assert_eq!(found.len(), 4, "{found:#?}");
}

#[test]
fn broken_files_are_reported_by_line() {
    let (converted, _) = converted("<VirtualHost *>\n</Directory>\n<VirtualHost *>\n");
    let found = findings(&converted);
    assert!(
        found[0].starts_with("site.vhost:2:1: error: `</Directory>` has no opening tag"),
        "{found:?}"
    );
    assert!(found[1].contains("`<VirtualHost>` is never closed"), "{found:?}");
}

#[test]
fn every_public_vhost_gives_settings_that_can_be_used() {
    let Some(folder) = fixture_folder("dispatcher") else { return };
    let mut files = Vec::new();
    files_below(&folder, &mut files);
    files.sort();
    let is_httpd = |file: &&std::path::PathBuf| {
        let kind = file.extension().and_then(|kind| kind.to_str());
        kind.is_some_and(|kind| ["vhost", "conf", "vars", "rules"].contains(&kind))
    };
    for file in files.iter().filter(is_httpd) {
        let bytes = std::fs::read(file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        settings_of(&convert_httpd_config(&[(file, &text)], None));
    }
}

/// Starts a dispatcher with a converted file, behind a proxy that tells who asks and whether by TLS.
fn start(section: &str) -> (Front, OriginServer) {
    let render =
        OriginServer::start(|seen| OriginResponse::html(format!("render {}", seen.target)));
    let settings = format!("{section}\n[front]\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let renders = vec![render.addr()];
    (Front::start(&Setup { renders, settings, ..Setup::default() }), render)
}

/// Sections of all kinds that let some visitors in.
const CLOSED: &str = r#"
<Directory />
    Require all denied
    <Limit OPTIONS>
        Order deny,allow
        Deny from all
    </Limit>
</Directory>
<Directory "/var/www">
    Require all granted
</Directory>
<Directory "/var/www/cgi-bin">
    Require all denied
</Directory>
<Files ".ht*">
    Require all denied
</Files>
<VirtualHost *:80>
    ServerName www.example.com
    DocumentRoot /var/www/html
    <Directory "/var/www/html/private">
        Require all denied
    </Directory>
    <Location /internal>
        Require ip 10.0.0.0/8 192.168.1
        Require local
    </Location>
    <Location /internal/open/>
        Require all granted
    </Location>
    <LocationMatch "^/api/.*/secret">
        Order deny,allow
        Deny from all
        Allow from 10.1
    </LocationMatch>
    <Location /guests>
        <RequireAll>
            Require all granted
            <RequireNone>
                Require ip 203.0.113.7
            </RequireNone>
        </RequireAll>
    </Location>
    <IfVersion < 2.4>
        <Location /guests>
            Deny from all
        </Location>
    </IfVersion>
    RewriteEngine On
    RewriteRule ^/internal/(.*)$ /content/$1 [L]
</VirtualHost>
"#;

#[test]
fn what_httpd_closes_stays_closed() {
    let (converted, section) = converted(CLOSED);
    assert_eq!(findings(&converted), Vec::<String>::new());
    let (front, _render) = start(&section);
    let check = |method: &str, target: &str, client: &str, expected: u16| {
        // A name that no host has gets the first one, as in httpd.
        for host in ["www.example.com", "other.example.net"] {
            let headers = [("Host", host), ("X-Forwarded-For", client)];
            let status = front.send(method, target, &headers, "").status;
            assert_eq!(status, expected, "{method} {target} {client} {host} in {section}");
        }
    };
    let stranger = "203.0.113.9";
    check("GET", "/a.html", stranger, 200);
    check("OPTIONS", "/a.html", stranger, 403);
    check("GET", "/private/a.html", "10.0.0.1", 403);
    check("GET", "/privates.html", stranger, 200);
    check("GET", "/cgi-bin/a.html", stranger, 200);
    check("GET", "/x/.htpasswd", stranger, 403);
    check("GET", "/internal", stranger, 403);
    check("GET", "/internal/a.html", stranger, 403);
    check("GET", "/%69nternal//a%0a.html", stranger, 403);
    check("GET", "/internal/a.html", "10.9.8.7", 200);
    check("GET", "/internal/a.html", "192.168.1.20", 200);
    check("GET", "/internal/a.html", "192.168.10.2", 403);
    check("GET", "/internal/open/a.html", stranger, 200);
    check("GET", "/internals.html", stranger, 200);
    check("GET", "/api/v1/secret.html", stranger, 403);
    check("GET", "/api/v1/secret.html", "10.1.0.1", 200);
    check("GET", "/guests/a.html", stranger, 200);
    check("GET", "/guests/a.html", "203.0.113.7", 403);
}

/// Rules that lead to what is closed, and away from it.
const LED: &str = r#"
DispatcherUseProcessedURL @PROCESSED@
<VirtualHost *:80>
    ServerName www.example.com
    DocumentRoot /var/www/html
    <Directory "/var/www/html/private">
        Require all denied
    </Directory>
    <Files "*.bak">
        Require all denied
    </Files>
    <Location /internal>
        Require all denied
    </Location>
    RewriteEngine On
    RewriteRule ^/to-folder/(.*)$ /private/$1 [PT]
    RewriteRule ^/to-file/(.*)$ /$1.bak
    RewriteRule ^/to-location/(.*)$ /internal/$1 [PT]
    RewriteRule ^/to-its-files/(.*)$ /internal/$1 [L]
    RewriteRule ^/internal/open/(.*)$ /open/$1 [PT]
    RewriteRule ^/internal/still/(.*)$ /open/$1 [L]
    RewriteRule ^/internal/proxied/(.*)$ http://@BACK@/$1 [P]
    RewriteRule ^/private/moved$ /new.html [R=301,L]
    ProxyPass /private/api http://@BACK@/api
    ProxyPass /internal/api http://@BACK@/api
    Redirect /internal/old /new.html
    Redirect gone /private/gone
</VirtualHost>
"#;

#[test]
fn rules_lead_past_what_httpd_closes_only_where_they_do_in_httpd() {
    let back = OriginServer::start(|seen| OriginResponse::html(format!("back {}", seen.target)));
    let text = LED.replace("@BACK@", &back.addr().to_string());
    for (processed, open, files) in [
        ("On", "200 render /open/a.html", "200 render /internal/a.html"),
        ("Off", "200 render /internal/open/a.html", "200 render /to-its-files/a.html"),
    ] {
        let (converted, section) = converted(&text.replace("@PROCESSED@", processed));
        assert_eq!(findings(&converted), Vec::<String>::new());
        let (front, _render) = start(&section);
        let check = |target: &str, expected: &str| {
            let reply = front.get(target);
            let seen =
                format!("{} {}", reply.status, reply.header("location").unwrap_or(&reply.body));
            assert!(seen.starts_with(expected), "{target}: {seen} in {section}");
        };
        check("/private/a.html", "403");
        check("/a.html.bak", "403");
        check("/internal/a.html", "403");
        check("/to-folder/a.html", "403");
        check("/to-file/a.html", "403");
        check("/to-location/a.html", "403");
        // `<Location>` is about the URL, which `[PT]` alone changes.
        check("/to-its-files/a.html", files);
        check("/internal/open/a.html", open);
        check("/internal/still/a.html", "403");
        check("/internal/proxied/a.html", "403");
        check("/internal/api/a.html", "403");
        // No folder is looked up for what another server answers.
        check("/private/api/a.html", "200 back /api/a.html");
        // Who is sent elsewhere is not asked.
        check("/private/moved", "301 http://www.example.com/new.html");
        check("/internal/old", "302 http://www.example.com/new.html");
        check("/private/gone", "410");
    }
    assert_eq!(back.request_count(), 2);
}

#[test]
fn paths_that_httpd_asks_itself_for_are_reported_where_locations_are_closed() {
    let host = |more: &str| {
        format!(
            "<VirtualHost *:80>\n{more}RewriteEngine On\nRewriteRule ^/a /b [P]\n</VirtualHost>\n"
        )
    };
    let closed = "<Location /a>\nRequire all denied\n</Location>\n";
    assert_eq!(findings(&converted(&host("")).0), Vec::<String>::new());
    let found = findings(&converted(&host(closed)).0);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("site.vhost:6:1: warning: for requests that this rule proxies"),
        "{found:?}"
    );
}

#[test]
fn rules_of_mod_alias_and_mod_proxy_see_what_mod_rewrite_leaves_them() {
    let back = OriginServer::start(|seen| OriginResponse::html(format!("back {}", seen.target)));
    let text = r"
DispatcherUseProcessedURL On
<VirtualHost *:80>
    ServerName www.example.com
    RewriteEngine On
    RewriteRule ^/api/ - [L]
    RewriteRule ^/passed/(.*)$ /api/$1 [PT]
    RewriteRule ^/mapped/(.*)$ /api/$1 [L]
    RewriteRule ^/going-on/(.*)$ /api/$1
    RewriteRule ^/api/(.*)$ /second/$1
    RewriteRule ^/one$ /two
    RewriteCond %{REQUEST_URI} ^/one$
    RewriteRule ^/two$ /three.html [PT]
    ProxyPass /api/own !
    ProxyPass /api http://@BACK@/api
    Redirect /api/own /new.html
    Redirect /second /never.html
</VirtualHost>
"
    .replace("@BACK@", &back.addr().to_string());
    let (converted, section) = converted(&text);
    assert_eq!(findings(&converted), Vec::<String>::new());
    let (front, _render) = start(&section);
    for (target, expected) in [
        ("/api/a.html", "back /api/a.html"),
        ("/passed/a.html", "back /api/a.html"),
        ("/mapped/a.html", "render /api/a.html"),
        ("/going-on/a.html", "render /second/a.html"),
        ("/one", "render /three.html"),
        ("/two", "render /two"),
    ] {
        assert_eq!(front.get(target).body, expected, "{target} in {section}");
    }
    let moved = |target: &str| front.get(target).header("location").map(str::to_owned);
    assert_eq!(moved("/api/own").as_deref(), Some("http://www.example.com/new.html"));
    assert_eq!(
        moved("/second/a.html").as_deref(),
        Some("http://www.example.com/never.html/a.html")
    );
}

#[test]
fn access_rules_without_a_counterpart_close_what_they_protect() {
    let (converted, section) = converted(
        r#"
<VirtualHost *:80>
    ServerName www.example.com
    <Location /staff>
        AuthType Basic
        Require valid-user
    </Location>
    <Location /partners>
        Order deny,allow
        Deny from all
        Allow from env=partner
    </Location>
    <Location /either>
        <RequireAny>
            <RequireAll>
                Require ip 10.0.0.1
            </RequireAll>
        </RequireAny>
    </Location>
    <Proxy *>
        Deny from all
    </Proxy>
    <If "%{HTTP_HOST} == 'test'">
        Require all denied
        RewriteRule ^/ - [F]
    </If>
    Require ip 10.0.0.1
    <Directory "/srv/elsewhere">
        Require all denied
    </Directory>
</VirtualHost>
"#,
    );
    let found = findings(&converted);
    for expected in [
        "site.vhost:6:9: error: `Require` is not converted: `valid-user` is not supported; requests for the section are refused",
        "site.vhost:11:9: error: `Allow` is not converted: `env=partner` is not an address",
        "site.vhost:16:17: error: `Require` is not converted: this nesting of requirements is not supported",
        "site.vhost:20:5: error: the access rules of this section are not converted: it does not apply to pages",
        "site.vhost:24:9: error: `Require` is not converted: the pages to which it applies are unknown",
        "site.vhost:25:9: error: `RewriteRule` is not converted: it is inside `<If>`",
        "site.vhost:27:5: error: `Require` is not converted: the pages to which it applies are unknown",
        "site.vhost:28:5: error: the access rules of this section are not converted: without a `DocumentRoot`",
    ] {
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected} in {found:#?}");
    }
    let errors = found.iter().filter(|found| found.contains(" error: ")).count();
    assert_eq!(errors, 8, "{found:#?}");
    let (front, render) = start(&section);
    for path in ["/staff/a.html", "/partners/a.html", "/either/a.html"] {
        assert_eq!(front.get(path).status, 403, "{path}");
    }
    assert_eq!(render.request_count(), 0);
    assert_eq!(front.get("/open.html").status, 200);
}

#[test]
fn folders_of_a_host_without_a_root_close_nothing_else() {
    let (converted, section) = converted(
        r#"
<Directory />
    Require all denied
</Directory>
<Directory /var/www/>
    Require all granted
</Directory>
<VirtualHost *:80>
    ServerName www.example.com
    Redirect permanent / https://www.example.org/
</VirtualHost>
"#,
    );
    let found = findings(&converted);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("site.vhost:2:1: error: the access rules of this section"),
        "{found:?}"
    );
    let (front, _render) = start(&section);
    assert_eq!(front.get("/a.html").status, 301, "{section}");
}

#[test]
fn folders_that_nobody_knows_are_reported_where_they_let_visitors_in() {
    let check = |folder: &str| {
        let (converted, _) = converted(&format!(
            "<Directory />\nRequire all denied\n</Directory>\n\
             {folder}\nRequire all granted\n</Directory>\n\
             <VirtualHost *:80>\nServerName a\nDocumentRoot /var/www/a\n</VirtualHost>\n",
        ));
        let found = findings(&converted);
        assert_eq!(found.len(), 1, "{found:?}");
        let expected =
            "site.vhost:4:1: error: the access rules of this section are not converted: patterns";
        assert!(found[0].starts_with(expected), "{found:?}");
    };
    check("<Directory \"/var/www/*/htdocs\">");
    check("<Directory ~ \"^/var/www/\">");
}

#[test]
fn hosts_of_one_name_are_distinguished_by_their_port() {
    let (converted, section) = converted(
        r#"
DispatcherUseProcessedURL On
<VirtualHost *:80>
    ServerName www.example.com
    Redirect permanent / https://www.example.com/
</VirtualHost>
<VirtualHost *:443>
    ServerName www.example.com:443
    ServerAlias shop.example.com
    RewriteEngine On
    RewriteRule ^/$ /content/en.html [PT,L]
</VirtualHost>
<VirtualHost *:8081>
    ServerName www.example.com
    RewriteEngine On
    RewriteRule ^/ - [F]
</VirtualHost>
<VirtualHost *:443>
    ServerName shop.example.com
    RewriteEngine On
    RewriteRule ^/ - [G]
</VirtualHost>
"#,
    );
    let found = findings(&converted);
    for expected in [
        "site.vhost:18:1: warning: this `<VirtualHost>` is unreachable",
        "site.vhost:16:5: warning: this rule refuses requests to one of several ports",
    ] {
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected} in {found:?}");
    }
    assert_eq!(found.len(), 2, "{found:?}");
    let (front, _render) = start(&section);
    let check = |host: &str, scheme: &str, expected: &str| {
        let reply = front.send("GET", "/", &[("Host", host), ("X-Forwarded-Proto", scheme)], "");
        let seen = format!("{} {}", reply.status, reply.header("location").unwrap_or(&reply.body));
        assert!(seen.starts_with(expected), "{host} {scheme}: {seen} in {section}");
    };
    check("www.example.com", "http", "301 https://www.example.com/");
    check("www.example.com", "https", "200 render /content/en.html");
    check("www.example.com:8081", "http", "403");
    check("www.example.com:8080", "http", "301 https://www.example.com/");
    // The first host of a port takes names that none of its hosts has.
    check("shop.example.com", "http", "301 https://www.example.com/");
    check("shop.example.com", "https", "200 render /content/en.html");
    check("other.example.net", "https", "200 render /content/en.html");
}

#[test]
fn a_port_that_a_visitor_writes_opens_nothing() {
    let (converted, section) = converted(
        r#"
<VirtualHost *:80>
    ServerName www.example.com
    <Location /admin>
        Require all denied
    </Location>
</VirtualHost>
<VirtualHost *:8443>
    ServerName www.example.com
    RewriteEngine On
    RewriteRule ^/way/(.*)$ /admin/$1 [L]
</VirtualHost>
"#,
    );
    let found = findings(&converted);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("site.vhost:8:1: warning: access that hosts of one name deny"),
        "{found:?}"
    );
    let (front, _render) = start(&section);
    for host in ["www.example.com", "www.example.com:8443", "www.example.com:9"] {
        let status = |path| front.send("GET", path, &[("Host", host)], "").status;
        assert_eq!(status("/admin/a.html"), 403, "{host} in {section}");
        let is_rewritten = host.ends_with(":8443");
        let way = status("/way/a.html");
        assert_eq!(way, if is_rewritten { 403 } else { 200 }, "{host} in {section}");
        assert_eq!(status("/a.html"), 200, "{host} in {section}");
    }
}

#[test]
fn settings_of_a_host_cannot_differ_by_port() {
    let (converted, section) = converted(
        "<VirtualHost *:80>\nServerName a\nHeader set X 1\n</VirtualHost>\n\
         <VirtualHost 10.0.0.1:443>\nServerName a\nHeader set X 2\n</VirtualHost>\n\
         <VirtualHost 10.0.0.2:443>\nServerName a\n</VirtualHost>\n",
    );
    assert!(section.contains("headers = { \"X\" = \"2\" }"), "{section}");
    let found = findings(&converted);
    for expected in [
        "site.vhost:5:1: warning: hosts of one name set `Header` differently",
        "site.vhost:5:1: warning: the address `10.0.0.1` is left out",
        "site.vhost:9:1: error: this `<VirtualHost>` is not converted: only the address `10.0.0.2`",
    ] {
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected} in {found:#?}");
    }
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn proxies_take_whole_segments() {
    let back = OriginServer::start(|seen| match seen.target.as_str() {
        "/away.cgi" => {
            let host = seen.header("host").unwrap();
            OriginResponse::with_status(302)
                .with_header("Location", &format!("http://{host}/b.cgi"))
        }
        target => OriginResponse::html(format!("back {target}")),
    });
    let text = r"
ProxyPass /all http://@BACK@/global
<VirtualHost *:80>
    ServerName www.example.com
    ProxyPass /api/own !
    ProxyPass /api http://@BACK@
    ProxyPass /odd/ http://@BACK@
    ProxyPass /escaped http://@BACK@/a%20b
    ProxyPassMatch \.cgi$ http://@BACK@
    <Location /ready>
        ProxyPass http://@BACK@/systemready
    </Location>
</VirtualHost>
"
    .replace("@BACK@", &back.addr().to_string());
    let (converted, section) = converted(&text);
    assert_eq!(findings(&converted), Vec::<String>::new());
    let (front, _render) = start(&section);
    for (target, expected) in [
        ("/api", "back /"),
        ("/api?a=b", "back /?a=b"),
        ("/api/a.html", "back /a.html"),
        ("/apis.html", "render /apis.html"),
        ("/api/own", "render /api/own"),
        ("/api/own/a.html", "render /api/own/a.html"),
        ("/api/owner.html", "back /owner.html"),
        ("/odd/a.html", "back /a.html"),
        ("/escaped/c%20d.html", "back /a%20b/c%20d.html"),
        ("/x/a.cgi?y=z", "back /x/a.cgi?y=z"),
        ("/ready", "back /systemready"),
        ("/ready/a", "back /systemready/a"),
        ("/readyness.html", "render /readyness.html"),
        ("/all/a", "back /global/a"),
    ] {
        assert_eq!(front.get(target).body, expected, "{target} in {section}");
    }
    assert_eq!(front.get("/away.cgi").header("location"), Some("/b.cgi"));
}

#[test]
fn targets_of_plain_redirects_stay_as_they_are_written() {
    let (converted, section) = converted(
        r#"
<VirtualHost *:80>
    Redirect /cafe http://x.org/caf%C3%A9%20b
    Redirect /part http://x.org/a#part
    Redirect /slash http://x.org/a%2Fb
    Redirect /pay "http://x.org/p?cost=5%25&to=$1"
    Redirect /old/ /new/
    RedirectMatch ^/m/(.*)$ http://x.org/100%1/$1
</VirtualHost>
"#,
    );
    assert_eq!(findings(&converted), Vec::<String>::new());
    let (front, _render) = start(&section);
    for (target, expected) in [
        ("/cafe", "http://x.org/caf%C3%A9%20b"),
        ("/cafe/d%20%C3%A9", "http://x.org/caf%C3%A9%20b/d%20%C3%A9"),
        ("/part", "http://x.org/a#part"),
        ("/slash/c", "http://x.org/a%2Fb/c"),
        ("/pay", "http://x.org/p?cost=5%25&to=$1"),
        ("/old/a%25b", "http://www.example.com/new/a%25b"),
        ("/m/a", "http://x.org/100%251/a"),
    ] {
        assert_eq!(front.get(target).header("location"), Some(expected), "{target} in {section}");
    }
}

#[test]
fn tables_and_patterns_that_rules_do_not_know_are_errors() {
    let (converted, section) = converted(
        r"
<VirtualHost *:80>
    RewriteEngine On
    RewriteMap lc int:tolower
    RewriteRule ^/up/(.*)$ /low/${lc:$1} [L]
    RewriteCond ${lc:%{HTTP_HOST}} ^www
    RewriteRule ^/host /x [L]
    RewriteRule ^/(?!libs)(.*)$ /ahead/$1 [L]
    RewriteCond %{REQUEST_URI} ^/(a)\1$
    RewriteRule ^/back /x [L]
    RewriteCond expr %{TIME_HOUR}=='3'
    RewriteRule ^/expression /x [L]
    RewriteRule ^/tls https://elsewhere/ [P]
    RewriteRule ^/good /kept [L]
    ProxyPass /unset http://${UNSET}/
</VirtualHost>
",
    );
    let found = findings(&converted);
    for expected in [
        "site.vhost:4:5: error: `RewriteMap`",
        "site.vhost:5:5: error: `RewriteRule` is not converted: it uses the rewrite map `lc`",
        "site.vhost:6:5: error: `RewriteCond` is not converted: it uses the rewrite map `lc`",
        "site.vhost:8:5: error: `RewriteRule` is not converted: the pattern",
        "site.vhost:9:5: error: `RewriteCond` is not converted: the pattern",
        "site.vhost:11:5: error: `RewriteCond` is not converted: the variable `%{TIME_HOUR}`",
        "site.vhost:13:5: error: `RewriteRule` is not converted: `https://elsewhere/` does not begin",
        "site.vhost:15:5: warning: the variable `UNSET` is not set",
        "site.vhost:15:5: error: `ProxyPass` is not converted: a variable in its target",
    ] {
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected} in {found:#?}");
    }
    assert_eq!(found.len(), 9, "{found:#?}");
    assert_eq!(section.matches("[[host.rule]]").count(), 1, "{section}");
    assert!(section.contains("/kept"), "{section}");
}

#[test]
fn rules_outside_hosts_are_written_or_reported() {
    // A file of rules for an `Include`.
    let (alone, section) = converted("RewriteRule ^/a$ /b [L]\nProxyPass /p http://h/p\n");
    assert_eq!(findings(&alone), Vec::<String>::new());
    assert!(section.contains("rewrite = \"/b\"") && section.contains("http://h/p$1"), "{section}");
    assert!(!section.contains("use_processed_url"), "its vhost says that: {section}");
    let host = "<VirtualHost *>\nRewriteEngine On\nRewriteRule ^/c$ /d [L]\n</VirtualHost>\n";
    let (beside, section) = converted(&format!("RewriteRule ^/a$ /b [L]\n{host}"));
    let found = findings(&beside);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("site.vhost:1:1: warning: this rewrite rule is outside every"),
        "{found:?}"
    );
    assert!(!section.contains("\"/b\"") && section.contains("\"/d\""), "{section}");
    let down = format!("RewriteOptions InheritDownBefore\nRewriteRule ^/a$ /b [L]\n{host}");
    let (inherited, section) = converted(&down);
    assert_eq!(findings(&inherited), Vec::<String>::new());
    assert!(section.find("\"/b\"").unwrap() < section.find("\"/d\"").unwrap(), "{section}");
    let (off, section) = converted(&host.replace("RewriteEngine On\n", ""));
    assert!(!section.contains("\"/d\""), "{section}");
    assert!(findings(&off)[0].contains("has no `RewriteEngine On`"), "{:?}", off.diagnostics);
}

#[test]
fn included_files_are_read_where_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join("httpd").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        file
    };
    write("conf.d/variables/site.vars", "Define FORCE_SSL 1\nDefine ALLOW_LIST 0\n");
    write("conf.d/rewrites/base.rules", "RewriteRule ^/base - [F]\n");
    write("conf.d/rewrites/ssl.rules", "RewriteRule ^/ssl - [F]\n");
    write("conf.d/allow/10_list.rules", "Require env Nobody\n");
    write("conf.d/loop.rules", "Include conf.d/loop.rules\nRewriteRule ^/loop - [F]\n");
    let vhost = write(
        "conf.d/available_vhosts/site.vhost",
        r#"
Include conf.d/variables/*.vars
<VirtualHost *:80>
    <IfModule mod_rewrite.c>
        RewriteEngine on
        Include /etc/httpd/conf.d/rewrites/base.rules
        <If "${FORCE_SSL} == 1">
            Include conf.d/rewrites/ssl.rules
        </If>
        <If "${ALLOW_LIST} == 1">
            Include conf.d/allow/*_list.rules
        </If>
        Include conf.d/loop.rules
        IncludeOptional conf.d/none/*.conf
        Include conf.d/missing.rules
    </IfModule>
</VirtualHost>
"#,
    );
    let link = write("conf.d/enabled_vhosts/site.vhost", "../available_vhosts/site.vhost\n");
    for (file, root) in [(&vhost, None), (&link, None), (&vhost, Some(folder.path().join("httpd")))]
    {
        let text = std::fs::read_to_string(file).unwrap();
        let converted = convert_httpd_config(&[(file, &text)], root.as_deref());
        let section = settings_of(&converted);
        for rule in ["^/base", "^/ssl", "^/loop"] {
            assert_eq!(section.matches(rule).count(), 1, "{rule} in {section}");
        }
        let found = findings(&converted);
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(
            found[0].contains("loop.rules:1:1: error: ") && found[0].ends_with("includes itself"),
            "{found:#?}"
        );
        assert!(
            found[1].contains("site.vhost:14:9: warning: `IncludeOptional` is not followed"),
            "{found:#?}"
        );
        assert!(
            found[2].contains("site.vhost:15:9: error: `Include` is not followed"),
            "{found:#?}"
        );
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(&vhost).unwrap();
    let lost = convert_httpd_config(&[(&vhost, &text)], Some(elsewhere.path()));
    assert!(
        findings(&lost)[0]
            .contains("error: `Include` is not followed: `conf.d/variables/*.vars` does not exist")
    );
}

#[test]
fn a_file_that_is_given_need_not_be_on_the_disk() {
    let vhost =
        "<VirtualHost *>\nRewriteEngine On\nInclude conf.d/rewrites/a.rules\n</VirtualHost>\n";
    let files = [
        (Path::new("nowhere/conf.d/rewrites/a.rules"), "RewriteRule ^/given - [F]\n"),
        (Path::new("nowhere/conf.d/site.vhost"), vhost),
    ];
    let converted = convert_httpd_config(&files, None);
    assert_eq!(findings(&converted), Vec::<String>::new());
    assert_eq!(settings_of(&converted).matches("^/given").count(), 1);
}

#[test]
fn levels_and_forwarded_hosts() {
    let (converted, section) =
        converted("DispatcherLogLevel Warn\nDispatcherUseForwardedHost On\n");
    assert_eq!(findings(&converted), Vec::<String>::new());
    assert!(section.contains("log_level = \"Warn\"\n"), "{section}");
    assert!(section.contains("use_forwarded_host = true\n"), "{section}");
    let (converted, section) =
        self::converted("DispatcherLogLevel 9\nDispatcherUseForwardedHost conf/edge.key\n");
    let found = findings(&converted);
    assert!(found[0].contains("warning: `DispatcherLogLevel` is not converted"), "{found:?}");
    assert!(found[1].contains("error: `DispatcherUseForwardedHost` is not converted"), "{found:?}");
    assert!(!section.contains("use_forwarded_host"), "{section}");
}

/// Variables, rounds, escaped groups and expressions do what they do in httpd.
#[test]
fn flags_and_expressions_are_converted() {
    let text = r#"
DispatcherUseProcessedURL On
<VirtualHost *:80>
    RewriteEngine On
    RewriteRule ^/(en|de)/ - [E=LANGUAGE:$1,E=SEEN:yes]
    RewriteRule ^/plain/ - [E=!SEEN]
    RewriteCond %{ENV:REDIRECT_STATUS} ^$
    RewriteCond %{ENV:LANGUAGE} ^de$
    RewriteRule ^/de/old\.html$ /%{ENV:LANGUAGE}/new.html [L]
    RewriteCond %{ENV:SEEN} =yes
    RewriteRule ^/en/seen\.html$ /seen/%{ENV:SEEN}.html [L]
    RewriteRule ^/(.*)_(.*)$ /$1-$2 [N]
    RewriteRule ^/find/(.*)$ /search.html?q=$1 [B,L]
    RewriteRule ^/look/(.*)$ /search.html?q=$1 [B,BNP,L]
    RewriteCond expr "%{HTTP_HOST} == 'www.example.com' && (%{HTTP:X-A} == '1' || req('X-B') =~ /^y/i)"
    RewriteRule ^/expression\.html$ /met.html [L]
    RewriteCond expr "! %{REQUEST_METHOD} in {'GET', 'HEAD'}" [OR]
    RewriteCond %{HTTP_HOST} ^never
    RewriteRule ^/changed\.html$ /never.html [L]
    RewriteCond %{ENV:UNKNOWN} ^$
    RewriteRule ^/unknown /x [L]
    RewriteRule ^/chars/(.*)$ /x?$1 [B=/&,L]
    RewriteRule ^/cookie/(.*)$ /x?$1 [CO=a:b]
</VirtualHost>
"#;
    let (converted, section) = converted(text);
    let found = findings(&converted);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("the variable `%{ENV:UNKNOWN}` is not known"), "{found:#?}");
    assert!(found[1].contains("the flags `CO=a:b` are not known"), "{found:#?}");
    let origin =
        OriginServer::start(|seen| OriginResponse::html(format!("render {}", seen.target)));
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: section,
        ..Setup::default()
    });
    for (target, headers, expected) in [
        ("/de/old.html", &[][..], "/de/new.html"),
        ("/en/old.html", &[], "/en/old.html"),
        ("/en/seen.html", &[], "/seen/yes.html"),
        ("/a_b_c_d.html", &[], "/a-b-c-d.html"),
        ("/find/a%20b%26c=d", &[], "/search.html?q=a+b%26c%3Dd"),
        ("/look/a%20b%26c=d", &[], "/search.html?q=a%20b%26c%3Dd"),
        ("/chars/a=b%26c/d", &[], "/x?a=b%26c%2Fd"),
        ("/expression.html", &[], "/expression.html"),
        ("/expression.html", &[("X-A", "1")], "/met.html"),
        ("/expression.html", &[("X-B", "Yes")], "/met.html"),
        ("/expression.html", &[("X-A", "1"), ("Host", "other.example.com")], "/expression.html"),
        ("/changed.html", &[], "/changed.html"),
    ] {
        let reply = front.send("GET", target, headers, "");
        assert_eq!(reply.body, format!("render {expected}"), "{target} {headers:?}");
    }
    let posted = front.send("POST", "/changed.html", &[], "x");
    assert_eq!(posted.body, "render /never.html");
}

/// What `SetEnvIf` and its relatives set is there for rules and access, wherever it stands; `SetEnv` is there for headers.
#[test]
fn variables_of_requests_are_converted() {
    let text = r#"
DispatcherUseProcessedURL On
SetEnvIf X-Scheme ^https$ is_tls=yes
<VirtualHost *:80>
    ServerName www.example.com
    Header set X-Always there env=STAGE
    Header set X-Never there env=!STAGE
    Header set X-Perhaps there env=mobile
    SetEnv STAGE live
    SetEnv UNUSED x
    RewriteEngine On
    RewriteCond %{ENV:mobile} =1
    RewriteRule ^/start\.html$ /m/start.html [L]
    RewriteCond %{ENV:language} ^(de|fr)$
    RewriteRule ^/page\.html$ /%1/page.html [L]
    RewriteCond expr "reqenv('is_tls') == 'yes'"
    RewriteRule ^/tls\.html$ /secure.html [L]
    RewriteCond %{ENV:STAGE} ^$
    RewriteRule ^/stage\.html$ /empty.html [L]
    RewriteRule ^/marked/ - [E=marked:1]
    BrowserMatchNoCase (iphone|android) mobile
    BrowserMatch iPad !mobile
    SetEnvIf Accept-Language ^([a-z]+) language=$1
    SetEnvIfNoCase Request_URI ^/(inner|staff)/ inner
    SetEnvIf inner 1 twice
    SetEnvIfExpr "%{HTTP:X-Key} == 'secret'" key
    SetEnvIf X-Bad ^(?=a) bad
    SetEnvIf Request_URI gif$ unasked
    <Location /inner>
        Require env key
    </Location>
    <Location /staff>
        Order deny,allow
        Deny from env=twice
        Allow from 10.1.2.3 env=key
    </Location>
    <Location /marked>
        <RequireAll>
            Require all granted
            Require not env marked
        </RequireAll>
    </Location>
    <Location /bad>
        Order allow,deny
        Allow from all
        Deny from env=bad
    </Location>
    <Location /language>
        Require env language
    </Location>
</VirtualHost>
"#;
    let (converted, section) = converted(text);
    let found = findings(&converted);
    for expected in [
        "site.vhost:8:5: warning: `Header` is not converted",
        "site.vhost:10:5: warning: `SetEnv` is not converted: `UNUSED` is set after",
        "site.vhost:18:5: warning: `%{ENV:STAGE}` is empty here, as in httpd",
        "site.vhost:27:5: error: `SetEnvIf` is not converted: the pattern `^(?=a)` is malformed, or uses lookaround",
        "site.vhost:28:5: warning: `SetEnvIf` is not converted: no converted directive uses `unasked`",
        "site.vhost:46:9: error: `Deny` is not converted: `env=bad` is not an address",
        // Its value may be empty, which rules cannot tell from a variable that is not set.
        "site.vhost:49:9: error: `Require` is not converted: no converted directive sets",
    ] {
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected} in {found:#?}");
    }
    assert_eq!(found.len(), 7, "{found:#?}");
    let (front, _render) = start(&section);
    let get = |target: &str, headers: &[(&str, &str)]| {
        let headers = [&[("Host", "www.example.com")][..], headers].concat();
        front.send("GET", target, &headers, "")
    };
    let plain = get("/start.html", &[]);
    assert_eq!(plain.header("x-always"), Some("there"));
    assert_eq!((plain.header("x-never"), plain.header("x-perhaps")), (None, None));
    for (target, headers, expected) in [
        ("/start.html", &[][..], "/start.html"),
        ("/start.html", &[("User-Agent", "My iPhone")], "/m/start.html"),
        ("/start.html", &[("User-Agent", "android on iPad")], "/start.html"),
        ("/page.html", &[("Accept-Language", "de-CH")], "/de/page.html"),
        ("/page.html", &[("Accept-Language", "it")], "/page.html"),
        ("/tls.html", &[], "/tls.html"),
        ("/tls.html", &[("X-Scheme", "https")], "/secure.html"),
        ("/stage.html", &[], "/empty.html"),
        ("/inner/a.html", &[("X-Key", "secret")], "/inner/a.html"),
        ("/staff/a.html", &[("X-Key", "secret")], "/staff/a.html"),
        ("/staff/b.html", &[("X-Forwarded-For", "10.1.2.3")], "/staff/b.html"),
    ] {
        let reply = get(target, headers);
        assert_eq!(reply.body, format!("render {expected}"), "{target} {headers:?}");
    }
    for (target, headers) in [
        ("/inner/a.html", &[][..]),
        ("/inner/a.html", &[("X-Key", "guess")]),
        ("/staff/a.html", &[]),
        ("/marked/a.html", &[]),
        ("/bad/a.html", &[]),
        ("/language/a.html", &[("Accept-Language", "de")]),
    ] {
        assert_eq!(get(target, headers).status, 403, "{target} {headers:?}");
    }
}

#[test]
fn websockets_and_encoded_slashes_are_converted() {
    let (converted, section) = converted(
        r"
<VirtualHost *:80>
    ServerName www.example.com
    AllowEncodedSlashes NoDecode
    RewriteEngine On
    RewriteCond %{HTTP:Upgrade} =websocket [NC]
    RewriteRule ^/chat/(.*)$ ws://127.0.0.1:8090/$1 [P,L]
    ProxyPass /live ws://127.0.0.1:8090/live
    ProxyPass /both http://127.0.0.1:8090/both upgrade=websocket
</VirtualHost>
<VirtualHost *:80>
    ServerName other.example.com
    AllowEncodedSlashes On
</VirtualHost>
",
    );
    let found = findings(&converted);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("applies to all hosts"), "{found:?}");
    for line in [
        "encoded_slashes = \"on\"",
        "proxy = \"ws://127.0.0.1:8090/$1\"",
        "proxy = \"ws://127.0.0.1:8090/live$1\"",
        "proxy = \"ws://127.0.0.1:8090/both$1\"",
    ] {
        assert!(section.contains(line), "{line} in {section}");
    }
}
