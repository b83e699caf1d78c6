//! What a run keeps, and what `fsck` finds wrong with one.

use esf_core::ops::prune::Prune;
use esf_core::ops::rollout::NewStep;
use esf_core::rollout::{Array, Content, Dtype};
use esf_core::{BlobId, Digest};
use rusqlite::Connection;

use super::{Running, scored, step};
use crate::tests::{code, meta};

fn blob(name: &str) -> BlobId {
    BlobId::new(Digest::of(name.as_bytes()))
}

#[test]
fn nodes_of_an_open_run_stay_and_so_do_artifacts_until_the_prompt_goes() {
    let (running, begun) = Running::begun(1, |_| {});
    let graph = running.graph();
    let middle = running.fixture.sealed(running.root, "middle").node.node_id;
    let made = running.fixture.sealed(middle, "made").node.node_id;
    let loose = running.fixture.sealed(middle, "loose").node.node_id;
    let array = Array { dtype: Dtype::U8, length: 3, digest: blob("tokens"), size: 3, aligned_with: None };
    let named = NewStep {
        node_after: Some(made),
        action: Some(Content::Artifact { digest: blob("action"), size: 9 }),
        observation: Some(Content::Artifact { digest: blob("observation"), size: 9 }),
        arrays: [("prompt_token_ids".to_owned(), array)].into(),
        ..step(0)
    };
    running.steps(&begun[0], vec![named]).expect("step");
    let mut expected = vec![blob("action"), blob("observation"), blob("tokens")];
    expected.sort();
    assert_eq!(graph.live_blobs().expect("live"), expected);
    let prune = |node| graph.prune(&meta(), Prune { node, discard: true, unsealed: Default::default() });
    let refused = prune(made).expect_err("needed");
    assert_eq!(
        (code(&refused), refused.problem().context["run_id"].clone()),
        ("in_run".to_owned(), running.run.to_string().into())
    );
    let reply = prune(middle).expect("what nobody needs");
    assert!(
        reply.pruned.contains(&loose) && !reply.pruned.contains(&made) && !reply.pruned.contains(&middle)
    );
    assert!(reply.kept.iter().any(|kept| kept.id == made && kept.reason.as_str() == "run"));
    running.finish(&begun[0], scored(1.0)).expect("finish");
    assert_eq!(code(&prune(made).expect_err("its outcome names it")), "in_run");
    graph.finish_run(&meta(), running.run).expect("over");
    assert!(prune(middle).expect("now").pruned.contains(&made));
    assert_eq!(graph.live_blobs().expect("the prompt's node is there"), expected);
    running.sound();
}

#[test]
fn what_does_not_fit_in_a_run_is_named() {
    let (running, begun) = Running::begun(2, |_| {});
    running.steps(&begun[0], vec![step(0), step(1)]).expect("steps");
    running.finish(&begun[0], scored(1.0)).expect("one");
    running.finish(&begun[1], scored(1.0)).expect("two");
    let batch = running.consume("trainer", 1);
    running.graph().ack(&meta(), running.acking(&batch, 1)).expect("ack");
    running.sound();
    let (run, one, prompt) = (running.run, begun[0].sibling_id, begun[0].prompt_id);
    for (damage, finding) in [
        ("UPDATE runs SET results = 9", format!("{run}: results is 9 instead of 2")),
        ("UPDATE runs SET accepted = 9", format!("{run}: accepted is 9 instead of 2")),
        (
            "UPDATE deliveries SET trained_by = 0",
            format!("{run}: entry 1 was dropped and trained on [0, 0] times instead of [0, 1]"),
        ),
        ("DELETE FROM deliveries WHERE sequence = 1", format!("{one}: its ends or trials do not fit")),
        (
            "DELETE FROM deliveries WHERE sequence = 1",
            format!("{run}: the length of its log is 3 instead of 2"),
        ),
        ("UPDATE siblings SET revision = 1", format!("{one}: its ends or trials do not fit")),
        (
            "UPDATE trials SET status = 'running', ended_at = NULL",
            format!("{one}: its ends or trials do not fit"),
        ),
        ("DELETE FROM steps WHERE ordinal = 0", format!("{one}: the steps of a trial are not dense")),
        (
            "UPDATE steps SET node_before = x'00' WHERE ordinal = 1",
            format!("{one}: the steps of a trial are not dense"),
        ),
        ("UPDATE prompts SET sequence = 1", format!("{prompt}: its siblings or its group event do not fit")),
        ("UPDATE consumptions SET state = 'available'", format!("{run}: the cursor of consumer \"trainer\"")),
    ] {
        let db = Connection::open(&running.fixture.path).expect("open");
        let copy = running.fixture.path.with_extension("copy");
        std::fs::remove_file(&copy).ok();
        db.execute("VACUUM INTO $1", [copy.to_str().expect("utf-8")]).expect("copy");
        Connection::open(&copy)
            .and_then(|db| db.execute_batch(&format!("PRAGMA foreign_keys = OFF; {damage}")))
            .expect("damage");
        let findings = crate::Graph::open(&copy).expect("open").check().expect("check").join("\n");
        assert!(findings.contains(&finding), "{damage}: {finding} in:\n{findings}");
    }
}
