//! C1: a real content package, installed into a new home by the program, from its start to its end.
//!
//! Beside it the same package in Sling, in turn: uploaded into a folder that Sling's installer watches, until Sling says
//! that it is unpacked. Sling's copy has the node types that an AEM would have, no dependency, no policies (they name a
//! privilege that Sling lacks), and a version for each round, as the installer passes over what it has; what the round
//! before installed is removed first, unmeasured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::{Context, SERVER_CORE};
use crate::figure::{Figure, Goal};
use crate::process::pinned;

const ROW: &str = "C1";
const CONTEXT: &str = "C1/context";
/// The package of the goal: 2,730 nodes, 40 assets, 294 files.
const PACKAGE: &str = "core.wcm.components.examples.ui.content-2.26.0.zip";
/// Another one: 4,980 nodes, 31,703 properties.
const LARGER: &str = "wknd.ui.content.sample.zip";

/// The group, name and roots of the package, and a page in it.
const GROUP: &str = "adobe/cq60";
const NAME: &str = "core.wcm.components.examples.ui.content";
const ROOTS: [&str; 5] = [
    "/conf/core-components-examples",
    "/content/core-components-examples",
    "/content/cq:tags/core-components-examples",
    "/content/dam/core-components-examples",
    "/content/experience-fragments/core-components-examples",
];
const PAGE: &str = "/content/core-components-examples/library.json";
const PAIRS: usize = 5;
const INSTALL_LIMIT: Duration = Duration::from_secs(300);
/// The types of AEM that the package uses and Sling lacks, as loose as they can be.
const TYPES: &str = "<'cq'='http://www.day.com/jcr/cq/1.0'>
<'dam'='http://www.day.com/dam/1.0'>
<'sling'='http://sling.apache.org/jcr/sling/1.0'>
<'nt'='http://www.jcp.org/jcr/nt/1.0'>
[cq:Taggable] mixin
[dam:Thumbnails] mixin
  - * (undefined)
  - * (undefined) multiple
  + * (nt:base) = nt:unstructured
[cq:Page] > nt:unstructured, nt:hierarchyNode
[cq:PageContent] > nt:unstructured
[cq:Tag] > nt:unstructured, nt:hierarchyNode
[cq:Template] > nt:unstructured, nt:hierarchyNode
[dam:Asset] > nt:unstructured, nt:hierarchyNode
[dam:AssetContent] > nt:unstructured
";
/// Copies a package without dependencies, manifest and policies, with another version and with node types.
const COPY: &str = r#"
import re, sys, zipfile
package, copy, version, types = sys.argv[1:]
with zipfile.ZipFile(package) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
    for entry in old.infolist():
        if entry.filename == "META-INF/MANIFEST.MF":
            continue
        data = old.read(entry)
        if entry.filename == "META-INF/vault/properties.xml":
            text = re.sub(r'<entry key="dependencies[^<]*</entry>', "", data.decode())
            text = re.sub(r'(<entry key="version">)[^<]*', r"\g<1>" + version, text)
            data = re.sub(r'(<entry key="acHandling">)[^<]*', r"\g<1>ignore", text)
        new.writestr(entry.filename, data)
    new.writestr("META-INF/vault/nodetypes.cnd", types)
"#;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let program = context.program()?.to_owned();
    let mut figures = Vec::new();
    for (row, name, goal) in [(ROW, PACKAGE, Goal::AtMost(1.0)), (CONTEXT, LARGER, Goal::None)] {
        let package = fixture(name)?;
        let mut installs = Vec::new();
        let mut again = Vec::new();
        for _ in 0..pairs {
            let home = context.new_folder("install-")?;
            installs.push(run(&program, "install", &package, &home)?);
            again.push(run(&program, "install", &package, &home)?);
            std::fs::remove_dir_all(&home)?;
        }
        let what = format!("install of {name} into a new home");
        figures.push(Figure::spread(row, what, &Spread::of(installs), "s").goal(goal));
        let what = format!("the same again, where nothing changes ({name})");
        figures.push(Figure::spread(CONTEXT, what, &Spread::of(again), "s"));
    }
    figures.push(beside_sling(context, &program)?);
    Ok(figures)
}

/// Measures the package of the goal in turn with Sling.
fn beside_sling(context: &mut Context, program: &Path) -> Outcome<Figure> {
    let what = "install, beside Sling's";
    let sling = match context.sling() {
        Ok(sling) => sling,
        Err(reason) => {
            let figure = Figure::missing(ROW, what, format!("not measured: {reason}"));
            return Ok(figure.goal(Goal::AtLeast(10.0)).against("Sling"));
        }
    };
    let package = fixture(PACKAGE)?;
    let folder = context.new_folder("sling-packages-")?;
    let mut round = 0;
    let mut theirs = || {
        round += 1;
        let version = format!("2.26.{round}");
        let copy = folder.join(format!("round{round}.zip"));
        write_copy(&package, &copy, &version)?;
        ROOTS.iter().try_for_each(|root| sling.remove(root))?;
        let stored = format!("/etc/packages/{GROUP}/{NAME}-{version}.zip");
        let seconds = sling.install(&copy, &stored, INSTALL_LIMIT)?;
        sling.require(PAGE)?;
        Ok(seconds)
    };
    let mut ours = || {
        let home = context.new_folder("install-")?;
        let seconds = run(program, "install", &package, &home)?;
        std::fs::remove_dir_all(&home)?;
        Ok(seconds)
    };
    let [theirs, ours] = alternate(PAIRS, [&mut theirs, &mut ours])?;
    let times = ratio(&theirs, &ours, |seconds| *seconds);
    let note = format!(
        "Sling's {:.1} s, from the upload until its installer has unpacked it; ours {:.2} s",
        Spread::of(theirs).median,
        Spread::of(ours).median
    );
    Ok(Figure::spread(ROW, what, &times, "x").goal(Goal::AtLeast(10.0)).against("Sling").note(note))
}

/// Writes a copy of the package that Sling installs.
fn write_copy(package: &Path, copy: &Path, version: &str) -> Outcome<()> {
    let mut command = Command::new("python3");
    command.args(["-c", COPY]).arg(package).arg(copy).args([version, TYPES]);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("the package cannot be copied: {message}").into())
}

/// Runs `tympan package` once; gives the seconds that it took.
fn run(program: &Path, verb: &str, package: &Path, home: &Path) -> Outcome<f64> {
    let mut command: Command = pinned(SERVER_CORE, program);
    command.args(["package", verb]).arg(package).arg("--home").arg(home);
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let elapsed = begin.elapsed().as_secs_f64();
    if output.status.success() {
        Ok(elapsed)
    } else {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("`tympan package {verb}` failed: {message}").into())
    }
}

/// Finds a package among the fixtures: in `TYMPAN_FIXTURES`, or beside the workspace.
fn fixture(name: &str) -> Outcome<PathBuf> {
    let folder = match std::env::var_os("TYMPAN_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    let file = folder.join("packages").join(name);
    if file.is_file() {
        Ok(file)
    } else {
        Err(format!("there is no `{}`; set TYMPAN_FIXTURES", file.display()).into())
    }
}
