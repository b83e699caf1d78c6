//! Sockets are there to be imported, and do nothing unless the attempt's policy says so.

use std::net::TcpListener;

use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::sockets::network::{
    ErrorCode, IpAddressFamily, IpSocketAddress, Ipv4SocketAddress,
};
use wasmtime_wasi::p2::bindings::sockets::{instance_network, ip_name_lookup, tcp, tcp_create_socket};
use wasmtime_wasi::sockets::WasiSocketsView;

use super::super::filesystem::Context;
use super::super::state::{Given, State};
use super::super::stdio::Stdio;
use super::*;

fn state(network: bool) -> State {
    let bench = Bench::new();
    let spec = bench.spec(null(), String::new());
    let files = Context { union: spec.union, preopens: spec.preopens };
    let stdio = Stdio::new(GuestStdio { stdin: null(), stdout: null(), stderr: null() }).unwrap();
    State::new(&Given { argv: Vec::new(), env: Vec::new(), network }, files, stdio, spec.limits)
}

/// What connecting to a listener of this test's says, at the start of the connection.
async fn connect(state: &mut State, port: u16) -> Result<(), ErrorCode> {
    let code = |error: wasmtime_wasi::p2::SocketError| error.downcast().expect("a code and no trap");
    let network = instance_network::Host::instance_network(&mut state.sockets()).expect("a network");
    let socket = tcp_create_socket::Host::create_tcp_socket(&mut state.sockets(), IpAddressFamily::Ipv4)
        .map_err(code)?;
    let address = IpSocketAddress::Ipv4(Ipv4SocketAddress { port, address: (127, 0, 0, 1) });
    let (socket, network) = (socket.rep(), network.rep());
    let start = tcp::HostTcpSocket::start_connect(
        &mut state.sockets(),
        Resource::new_borrow(socket),
        Resource::new_borrow(network),
        address,
    );
    start.map_err(code)?;
    loop {
        match tcp::HostTcpSocket::finish_connect(&mut state.sockets(), Resource::new_borrow(socket))
            .map_err(code)
        {
            Ok(_) => return Ok(()),
            Err(ErrorCode::WouldBlock) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            Err(other) => return Err(other),
        }
    }
}

#[test]
fn sockets_are_denied_unless_the_policy_allows_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert_eq!(connect(&mut state(false), port).await, Err(ErrorCode::AccessDenied));
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing came");
        assert_eq!(connect(&mut state(true), port).await, Ok(()));
        assert!(listener.accept().is_ok());
    });
}

#[test]
fn names_are_not_looked_up_unless_the_policy_allows_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    for (network, expected) in [(false, Some(ErrorCode::PermanentResolverFailure)), (true, None)] {
        let mut state = state(network);
        let handle = instance_network::Host::instance_network(&mut state.sockets()).unwrap();
        let looked =
            ip_name_lookup::Host::resolve_addresses(&mut state.sockets(), handle, "localhost".to_owned());
        assert_eq!(
            looked.err().map(|error| error.downcast().expect("a code")),
            expected,
            "network {network}"
        );
    }
}
