//! Common forms of credentials: AWS profiles, Azure connection strings. Pure: files and environment are read by the
//! binary.

/// Returns the settings of a profile in a file such as `~/.aws/credentials` or `~/.aws/config`, named like environment
/// variables. Sections may be called `name` or `profile name`.
#[must_use]
pub fn parse_profile(text: &str, profile: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut is_wanted = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let section = section.trim();
            let named = section.strip_prefix("profile ").map_or(section, str::trim);
            is_wanted = named == profile;
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        if !is_wanted || line.starts_with(['#', ';']) {
            continue;
        }
        let name = match key.trim() {
            "aws_access_key_id" => "AWS_ACCESS_KEY_ID",
            "aws_secret_access_key" => "AWS_SECRET_ACCESS_KEY",
            "aws_session_token" => "AWS_SESSION_TOKEN",
            "region" => "AWS_REGION",
            "endpoint_url" => "AWS_ENDPOINT_URL",
            "role_arn" => "AWS_ROLE_ARN",
            "web_identity_token_file" => "AWS_WEB_IDENTITY_TOKEN_FILE",
            _ => continue,
        };
        settings.push((name.to_owned(), value.trim().to_owned()));
    }
    settings
}

/// Returns the settings of an Azure connection string, named like environment variables.
#[must_use]
pub fn parse_connection_string(text: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    // Account keys end in `=` themselves: split only at the first one.
    for (key, value) in text.split(';').filter_map(|part| part.trim().split_once('=')) {
        let name = match key.to_ascii_lowercase().as_str() {
            "accountname" => "AZURE_STORAGE_ACCOUNT_NAME",
            "accountkey" => "AZURE_STORAGE_ACCOUNT_KEY",
            "blobendpoint" => "AZURE_STORAGE_ENDPOINT",
            "sharedaccesssignature" => "AZURE_STORAGE_SAS_KEY",
            _ => continue,
        };
        settings.push((name.to_owned(), value.to_owned()));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: &[(String, String)]) -> String {
        let pairs: Vec<String> =
            settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(" ")
    }

    #[test]
    fn profiles_are_found_by_name() {
        let file = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=B=\n\n[profile site]\nregion = eu-west-1\n\
                    # aws_session_token = old\nendpoint_url = http://127.0.0.1:9\noutput = json\n[other]\nregion=x\n";
        let default = "AWS_ACCESS_KEY_ID=A AWS_SECRET_ACCESS_KEY=B=";
        assert_eq!(text(&parse_profile(file, "default")), default);
        let site = "AWS_REGION=eu-west-1 AWS_ENDPOINT_URL=http://127.0.0.1:9";
        assert_eq!(text(&parse_profile(file, "site")), site);
        assert_eq!(text(&parse_profile(file, "absent")), "");
        assert_eq!(text(&parse_profile("no section = at all\n[", "default")), "");
    }

    #[test]
    fn connection_strings_are_taken_apart() {
        let connection_string = "DefaultEndpointsProtocol=http;AccountName=ann;AccountKey=a2V5Cg==;\
                     BlobEndpoint=http://127.0.0.1:10000/ann;";
        let expected = "AZURE_STORAGE_ACCOUNT_NAME=ann AZURE_STORAGE_ACCOUNT_KEY=a2V5Cg== \
                        AZURE_STORAGE_ENDPOINT=http://127.0.0.1:10000/ann";
        assert_eq!(text(&parse_connection_string(connection_string)), expected);
        assert_eq!(text(&parse_connection_string("nonsense;;=")), "");
    }
}
