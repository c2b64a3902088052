//! Rights that are withdrawn while a request is on its way: those of the commit count, not those of its beginning. And
//! credentials that open nothing: tokens that ended, and names that are not there.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use http::Method;
use tympan_server::{InstanceRole, LoginTokenScope, Logins, TokenOwner, TokenTerms};

use crate::access_matrix::{READINGS, Row, Scene, rows, with_body};
use crate::hostile_requests::is_for_everybody;
use crate::support::{Reply, TestInstance};

/// The column of the author of pages in the matrix.
const EDITOR: usize = 3;
/// The column of a user without any right.
const POWERLESS: usize = 1;

/// Returns the requests that write in the name of the author of pages, and succeed.
fn writes_of_editor() -> Vec<Row> {
    let mut rows = rows();
    rows.retain(|row| {
        let place = row.address.split('?').next().unwrap_or_default();
        let is_safe = Method::from_bytes(row.method.as_bytes()).unwrap().is_safe();
        let is_done = row.expected[EDITOR].is_some_and(|status| (200..300).contains(&status));
        is_done && !is_safe && !READINGS.contains(&place)
    });
    rows
}

/// Sends a request of the author of pages, and runs `withdraw` when its body begins to be read. Returns nothing if the
/// instance has answered without reading the body.
async fn send_while(scene: &Scene, row: &Row, withdraw: impl FnOnce()) -> Option<Reply> {
    let (request, held) = scene.request(row, EDITOR, "/content/hidden").hold_body();
    let mut sending = pin!(request.send());
    let is_read = tokio::select! {
        biased;
        _ = &mut sending => return None,
        requested = held.requested => requested.is_ok(),
    };
    if !is_read {
        sending.await;
        return None;
    }
    withdraw();
    held.release.send(()).ok();
    Some(sending.await)
}

#[tokio::test]
async fn a_right_that_is_withdrawn_before_the_commit_refuses_it() {
    let scene = Scene::set().await;
    let (mut faults, mut refused) = (Vec::new(), 0);
    for row in &writes_of_editor() {
        // What a user without any right may do needs none.
        if row.expected[POWERLESS] == row.expected[EDITOR] {
            continue;
        }
        let mut root = None;
        let reply = send_while(&scene, row, || {
            scene.instance.edit(|session| {
                session.accounts().remove_member("content-authors", "editor").unwrap();
            });
            root = Some(scene.instance.repository.head_root().unwrap());
        });
        let Some(reply) = reply.await else { continue };
        // A form that changes nothing needs no right.
        refused += usize::from(!reply.status.is_success());
        if root != Some(scene.instance.repository.head_root().unwrap()) {
            faults.push(format!("{row}: something was written"));
        }
        scene.instance.edit(|session| {
            session.accounts().add_member("content-authors", "editor").unwrap();
        });
        // With the right the same request succeeds.
        let reply = scene.send(row, EDITOR, "/content/hidden").await;
        if Some(reply.status.as_u16()) != row.expected[EDITOR] {
            faults.push(format!("{row}: {} with the right: {}", reply.status, reply.text()));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(refused >= 30, "only {refused} requests were refused");
}

#[tokio::test]
async fn an_account_that_is_disabled_before_the_commit_writes_nothing() {
    let mut scene = Scene::set().await;
    let (mut faults, mut refused) = (Vec::new(), 0);
    for row in &writes_of_editor() {
        let disable = |instance: &TestInstance, reason: Option<&str>| {
            instance.edit(|session| session.accounts().set_disabled("editor", reason).unwrap());
        };
        let mut root = None;
        let reply = send_while(&scene, row, || {
            disable(&scene.instance, Some("left"));
            root = Some(scene.instance.repository.head_root().unwrap());
        });
        let Some(reply) = reply.await else { continue };
        // A form that changes nothing needs no right.
        refused += usize::from(!reply.status.is_success());
        if root != Some(scene.instance.repository.head_root().unwrap()) {
            faults.push(format!("{row}: something was written"));
        }
        disable(&scene.instance, None);
        let owner = TokenOwner { user: "editor", account: None };
        let (pool, now) = (scene.instance.state.pool(), SystemTime::now());
        let token = Logins::issue_token(pool, owner, now, TokenTerms::default()).await.unwrap();
        scene.tokens[EDITOR] = Some(token);
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(refused >= 30, "only {refused} requests were refused");
}

/// Whoever guesses must not learn from the work of an answer which names are there.
#[tokio::test]
async fn a_login_hashes_one_password_whatever_the_name() {
    let mut logins = None;
    let instance = TestInstance::start(InstanceRole::Author, |options| {
        logins = Some(options.logins.clone());
    })
    .await;
    let logins = logins.unwrap();
    instance.user("ann", &[]).await;
    instance.user("left", &[]).await;
    instance.edit(|session| {
        session.accounts().set_disabled("left", Some("left")).unwrap();
        session.accounts().add_group("team").unwrap();
    });
    let names = ["ann", "left", "nobody", "", "team", "anonymous", "system", "ANN", "a/../b", "\0"];
    for (number, name) in names.into_iter().enumerate() {
        // Each from an address of its own, so that no failures add up.
        let address = [127, 0, 1, u8::try_from(number).unwrap()].into();
        let before = logins.hashed_password_count();
        let form = instance.request(Method::POST, "/login").with_address(address);
        let form = form.form(&[("user", name), ("password", "guessed")]).send().await;
        assert_eq!(logins.hashed_password_count() - before, 1, "the form for {name:?}");
        let basic = crate::blocking_instance::basic(name, "guessed");
        let basic = instance
            .request(Method::GET, "/api/v1/me")
            .with_address(address)
            .header("authorization", &basic)
            .send()
            .await;
        assert_eq!(logins.hashed_password_count() - before, 2, "Basic for {name:?}");
        assert_eq!((form.status.as_u16(), basic.status.as_u16()), (401, 401), "{name:?}");
        let known = "the answers tell nothing of the name";
        assert!(
            !form.text().contains("there is no") && !basic.text().contains("disabled"),
            "{known}"
        );
    }
}

#[tokio::test]
async fn a_token_that_ended_opens_nothing() {
    let scene = Scene::set().await;
    let mut tokens = Vec::new();
    for scope in [LoginTokenScope::All, LoginTokenScope::Read, LoginTokenScope::Monitor] {
        let owner = TokenOwner { user: "admin", account: None };
        let terms = TokenTerms { lifetime: Some(Duration::from_secs(60)), scope };
        let begun = SystemTime::now() - Duration::from_secs(61);
        let pool = scene.instance.state.pool();
        tokens.push(Logins::issue_token(pool, owner, begun, terms).await.unwrap());
    }
    let before = scene.instance.repository.head_root().unwrap();
    let (mut faults, mut asked) = (Vec::new(), 0);
    for row in rows().iter().filter(|row| !is_for_everybody(row)) {
        for token in &tokens {
            let fill = |text: &str| scene.filled(text, "admin", "/content/hidden");
            let method = Method::from_bytes(row.method.as_bytes()).unwrap();
            let request = scene.instance.request(method, &fill(&row.address)).bearer(token);
            let reply = with_body(request, &row.body, fill).send().await;
            asked += 1;
            if reply.status != 401 {
                faults.push(format!("{row}: {}", reply.status));
            }
        }
    }
    assert!(asked > 1_500, "{asked}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(scene.instance.repository.head_root().unwrap(), before, "something was written");
}
