//! `doctor`: what this machine can run, what is missing and how to get it. Works without a store.

use esf_core::Problem;
use esf_worker::Client;
use esf_worker::executor::{Capabilities, Requirement};
use serde_json::json;

use crate::context::Context;
use crate::output::{Reply, Table};

/// One executor, as it describes itself.
struct Described {
    name: &'static str,
    requirements: Vec<Requirement>,
    capabilities: Capabilities,
}

impl Described {
    fn ready(&self) -> bool {
        self.requirements.iter().all(|requirement| requirement.ok)
    }
}

pub(super) fn doctor(context: &Context) -> Result<u8, Problem> {
    let executors = [
        Described {
            name: "oci",
            requirements: esf_oci::requirements(),
            capabilities: esf_oci::capabilities(),
        },
        Described {
            name: "wasi",
            requirements: esf_wasi::requirements(),
            capabilities: esf_wasi::capabilities(),
        },
    ];
    let mut table = Table::new(&["CHECK", "OK", "FOUND", "DO"]);
    for executor in &executors {
        for requirement in &executor.requirements {
            let ok = if requirement.ok { "yes" } else { "NO" };
            let remedy = if requirement.ok { "" } else { &requirement.remedy };
            table.row([requirement.name.as_str(), ok, &requirement.found, remedy]);
        }
        let ok = if executor.ready() { "yes" } else { "NO" };
        let name = format!("executor {}", executor.name);
        table.row([name.as_str(), ok, &summary(&executor.capabilities), ""]);
    }
    let (store, worker) = if context.store_exists() {
        let worker = Client::connect(context.dir())?.map(|client| client.worker_pid());
        (context.dir().display().to_string(), worker)
    } else {
        (format!("{} (not made yet)", context.dir().display()), None)
    };
    let running =
        worker.map_or("not running; the first activate starts it".to_owned(), |pid| format!("pid {pid}"));
    table.row(["store", "yes", &store, ""]);
    table.row(["worker", "yes", &running, ""]);
    let ready = executors.iter().any(Described::ready);
    let described = executors.iter().map(|executor| {
        json!({
            "name": executor.name,
            "ready": executor.ready(),
            "requirements": executor.requirements,
            "capabilities": executor.capabilities,
        })
    });
    let value = json!({
        "ready": ready,
        "requirements": executors.iter().flat_map(|executor| &executor.requirements).collect::<Vec<_>>(),
        "executors": described.collect::<Vec<_>>(),
        "store": { "path": context.dir(), "exists": context.store_exists() },
        "worker": { "pid": worker },
    });
    super::print(context, &Reply { value, table, ids: Vec::new() })?;
    Ok(if ready { 0 } else { 5 })
}

/// What an executor can do, on a line; `docs/executors.md` has the rest.
fn summary(capabilities: &Capabilities) -> String {
    let list = |words: &[String]| if words.is_empty() { "none".to_owned() } else { words.join(",") };
    format!(
        "{} programs, privilege: {}, base {}, network {}, limits {}, signals {}",
        list(&capabilities.programs),
        capabilities.privilege,
        list(&capabilities.bases),
        list(&capabilities.networks),
        list(&capabilities.limits),
        list(&capabilities.signals),
    )
}
