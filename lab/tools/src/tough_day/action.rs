//! The actions of each test: its requests in order, and the results that other tests depend on.

use std::collections::VecDeque;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tympan_lab_engine::load::asset_request;
use tympan_lab_engine::load::asset_request::{AssetRequest, MAX_ASSET_RESPONSE_BYTES};
use tympan_lab_engine::net::{ResponseRetention, TargetRequest};

use super::shared_state::{
    CreatedContentKind, ToughServer, ToughSharedState, ToughTreeKey, tree_node_path,
};
use super::suite::{DEFAULT_SEARCH_QUERY, PageAppearance, ToughTest, ToughTestKind};

/// Number of users that `CreateGroupWithUsers` creates at a time, as in Tough Day.
const USERS_PER_GROUP: usize = 5;
/// Root under which user folders are created.
pub(super) const USERS_ROOT: &str = "/home/users";

/// The condition that a poll waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PollCondition {
    /// The asset was processed.
    Processed,
    /// The page exists.
    Exists,
}

/// One action of an execution.
#[derive(Debug)]
pub(super) enum ToughAction {
    Send {
        label: String,
        request: TargetRequest,
    },
    Poll {
        label: String,
        request: TargetRequest,
        condition: PollCondition,
    },
    /// Marks a node of a tree as finished, whether it was created or failed.
    AddedToTree {
        tree: ToughTreeKey,
        node_number: u64,
    },
    /// Makes created content available to other tests; not reached if creation failed.
    Offer(CreatedContentKind, String),
}

impl ToughSharedState {
    /// Begins an execution of a test; `None` if its prerequisites do not exist yet.
    pub(super) fn begin_execution(&self, test: &ToughTest) -> Option<VecDeque<ToughAction>> {
        // Start before the check, because the execution may produce what others wait for.
        self.start_execution();
        let acts = self.plan_actions(test);
        match &acts {
            Some(_) => self.reset_skips(),
            None => self.end_execution(),
        }
        acts
    }

    /// Returns the actions of one execution of a test; `None` if its prerequisites do not exist yet.
    fn plan_actions(&self, test: &ToughTest) -> Option<VecDeque<ToughAction>> {
        let mut acts = VecDeque::new();
        self.add_actions(test, test.kind, &test.name, &mut acts)?;
        Some(acts)
    }

    fn add_actions(
        &self,
        test: &ToughTest,
        kind: ToughTestKind,
        label: &str,
        acts: &mut VecDeque<ToughAction>,
    ) -> Option<()> {
        let run = &self.run_name;
        let silence = test.idle_timeout;
        let part = |name: &str| format!("{label}: {name}");
        match kind {
            ToughTestKind::CreatePage => {
                let path = format!("/content/{run}/flat/p{}", self.take_number());
                acts.push_back(self.create_page(test, label, &path, None));
                acts.push_back(ToughAction::Offer(CreatedContentKind::Page, path));
            }
            ToughTestKind::CreatePageTree
            | ToughTestKind::CreateTaggedPagesTree
            | ToughTestKind::ActivatePagesTree => {
                let tag = if kind == ToughTestKind::CreateTaggedPagesTree {
                    Some(self.take_content(CreatedContentKind::Tag)?)
                } else {
                    None
                };
                if let Some(tag) = &tag {
                    self.offer_content(CreatedContentKind::Tag, tag.clone());
                }
                let number = self.reserve_tree_node("pages", test.tree_fanout)?;
                let path =
                    tree_node_path(&format!("/content/{run}/tree"), 'p', test.tree_fanout, number);
                let is_activated = kind == ToughTestKind::ActivatePagesTree;
                acts.push_back(self.create_page(test, label, &path, tag.as_deref()));
                acts.push_back(ToughAction::AddedToTree {
                    tree: ("pages", test.tree_fanout.max(1)),
                    node_number: number,
                });
                if is_activated {
                    self.activate_page(label, &path, silence, acts);
                } else {
                    acts.push_back(ToughAction::Offer(CreatedContentKind::TreePage, path));
                }
            }
            ToughTestKind::CreateFolderTree => {
                let number = self.reserve_tree_node("folders", test.tree_fanout)?;
                let path = tree_node_path(
                    &format!("/content/{run}/folders"),
                    'f',
                    test.tree_fanout,
                    number,
                );
                let fields = [("./jcr:primaryType", "sling:OrderedFolder")];
                acts.push_back(self.post_form(label, &path, &fields, silence));
                acts.push_back(ToughAction::AddedToTree {
                    tree: ("folders", test.tree_fanout.max(1)),
                    node_number: number,
                });
            }
            ToughTestKind::CreateTagTree => {
                let number = self.reserve_tree_node("tags", test.tree_fanout)?;
                let path = tree_node_path(
                    &format!("/content/cq:tags/{run}"),
                    't',
                    test.tree_fanout,
                    number,
                );
                let title = format!("Tag {number}");
                let fields = [("./jcr:primaryType", "cq:Tag"), ("./jcr:title", title.as_str())];
                acts.push_back(self.post_form(label, &path, &fields, silence));
                acts.push_back(ToughAction::AddedToTree {
                    tree: ("tags", test.tree_fanout.max(1)),
                    node_number: number,
                });
                acts.push_back(ToughAction::Offer(CreatedContentKind::Tag, path));
            }
            ToughTestKind::AddTagToResource => {
                let page = self.take_content(CreatedContentKind::TreePage)?;
                self.offer_content(CreatedContentKind::TreePage, page.clone());
                let tag = self.take_content(CreatedContentKind::Tag)?;
                self.offer_content(CreatedContentKind::Tag, tag.clone());
                let fields = [
                    ("./jcr:content/cq:tags@TypeHint", "String[]"),
                    ("./jcr:content/cq:tags", tag.as_str()),
                ];
                acts.push_back(self.post_form(label, &page, &fields, silence));
            }
            ToughTestKind::DeletePage => acts.push_back(self.delete_path(
                label,
                &self.take_content(CreatedContentKind::Page)?,
                silence,
            )),
            ToughTestKind::DeleteImage => acts.push_back(self.delete_path(
                label,
                &self.take_content(CreatedContentKind::Asset)?,
                silence,
            )),
            ToughTestKind::UploadImage | ToughTestKind::UploadPdf => {
                let folder = format!("/content/dam/{run}/flat");
                let format = match kind {
                    ToughTestKind::UploadPdf => ToughAssetFormat::Pdf,
                    _ => ToughAssetFormat::Png,
                };
                self.upload_and_offer_asset(label, &folder, format, silence, acts);
            }
            ToughTestKind::CreateAssetTree | ToughTestKind::CreatePdfTree => {
                let number = self.reserve_tree_node("assets", test.tree_fanout)?;
                let folder = tree_node_path(
                    &format!("/content/dam/{run}/tree"),
                    'd',
                    test.tree_fanout,
                    number,
                );
                let fields = [("./jcr:primaryType", "sling:OrderedFolder")];
                acts.push_back(self.post_form(&part("folder"), &folder, &fields, silence));
                acts.push_back(ToughAction::AddedToTree {
                    tree: ("assets", test.tree_fanout.max(1)),
                    node_number: number,
                });
                let format = match kind {
                    ToughTestKind::CreatePdfTree => ToughAssetFormat::Pdf,
                    _ => ToughAssetFormat::Png,
                };
                self.upload_and_offer_asset(label, &folder, format, silence, acts);
            }
            ToughTestKind::CreateUser => {
                let name = format!("{run}-u{}", self.take_number());
                acts.push_back(self.create_account(label, "users", &name, silence));
            }
            ToughTestKind::CreateUserTree => {
                let number = self.reserve_tree_node("users", test.tree_fanout)?;
                let folder = tree_node_path(run, 'f', test.tree_fanout, number);
                let path = format!("{USERS_ROOT}/{folder}");
                let fields = [("./jcr:primaryType", "rep:AuthorizableFolder")];
                acts.push_back(self.post_form(&part("create folder"), &path, &fields, silence));
                acts.push_back(ToughAction::AddedToTree {
                    tree: ("users", test.tree_fanout.max(1)),
                    node_number: number,
                });
                let user = format!("{run}-u{}", self.take_number());
                let mut body = self.new_user_json(&user);
                if let Some(body) = body.as_object_mut() {
                    body.insert("folder".to_owned(), Value::from(folder));
                }
                let users_path = "/api/v1/users";
                acts.push_back(self.post_json(&part("create user"), users_path, &body, silence));
            }
            ToughTestKind::CreateUserGroup => {
                let name = format!("{run}-g{}", self.take_number());
                acts.push_back(self.create_account(label, "groups", &name, silence));
            }
            ToughTestKind::CreateGroupWithUsers => {
                let group = format!("{run}-g{}", self.take_number());
                acts.push_back(self.create_account(
                    &part("create group"),
                    "groups",
                    &group,
                    silence,
                ));
                for _ in 0..USERS_PER_GROUP {
                    let user = format!("{run}-u{}", self.take_number());
                    acts.push_back(self.create_account(
                        &part("create user"),
                        "users",
                        &user,
                        silence,
                    ));
                    for group in [&group, &Self::everybody_group(run)] {
                        let member = json!({ "group": group, "member": user });
                        let members_path = "/api/v1/group/members";
                        acts.push_back(self.post_json(
                            &part("add to group"),
                            members_path,
                            &member,
                            silence,
                        ));
                    }
                }
            }
            ToughTestKind::PublishPage => {
                let page = self
                    .take_content(CreatedContentKind::Page)
                    .or_else(|| self.take_content(CreatedContentKind::TreePage))?;
                self.activate_page(label, &page, silence, acts);
            }
            ToughTestKind::QueryBuilder => {
                let query =
                    self.next_of(&test.queries).unwrap_or_else(|| DEFAULT_SEARCH_QUERY.to_owned());
                let path = format!("/bin/querybuilder.json?{}", encode_request_path(&query));
                acts.push_back(self.get_path(label, &path, test.is_on_publish, silence)?);
            }
            ToughTestKind::GetHomepage => {
                let path = self.homepages.get(usize::from(test.is_on_publish))?;
                acts.push_back(self.get_path(label, path, test.is_on_publish, silence)?);
            }
            ToughTestKind::Get => {
                let path = self.next_of(&test.queries).unwrap_or_else(|| "/".to_owned());
                acts.push_back(self.get_path(
                    label,
                    &encode_request_path(&path),
                    test.is_on_publish,
                    silence,
                )?);
            }
            ToughTestKind::Authoring => {
                let page = format!("/content/{run}/flat/p{}", self.take_number());
                acts.push_back(self.create_page(test, &part("create page"), &page, None));
                let folder = format!("/content/dam/{run}/flat");
                let name = part("upload asset");
                let asset = self.upload_asset(&name, &folder, ToughAssetFormat::Png, silence, acts);
                acts.push_back(self.delete_path(&part("delete page"), &page, silence));
                acts.push_back(self.delete_path(&part("delete asset"), &asset, silence));
            }
            ToughTestKind::AuthoringTree => {
                self.add_actions(test, ToughTestKind::CreatePageTree, &part("create page"), acts)?;
                let folder = format!("/content/dam/{run}/flat");
                let (name, format) = (part("upload asset"), ToughAssetFormat::Png);
                self.upload_and_offer_asset(&name, &folder, format, silence, acts);
            }
        }
        Some(())
    }

    /// Returns the group that contains all users of `CreateGroupWithUsers`.
    pub(super) fn everybody_group(run: &str) -> String {
        format!("{run}-everybody")
    }

    /// Creates a user or a group.
    fn create_account(
        &self,
        label: &str,
        kind: &str,
        name: &str,
        silence: Duration,
    ) -> ToughAction {
        let body = match kind {
            "users" => self.new_user_json(name),
            _ => json!({ "name": name }),
        };
        self.post_json(label, &format!("/api/v1/{kind}"), &body, silence)
    }

    fn new_user_json(&self, name: &str) -> Value {
        json!({ "name": name, "password": format!("{}-{name}", self.password_prefix) })
    }

    fn post_json(&self, label: &str, path: &str, body: &Value, silence: Duration) -> ToughAction {
        let body = body.to_string();
        let body = ("application/json", body.as_bytes());
        let request =
            self.author.build_request("POST", path, body, silence, ResponseRetention::Head);
        ToughAction::Send { label: label.to_owned(), request }
    }

    fn next_of(&self, list: &[String]) -> Option<String> {
        let length = u64::try_from(list.len()).ok().filter(|length| *length > 0)?;
        let turn = usize::try_from(self.take_number() % length).unwrap_or(0);
        list.get(turn).cloned()
    }

    /// Creates a page that visitors can get. Without a component that renders it, publish would never show it.
    fn create_page(
        &self,
        test: &ToughTest,
        label: &str,
        path: &str,
        tag: Option<&str>,
    ) -> ToughAction {
        let title = path.rsplit('/').next().unwrap_or_default();
        let mut fields = vec![
            ("./jcr:primaryType", "cq:Page"),
            ("./jcr:content/jcr:primaryType", "cq:PageContent"),
            ("./jcr:content/jcr:title", title),
        ];
        let (own, usual) = (&test.appearance, &self.default_appearance);
        // A template belongs to its component, so the test's values are not mixed with those of the author's page.
        let look = if *own == PageAppearance::default() { usual } else { own };
        if let Some(resource_type) = &look.resource_type {
            fields.push(("./jcr:content/sling:resourceType", resource_type));
        }
        if let Some(template) = &look.template {
            fields.push(("./jcr:content/cq:template", template));
        }
        if let Some(tag) = tag {
            fields.push(("./jcr:content/cq:tags@TypeHint", "String[]"));
            fields.push(("./jcr:content/cq:tags", tag));
        }
        self.post_form(label, path, &fields, test.idle_timeout)
    }

    fn delete_path(&self, label: &str, path: &str, silence: Duration) -> ToughAction {
        self.post_form(label, path, &[(":operation", "delete")], silence)
    }

    /// Publishes a page and, if publish is known, waits until visitors get it.
    fn activate_page(
        &self,
        label: &str,
        page: &str,
        silence: Duration,
        acts: &mut VecDeque<ToughAction>,
    ) {
        acts.push_back(self.post_form(label, page, &[(":operation", "activate")], silence));
        if let Some(site) = &self.publish {
            let request = site.build_request(
                "GET",
                &format!("{page}.html"),
                ("", &[]),
                silence,
                ResponseRetention::Head,
            );
            acts.push_back(ToughAction::Poll {
                label: format!("{label}: visible"),
                request,
                condition: PollCondition::Exists,
            });
        }
    }

    /// Uploads a unique file, waits for its renditions, and offers the asset to other tests.
    fn upload_and_offer_asset(
        &self,
        label: &str,
        folder: &str,
        format: ToughAssetFormat,
        silence: Duration,
        acts: &mut VecDeque<ToughAction>,
    ) {
        let path = self.upload_asset(label, folder, format, silence, acts);
        // The asset is offered only when its renditions exist. Deleting it while they are generated would fail for an
        // unrelated reason.
        acts.push_back(ToughAction::Offer(CreatedContentKind::Asset, path));
    }

    /// Uploads a unique file and waits for its renditions. Returns the asset's path.
    fn upload_asset(
        &self,
        label: &str,
        folder: &str,
        format: ToughAssetFormat,
        silence: Duration,
        acts: &mut VecDeque<ToughAction>,
    ) -> String {
        let number = self.take_number();
        let (name, file_type, file) = match format {
            ToughAssetFormat::Pdf => {
                let file = make_pdf(&format!("{} {number}", self.run_name));
                (format!("d{number}.pdf"), "application/pdf", file)
            }
            ToughAssetFormat::Png => {
                (format!("i{number}.png"), "image/png", self.unique_picture(number))
            }
        };
        let path = format!("{folder}/{name}");
        let boundary = format!("tympan-lab-{number:016x}");
        let (media_type, body) =
            asset_request::build_upload_form((&name, file_type), &boundary, &[&file]);
        let request = self.author.build_request(
            "POST",
            folder,
            (&media_type, &body),
            silence,
            ResponseRetention::Head,
        );
        acts.push_back(ToughAction::Send { label: label.to_owned(), request });
        let look = format!("{path}/jcr:content.json");
        let request = self.author.build_request(
            "GET",
            &look,
            ("", &[]),
            silence,
            ResponseRetention::Body(MAX_ASSET_RESPONSE_BYTES),
        );
        acts.push_back(ToughAction::Poll {
            label: format!("{label}: renditions"),
            request,
            condition: PollCondition::Processed,
        });
        path
    }

    /// Returns a picture whose bytes are unique among uploads.
    fn unique_picture(&self, number: u64) -> Vec<u8> {
        let mut file = self.picture.clone();
        // Bytes after a picture's end do not change its appearance.
        file.extend_from_slice(self.run_name.as_bytes());
        file.extend_from_slice(&number.to_le_bytes());
        file
    }

    fn get_path(
        &self,
        label: &str,
        path: &str,
        on_publish: bool,
        silence: Duration,
    ) -> Option<ToughAction> {
        let site = if on_publish { self.publish.as_ref()? } else { &self.author };
        let request = site.build_request("GET", path, ("", &[]), silence, ResponseRetention::Head);
        Some(ToughAction::Send { label: label.to_owned(), request })
    }

    fn post_form(
        &self,
        label: &str,
        path: &str,
        fields: &[(&str, &str)],
        silence: Duration,
    ) -> ToughAction {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let body = pairs.join("&");
        let media_type = "application/x-www-form-urlencoded";
        let request = self.author.build_request(
            "POST",
            path,
            (media_type, body.as_bytes()),
            silence,
            ResponseRetention::Head,
        );
        ToughAction::Send { label: label.to_owned(), request }
    }
}

/// The format of an uploaded asset.
#[derive(Debug, Clone, Copy)]
enum ToughAssetFormat {
    Png,
    Pdf,
}

impl ToughServer {
    fn build_request(
        &self,
        method: &'static str,
        path: &str,
        body: (&str, &[u8]),
        silence: Duration,
        keep: ResponseRetention,
    ) -> TargetRequest {
        let prefix = self.base_url.path_and_query.trim_end_matches('/');
        let path = format!("{prefix}{}", path.replace(':', "%3A"));
        asset_request::build_asset_request(
            &self.target,
            &self.headers,
            AssetRequest { method, path: &path, body, retention: keep, idle_timeout: silence },
        )
    }
}

/// Percent-encodes characters that a request line cannot contain.
fn encode_request_path(path: &str) -> String {
    path.chars()
        .map(|letter| match letter.is_ascii_graphic() && !"\"<>\\^`{|}#".contains(letter) {
            true => letter.to_string(),
            false => utf8_percent_encode(&letter.to_string(), NON_ALPHANUMERIC).to_string(),
        })
        .collect()
}

/// Returns a document of one page that shows a text.
fn make_pdf(text: &str) -> Vec<u8> {
    let stream = format!("BT /F1 24 Tf 72 700 Td ({}) Tj ET", text.replace(['(', ')', '\\'], " "));
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
    ];
    let mut file = "%PDF-1.4\n".to_owned();
    let mut offsets = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", number + 1));
    }
    let table = file.len();
    file.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", offsets.len() + 1));
    for offset in &offsets {
        file.push_str(&format!("{offset:010} 00000 n \n"));
    }
    file.push_str(&format!(
        "trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n",
        offsets.len() + 1
    ));
    file.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_s_table_leads_to_its_objects() {
        let file = String::from_utf8(make_pdf("a (b)")).unwrap();
        let table: usize =
            file.split("startxref\n").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        assert!(file[table..].starts_with("xref"));
        for (number, line) in file[table..].lines().skip(3).take(5).enumerate() {
            let at: usize = line[..10].parse().unwrap();
            assert!(file[at..].starts_with(&format!("{} 0 obj", number + 1)));
        }
    }
}
