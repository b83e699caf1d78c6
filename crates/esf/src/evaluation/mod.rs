//! Runs an evaluator file on a sealed node. The plan and the judgement are `esf-control`'s; here they
//! are carried out through the worker, each run in an attempt of its own that ends by itself even if
//! this program dies. Invariant: an evaluation is known by its key: asked again it is answered from the
//! record, cut short it is run anew, and many threads may ask at once.

mod files;
mod run;

use std::fs;
use std::path::{Path, PathBuf};

use esf_control::{Evaluator, Judgement, Outcome, judge};
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::record::{self, Attempt, Evaluation, Evidence, Failure, Node};
use esf_core::{Class, Digest, FailureClass, Problem};
use esf_store::Store;
use serde_json::{Value, json};

use crate::commands::find;
use crate::context::{Context, io_problem};

/// An evaluator file made ready: parsed, its files found and digested.
#[derive(Debug)]
pub(crate) struct Prepared {
    evaluator: Evaluator,
    files: Option<PathBuf>,
    files_digest: Option<Digest>,
    digest: Digest,
    hide: globset::GlobSet,
    runs: u32,
}

impl Prepared {
    /// Reads the evaluator file at `path` and the files beside it.
    ///
    /// # Errors
    /// `bad_evaluator`, and what the file system says.
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let bad = |message: String| {
            Problem::new(Class::Usage, "bad_evaluator", message).found(path.display().to_string())
        };
        let text = fs::read_to_string(path).map_err(|error| io_problem("read", path, &error))?;
        let evaluator = Evaluator::parse(&text).map_err(|error| bad(error.to_string()))?;
        let beside = path.parent().unwrap_or(Path::new(""));
        let files = evaluator.files.as_ref().map(|files| beside.join(files));
        let files_digest = files.as_deref().map(files::digest).transpose()?;
        let hide = evaluator.hidden().map_err(|error| bad(error.to_string()))?;
        let (digest, runs) = (evaluator.digest(files_digest.as_ref()), evaluator.repeat);
        Ok(Self { digest, evaluator, files, files_digest, hide, runs })
    }

    /// The same, to be run this often for each node instead of as often as the file says.
    pub(crate) fn repeated(self, runs: Option<u32>) -> Self {
        Self { runs: runs.unwrap_or(self.runs), ..self }
    }

    /// How often it is run for each node.
    pub(crate) fn runs(&self) -> u32 {
        self.runs
    }

    /// What it is called.
    #[allow(dead_code, reason = "the search driver names its evaluator by it")]
    pub(crate) fn name(&self) -> &str {
        &self.evaluator.name
    }

    /// The digest of its text and its files: what its evaluations are recorded under.
    #[allow(dead_code, reason = "the search driver pins its evaluator by it")]
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// That the files are still those that were digested: a sandbox has its own copy, made in between.
    fn unchanged(&self) -> Result<(), Problem> {
        if self.files.as_deref().map(files::digest).transpose()? == self.files_digest {
            return Ok(());
        }
        let message = "the evaluator's files changed while it was in use";
        Err(Problem::new(Class::Conflict, "evaluator_changed", message)
            .expected("the files that were read at the start")
            .remedy("leave them alone while it runs, and evaluate again"))
    }

    /// What the caller asked for, as far as it decides the answer.
    fn asked(&self, node: &Node) -> Value {
        json!({
            "node": node.node_id, "evaluator": self.evaluator.name, "version": self.evaluator.version,
            "digest": self.digest, "runs": self.runs,
        })
    }
}

/// How far an evaluation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for a free place, with this many before it.
    Waiting(u64),
    /// This step of the evaluator runs.
    Running(&'static str),
}

/// Evaluates one sealed node once, under the part `part` of the request's key. A run that failed in any
/// way is an evaluation too, with verdict `error`; several that ask the same at once wait for the first.
///
/// # Errors
/// `not_sealed`, `cancelled` by a signal to this program (nothing is recorded then), `conflict` for
/// another request under the same key, and what the worker and the store say.
pub(crate) fn evaluate(
    context: &Context,
    store: &Store,
    node: &Node,
    prepared: &Prepared,
    part: &str,
    progress: &(dyn Fn(Stage) + Sync),
) -> Result<Evaluation, Problem> {
    find::sealed_root(node)?;
    let asking = Asking { context, store, node, prepared, part, progress, asked: prepared.asked(node) };
    asking.answer()
}

/// Keeps bytes as evidence.
///
/// # Errors
/// The store's.
pub(crate) fn evidence(store: &Store, name: &str, bytes: &[u8]) -> Result<Evidence, Problem> {
    let blob = store.stack().put_artifact(bytes).map_err(|error| error.problem())?;
    Ok(Evidence { name: name.to_owned(), blob, bytes: bytes.len() as u64 })
}

/// One evaluation that was asked for.
struct Asking<'a> {
    context: &'a Context,
    store: &'a Store,
    node: &'a Node,
    prepared: &'a Prepared,
    part: &'a str,
    progress: &'a (dyn Fn(Stage) + Sync),
    asked: Value,
}

/// A judgement and what the programs printed.
struct Judged {
    judgement: Judgement,
    outputs: Vec<(String, Vec<u8>)>,
}

impl Asking<'_> {
    /// The idempotency key of one step of this evaluation.
    fn step(&self, name: &str) -> String {
        if self.part.is_empty() { name.to_owned() } else { format!("{}/{name}", self.part) }
    }

    fn answer(&self) -> Result<Evaluation, Problem> {
        let _turn = esf_worker::lock::same_request(self.context.dir(), &self.context.key(self.part))?;
        let meta = self.context.meta(self.part)?;
        let known = self.store.graph().recorded_asked(&meta, "evaluate", &self.asked);
        match known.map_err(|error| error.problem())? {
            Some(evaluation) => Ok(evaluation),
            None => self.run(),
        }
    }

    fn run(&self) -> Result<Evaluation, Problem> {
        let mut client = self.context.worker()?;
        client.set_cancel(crate::interrupt::watch()?);
        match self.start(&mut client) {
            Ok(attempt) => {
                // Recorded under the run's own lease, so the release comes after it, whatever it came to.
                let recorded = self
                    .prepared
                    .unchanged()
                    .and_then(|()| run::Run::new(self, &mut client, &attempt).judge())
                    .and_then(|judged| self.record(judged, Some(&attempt)));
                let meta = self.context.request_meta(&self.step("release"));
                if let Err(problem) = client.release(meta, attempt.attempt_id, true) {
                    tracing::warn!(%problem, "the evaluation's attempt ends at its lifetime instead");
                }
                recorded
            }
            Err(problem) if problem.code == "infra_prepare" || problem.code == "infra_lost" => {
                let judgement = judge(Outcome::Lost(FailureClass::InfraPrepare), None, None);
                self.record(Judged { judgement, outputs: Vec::new() }, None)
            }
            Err(problem) => Err(problem),
        }
    }

    fn record(&self, judged: Judged, attempt: Option<&Attempt>) -> Result<Evaluation, Problem> {
        let Judged { judgement, outputs } = judged;
        let evaluator = &self.prepared.evaluator;
        let kept = outputs.iter().filter(|(_, bytes)| !bytes.is_empty());
        let new = NewEvaluation {
            node: self.node.node_id,
            evaluator: record::Evaluator {
                name: evaluator.name.clone(),
                version: evaluator.version.clone(),
                digest: Some(self.prepared.digest),
            },
            verdict: judgement.verdict,
            reward: judgement.reward,
            metrics: json!(judgement.metrics),
            failure: judgement.failure.map(|(class, detail)| Failure::new(class, "evaluate", detail)),
            evidence: kept
                .map(|(name, bytes)| evidence(self.store, name, bytes))
                .collect::<Result<_, _>>()?,
            attempt: None,
            run_attempt: attempt.map(|attempt| attempt.attempt_id),
            epoch: attempt.map(|attempt| attempt.lease_epoch),
        };
        let meta = self.context.meta(self.part)?;
        self.store.graph().evaluate_asked(&meta, &self.asked, new).map_err(|error| error.problem())
    }
}
