//! Tough Day's tests, suites and modes: the tests, their weights, and the load.

use std::time::Duration;

/// The kind of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToughTestKind {
    /// Creates pages below one parent.
    CreatePage,
    /// Creates pages in a tree.
    CreatePageTree,
    /// Creates folders in a tree.
    CreateFolderTree,
    /// Creates pages in a tree, each with a tag.
    CreateTaggedPagesTree,
    /// Creates tags in a tree.
    CreateTagTree,
    /// Adds a tag to a page that another test created.
    AddTagToResource,
    /// Deletes a page that another test created.
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
    /// Creates users.
    CreateUser,
    /// Creates users in a tree of folders.
    CreateUserTree,
    /// Creates groups without members.
    CreateUserGroup,
    /// Creates a group and five users, who become members of it and of one group of all users.
    CreateGroupWithUsers,
    /// Publishes a page that another test created, and waits until visitors see it.
    PublishPage,
    /// Creates pages in a tree and publishes each.
    ActivatePagesTree,
    /// Sends search queries.
    QueryBuilder,
    /// Requests the author's start page.
    GetHomepage,
    /// Requests any address.
    Get,
    /// Creates a page, uploads an asset, deletes both.
    Authoring,
    /// Creates a page in a tree, uploads an asset, and retains both.
    AuthoringTree,
}

/// Names of the tests, and the reasons why some of Tough Day's tests are unavailable.
const TEST_NAMES: [(&str, ToughTestKind); 23] = [
    ("CreatePage", ToughTestKind::CreatePage),
    ("CreatePageTree", ToughTestKind::CreatePageTree),
    ("CreateFolderTree", ToughTestKind::CreateFolderTree),
    ("CreateTaggedPagesTree", ToughTestKind::CreateTaggedPagesTree),
    ("CreateTagTree", ToughTestKind::CreateTagTree),
    ("AddTagToResource", ToughTestKind::AddTagToResource),
    ("DeletePage", ToughTestKind::DeletePage),
    ("UploadImage", ToughTestKind::UploadImage),
    ("CreateAssetTree", ToughTestKind::CreateAssetTree),
    ("UploadPDF", ToughTestKind::UploadPdf),
    ("CreatePDFTree", ToughTestKind::CreatePdfTree),
    ("DeleteImage", ToughTestKind::DeleteImage),
    ("CreateUser", ToughTestKind::CreateUser),
    ("CreateUserTree", ToughTestKind::CreateUserTree),
    ("CreateUserGroup", ToughTestKind::CreateUserGroup),
    ("CreateGroupWithUsers", ToughTestKind::CreateGroupWithUsers),
    ("PublishPage", ToughTestKind::PublishPage),
    ("ActivatePagesTree", ToughTestKind::ActivatePagesTree),
    ("QueryBuilder", ToughTestKind::QueryBuilder),
    ("GetHomepage", ToughTestKind::GetHomepage),
    ("Get", ToughTestKind::Get),
    ("Authoring", ToughTestKind::Authoring),
    ("AuthoringTree", ToughTestKind::AuthoringTree),
];

impl ToughTestKind {
    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TEST_NAMES.iter().map(|(name, _)| *name)
    }

    /// Returns the test of a name, with or without the suffix `ToughTest`.
    ///
    /// # Errors
    /// A message that says why there is no such test.
    pub fn find(name: &str) -> Result<Self, String> {
        let bare = name.rsplit('.').next().unwrap_or(name);
        let bare = bare.strip_suffix("Test").unwrap_or(bare);
        if let Some((_, kind)) = TEST_NAMES.iter().find(|(key, _)| key.eq_ignore_ascii_case(bare)) {
            return Ok(*kind);
        }
        let lower = bare.to_ascii_lowercase();
        if lower.contains("livecopy") || lower.contains("rollout") {
            return Err(format!("`{name}` is not supported: it needs live copies"));
        }
        let candidates: Vec<&str> = Self::names().collect();
        let near = tympan_lab_plan::closest_word(bare, &candidates);
        let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        Err(format!("no test is called `{name}`{hint}"))
    }

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        TEST_NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| *name)
    }

    /// Returns the number of nodes that an execution leaves behind: pages and assets with the child nodes that each of
    /// them has.
    #[must_use]
    pub fn nodes_per_execution(self) -> u64 {
        match self {
            Self::CreateFolderTree
            | Self::CreateTagTree
            | Self::CreateUser
            | Self::CreateUserGroup => 1,
            Self::CreateUserTree => 2,
            Self::CreateGroupWithUsers => 6,
            // A page has its content node; an asset has its content, its metadata and its original.
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
pub struct ToughTest {
    /// The kind of the test.
    pub kind: ToughTestKind,
    /// The name of its samples.
    pub name: String,
    /// Relative frequency among the tests.
    pub weight: u64,
    /// Maximum number of executions.
    pub max_executions: Option<u64>,
    /// Maximum time without data from the server.
    pub idle_timeout: Duration,
    /// Children per node of a tree.
    pub tree_fanout: u64,
    /// Addresses of `Get`, or parameters of `QueryBuilder`, used in turn.
    pub queries: Vec<String>,
    /// True if requests go to publish.
    pub is_on_publish: bool,
    /// Appearance of created pages, if configured; otherwise that of a page on the author.
    pub appearance: PageAppearance,
}

/// Properties that determine how a page is rendered. Visitors cannot get a page without either.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageAppearance {
    /// `sling:resourceType` of the page's content.
    pub resource_type: Option<String>,
    /// `cq:template` of the page's content.
    pub template: Option<String>,
}

impl ToughTest {
    /// Returns a test with Tough Day's defaults.
    #[must_use]
    pub fn new(kind: ToughTestKind, weight: u64) -> Self {
        Self {
            kind,
            name: kind.name().to_owned(),
            weight,
            max_executions: None,
            idle_timeout: Duration::from_secs(180),
            tree_fanout: 3,
            queries: Vec::new(),
            is_on_publish: false,
            appearance: PageAppearance::default(),
        }
    }

    fn with_tree(mut self, base: u64, count: u64) -> Self {
        (self.tree_fanout, self.max_executions) = (base, Some(count));
        self
    }

    fn get_test(path: &str, weight: u64, on_publish: bool) -> Self {
        let mut test = Self::new(ToughTestKind::Get, weight);
        test.name = format!("Get {path}");
        test.queries = vec![path.to_owned()];
        test.is_on_publish = on_publish;
        test
    }
}

/// The arrival model of executions.
#[derive(Debug, Clone, PartialEq)]
pub enum ToughLoadMode {
    /// Users who each wait for the end of an execution, then pause (closed model).
    Normal {
        /// Number of users over time.
        users: LoadRamp,
        /// Pause between executions.
        pause: Duration,
    },
    /// Executions begin by a schedule, whether or not earlier ones have ended (open model). Tough Day starts those of a
    /// second at one instant; here they are equidistant.
    ConstantLoad {
        /// Executions per second over time.
        rate: LoadRamp,
    },
}

/// A number that changes over time in steps from a start level to an end level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadRamp {
    /// Level at the start.
    pub start_level: f64,
    /// Level at the end.
    pub end_level: f64,
    /// Amount by which each step increases or decreases the level.
    pub step_size: f64,
    /// Duration of a step.
    pub step_interval: Duration,
}

impl LoadRamp {
    /// Returns a constant ramp.
    #[must_use]
    pub fn constant(number: f64) -> Self {
        Self {
            start_level: number,
            end_level: number,
            step_size: 1.0,
            step_interval: Duration::from_secs(1),
        }
    }

    /// Returns the levels and the duration of each; the last one holds to the end of `duration`.
    #[must_use]
    pub fn levels(&self, duration: Duration) -> Vec<(f64, Duration)> {
        let mut levels = Vec::new();
        let (mut level, mut left) = (self.start_level, duration);
        let step = if self.end_level < self.start_level {
            -self.step_size.abs()
        } else {
            self.step_size.abs()
        };
        while left > self.step_interval && !self.step_interval.is_zero() && step != 0.0 {
            let is_there =
                if step > 0.0 { level >= self.end_level } else { level <= self.end_level };
            if is_there {
                break;
            }
            levels.push((level, self.step_interval));
            left -= self.step_interval;
            level += step;
        }
        let last = if step > 0.0 {
            level.min(self.end_level.max(self.start_level))
        } else {
            level.max(self.end_level)
        };
        levels.push((last, left));
        levels
    }
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ToughPhase {
    /// The phase's name.
    pub name: String,
    /// The phase's duration.
    pub duration: Duration,
    /// The phase's load.
    pub load_mode: ToughLoadMode,
    /// The phase's tests.
    pub tests: Vec<ToughTest>,
    /// True if the phase's measurements count.
    pub is_measured: bool,
}

/// The names of the predefined suites.
pub const SUITE_NAMES: [&str; 5] =
    ["toughday", "get_tests", "authoring", "tree_authoring", "publish"];

/// The default query of Tough Day's search.
pub(super) const DEFAULT_SEARCH_QUERY: &str =
    "type=nt:unstructured&group.1_path=/libs&orderby=@jcr:score&orderby.sort=desc";

/// Returns a predefined suite.
///
/// In `toughday`, a tree of pages replaces the tree of live copies, which are not supported.
#[must_use]
pub fn find_suite(name: &str) -> Option<Vec<ToughTest>> {
    Some(match name {
        "toughday" => vec![
            ToughTest::new(ToughTestKind::CreatePageTree, 5).with_tree(5, 80_000),
            ToughTest::new(ToughTestKind::CreateAssetTree, 5).with_tree(3, 20_000),
            ToughTest {
                max_executions: Some(20_000),
                ..ToughTest::new(ToughTestKind::DeleteImage, 5)
            },
            ToughTest::new(ToughTestKind::QueryBuilder, 10),
            ToughTest::new(ToughTestKind::GetHomepage, 75),
        ],
        "get_tests" => vec![
            ToughTest::new(ToughTestKind::GetHomepage, 10),
            ToughTest::get_test("/sites.html", 5, false),
            ToughTest::get_test("/assets.html", 5, false),
        ],
        "authoring" => vec![ToughTest::new(ToughTestKind::Authoring, 1)],
        "tree_authoring" => vec![ToughTest::new(ToughTestKind::AuthoringTree, 1)],
        "publish" => vec![
            ToughTest { is_on_publish: true, ..ToughTest::new(ToughTestKind::GetHomepage, 10) },
            ToughTest::get_test("/content.html", 5, true),
            ToughTest::get_test("/content.json", 5, true),
        ],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tough_day_s() {
        assert_eq!(ToughTestKind::find("CreatePageTreeTest"), Ok(ToughTestKind::CreatePageTree));
        assert_eq!(
            ToughTestKind::find("com.adobe.qe.toughday.tests.GetHomepageTest"),
            Ok(ToughTestKind::GetHomepage)
        );
        assert!(ToughTestKind::find("CreateLiveCopyTest").unwrap_err().contains("live copies"));
        assert_eq!(ToughTestKind::find("CreateUserTest"), Ok(ToughTestKind::CreateUser));
        assert_eq!(ToughTestKind::find("CreateUserTreeTest"), Ok(ToughTestKind::CreateUserTree));
        assert!(
            ToughTestKind::find("CreatPageTest").unwrap_err().contains("did you mean `CreatePage`")
        );
        for name in ToughTestKind::names() {
            assert_eq!(ToughTestKind::find(name).unwrap().name(), name);
        }
    }

    #[test]
    fn the_default_suite_reads_85_of_100_times() {
        let tests = find_suite("toughday").unwrap();
        let all: u64 = tests.iter().map(|test| test.weight).sum();
        let reads = tests.iter().filter(|test| {
            matches!(test.kind, ToughTestKind::QueryBuilder | ToughTestKind::GetHomepage)
        });
        assert_eq!((all, reads.map(|test| test.weight).sum::<u64>()), (100, 85));
        assert!(SUITE_NAMES.iter().all(|name| find_suite(name).is_some()));
    }

    #[test]
    fn ramps_go_in_steps_to_their_end() {
        let seconds = Duration::from_secs;
        let ramp = |start, end, step| LoadRamp {
            start_level: start,
            end_level: end,
            step_size: step,
            step_interval: seconds(2),
        };
        let levels = |ramp: LoadRamp, duration| {
            let levels = ramp.levels(seconds(duration));
            levels
                .into_iter()
                .map(|(level, duration)| (level as u64, duration.as_secs()))
                .collect::<Vec<_>>()
        };
        assert_eq!(levels(ramp(1.0, 6.0, 2.0), 20), [(1, 2), (3, 2), (5, 2), (6, 14)]);
        assert_eq!(levels(ramp(5.0, 2.0, 2.0), 10), [(5, 2), (3, 2), (2, 6)]);
        assert_eq!(levels(ramp(1.0, 100.0, 1.0), 5), [(1, 2), (2, 2), (3, 1)]);
        assert_eq!(levels(LoadRamp::constant(7.0), 5), [(7, 5)]);
    }
}
