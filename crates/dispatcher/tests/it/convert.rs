//! From vhost files to `tympan.toml`.

use std::path::Path;

use tympan_dispatcher::{Converted, Dispatcher, Runtime, Settings, convert};
use tympan_testkit::origin::{Answer, Origin};

use crate::corpus::{files_below, fixtures};
use crate::front::{Front, Setup, load};

/// Converts one file, and checks that the result can be used.
fn converted(text: &str) -> (Converted, String) {
    let converted = convert(&[(Path::new("site.vhost"), text)]);
    let section = settings_of(&converted);
    (converted, section)
}

/// The section without its name, as tests of `Settings` write it.
fn settings_of(converted: &Converted) -> String {
    let section = converted.toml.replace("[dispatcher]\n", "").replace("[[dispatcher.", "[[");
    let settings: Settings =
        toml::from_str(&section).unwrap_or_else(|error| panic!("{error} in {section}"));
    let config = load(&Setup::default().text("/".as_ref())).config;
    Dispatcher::with_settings(config, &settings, Runtime::default())
        .unwrap_or_else(|error| panic!("{error} in {section}"));
    section
}

fn findings(converted: &Converted) -> Vec<String> {
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
    let tomcat = Origin::start(|seen| Answer::html(format!("tomcat {}", seen.target)));
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
    let farm = Origin::start(|seen| Answer::html(format!("farm {}", seen.target)));
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
        ProxyPass http://elsewhere/
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
        "names = [\"www.example.com\", \"*.example.com\", \"${unknown}\"]",
        "document_root = \"/var/www/html\"",
        "\"404\" = \"/errors/404.html\"",
        "\"500\" = 'sorry, \"we\" failed'",
        "\"X-Frame-Options\" = \"SAMEORIGIN\"",
        "{ test = \"%{REQUEST_METHOD}\", match = \"^GET$\", or = true }",
        "{ test = \"%{HTTP_HOST}\", match = \"^www\", negate = true, ignore_case = true }",
        "rewrite = \"/content/site/$2/$3\"\nlast = true\nquery = \"append\"",
        "match = \"^/gone\"\nanswer = 410",
        "match = \"^/old(/.*)?$\"\nredirect = \"http://www.example.com/new$1\"\nstatus = 301",
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
    at(36, "`ProxyPass` is not converted: it stands in `<Location>`");
    at(11, "warning: the variable `UNKNOWN` is not set");
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn broken_files_are_told_by_line() {
    let (converted, _) = converted("<VirtualHost *>\n</Directory>\n<VirtualHost *>\n");
    let found = findings(&converted);
    assert!(
        found[0].starts_with("site.vhost:2:1: error: `</Directory>` closes nothing"),
        "{found:?}"
    );
    assert!(found[1].contains("`<VirtualHost>` is never closed"), "{found:?}");
}

#[test]
fn every_public_vhost_gives_settings_that_can_be_used() {
    let Some(folder) = fixtures() else { return };
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
        settings_of(&convert(&[(file, &text)]));
    }
}
