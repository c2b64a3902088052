//! A folder that Oak's own `FileDataStore` wrote, read as it is. Takes Java and Maven; without them it is skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use tympan_blobs::{
    BlobDelegate, BlobFolder, BlobId, CompositeBlobStorage, ReadBlobs, ReadOnlyBlobFolder,
    WriteBlobs,
};
use tympan_testkit::composite_conformance::{CompositeFixture, check_conformance, read_content};
use tympan_testkit::external_tool::{command_succeeds, install_once, report_skip};

use crate::bucket::tools;
use crate::composite::{oak_shelf, trace};

const OAK: &str = "1.70.0";

/// Adds records of given lengths to a data store, and reports their identifiers: one line each.
const WRITER: &str = r#"
import java.io.*; import org.apache.jackrabbit.core.data.*;
import org.apache.jackrabbit.oak.plugins.blob.datastore.*;
public class Writer {
  public static void main(String[] a) throws Exception {
    OakFileDataStore store = new OakFileDataStore();
    store.setPath(a[0]); store.setMinRecordLength(100); store.init(a[0]);
    DataStoreBlobStore blobs = new DataStoreBlobStore(store);
    for (int i = 1; i < a.length; i++) {
      byte[] bytes = new byte[Integer.parseInt(a[i])];
      for (int at = 0; at < bytes.length; at++) bytes[at] = (byte) (at * 31 + i);
      System.out.println(blobs.writeBlob(new ByteArrayInputStream(bytes)));
    }
    store.addMetadataRecord(new ByteArrayInputStream(new byte[0]), "repository-11111111-2222-3333-4444-555555555555");
    store.close(); System.exit(0);
  }
}
"#;

const POM: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>peer</groupId><artifactId>peer</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.jackrabbit</groupId><artifactId>oak-blob-plugins</artifactId><version>OAK</version></dependency>
<dependency><groupId>javax.jcr</groupId><artifactId>jcr</artifactId><version>2.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>"#;

/// Returns a folder with Oak's classes and the writer, made once for all runs.
fn classes() -> Option<PathBuf> {
    let home = tools().join(format!("oak-{OAK}"));
    let is_here = install_once(&home, |making| {
        fs::create_dir_all(making).unwrap();
        fs::write(making.join("pom.xml"), POM.replace("OAK", OAK)).unwrap();
        fs::write(making.join("Writer.java"), WRITER).unwrap();
        let goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
        let fetch = |offline: &[&str]| {
            let mut maven = Command::new("mvn");
            maven.args(["-q", "-B", goal, "-DoutputDirectory=lib", "-DincludeScope=runtime"]);
            command_succeeds(maven.args(offline).current_dir(making))
        };
        let mut compiler = Command::new("javac");
        compiler.args(["-nowarn", "-cp", "lib/*", "-d", ".", "Writer.java"]);
        (fetch(&["-o"]) || fetch(&[])) && command_succeeds(compiler.current_dir(making))
    });
    if !is_here {
        report_skip(&format!("a data store of Oak {OAK}"), "Java and Maven");
    }
    is_here.then_some(home)
}

/// Lets Oak write records, and returns their identifiers.
fn write(classes: &Path, store: &Path, lengths: &[usize]) -> Vec<String> {
    let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    let output = Command::new("java")
        .args(["-Xmx256m", "-cp", "lib/*:.", "Writer"])
        .arg(store)
        .args(&lengths)
        .current_dir(classes)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn record(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + number) as u8).collect()
}

#[test]
fn a_data_store_that_oak_wrote_is_read_as_it_is() {
    let Some(classes) = classes() else { return };
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("datastore");
    let lengths = [101, 5_000, 20_000, 3_000_000];
    let written = write(&classes, &store, &lengths);
    let before = trace(&store);
    let composite = CompositeBlobStorage::new(vec![
        BlobDelegate::writable(
            "staging",
            Arc::new(BlobFolder::open(&dir.path().join("own")).unwrap()),
        ),
        BlobDelegate::read_only("production", Arc::new(ReadOnlyBlobFolder::new_required(&store))),
    ]);
    for (at, length) in lengths.into_iter().enumerate() {
        let bytes = record(at + 1, length);
        let id = BlobId::hash_of(&bytes);
        assert_eq!(written[at], id.to_string(), "Oak names it as it is named here");
        assert!(composite.contains(&id).unwrap());
        assert!(read_content(composite.open(&id).unwrap().unwrap()) == bytes);
    }
    let mut listed = 0;
    let mut show = |_| {
        listed += 1;
        std::ops::ControlFlow::Continue(())
    };
    composite.list(&mut show).unwrap();
    assert_eq!(listed, lengths.len());
    let notes = composite.list_notes("repository-").unwrap();
    assert_eq!(notes[0].0, "repository-11111111-2222-3333-4444-555555555555");
    composite.put(&mut &*record(1, 101)).unwrap();
    assert_eq!(trace(&store), before);
}

/// Oak writes once; what the cases fill in lies beside that, in the same layout.
#[test]
fn the_suite_holds_over_a_data_store_that_oak_wrote() {
    let Some(classes) = classes() else { return };
    let made = TempDir::new().unwrap();
    let template = made.path().join("datastore");
    write(&classes, &template, &[40_000]);
    check_conformance("Oak's own directory + file", || {
        let dir = TempDir::new().unwrap();
        let store = dir.path().join("datastore");
        copy(&template, &store);
        let own = Arc::new(BlobFolder::open(&dir.path().join("own")).unwrap());
        CompositeFixture {
            writable: vec![own],
            read_only: vec![oak_shelf(store)],
            resources: Box::new(dir),
        }
    });
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}
