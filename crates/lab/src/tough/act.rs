//! What each test does: its requests in order, and what of them others wait for.

use std::collections::VecDeque;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::shared::{Made, Place, Root, Shared, tree_path};
use super::suite::{Kind, Look, QUERY, Test};
use crate::asset::{self, Ask, MOST_ANSWER};
use crate::net::{Keep, Request};

/// Users that `CreateGroupWithUsers` makes at a time, as Tough Day does.
const USERS: usize = 5;
/// Where folders of users are made.
pub(super) const USERS_ROOT: &str = "/home/users";

/// What a poll waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The asset was processed.
    Processed,
    /// The page is there.
    There,
}

/// One thing that an execution does.
#[derive(Debug)]
pub(super) enum Act {
    Send {
        label: String,
        request: Request,
    },
    Await {
        label: String,
        request: Request,
        until: Until,
    },
    /// The node of a tree is there, or never will be.
    Grown {
        tree: Root,
        number: u64,
    },
    /// What was made can be used by others; not reached where making it failed.
    HandOn(Made, String),
}

impl Shared {
    /// Returns what an execution of a test does; nothing if what it needs is not there yet.
    pub(super) fn plan(&self, test: &Test) -> Option<VecDeque<Act>> {
        let mut acts = VecDeque::new();
        self.add(test, test.kind, &test.name, &mut acts)?;
        Some(acts)
    }

    fn add(&self, test: &Test, kind: Kind, label: &str, acts: &mut VecDeque<Act>) -> Option<()> {
        let run = &self.run;
        let silence = test.timeout;
        let part = |name: &str| format!("{label}: {name}");
        match kind {
            Kind::CreatePage => {
                let path = format!("/content/{run}/flat/p{}", self.number());
                acts.push_back(self.page(test, label, &path, None));
                acts.push_back(Act::HandOn(Made::Page, path));
            }
            Kind::CreatePageTree | Kind::CreateTaggedPagesTree | Kind::ActivatePagesTree => {
                let tag = if kind == Kind::CreateTaggedPagesTree {
                    Some(self.take(Made::Tag)?)
                } else {
                    None
                };
                if let Some(tag) = &tag {
                    self.hand_on(Made::Tag, tag.clone());
                }
                let number = self.grow("pages", test.base)?;
                let path = tree_path(&format!("/content/{run}/tree"), 'p', test.base, number);
                let is_activated = kind == Kind::ActivatePagesTree;
                acts.push_back(self.page(test, label, &path, tag.as_deref()));
                acts.push_back(Act::Grown { tree: ("pages", test.base.max(1)), number });
                if is_activated {
                    self.activate(label, &path, silence, acts);
                } else {
                    acts.push_back(Act::HandOn(Made::TreePage, path));
                }
            }
            Kind::CreateFolderTree => {
                let number = self.grow("folders", test.base)?;
                let path = tree_path(&format!("/content/{run}/folders"), 'f', test.base, number);
                let fields = [("./jcr:primaryType", "sling:OrderedFolder")];
                acts.push_back(self.form(label, &path, &fields, silence));
                acts.push_back(Act::Grown { tree: ("folders", test.base.max(1)), number });
            }
            Kind::CreateTagTree => {
                let number = self.grow("tags", test.base)?;
                let path = tree_path(&format!("/content/cq:tags/{run}"), 't', test.base, number);
                let title = format!("Tag {number}");
                let fields = [("./jcr:primaryType", "cq:Tag"), ("./jcr:title", title.as_str())];
                acts.push_back(self.form(label, &path, &fields, silence));
                acts.push_back(Act::Grown { tree: ("tags", test.base.max(1)), number });
                acts.push_back(Act::HandOn(Made::Tag, path));
            }
            Kind::AddTagToResource => {
                let page = self.take(Made::TreePage)?;
                self.hand_on(Made::TreePage, page.clone());
                let tag = self.take(Made::Tag)?;
                self.hand_on(Made::Tag, tag.clone());
                let fields = [
                    ("./jcr:content/cq:tags@TypeHint", "String[]"),
                    ("./jcr:content/cq:tags", tag.as_str()),
                ];
                acts.push_back(self.form(label, &page, &fields, silence));
            }
            Kind::DeletePage => {
                acts.push_back(self.delete(label, &self.take(Made::Page)?, silence))
            }
            Kind::DeleteImage => {
                acts.push_back(self.delete(label, &self.take(Made::Asset)?, silence))
            }
            Kind::UploadImage | Kind::UploadPdf => {
                let folder = format!("/content/dam/{run}/flat");
                self.upload((label, &folder), (kind == Kind::UploadPdf, true), silence, acts);
            }
            Kind::CreateAssetTree | Kind::CreatePdfTree => {
                let number = self.grow("assets", test.base)?;
                let folder = tree_path(&format!("/content/dam/{run}/tree"), 'd', test.base, number);
                let fields = [("./jcr:primaryType", "sling:OrderedFolder")];
                acts.push_back(self.form(&part("folder"), &folder, &fields, silence));
                acts.push_back(Act::Grown { tree: ("assets", test.base.max(1)), number });
                self.upload((label, &folder), (kind == Kind::CreatePdfTree, true), silence, acts);
            }
            Kind::CreateUser => {
                let name = format!("{run}-u{}", self.number());
                acts.push_back(self.account(label, "users", &name, silence));
            }
            Kind::CreateUserTree => {
                let number = self.grow("users", test.base)?;
                let folder = tree_path(run, 'f', test.base, number);
                let path = format!("{USERS_ROOT}/{folder}");
                let fields = [("./jcr:primaryType", "rep:AuthorizableFolder")];
                acts.push_back(self.form(&part("create folder"), &path, &fields, silence));
                acts.push_back(Act::Grown { tree: ("users", test.base.max(1)), number });
                let user = format!("{run}-u{}", self.number());
                let mut body = self.new_user(&user);
                if let Some(body) = body.as_object_mut() {
                    body.insert("folder".to_owned(), Value::from(folder));
                }
                let place = "/api/v1/users";
                acts.push_back(self.json(&part("create user"), place, &body, silence));
            }
            Kind::CreateUserGroup => {
                let name = format!("{run}-g{}", self.number());
                acts.push_back(self.account(label, "groups", &name, silence));
            }
            Kind::CreateGroupWithUsers => {
                let group = format!("{run}-g{}", self.number());
                acts.push_back(self.account(&part("create group"), "groups", &group, silence));
                for _ in 0..USERS {
                    let user = format!("{run}-u{}", self.number());
                    acts.push_back(self.account(&part("create user"), "users", &user, silence));
                    for group in [&group, &Self::everybody(run)] {
                        let member = json!({ "group": group, "member": user });
                        let place = "/api/v1/group/members";
                        acts.push_back(self.json(&part("add to group"), place, &member, silence));
                    }
                }
            }
            Kind::PublishPage => {
                let page = self.take(Made::Page).or_else(|| self.take(Made::TreePage))?;
                self.activate(label, &page, silence, acts);
            }
            Kind::QueryBuilder => {
                let query = self.in_turn(&test.queries).unwrap_or_else(|| QUERY.to_owned());
                let path = format!("/bin/querybuilder.json?{}", fit(&query));
                acts.push_back(self.get(label, &path, test.on_publish, silence)?);
            }
            Kind::GetHomepage => {
                let path = self.homepage.get(usize::from(test.on_publish))?;
                acts.push_back(self.get(label, path, test.on_publish, silence)?);
            }
            Kind::Get => {
                let path = self.in_turn(&test.queries).unwrap_or_else(|| "/".to_owned());
                acts.push_back(self.get(label, &fit(&path), test.on_publish, silence)?);
            }
            Kind::Authoring => {
                let page = format!("/content/{run}/flat/p{}", self.number());
                acts.push_back(self.page(test, &part("create page"), &page, None));
                let folder = format!("/content/dam/{run}/flat");
                let name = part("upload asset");
                let asset = self.upload((&name, &folder), (false, false), silence, acts);
                acts.push_back(self.delete(&part("delete page"), &page, silence));
                acts.push_back(self.delete(&part("delete asset"), &asset, silence));
            }
            Kind::AuthoringTree => {
                self.add(test, Kind::CreatePageTree, &part("create page"), acts)?;
                let folder = format!("/content/dam/{run}/flat");
                self.upload((&part("upload asset"), &folder), (false, true), silence, acts);
            }
        }
        Some(())
    }

    /// Returns the group that all users of `CreateGroupWithUsers` are in.
    pub(super) fn everybody(run: &str) -> String {
        format!("{run}-everybody")
    }

    /// Makes a user or a group.
    fn account(&self, label: &str, kind: &str, name: &str, silence: Duration) -> Act {
        let body = match kind {
            "users" => self.new_user(name),
            _ => json!({ "name": name }),
        };
        self.json(label, &format!("/api/v1/{kind}"), &body, silence)
    }

    fn new_user(&self, name: &str) -> Value {
        json!({ "name": name, "password": format!("{}-{name}", self.password) })
    }

    fn json(&self, label: &str, path: &str, body: &Value, silence: Duration) -> Act {
        let body = body.to_string();
        let body = ("application/json", body.as_bytes());
        let request = self.author.request("POST", path, body, (silence, Keep::Head));
        Act::Send { label: label.to_owned(), request }
    }

    fn in_turn(&self, list: &[String]) -> Option<String> {
        let length = u64::try_from(list.len()).ok().filter(|length| *length > 0)?;
        let turn = usize::try_from(self.number() % length).unwrap_or(0);
        list.get(turn).cloned()
    }

    /// Makes a page that visitors get: without a component that draws it, publish would never show it.
    fn page(&self, test: &Test, label: &str, path: &str, tag: Option<&str>) -> Act {
        let title = path.rsplit('/').next().unwrap_or_default();
        let mut fields = vec![
            ("./jcr:primaryType", "cq:Page"),
            ("./jcr:content/jcr:primaryType", "cq:PageContent"),
            ("./jcr:content/jcr:title", title),
        ];
        let (own, usual) = (&test.look, &self.look);
        // A template belongs to its own component: those of the test are not mixed with those of the author's page.
        let look = if *own == Look::default() { usual } else { own };
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
        self.form(label, path, &fields, test.timeout)
    }

    fn delete(&self, label: &str, path: &str, silence: Duration) -> Act {
        self.form(label, path, &[(":operation", "delete")], silence)
    }

    /// Publishes a page and waits until visitors get it, where publish is known.
    fn activate(&self, label: &str, page: &str, silence: Duration, acts: &mut VecDeque<Act>) {
        acts.push_back(self.form(label, page, &[(":operation", "activate")], silence));
        if let Some(place) = &self.publish {
            let request =
                place.request("GET", &format!("{page}.html"), ("", &[]), (silence, Keep::Head));
            acts.push_back(Act::Await {
                label: format!("{label}: visible"),
                request,
                until: Until::There,
            });
        }
    }

    /// Uploads a file of its own and waits for its renditions; returns the asset's path.
    fn upload(
        &self,
        (label, folder): (&str, &str),
        (is_pdf, is_kept): (bool, bool),
        silence: Duration,
        acts: &mut VecDeque<Act>,
    ) -> String {
        let number = self.number();
        let name = if is_pdf { format!("d{number}.pdf") } else { format!("i{number}.png") };
        let path = format!("{folder}/{name}");
        let file =
            if is_pdf { pdf(&format!("{} {number}", self.run)) } else { self.picture_of(number) };
        let boundary = format!("tympan-lab-{number:016x}");
        let kind = if is_pdf { "application/pdf" } else { "image/png" };
        let (media_type, body) = asset::upload((&name, kind), &boundary, &[&file]);
        let request =
            self.author.request("POST", folder, (&media_type, &body), (silence, Keep::Head));
        acts.push_back(Act::Send { label: label.to_owned(), request });
        let look = format!("{path}/jcr:content.json");
        let request =
            self.author.request("GET", &look, ("", &[]), (silence, Keep::Body(MOST_ANSWER)));
        acts.push_back(Act::Await {
            label: format!("{label}: renditions"),
            request,
            until: Until::Processed,
        });
        if is_kept {
            // Handed on when its renditions are there: what is deleted while they are made fails for a reason of its own.
            acts.push_back(Act::HandOn(Made::Asset, path.clone()));
        }
        path
    }

    /// Returns a picture whose bytes no other upload has.
    fn picture_of(&self, number: u64) -> Vec<u8> {
        let mut file = self.picture.clone();
        // Bytes behind a picture's end change nothing that is seen.
        file.extend_from_slice(self.run.as_bytes());
        file.extend_from_slice(&number.to_le_bytes());
        file
    }

    fn get(&self, label: &str, path: &str, on_publish: bool, silence: Duration) -> Option<Act> {
        let place = if on_publish { self.publish.as_ref()? } else { &self.author };
        let request = place.request("GET", path, ("", &[]), (silence, Keep::Head));
        Some(Act::Send { label: label.to_owned(), request })
    }

    fn form(&self, label: &str, path: &str, fields: &[(&str, &str)], silence: Duration) -> Act {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let body = pairs.join("&");
        let media_type = "application/x-www-form-urlencoded";
        let request =
            self.author.request("POST", path, (media_type, body.as_bytes()), (silence, Keep::Head));
        Act::Send { label: label.to_owned(), request }
    }
}

impl Place {
    fn request(
        &self,
        method: &'static str,
        path: &str,
        body: (&str, &[u8]),
        (silence, keep): (Duration, Keep),
    ) -> Request {
        let prefix = self.url.target.trim_end_matches('/');
        let path = format!("{prefix}{}", path.replace(':', "%3A"));
        asset::request(
            &self.target,
            &self.headers,
            Ask { method, path: &path, body, keep, silence },
        )
    }
}

/// Writes what no request line may hold with `%`.
fn fit(path: &str) -> String {
    path.chars()
        .map(|letter| match letter.is_ascii_graphic() && !"\"<>\\^`{|}#".contains(letter) {
            true => letter.to_string(),
            false => utf8_percent_encode(&letter.to_string(), NON_ALPHANUMERIC).to_string(),
        })
        .collect()
}

/// Returns a document of one page that shows a text.
fn pdf(text: &str) -> Vec<u8> {
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
    let mut places = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", number + 1));
    }
    let table = file.len();
    file.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", places.len() + 1));
    for place in &places {
        file.push_str(&format!("{place:010} 00000 n \n"));
    }
    file.push_str(&format!(
        "trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n",
        places.len() + 1
    ));
    file.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_s_table_leads_to_its_objects() {
        let file = String::from_utf8(pdf("a (b)")).unwrap();
        let table: usize =
            file.split("startxref\n").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        assert!(file[table..].starts_with("xref"));
        for (number, line) in file[table..].lines().skip(3).take(5).enumerate() {
            let at: usize = line[..10].parse().unwrap();
            assert!(file[at..].starts_with(&format!("{} 0 obj", number + 1)));
        }
    }
}
