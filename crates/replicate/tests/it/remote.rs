//! The store of another instance over HTTP: what comes is checked, bounded, and asked for again while that can help.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tympan_blobs::garbage_collection::{
    GuestNotes, MarkWriter, StorageMember, list_members, register_member,
};
use tympan_blobs::{BlobFolder, BlobId, ReadBlobs, WriteBlobs};
use tympan_content::Repository;
use tympan_replicate::{
    RemoteGuestNotes, RemoteStore, RemoteStoreCredentials, WireLeaseRequest, find_missing_chunks,
    grant_store_lease, list_guest_notes, list_store_refs, list_store_revisions, read_guest_note,
    read_store_blobs, read_store_chunks, read_store_lease, release_store_lease, remove_guest_note,
    write_guest_note,
};
use tympan_store::{
    BaseStore, ChunkBatch, ChunkId, ChunkSyncRoute, Error, LocalStore, ReadChunks, StoreRoot,
    acquire_lease, body, renew_lease, sync_chunks,
};
use tympan_testkit::origin_server::{
    OriginRequest, OriginResponse, OriginServer, ResponseDelivery, refusing_addr,
};

/// An instance with some content.
fn instance() -> Repository {
    let repository = Repository::in_memory().unwrap();
    for n in 0..40 {
        let mut session = repository.session("ann").unwrap();
        let path = tympan_content::NodePath::new(&format!("/page-{n}")).unwrap();
        session.add_node(&path, "nt:unstructured").unwrap();
        session.commit(&format!("add {n}"), SystemTime::now()).unwrap();
    }
    repository
}

/// What stands behind an equals sign.
fn argument<'a>(target: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = target.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn json(value: &impl serde::Serialize) -> OriginResponse {
    OriginResponse::with_status(200).with_body(serde_json::to_vec(value).unwrap())
}

fn binary(bytes: Result<Bytes, tympan_replicate::Error>) -> OriginResponse {
    bytes.map_or(OriginResponse::with_status(400), |bytes| {
        OriginResponse::with_status(200).with_body(bytes.to_vec())
    })
}

/// Answers as `server` does.
fn honest(repository: &Repository, seen: &OriginRequest) -> OriginResponse {
    let place = seen.target.split('?').next().unwrap();
    let holder = argument(&seen.target, "holder").unwrap_or_default();
    let holder = &holder.replace("%20", " ").replace("%26", "&");
    match (seen.method.as_str(), place) {
        ("GET", "/bin/store/refs") => json(&list_store_refs(repository).unwrap()),
        ("GET", "/bin/store/history") => {
            let before = argument(&seen.target, "before").map(|text| text.parse().unwrap());
            let limit = argument(&seen.target, "limit").unwrap().parse().unwrap();
            json(&list_store_revisions(repository, "main", before, limit).unwrap())
        }
        ("POST", "/bin/store/chunks/lacking") => {
            binary(find_missing_chunks(repository, &seen.body))
        }
        ("POST", "/bin/store/chunks/read") => binary(read_store_chunks(repository, &seen.body)),
        ("POST", "/bin/store/blobs/read") => binary(read_store_blobs(repository, &seen.body)),
        ("GET", "/bin/store/lease") => json(&read_store_lease(repository, holder).unwrap()),
        ("PUT", "/bin/store/lease") => {
            let grant: WireLeaseRequest = serde_json::from_slice(&seen.body).unwrap();
            match grant_store_lease(repository, &grant, SystemTime::now()) {
                Ok(()) => OriginResponse::with_status(204),
                Err(tympan_replicate::Error::Absent(_)) => OriginResponse::with_status(404),
                Err(_) => OriginResponse::with_status(400),
            }
        }
        ("DELETE", "/bin/store/lease") => {
            release_store_lease(repository, holder).unwrap();
            OriginResponse::with_status(204)
        }
        _ => OriginResponse::with_status(404),
    }
}

fn connect(origin: &OriginServer, spool: &std::path::Path) -> RemoteStore {
    let url = format!("http://{}", origin.addr());
    RemoteStore::new(&url, &RemoteStoreCredentials::Token("secret".to_owned()), None, spool)
        .unwrap()
}

#[test]
fn an_honest_instance_is_read_like_a_store_of_ones_own() {
    let repository = instance();
    let served = repository.clone();
    let origin = OriginServer::start(move |seen| {
        assert_eq!(seen.header("authorization"), Some("Bearer secret"));
        honest(&served, seen)
    });
    let remote = connect(&origin, std::path::Path::new("unused"));
    let chunks = repository.chunks();
    assert_eq!(remote.list_refs().unwrap(), chunks.list_refs().unwrap());
    for (before, limit) in [(None, 7), (Some(9), 3), (None, 5_000)] {
        let theirs = remote.ref_history("main", before, limit).unwrap();
        let ours = chunks.ref_history("main", before, limit).unwrap();
        assert_eq!(theirs.len(), ours.len());
        for (left, right) in theirs.iter().zip(&ours) {
            assert_eq!(
                (left.sequence, left.update.new_root),
                (right.sequence, right.update.new_root)
            );
            assert_eq!(left.update.message, right.update.message);
        }
    }
    let root = repository.head_root().unwrap();
    let absent = ChunkId::hash_of(b"absent");
    assert_eq!(remote.contains_chunks(&[root, absent]).unwrap(), [true, false]);
    assert_eq!(remote.read_chunk(&root).unwrap(), chunks.read_chunk(&root).unwrap());
    assert!(matches!(remote.read_chunk(&absent), Err(Error::ChunkMissing { id }) if id == absent));
    let before = origin.request_count();
    remote.read_chunk(&root).unwrap();
    assert_eq!(origin.request_count(), before, "what was read is remembered");

    let mut batch = ChunkBatch::new();
    let blob = BlobId::hash_of(b"small");
    batch.add_blob(blob, Bytes::from_static(b"small"));
    chunks.commit(batch).unwrap();
    let blobs = remote.read_blobs(&[blob, BlobId::hash_of(b"none")]).unwrap();
    assert_eq!(blobs, [Some(Bytes::from_static(b"small")), None]);

    let life = Duration::from_hours(1);
    let lease = acquire_lease(&remote, "stage & co", "main", SystemTime::now(), life).unwrap();
    assert_eq!(lease.root, root);
    assert_eq!(chunks.list_leases().unwrap()[0].holder, "remote:stage & co");
    let found = remote.find_lease("stage & co").unwrap().unwrap();
    let left = found.expires_at.unwrap().duration_since(SystemTime::now()).unwrap();
    assert!(left > life / 2 && left <= life, "{left:?}");
    renew_lease(&remote, &lease, (SystemTime::now(), life)).unwrap();
    remote.release_lease("stage & co").unwrap();
    assert_eq!(remote.find_lease("stage & co").unwrap(), None);

    // Copying takes a few requests, however many chunks there are.
    let target = LocalStore::open_in_memory().unwrap();
    let fresh = connect(&origin, std::path::Path::new("unused"));
    let before = origin.request_count();
    let route = ChunkSyncRoute { source: &fresh, target: &target, small_blob_limit: 1 << 14 };
    let synced = sync_chunks(route, &[root], &[], &mut |_| Ok(())).unwrap();
    assert_eq!((origin.request_count() - before) as u64, synced.round_trips);
    assert!(synced.round_trips < 12, "{synced:?}");
    assert!(StoreRoot::read(&target, &root).is_ok());
}

#[test]
fn hostile_answers_are_refused() {
    let mut batch = ChunkBatch::new();
    let wanted = body::write_body(&mut batch, b"wanted", &[]).unwrap();
    let other = body::write_body(&mut batch, b"other", &[]).unwrap();
    let frame = |bytes: &[u8]| {
        let mut framed = u32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
        framed.extend_from_slice(bytes);
        framed
    };
    let right = frame(batch.chunk(&wanted).unwrap());
    let wrong = frame(batch.chunk(&other).unwrap());
    let cases: Vec<(&str, OriginResponse)> = vec![
        ("another chunk", OriginResponse::with_status(200).with_body(wrong.clone())),
        (
            "more than was asked for",
            OriginResponse::with_status(200).with_body([right.clone(), wrong].concat()),
        ),
        ("nothing", OriginResponse::with_status(200)),
        (
            "a frame that is cut off",
            OriginResponse::with_status(200).with_body(right[..right.len() - 1].to_vec()),
        ),
        ("a frame without end", OriginResponse::with_status(200).with_body(vec![0x7F; 64])),
        ("far too much", OriginResponse::with_status(200).with_body(vec![0; 20 << 20])),
        ("a refusal", OriginResponse::with_status(403).with_body("{\"error\":\"no\"}")),
    ];
    for (what, answer) in cases {
        let origin = OriginServer::start_constant(answer);
        let remote = connect(&origin, std::path::Path::new("unused"));
        let error = remote.read_chunk(&wanted).unwrap_err();
        assert!(
            matches!(error, Error::ChunkDamaged { .. } | Error::Remote { is_transient: false, .. }),
            "{what}: {error}"
        );
        assert_eq!(origin.request_count(), 1, "{what}: asking again does not help");
    }
    let origin = OriginServer::start_constant(OriginResponse::with_status(200).with_body(right));
    let remote = connect(&origin, std::path::Path::new("unused"));
    assert_eq!(remote.read_chunk(&wanted).unwrap().bytes(), batch.chunk(&wanted).unwrap());

    // Revisions that never end, refs that are none, answers of another length.
    let page = r#"[{"sequence":7,"old":null,"new":null,"at":0,"author":"","message":""},
        {"sequence":7,"old":null,"new":null,"at":0,"author":"","message":""}]"#;
    let origin = OriginServer::start_constant(OriginResponse::with_status(200).with_body(page));
    let remote = connect(&origin, std::path::Path::new("unused"));
    assert!(remote.ref_history("main", None, 100).is_err());
    assert!(remote.list_refs().is_err());
    assert!(remote.contains_chunks(&[wanted]).is_err());
    assert!(remote.find_lease("me").is_err());
    let blobs = remote.read_blobs(&[BlobId::hash_of(b"wanted")]);
    assert!(blobs.is_err());
}

#[test]
fn large_blobs_are_what_their_ids_say_or_an_error() {
    let spool = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let id = BlobId::hash_of(&bytes);
    let origin =
        OriginServer::start_constant(OriginResponse::with_status(200).with_body(bytes.clone()));
    let remote = connect(&origin, &spool.path().join("made/when/needed"));
    let mut read = Vec::new();
    let content = ReadBlobs::open(&remote, &id).unwrap().unwrap();
    content.into_reader().read_to_end(&mut read).unwrap();
    assert!(read == bytes);
    for answer in [
        OriginResponse::with_status(200).with_body(vec![7; 300_000]),
        OriginResponse::with_status(200).with_body(vec![7; 299_999]),
        OriginResponse::with_status(200).with_body(vec![7; 300_001]),
        OriginResponse::with_status(200)
            .with_body(bytes.clone())
            .with_delivery(ResponseDelivery::CutAfter(100_000)),
        OriginResponse::with_status(500),
    ] {
        let origin = OriginServer::start_constant(answer);
        assert!(ReadBlobs::open(&connect(&origin, spool.path()), &id).is_err());
    }
    let origin = OriginServer::start_constant(OriginResponse::with_status(404));
    let remote = connect(&origin, spool.path());
    assert!(ReadBlobs::open(&remote, &id).unwrap().is_none());
    assert!(!ReadBlobs::contains(&remote, &id).unwrap());
}

#[test]
fn a_request_is_sent_again_while_that_can_help() {
    let repository = instance();
    let failures = Arc::new(AtomicU32::new(2));
    let (served, left) = (repository.clone(), Arc::clone(&failures));
    let origin = OriginServer::start(move |seen| {
        let fails =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match fails {
            Ok(2) => OriginResponse::with_status(503),
            Ok(_) => OriginResponse::with_status(200).with_delivery(ResponseDelivery::Hangup),
            Err(_) => honest(&served, seen),
        }
    });
    let remote = connect(&origin, std::path::Path::new("unused"));
    assert_eq!(remote.list_refs().unwrap(), repository.chunks().list_refs().unwrap());
    assert_eq!(origin.request_count(), 3);
    failures.store(1_000, Ordering::SeqCst);
    let error = remote.list_refs().unwrap_err();
    assert!(error.is_transient(), "{error}");
    let gone = format!("http://{}", refusing_addr());
    let credentials = RemoteStoreCredentials::Key("key".to_owned());
    let spool = std::path::Path::new("unused");
    let error =
        RemoteStore::new(&gone, &credentials, None, spool).unwrap().list_refs().unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&gone), "{error}");
    for url in ["", "nonsense", "/srv/author", "http://"] {
        assert!(RemoteStore::new(url, &credentials, None, spool).is_err(), "{url}");
    }
}

/// Answers about notes as `server` does.
fn noting(notes: &GuestNotes, seen: &OriginRequest) -> OriginResponse {
    let place = seen.target.split('?').next().unwrap();
    let name = place.strip_prefix("/bin/store/note/").unwrap_or_default();
    let refused = |error: tympan_replicate::Error| match error {
        tympan_replicate::Error::Absent(_) => OriginResponse::with_status(404),
        tympan_replicate::Error::InvalidGuestNote(_) => OriginResponse::with_status(409),
        error => panic!("{error}"),
    };
    let done = |done: Result<(), tympan_replicate::Error>| {
        done.map_or_else(refused, |()| OriginResponse::with_status(204))
    };
    match seen.method.as_str() {
        "GET" if name.is_empty() => {
            let prefix = argument(&seen.target, "prefix").unwrap();
            list_guest_notes(notes, prefix).map_or_else(refused, |listed| json(&listed))
        }
        "GET" => read_guest_note(notes, name).map_or_else(refused, |bytes| binary(Ok(bytes))),
        "PUT" => done(write_guest_note(notes, name, &seen.body)),
        "DELETE" => done(remove_guest_note(notes, name)),
        method => panic!("{method}"),
    }
}

#[test]
fn a_guest_leaves_its_marks_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let place = Arc::new(BlobFolder::open(&dir.path().join("blobs")).unwrap());
    let notes = GuestNotes::new(vec![place.clone()]);
    let origin = OriginServer::start(move |seen| noting(&notes, seen));
    let remote = RemoteGuestNotes::new(Arc::new(connect(&origin, dir.path())));
    let guest = StorageMember { id: "far".to_owned(), name: "a guest".to_owned() };
    assert!(remote.open_note("repository-far").unwrap().is_none());
    let now = SystemTime::now();
    register_member(&remote, &guest, now).unwrap();
    register_member(&remote, &guest, now).unwrap();
    // More than a part, and then none: the former parts go.
    for (turn, count) in [("1", 70_000_u32), ("2", 0)] {
        let mut marks = MarkWriter::begin(now, dir.path());
        for number in 0..count {
            marks.add(&BlobId::hash_of(&number.to_be_bytes())).unwrap();
        }
        assert_eq!(marks.publish(&remote, &guest, turn).unwrap(), u64::from(count));
        let known = list_members(&*place).unwrap();
        let marked = known[0].last_marks.as_ref().unwrap();
        assert_eq!((marked.blob_count, marked.round.as_str()), (u64::from(count), turn));
        let parts = place.list_notes("marks-far.").unwrap().len();
        assert_eq!(parts, usize::try_from(count.div_ceil(65_536)).unwrap());
    }
    // What is not for guests is refused on either side.
    assert!(remote.put(&mut &b"bytes"[..]).is_err() && remote.create_note("sweep-1", b"").is_err());
    let other = StorageMember { id: "own".to_owned(), name: "the owner".to_owned() };
    register_member(&*place, &other, now).unwrap();
    let error =
        register_member(&remote, &StorageMember { name: "renamed".to_owned(), ..other }, now);
    let error = error.unwrap_err();
    assert!(!error.is_transient() && remote.write_note("sweep-1", b"{}").is_err(), "{error}");
}
