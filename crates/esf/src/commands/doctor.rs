//! `doctor`: what this machine can run, what is missing and how to get it. Works without a store.

use esf_core::Problem;
use esf_worker::Client;
use serde_json::json;

use crate::context::Context;
use crate::output::{Reply, Table};

pub(super) fn doctor(context: &Context) -> Result<u8, Problem> {
    let requirements = esf_oci::requirements();
    let mut table = Table::new(&["CHECK", "OK", "FOUND", "DO"]);
    for requirement in &requirements {
        let ok = if requirement.ok { "yes" } else { "NO" };
        let remedy = if requirement.ok { "" } else { &requirement.remedy };
        table.row([requirement.name.as_str(), ok, &requirement.found, remedy]);
    }
    let ready = requirements.iter().all(|requirement| requirement.ok);
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
    let value = json!({
        "ready": ready,
        "requirements": requirements,
        "store": { "path": context.dir(), "exists": context.store_exists() },
        "worker": { "pid": worker },
    });
    super::print(context, &Reply { value, table, ids: Vec::new() })?;
    Ok(if ready { 0 } else { 5 })
}
