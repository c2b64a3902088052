//! Requirements for new passwords.
//!
//! The length counts, not the kinds of characters, and a password must not be among the most commonly guessed ones.

/// Minimum length of a password, in characters.
pub(crate) const MIN_PASSWORD_CHARS: usize = 8;
/// Maximum length of a password, in characters.
pub(crate) const MAX_PASSWORD_CHARS: usize = 1_000;

/// The most common passwords of eight characters and more, in lower case, from lists of leaked passwords.
const COMMON_PASSWORDS: &[&str] = &[
    "00000000",
    "11111111",
    "12121212",
    "123123123",
    "12341234",
    "12344321",
    "12345678",
    "123456789",
    "1234567890",
    "1234567891",
    "12345679",
    "1234qwer",
    "123qweasd",
    "123qweasdzxc",
    "147258369",
    "1q2w3e4r",
    "1q2w3e4r5t",
    "1q2w3e4r5t6y",
    "1qaz2wsx",
    "1qaz2wsx3edc",
    "1qazxsw2",
    "87654321",
    "88888888",
    "987654321",
    "9876543210",
    "aa123456",
    "aaaaaaaa",
    "abc12345",
    "abcd1234",
    "abcdefgh",
    "admin123",
    "admin1234",
    "admin12345",
    "adminadmin",
    "administrator",
    "asdf1234",
    "asdfasdf",
    "asdfghjk",
    "asdfghjkl",
    "baseball",
    "basketball",
    "changeme",
    "changeme1",
    "charlie1",
    "chocolate",
    "computer",
    "correcthorsebatterystaple",
    "dragon123",
    "football",
    "football1",
    "iloveyou",
    "iloveyou1",
    "internet",
    "jennifer",
    "letmein1",
    "letmein123",
    "liverpool",
    "manchester",
    "master123",
    "michael1",
    "michelle",
    "mustang1",
    "passw0rd",
    "password",
    "password!",
    "password01",
    "password1",
    "password1!",
    "password12",
    "password123",
    "password1234",
    "password2",
    "pokemon1",
    "princess",
    "princess1",
    "q1w2e3r4",
    "q1w2e3r4t5",
    "qazwsxedc",
    "qwer1234",
    "qwerasdf",
    "qwerty12",
    "qwerty123",
    "qwerty1234",
    "qwertyui",
    "qwertyuiop",
    "qwertz123",
    "qwertzui",
    "qwertzuiop",
    "rootroot",
    "samsung1",
    "secret123",
    "starwars",
    "sunshine",
    "sunshine1",
    "superman",
    "superman1",
    "test1234",
    "testtest",
    "trustno1",
    "welcome1",
    "welcome123",
    "whatever",
    "zaq12wsx",
    "zaq1zaq1",
    "zxcvbnm1",
    "zxcvbnm123",
];

/// Checks whether a user may use a password.
///
/// # Errors
/// A sentence that completes "the password".
pub fn check_new_password(user: &str, password: &str) -> Result<(), String> {
    let length = password.chars().count();
    if !(MIN_PASSWORD_CHARS..=MAX_PASSWORD_CHARS).contains(&length) {
        return Err(format!("must have {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters"));
    }
    let plain = password.trim().to_lowercase();
    let is_one_letter = plain.chars().all(|letter| plain.starts_with(letter));
    if COMMON_PASSWORDS.contains(&plain.as_str()) || is_one_letter {
        return Err("is too common; choose another".to_owned());
    }
    let user = user.to_lowercase();
    let rest = plain.strip_prefix(&user).filter(|_| !user.is_empty());
    // The name alone, twice, or followed by a number.
    let is_name = rest.is_some_and(|rest| {
        rest == user || rest.chars().all(|letter| letter.is_ascii_digit() || letter == '!')
    });
    if is_name {
        return Err("is based on the user name; choose another".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_common_and_obvious_passwords_are_refused() {
        let check = |user: &str, password: &str, is_taken: bool| {
            assert_eq!(check_new_password(user, password).is_ok(), is_taken, "{user} {password}");
        };
        check("ann", "short", false);
        check("ann", &"x1".repeat(501), false);
        check("ann", "Password123", false);
        check("ann", " qwertyuiop ", false);
        check("ann", "zzzzzzzzzzzz", false);
        check("margaret", "Margaret", false);
        check("margaret", "margaret2026!", false);
        check("anna", "annaanna", false);
        check("ann", "annapurna-base", true);
        check("", "a long password", true);
        check("ann", "\u{fc}ber-den-wolken", true);
        assert!(
            COMMON_PASSWORDS.is_sorted()
                && COMMON_PASSWORDS.iter().all(|one| one.len() >= MIN_PASSWORD_CHARS)
        );
    }
}
