//! `docs/executors.md` says what the code says.

use std::fmt::Write;
use std::path::Path;

use esf_worker::executor::Capabilities;

/// Set to write the page anew.
const BLESS: &str = "ESF_BLESS";

fn row(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

fn capabilities() -> String {
    let (oci, wasi) = (esf_oci::capabilities(), esf_wasi::capabilities());
    let words = |words: &[String]| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    type Cell<'a> = (&'a str, &'a dyn Fn(&Capabilities) -> String);
    let cells: [Cell<'_>; 15] = [
        ("programs", &|it| words(&it.programs)),
        ("privilege needed", &|it| it.privilege.clone()),
        ("systems", &|it| words(&it.systems)),
        ("bases", &|it| words(&it.bases)),
        ("networks", &|it| words(&it.networks)),
        ("limits", &|it| words(&it.limits)),
        ("work bounded by a count (`--fuel`)", &|it| yes(it.fuel)),
        ("terminals", &|it| yes(it.terminals)),
        ("signals", &|it| words(&it.signals)),
        ("commands as another user", &|it| yes(it.users)),
        ("commands that start others, and leave some behind", &|it| yes(it.processes)),
        ("host paths bound", &|it| yes(it.binds)),
        ("parts of the tree only (`--preopen`)", &|it| yes(it.preopens)),
        ("an evaluator's additions", &|it| words(&it.evaluator)),
        ("file names", &|it| it.names.clone()),
    ];
    let mut table = row(["", "oci", "wasi"].map(str::to_owned)) + &row(["---"; 3].map(str::to_owned));
    for (name, cell) in cells {
        table += &row([name.to_owned(), cell(&oci), cell(&wasi)]);
    }
    table
}

fn metadata() -> String {
    let mut table = row(["what", "is", "how"].map(str::to_owned)) + &row(["---"; 3].map(str::to_owned));
    for found in esf_wasi::metadata() {
        table += &row([found.what, found.class, found.detail].map(str::to_owned));
    }
    table
}

/// The page with what lies between the marks of `name` replaced.
fn with(page: &str, name: &str, generated: &str) -> String {
    let mark = format!("<!-- generated: {name} -->\n");
    let begin = page.find(&mark).expect("the mark") + mark.len();
    let end = begin + page[begin..].find("<!-- end -->").expect("the end's mark");
    let mut text = page[..begin].to_owned();
    write!(text, "{generated}{}", &page[end..]).expect("text takes text");
    text
}

#[test]
fn the_page_of_executors_says_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/executors.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let right = with(&with(&page, "capabilities", &capabilities()), "metadata", &metadata());
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&path, &right).unwrap();
        return;
    }
    assert!(
        page == right,
        "docs/executors.md is not what the code says: run this test with {BLESS}=1, look at the difference"
    );
}

/// Whatever is added to the report must be added to the page.
#[test]
fn every_capability_is_on_the_page() {
    let value = serde_json::to_value(esf_wasi::capabilities()).unwrap();
    assert_eq!(value.as_object().unwrap().len(), capabilities().lines().count() - 2);
}
