//! Presence: who has a page open in an editor.
//!
//! In: a report of each open editor, repeated while it is open. Out: the other editors of the page.
//!
//! Invariants
//! * Presence is advice: it is kept in memory of this process, locks nothing, and may be dropped at any time.
//! * An editor that stops reporting is forgotten after [`PRESENCE_LIFETIME`].
//! * Only users who may read a page report their presence on it, or see that of others.
//! * The numbers of pages, and of editors of a page, are limited; the editors silent for longest are forgotten first.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{JcrDate, NodePath};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, PendingApiResponse,
    RequestBodySpec, ResponseSpec,
};
use crate::api::node::find_node;
use crate::api::schema::{
    array_schema, object_schema, partial_object_schema, path_schema, schemas_by_name, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// The time after which an editor that does not report any more is forgotten.
const PRESENCE_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of pages with known editors.
const MAX_PAGES: usize = 10_000;
/// Maximum number of known editors of a page.
const MAX_EDITORS_PER_PAGE: usize = 50;
/// Maximum length of the identity that an editor gives itself.
const MAX_TAB_LENGTH: usize = 64;

/// The API endpoints that this module defines.
pub(crate) const PRESENCE_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Post,
    path: "/api/v1/presence",
    id: "reportPresence",
    description: "Reports that the user has a page open in an editor, or with `leaving` no longer, and lists the \
        other editors of the page. An editor that does not report for a minute is forgotten. Presence is known \
        in one process only.",
    parameters: &[],
    body: RequestBodySpec::Json("PresenceReport"),
    responses: &[ResponseSpec::json("Presence", "The other editors, the longest open first.")],
    handler: EndpointHandler::Async(report_presence),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn presence_schemas() -> Map<String, Json> {
    let tab = json!({ "type": "string", "minLength": 1, "maxLength": MAX_TAB_LENGTH });
    let report = [("path", path_schema()), ("tab", tab), ("leaving", json!({ "type": "boolean" }))];
    let editor = [("user", text_schema()), ("since", text_schema())];
    schemas_by_name([
        ("PresenceReport", partial_object_schema(&["path", "tab"], &report)),
        ("Presence", object_schema(&[("editors", array_schema(object_schema(&editor)))])),
    ])
}

/// An editor that has a page open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PageEditor {
    user: String,
    /// The identity of the browser tab; a user may have several.
    tab: String,
    since: SystemTime,
    reported_at: SystemTime,
}

/// The editors of all pages.
#[derive(Debug, Default)]
pub(crate) struct PresenceBoard {
    pages: Mutex<BTreeMap<NodePath, Vec<PageEditor>>>,
}

impl PresenceBoard {
    /// Notes a report and returns the other editors of the page, the longest open first.
    fn report(&self, path: &NodePath, user: &str, tab: &str, now: SystemTime) -> Vec<PageEditor> {
        let mut pages = self.pages.lock();
        if pages.len() >= MAX_PAGES && !pages.contains_key(path) {
            forget_silent(&mut pages, now);
        }
        if pages.len() >= MAX_PAGES && !pages.contains_key(path) {
            return Vec::new();
        }
        let editors = pages.entry(path.clone()).or_default();
        editors.retain(|editor| !is_silent(editor, now));
        match editors.iter_mut().find(|editor| editor.user == user && editor.tab == tab) {
            Some(editor) => editor.reported_at = now,
            None => {
                let reports = editors.iter().enumerate();
                let silent = reports.min_by_key(|(_, editor)| editor.reported_at).map(|(at, _)| at);
                if editors.len() >= MAX_EDITORS_PER_PAGE
                    && let Some(silent) = silent
                {
                    editors.remove(silent);
                }
                let (user, tab) = (user.to_owned(), tab.to_owned());
                editors.push(PageEditor { user, tab, since: now, reported_at: now });
            }
        }
        let others = editors.iter().filter(|editor| editor.user != user || editor.tab != tab);
        others.cloned().collect()
    }

    /// Forgets an editor.
    fn leave(&self, path: &NodePath, user: &str, tab: &str) {
        let mut pages = self.pages.lock();
        let Some(editors) = pages.get_mut(path) else { return };
        editors.retain(|editor| editor.user != user || editor.tab != tab);
        if editors.is_empty() {
            pages.remove(path);
        }
    }
}

fn is_silent(editor: &PageEditor, now: SystemTime) -> bool {
    // A clock that was set back must not keep an editor for ever.
    now.duration_since(editor.reported_at).unwrap_or(PRESENCE_LIFETIME) >= PRESENCE_LIFETIME
}

fn forget_silent(pages: &mut BTreeMap<NodePath, Vec<PageEditor>>, now: SystemTime) {
    for editors in pages.values_mut() {
        editors.retain(|editor| !is_silent(editor, now));
    }
    pages.retain(|_, editors| !editors.is_empty());
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PresenceReport {
    path: String,
    tab: String,
    #[serde(default)]
    leaving: bool,
}

fn report_presence(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let PresenceReport { path, tab, leaving } = call.parse_body()?;
        let path = NodePath::new(&path)?;
        if tab.is_empty() || tab.len() > MAX_TAB_LENGTH {
            let message = format!("`tab` must have 1 to {MAX_TAB_LENGTH} characters");
            return Err(RequestFailure::bad_request(message));
        }
        let instance = call.instance.clone();
        instance
            .run_work(move |instance: &Instance| respond(instance, &call, &path, (&tab, leaving)))
            .await
    })
}

fn respond(
    instance: &Instance,
    call: &ApiRequest,
    path: &NodePath,
    (tab, is_leaving): (&str, bool),
) -> Result<ApiResponse> {
    find_node(&call.pin_snapshot()?, path)?;
    let editors = if is_leaving {
        instance.presence.leave(path, call.user_name(), tab);
        Vec::new()
    } else {
        instance.presence.report(path, call.user_name(), tab, call.now)
    };
    let editors: Vec<Json> = editors
        .iter()
        .map(|editor| {
            let since = JcrDate::from_system_time(editor.since).to_string();
            json!({ "user": editor.user, "since": since })
        })
        .collect();
    Ok(ApiResponse::json(json!({ "editors": editors })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> NodePath {
        NodePath::new(&format!("/content/{name}")).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn names(editors: &[PageEditor]) -> Vec<&str> {
        editors.iter().map(|editor| editor.user.as_str()).collect()
    }

    #[test]
    fn an_editor_sees_the_others_of_its_page_until_they_leave_or_fall_silent() {
        let board = PresenceBoard::default();
        assert_eq!(names(&board.report(&page("a"), "ada", "1", at(0))), Vec::<&str>::new());
        assert_eq!(names(&board.report(&page("a"), "bea", "2", at(10))), ["ada"]);
        assert_eq!(names(&board.report(&page("b"), "bea", "2", at(10))), Vec::<&str>::new());
        let seen = board.report(&page("a"), "ada", "1", at(50));
        assert_eq!((names(&seen), seen[0].since), (vec!["bea"], at(10)));
        assert_eq!(names(&board.report(&page("a"), "ada", "1", at(70))), Vec::<&str>::new());
        board.report(&page("a"), "bea", "2", at(71));
        board.leave(&page("a"), "bea", "2");
        assert_eq!(names(&board.report(&page("a"), "ada", "1", at(72))), Vec::<&str>::new());
    }

    #[test]
    fn two_tabs_of_one_user_are_two_editors() {
        let board = PresenceBoard::default();
        board.report(&page("a"), "ada", "1", at(0));
        assert_eq!(names(&board.report(&page("a"), "ada", "2", at(1))), ["ada"]);
    }

    #[test]
    fn pages_and_editors_are_limited() {
        let board = PresenceBoard::default();
        for number in 0..MAX_EDITORS_PER_PAGE + 5 {
            board.report(&page("a"), &format!("user{number}"), "1", at(0));
        }
        assert_eq!(board.pages.lock()[&page("a")].len(), MAX_EDITORS_PER_PAGE);
        for number in 0..MAX_PAGES + 5 {
            board.report(&page(&format!("p{number}")), "ada", "1", at(0));
        }
        assert_eq!(board.pages.lock().len(), MAX_PAGES);
        board.report(&page("later"), "ada", "1", at(61));
        assert_eq!(board.pages.lock().len(), 1, "silent editors made room");
    }
}
