//! Addresses of vaults as shown to users.

/// Returns an address that is safe to display: a password, and anything else that follows a user name or a question
/// mark, is removed.
#[must_use]
pub fn redact_address(address: &str) -> String {
    let address = match address.split_once('?') {
        Some((before, _)) => format!("{before}?***"),
        None => address.to_owned(),
    };
    let (head, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => match address.split_once(':') {
            // The prefixes before a host: `sftp:`, `s3:`, `rest:`.
            Some((scheme, rest)) if !scheme.contains(['/', '@']) => (format!("{scheme}:"), rest),
            _ => return address,
        },
    };
    // A password may contain a slash, against all rules; a path may contain the `@`, too.
    let end = rest.find('/').filter(|end| rest.get(..*end).is_some_and(|host| host.contains('@')));
    let authority = rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest);
    let Some(at) = authority.rfind('@') else { return address };
    match (rest.get(..at).and_then(|user| user.split_once(':')), rest.get(at..)) {
        (Some((user, _)), Some(host)) => format!("{head}{user}:***{host}"),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let check = |address: &str, expected: &str| assert_eq!(redact_address(address), expected);
        check("rest:https://ann:s3cret@host:8000/x/", "rest:https://ann:***@host:8000/x/");
        check("sftp://ann:s3cret@host/x", "sftp://ann:***@host/x");
        check("sftp:ann:s3cret@host:x", "sftp:ann:***@host:x");
        check("https://ann:s3/cret@host/x", "https://ann:***@host/x");
        check("https://ann:a@b@host/x", "https://ann:***@host/x");
        check("s3:https://key:s3cret@host/bucket", "s3:https://key:***@host/bucket");
        check("https://host/x?token=s3cret", "https://host/x?***");
        for plain in [
            "/srv/vault",
            "relative:ly/odd@name",
            "sftp://ann@host:22/x",
            "sftp:ann@host:/x@y",
            "s3:host/bucket/x",
            "rest:http://localhost:8000/",
        ] {
            check(plain, plain);
        }
    }
}
