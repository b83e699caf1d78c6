//! Runs an evaluator file on a sealed node. The plan and the judgement are `esf-control`'s; here they
//! are carried out through the worker, each run in an attempt of its own that ends by itself even if
//! this program dies. Invariant: an evaluation is known by its key: asked again it is answered from the
//! record, cut short it is run anew, and many threads may ask at once.

mod batch;
mod delta;
mod files;
mod left;
mod run;

use std::fs;
use std::path::{Path, PathBuf};

use esf_control::{Evaluator, JudgedBy, Judgement};
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::record::{self, Attempt, Evaluation, Evidence, Failure, Node};
use esf_core::{Class, Digest, Problem};
use esf_store::Store;
use serde_json::{Value, json};

use crate::commands::find;
use crate::context::{Context, io_problem};

pub(crate) use batch::{Progress, Task, evaluate_all};

/// An evaluator file made ready: parsed, its files found and digested.
#[derive(Debug)]
pub(crate) struct Prepared {
    evaluator: Evaluator,
    files: Option<Own>,
    /// Those of the scorer.
    score_files: Option<Own>,
    digest: Digest,
    hide: globset::GlobSet,
    judged_by: JudgedBy,
    runs: u32,
}

/// A directory of an evaluator's own files.
#[derive(Debug)]
struct Own {
    path: PathBuf,
    /// What it was when it was digested.
    stamp: Digest,
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
        let (mut digests, mut speak) = (Vec::new(), false);
        let mut own = |directory: &Option<String>| -> Result<Option<Own>, Problem> {
            let Some(directory) = directory else { return Ok(None) };
            let path = beside.join(directory);
            let found = files::read(&path)?;
            if let Some(path) = evaluator.left_paths().find(|path| found.have(path)) {
                return Err(bad(format!("{path} is among the evaluator's files, so no run can leave it")));
            }
            digests.push(found.digest);
            speak |= found.speak_of_result;
            Ok(Some(Own { path, stamp: found.stamp }))
        };
        let (files, score_files) = (own(&evaluator.files)?, own(&evaluator.score_files)?);
        let judged_by = evaluator.judged_by(speak);
        let hide = evaluator.hidden().map_err(|error| bad(error.to_string()))?;
        let (digest, runs) = (evaluator.digest(&digests), evaluator.repeat);
        Ok(Self { digest, evaluator, files, score_files, hide, judged_by, runs })
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

    /// Its version.
    pub(crate) fn version(&self) -> &str {
        &self.evaluator.version
    }

    /// The digest of its text and its files: what its evaluations are recorded under.
    #[allow(dead_code, reason = "the search driver pins its evaluator by it")]
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// That the files are still those that were digested: a sandbox has its own copy, made in between.
    fn unchanged(&self) -> Result<(), Problem> {
        let same = |own: &Own| Ok(files::stamp(&own.path)? == own.stamp);
        let all: Result<Vec<bool>, Problem> = self.files.iter().chain(&self.score_files).map(same).collect();
        if all?.into_iter().all(|same| same) {
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

/// Keeps a file as evidence, read piece by piece.
///
/// # Errors
/// `artifact_too_large` above the size of an artifact, whatever kind of file it is; and the store's.
pub(crate) fn evidence_file(store: &Store, path: &Path) -> Result<Evidence, Problem> {
    let mut file = std::fs::File::open(path).map_err(|error| io_problem("read", path, &error))?;
    let stored = store.stack().store_artifact(&mut file).map_err(|error| error.problem())?;
    Ok(Evidence { name: path.display().to_string(), blob: stored.blob(), bytes: stored.bytes() })
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
            None => run::Run::new(self)?.evaluate(),
        }
    }

    fn record(&self, judged: Judged, attempt: Option<&Attempt>) -> Result<Evaluation, Problem> {
        let Judged { judgement, outputs } = judged;
        let evaluator = &self.prepared.evaluator;
        let kept = outputs.iter().filter(|(_, bytes)| !bytes.is_empty());
        let mut metrics = json!(judgement.metrics);
        if !judgement.values.is_empty() {
            metrics["values"] = json!(judgement.values);
        }
        let failed = |(class, detail): (_, String)| Failure::new(class, "evaluate", said(detail, &outputs));
        let new = NewEvaluation {
            node: self.node.node_id,
            evaluator: record::Evaluator {
                name: evaluator.name.clone(),
                version: evaluator.version.clone(),
                digest: Some(self.prepared.digest),
            },
            verdict: judgement.verdict,
            reward: judgement.reward,
            metrics,
            failure: judgement.failure.map(failed),
            evidence: kept
                .map(|(name, bytes)| evidence(self.store, name, bytes))
                .collect::<Result<_, _>>()?,
            attempt: None,
            run_attempt: attempt.map(|attempt| attempt.attempt_id),
            epoch: attempt.map(|attempt| attempt.lease_epoch),
        };
        let meta = self.context.meta(self.part)?;
        let recorded = self.store.graph().evaluate_asked(&meta, &self.asked, new.clone());
        let recorded = recorded.map_err(|error| error.problem());
        match recorded {
            // Somebody has settled the lost run already; that it was lost stays true.
            Err(problem) if problem.code == "lease_fenced" && new.verdict.is_error() => {
                let alone = NewEvaluation { run_attempt: None, epoch: None, ..new };
                let recorded = self.store.graph().evaluate_asked(&meta, &self.asked, alone);
                recorded.map_err(|error| error.problem())
            }
            recorded => recorded,
        }
    }
}

/// Longest line of a program that a failure repeats, in characters.
const REPEATED: usize = 200;

/// Why there is no verdict, with the last line that the programs wrote on their standard errors.
fn said(detail: String, outputs: &[(String, Vec<u8>)]) -> String {
    let errors = outputs.iter().rev().filter(|(name, _)| name.ends_with(".stderr"));
    let last = errors.map(|(_, bytes)| String::from_utf8_lossy(bytes)).find_map(|text| {
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(
            line.trim()
                .chars()
                .filter(|character| !character.is_control())
                .take(REPEATED)
                .collect::<String>(),
        )
    });
    match last {
        Some(line) => format!("{detail}; it said: {line}"),
        None => detail,
    }
}
