//! What belongs to one running guest, and the linker that gives it every interface, each by name.
//!
//! No interface is added as part of a set and then shadowed: one that was forgotten would fall back to the
//! host's own directories in silence. What is not named here a guest cannot import.

use std::sync::Arc;

use wasmtime::component::{Linker, ResourceTable};
use wasmtime::{Engine, Store};
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView};
use wasmtime_wasi::p2::bindings::{cli, clocks, random, sockets};
use wasmtime_wasi::random::WasiRandom;
use wasmtime_wasi::sockets::{WasiSockets, WasiSocketsView};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_io::bindings::wasi::io as wasi_io;

use super::filesystem::{self, Filesystem};
use super::io::{self, Streams, Table};
use super::limits::{CALL_BYTES, HANDLES, Limiter, Limits, RANDOM_BYTES, RESOURCES};
use super::stdio::{self, HasStdio, Stdio};

/// One guest.
pub(super) struct State {
    table: ResourceTable,
    wasi: WasiCtx,
    filesystem: filesystem::Context,
    pub(super) stdio: Stdio,
    pub(super) limiter: Limiter,
}

/// What a guest is given besides its files and streams.
pub(super) struct Given {
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) network: bool,
}

impl State {
    /// The builder's defaults give nothing: no arguments, no environment, no directory, no network.
    pub(super) fn new(
        given: &Given,
        filesystem: filesystem::Context,
        stdio: Stdio,
        limits: Arc<Limits>,
    ) -> Self {
        let mut builder = WasiCtx::builder();
        builder.args(&given.argv).envs(&given.env).max_random_size(RANDOM_BYTES);
        if given.network {
            builder.inherit_network().allow_ip_name_lookup(true);
        }
        builder.allow_tcp(given.network).allow_udp(given.network);
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES);
        Self { table, wasi: builder.build(), filesystem, stdio, limiter: Limiter::new(limits) }
    }

    fn filesystem(&mut self) -> filesystem::View<'_> {
        filesystem::View { context: &mut self.filesystem, table: &mut self.table }
    }

    fn stdio(&mut self) -> stdio::View<'_> {
        stdio::View { stdio: &self.stdio, table: &mut self.table }
    }

    fn streams(&mut self) -> io::View<'_> {
        io::View(&mut self.table)
    }

    /// The store of this guest, with its limits on.
    pub(super) fn store(self, engine: &Engine, fuel: Option<u64>) -> wasmtime::Result<Store<Self>> {
        let mut store = Store::new(engine, self);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(CALL_BYTES);
        store.set_max_component_handles(HANDLES);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        if let Some(fuel) = fuel {
            store.set_fuel(fuel)?;
        }
        Ok(store)
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Everything that a guest may import.
///
/// # Errors
///
/// When two of the interfaces have the same name, which is a fault of this function.
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    let l = &mut linker;

    wasi_io::error::add_to_linker::<_, Table>(l, |state: &mut State| &mut state.table)?;
    wasi_io::poll::add_to_linker::<_, Table>(l, |state: &mut State| &mut state.table)?;
    io::add_to_linker::<_, Streams>(l, State::streams)?;

    filesystem::types::add_to_linker::<_, Filesystem>(l, State::filesystem)?;
    filesystem::preopens::add_to_linker::<_, Filesystem>(l, State::filesystem)?;

    cli::stdin::add_to_linker::<_, HasStdio>(l, State::stdio)?;
    cli::stdout::add_to_linker::<_, HasStdio>(l, State::stdio)?;
    cli::stderr::add_to_linker::<_, HasStdio>(l, State::stdio)?;
    cli::exit::add_to_linker::<_, WasiCli>(l, State::cli)?;
    cli::environment::add_to_linker::<_, WasiCli>(l, State::cli)?;
    cli::terminal_input::add_to_linker::<_, WasiCli>(l, State::cli)?;
    cli::terminal_output::add_to_linker::<_, WasiCli>(l, State::cli)?;
    cli::terminal_stdin::add_to_linker::<_, WasiCli>(l, State::cli)?;
    cli::terminal_stdout::add_to_linker::<_, WasiCli>(l, State::cli)?;
    cli::terminal_stderr::add_to_linker::<_, WasiCli>(l, State::cli)?;

    clocks::wall_clock::add_to_linker::<_, WasiClocks>(l, State::clocks)?;
    clocks::monotonic_clock::add_to_linker::<_, WasiClocks>(l, State::clocks)?;

    random::random::add_to_linker::<_, WasiRandom>(l, |state: &mut State| state.wasi.random())?;
    random::insecure::add_to_linker::<_, WasiRandom>(l, |state: &mut State| state.wasi.random())?;
    random::insecure_seed::add_to_linker::<_, WasiRandom>(l, |state: &mut State| state.wasi.random())?;

    sockets::network::add_to_linker::<_, WasiSockets>(l, &Default::default(), State::sockets)?;
    sockets::instance_network::add_to_linker::<_, WasiSockets>(l, State::sockets)?;
    sockets::ip_name_lookup::add_to_linker::<_, WasiSockets>(l, State::sockets)?;
    sockets::tcp::add_to_linker::<_, WasiSockets>(l, State::sockets)?;
    sockets::tcp_create_socket::add_to_linker::<_, WasiSockets>(l, State::sockets)?;
    sockets::udp::add_to_linker::<_, WasiSockets>(l, State::sockets)?;
    sockets::udp_create_socket::add_to_linker::<_, WasiSockets>(l, State::sockets)?;
    #[cfg(test)]
    l.instance("test:host/fault")?.func_wrap("panic", |_, (): ()| -> wasmtime::Result<()> {
        panic!("a fault of the host, on purpose")
    })?;
    Ok(linker)
}
