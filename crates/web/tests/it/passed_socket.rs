//! Sockets that a service manager passed: each is taken by the listener with its address, and by no other.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use tympan_web::listen::{PortReuse, bind_listener};
use tympan_web::passed_socket::{register_passed_sockets, warn_of_unused_sockets};

/// Names the address that the child process binds, and what it expects of it.
const ADDRESS: &str = "TYMPAN_TEST_PASSED_ADDRESS";

/// Runs [`a_process_with_a_passed_socket`] in a process of its own, which has the descriptor as its standard input.
fn run_child(descriptor: OwnedFd, address: &str) -> String {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "passed_socket::a_process_with_a_passed_socket", "--nocapture"])
        .args(["--test-threads", "1"])
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDS_FIRST_FD", "0")
        .env_remove("LISTEN_PID")
        .env(ADDRESS, address)
        .stdin(Stdio::from(descriptor))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    said
}

/// The child: registers what it was passed, and binds an address.
#[test]
fn a_process_with_a_passed_socket() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let registered = register_passed_sockets();
    assert!(std::env::var_os("LISTEN_FDS").is_none(), "a child must not see the variable");
    let bound = bind_listener(address.parse().unwrap(), PortReuse::Exclusive);
    let first = bound.as_ref().map(|socket| socket.local_addr().unwrap().to_string());
    let again = bind_listener(address.parse().unwrap(), PortReuse::Exclusive).is_ok();
    warn_of_unused_sockets();
    println!(
        "registered {registered}, bound {}, again {again}",
        first.unwrap_or_else(|_| "none".to_owned())
    );
}

fn listening_socket() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

#[test]
fn the_listener_with_the_same_address_takes_the_socket_once() {
    let socket = listening_socket();
    let address = socket.local_addr().unwrap();
    // This process holds the socket too, so that the child could not bind the address itself.
    let said = run_child(socket.try_clone().unwrap().into(), &address.to_string());
    assert!(said.contains(&format!("registered 1, bound {address}, again false")), "{said}");
    assert!(TcpStream::connect(address).is_ok(), "the socket outlives the process");
}

#[test]
fn a_listener_with_another_address_does_not_take_it() {
    let socket = listening_socket();
    let port = socket.local_addr().unwrap().port();
    let said = run_child(socket.into(), &format!("127.0.0.2:{port}"));
    assert!(said.contains(&format!("registered 1, bound 127.0.0.2:{port}, again false")), "{said}");
}

#[test]
fn a_connection_and_a_file_are_not_taken() {
    let socket = listening_socket();
    let address = socket.local_addr().unwrap();
    let connection = TcpStream::connect(address).unwrap();
    let own = connection.local_addr().unwrap().to_string();
    let said = run_child(connection.into(), &own);
    assert!(said.contains("registered 0, bound none"), "{said}");
    let file = std::fs::File::open("/dev/null").unwrap();
    let said = run_child(file.into(), &address.to_string());
    assert!(said.contains("registered 0, bound none"), "{said}");
}
