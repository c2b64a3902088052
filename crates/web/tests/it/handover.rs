//! Sockets that go from one owner to the next.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use tympan_web::socket_handover::{InheritedSockets, SocketOffer};

#[test]
fn a_socket_goes_over_with_those_who_wait_in_its_backlog() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.sock");
    assert!(InheritedSockets::request_sockets(&path).unwrap().is_none(), "nobody is there");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let offer = SocketOffer::open(&path).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let old = std::thread::spawn(move || {
        let mut successor = offer.wait_for_successor().unwrap();
        successor.send_sockets(&[socket]).unwrap();
        successor.wait_ready().unwrap();
        // The old owner's copy of the socket is gone by now, with nobody having accepted.
        successor.send_stopped().unwrap();
    });
    let taken = InheritedSockets::request_sockets(&path).unwrap().unwrap();
    assert_eq!(taken.sockets[0].local_addr().unwrap(), addr);
    let mut waiting = TcpStream::connect(addr).unwrap();
    waiting.write_all(b"hello").unwrap();
    let sockets = taken.take_over().unwrap();
    old.join().unwrap();
    assert!(!path.exists(), "the offer goes with its owner");
    sockets[0].set_nonblocking(false).unwrap();
    let (mut accepted, _) = sockets[0].accept().unwrap();
    let mut text = [0; 5];
    accepted.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"hello");
}

#[test]
fn a_successor_that_dies_leaves_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.sock");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let offer = SocketOffer::open(&path).unwrap();
    let asking = path.clone();
    let dying =
        std::thread::spawn(move || drop(InheritedSockets::request_sockets(&asking).unwrap()));
    let mut successor = offer.wait_for_successor().unwrap();
    successor.send_sockets(&[socket.try_clone().unwrap()]).unwrap();
    dying.join().unwrap();
    assert!(successor.wait_ready().is_err());
    TcpStream::connect(socket.local_addr().unwrap()).unwrap();
    assert!(socket.accept().is_ok());
}

#[test]
fn a_process_that_ended_leaves_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.sock");
    std::mem::forget(SocketOffer::open(&path).unwrap());
    // The socket's file is there, but its process could be gone: a new offer takes the path over.
    let second = SocketOffer::open(&path).unwrap();
    let asking = path.clone();
    let taken =
        std::thread::spawn(move || InheritedSockets::request_sockets(&asking).unwrap().is_some());
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    second.wait_for_successor().unwrap().send_sockets(&[socket]).unwrap();
    assert!(taken.join().unwrap());
}
