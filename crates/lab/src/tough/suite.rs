//! Tough Day's tests, suites and modes as they are set up: which tests, with which weights, under which load.

use std::time::Duration;

/// What a test does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Pages below one parent.
    CreatePage,
    /// Pages in a tree.
    CreatePageTree,
    /// Folders in a tree.
    CreateFolderTree,
    /// Pages in a tree, each with a tag.
    CreateTaggedPagesTree,
    /// Tags in a tree.
    CreateTagTree,
    /// Gives a tag to a page that another test made.
    AddTagToResource,
    /// Deletes a page that another test made.
    DeletePage,
    /// Uploads pictures into one folder.
    UploadImage,
    /// Uploads pictures into a tree of folders.
    CreateAssetTree,
    /// Uploads documents into one folder.
    UploadPdf,
    /// Uploads documents into a tree of folders.
    CreatePdfTree,
    /// Deletes an asset that another test uploaded.
    DeleteImage,
    /// Makes users.
    CreateUser,
    /// Makes users in a tree of folders.
    CreateUserTree,
    /// Makes groups without members.
    CreateUserGroup,
    /// Makes a group and five users, who become members of it, and of one group of all.
    CreateGroupWithUsers,
    /// Publishes a page that another test made, until visitors see it.
    PublishPage,
    /// Makes pages in a tree and publishes each.
    ActivatePagesTree,
    /// Searches.
    QueryBuilder,
    /// The page that an author begins with.
    GetHomepage,
    /// Any address.
    Get,
    /// Creates a page, uploads an asset, deletes both.
    Authoring,
    /// Creates a page in a tree and uploads an asset, and keeps both.
    AuthoringTree,
}

/// Names, and what Tough Day's tests that are not there lack.
const NAMES: [(&str, Kind); 23] = [
    ("CreatePage", Kind::CreatePage),
    ("CreatePageTree", Kind::CreatePageTree),
    ("CreateFolderTree", Kind::CreateFolderTree),
    ("CreateTaggedPagesTree", Kind::CreateTaggedPagesTree),
    ("CreateTagTree", Kind::CreateTagTree),
    ("AddTagToResource", Kind::AddTagToResource),
    ("DeletePage", Kind::DeletePage),
    ("UploadImage", Kind::UploadImage),
    ("CreateAssetTree", Kind::CreateAssetTree),
    ("UploadPDF", Kind::UploadPdf),
    ("CreatePDFTree", Kind::CreatePdfTree),
    ("DeleteImage", Kind::DeleteImage),
    ("CreateUser", Kind::CreateUser),
    ("CreateUserTree", Kind::CreateUserTree),
    ("CreateUserGroup", Kind::CreateUserGroup),
    ("CreateGroupWithUsers", Kind::CreateGroupWithUsers),
    ("PublishPage", Kind::PublishPage),
    ("ActivatePagesTree", Kind::ActivatePagesTree),
    ("QueryBuilder", Kind::QueryBuilder),
    ("GetHomepage", Kind::GetHomepage),
    ("Get", Kind::Get),
    ("Authoring", Kind::Authoring),
    ("AuthoringTree", Kind::AuthoringTree),
];

impl Kind {
    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Returns the test of a name, with or without `Test` at its end.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn find(name: &str) -> Result<Self, String> {
        let bare = name.rsplit('.').next().unwrap_or(name);
        let bare = bare.strip_suffix("Test").unwrap_or(bare);
        if let Some((_, kind)) = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(bare)) {
            return Ok(*kind);
        }
        let lower = bare.to_ascii_lowercase();
        if lower.contains("livecopy") || lower.contains("rollout") {
            return Err(format!("`{name}` is not supported: it needs live copies"));
        }
        let known: Vec<&str> = Self::names().collect();
        let near = crate::plan::nearest(bare, &known);
        let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        Err(format!("no test is called `{name}`{hint}"))
    }

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| *name)
    }

    /// Returns how many nodes an execution leaves behind that stay: pages and assets with what every one of them has.
    #[must_use]
    pub fn nodes(self) -> u64 {
        match self {
            Self::CreateFolderTree
            | Self::CreateTagTree
            | Self::CreateUser
            | Self::CreateUserGroup => 1,
            Self::CreateUserTree => 2,
            Self::CreateGroupWithUsers => 6,
            // A page has its content; an asset its content, its metadata and its original.
            Self::CreatePage
            | Self::CreatePageTree
            | Self::CreateTaggedPagesTree
            | Self::ActivatePagesTree => 2,
            Self::UploadImage | Self::CreateAssetTree | Self::UploadPdf | Self::CreatePdfTree => 5,
            Self::AuthoringTree => 7,
            _ => 0,
        }
    }
}

/// A test of a suite.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    /// What it does.
    pub kind: Kind,
    /// What its samples are called.
    pub name: String,
    /// How often it comes, beside the others.
    pub weight: u64,
    /// Most executions.
    pub count: Option<u64>,
    /// Longest silence of the server.
    pub timeout: Duration,
    /// Children per node of a tree.
    pub base: u64,
    /// Addresses of `Get`, or parameters of `QueryBuilder`, in turn.
    pub queries: Vec<String>,
    /// Whether it goes to publish.
    pub on_publish: bool,
    /// How pages that it makes look, if the file says so; else as a page of the author does.
    pub look: Look,
}

/// What decides how a page is drawn. A page with neither is none that visitors get.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// `sling:resourceType` of its content.
    pub resource_type: Option<String>,
    /// `cq:template` of its content.
    pub template: Option<String>,
}

impl Test {
    /// Returns a test with Tough Day's defaults.
    #[must_use]
    pub fn new(kind: Kind, weight: u64) -> Self {
        Self {
            kind,
            name: kind.name().to_owned(),
            weight,
            count: None,
            timeout: Duration::from_secs(180),
            base: 3,
            queries: Vec::new(),
            on_publish: false,
            look: Look::default(),
        }
    }

    fn base(mut self, base: u64, count: u64) -> Self {
        (self.base, self.count) = (base, Some(count));
        self
    }

    fn get(path: &str, weight: u64, on_publish: bool) -> Self {
        let mut test = Self::new(Kind::Get, weight);
        test.name = format!("Get {path}");
        test.queries = vec![path.to_owned()];
        test.on_publish = on_publish;
        test
    }
}

/// How executions follow each other.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// Users who each wait for the end of an execution, and a pause (closed model).
    Normal {
        /// How many, over time.
        users: Ramp,
        /// The pause.
        wait: Duration,
    },
    /// Executions begin by a schedule, whether or not earlier ones are over (open model). Tough Day starts those of a second
    /// in one moment; here they stand at equal distances.
    ConstantLoad {
        /// How many per second, over time.
        rate: Ramp,
    },
}

/// A number over time: from the start, in steps, to the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ramp {
    /// At the beginning.
    pub start: f64,
    /// In the end.
    pub end: f64,
    /// How much each step adds, or takes away.
    pub step: f64,
    /// How long a step lasts.
    pub interval: Duration,
}

impl Ramp {
    /// Returns a number that stays.
    #[must_use]
    pub fn steady(number: f64) -> Self {
        Self { start: number, end: number, step: 1.0, interval: Duration::from_secs(1) }
    }

    /// Returns the numbers and how long each holds; the last one to the end of `lasts`.
    #[must_use]
    pub fn levels(&self, lasts: Duration) -> Vec<(f64, Duration)> {
        let mut levels = Vec::new();
        let (mut level, mut left) = (self.start, lasts);
        let step = if self.end < self.start { -self.step.abs() } else { self.step.abs() };
        while left > self.interval && !self.interval.is_zero() && step != 0.0 {
            let is_there = if step > 0.0 { level >= self.end } else { level <= self.end };
            if is_there {
                break;
            }
            levels.push((level, self.interval));
            left -= self.interval;
            level += step;
        }
        let last =
            if step > 0.0 { level.min(self.end.max(self.start)) } else { level.max(self.end) };
        levels.push((last, left));
        levels
    }
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How long.
    pub lasts: Duration,
    /// Its load.
    pub mode: Mode,
    /// Its tests.
    pub tests: Vec<Test>,
    /// Whether its numbers count.
    pub is_measured: bool,
}

/// The names of the predefined suites.
pub const SUITES: [&str; 5] = ["toughday", "get_tests", "authoring", "tree_authoring", "publish"];

/// What Tough Day's search asks for.
pub(super) const QUERY: &str =
    "type=nt:unstructured&group.1_path=/libs&orderby=@jcr:score&orderby.sort=desc";

/// Returns a predefined suite.
///
/// Of `toughday`, the tree of live copies is a tree of pages: there are no live copies.
#[must_use]
pub fn suite(name: &str) -> Option<Vec<Test>> {
    Some(match name {
        "toughday" => vec![
            Test::new(Kind::CreatePageTree, 5).base(5, 80_000),
            Test::new(Kind::CreateAssetTree, 5).base(3, 20_000),
            Test { count: Some(20_000), ..Test::new(Kind::DeleteImage, 5) },
            Test::new(Kind::QueryBuilder, 10),
            Test::new(Kind::GetHomepage, 75),
        ],
        "get_tests" => vec![
            Test::new(Kind::GetHomepage, 10),
            Test::get("/sites.html", 5, false),
            Test::get("/assets.html", 5, false),
        ],
        "authoring" => vec![Test::new(Kind::Authoring, 1)],
        "tree_authoring" => vec![Test::new(Kind::AuthoringTree, 1)],
        "publish" => vec![
            Test { on_publish: true, ..Test::new(Kind::GetHomepage, 10) },
            Test::get("/content.html", 5, true),
            Test::get("/content.json", 5, true),
        ],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tough_day_s() {
        assert_eq!(Kind::find("CreatePageTreeTest"), Ok(Kind::CreatePageTree));
        assert_eq!(
            Kind::find("com.adobe.qe.toughday.tests.GetHomepageTest"),
            Ok(Kind::GetHomepage)
        );
        assert!(Kind::find("CreateLiveCopyTest").unwrap_err().contains("live copies"));
        assert_eq!(Kind::find("CreateUserTest"), Ok(Kind::CreateUser));
        assert_eq!(Kind::find("CreateUserTreeTest"), Ok(Kind::CreateUserTree));
        assert!(Kind::find("CreatPageTest").unwrap_err().contains("did you mean `CreatePage`"));
        for name in Kind::names() {
            assert_eq!(Kind::find(name).unwrap().name(), name);
        }
    }

    #[test]
    fn the_default_suite_reads_85_of_100_times() {
        let tests = suite("toughday").unwrap();
        let all: u64 = tests.iter().map(|test| test.weight).sum();
        let reads =
            tests.iter().filter(|test| matches!(test.kind, Kind::QueryBuilder | Kind::GetHomepage));
        assert_eq!((all, reads.map(|test| test.weight).sum::<u64>()), (100, 85));
        assert!(SUITES.iter().all(|name| suite(name).is_some()));
    }

    #[test]
    fn ramps_go_in_steps_to_their_end() {
        let seconds = Duration::from_secs;
        let ramp = |start, end, step| Ramp { start, end, step, interval: seconds(2) };
        let levels = |ramp: Ramp, lasts| {
            let levels = ramp.levels(seconds(lasts));
            levels
                .into_iter()
                .map(|(level, lasts)| (level as u64, lasts.as_secs()))
                .collect::<Vec<_>>()
        };
        assert_eq!(levels(ramp(1.0, 6.0, 2.0), 20), [(1, 2), (3, 2), (5, 2), (6, 14)]);
        assert_eq!(levels(ramp(5.0, 2.0, 2.0), 10), [(5, 2), (3, 2), (2, 6)]);
        assert_eq!(levels(ramp(1.0, 100.0, 1.0), 5), [(1, 2), (2, 2), (3, 1)]);
        assert_eq!(levels(Ramp::steady(7.0), 5), [(7, 5)]);
    }
}
