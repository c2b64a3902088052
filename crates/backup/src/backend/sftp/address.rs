//! Addresses of vaults on other machines: `sftp://user@host:port/path`, or `sftp:user@host:path`.
//!
//! Pure. A path that begins with `~/` is relative to the user's home. In the first form the path is absolute, as in
//! Obnam and in URLs; in the second form it is relative to the home unless it begins with `/`, as in `scp` and restic.

use crate::backend::address::redact_address;

/// A folder of a user on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SftpAddress {
    /// The remote user; `None` for the local user's name.
    pub user: Option<String>,
    /// The host name or IP address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The folder: absolute if it begins with `/`, else relative to the user's home.
    pub path: String,
}

/// The default port of SSH.
const DEFAULT_SSH_PORT: u16 = 22;

impl SftpAddress {
    /// Parses an address; `None` if it does not begin with `sftp:`.
    ///
    /// # Errors
    /// A message that describes the mistake and the correct form.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let rest = text.strip_prefix("sftp:")?;
        let parsed = match rest.strip_prefix("//") {
            Some(url) => parse_sftp_url(url),
            None => parse_scp_address(rest),
        };
        Some(parsed.map_err(|reason| {
            let text = redact_address(text);
            format!(
                "`{text}` {reason}; write `sftp://USER@HOST:PORT/PATH` or `sftp:USER@HOST:PATH`"
            )
        }))
    }
}

fn parse_sftp_url(url: &str) -> Result<SftpAddress, &'static str> {
    let (authority, path) = url.split_once('/').ok_or("names no folder")?;
    let (user, host) = split_user(authority)?;
    let (host, port) = split_host(host)?;
    let port = match port {
        None => DEFAULT_SSH_PORT,
        Some(digits) => digits.parse().map_err(|_| "has a port that is not a number")?,
    };
    let path = match path.strip_prefix('~') {
        Some("") => ".".to_owned(),
        Some(below) if below.starts_with('/') => below.trim_start_matches('/').to_owned(),
        _ => format!("/{}", path.trim_start_matches('/')),
    };
    build_sftp_address(user, host, port, &path)
}

fn parse_scp_address(text: &str) -> Result<SftpAddress, &'static str> {
    let (user, authority) = match text.split_once('@') {
        // A path may contain the `@` as well.
        Some((user, rest)) if !user.contains([':', '/']) => (Some(user), rest),
        _ => (None, text),
    };
    let (host, path) = split_host(authority)?;
    let path = path.ok_or("names no folder")?;
    let path = match path.strip_prefix("~/") {
        Some(below) => below.trim_start_matches('/'),
        None if path == "~" => ".",
        None => path,
    };
    build_sftp_address(user.map(str::to_owned), host, DEFAULT_SSH_PORT, path)
}

fn build_sftp_address(
    user: Option<String>,
    host: &str,
    port: u16,
    path: &str,
) -> Result<SftpAddress, &'static str> {
    if host.is_empty() || host.starts_with('-') || host.contains(char::is_whitespace) {
        return Err("names no host");
    }
    if user.as_ref().is_some_and(String::is_empty) {
        return Err("names no user");
    }
    let path = match path.trim_end_matches('/') {
        "" => return Err("names no folder"),
        path => path.to_owned(),
    };
    Ok(SftpAddress { user, host: host.to_ascii_lowercase(), port, path })
}

fn split_user(authority: &str) -> Result<(Option<String>, &str), &'static str> {
    let Some((user, host)) = authority.rsplit_once('@') else { return Ok((None, authority)) };
    if user.contains(':') {
        return Err("contains a password, which others could see; use a key");
    }
    Ok((Some(user.to_owned()), host))
}

/// Splits off what follows the colon after the host; an IPv6 address is in brackets.
fn split_host(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    let Some(rest) = text.strip_prefix('[') else {
        return Ok(match text.split_once(':') {
            Some((host, after)) => (host, Some(after)),
            None => (text, None),
        });
    };
    let (host, after) = rest.split_once(']').ok_or("has an opening bracket and no closing one")?;
    match after {
        "" => Ok((host, None)),
        _ => Ok((
            host,
            Some(after.strip_prefix(':').ok_or("has unexpected text after the closing bracket")?),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let description = match SftpAddress::parse(text) {
            None => "none".to_owned(),
            Some(Err(reason)) => reason,
            Some(Ok(SftpAddress { user, host, port, path })) => {
                format!("{} {host} {port} {path}", user.unwrap_or_default())
            }
        };
        assert!(description.contains(expected), "{text}: {description}");
    }

    #[test]
    fn both_forms_are_taken_apart() {
        check("sftp://obnam@server/~/repo", "obnam server 22 repo");
        check("sftp://obnam@Server:2222/srv/repo/", "obnam server 2222 /srv/repo");
        check("sftp://server//srv/repo", " server 22 /srv/repo");
        check("sftp://server/~", " server 22 .");
        check("sftp://server/~ann/x", " server 22 /~ann/x");
        check("sftp://ann@[::1]:99/x", "ann ::1 99 /x");
        check("sftp:ann@host:/srv/x", "ann host 22 /srv/x");
        check("sftp:ann@host:x/y", "ann host 22 x/y");
        check("sftp:ann@host:~/x", "ann host 22 x");
        check("sftp:host:a@b", " host 22 a@b");
        check("sftp:[fe80::1]:x", " fe80::1 22 x");
        check("/srv/sftp:x", "none");
    }

    #[test]
    fn what_is_wrong_is_reported() {
        check("sftp://server", "names no folder");
        check("sftp://server/", "names no folder");
        check("sftp:server", "names no folder");
        check("sftp://ann:secret@server/x", "`sftp://ann:***@server/x` contains a password");
        check("sftp://@server/x", "names no user");
        check("sftp:///x", "names no host");
        check("sftp://-oProxyCommand=x/x", "names no host");
        check("sftp://server:ssh/x", "not a number");
        check("sftp://[::1/x", "no closing one");
        check("sftp:[::1]x", "after the closing bracket");
    }
}
